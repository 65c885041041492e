"""Runs that are stopped: by Ctrl-C or SIGTERM, at any moment. They say so in a line and leave nothing behind."""

import os
import pkgutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
from recbole.trainer import Trainer  # noqa: F401

from recbole_unlearn import UnlearnError, cli, log, run_unlearn
from recbole_unlearn.files import atomic as outputs
from recbole_unlearn.files import load_key
from recbole_unlearn.training import trainings
from tests.parts import refused
from tests.state.crash_cases import forked

OF_TORCH = "torchinductor_"  # one folder of torch for each user of the machine
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
# Where the signal comes: as a function is called or as it returns.
MOMENTS = {
    "data": "recbole_unlearn.pipeline.load",
    "training": "recbole_unlearn.training.trainer.PhaseTrainer._train_epoch",
    "unlearning": "recbole_unlearn.methods.obliviate.obliviate.Obliviate.unlearn",
    "writing": "recbole_unlearn.methods.base.write_model",
    "result": "recbole_unlearn.pipeline.write_json",
    "end": "recbole_unlearn.files.atomic._publish",
}


@pytest.fixture(autouse=True)
def usual_handlers():
    """Those of a new process: Ray, if another test has used it, leaves one of its own."""
    before = {number: signal.getsignal(number) for number in CODES}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signalling(original, number):
    def call(*args, **kwargs):
        os.kill(os.getpid(), number)
        found = original(*args, **kwargs)
        time.sleep(0.01)  # time for the signal, where it does not wait
        return found

    return call


def _child(arguments, folder, moment, number):
    """A command in a process of its own, which is sent a signal when it comes to ``moment``."""
    os.chdir(folder)
    tempfile.tempdir = str(folder / "tmp")
    error = os.open(folder / "tmp.err", os.O_WRONLY | os.O_CREAT)
    os.dup2(error, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    with pytest.MonkeyPatch.context() as patch:
        owner, _, name = MOMENTS[moment].rpartition(".")
        owner = pkgutil.resolve_name(owner)
        patch.setattr(owner, name, signalling(getattr(owner, name), number))
        os._exit(cli.main(arguments))


def stopped(tmp_path, arguments, moment, number):
    """The exit code of the command, what it said, and the files it left."""
    folder = tmp_path / "work"
    (folder / "tmp").mkdir(parents=True)
    process = forked(_child, arguments, folder, moment, number)
    process.join(60)
    said = (folder / "tmp.err").read_text()
    left = {str(path.relative_to(folder)) for path in folder.rglob("*")} - {"tmp", "tmp.err"}
    return process.exitcode, said, {path for path in left if not path.startswith("tmp/" + OF_TORCH)}


@pytest.mark.parametrize(
    ("moment", "number"),
    [(moment, signal.SIGTERM) for moment in MOMENTS if moment != "end"]
    + [("data", signal.SIGINT), ("training", signal.SIGINT)],
)
def test_a_run_that_is_stopped_leaves_its_log_at_most(flags, tmp_path, moment, number):
    load_key(None)  # a run that makes the key logs it
    given, places = flags(tensorboard=True, cache_dir="saved/cache"), ("--output_dir", "--checkpoint_dir")
    arguments = [flag for flag in given if not flag.startswith(places)]
    (tmp_path / "r.csv").write_text("user_id\nu3\n")
    arguments += ["--model=BPR", "--dataset=tiny", "--unlearn=obliviate", f"--forget={tmp_path / 'r.csv'}"]
    code, said, left = stopped(tmp_path, arguments, moment, number)
    assert (code, said.splitlines()[-1]) == (CODES[number], "Stopped; no result was written.")
    assert "Traceback" not in said
    assert not [path for path in left if path.startswith("tmp/") or "/." in path]
    files = {path for path in left if path.endswith("run.log")}
    folders = {str(parent) for path in files for parent in Path(path).parents} - {"."}
    assert left == files | folders  # and no folder that is empty
    assert bool(files) == (moment != "data")


def test_a_signal_waits_while_the_result_is_put_in_place(flags, tmp_path):
    """Half of a result, or an old one that is gone before the new one is there, would be worse than a moment."""
    arguments = ["--model=BPR", "--dataset=tiny", *flags(report="none", output_dir="out")]
    code, said, left = stopped(tmp_path, arguments, "end", signal.SIGTERM)
    assert code == 143
    assert "Stopped; the result was written before, to" in said.splitlines()[-1]
    assert {"out/result.json", "out/BPR-unlearned.pth", "out/tiny-Dataset.pth"} <= left
    assert not [path for path in left if path.startswith("tmp/")]  # as RecBole's folder for checkpoints


def test_a_refused_request_leaves_no_folder(flags, tmp_path, caplog, capsys):
    given = flags(output_dir="saved/one", cache_dir="saved/cache")
    arguments = ["--model=BPR", "--dataset=tiny", f"--forget={tmp_path / 'r.csv'}", *given]
    for request in ("user_id\nghost\n", "user_id,item_id\nu3,\nghost,i3\n"):
        (tmp_path / "r.csv").write_text(request)
        assert cli.main(arguments) == 2
        assert "Plan for" not in capsys.readouterr().err
        assert not (tmp_path / "saved").exists()
    assert "rows with an empty cell" in caplog.text  # which was in the log too
    (tmp_path / "saved").mkdir()
    assert cli.main(arguments) == 2
    assert list((tmp_path / "saved").iterdir()) == []  # a folder that was there stays
    assert cli.main([f"--report={tmp_path}", "--output_dir=page"]) == 2
    assert not (tmp_path / "page").exists()


def test_a_run_that_fails_while_it_trains_leaves_its_log(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(trainings, "train_here", mock.Mock(side_effect=UnlearnError("no way.")))
    values = settings | {"cache": False}
    refused("no way", run_unlearn, "BPR", "tiny", forget={"user_id": ["u1"]}, config_dict=values)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run.log"]


def test_the_command_line_stops_once_and_gives_handlers_back():
    """Ray's handler does not take the place of ours; other threads have none, and may run the command line."""
    before = [signal.getsignal(number) for number in CODES]
    with log.stopping():
        with log.own_handlers():
            signal.signal(signal.SIGTERM, lambda *arrived: sys.exit(15))  # as Ray does
        with pytest.raises(log.Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
    assert [signal.getsignal(number) for number in CODES] == before
    with log.stopping():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # the same wish, sent twice
        os.kill(os.getpid(), signal.SIGTERM)
    codes = []
    thread = threading.Thread(target=lambda: codes.append(cli.main(["--version"])))
    thread.start()
    thread.join()
    with log.uninterrupted():
        assert codes == [0]


def test_python_callers_keep_their_own_handlers(settings, monkeypatch):
    seen = []
    signal.signal(signal.SIGTERM, lambda *arrived: seen.append(arrived[0]))  # usual_handlers puts it back
    monkeypatch.setattr(outputs, "_publish", signalling(outputs._publish, signal.SIGTERM))
    run_unlearn("BPR", "tiny", config_dict=settings | {"report": "none", "epochs": 1})
    assert seen == [signal.SIGTERM]
