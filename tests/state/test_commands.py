"""`recbole-unlearn requests ...`: output, exit codes, signals, and that no user or item is named."""

import json
import os
import re
import shutil
import signal
import sys
import time
from unittest import mock

import pandas as pd
import pytest

from recbole_unlearn import cli
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.settings import properties_dir, read_yaml
from recbole_unlearn.state import commands, open_state
from tests.conftest import ROOT, run_command, tiny_rows, train_plain
from tests.state.conftest import PLAIN, some
from tests.state.crash_cases import forked


@pytest.fixture
def command(capsys, key_file):
    """``command("run", S)``: exit code, what was printed, and what was said on stderr; no user or item is named."""
    tokens = {name for user, item, *_ in tiny_rows() for name in (user, item)}

    def run(*arguments):
        capsys.readouterr()
        code = cli.main(["requests", *map(str, arguments), f"--hash_key={key_file}"])
        said = capsys.readouterr()
        assert arguments[0] == "recommend" or not tokens & set(re.findall(r"\w+", said.out))
        return code, said.out, said.err

    return run


@pytest.fixture
def requests(tmp_path):
    """``requests("u3", 3)``: a file that asks for some interactions of a user, or for all."""

    def write(user, number=None):
        path = tmp_path / f"{user}-{number}.csv"
        pd.DataFrame({"user_id": [user]} if number is None else some(user, number)).to_csv(path, index=False)
        return path

    return write


@pytest.mark.parametrize(
    "arguments",
    [
        "--version",
        "requests --help",
        "requests status S --json",
        "requests ledger S",
        "requests receipt S a --out=out",
    ],
)
def test_what_needs_no_model_does_not_import_torch(arguments, busy_folder, tmp_path):
    shutil.copytree(busy_folder, tmp_path / "S")
    program = (
        "import sys; from recbole_unlearn.cli import main; code = main(sys.argv[1:]);"
        "sys.exit(code or len({'torch', 'pandas', 'recbole.config', 'sklearn'} & {*sys.modules}))"
    )
    assert run_command([sys.executable, "-c", program, *arguments.split()], tmp_path)


def test_a_sequential_model_is_refused_and_nothing_written(command, tiny_path, tmp_path):
    path = train_plain(
        "SASRec", tmp_path / "plain", data_path=str(tiny_path), epochs=1, hidden_size=8, inner_size=8, n_layers=1,
        n_heads=1, load_col=PLAIN["load_col"], train_neg_sample_args=None, MAX_ITEM_LIST_LENGTH=5,
    )  # fmt: skip
    before = sorted(tmp_path.rglob("*"))
    code, out, error = command("init", tmp_path / "new" / "S", f"--checkpoint={path}", f"--data_path={tiny_path}")
    assert (code, out) == (2, "")
    assert (
        "SASRec is a sequential model, and a state keeps neither histories nor a graph. Use run_unlearn.py" in error
    )
    assert (len(error.splitlines()), sorted(tmp_path.rglob("*"))) == (1, before)


def test_a_request_from_submission_to_publication(command, requests, checkpoints, tiny_path, key_file, tmp_path):
    state, given = tmp_path / "S", requests("u3", 6)
    code, out, _ = command("init", state, f"--checkpoint={checkpoints('BPR')}", f"--data_path={tiny_path}")
    assert (code, out.splitlines()[0]) == (0, f"{state}: new state of BPR on tiny.")
    assert f"Key: {key_file}. Back it up, apart from the state" in out
    code, out, _ = command("submit", state, given, "--id=T-1", "--deadline=30d")
    assert re.match(r"T-1 pending: \d training interactions, and \d held out, of 1 user and 6 items\n", out)
    assert "submitted before" in command("submit", state, given)[1]
    out = command("status", state)[1]
    assert re.search(r"T-1 +pending +\d{4}-\d\d-\d\d +\d{4}-\d\d-\d\d, in 30 days", out)
    assert "Retraining is not due." in out
    out = command("run", state)[1]
    assert re.search(r"^T-1 done: .*; in [\d.e-]+ s, approximate\n1 request done, 0 failed\.$", out, re.M)
    assert command("run", state)[1] == "0 requests done, 0 failed.\n"
    assert command("check", state, tiny_path / "tiny")[:2] == (1, "tiny.inter: 6 deleted pairs\n")
    assert "T-1 rolled back; 0 other requests carried out again" in command("rollback", state, "T-1")[1]
    assert command("check", state, tiny_path / "tiny")[:2] == (0, "tiny.inter: 0 deleted pairs\n")
    command("submit", state, given, "--id=T-2")
    command("run", state, "--window=1h")
    code, out, _ = command("publish", state)
    assert (code, out.splitlines()[0]) == (0, "1 request published; the data to undo them is destroyed.")
    code, out, _ = command("verify", state)
    assert (code, out.split(" in ")[0]) == (0, "No fault")
    assert command("verify", state, "--head=" + "0" * 64)[0] == 1
    code, out, _ = command("recommend", state, "u3", "--k=3")
    assert (code, len(out.splitlines())) == (0, 4)
    assert not set(some("u3", 6)["item_id"]) & set(out.split())
    assert command("export", state, tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / "export.json").is_file()
    assert command("retrain", state)[1].startswith("Retrained on the retained data in ")
    command("submit", state, requests("u8", 2), "--id=T-3")
    code, out, _ = command("rebuild", state, "--older_than=1d")
    assert re.match("Rebuilt .* exact, before younger requests were carried out again. 1 younger request can st", out)
    command("submit", state, requests("u9", 2), "--id=T-4")
    assert command("publish", state, "--older_than=1d")[1].startswith("0 requests published")
    final = "Final by this training: 1 request that can still be undone, and 1 pending.\nRebuilt on the retained data"
    assert command("rebuild", state)[1].startswith(final)
    again = command("submit", state, given)[1]
    assert re.match(r"T-\d published: how much .* is not kept; exact since \d{4}-\d\d-\d\d \d\d:\d\d\n", again)
    out = command("ledger", state)[1]
    entries = [json.loads(line) for line in out.splitlines()]
    assert f"/{ROOT.name}" not in out  # nor another path
    assert [entry["what"] for entry in entries] == [
        "taken under care", "submitted", "done", "rolled back", "submitted", "done", "published", "retrained",
        "submitted", "done", "rebuilt", "done", "submitted", "done", "rebuilt",
    ]  # fmt: skip
    with open_state(state, key_file) as opened:
        assert opened.status().head == entries[-1]["link"]


