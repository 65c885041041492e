"""Measures of forgetting: each against its definition, and all of them on models that should and should not pass."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy import stats

from recbole_unlearn import UnlearnConfig, run_unlearn
from recbole_unlearn.data import load, loaders
from recbole_unlearn.measures import (
    Measurement,
    Pairs,
    Questions,
    attack,
    clustered,
    deleted_pairs,
    entanglement,
    groups,
    overlap,
)
from recbole_unlearn.measures import distribution as scores
from recbole_unlearn.measures import scores as observe_module
from recbole_unlearn.measures import verdict as verdicts
from recbole_unlearn.measures.difficulty import difficulty
from recbole_unlearn.measures.scores import observe
from recbole_unlearn.measures.verdict import verdict
from recbole_unlearn.results import PhaseResult
from recbole_unlearn.results.table import table
from recbole_unlearn.training import PhaseTrainer, build_model, compose
from tests.conftest import QUICK
from tests.parts import divided


class FixedScores:
    """Stands in for a trainer: scores are what the test says."""

    test_batch_size = 200

    def __init__(self, table):
        self.table = table

    def scores(self, users, dataset):
        return self.table[users]


@pytest.fixture
def data(make_config):
    return divided(make_config())


@pytest.fixture
def plan(data):
    return Questions.of(data, deleted_pairs(data, 10, 0), 0)


def table_of(data, seed=0, levels=1000):
    generator = torch.Generator().manual_seed(seed)
    shape = (data.full.train.user_num, data.full.train.item_num)
    table = torch.randint(0, levels, shape, generator=generator).float()
    table[:, 0] = -torch.inf
    return table


# Observation


@pytest.mark.parametrize("levels", [3, 1000])
def test_an_observation_is_the_plain_loop(data, plan, levels):
    """Few score levels make ties: a tie is no demotion."""
    table = table_of(data, levels=levels)
    seen = observe(FixedScores(table), plan, data.retain)
    history = {
        pair
        for part in data.retain[:2]
        for pair in zip(*(part.inter_feat[f].tolist() for f in ("user_id", "item_id")), strict=True)
    }
    gone = set(zip(plan.deleted.users.tolist(), plan.deleted.items.tolist(), strict=True))
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
            same = [table[user, i] for i in order[:20]]
            assert [table[user, i] for i in seen.top[row, :20].tolist()] == same
            kept = [i for i in order if (user, i) not in gone]
            assert [table[user, i] for i in seen.top_masked[row, :20].tolist()] == [
                table[user, i] for i in kept[:20]
            ]


def test_the_ends_of_the_demotion_rate(data, plan):
    table = torch.zeros(data.full.train.user_num, data.full.train.item_num)
    table[plan.deleted.users, plan.deleted.items] = 1.0
    assert observe(FixedScores(table), plan, data.retain).deleted.demoted.mean() == 0.0
    assert observe(FixedScores(-table), plan, data.retain).deleted.demoted.mean() == 1.0


def test_held_out_pairs_are_of_the_same_users_and_used_once(data, plan):
    assert torch.equal(plan.deleted.users[plan.members], plan.held_out.users)
    assert len(torch.unique(plan.members)) == len(plan.members)
    held = {
        pair
        for part in (data.retain.valid, data.retain.test)
        for pair in zip(*(part.inter_feat[f].tolist() for f in ("user_id", "item_id")), strict=True)
    }
    mine = list(zip(plan.held_out.users.tolist(), plan.held_out.items.tolist(), strict=True))
    assert set(mine) <= held
    for user in plan.deleted.users.unique().tolist():
        possible = min(int((plan.deleted.users == user).sum()), sum(u == user for u, _ in held))
        assert sum(u == user for u, _ in mine) == possible


def test_pairs_are_found_by_user():
    pairs = Pairs(torch.tensor([5, 2, 5]), torch.tensor([1, 2, 3]), torch.zeros(3, 1))
    assert pairs.users.tolist() == [2, 5, 5]
    assert pairs.items[pairs.of(torch.tensor([3, 5]))].tolist() == [1, 3]
    assert pairs.of(torch.tensor([3, 4])) == slice(1, 1)


# Distances


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=20), st.lists(st.floats(-3, 3), min_size=1, max_size=20)
)
def test_distances_of_distributions(a, b):
    x, y = torch.tensor(a), torch.tensor(b)
    points = np.unique(np.concatenate([x.numpy(), y.numpy()]))
    below = [np.array([(v.numpy() <= p).mean() for p in points]) for v in (x, y)]
    assert scores.kolmogorov_smirnov(x, y) == pytest.approx(np.abs(below[0] - below[1]).max(), abs=1e-6)
    area = (np.abs(below[0] - below[1])[:-1] * np.diff(points)).sum()
    assert scores.wasserstein(x, y) == pytest.approx(area, abs=1e-5)
    assert scores.kolmogorov_smirnov(x, x) == scores.wasserstein(x, x) == 0.0


def test_a_histogram_counts_everything():
    found = scores.histogram(torch.tensor([-9.0, 0.1, 0.2, 9.0]), np.linspace(-1, 1, 5)).to_json()
    assert found == {"edges": [-1.0, -0.5, 0.0, 0.5, 1.0], "counts": [1, 0, 2, 1]}


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.permutations(range(8)), st.permutations(range(8)), st.integers(1, 6))
def test_overlaps_are_their_definitions(a, b, depth):
    x, y = torch.tensor([a[:depth]]), torch.tensor([b[:depth]])
    common = [len(set(a[:d]) & set(b[:d])) for d in range(1, depth + 1)]
    assert overlap.matches(x, y)[0].tolist() == common
    assert float(overlap.top_k_overlap(x, y, depth)[0]) == pytest.approx(common[-1] / depth)
    weights = [0.9**d for d in range(depth)]
    rbo = sum(w * c / (d + 1) for d, (w, c) in enumerate(zip(weights, common, strict=True))) / sum(weights)
    assert float(overlap.rank_biased_overlap(x, y)[0]) == pytest.approx(rbo, abs=1e-5)
    assert float(overlap.rank_biased_overlap(x, x)[0]) == pytest.approx(1.0)


# Membership


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=15), st.lists(st.integers(0, 9), min_size=2, max_size=15)
)
def test_auc_is_the_share_of_ordered_pairs(members, others):
    found = attack.auc_interval(np.array(members, float), np.array(others, float))
    expected = np.mean([(m > o) + 0.5 * (m == o) for m in members for o in others])
    assert found[0] == pytest.approx(expected)
    assert found[1] <= found[0] <= found[2]


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    truth = float(stats.norm.cdf(0.5 / np.sqrt(2)))
    hits = 0
    for _ in range(400):
        _, low, high = attack.auc_interval(rng.normal(0.5, 1, 60), rng.normal(0, 1, 60))
        hits += low <= truth <= high
    assert 0.91 < hits / 400 < 0.98


def test_true_positives_at_a_false_positive_rate():
    others = np.arange(1000.0)
    assert attack.tpr_at_fpr(np.array([2000.0, 500.0]), others) == 0.5
    assert attack.tpr_at_fpr(others, others) <= 0.01


def test_an_attack_finds_what_is_there_and_nothing_else():
    rng = np.random.default_rng(1)
    users = np.repeat(np.arange(50), 20)
    noise = rng.normal(size=(1000, 2))
    nothing = attack.attack(noise, rng.normal(size=(1000, 2)), users)
    assert nothing["low"] < 0.53
    assert nothing["high"] > 0.47
    assert attack.attack(noise + 2.0, rng.normal(size=(1000, 2)), users)["auc"] > 0.9
    assert attack.attack(noise - 2.0, rng.normal(size=(1000, 2)), users)["auc"] > 0.9  # either way round
    assert attack.attack(noise[:4], noise[:4], np.arange(4)) is None


# Groups and difficulty


def test_thirds_keep_equal_values_together():
    assert groups.thirds(torch.tensor([1, 2, 3, 4, 5, 6])).tolist() == [0, 0, 1, 1, 2, 2]
    assert len(set(groups.thirds(torch.tensor([7, 7, 7])).tolist())) == 1
    assert groups.thirds(torch.tensor([3])).tolist() in ([0], [1], [2])


def test_groups_are_plain_recall(data, plan):
    seen = observe(FixedScores(table_of(data)), plan, data.retain)
    found = groups.by_group(plan, data, seen.top)
    test = data.retain.test.inter_feat
    rows = list(zip(test["user_id"].tolist(), test["item_id"].tolist(), strict=True))
    best = {u: set(seen.top[k, :20].tolist()) for k, u in enumerate(plan.users.tolist())}
    hits = [item in best[user] for user, item in rows]
    parts = found["item_popularity"].values()
    assert sum(part["rows"] for part in parts) == len(rows)
    assert sum(part["rows"] * part["recall@20"] for part in parts) == pytest.approx(sum(hits), abs=1e-3)
    people = found["user_activity"].values()
    recalls = [
        np.mean([h for (u, _), h in zip(rows, hits, strict=True) if u == who]) for who in {u for u, _ in rows}
    ]
    assert sum(part["users"] * part["recall@20"] for part in people) == pytest.approx(sum(recalls), abs=1e-3)


def test_entanglement_is_high_when_nothing_separates():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(500, 4, generator=generator) for _ in range(2))
    assert entanglement(a, b) > 50 * entanglement(a, b + 5.0)
    square = torch.tensor([[0.0], [2.0]])
    assert entanglement(square, square + 10.0) == pytest.approx((1 + 1) / 25)


@pytest.mark.parametrize("model", ["BPR", "MultiVAE"])
def test_difficulty_of_a_request(make_config, model):
    config = make_config(model)
    request = divided(config)
    found = difficulty(build_model(config, request.full), request, 0)
    assert 0.4 < found["deleted_share_users"] < 0.6
    assert ("entanglement" in found) == (model == "BPR")


# All together


def test_masked_utility_equals_recboles_when_nothing_deleted_is_recommended(make_config, data):
    config = make_config()
    trainer = compose(PhaseTrainer, config, build_model(config, data.retain), "x")
    measurement = Measurement(config, data, loaders(config, data.retain), 10)
    found = measurement.measure(trainer)
    seen = found.seen
    unmasked = type(seen)(seen.top, seen.top, seen.deleted, seen.held_out)
    plain = measurement.masked(unmasked, found.utility["unaffected"])
    assert plain == pytest.approx({key: found.utility["metrics"][key] for key in plain}, abs=1e-5)
    assert found.masked.keys() == plain.keys()


def test_a_sample_of_the_others_is_enough(make_config, data, monkeypatch):
    """All affected users and some of the others are looked at; the same every time."""
    monkeypatch.setattr(observe_module, "OTHERS", 10)
    pairs = deleted_pairs(data, 10, 0)
    plan = Questions.of(data, pairs, 3)
    assert int(plan.affected.sum()) == len(data.affected_users)
    assert int((~plan.affected).sum()) == 10
    assert torch.equal(plan.users, Questions.of(data, pairs, 3).users)
    config = make_config()
    trainer = compose(PhaseTrainer, config, build_model(config, data.retain), "x")
    found = Measurement(config, data, loaders(config, data.retain), 10).measure(trainer)
    assert sum(group["users"] for group in found.groups["user_activity"].values()) <= len(plan.users)
    assert found.masked["recall@20"] >= 0


def test_without_retraining_distances_are_absent(settings):
    result = run_unlearn("BPR", "tiny", unlearn="obliviate", config_dict=settings | {"report": "none"}).result
    for phase in result["phases"].values():
        assert not {"ks", "wasserstein", "overlap@20", "rbo"} & set(phase["forgetting"])
        assert "distribution" in phase
    assert result["verdict"]["level"] == "unknown"
    assert result["curves"]["unlearned"]["loss"]


@pytest.fixture(scope="module", params=QUICK)
def judged(request, ml_100k):
    """Retraining against itself with another seed on ml-100k, and everything needed to judge other models."""
    values = ml_100k(request.param)
    return run_unlearn(request.param, "ml-100k", unlearn="retrain", compare="retrain", config_dict=values)


@pytest.mark.slow
def test_retraining_against_itself_is_near_and_the_original_is_caught(judged):
    """A measure that cannot tell these apart is a defect."""
    phases = judged.result["phases"]
    original, again, target = (phases[name]["forgetting"] for name in ("original", "unlearned", "retrained"))
    assert abs(again["demotion_rate"] - target["demotion_rate"]) < 0.05
    assert original["demotion_rate"] < target["demotion_rate"] - 0.3
    for key, near, far in (("ks", 0.15, 0.5), ("wasserstein", 0.3, 0.8)):
        assert again[key] < near
        assert original[key] > max(far, 3 * again[key])
    for key in ("overlap@20", "rbo"):
        assert original[key]["affected"] < again[key]["affected"] - 0.1
    assert original["resurfacing@20"] > 5 * max(target["resurfacing@20"], again["resurfacing@20"])
    assert again["attack"]["low"] <= target["attack"]["high"]
    assert target["attack"]["low"] <= again["attack"]["high"]
    apart = original["attack"]
    assert apart["high"] < target["attack"]["low"] or apart["low"] > target["attack"]["high"]
    assert phases["original"]["affected"]["ndcg@20"] < phases["retrained"]["affected"]["ndcg@20"]
    assert judged.result["verdict"]["level"] == "near"


@pytest.mark.slow
def test_over_forgetting_is_flagged(judged, monkeypatch):
    """Deleted scores pushed to the bottom: forgotten too well, and an attacker who saw the model before knows."""
    measurement = Measurement(judged.config, judged.data, loaders(judged.config, judged.data.retain), 100)
    trainer = compose(PhaseTrainer, judged.config, judged.model, "x")
    retrained = measurement.measure(trainer)
    pairs, plain = measurement.questions.deleted, trainer.scores

    def pushed(users, dataset):
        found = plain(users, dataset)
        mine = torch.isin(pairs.users, users)
        found[torch.searchsorted(users, pairs.users[mine]), pairs.items[mine]] = found[:, 1:].min() - 1.0
        return found

    monkeypatch.setattr(trainer, "scores", pushed)
    low = measurement.measure(trainer)
    assert low.forgetting["demotion_rate"] == 1.0
    assert measurement.distances(low, retrained)["ks"] > 0.5
    assert low.forgetting["attack"]["low"] > judged.record.retrained.figure("attack", "high")
    found = low.forgetting | measurement.distances(low, retrained)
    others = {name: judged.record.phases[name] for name in ("original", "retrained")}
    assert verdict({**others, "unlearned": PhaseResult(forgetting=found)}, {}).level == "over"


def placed(gap, auc, error=0.005, half=0.01):
    """A phase at a distance from the retrained model (demotion rate .8, AUC .5)."""
    return PhaseResult(
        forgetting={
            "demotion_rate": 0.8 + gap, "demotion_gap": {"mean": gap, "error": error},
            "attack": {"auc": auc, "low": auc - half, "high": auc + half},
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("original", "unlearned", "second", "level"),
    [
        ((-0.6, 0.9), (-0.05, 0.52), None, "near"),
        ((-0.6, 0.9), (-0.6, 0.9), None, "under"),  # nothing was done
        ((-0.6, 0.9), (-0.2, 0.52), None, "under"),
        ((-0.6, 0.9), (-0.05, 0.68), None, "under"),  # the attacker disagrees
        ((-0.6, 0.9), (0.15, 0.5), None, "over"),
        ((-0.6, 0.9), (0.0, 0.38), None, "over"),
        ((-0.05, 0.9), (-0.04, 0.9), None, "under"),  # within .1 of retraining, as the original is
        ((-0.004, 0.505), (-0.004, 0.505), None, "cannot_tell"),
        ((-0.004, 0.9), (-0.004, 0.51), None, "near"),  # only the attacker can tell
        ((-0.05, 0.9), (-0.03, 0.51), 0.02, "near"),  # two retrained models differ as much
        ((-0.05, 0.51), (-0.05, 0.51), 0.03, "cannot_tell"),
    ],
)
def test_a_verdict_can_fail(original, unlearned, second, level):
    phases = {"original": placed(*original), "unlearned": placed(*unlearned), "retrained": placed(0.0, 0.5)}
    if second is not None:
        phases["retrained_2"] = placed(second, 0.5)
    assert verdict(phases, {}).level == level


@hypothesis_settings(max_examples=200, deadline=None)
@given(st.floats(-0.8, 0.2), st.floats(0.0, 1.0), st.floats(0.0, 0.2), st.floats(0.0, 0.2))
def test_a_model_that_did_nothing_never_passes(gap, auc, error, half):
    """Whatever the original is like: the same figures are never near."""
    same = placed(gap, auc, error, half)
    phases = {"original": same, "unlearned": same, "retrained": placed(0.0, 0.5, 0.0, half)}
    assert verdict(phases, {}).level != "near"


def test_the_error_of_a_mean_takes_users_as_they_are():
    """A user's pairs may all be alike: many pairs of two users say as much as two numbers."""
    values, users = torch.tensor([0.0] * 50 + [1.0] * 50), torch.tensor([1] * 50 + [2] * 50)
    mean, error = clustered(values, users)
    assert (mean, error) == (0.5, pytest.approx(25 * 2**0.5 / 100))
    alone = clustered(values.double(), torch.arange(100))[1]
    assert alone == pytest.approx(float(values.double().std(correction=0)) / 10)
    assert clustered(values, torch.ones(100))[1] == 1.0


