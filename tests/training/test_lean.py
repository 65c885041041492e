"""The lean loop: RecBole's negatives, gradients and optimizer, and where RecBole's own loop is left in place."""

import pytest
import torch
from recbole.data.interaction import Interaction
from recbole.model.general_recommender.bpr import BPR
from scipy.stats import chisquare

from recbole_unlearn.data import loaders
from recbole_unlearn.methods.obliviate.curvature import from_optimizer
from recbole_unlearn.rows import index
from recbole_unlearn.training import PhaseTrainer, build_model, compose, lean, train
from recbole_unlearn.training.lean import LeanLoop, Negatives
from tests.parts import loaded, same


@pytest.fixture
def made(make_config):
    """``made("LightGCN")``: a trainer of an untrained model on `tiny`, and its loader."""

    def make(model="BPR", **changes):
        config, splits = loaded(make_config(model, **changes))
        trainer = compose(PhaseTrainer, config, build_model(config, splits), "test")
        return trainer, loaders(config, splits).train

    return make


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("drawn", ["uniform", "popularity"])
def test_negatives_have_recboles_distribution(made, monkeypatch, table, drawn):
    """Never a pair that was seen, with a table and without; the others by their weight: one, or count^alpha."""
    monkeypatch.setattr(index, "TABLE_BYTES", 2**26 if table else 0)
    about = {"distribution": drawn, "sample_num": 1, "alpha": 0.5, "dynamic": False, "candidate_num": 0}
    sampler = made(train_neg_sample_args=about)[1]._sampler
    negatives = Negatives(sampler, torch.Generator().manual_seed(1))
    counts = torch.zeros(sampler.item_num)
    if drawn == "popularity":  # of all phases, as RecBole counts
        for part in sampler.datasets:
            counts += torch.bincount(part.inter_feat["item_id"], minlength=sampler.item_num)
    for user in (3, 20):
        found = torch.bincount(negatives(torch.full((30_000,), user)), minlength=sampler.item_num)
        weight = (counts.sqrt() if drawn == "popularity" else torch.ones(sampler.item_num)).double()
        weight[[0, *sampler.used_ids[user]]] = 0.0
        assert not found[weight == 0].any()
        rest = weight > 0
        assert chisquare(found[rest], found.sum() * (weight / weight.sum())[rest]).pvalue > 1e-3


def test_an_epoch_has_every_interaction_once_in_recboles_order(made, monkeypatch):
    """With two negatives a batch has its pairs twice, one after the other; drawn at once or by batch."""
    about = {"distribution": "uniform", "sample_num": 2, "alpha": 1.0, "dynamic": False, "candidate_num": 0}
    for at_once in (2**22, 1):
        monkeypatch.setattr(lean, "DRAWN", at_once)
        trainer, loader = made(train_neg_sample_args=about)
        batches = list(LeanLoop.of(trainer, loader)._batches())
        assert [len(users) for users, *_ in batches] == [len(batch) for batch in loader]
        feat, pairs = loader._dataset.inter_feat, []
        for users, items, negatives in batches:
            half = len(users) // 2
            assert all(torch.equal(ids[:half], ids[half:]) for ids in (users, items))
            assert not torch.equal(negatives[:half], negatives[half:])
            assert not any(j in loader._sampler.used_ids[u] for u, j in zip(users, negatives.tolist(), strict=True))
            pairs.append(users[:half] * 100 + items[:half])
        assert not torch.equal(torch.cat(pairs), feat["user_id"] * 100 + feat["item_id"])  # shuffled
        assert torch.equal(torch.cat(pairs).sort().values, (feat["user_id"] * 100 + feat["item_id"]).sort().values)
    trainer, loader = made(shuffle=False)
    users = torch.cat([users for users, *_ in LeanLoop.of(trainer, loader)._batches()])
    assert torch.equal(users, loader._dataset.inter_feat["user_id"])


KINDS = [
    ("BPR", {}),
    *(("LightGCN", {"reg_weight": w, "require_pow": p}) for w, p in ((0.1, True), (0.1, False), (0.0, 0))),
]


@pytest.mark.parametrize(("model", "changes"), KINDS)
def test_losses_and_gradients_equal_those_of_recboles_loss(made, model, changes):
    trainer, loader = made(model, **changes)
    loop, net = LeanLoop.of(trainer, loader), trainer.model
    for triple in list(loop._batches())[:2]:  # the second in buffers that the first has left
        expected = net.calculate_loss(as_batch(triple))
        gradients = torch.autograd.grad(expected, list(net.parameters()))
        with torch.no_grad():
            loss = loop._steps.loss(triple)
        assert float(loss) == pytest.approx(expected.item(), rel=1e-6)
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            assert torch.allclose(parameter.grad, gradient, rtol=1e-5, atol=1e-8)


