"""The cache: what is the same is not trained twice, what differs is."""

from unittest import mock

import pytest
import torch

from recbole_unlearn import UnlearnConfig, run_unlearn
from recbole_unlearn.data import load
from recbole_unlearn.files.atomic import atomic
from recbole_unlearn.settings import CacheSettings
from recbole_unlearn.training import Trainings
from recbole_unlearn.training import trainings as module
from tests.parts import loaded, without


@pytest.fixture
def counted(monkeypatch):
    """How many models were really trained."""
    calls = []
    original = module.train

    def train(config, splits, label, start, watcher=None):
        calls.append(label)
        return original(config, splits, label, start)

    monkeypatch.setattr(module, "train", train)
    return calls


@pytest.fixture
def one(make_config):
    """A config of one epoch over `tiny`, and its splits."""
    config = make_config(epochs=1)
    return config, load(config).splits


def make_cache(folder, size=1.0, cache=True, threads="auto"):
    return Trainings(CacheSettings(cache=cache, cache_dir=str(folder), cache_size=size), threads)


def test_everything_that_matters_is_in_the_key(make_config, tmp_path):
    config, splits = loaded(make_config())
    cache = make_cache(tmp_path / "c")
    other = without(splits, 0)
    keys = [
        cache.key(config, splits),
        cache.key(config.replace(seed=1), splits),
        cache.key(config.replace(learning_rate=0.5), splits),
        cache.key(config.replace(stopping_step=1), splits),
        cache.key(make_config("NeuMF"), splits),
        cache.key(config, other.retain),
        make_cache(tmp_path / "c", threads=2).key(config, splits),
    ]
    assert len(set(keys)) == len(keys)
    assert cache.key(config.replace(inject_users=0.5, unlearn="other"), splits) == keys[0]
    assert cache.key(make_config(unlearn="obliviate", lac_steps=3), splits) == keys[0]


@pytest.mark.parametrize("damage", ["short", "a byte"])
def test_a_damaged_entry_is_trained_again(one, tmp_path, counted, caplog, damage):
    make_cache(tmp_path / "c").train(*one, "a")
    (entry,) = (tmp_path / "c").glob("*.pt")
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(bytes(content) if damage == "a byte" else bytes(content)[:500])
    assert not make_cache(tmp_path / "c").train(*one, "b").from_cache
    assert counted == ["a", "b"]
    assert "it is damaged" in caplog.text
    assert "training again" in caplog.text


def test_the_oldest_entries_go_first(one, tmp_path):
    config, splits = one
    make_cache(tmp_path / "c").train(config, splits, "first")
    (first,) = (tmp_path / "c").glob("*.pt")
    small = make_cache(tmp_path / "c", size=1.5 * first.stat().st_size / 2**30)
    small.train(config.replace(seed=1), splits, "second")
    assert not first.exists()
    assert len(list((tmp_path / "c").glob("*.pt"))) == 1


def test_a_full_disk_is_a_warning(one, tmp_path, counted, caplog, monkeypatch):
    monkeypatch.setattr("os.fsync", mock.Mock(side_effect=OSError(28, "No space left on device")))
    assert make_cache(tmp_path / "c").train(*one, "a").state_dict
    assert "is not kept for later runs" in caplog.text
    assert list((tmp_path / "c").iterdir()) == []


def test_stale_files_go_and_those_in_use_stay(tmp_path):
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / ".old.pt.x.tmp").write_text("half")
    with atomic(folder / "new.pt"):
        make_cache(folder)
        assert [path.name.endswith(".tmp") for path in folder.iterdir()] == [True]
    assert [path.name for path in folder.iterdir()] == ["new.pt"]


@pytest.mark.parametrize("method", ["obliviate", "sisa", "receraser"])
def test_after_a_real_request_nothing_deleted_is_kept(settings, tmp_path, method):
    """The cache of a request by file has no model that saw the deleted interactions, with noise or without."""
    values = settings | {"report": "none", "epochs": 1}
    run_unlearn("BPR", "tiny", unlearn=method, compare="retrain", config_dict=values)
    assert any((tmp_path / "cache").glob("*.pt"))
    request = {"user_id": ["u3", "u4"]}
    outcome = run_unlearn(
        "BPR", "tiny", forget=request, unlearn=method, compare="retrain", config_dict=values | {"seed": 11}
    )
    kept = {path.name for path in (tmp_path / "cache").glob("*.pt")}
    cache = make_cache(tmp_path / "cache")
    assert f"{cache.key(outcome.config, outcome.data.full)}.pt" not in kept
    retrained = outcome.config.replace(seed=12)
    assert f"{cache.key(retrained, outcome.data.retain)}.pt" in kept
    for name in kept:  # no row of a deleted user was ever trained
        trained = cache.cache.find(name.removesuffix(".pt"))
        ids = [outcome.data.full.train.token2id("user_id", token) for token in request["user_id"]]
        moments = trained.optimizer["state"][0]["exp_avg_sq"][ids] if trained.optimizer else torch.zeros(1)
        assert not moments.any()


def test_models_of_before_are_removed_after_a_request(settings, tmp_path, caplog):
    """An original that an earlier run left there is found, used, and removed with those of other seeds' methods."""
    values = settings | {"report": "none", "epochs": 1}
    config, splits = loaded(UnlearnConfig("BPR", "tiny", config_dict=values))
    cache = make_cache(tmp_path / "cache")
    for learning_rate in (0.01, 0.02):
        cache.train(config.replace(learning_rate=learning_rate), splits, "original")
    with caplog.at_level("INFO"):
        run_unlearn("BPR", "tiny", forget={"user_id": ["u3"]}, unlearn="obliviate", config_dict=values)
    assert "Removed from the cache: models that may have seen the deleted interactions." in caplog.text
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_model_retrained_for_one_request_goes_with_the_next(settings, tmp_path):
    """It saw the next person. Models of other datasets stay, and so do those retrained on what is retained now."""
    values = settings | {"report": "none", "epochs": 1}
    config, cache = UnlearnConfig("BPR", "tiny", config_dict=values), make_cache(tmp_path / "cache")
    splits = load(config).splits
    splits.train.dataset_name = "another"
    cache.train(config.replace(learning_rate=0.02), splits, "original")
    keys = []
    for user in ("u3", "u8", "u8"):
        given = values | {"output_dir": str(tmp_path / f"out-{len(keys)}"), "unlearn": "obliviate"}
        done = run_unlearn("BPR", "tiny", forget={"user_id": [user]}, compare="retrain", config_dict=given)
        keys.append(cache.key(done.config.replace(seed=done.config["seed"] + 1), done.data.retain))
    left = {path.stem for path in (tmp_path / "cache").glob("*.pt")}
    assert left == {keys[2], cache.key(config.replace(learning_rate=0.02), splits)}
    assert keys[0] != keys[1] == keys[2]
