"""Scores, measures of forgetting and utility, each against its definition."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recbole.data.interaction import Interaction
from scipy import stats

from recbole_unlearn import measures
from recbole_unlearn.measures import evaluation, forgetting, rmia, scores
from recbole_unlearn.methods import UnlearnTask
from recbole_unlearn.methods.finetune import Finetune
from recbole_unlearn.settings import read
from recbole_unlearn.training import compose
from tests.measures.conftest import FixedScores, untrained
from tests.parts import divided, same, weights


def table_of(data, seed=0, levels=1000):
    generator = torch.Generator().manual_seed(seed)
    shape = (data.full.train.user_num, data.full.train.item_num)
    table = torch.randint(0, levels, shape, generator=generator).float()
    table[:, 0] = -torch.inf
    return table


def pairs_of(*parts):
    """All (user, item) in the parts."""
    fields = ("user_id", "item_id")
    return {pair for p in parts for pair in zip(*(p.inter_feat[f].tolist() for f in fields), strict=True)}


@pytest.mark.parametrize("levels", [3, 1000])
def test_an_observation_is_the_plain_loop(data, plan, levels):
    """Few score levels make ties: a tie is no demotion."""
    table = table_of(data, levels=levels)
    seen = measures.observe(FixedScores(table), plan, data.retain)
    history = pairs_of(*data.retain[:2])
    for pairs, standing in ((plan.deleted, seen.deleted), (plan.held_out, seen.held_out)):
        for k in range(0, len(pairs), 7):
            user, item = int(pairs.users[k]), int(pairs.items[k])
            own = table[user, 1:]
            expected = (table[user, item] - own.mean()) / own.std()
            assert float(standing.score[k]) == pytest.approx(float(expected), abs=1e-4)
            hits = [bool(table[user, item] < table[user, other]) for other in pairs.others[k].tolist()]
            assert float(standing.demoted[k]) == pytest.approx(sum(hits) / len(hits))
    if levels == 1000:
        for row, user in list(enumerate(plan.users.tolist()))[::5]:
            order = [i for i in (-table[user]).argsort().tolist() if i and (user, i) not in history]
            assert table[user, seen.top[row, :20]].tolist() == table[user, order[:20]].tolist()


@pytest.mark.parametrize(("model", "times"), [("NeuMF", 1), ("BPR", 2)])
def test_a_model_that_scores_pairs_scores_a_user_once(make_config, monkeypatch, model, times):
    """For utility and for our measures; the figures are those of scoring them twice."""
    data = divided(make_config(model))
    trainer, measurement = untrained(make_config(model), data)
    whole, seen = trainer._scored, []
    monkeypatch.setattr(trainer, "_scored", lambda batch: (seen.extend(batch["user_id"].tolist()), whole(batch))[1])
    once = measurement.measure(trainer)
    assert len(seen) == times * len(set(seen))
    monkeypatch.setattr("recbole_unlearn.training.trainer.KEPT_SCORES", 0)
    again = measurement.measure(trainer)
    assert (once.utility, once.forgetting) == (again.utility, again.forgetting)


def test_held_out_pairs_and_negatives(data, plan):
    assert torch.equal(plan.deleted.users[plan.members], plan.held_out.users)
    assert len(torch.unique(plan.members)) == len(plan.members)
    held = pairs_of(data.retain.valid, data.retain.test)
    mine = list(zip(plan.held_out.users.tolist(), plan.held_out.items.tolist(), strict=True))
    assert set(mine) <= held
    for user in plan.deleted.users.unique().tolist():
        possible = min(int((plan.deleted.users == user).sum()), sum(u == user for u, _ in held))
        assert sum(u == user for u, _ in mine) == possible
    pairs, touched = measures.deleted_pairs(data, 10, seed=1), pairs_of(*data.full)
    assert pairs.others.shape == (len(data.forget), 10)
    for user, negatives in zip(pairs.users.tolist(), pairs.others.tolist(), strict=True):
        assert all(item > 0 and (user, item) not in touched for item in negatives)
    assert torch.equal(pairs.others, measures.deleted_pairs(data, 10, seed=1).others)
    assert not torch.equal(pairs.others, measures.deleted_pairs(data, 10, seed=2).others)


def test_users_who_touched_almost_everything(data):
    """One item left: it is the only negative. None left: the user is not asked."""
    train = data.full.train
    items = torch.arange(1, train.item_num)
    feat = Interaction({
        "user_id": torch.cat([torch.full((len(items) - 1,), 1), torch.full((len(items),), 2)]),
        "item_id": torch.cat([items[items != 17], items]),
    })  # fmt: skip
    empty = train.copy(Interaction({"user_id": torch.empty(0).long(), "item_id": torch.empty(0).long()}))
    splits = data.full._replace(train=train.copy(feat), valid=empty, test=empty)
    drawn, usable = scores.never_touched(torch.tensor([1, 2]), splits, 5, 0)
    assert (drawn[0].tolist(), usable.tolist()) == ([17] * 5, [True, False])


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20), st.lists(st.floats(-3, 3), min_size=1, max_size=20))
def test_distances_of_distributions(a, b):
    x, y = torch.tensor(a), torch.tensor(b)
    points = np.unique(np.concatenate([x.numpy(), y.numpy()]))
    below = [np.array([(v.numpy() <= p).mean() for p in points]) for v in (x, y)]
    apart = np.abs(below[0] - below[1])
    answers = [SimpleNamespace(deleted=scores.Standing(values, values, values)) for values in (x, y)]
    for target, ks in ((answers[1], apart.max()), (answers[0], 0.0)):
        view = measures.View(None, answers[0], retrained=target)
        assert forgetting._ks(view)["ks"] == pytest.approx(ks, abs=1e-6)


def test_a_histogram_counts_everything():
    """Values outside count in the first or last bin."""
    found = forgetting.histograms({"a": torch.tensor([-1.0, 1.0] * 2000), "b": torch.tensor([-9.0, 9.0, 0.1])})
    assert (found["a"].edges, [sum(one.counts) for one in found.values()]) == (found["b"].edges, [4000, 3])
    assert (found["b"].counts[0], found["b"].counts[-1]) == (1, 1)
    for seed in range(20):  # float32 is clipped at edges of float64: no end value may be lost
        scores = torch.randn(1668, generator=torch.Generator().manual_seed(seed))
        assert sum(forgetting.histograms({"a": scores})["a"].counts) == 1668


@given(st.permutations(range(8)), st.permutations(range(8)), st.integers(1, 6))
def test_overlaps_are_their_definitions(a, b, depth):
    x, y = torch.tensor([a[:depth]]), torch.tensor([b[:depth]])
    common = len(set(a[:depth]) & set(b[:depth]))
    view = measures.View(*(SimpleNamespace(top=one, affected=torch.tensor([True])) for one in (x, x, x, y)))
    assert forgetting._overlap(view)["overlap@20"]["affected"] == pytest.approx(common / depth, abs=1e-6)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=15), st.lists(st.integers(0, 9), min_size=2, max_size=15))
def test_auc_is_the_share_of_ordered_pairs(members, others):
    found = forgetting.auc_interval(np.array(members, float), np.array(others, float))
    assert found[0] == pytest.approx(np.mean([(m > o) + 0.5 * (m == o) for m in members for o in others]))
    assert found[1] <= found[0] <= found[2]


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng, truth = np.random.default_rng(0), float(stats.norm.cdf(0.5 / np.sqrt(2)))
    hits = 0
    for _ in range(400):
        _, low, high = forgetting.auc_interval(rng.normal(0.5, 1, 60), rng.normal(0, 1, 60))
        hits += low <= truth <= high
    assert 0.91 < hits / 400 < 0.98


def test_an_attack_finds_what_is_there_and_nothing_else():
    others = np.arange(1000.0)
    assert forgetting.tpr_at_fpr(np.array([2000.0, 500.0]), others) == 0.5
    assert forgetting.tpr_at_fpr(others, others) <= 0.01
    rng, users = np.random.default_rng(1), np.repeat(np.arange(50), 20)
    noise = rng.normal(size=(1000, 2))
    nothing = forgetting.attack(noise, rng.normal(size=(1000, 2)), users)
    assert nothing["low"] < 0.53
    assert nothing["high"] > 0.47
    assert forgetting.attack(noise + 2.0, rng.normal(size=(1000, 2)), users)["auc"] > 0.9
    assert forgetting.attack(noise - 2.0, rng.normal(size=(1000, 2)), users)["auc"] > 0.9  # either way round
    assert forgetting.attack(noise[:4], noise[:4], np.arange(4)) is None


def test_rmia_is_its_definition():
    own, reference = np.log(np.array([0.2, 0.01, 0.3])), np.log(np.array([0.1, 0.01, 0.001]))
    for a in rmia.SHARES:
        expected = np.exp(own) / (((1 + a) * np.exp(reference) + 1 - a) / 2)
        assert np.exp(rmia.log_ratio(own, reference, a)) == pytest.approx(expected)
    ratios, population = np.array([1.0, 4.1, 8.1]), np.array([4.0, 1.0, 2.0, 3.0])
    found = rmia.dominated(np.log(ratios), np.log(population))
    assert found.tolist() == [np.mean([one / other >= rmia.GAMMA for other in population]) for one in ratios]


def test_rmia_finds_a_memory_that_is_small_beside_what_users_like(make_config):
    data = divided(make_config(), lambda users: np.arange(0, len(users), 4))
    plan = measures.Questions.of(data, measures.deleted_pairs(data, 10, 0), 0)
    liked, *noise = (torch.randn(41, 61, generator=torch.Generator().manual_seed(n)) for n in range(3))
    tables = [3.0 * liked + 0.1 * one for one in (*noise, noise[1])]
    tables[2][plan.deleted.users, plan.deleted.items] += 1.0
    seen = [measures.observe(FixedScores(table), plan, data.retain) for table in tables]
    views = [measures.View(plan, one, retrained=seen[0]) for one in seen[1:]]
    floor, marked = (rmia._rmia(view)["rmia"] for view in views)
    assert floor["low"] < 0.5 < floor["high"]
    assert marked["auc"] > 0.9 > forgetting._attack_alone(views[1])["attack"]["auc"]
    assert marked["tpr@1%fpr_low"] > floor["tpr@1%fpr_high"]
    noise = dataclasses.replace(plan, of_noise=True)
    assert rmia._rmia(views[1]._replace(questions=noise)) == {}


def test_relearning_trains_on_as_fine_tuning_does_and_leaves_the_model_alone(make_config, data):
    config = make_config(unlearn="finetune", finetune_epochs=2)
    trainer, measurement = untrained(config, data)
    before, state = weights(trainer.model), torch.get_rng_state()
    measured = measurement.measure(trainer, relearn=2)
    assert same(before, weights(trainer.model))
    assert torch.equal(state, torch.get_rng_state())
    tuner = compose(Finetune, config, trainer.model, "x")
    options = read(Finetune.Settings, config.method_values("finetune"))
    tuner.unlearn(UnlearnTask(config, data, None, {}, options, None))
    after = measurement.measure(tuner)
    rates = [one.forgetting["demotion_rate"] for one in (measured, after)]
    assert measured.forgetting["relearning"]["demotion_rate"] == rates[1] != rates[0]
    assert [value for _, value in measured.curves["relearned_demotion"]][::2] == rates
    assert "relearning" not in after.forgetting


def test_groups_are_plain_recall(data, plan):
    seen = measures.observe(FixedScores(table_of(data)), plan, data.retain)
    found, test = evaluation.core_and_edge(plan, data, seen.top), data.retain.test.inter_feat
    rows = list(zip(test["user_id"].tolist(), test["item_id"].tolist(), strict=True))
    best = {u: set(seen.top[k, :20].tolist()) for k, u in enumerate(plan.users.tolist())}
    hits = [item in best[user] for user, item in rows]
    had = torch.bincount(data.retain.train.inter_feat["user_id"])
    tested = sorted({u for u, _ in rows}, key=lambda user: int(had[user]))  # in a stable order, as by their ids
    few = max(1, round(0.05 * len(tested)))
    for name, group in {"edge": tested[:few], "core": tested[-few:]}.items():
        mine = [np.mean([h for (u, _), h in zip(rows, hits, strict=True) if u == user]) for user in group]
        assert found[name] == {"recall@20": pytest.approx(np.mean(mine), abs=1e-5), "users": few}
