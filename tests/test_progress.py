"""What a run says before it starts, how long it says it takes, its log and its progress bars."""

import copy
import logging
import re
from types import SimpleNamespace

import pytest

from recbole_unlearn import cli, progress
from recbole_unlearn.log import logging_to
from recbole_unlearn.pipeline import planned_methods
from recbole_unlearn.progress import Plan
from recbole_unlearn.settings import UnlearnConfig


def plan(config, *methods, now=None, **known):
    config = copy.copy(config)
    config.external_config_dict |= {"unlearn": methods[0], "compare": list(methods[1:])}
    clock = {} if now is None else {"now": now}
    return Plan(config, planned_methods(config), "injected noise", **known, **clock)


def sizes(full=None, retain=None, clean=None):
    """Splits with so many training interactions."""
    given = {"full": full, "retain": retain, "clean": clean}
    return {part: SimpleNamespace(train=range(n)) for part, n in given.items() if n is not None}


def cache(*parts):
    """Trainings that have the models of splits with so many training interactions."""
    return SimpleNamespace(has=lambda config, splits: len(splits.train) in parts)


@pytest.fixture
def lines(caplog):
    """``lines("Plan")``: what was said so far and begins with that."""
    caplog.set_level(logging.INFO)

    def said(start=""):
        own = (record.message for record in caplog.records if record.name == progress.__name__)
        return [line for line in own if line.startswith(start)]

    return said


def test_the_plan_and_its_estimates(lines):
    """Of obliviate and retrain for the paper's LightGCN on ml-1m, whose data is not needed."""
    paper, time = UnlearnConfig("LightGCN", "ml-1m", config_dict={"show_progress": False}), [0.0]
    now = plan(paper, "obliviate", "retrain", now=lambda: time[0], informed=True)
    now.announce(sizes(1200, 1000), cache(1200))
    now.announce(sizes(1200, 1000), cache(1200))  # the same phases; it is said once
    now("clean", 100, 0)
    for seconds, done in ((1, 1), (10, 2), (15, 3)):  # too early to say; 5 s an epoch; said a moment ago
        time[0] = seconds
        now("clean", 100, done)
    now("retrained", 100, 0)
    time[0] = 35.0
    now("retrained", 100, 5)
    assert lines() == [
        "Plan for LightGCN on ml-1m, with injected noise: train clean (at most 100 epochs), train original (cached), "
        "unlearn with obliviate, retrain (at most 100 epochs).",
        "Training clean: at most about 8 min 10 s left.",
        "Training retrained: at most about 6 min 20 s left.",
    ]


@pytest.mark.parametrize(("methods", "changes", "said"), [
    (["obliviate", "retrain"], True, "train original (20 epochs), unlearn with obliviate, retrain (20 epochs)"),
    (["obliviate", "retrain"], False, "train original (20 epochs), retrain (20 epochs)"),
    (["sisa", "obliviate"], True,
     "train original (20 epochs), train the parts of sisa (20 epochs), unlearn with sisa, unlearn with obliviate"),
])  # fmt: skip
def test_the_plan_has_what_will_be_trained(lines, methods, changes, said):
    config = UnlearnConfig("BPR", "ml-1m", config_dict={"epochs": 20, "eval_step": 0})
    plan(config, *methods).announce(sizes(clean=1), cache(), changes)
    assert lines() == [f"Plan for BPR on ml-1m, with injected noise: {said}."]


def test_the_log_has_every_epoch_and_the_screen_has_not(flags, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # none but ours, as on the command line
    given = ["--model=BPR", "--dataset=tiny", "--unlearn=retrain", "--inject_mode=random", *flags(report="none")]
    given = [flag for flag in given if not flag.startswith("--show_progress")]
    assert cli.main(given) == 0
    text = (tmp_path / "out" / "run.log").read_text()
    assert "\x1b" not in text
    for epoch in range(4):
        losses = re.findall(rf"INFO    epoch {epoch} training \[time: .*, train loss: [0-9.]+\]", text)
        assert len(losses) == 2  # of the original and of the retrained model
    for epoch in (1, 3):
        assert len(re.findall(rf"epoch {epoch} evaluating \[time: .*, valid_score: [0-9.]+\]", text)) == 2
    assert len(re.findall(r"valid result: .*ndcg@20 : [0-9.]+", text)) == 4
    assert all(re.match(r"\d\d:\d\d:\d\d (INFO|WARNING) ", line) for line in text.splitlines())
    screen = capsys.readouterr().err
    assert not any(word in screen for word in ("train loss", "\r", "\x1b"))  # no frames of bars in a file
    assert cli.main([*given, "--show_progress=True", "--no_cache"]) == 0
    assert "Train original" in capsys.readouterr().err


@pytest.mark.parametrize("before", [None, "of yesterday\n"])
def test_a_log_that_is_taken_back_leaves_what_was_there(tmp_path, before):
    file = tmp_path / "run.log"
    if before is not None:
        file.write_text(before)
    for lines in (0, 2):
        with logging_to(tmp_path) as log:
            for _ in range(lines):
                logging.getLogger().warning("a line")
            log.take_back()
        assert (file.read_text() if file.exists() else None) == before