NOTHING = {"lua_target": "none", "lua_scale": 0, "lac_steps": 0}


@pytest.mark.slow
@pytest.mark.parametrize("model", QUICK)
@pytest.mark.parametrize("kind", ["noise", "genuine"])
def test_nothing_fails_and_retraining_passes_on_ml_100k(ml_100k, model, kind):
    """Both stages switched off never pass where the original does not; another retrained seed always does."""
    values = ml_100k(model) | {"min_group": 1}
    request = None
    if kind == "genuine":
        splits = load(UnlearnConfig(model, "ml-100k", config_dict=values)).splits
        request = genuine_request(splits.train)
    outcome = run_unlearn(
        model, "ml-100k", forget=request, unlearn="obliviate", compare=["retrain", "retrain"],
        config_dict=values | NOTHING,
    )  # fmt: skip
    phases = outcome.record.phases
    assert outcome.record.verdict.level == "under"
    floor = {
        "original": phases["original"],
        "unlearned": phases["retrained_2"],
        "retrained": phases["retrained"],
    }
    assert verdict(floor, {}).level == "near"


def genuine_request(train, share=0.2):
    """A fifth of the interactions of a fifth of the users, by their tokens."""
    rng = np.random.default_rng(0)
    users, items = (train.inter_feat[field].numpy() for field in ("user_id", "item_id"))
    chosen = rng.choice(np.unique(users), round(share * len(np.unique(users))), replace=False)
    mask = np.isin(users, chosen) & (rng.random(len(users)) < share)
    return {
        "user_id": train.id2token("user_id", users[mask]).tolist(),
        "item_id": train.id2token("item_id", items[mask]).tolist(),
    }