def test_learning_says_before_what_it_makes_final(command, busy_folder, tmp_path):
    shutil.copytree(busy_folder, tmp_path / "S")
    rows = [row for row in tiny_rows() if row[0] == "u1"][:2]
    pd.DataFrame(rows, columns=["user_id", "item_id", "rating", "timestamp"]).to_csv(tmp_path / "w.csv", index=False)
    code, out, _ = command("learn", tmp_path / "S", tmp_path / "w.csv")
    assert (code, out.splitlines()[0]) == (0, "Final if anything is new: 1 request that can still be undone.")
    assert out.splitlines()[-1] == "The model stays as it is."
    assert command("status", tmp_path / "S", "a")[1].count("done") == 2  # the column's name, and this


def test_one_request_for_each_ticket(command, make_state, tmp_path):
    state, path = make_state(), tmp_path / "tickets.csv"
    rows = [("u3", "", "T-1"), ("u8", "", "T-2"), ("nowhere", "", "T-2"), ("u5", "", "T-1"), ("gone", "", "T-3")]
    pd.DataFrame(rows, columns=["user_id", "item_id", "ticket"]).to_csv(path, index=False)
    code, out, error = command("submit", state.core.folder, path, "--per=ticket")
    assert (code, re.findall(r"^(T-\d) pending", out, re.M)) == (2, ["T-1", "T-2"])
    assert "unknown user_id: line 4" in out
    assert re.search(r"^T-3 refused: .*nothing is queued", error, re.M)
    assert [one.users for one in state.run()] == [2, 1]
    assert "no column case" in command("submit", state.core.folder, path, "--per=case")[2]


