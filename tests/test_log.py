"""The log of a run and its progress bars."""

import io
import logging
import re
import sys

import pytest

from recbole_unlearn import UnlearnConfig, cli, run_unlearn
from recbole_unlearn.log import logging_to


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def bare(monkeypatch):
    """``bare()``: from here on no handlers but ours, as on the command line; pytest has its own."""
    return lambda: monkeypatch.setattr(logging.getLogger(), "handlers", [])


def test_the_log_has_every_epoch_and_the_screen_has_not(flags, tmp_path, capsys, bare):
    bare()
    given = ["--model=BPR", "--dataset=tiny", "--inject_mode=random", *flags(report="none")]
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
    assert "Phase 1 of 2" in screen
    assert not any(word in screen for word in ("train loss", "\r", "\x1b"))  # no frames of bars in a file
    assert cli.main([*given, "--show_progress=True", "--no_cache"]) == 0
    assert "Train original" in capsys.readouterr().err


def test_the_log_of_a_small_request_has_no_curves_of_it(settings, tmp_path):
    """Training again without each single user would give the same losses for the user of the request."""
    values = settings | {"report": "none", "min_group": 10, "cache": False}
    run_unlearn("BPR", "tiny", forget={"user_id": ["u1"]}, unlearn="retrain", config_dict=values)
    text = (tmp_path / "out" / "run.log").read_text()
    assert text.count("epoch 0 training") == 1  # of the original, which knows of no request
    assert text.index("epoch 0 training") < text.index("Phase 2 of 2")


@pytest.mark.parametrize(
    ("terminal", "given", "shown"),
    [(False, {}, False), (True, {}, True), (False, {"show_progress": True}, True),
     (True, {"show_progress": False}, False), (None, {}, False)],
)  # fmt: skip
def test_bars_are_for_terminals(settings, monkeypatch, terminal, given, shown):
    values = {key: value for key, value in settings.items() if key != "show_progress"} | given
    stream = None if terminal is None else Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    assert bool(UnlearnConfig("BPR", "tiny", config_dict=values)["show_progress"]) == shown


def test_a_line_a_message_without_colours(tmp_path, bare, capsys):
    bare()
    root = logging.getLogger()
    with logging_to(tmp_path):
        root.warning("\x1b[1;35mtwo\x1b[0m:\nlines")
        root.info("of RecBole")
    assert (tmp_path / "run.log").read_text().splitlines()[0].endswith("WARNING two: lines")
    assert "of RecBole" in (tmp_path / "run.log").read_text()
    assert "two: lines" in capsys.readouterr().err


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
