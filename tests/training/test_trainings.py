"""The cache: what is the same is not trained twice, what differs is."""

import numpy as np
import pytest
import torch

from recbole_unlearn.data.requests import Located
from recbole_unlearn.data.splits import divide, load
from recbole_unlearn.settings.groups import CacheSettings
from recbole_unlearn.training import trainings as module
from recbole_unlearn.training.trainings import Trainings


@pytest.fixture
def counted(monkeypatch):
    """How many models were really trained."""
    calls = []
    original = module.train

    def train(config, splits, label, start):
        calls.append(label)
        return original(config, splits, label, start)

    monkeypatch.setattr(module, "train", train)
    return calls


def make_cache(folder, size=1.0, cache=True, threads=1):
    return Trainings(CacheSettings(cache=cache, cache_dir=str(folder), cache_size=size), threads)


def test_the_same_model_is_trained_once(make_config, tmp_path, counted):
    config = make_config("LightGCN")
    splits = load(config).splits
    first = make_cache(tmp_path / "c").train(config, splits, "a")
    second = make_cache(tmp_path / "c").train(config.replace(output_dir="x", show_progress=True), splits, "b")
    assert counted == ["a"]
    assert (first.from_cache, second.from_cache) == (False, True)
    assert first.seconds == second.seconds
    assert first.epoch == second.epoch
    for name, value in first.state_dict.items():
        assert torch.equal(value, second.state_dict[name])
    assert torch.equal(first.optimizer["state"][0]["exp_avg_sq"], second.optimizer["state"][0]["exp_avg_sq"])


def test_everything_that_matters_is_in_the_key(make_config, tmp_path):
    config = make_config()
    splits = load(config).splits
    cache = make_cache(tmp_path / "c")
    mask = np.zeros(len(splits.train), bool)
    mask[0] = True
    other = divide(
        splits, Located(mask, np.zeros(len(splits.valid), bool), np.zeros(len(splits.test), bool)), ""
    )
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


def test_it_can_be_turned_off(make_config, tmp_path, counted):
    config = make_config(epochs=1)
    splits = load(config).splits
    cache = make_cache(tmp_path / "c", cache=False)
    cache.train(config, splits, "a")
    cache.train(config, splits, "b")
    assert counted == ["a", "b"]
    assert not (tmp_path / "c").exists()


def test_a_damaged_entry_is_trained_again(make_config, tmp_path, counted, caplog):
    config = make_config(epochs=1)
    splits = load(config).splits
    make_cache(tmp_path / "c").train(config, splits, "a")
    (entry,) = (tmp_path / "c").glob("*.pt")
    entry.write_bytes(entry.read_bytes()[:500])
    assert not make_cache(tmp_path / "c").train(config, splits, "b").from_cache
    assert counted == ["a", "b"]
    assert "training again" in caplog.text


def test_the_oldest_entries_go_first(make_config, tmp_path):
    config = make_config(epochs=1)
    splits = load(config).splits
    cache = make_cache(tmp_path / "c")
    cache.train(config, splits, "first")
    (first,) = (tmp_path / "c").glob("*.pt")
    small = make_cache(tmp_path / "c", size=1.5 * first.stat().st_size / 2**30)
    small.train(config.replace(seed=1), splits, "second")
    assert not first.exists()
    assert len(list((tmp_path / "c").glob("*.pt"))) == 1