@pytest.mark.parametrize(("arguments", "what"), [
    (["nothing"], "invalid choice"),
    (["run"], "required: STATE"),
    (["run", "S", "--windw=1h"], "Run does not know --windw=1h"),
    (["run", "S", "--watch=1"], "--watch"),
    (["submit", "S", "a.csv", "--on_missing=skip"], "does not know --on_missing=skip"),
    (["recommend", "S", "u1", "--k=many"], "invalid int value"),
    (["status", "S"], "S is not a state"),
    (["init", "S"], "required: --checkpoint"),
    (["init", "S", "--checkpoint=nowhere.pth"], "There is no file nowhere.pth"),
    (["init", "S", "--checkpoint=nowhere.pth", "more"], "expected --key=value"),
    (["init", "S", "--checkpoint=nowhere.pth", "--forget=x.csv"], "forget is a setting of run_unlearn.py"),
])  # fmt: skip
def test_bad_input_is_one_line_and_two(capsys, tmp_path, monkeypatch, arguments, what):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["requests", *arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert what in said.err
    assert list(tmp_path.iterdir()) == []


def test_wrong_times_keys_and_ids(command, requests, make_state, tmp_path, capsys):
    state = make_state().core.folder
    for arguments, what in (
        (("run", state, "--window=soon"), "is not a time span"),
        (("submit", state, requests("u3"), "--deadline=-1d"), "is not a time span"),
        (("submit", state, requests("u3"), "--deadline=2026-13-01"), "is not a date"),
        (("submit", state, requests("u3"), "--id=a b"), "an id has letters"),
        (("status", state, "T-9"), "There is no request T-9"),
        (("rollback", state, "T-9"), "There is no request T-9"),
        (("recommend", state, "stranger"), "does not know this user"),
        (("check", state, tmp_path / "nowhere.csv"), "nowhere.csv"),
        (("receipt", state, "T-9"), "There is no request T-9"),
    ):
        code, _, err = command(*arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert what in err
    (tmp_path / "other").write_text("f" * 64)
    assert cli.main(["requests", "verify", str(state), f"--hash_key={tmp_path / 'other'}"]) == 2
    assert "This is not the key" in capsys.readouterr().err


def test_lines_that_are_left_out_are_counted_and_named_by_their_numbers(command, requests, make_state, tmp_path):
    state, path = make_state().core.folder, tmp_path / "day.csv"
    command("submit", state, requests("u3"))
    assert command("run", state)[0] == 0
    path.write_text("user_id,item_id\nu8,\nnobody,\nu3,\n\nu9,i2x\nu9,i3x\n")
    expected = "1 line queued, 3 unknown, 1 deleted before.\nunknown user_id: line 3\nunknown item_id: lines 6-7\n"
    expected += "deleted before: line 4\n"
    code, out, _ = command("submit", state, path, "--dry-run", "--id=T-1")
    assert (code, out.startswith("T-1 not submitted: "), out.endswith(expected)) == (3, True, True)
    code, out, _ = command("submit", state, path, "--id=T-1")
    assert (code, out.startswith("T-1 pending: "), out.endswith(expected)) == (3, True, True)
    code, out, _ = command("submit", state, path, "--id=T-2")
    assert (code, "before, as T-1; nothing" in out, "up to 1 queued, 5 unknown, 1 deleted" in out) == (3, True, True)
    assert "T-2: up to 1 queued, 5 unknown, 1 deleted before" in command("status", state)[1]
    path.write_text("user_id,item_id\nnobody,\nu3,\n")
    code, out, error = command("submit", state, path)
    assert (code, out) == (2, "")
    assert "nothing is queued, none of its lines names data that is left (unknown user_id: line 2; deleted" in error


def test_a_request_that_fails_and_a_command_that_is_stopped(command, requests, make_state, monkeypatch):
    state = make_state().core.folder
    command("submit", state, requests("u3", 2), "--id=bad")
    bad = UnlearnError("The weights are not finite.")
    monkeypatch.setattr("recbole_unlearn.state.live.LiveModel.forget", mock.Mock(side_effect=bad))
    code, out, _ = command("run", state)
    assert code == 1
    assert re.search("^bad failed: .*The weights are not finite.$", out, re.M)
    assert "bad failed: The weights are not finite." in command("status", state)[1]
    monkeypatch.setattr("recbole_unlearn.state.publish.publish", mock.Mock(side_effect=KeyboardInterrupt))
    said = (130, "", "Stopped; the state is as its last finished step left it.\n")
    assert command("publish", state) == said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_watches_is_stopped_with_nothing_half_done(fresh, key_file, tmp_path, number):
    folder = shutil.copytree(fresh("BPR"), tmp_path / "S")
    (out, to_out), (err, to_err) = os.pipe(), os.pipe()

    def watch():
        # A shell in the background ignores Ctrl-C, and a Ray of earlier tests takes SIGTERM; both are inherited.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.stdout, sys.stderr = os.fdopen(to_out, "w"), os.fdopen(to_err, "w", buffering=1)
        code = cli.main(["requests", "run", str(folder), "--watch", f"--hash_key={key_file}"])
        sys.stdout.flush()
        os._exit(code)

    worker = forked(watch)
    for end in (to_out, to_err):
        os.close(end)  # so that reading ends with the process
    with os.fdopen(out) as said, os.fdopen(err) as log, open_state(folder, key_file) as state:
        assert "Waiting for requests" in log.readline()
        for id, user in (("a", "u3"), ("b", "u8")):
            state.submit(some(user, 2), id=id)
            assert said.readline().startswith(f"{id} done: ")
        os.kill(worker.pid, number)
        assert (said.read(), log.read()) == ("", "Stopped; 2 requests done, 0 failed.\n")
        worker.join()
        assert worker.exitcode == 0
        state.verify()
        assert state.run() == []


def test_a_signal_waits_for_the_request_at_hand(make_state, command, monkeypatch, request):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    state = make_state()
    state.submit(some("u3", 2), id="a")
    state.submit(some("u8", 2), id="b")
    forget = type(state.core.live).forget

    def interrupted(self, numbers):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        return forget(self, numbers)

    monkeypatch.setattr("recbole_unlearn.state.live.LiveModel.forget", interrupted)
    code, out, err = command("run", state.core.folder)
    assert (code, err) == (130, "Stopped; 1 request done, 0 failed.\n")
    assert out.startswith("a done: ")
    assert state.status().requests["status"].tolist() == ["done", "pending"]


def test_every_command_is_in_the_help_and_with_its_options_in_the_docs(capsys):
    page, code = (ROOT / "docs" / "requests.md").read_text(), cli.main(["requests", "--help"])
    said = capsys.readouterr().out
    own = read_yaml(properties_dir() / "requests.yaml")["commands"]
    assert set(own) == set(commands.COMMANDS)
    for name in own:
        assert (code, bool(re.search(rf"^    {name}\b", said, re.M)), f"`{name} STATE" in page) == (0, True, True)
        assert all(spec.split()[0] in page for spec in own[name].get("arguments", ())), name