@pytest.mark.parametrize("model", ["BPR", "LightGCN"])
def test_the_placebo_tells_memory_from_the_methods_own_mark(settings, model):
    """A method that does nothing leaves no mark, and all of the original's memory."""
    values = settings | NOTHING | {"inject_users": 0.5, "report": "none"}
    result = run_unlearn(model, "tiny", unlearn="obliviate", compare="retrain", config_dict=values).record
    placebo, phases = result.placebo, result.phases
    assert placebo.mark["demotion"] == placebo.mark["ks"] == placebo.mark["attack"] == 0.0
    assert placebo.demotion_rate == phases["retrained"].demotion_rate
    left = phases["unlearned"].demotion_rate - phases["retrained"].demotion_rate
    assert placebo.memory["demotion"] == pytest.approx(left, abs=1e-6)
    assert "Memory, by the placebo" in table(result)


def test_the_placebo_needs_a_retrained_model_and_can_be_left_out(settings, tmp_path):
    values = settings | {"report": "none"}
    assert run_unlearn("BPR", "tiny", unlearn="obliviate", config_dict=values).record.placebo is None
    without = run_unlearn(
        "BPR", "tiny", unlearn="obliviate", compare="retrain", config_dict=values | {"placebo": False}
    )
    assert without.record.placebo is None
    assert "placebo" not in without.result
    for method in ("retrain", "sisa"):
        assert (
            run_unlearn("BPR", "tiny", unlearn=method, compare="retrain", config_dict=values).record.placebo
            is None
        )


