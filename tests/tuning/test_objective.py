"""The objective of a sweep, the interactions it reads, and calibrations that are the beginning of longer ones."""

import dataclasses
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recbole_unlearn import settings as groups
from recbole_unlearn.data import Located, Splits, divide, loaders
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.measures import Measurement
from recbole_unlearn.methods import Watch
from recbole_unlearn.pipeline import begin
from recbole_unlearn.registry import METHODS
from recbole_unlearn.training import PhaseTrainer, Trainings, build_model, compose, train
from recbole_unlearn.tuning import Bench, Figures, Goal, objective, trial, validation_only
from tests.parts import divided

OBLIVIATE = METHODS.get("obliviate")

# The objective

FIGURES = st.builds(Figures, st.floats(0, 1), st.floats(0, 1) | st.none(), st.floats(0, 1) | st.none())


def test_the_score_is_its_formula():
    judge = Goal("ndcg@20", affected=0.25, weight=2.0, original=0.2, target=0.9)
    figures = Figures(0.3, 0.1, 0.7)
    utility = 0.75 * 0.3 + 0.25 * 0.1
    assert judge.utility(figures) == pytest.approx(utility)
    assert judge.score(figures) == pytest.approx(utility / 0.2 - 2.0 * 0.2)
    over = Figures(0.3, 0.1, 1.0)  # forgetting more than the target counts like forgetting less
    assert judge.distance(over) == pytest.approx(0.1)
    assert judge.score(Figures(0.3, None, None)) == pytest.approx(0.3 / 0.2)


@hypothesis_settings(max_examples=80, deadline=None)
@given(st.lists(FIGURES, min_size=1, max_size=12), st.floats(0, 5))
def test_no_candidate_beats_one_of_the_front_and_the_best_is_on_it(drawn, weight):
    judge = Goal("m", 0.5, weight, 0.3, 0.5)
    found = [{"trial": k, "step": None, **judge.judge(figures)} for k, figures in enumerate(drawn)]

    def beaten(a):
        return any(
            b["utility"] >= a["utility"] and b["distance"] <= a["distance"]
            and (b["utility"], b["distance"]) != (a["utility"], a["distance"])
            for b in found
        )  # fmt: skip

    points = {(c["utility"], c["distance"]) for c in found if not beaten(c)}
    front = objective.front(found)
    assert {(c["utility"], c["distance"]) for c in front} == points
    assert len(front) == len(points)
    exact = max(found, key=lambda c: (c["utility"] / 0.3 - weight * c["distance"], -c["distance"]))
    chosen = objective.best(found)
    assert chosen["score"] == pytest.approx(exact["score"], abs=2e-5)
    if all(abs(c["score"] - chosen["score"]) > 1e-4 for c in found if c is not chosen):
        assert not beaten(chosen)


@pytest.mark.parametrize("metric", ["NDCG@15", "Precision@10", "ndcg", "nonsense"])
def test_a_metric_that_is_not_measured(make_config, metric):
    options = groups.read(groups.TuneSettings, make_config(unlearn="obliviate", tune_metric=metric))
    with pytest.raises(UnlearnError, match=r"^tune_metric=.*is not measured.*ndcg@20"):
        objective.read_metric(options, make_config(), 61)


def test_metrics_that_are_asked_for_can_be_tuned_for_unless_smaller_is_better(make_config):
    config = make_config(metrics=["Precision", "AveragePopularity"], topk=[5], valid_metric="Precision@5")
    options = groups.read(groups.TuneSettings, config.replace(tune_metric="Precision@5"))
    assert objective.read_metric(options, config, 61) == "precision@5"
    options = dataclasses.replace(options, tune_metric="AveragePopularity@5")
    with pytest.raises(UnlearnError, match="better when smaller"):
        objective.read_metric(options, config, 61)


@pytest.fixture
def measured(make_config):
    config = make_config()
    data = divided(config)
    trainer = compose(PhaseTrainer, config, build_model(config, data.retain), "x")
    return config, data, trainer


def figures_of(config, data, trainer):
    return Bench(config, validation_only(data), "ndcg@20", 10).measure(trainer)


def of_a_run(config, view, trainer):
    """The forgetting that a run measures on the same data."""
    return Measurement(config, view, loaders(config, view.retain), 10).measure(trainer).forgetting


def recboles_own(config, data, trainer):
    """NDCG@20 of the validation interactions by RecBole's evaluation."""
    config = config.replace(metric_decimal_place=6)
    plain = compose(PhaseTrainer, config, trainer.model, "y")
    found = plain.evaluate(loaders(config, data.retain).valid, load_best_model=False)["ndcg@20"]
    return pytest.approx(found, abs=1e-6)


def test_utility_and_demotion_rate_are_those_of_recbole_and_of_a_run(measured):
    config, data, trainer = measured
    view, figures = validation_only(data), figures_of(*measured)
    assert figures.everyone == recboles_own(*measured)
    assert figures.demotion == pytest.approx(of_a_run(config, view, trainer)["demotion_rate"], abs=1e-6)
    few = compose(PhaseTrainer, config.replace(eval_batch_size=61), trainer.model, "x")  # one user at a time
    deleted = Bench(config, view, "ndcg@20", 10).deleted
    assert objective.demotion_rate(few, deleted, view.retain) == pytest.approx(figures.demotion)


def test_test_rows_change_nothing(measured):
    config, data, trainer = measured
    other = dataclasses.replace(
        data,
        full=Splits(data.full.train, data.full.valid, data.full.train),
        retain=Splits(data.retain.train, data.retain.valid, data.retain.train),
    )
    assert figures_of(config, data, trainer) == figures_of(config, other, trainer)
    for part in (validation_only(data).full, validation_only(data).retain):
        assert part.test is part.valid


