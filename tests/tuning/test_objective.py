"""The objective of a sweep, the interactions it reads, calibrations that begin longer ones, and search spaces."""

import dataclasses
import json
import math
import pickle
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from recbole_unlearn import settings as groups
from recbole_unlearn.data import loaders
from recbole_unlearn.measures import Measurement
from recbole_unlearn.registry import METHODS
from recbole_unlearn.settings import properties_dir
from recbole_unlearn.training import PhaseTrainer, build_model, compose
from recbole_unlearn.tuning import Bench, Figures, Goal, Space, identity, space, trial, validation_only
from tests.parts import divided, refused, without

OBLIVIATE = METHODS.get("obliviate")
FIGURES = st.builds(Figures, st.floats(0, 1), st.floats(0, 1) | st.none(), st.floats(0, 1) | st.none())


def test_the_score_is_its_formula():
    judge = Goal("ndcg@20", affected=0.25, weight=2.0, original=0.2, target=0.9)
    figures, utility = Figures(0.3, 0.1, 0.7), 0.75 * 0.3 + 0.25 * 0.1
    assert judge.utility(figures) == pytest.approx(utility)
    assert judge.judge(figures)["score"] == pytest.approx(utility / 0.2 - 2.0 * 0.2)
    assert judge.judge(Figures(0.3, 0.1, 1.0))["distance"] == pytest.approx(0.1)  # more than the target is as less
    assert judge.judge(Figures(0.3, None, None))["score"] == pytest.approx(0.3 / 0.2)


@given(st.lists(FIGURES, min_size=1, max_size=12), st.floats(0, 5))
def test_no_candidate_beats_one_of_the_front_and_the_best_is_on_it(drawn, weight):
    judge = Goal("m", 0.5, weight, 0.3, 0.5)
    found = [{"trial": k, **judge.judge(figures)} for k, figures in enumerate(drawn)]

    def beaten(a):
        better = [b for b in found if b["utility"] >= a["utility"] and b["distance"] <= a["distance"]]
        return any((b["utility"], b["distance"]) != (a["utility"], a["distance"]) for b in better)

    points = {(c["utility"], c["distance"]) for c in found if not beaten(c)}
    front = trial.front(found)
    assert ({(c["utility"], c["distance"]) for c in front}, len(front)) == (points, len(points))
    exact = max(found, key=lambda c: (c["utility"] / 0.3 - weight * c["distance"], -c["distance"]))
    chosen = trial.best(found)
    assert chosen["score"] == pytest.approx(exact["score"], abs=2e-5)
    if all(abs(c["score"] - chosen["score"]) > 1e-4 for c in found if c is not chosen):
        assert not beaten(chosen)


@pytest.mark.parametrize(("metric", "said"), [
    *((name, r"^tune_metric=.*is not measured.*ndcg@20") for name in ("NDCG@15", "Hit@10", "ndcg", "nonsense")),
    ("Precision@20", None),  # asked for by --metrics
    ("AveragePopularity@20", "better when smaller"),
])  # fmt: skip
def test_metrics_that_are_measured_can_be_tuned_for_unless_smaller_is_better(make_config, metric, said):
    changes = {"metrics": ["NDCG", "Precision", "AveragePopularity"], "topk": [20], "valid_metric": "NDCG@20"}
    config = make_config(unlearn="obliviate", tune_metric=metric, **changes)
    options = groups.read(groups.TuneSettings, config)
    if said is None:
        assert trial.read_metric(options, config, 61) == metric.lower()
    else:
        refused(said, trial.read_metric, options, config, 61)


@pytest.fixture(params=["BPR", "GRU4Rec"])
def measured(request, settings, make_config):
    """Config, divided data and an untrained model."""
    changes = {}
    if request.param == "GRU4Rec":
        del settings["embedding_size"]
        changes = {"hidden_size": 8, "MAX_ITEM_LIST_LENGTH": 6}
    config = make_config(request.param, **changes)
    data = divided(config)
    return config, data, compose(PhaseTrainer, config, build_model(config, data.retain), "x")


sequential = pytest.mark.parametrize("measured", ["GRU4Rec"], indirect=True)
general = pytest.mark.parametrize("measured", ["BPR"], indirect=True)


def bench_of(config, data):
    return Bench(config, validation_only(data), "ndcg@20")


def forgetting_of_a_run(config, data, trainer):
    view = validation_only(data)
    return Measurement(config, view, loaders(config, view.retain), 10).measure(trainer).forgetting


