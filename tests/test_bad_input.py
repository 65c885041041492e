"""Bad input, from the command line: one line that says what, where and what to do; exit code 2; no harm."""

import os
import pickle

import pytest
import torch

from recbole_unlearn import cli
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import atomic as files


@pytest.fixture
def assert_fails(capsys, tmp_path):
    """Run the command line; it must fail with one line that holds ``words``, and write no result."""

    def run(arguments, *words):
        code = cli.main(arguments)
        error = capsys.readouterr().err
        lines = [line for line in error.splitlines() if line.startswith("Error: ")]
        assert code == 2, error
        assert len(lines) == 1, error
        for word in words:
            assert word in lines[0], lines[0]
        assert "Traceback" not in error
        assert not list(tmp_path.rglob("result.json"))
        assert not list(tmp_path.rglob("*.tmp"))
        return lines[0]

    return run


def request(tmp_path, text):
    path = tmp_path / "requests.csv"
    path.write_text(text)
    return f"--forget={path}"


BASE = ["--model=BPR", "--dataset=tiny"]


def test_unknown_model(assert_fails, flags):
    assert_fails(["--model=BRP", "--dataset=tiny", *flags()], "Unknown model 'BRP'", "Did you mean BPR?")


def test_unknown_dataset(assert_fails, flags):
    assert_fails(["--model=BPR", "--dataset=ml-1n", *flags()], "ml-1n", "ml-1m")


def test_unknown_method(assert_fails, flags):
    assert_fails([*BASE, "--unlearn=retran", *flags()], "Unknown unlearning method", "Did you mean retrain?")


def test_unknown_key(assert_fails, flags):
    assert_fails([*BASE, "--inject_user=0.5", *flags()], "Unknown setting 'inject_user'", "inject_users")


def test_wrong_value(assert_fails, flags):
    assert_fails([*BASE, *flags(inject_users=1.5)], "inject_users=1.5")
    assert_fails([*BASE, *flags(on_missing="ignore")], "on_missing='ignore'", "error, skip")


@pytest.mark.parametrize(("key", "value", "expected"), [
    ("epochs", "abc", "a whole number, 1 or more"), ("epochs", 2.5, "a whole number"), ("epochs", 0, "1 or more"),
    ("epochs", True, "a whole number"), ("train_batch_size", 0, "1 or more"),
    ("eval_batch_size", "x", "a whole number"),
    ("embedding_size", 0, "1 or more"), ("stopping_step", "x", "a whole number"), ("seed", "x", "a whole number"),
    ("seed", -1, "0 or more"), ("learning_rate", "fast", "a number"), ("learning_rate", ".nan", "a number"),
    ("learning_rate", -0.1, "0 or more"), ("learning_rate", "None", "a number"), ("weight_decay", "[1]", "a number"),
    ("reproducibility", "perhaps", "True or False"),
])  # fmt: skip
def test_values_of_recboles_settings_that_no_run_could_take(assert_fails, flags, key, value, expected):
    assert_fails([*BASE, *flags(**{key: value})], f"{key}=", "is not valid: expected", expected)


def test_a_validation_metric_that_is_not_measured(assert_fails, flags):
    assert_fails([*BASE, *flags(valid_metric="Foo@3")], "valid_metric=Foo@3 is not measured", "NDCG")
    assert_fails(
        [*BASE, *flags(topk="[5]")], "valid_metric=NDCG@20 is not measured", "--valid_metric=Recall@5"
    )


def test_only_a_training_needs_the_validation_metric(assert_fails, plain_checkpoint, tmp_path, tiny_path):
    """With a model that exists, other cut-offs are fine as long as nothing is trained."""
    start = [
        f"--checkpoint={plain_checkpoint}", request(tmp_path, "user_id\nu1\n"), "--topk=[5]", "--report=none",
        "--no_show_progress", f"--cache_dir={tmp_path / 'cache'}", f"--data_path={tiny_path}",
    ]  # fmt: skip
    assert_fails(
        [*start, "--unlearn=retrain", f"--output_dir={tmp_path / 'a'}"], "is not measured", "topk=[5]"
    )
    assert cli.main([*start, "--unlearn=obliviate", f"--output_dir={tmp_path / 'b'}"]) == 0


def test_missing_files(assert_fails, flags):
    assert_fails([*BASE, "--forget=none.csv", *flags()], "none.csv", "no such file")
    assert_fails([*BASE, "--config_files=none.yaml", *flags()], "none.yaml", "Check the path")
    assert_fails(["--checkpoint=none.pth", "--forget=x.csv"], "none.pth", "no file")


def test_wrong_header(assert_fails, flags, tmp_path):
    assert_fails(
        [*BASE, request(tmp_path, "uid,iid\n1,2\n"), *flags()],
        "requests.csv",
        "no known column",
        "user_id,item_id",
    )