@pytest.fixture
def sequential(settings, make_config):
    del settings["embedding_size"]
    config = make_config("GRU4Rec", hidden_size=8, MAX_ITEM_LIST_LENGTH=6)
    data = divided(config)
    return config, data, compose(PhaseTrainer, config, build_model(config, data.retain), "x")


def test_of_sequences_validation_windows_are_measured_and_no_test_item_is_in_any(sequential):
    config, data, trainer = sequential
    view = validation_only(data)
    for before, after in ((data.full, view.full), (data.retain, view.retain)):
        windows = after.for_model()
        for mine, own in zip(windows, (0, 1, 1), strict=True):
            for field, values in before.for_model()[own].inter_feat.interaction.items():
                assert torch.equal(mine.inter_feat[field], values), field
        assert len(after.sequences) == int((before.sequences.role != 2).sum())
        users = windows.test.inter_feat["user_id"]
        assert torch.equal(after.batch(users)["item_id_list"], windows.test.inter_feat["item_id_list"])
    figures = figures_of(config, data, trainer)
    sent = pickle.loads(pickle.dumps(view))  # to another process
    assert Bench(config, sent, "ndcg@20", 10).measure(trainer) == figures
    assert figures.everyone == recboles_own(config, data, trainer)
    assert figures.demotion == pytest.approx(of_a_run(config, view, trainer)["demotion_rate"], abs=1e-6)


def test_of_whole_sequences_the_uncleaned_demotion_rate_is_measured(sequential):
    config, data, trainer = sequential
    whole = torch.isin(data.full.train.inter_feat["user_id"], torch.arange(1, 6)).numpy()
    nothing = [np.zeros(len(part), bool) for part in data.full[1:]]
    data = divide(data.full, Located(whole, *nothing), "x")
    expected = of_a_run(config, validation_only(data), trainer)["emptied"]["demotion_rate"]
    assert figures_of(config, data, trainer).demotion == pytest.approx(expected, abs=1e-6)


def test_a_split_without_validation_rows(make_config):
    config = make_config()
    data = divided(config)
    empty = data.retain.valid.copy(data.retain.valid.inter_feat[:0])
    data = dataclasses.replace(data, retain=data.retain._replace(valid=empty))
    with pytest.raises(UnlearnError, match="no validation interactions"):
        Bench(config, validation_only(data), "ndcg@20", 10)


# The beginning of a calibration


def unlearned(config, data, original, watch=None, **changes):
    options = groups.read(OBLIVIATE.Settings, config.method_values("obliviate") | changes)
    models = Trainings(groups.read(groups.CacheSettings, config.replace(cache=False)), 1)
    trainer, task = begin(OBLIVIATE, options, config, data, original, models, "x")
    return trainer, trainer.run(dataclasses.replace(task, watch=watch))


def weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("BPR", {}),
        ("BPR", {"forget_kind": "noise", "lac_batch_size": 64}),
        ("LightGCN", {"rank": 3}),
        ("NeuMF", {}),  # dropout: every step draws from torch's own generator
    ],
)
def test_the_first_steps_of_a_longer_calibration_bit_for_bit(make_config, model, changes):
    config = make_config(model, epochs=1, eval_step=1)
    changes = {"lac_batch_size": 64} | changes
    data = divided(config)
    # Rows that are reset in every state that is shown, although they are in the region.
    data = dataclasses.replace(data, orphan_users=torch.tensor([2]), orphan_items=data.forget_pairs[1][:1])
    original = train(config, data.full, "original")
    seen = {}
    watch = Watch(
        frozenset({3, 6}),
        lambda trainer, step, seconds: seen.update({step: (weights(trainer.model), seconds)}),
    )
    whole, finished = unlearned(config, data, original, watch, lac_steps=8, **changes)
    unseen, _ = unlearned(config, data, original, lac_steps=8, **changes)
    assert sorted(seen) == [3, 6]
    assert 0 < seen[3][1] < seen[6][1] < finished.seconds
    for name, value in weights(unseen.model).items():
        assert torch.equal(value, whole.model.get_parameter(name)), name  # being watched changes nothing
    for step in (3, 6):
        short, _ = unlearned(config, data, original, lac_steps=step, lac_horizon=8, **changes)
        for name, value in weights(short.model).items():
            assert torch.equal(value, seen[step][0][name]), (step, name)
    plain, _ = unlearned(config, data, original, lac_steps=3, **changes)
    assert any(not torch.equal(v, seen[3][0][name]) for name, v in weights(plain.model).items())


def test_a_horizon_before_the_last_step_is_refused(make_config):
    config = make_config()
    options = groups.read(
        OBLIVIATE.Settings, config.method_values("obliviate") | {"lac_steps": 9, "lac_horizon": 8}
    )
    with pytest.raises(UnlearnError, match=r"lac_horizon=8 .*lac_steps, which is 9"):
        OBLIVIATE.check(options, config)


@given(st.integers(0, 200), st.integers(1, 10))
def test_looks_are_spread_over_the_steps(total, looks):
    steps = trial.look_steps(total, looks)
    assert len(steps) == min(looks - 1, max(0, total - 1)) or looks > total // 2
    assert all(0 < step < total for step in steps)


def test_a_request_of_held_out_interactions_cannot_be_tuned():
    pipeline = SimpleNamespace(
        config={}, methods=[SimpleNamespace(method=OBLIVIATE)], data=SimpleNamespace(forget=[])
    )
    with pytest.raises(UnlearnError, match="nothing to tune"):
        trial.prepare(pipeline, None)