def test_utility_and_demotion_rate_are_those_of_recbole_and_of_a_run(measured):
    config, data, trainer = measured
    bench = bench_of(config, data)
    figures, exact = bench.measure(trainer), config.replace(metric_decimal_place=6)
    plain = compose(PhaseTrainer, exact, trainer.model, "y")
    theirs = plain.evaluate(loaders(exact, data.retain).valid, load_best_model=False)["ndcg@20"]
    assert figures.everyone == pytest.approx(theirs, abs=1e-6)
    assert figures.demotion == pytest.approx(forgetting_of_a_run(*measured)["demotion_rate"], abs=1e-6)
    if bench.windows is None:
        few = compose(PhaseTrainer, config.replace(eval_batch_size=61), trainer.model, "x")  # a user at a time
        assert bench.measure(few).demotion == pytest.approx(figures.demotion)


@general
def test_test_interactions_change_nothing(measured):
    config, data, trainer = measured
    full, retain = (splits._replace(test=splits.train) for splits in (data.full, data.retain))
    other = dataclasses.replace(data, full=full, retain=retain)
    assert bench_of(config, data).measure(trainer) == bench_of(config, other).measure(trainer)
    for part in (validation_only(data).full, validation_only(data).retain):
        assert part.test is part.valid


@sequential
def test_of_sequences_validation_windows_are_measured_and_no_test_item_is_in_any(measured):
    config, data, trainer = measured
    view = validation_only(data)
    for before, after in ((data.full, view.full), (data.retain, view.retain)):
        windows = after.for_model()
        for mine, own in zip(windows, (0, 1, 1), strict=True):
            for field, values in before.for_model()[own].inter_feat.interaction.items():
                assert torch.equal(mine.inter_feat[field], values), field
        assert len(after.sequences) == int((before.sequences.role != 2).sum())
        users = windows.test.inter_feat["user_id"]
        assert torch.equal(after.batch(users)["item_id_list"], windows.test.inter_feat["item_id_list"])
    sent = pickle.loads(pickle.dumps(view))  # to another process
    assert Bench(config, sent, "ndcg@20").measure(trainer) == bench_of(config, data).measure(trainer)


@sequential
def test_of_whole_sequences_the_uncleaned_demotion_rate_is_measured(measured):
    config, data, trainer = measured
    data = without(data.full, torch.isin(data.full.train.inter_feat["user_id"], torch.arange(1, 6)).numpy())
    expected = forgetting_of_a_run(config, data, trainer)["emptied"]["demotion_rate"]
    assert bench_of(config, data).measure(trainer).demotion == pytest.approx(expected, abs=1e-6)


@general
def test_data_that_cannot_be_tuned_on_is_refused(measured):
    config, data, _ = measured
    empty = data.retain.valid.copy(data.retain.valid.inter_feat[:0])
    unvalidated = dataclasses.replace(data, retain=data.retain._replace(valid=empty))
    refused("no validation interactions", bench_of, config, unvalidated)
    pipeline = SimpleNamespace(config={}, methods=[SimpleNamespace(method=OBLIVIATE)])
    pipeline.data = SimpleNamespace(forget=[])  # held-out interactions alone
    refused("nothing to tune", trial.prepare, pipeline, None)


def load_space(make_config, tmp_path, text, **changes):
    file = tmp_path / "space.yaml"
    file.write_text(text)
    return space.load(make_config(unlearn="obliviate", **changes), OBLIVIATE, str(file))


def test_every_kind_of_values(make_config, tmp_path):
    read = load_space(
        make_config, tmp_path,
        "rank: {choice: [4, 9, full]}\nlac_steps: {int: [20, 90, 20]}\n"
        "lac_learning_rate: {loguniform: [1e-3, 0.1]}\nlua_limit: {uniform: [0, 2]}\n"
        "lua_target: {choice: [none, neighbours]}\nlac_batch_size: {int: [1, 3]}\n",
    )  # fmt: skip
    assert {key: found and list(found) for key in read.lines for found in [read.values(key)]} == {
        "rank": [4, 9, "full"], "lac_steps": [20, 40, 60, 80], "lac_learning_rate": None, "lua_limit": None,
        "lua_target": ["none", "neighbours"], "lac_batch_size": [1, 2, 3],
    }  # fmt: skip


