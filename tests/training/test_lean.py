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

DRAWN = {"distribution": "uniform", "sample_num": 1, "alpha": 0.5, "dynamic": False, "candidate_num": 0}


@pytest.fixture
def made(make_config):
    """``made("LightGCN")``: a trainer of an untrained model on `tiny`, and its loader."""

    def make(model="BPR", **changes):
        config, splits = loaded(make_config(model, **changes))
        trainer = compose(PhaseTrainer, config, build_model(config, splits), "test")
        return trainer, loaders(config, splits).train

    return make


@pytest.mark.parametrize("table", [2**26, 0])
@pytest.mark.parametrize("drawn", ["uniform", "popularity"])
def test_negatives_have_recboles_distribution(made, monkeypatch, table, drawn):
    """Never a pair that was seen, with a table of pairs and without; others by their weight, one or count^alpha."""
    monkeypatch.setattr(index, "TABLE_BYTES", table)
    sampler = made(train_neg_sample_args=DRAWN | {"distribution": drawn})[1]._sampler
    negatives = Negatives(sampler, torch.Generator().manual_seed(1))
    items = torch.cat([part.inter_feat["item_id"] for part in sampler.datasets])  # of all phases, as RecBole counts
    for user in (3, 20):
        weight = torch.bincount(items).double().sqrt() if drawn == "popularity" else torch.ones(sampler.item_num)
        weight[[0, *sampler.used_ids[user]]] = 0.0
        found = torch.bincount(negatives(torch.full((30_000,), user)), minlength=sampler.item_num)
        assert not found[weight == 0].any()
        possible, weight = found[weight > 0], weight[weight > 0].double()
        assert chisquare(possible, 30_000 * weight / weight.sum()).pvalue > 1e-3


@pytest.mark.parametrize("at_once", [2**22, 1])
def test_an_epoch_has_every_interaction_once_in_recboles_batches(made, monkeypatch, at_once):
    """With two negatives a batch has its pairs twice, one after the other."""
    monkeypatch.setattr(lean, "DRAWN", at_once)
    trainer, loader = made(train_neg_sample_args=DRAWN | {"sample_num": 2})
    batches = list(LeanLoop.of(trainer, loader)._batches())
    assert [len(users) for users, *_ in batches] == [len(batch) for batch in loader]
    pairs = []
    for users, items, negatives in batches:
        half = len(users) // 2
        assert all(torch.equal(ids[:half], ids[half:]) for ids in (users, items))
        assert not torch.equal(negatives[:half], negatives[half:])
        assert not any(j in loader._sampler.used_ids[u] for u, j in zip(users, negatives.tolist(), strict=True))
        pairs.append(users[:half] * 100 + items[:half])
    expected = loader._dataset.inter_feat["user_id"] * 100 + loader._dataset.inter_feat["item_id"]
    assert not torch.equal(torch.cat(pairs), expected)  # shuffled
    assert torch.equal(torch.cat(pairs).sort().values, expected.sort().values)
    trainer, loader = made(shuffle=False)
    users = torch.cat([users for users, *_ in LeanLoop.of(trainer, loader)._batches()])
    assert torch.equal(users, loader._dataset.inter_feat["user_id"])


@pytest.mark.parametrize("many", [2**24, 0])
@pytest.mark.parametrize(("model", "changes"), [
    ("BPR", {}), ("BPR", {"weight_decay": 0.01}), ("BPR", {"learner": "rmsprop"}), ("BPR", {"train_batch_size": 1}),
    ("BPR", {"train_batch_size": 10**6}),
    *(("LightGCN", {"reg_weight": weight, "require_pow": pow}) for weight, pow in ((0.1, 1), (0.1, 0), (0.0, 0))),
])  # fmt: skip
def test_epochs_are_those_of_autograd_and_torchs_optimizer(made, monkeypatch, model, changes, many):
    """The gradients of the first step, and after two: losses, weights, and the state that is saved, by its keys.

    Also where a step reads and writes the rows of its batch alone, which with a batch of one are three of eighty.
    """
    monkeypatch.setattr(lean, "MANY", many)
    trainer, loader = made(model, **changes)
    plain = type(trainer.model)(trainer.config, loader._dataset)
    plain.load_state_dict(trainer.model.state_dict())
    optimizer, total = type(trainer.optimizer)(plain.parameters(), **trainer.optimizer.defaults), 0.0
    loop = LeanLoop.of(trainer, loader)
    by_rows = isinstance(loop._steps, lean.RowSteps)
    assert by_rows == (many == 0 and model == "BPR" and not changes.keys() & {"weight_decay", "learner"})
    for epoch, batches in enumerate([list(loop._batches()) for _ in range(2)]):
        total = 0.0
        for number, triple in enumerate(batches):
            optimizer.zero_grad()
            fields = zip(("user_id", "item_id", "neg_item_id"), triple, strict=True)
            loss = plain.calculate_loss(Interaction(dict(fields)))
            loss.backward()
            if epoch == number == 0 and not by_rows:
                with torch.no_grad():
                    assert float(loop._steps.loss(triple)) == pytest.approx(loss.item(), rel=1e-6)
                for mine, theirs in zip(trainer.model.parameters(), plain.parameters(), strict=True):
                    assert torch.allclose(mine.grad, theirs.grad, rtol=1e-5, atol=1e-8)
            optimizer.step()
            total += loss.item()
        monkeypatch.setattr(loop, "_batches", lambda batches=batches: iter(batches))
        assert loop.epoch() == pytest.approx(total, rel=1e-4)
    for mine, theirs in zip(trainer.model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-3, atol=2e-5)
    saved, expected = trainer.snapshot().optimizer, optimizer.state_dict()
    assert saved["param_groups"] == expected["param_groups"]
    for number, state in expected["state"].items():
        assert saved["state"][number].keys() == state.keys()
        for key, value in state.items():
            near = 1e-5 * float(value.abs().max())
            assert torch.allclose(saved["state"][number][key], value, rtol=1e-3, atol=near), key
    assert from_optimizer(trainer.model, saved)[1] == ("RMSprop" if "learner" in changes else "Adam")


@pytest.mark.parametrize("many", [2**24, 0])
def test_a_falling_rate_reaches_every_step(made, monkeypatch, many):
    monkeypatch.setattr(lean, "MANY", many)
    trainer, loader = made(learning_rate=0.1)
    trainer.lower_rate(len(loader))
    LeanLoop.of(trainer, loader).epoch()
    assert trainer.optimizer.param_groups[0]["lr"] == 0.0


def test_where_recbole_does_something_else_its_loop_is_left(made, monkeypatch):
    class Own(BPR):
        """A user's model, whose loss may be another."""

    for model, changes in (
        (Own, {}), ("NeuMF", {}), ("BPR", {"clip_grad_norm": {"max_norm": 1.0}}), ("BPR", {"enable_amp": True}),
        ("BPR", {"train_neg_sample_args": DRAWN | {"dynamic": True, "candidate_num": 2}}),
        ("BPR", {"repeatable": True}),
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
