"""The output directory: one run at a time, all files or none, nothing of the user's touched."""

import os

import pytest

from recbole_unlearn import UnlearnError, cli, run_unlearn
from recbole_unlearn.files import claimed, staged
from tests.parts import refused


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("there", [None, "empty", "file"])
def test_files_appear_as_one(tmp_path, there):
    out = tmp_path / "out"
    if there:
        out.mkdir()
    if there == "file":
        (out / "mine.txt").write_text("mine")
    with staged(out) as (place, home):
        assert home == out
        (place / "a.txt").write_text("a")
        assert "a.txt" not in names(out)
    assert (out / "a.txt").read_text() == "a"
    assert not [name for name in [*names(tmp_path), *names(out)] if name.startswith(".")]
    if there == "file":
        assert (out / "mine.txt").read_text() == "mine"


def test_two_runs_do_not_share_a_directory(tmp_path, settings):
    (tmp_path / "out").mkdir()
    with claimed(tmp_path / "out"), pytest.raises(UnlearnError, match="Another run is writing to"):
        run_unlearn("BPR", "tiny", unlearn="retrain", config_dict=settings)
    assert names(tmp_path / "out") == []


def test_an_earlier_result_is_not_replaced_unasked(settings, tmp_path):
    """The earlier model would be replaced by one made from the original: the earlier deletion would be back."""
    out = tmp_path / "out"

    def forget(user, **more):
        values = settings | {"report": "none", **more}
        return run_unlearn("BPR", "tiny", unlearn="obliviate", forget={"user_id": [user]}, config_dict=values)

    forget("u1", replace=False)
    before = (out / "BPR-unlearned.pth").read_bytes()
    refused(r"holds the result of an earlier run.*--replace", forget, "u2", replace=False)
    assert (out / "BPR-unlearned.pth").read_bytes() == before
    (out / "mine.txt").write_text("mine")
    forget("u2", replace=True)
    assert (out / "BPR-unlearned.pth").read_bytes() != before
    assert (out / "mine.txt").read_text() == "mine"
    assert not [name for name in names(out) if name.startswith(".")]


def test_a_run_that_fails_late_writes_no_model(settings, tmp_path, monkeypatch):
    original = os.replace

    def full(source, target):
        if str(target).endswith("result.json"):
            raise OSError(28, "No space left on device")
        return original(source, target)

    monkeypatch.setattr(os, "replace", full)
    refused("No space left", run_unlearn, "BPR", "tiny", unlearn="retrain", config_dict=settings | {"report": "none"})
    assert set(names(tmp_path / "out")) <= {"run.log"}


@pytest.mark.parametrize("command", ["run", "grid"])
def test_the_log_is_not_written_through_a_link(settings, flags, tmp_path, command):
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.log").symlink_to(victim)
    if command == "run":
        run_unlearn("BPR", "tiny", unlearn="retrain", config_dict=settings | {"report": "none"})
        assert not (tmp_path / "out" / "run.log").is_symlink()
    else:
        (tmp_path / "g.yaml").write_text(
            "datasets: [tiny]\nmodels: [BPR]\nmethods: [finetune, retrain]\nseeds: [1]\nratios: [0.1]\n"
        )
        single = ("--tensorboard", "--show_progress", "--checkpoint_dir", "--replace")
        given = [flag for flag in flags() if not flag.startswith(single)]
        assert cli.main([f"--grid={tmp_path / 'g.yaml'}", *given]) == 2
    assert victim.read_text() == "mine\n"