def test_a_file_without_a_header_does_not_print_its_first_line(assert_fails, flags, tmp_path):
    for first in ("u7,i3", "u7", "u7,user_id", "user_id,u7"):
        line = assert_fails(
            [*BASE, request(tmp_path, f"{first}\nu8,i4\n"), *flags()], "requests.csv", "xpected columns"
        )
        assert "u7" not in line
        assert "i3" not in line


def test_unknown_tokens(assert_fails, flags, tmp_path):
    line = assert_fails(
        [*BASE, request(tmp_path, "user_id,item_id\nu1,i1\nghost,i1\n"), *flags()],
        "requests.csv", "1 of 2", "line 3", "--on_missing=skip",
    )  # fmt: skip
    assert "ghost" not in line


def test_a_pair_that_is_not_in_the_data(assert_fails, flags, tmp_path, tiny_path):
    rows = [line.split("\t")[:2] for line in (tiny_path / "tiny" / "tiny.inter").read_text().splitlines()[1:]]
    mine = {item for user, item in rows if user == "u1"}
    absent = next(f"i{n}" for n in range(60) if f"i{n}" not in mine)
    arguments = [*BASE, request(tmp_path, f"user_id,item_id\nu1,{absent}\n"), *flags()]
    assert_fails(arguments, "not in the training data", "line 2", "--on_missing=skip")
    assert_fails([*arguments, "--on_missing=skip"], "nothing to forget")


def test_empty_requests(assert_fails, flags, tmp_path):
    assert_fails([*BASE, request(tmp_path, ""), *flags()], "requests.csv", "empty")
    assert_fails([*BASE, request(tmp_path, "user_id,item_id\n"), *flags()], "requests.csv", "no rows")


def test_a_request_for_everything(assert_fails, flags, tmp_path):
    text = "user_id\n" + "\n".join(f"u{n}" for n in range(40))
    assert_fails([*BASE, request(tmp_path, text), *flags()], "requests.csv", "all 600 training interactions")


def test_checkpoint_of_another_dataset(assert_fails, plain_checkpoint, tmp_path):
    """The data has changed since: fewer users than the checkpoint has rows."""
    folder = tmp_path / "data" / "tiny"
    folder.mkdir(parents=True)
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    lines += [f"u{u}\ti{i}\t1\t{u + i}" for u in range(20) for i in range(u, u + 12)]
    (folder / "tiny.inter").write_text("\n".join(lines) + "\n")
    before = plain_checkpoint.read_bytes()
    assert_fails(
        [f"--checkpoint={plain_checkpoint}", request(tmp_path, "user_id\nu1\n"), "--output_dir=out",
         f"--data_path={tmp_path / 'data'}", "--no_cache", "--no_tensorboard"],
        "do not fit", "_embedding.weight",
    )  # fmt: skip
    assert plain_checkpoint.read_bytes() == before


def test_truncated_checkpoint(assert_fails, plain_checkpoint, tmp_path):
    path = tmp_path / "cut.pth"
    path.write_bytes(plain_checkpoint.read_bytes()[:3000])
    assert_fails([f"--checkpoint={path}", request(tmp_path, "user_id\nu1\n")], "cut.pth", "cut off")


def test_hostile_checkpoint(assert_fails, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    torch.save({"state_dict": {}, "config": Evil()}, tmp_path / "evil.pth")
    assert_fails(
        [f"--checkpoint={tmp_path / 'evil.pth'}", request(tmp_path, "user_id\nu1\n")], "evil.pth", "system"
    )
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Evil()))
    assert_fails([f"--checkpoint={tmp_path / 'evil.pth'}", request(tmp_path, "user_id\nu1\n")], "evil.pth")
    assert not (tmp_path / "ran").exists()


def test_output_directory_that_cannot_be_written(assert_fails, flags, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert_fails([*BASE, *flags(output_dir=tmp_path / "file")], "file", "--output_dir")
    assert_fails([*BASE, *flags(output_dir=tmp_path / "file" / "below")], "file", "--output_dir")
    assert_fails([*BASE, *flags(output_dir="/proc/nowhere")], "/proc/nowhere", "--output_dir")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_model_that_cannot_be_unlearned(assert_fails, flags):
    assert_fails(["--model=FOSSIL", "--dataset=tiny", *flags()], "FOSSIL", "These can: SASRec, GRU4Rec")


def test_a_loss_that_explodes(assert_fails, flags):
    assert_fails(["--model=NeuMF", "--dataset=tiny", *flags(learning_rate=1e30)], "learning_rate")


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    """The write fails in the middle: the old file is whole, and nothing else is left."""
    path = tmp_path / "result.json"
    path.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    for write in (files.write_json, files.write_torch):
        with pytest.raises(UnlearnError, match=r"Cannot write .*result\.json: No space left on device"):
            write(path, {"a": 1})
        assert path.read_text() == "old"
        assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_result_that_is_not_a_number_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(tmp_path / "r.json", {"a": float("nan")})
    assert not list(tmp_path.iterdir())