def as_batch(triple):
    return Interaction(dict(zip(("user_id", "item_id", "neg_item_id"), triple, strict=True)))


def trained_both_ways(trainer, loader, epochs=3):
    """Two trainers after the same batches: RecBole's loss with torch's optimizer, and the lean loop."""
    plain = type(trainer.model)(trainer.config, loader._dataset)
    plain.load_state_dict(trainer.model.state_dict())
    optimizer = type(trainer.optimizer)(plain.parameters(), **trainer.optimizer.defaults)
    loop = LeanLoop.of(trainer, loader)
    epoch = [list(loop._batches()) for _ in range(epochs)]
    for batches in epoch:
        loop._batches = lambda batches=batches: iter(batches)
        losses = 0.0
        for triple in batches:
            optimizer.zero_grad()
            loss = plain.calculate_loss(as_batch(triple))
            loss.backward()
            optimizer.step()
            losses += loss.item()
        assert loop.epoch() == pytest.approx(losses, rel=1e-4)
    return loop, plain, optimizer


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(("model", "changes"), [
    ("BPR", {}), ("BPR", {"weight_decay": 0.01}), ("BPR", {"learner": "rmsprop"}), ("LightGCN", {}),
    ("BPR", {"train_batch_size": 1, "epochs": 1}),
])  # fmt: skip
def test_steps_are_those_of_torchs_optimizer(made, monkeypatch, rows, model, changes):
    """Weights, moments and steps, also where Adam reads rows of the batch alone; a batch of one leaves most alone."""
    monkeypatch.setattr(lean, "MANY", 0 if rows else 2**23)
    trainer, loader = made(model, **changes)
    loop, plain, optimizer = trained_both_ways(trainer, loader)
    assert isinstance(loop._steps, lean.RowSteps) == (
        rows and model == "BPR" and not changes.keys() & {"weight_decay", "learner"}
    )
    for mine, theirs in zip(trainer.model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-3, atol=2e-5)
    saved, expected = trainer.snapshot().optimizer, optimizer.state_dict()
    assert saved["param_groups"] == expected["param_groups"]  # nothing of how it was computed
    for number, state in expected["state"].items():
        assert saved["state"][number].keys() == state.keys()
        for key, value in state.items():
            assert torch.allclose(saved["state"][number][key], value, rtol=1e-3, atol=1e-9), key
    if "learner" not in changes:
        assert from_optimizer(trainer.model, saved)[1] == "Adam"


def test_adam_of_rows_is_adam_where_a_batch_has_all_rows(made, monkeypatch):
    monkeypatch.setattr(lean, "MANY", 0)
    trainer, loader = made(train_batch_size=10**6)
    _, plain, _ = trained_both_ways(trainer, loader, epochs=5)
    for mine, theirs in zip(trainer.model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("many", [0, 2**23])
def test_a_falling_rate_reaches_every_step(made, monkeypatch, many):
    monkeypatch.setattr(lean, "MANY", many)
    trainer, loader = made(learning_rate=0.1)
    trainer.lower_rate(len(loader))
    LeanLoop.of(trainer, loader).epoch()
    assert trainer.optimizer.param_groups[0]["lr"] == 0.0


def test_where_recbole_does_more_its_loop_is_left(made, monkeypatch):
    class Own(BPR):
        """A user's model, whose loss may be another."""

    dynamic = {"distribution": "uniform", "sample_num": 1, "alpha": 1.0, "dynamic": True, "candidate_num": 2}
    for model, changes in (
        (Own, {}), ("NeuMF", {}), ("BPR", {"clip_grad_norm": {"max_norm": 1.0}}), ("BPR", {"enable_amp": True}),
        ("BPR", {"train_neg_sample_args": dynamic}), ("BPR", {"repeatable": True}),
    ):  # fmt: skip
        assert LeanLoop.of(*made(model, **changes)) is None
    trainer, loader = made()
    monkeypatch.setattr(LeanLoop, "epoch", lambda self: 1.0)
    assert trainer._train_epoch(loader, 0, show_progress=False) == 1.0
    assert trainer._train_epoch(loader, 0, loss_func=trainer.model.calculate_loss) != 1.0


@pytest.mark.parametrize("model", ["BPR", "LightGCN"])
def test_the_same_seed_gives_the_same_model_with_any_number_of_threads(make_config, model):
    config, splits = loaded(make_config(model, embedding_size=64, train_batch_size=2048))
    first = train(config, splits, "x").state_dict
    try:
        torch.set_num_threads(2)
        assert same(first, train(config, splits, "x").state_dict)
    finally:
        torch.set_num_threads(1)
    assert not same(first, train(config.replace(seed=7), splits, "x").state_dict)
