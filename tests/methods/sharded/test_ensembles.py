"""Ensembles: how several models answer as one, and how their attention is fitted."""

import pytest
import torch
from recbole.data.interaction import Interaction
from tqdm import tqdm

from recbole_unlearn.data import load
from recbole_unlearn.methods import sharded
from recbole_unlearn.training import PhaseTrainer, build_model, compose
from tests.parts import refused, same


class Fixed(torch.nn.Module):
    """A model with given scores (users, items)."""

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def predict(self, interaction):
        return self.scores[interaction["user_id"], interaction["item_id"]]

    def full_sort_predict(self, interaction):
        return self.scores[interaction["user_id"]].reshape(-1)


SCORES = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
MODELS = [Fixed(part) for part in SCORES]


def answers(ensemble):
    """Scores (5, 7) by both ways RecBole asks; they must agree."""
    users, items = torch.arange(5), torch.arange(7)
    whole = ensemble.full_sort_predict(Interaction({"user_id": users})).reshape(5, 7)
    pairs = Interaction({"user_id": users.repeat_interleave(7), "item_id": items.repeat(5)})
    assert torch.allclose(ensemble.predict(pairs).reshape(5, 7), whole)
    return whole


def test_the_mean_of_scores_and_the_score_of_the_items_model(make_config):
    assert torch.allclose(answers(sharded.Ensemble(make_config(), MODELS)), SCORES.mean(dim=0))
    shards = torch.tensor([-1, 0, 2, 1, 1, -1, 0])
    found = answers(sharded.ItemEnsemble(make_config(), MODELS, shards))
    for item, shard in enumerate(shards.tolist()):
        expected = SCORES[shard, :, item] if shard >= 0 else SCORES[:, :, item].mean(dim=0)
        assert torch.allclose(found[:, item], expected)


def test_weights_by_the_users_shard(make_config):
    shards = torch.tensor([-1, 0, 2, 1, 0])
    ensemble = sharded.WeightedEnsemble(make_config(), MODELS, shards)
    assert torch.allclose(answers(ensemble), SCORES.mean(dim=0))
    ensemble.weights[:3] = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    found = answers(ensemble)
    for user, shard in enumerate(shards.tolist()):
        weights = ensemble.weights[shard] if shard >= 0 else torch.full((3,), 1 / 3)
        assert torch.allclose(found[user], (weights[:, None] * SCORES[:, user]).sum(dim=0), atol=1e-6)


def test_the_regression_is_at_its_optimum():
    """The gradient of Σ log σ(w · x) - ½ |w|² vanishes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=generator, dtype=torch.float64) + torch.tensor([1.0, 0.2, -0.1])
    w = sharded.ranking_weights(x)
    gradient = (torch.sigmoid(-(x @ w))[:, None] * x).sum(dim=0) - w
    assert gradient.abs().max() < 0.05  # of sums over 400 rows
    assert w[0] > w[1] > w[2]


@pytest.mark.parametrize(("model", "changes"), [
    ("BPR", {}), ("LightGCN", {}),
    ("NGCF", {"message_dropout": 0.0}),  # RecBole 1.2.0 drops in evaluation too, another part each time
])  # fmt: skip
def test_vectors_give_the_models_scores(make_config, model, changes):
    config = make_config(model, **changes)
    splits = load(config).splits
    net = build_model(config, splits).eval()
    p, q = sharded.vectors(net, splits.train)
    trainer = compose(PhaseTrainer, config, net, "x")
    users = torch.arange(1, 6)
    assert torch.allclose((p @ q.T)[users, 1:], trainer.scores(users, splits.train)[:, 1:], atol=1e-5)


@pytest.fixture
def attentive(make_config):
    """Three untrained BPR models and the attention over them."""
    config = make_config()
    splits = load(config).splits
    nets = [build_model(config.replace(seed=seed), splits) for seed in range(3)]
    torch.manual_seed(0)
    return nets, sharded.AttentiveEnsemble(config, nets, splits.train).eval()


def test_attention_is_the_formula(attentive):
    nets, ensemble = attentive
    with torch.no_grad():
        ensemble.turn += 0.1 * torch.randn(ensemble.turn.shape, generator=torch.Generator().manual_seed(1))
        ensemble.shift += 0.3
    user, item, found = 4, 7, []
    for side, row, part in (("user", user, ensemble.of_user), ("item", item, ensemble.of_item)):
        moved, weights = [], []
        for shard, net in enumerate(nets):
            vector = getattr(net, f"{side}_embedding").weight[row]
            vector = vector @ ensemble.turn[shard] + ensemble.shift[shard, 0]
            hidden = torch.relu(part.inner.weight @ vector + part.inner.bias)
            moved.append(vector)
            weights.append((part.outer.weight[0] @ hidden).exp())
        total = sum(weights)
        found.append(sum(w / total * v for w, v in zip(weights, moved, strict=True)))
    expected = (found[0] * found[1]).sum()
    assert torch.allclose(ensemble.pair_scores(torch.tensor([user]), torch.tensor([item])), expected)


def test_training_the_attention_leaves_the_models_alone_and_keeps_the_best_epoch(attentive, monkeypatch):
    monkeypatch.setattr(sharded.receraser, "BATCH", 64)
    nets, ensemble = attentive
    before = [{k: v.clone() for k, v in net.state_dict().items()} for net in nets]
    scores, states = iter([0.1, 0.2, 0.5, 0.3, 0.3, 0.9]), []

    def score():
        states.append(ensemble.turn.detach().clone())
        return next(scores)

    losses = sharded.fit_attention(ensemble, 10, 2, torch.Generator().manual_seed(0), score, tqdm(disable=True))
    assert [epoch for epoch, _ in losses] == [1, 2, 3, 4]  # two looks without a gain
    assert losses[-1][1] < losses[0][1]
    assert torch.equal(ensemble.turn, states[2])
    assert all(same(old, net.state_dict()) for old, net in zip(before, nets, strict=True))


def test_a_failing_attention_says_so(attentive):
    _, ensemble = attentive
    with torch.no_grad():
        ensemble.turn[0, 0, 0] = float("nan")
    refused("receraser_aggregation=mean", sharded.fit_attention, ensemble, 2, 2, torch.Generator(), lambda: 0.0, None)
