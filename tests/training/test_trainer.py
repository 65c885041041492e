"""Trainers: RecBole's training unchanged, the best epoch in memory, NaN guards, special trainers."""

import logging
from unittest import mock

import pytest
import torch
from recbole.utils import get_trainer

from recbole_unlearn.data import load, loaders
from recbole_unlearn.files import Trained
from recbole_unlearn.settings import RunSettings, read
from recbole_unlearn.training import PhaseTrainer, build_model, check_finite, compose, threads, train
from tests.conftest import train_plain
from tests.parts import loaded, refused, same


@pytest.fixture
def made(make_config):
    """``made("FM")``: a config over `tiny`, its splits, and a trainer of an untrained model."""

    def make(model="BPR", **changes):
        config, splits = loaded(make_config(model, **changes))
        return config, splits, compose(PhaseTrainer, config, build_model(config, splits), "test")

    return make


def test_weights_equal_those_of_recboles_own_trainer(make_config, settings, tmp_path):
    """Same seed, same settings: mixing in must not change a single bit of training."""
    keys = ("data_path", "load_col", "epochs", "embedding_size", "learning_rate", "train_batch_size")
    theirs = torch.load(train_plain("NeuMF", tmp_path, **{key: settings[key] for key in keys}), weights_only=False)
    config = make_config("NeuMF", metrics=["Recall", "MRR"], topk=[10], valid_metric="MRR@10", eval_step=1)
    ours = train(config, load(config).splits, "test")
    assert ours.epoch == theirs["epoch"]
    assert same(theirs["state_dict"], ours.state_dict)
    for index, state in theirs["optimizer"]["state"].items():
        assert torch.equal(ours.optimizer["state"][index]["exp_avg_sq"], state["exp_avg_sq"])


def test_weights_and_optimizer_are_of_the_best_epoch(made, monkeypatch):
    """The pair belongs together; the live optimizer, which is the last epoch's, is empty."""
    config, splits, trainer = made(epochs=6, eval_step=1, stopping_step=10)
    scores = iter([0.1, 0.2, 0.9, 0.3, 0.2, 0.1])
    monkeypatch.setattr(type(trainer), "_valid_epoch", lambda self, *a, **k: (next(scores), {}))
    best = trainer.train(loaders(config, splits))
    assert best.epoch == 2
    steps = int(best.optimizer["state"][0]["step"])
    assert steps == 3 * len(loaders(config, splits).train)
    assert trainer.optimizer.state_dict()["state"] == {}
    assert same(trainer.model.state_dict(), best.state_dict)


def test_validation_is_not_part_of_the_time(made, monkeypatch):
    config, splits, trainer = made()
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("recbole_unlearn.training.trainer.time.perf_counter", lambda: float(next(clock)))
    trained = trainer.train(loaders(config, splits))
    assert trainer.validation_seconds == 20.0  # two validations of ten ticks each
    assert trained.seconds == 50.0 - 20.0


def test_a_loss_and_weights_that_are_not_numbers_stop_training(made, monkeypatch):
    config, splits, trainer = made("NeuMF")
    said = r"test model failed: the loss is (nan|inf).*learning_rate"
    for bad in (float("nan"), float("inf")):
        monkeypatch.setattr(trainer.model, "calculate_loss", lambda batch, bad=bad: torch.tensor(bad))
        refused(said, trainer.train, loaders(config, splits))
    config, splits, trainer = made("BPR")
    torch.nn.init.constant_(trainer.model.item_embedding.weight, float("inf"))
    refused(said, trainer.train, loaders(config, splits))
    model = made()[2].model
    check_finite(model, "good")
    with torch.no_grad():
        model.item_embedding.weight[3, 2] = float("inf")
    refused(r"bad model has weights that are not finite \(item_embedding", check_finite, model, "bad")


def test_cached_embeddings_do_not_outlive_a_change_of_weights(made):
    _, splits, trainer = made("LightGCN")
    users = torch.tensor([1, 2])
    before = trainer.scores(users, splits.train)
    assert trainer.model.restore_user_e is not None
    assert "restore_user_e" not in trainer.snapshot().other_parameter
    state = {name: value + 0.1 for name, value in trainer.model.state_dict().items()}
    Trained(state, None, {}, 0).load_weights(trainer.model)
    assert not torch.allclose(before[:, 1:], trainer.scores(users, splits.train)[:, 1:])


@pytest.mark.parametrize("model", ["RecVAE", "MultiVAE", "EASE", "Pop", "SimpleX", "NeuMF", "DMF", "FM"])
def test_models_with_their_own_trainer_or_loader_train(made, model):
    config, splits, trainer = made(model, epochs=2, eval_step=1)
    assert isinstance(trainer, get_trainer(config["MODEL_TYPE"], model))
    trained = trainer.train(loaders(config, splits))
    scores = trainer.scores(torch.tensor([1]), splits.train)
    assert scores.shape == (1, splits.train.item_num)
    assert torch.isneginf(scores[0]).nonzero().flatten().tolist() == [0]  # padding
    again = build_model(config, splits)
    trained.load_into(again)
    found = compose(PhaseTrainer, config, again, "again").scores(torch.tensor([1]), splits.train)
    assert torch.allclose(found, scores)


@pytest.mark.parametrize(("model", "score", "most"), [("NeuMF", "predict", 40), ("BPR", "full_sort_predict", 2)])
def test_a_batch_is_halved_until_memory_suffices(made, monkeypatch, caplog, model, score, most):
    """NeuMF takes 61 pairs of a user through its layers, so a user is taken apart as well."""
    _, splits, trainer = made(model)
    whole, users = getattr(trainer.model, score), torch.arange(1, 10)
    expected = trainer.scores(users, splits.train)

    def scarce(batch):
        if len(batch) > most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 45 GB.")
        return whole(batch)

    monkeypatch.setattr(trainer.model, score, scarce)
    assert torch.allclose(trainer.scores(users, splits.train), expected)
    assert "Memory does not suffice for a batch of scores (DefaultCPUAllocator" in caplog.text
    most = 0
    with pytest.raises(RuntimeError, match="45 GB"):
        trainer.scores(users, splits.train)


@pytest.mark.parametrize(
    ("gain", "free", "most"), [(1.0, 8, 6), (1.0, 3, 3), (0.05, 4, 1), (-0.5, 4, 1), (1.0, 1, 1)]
)
@pytest.mark.parametrize("model", ["BPR", "LightGCN"])
def test_more_threads_are_taken_where_they_are_faster(make_config, monkeypatch, caplog, model, gain, free, most):
    """On a clock by which a step with n threads takes 1 / (1 + gain · (n − 1)); below 0 they wait for each other."""
    now, number = 0.0, [6]  # as many as the process may have

    def clock():
        nonlocal now
        now += 1e-3 / max(0.1, 1 + gain * (number[-1] - 1))
        return now

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(threads, "free_cores", lambda: free)
    monkeypatch.setattr(torch, "get_num_threads", lambda: number[-1])
    monkeypatch.setattr(torch, "set_num_threads", number.append)
    monkeypatch.setattr(threads.time, "perf_counter", clock)
    train = mock.MagicMock(user_num=60, item_num=40, __len__=lambda self: 500)
    threads.use_threads(make_config(model), train)
    assert number[-1] == most
    assert f"--threads=auto: {most}, with " in caplog.text
    threads.use_threads(make_config(threads=3), train)
    assert number[-1] == 3
    refused(r"threads=0 .*from 1 to 1024, or auto", read, RunSettings, make_config(threads=0))