@pytest.mark.parametrize(("text", "said"), [
    ("", "empty"), ("- rank\n", "not a mapping"), ("rank: {choice: [4\n", "line 2"),
    ("rank: [4, 8]\n", "one kind of values"),
    ("rank: {choice: []}\n", "list of values"), ("rank: {choice: [4, 4]}\n", "is there twice"),
    ("rank: {choice: [[4]]}\n", "plain value"), ("rank: {choice: [0]}\n", "rank=0"),
    ("rank: {choice: [4]}\nlac_steps: {int: [1, 2]}\nrank: {choice: [8]}\n", "rank is there twice (line 3)"),
    ("rank: {chioce: [4]}\n", "Did you mean choice"), ("lac_step: {int: [1, 2]}\n", "Did you mean lac_steps"),
    ("learning_rate: {uniform: [0.1, 0.2]}\n", "not a setting of obliviate"),
    ("4: {int: [1, 2]}\n", "the key 4 is not a name"), ("lac_steps: {int: [20, 20]}\n", "upside down or empty"),
    ("lac_steps: {int: [1.5, 20]}\n", "whole numbers"), ("lac_steps: {int: [1, 20, 0]}\n", "step 0"),
    ("lac_steps: {int: [-5, 20]}\n", "lac_steps=-5"),
    ("lac_learning_rate: {loguniform: [0, 0.1]}\n", "above 0"),
    ("lac_learning_rate: {uniform: [0, .inf]}\n", "finite number"),
    ("lac_learning_rate: {uniform: [0.1]}\n", "two numbers"), ("lac_learning_rate: {choice: [.nan]}\n", "finite"),
    ("lua_target: {choice: [none, odd]}\n", "lua_target='odd'"),
    ("rank: !!python/object/apply:os.mkdir [hacked]\n", "not valid YAML"),
])  # fmt: skip
def test_bad_spaces_are_told_in_one_line(make_config, tmp_path, text, said):
    assert said in refused("space.yaml", load_space, make_config, tmp_path, text)
    assert not (tmp_path / "hacked").exists()


def test_a_setting_cannot_be_swept_over_and_fixed(make_config, tmp_path):
    text = "rank: {choice: [4]}\nlac_steps: {int: [1, 2]}\n"
    refused("rank is swept over, but this run sets it", load_space, make_config, tmp_path, text, rank=8)
    # The method's own space gives way instead: who sets a rank wants that rank.
    own = space.load(make_config(unlearn="obliviate"), OBLIVIATE, None)
    assert "rank" in own.lines
    assert "rank" not in space.load(make_config(unlearn="obliviate", rank=8), OBLIVIATE, None).lines
    fixed = make_config(unlearn="obliviate", **dict.fromkeys(own.lines, 1))
    refused("Every setting", space.load, fixed, OBLIVIATE, None)


@pytest.mark.parametrize("path", sorted((properties_dir() / "tune").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_spaces_that_are_shipped_fit_their_methods(path, make_config):
    name, _, kind = path.stem.partition("-")
    config = make_config({"": "BPR", "sequential": "SASRec"}[kind], unlearn=name)
    own = space.load(config, METHODS.get(name), None)
    assert own == space.load(config, METHODS.get(name), path.stem)  # named without its path
    assert len(own.random(16, 0)) == 16


PLAIN = st.integers(-50, 50) | st.booleans() | st.text(max_size=3) | st.none()
LINES = st.one_of(
    st.builds(
        lambda kind, values: {kind: values},
        st.just("choice"),
        st.lists(PLAIN, min_size=1, max_size=4, unique_by=lambda v: (type(v), v)),
    ),
    st.builds(
        lambda low, size, step: {"int": [low, low + size, *step]},
        st.integers(-9, 9), st.integers(1, 9), st.lists(st.integers(1, 4), max_size=1),
    ),
    st.builds(
        lambda kind, low, factor: {kind: [low, low * factor]},
        st.sampled_from(["uniform", "loguniform"]), st.floats(1e-6, 1e3), st.floats(1.01, 1e3),
    ),
)  # fmt: skip
SPACES = st.dictionaries(st.sampled_from("abcde"), LINES, min_size=1, max_size=4).map(Space)


def assert_inside(drawn, values):
    """All values are of their settings' domains, and as a file has them."""
    assert (values.keys(), json.loads(json.dumps(values))) == (drawn.lines.keys(), values)
    for key, value in values.items():
        listed, (ends,) = drawn.values(key), drawn.lines[key].values()
        if listed is None:
            assert type(value) is float
            assert ends[0] <= value <= ends[1]
        else:
            assert any(type(own) is type(value) and own == value for own in listed)


@given(SPACES, st.integers(0, 2**31), st.integers(1, 12))
def test_draws_are_inside_distinct_repeatable_and_the_start_of_longer_sweeps(drawn, seed, trials):
    found = drawn.random(trials, seed)
    for values in found:
        assert_inside(drawn, values)
    assert (len({identity(values) for values in found}), found) == (len(found), drawn.random(trials, seed))
    assert 1 <= len(found) <= trials
    assert drawn.random(trials + 5, seed)[: len(found)] == found


@given(SPACES)
@example(Space({"a": {"int": [1, 1000]}, "b": {"int": [1, 1000]}}))
def test_a_grid_has_every_combination_once(drawn):
    listed = [drawn.values(key) for key in drawn.lines]
    if None in listed:
        refused("Grid search cannot go through the range", drawn.grid)
        return
    if (size := math.prod(map(len, listed))) > space.LARGEST:
        refused("1000000 combinations", drawn.grid)
        return
    found = drawn.grid()
    assert len({identity(values) for values in found}) == len(found) == size
    for values in found:
        assert_inside(drawn, values)
