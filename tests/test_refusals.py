"""Bad input on the command line: one line that says what is wrong and what to do; exit code 2; nothing written.

Everything that can be refused without data is refused before data is loaded, for every method of a run.
"""

import contextlib
from unittest import mock

import pytest
import torch

from recbole_unlearn import cli, data, run_unlearn, unlearn_model
from recbole_unlearn.files import atomic as files
from recbole_unlearn.settings import own_settings
from recbole_unlearn.training import build_model
from tests.parts import refused

BASE = ["--model=BPR", "--dataset=tiny"]


@pytest.fixture
def assert_fails(capsys, tmp_path):
    """Run the command line; it must fail with one line that holds ``words``, and write no result."""

    def run(arguments, *words):
        code, error = cli.main(arguments), capsys.readouterr().err
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


@pytest.fixture
def no_data(monkeypatch):
    """Loading any data fails the test."""
    for name in ("recbole_unlearn.pipeline.load", "recbole_unlearn.data.source.create_dataset"):
        monkeypatch.setattr(name, lambda *args, **kwargs: pytest.fail("data was loaded"))


@pytest.mark.parametrize(("key", "value", "expected"), [
    ("epochs", "abc", "a whole number, 1 or more"), ("epochs", 2.5, "a whole number"), ("epochs", 0, "1 or more"),
    ("epochs", True, "a whole number"), ("train_batch_size", 0, "1 or more"),
    ("embedding_size", 0, "1 or more"), ("seed", -1, "0 or more"), ("reproducibility", "perhaps", "True or False"),
    ("learning_rate", "fast", "a number"), ("learning_rate", ".nan", "a number"), ("weight_decay", -1, "0 or more"),
])  # fmt: skip
def test_values_of_recboles_settings_that_cannot_work(assert_fails, flags, no_data, key, value, expected):
    assert_fails([*BASE, *flags(**{key: value})], f"{key}=", "is not valid: expected", expected)


@pytest.mark.parametrize(("given", "message"), [
    ("--model=BRP", "Unknown model 'BRP'. Did you mean BPR?"),
    ("--unlearn=retran", "Unknown unlearning method 'retran'. Did you mean retrain?"),
    ("--inject_user=0.5", "Unknown setting 'inject_user'. Did you mean inject_users?"),
    ("--inject_users=1.5", "inject_users=1.5 is not valid"),
    ("--on_missing=ignore", "on_missing='ignore' is not valid: choose from error, skip"),
    ("--config_files=none.yaml", "none.yaml. Check the path"),
    ("--topk=[5]", "valid_metric=NDCG@20 is not measured"),
    ("--valid_metric=Foo@3", "Use for example --valid_metric=Recall@50"),
    ("--unlearn=obliviate --rank=0", "rank=0 is not valid: expected a whole number, at least 1, or"),
    ("--unlearn=retrain --compare=obliviate --lac_steps=-1", "lac_steps=-1 is not valid"),
    ("--unlearn=retrain --trials=0", "trials=0 is not valid"),
    ("--model=EASE --unlearn=retrain --compare=rrl", "EASE is a closed form of its data, and rrl"),
    ("--model=NCL --unlearn=obliviate", "NCL can only be trained again: its loss reads clusters"),
    ("--model=RaCT", "RaCT cannot be unlearned: it is trained in three stages, of which the first two leave files"),
    ("--unlearn=downdate", "BPR has no downdate: that is for EASE, ItemKNN and Pop. Use --unlearn=rebuild"),
])  # fmt: skip
def test_settings_are_checked_before_data_is_loaded(given, message, flags, no_data, assert_fails, tmp_path):
    given = given.split()
    model = [] if given[0].startswith("--model") else ["--model=BPR"]
    assert_fails([*model, "--dataset=tiny", *given, *flags()], message)
    assert not (tmp_path / "out").exists()


def test_only_a_training_needs_the_validation_metric(assert_fails, plain_checkpoint, tmp_path, tiny_path):
    """With a model that exists, other cut-offs are fine as long as nothing is trained."""
    start = [
        f"--checkpoint={plain_checkpoint}", request(tmp_path, "user_id\nu1\n"), "--topk=[5]", "--report=none",
        "--no_show_progress", f"--cache_dir={tmp_path / 'cache'}", f"--data_path={tiny_path}",
    ]  # fmt: skip
    assert_fails([*start, "--unlearn=retrain", f"--output_dir={tmp_path / 'a'}"], "is not measured", "topk=[5]")
    assert cli.main([*start, "--unlearn=obliviate", f"--output_dir={tmp_path / 'b'}"]) == 0


@pytest.mark.parametrize(("text", "words"), [
    ("user_id\n" + "\n".join(f"u{n}" for n in range(40)), ("all 600 training interactions",)),
    ("user_id,item_id\nu1,i1\nghost,i1\n", ("1 of 2", "line 3", "--on_missing=skip")),
    *((f"{first}\nu8,i4\n", ("xpected columns",)) for first in ("ghost,i3", "ghost", "ghost,user_id")),
    ("user_id,ghost\nu8,i4\n", ("xpected columns",)),
])  # fmt: skip
def test_requests_are_refused_without_their_tokens(assert_fails, flags, tmp_path, text, words):
    assert "ghost" not in assert_fails([*BASE, request(tmp_path, text), *flags(epochs=1)], "requests.csv", *words)


def test_output_directories_that_cannot_be_written_and_a_loss_that_explodes(assert_fails, flags, tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere"):
        assert_fails([*BASE, *flags(output_dir=place)], str(place), "--output_dir")
    assert (tmp_path / "file").read_text() == "mine"
    assert_fails(["--model=NeuMF", "--dataset=tiny", *flags(learning_rate=1e30)], "learning_rate")


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(path, {"a": float("nan")})

    monkeypatch.setattr(files.os, "fsync", mock.Mock(side_effect=OSError(28, "No space left on device")))
    for write in (files.write_json, files.write_torch):
        refused(r"Cannot write .*result\.json: No space left on device", write, path, {"a": 1})
        assert (path.read_text(), [p.name for p in tmp_path.iterdir()]) == ("old", ["result.json"])


@contextlib.contextmanager
def own_numbers():
    """A caller that seeds its own script finds its random numbers unchanged."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    yield
    assert torch.equal(torch.rand(3), expected)


def test_a_run_keeps_random_numbers_and_places_to_itself(settings, make_config):
    places = {"download_url": "https://example.org/secret.zip", "report": "none"}
    with own_numbers():
        result = run_unlearn("BPR", "tiny", unlearn="retrain", config_dict=settings | places).result
    assert "secret" not in str(result)
    hidden = {"ray_address", "download_url", "output_dir", "cache_dir", "data_path"}
    assert hidden <= {*own_settings(), "data_path"}
    assert not hidden & set(result["settings"])
    config = make_config()
    splits = data.load(config).splits
    model = build_model(config, splits)
    refused("rank=0", unlearn_model, config, model, splits, {"user_id": ["u1"]}, "obliviate", rank=0)
    with own_numbers():
        unlearn_model(config, model, splits, {"user_id": ["u1"]}, "obliviate")