def test_a_placebo_changes_nothing_else(settings):
    """It comes last, leaves no file, and the unlearned model is the same with and without it."""
    values = settings | {"report": "none", "save_adapters": True}
    outcomes = [
        run_unlearn(
            "BPR", "tiny", unlearn="obliviate", compare="retrain", config_dict=values | {"placebo": on}
        )
        for on in (True, False)
    ]
    first, second = (outcome.model.state_dict() for outcome in outcomes)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    one, two = (outcome.record.phases for outcome in outcomes)
    assert {name: phase.forgetting for name, phase in one.items()} == {
        name: p.forgetting for name, p in two.items()
    }


def test_without_a_figure_nothing_can_be_told_and_retraining_is_not_denied():
    """First interactions of a sequential model: the retrained model is there, and no deleted pair can be ranked."""
    found = verdict({name: PhaseResult() for name in ("original", "unlearned", "retrained")}, {})
    assert (found.level, found.text) == ("cannot_tell", verdicts.NOTHING)
    assert verdict({name: PhaseResult() for name in ("original", "unlearned")}, {}).level == "unknown"


def emptied(rate, retrained=0.5, error=0.01):
    """A phase with the figures of emptied histories alone."""
    gap = {} if rate == retrained else {"emptied_gap": {"mean": rate - retrained, "error": error}}
    return PhaseResult(forgetting={"demotion_rate": None, "emptied": {"demotion_rate": rate}, **gap})


