"""The warning that unlearning takes longer than training did."""

import logging

import pytest

from recbole_unlearn import run_unlearn
from recbole_unlearn.methods.obliviate import pace


@pytest.mark.parametrize(
    ("trained", "warned"), [(30.0, True), (80.0, False), (None, False)], ids=["longer", "shorter", "unknown"]
)
def test_it_warns_once_when_retraining_is_quicker(monkeypatch, caplog, trained, warned):
    clock = iter([0.0, 10.0, 16.0])  # LUA takes 10 s, three steps 6 s: 20 of them make it 50
    monkeypatch.setattr(pace.time, "perf_counter", lambda: next(clock))
    mine = pace.Pace(trained)
    mine.steps_begin()
    with caplog.at_level(logging.WARNING):
        for step in range(1, 20):
            mine.after(step, 20)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == warned
    if warned:
        assert said[0].startswith("Obliviate will take about 50 s here, and training the original took 30 s")
        assert "--unlearn=retrain" in said[0]


def test_nobody_is_warned_of_a_few_seconds(monkeypatch, caplog):
    clock = iter([0.0, 1.0, 2.0])
    monkeypatch.setattr(pace.time, "perf_counter", lambda: next(clock))
    mine = pace.Pace(0.5)
    mine.steps_begin()
    mine.after(pace.STEPS, 6)
    assert not caplog.records


def test_a_run_warns(settings, monkeypatch, caplog):
    monkeypatch.setattr(pace, "LEAST", 0.0)
    monkeypatch.setattr(pace, "foreseen", lambda *args: 1e6)
    run_unlearn(
        "BPR", "tiny", unlearn="obliviate",
        config_dict=settings | {"epochs": 1, "save_unlearned": False, "report": "none", "lac_batch_size": 32},
    )  # fmt: skip
    assert "Obliviate will take about 1000000 s here" in caplog.text