@pytest.mark.parametrize(
    ("original", "unlearned", "level"),
    [
        (0.1, 0.1, "under"),
        (0.1, 0.495, "near"),
        (0.1, 0.7, "over"),
        (0.49, 0.49, "cannot_tell"),
        (0.47, 0.485, "cannot_tell"),
        (0.45, 0.495, "near"),
    ],  # half of a short way is not near
)
def test_whole_users_of_a_sequential_model_are_judged_at_uncleaned_histories(original, unlearned, level):
    """A model that did nothing never passes."""
    phases = {
        "original": emptied(original),
        "unlearned": emptied(unlearned),
        "retrained": emptied(0.5),
    }
    found = verdict(phases, {})
    assert found.level == level
    assert f"(demotion rate {unlearned:.3f}, retrained 0.500)" in found.text
    assert found.text.endswith(verdicts.EMPTIED)


def test_emptied_histories_decide_nothing_where_there_are_cleaned_ones():
    cleaned = {"demotion_rate": 0.4, "demotion_gap": {"mean": 0.0, "error": 0.01}}
    phases = {name: emptied(0.1) for name in ("original", "unlearned", "retrained")}
    phases = {name: PhaseResult(forgetting={**phase.forgetting, **cleaned}) for name, phase in phases.items()}
    found = verdict(phases, {})
    assert "(demotion rate 0.400, retrained 0.400)" in found.text
    assert verdicts.EMPTIED not in found.text
