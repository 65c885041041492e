"""Disclosure: the attack that found the users of a request in its result, and that it finds none any more."""

import dataclasses
import functools
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from recbole_unlearn import cli, run_unlearn, tune_unlearn
from recbole_unlearn.data import Fields, divide, load, loaders, locate, read_request
from recbole_unlearn.measures import Measurement
from recbole_unlearn.measures.base import measure
from recbole_unlearn.report import write_comparison
from recbole_unlearn.results import Distribution, Forgotten, LeftOut, PhaseResult, Placebo, RunResult, Verdict
from recbole_unlearn.results.disclosure import Crowd, Discretion, blunt, coarse, step_from, to_step
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import train_here
from tests.parts import refused
from tests.test_text import FACTORS, FIGURES

REQUESTER = "u5"
SMALL = {"min_group": 10}
ONE = Crowd(users=1, compared=1, matched=1, measured=1, tested=900, usual=200)
METRICS = ("hit@5", "ndcg@20")


class Attacker:
    """Has the data and the original, and works out what a result would show if this or that user had asked."""

    def __init__(self, config, suspects=slice(None)):
        self.config, self.source, self.suspects = config, load(config), suspects
        self.trainer, _ = train_here(config, self.source.splits, "original")

    def users(self):
        train = self.source.splits.train
        return [str(token) for token in train.field2id_token["user_id"][1:][self.suspects]]

    @functools.cache  # noqa: B019, an attacker lives as long as a test
    def measured(self, user):
        """The data as a request of this user divides it, the figures of the original and the size of the request."""
        request = read_request({"user_id": [user]}, Fields.of(self.config))
        data = divide(self.source.splits, locate(request, self.source.splits), "python")
        test = loaders(self.config, data.retain)
        found = Measurement(self.config, data, test, self.config["demotion_negatives"]).measure(self.trainer)
        phase = PhaseResult(**found.utility, forgetting=found.forgetting, groups=found.groups)
        own = data.summary()
        forget = Forgotten(**{key: own.pop(key) for key in ("source", "interactions", "users", "items")}, counts=own)
        return data, phase, forget

    def result(self, user, min_group):
        """The same figures, as they would be shown."""
        data, phase, forget = self.measured(user)
        discretion = Discretion.of(data, min_group)
        return discretion.phase(phase).to_json(), discretion.forgotten(forget).to_json()

    def candidates(self, result, keys=(), counts=True):
        """All users whose request would give the same, in all that a result shows or in some ``keys`` of a phase."""
        shown, forget = result["phases"]["original"], result["forget"]
        found = []
        for user in self.users():
            phase, size = self.result(user, result["settings"]["min_group"])
            compared = keys or set(phase) - {"seconds", "seconds_from_cache", "distribution"}
            same = all(phase.get(key) == json.loads(json.dumps(shown.get(key))) for key in compared)
            if same and (not counts or {**size, "source": None} == {**forget, "source": None}):
                found.append(user)
        return found


FITTED = {"epochs": 30, "learning_rate": 0.03}  # a model that has learned something, as one that is attacked


@pytest.fixture
def attacker(make_config, tmp_path):
    return Attacker(make_config("BPR", checkpoint_dir=str(tmp_path / "attack"), **FITTED))


def asked(settings, tmp_path, **changes):
    """A run in which one user asks to be forgotten, by a file."""
    file = tmp_path / "request.csv"
    file.write_text(f"user_id\n{REQUESTER}\n")
    return run_unlearn("BPR", "tiny", forget=file, config_dict=settings | changes)


def test_without_a_minimum_the_requester_is_found(settings, tmp_path, attacker):
    result = asked(settings, tmp_path, unlearn="obliviate", **FITTED).result
    assert attacker.candidates(result) == [REQUESTER]
    assert attacker.candidates(result, ["forgetting"], counts=False) == [REQUESTER]
    # Figures of *all* users are enough: an attacker who knows those of every one sees who is missing.
    left = attacker.candidates(result, ["metrics"], counts=False)
    assert REQUESTER in left
    assert len(left) < 10
    assert "withheld" not in result


def test_with_the_default_every_user_could_have_asked(settings, tmp_path, attacker):
    by_default = {key: value for key, value in settings.items() if key != "min_group"}
    result = asked(by_default, tmp_path, unlearn="obliviate", **FITTED).result
    assert (result["settings"]["min_group"], attacker.candidates(result)) == (10, attacker.users())


@pytest.mark.slow
def test_the_same_on_ml_100k(ml_100k, tmp_path):
    """One in forty users is suspected; here results have figures of all users too."""
    values = ml_100k("BPR")
    own = values | {"checkpoint_dir": str(tmp_path / "attack")}
    attacker = Attacker(UnlearnConfig("BPR", "ml-100k", config_dict=own), slice(None, None, 40))
    suspects = attacker.users()
    for group in (1, 10):
        own = values | {"min_group": group, "replace": True, "unlearn": "obliviate"}
        result = run_unlearn("BPR", "ml-100k", forget={"user_id": [suspects[7]]}, config_dict=own).result
        assert set(result["phases"]["original"]["metrics"]) >= {"ndcg@20", "recall@50"}
        if group == 1:
            assert attacker.candidates(result) == [suspects[7]]
        else:
            assert attacker.candidates(result, counts=False) == suspects
            # If it is also known that all of a user's interactions were deleted, some have about as many.
            assert len(attacker.candidates(result)) > 1


NUMBER = re.compile(r"\d\.\d{3,}")


def telling(tree, path=""):
    """The figures of a tree with more than two decimals, by where they are."""
    if isinstance(tree, dict):
        return {k: v for key, inner in tree.items() for k, v in telling(inner, f"{path}/{key}").items()}
    if isinstance(tree, (list, tuple)):
        return {k: v for n, inner in enumerate(tree) for k, v in telling(inner, f"{path}/{n}").items()}
    has_decimals = isinstance(tree, float) and abs(tree * 100 - round(tree * 100)) > 1e-6
    return {path: tree} if has_decimals and not re.search("seconds|speedup|environment|settings", path) else {}


def spellings(value):
    return {f"{value:.{digits}f}" for digits in (3, 4, 6)} | {repr(value)}


def test_no_file_and_no_line_has_an_exact_figure(settings, flags, tmp_path, capsys):
    """Of any model of the run, in result.json, report, log, on the screen of the command and in TensorBoard."""
    run = {"unlearn": "obliviate", "compare": "retrain,sisa", "tensorboard": True, "cache": False}
    exact = telling(asked(settings, tmp_path, **run, output_dir=str(tmp_path / "exact")).result)
    assert len(exact) > 100
    capsys.readouterr()
    request, home = tmp_path / "request.csv", tmp_path / "out"
    assert cli.main(["--model=BPR", "--dataset=tiny", f"--forget={request}", *flags(**run, **SMALL)]) == 0
    assert telling(json.loads((home / "result.json").read_text())) == {}
    page = (home / "report.html").read_text()
    # The epochs of the original are those of a model of all users; of models of the request there are none.
    first, log = (home / "run.log").read_text().split("Begin: unlearned")
    assert ("train loss" in first, "train loss" in log) == (True, False)
    texts = {
        "result.json": (home / "result.json").read_text(),
        "run.log": log,
        "report.html": re.sub(r"<script>.*?</script>|<style>.*?</style>", "", page, flags=re.S),
        "screen": "\n".join(capsys.readouterr()),
    }
    for name, text in texts.items():
        text = re.sub(r'"(seconds|speedup|torch|python|platform)[^,}]*|[\d.]+[ \u202f\xa0]*(m?s|min|h|×)\b', "", text)
        found = set(NUMBER.findall(text))
        assert not [(key, found & spellings(value)) for key, value in exact.items() if found & spellings(value)], name
    curves = {path.parent.name for path in (home / "tensorboard").rglob("events*")}
    assert curves & {"unlearned", "retrained", "sisa"} == set()
    for path in (home / "tensorboard").rglob("events*"):
        tags = EventAccumulator(str(path)).Reload().Tags()["scalars"]
        assert not [tag for tag in tags if tag.startswith("Unlearn")]


def test_the_notice_and_the_rough_size_are_in_all_outputs(settings, tmp_path):
    outcome = asked(settings, tmp_path, **SMALL)
    forget, withheld = outcome.result["forget"], outcome.result["withheld"]
    states = {"lines_training": 1, "lines_held_out": 0, "lines_unknown": 0}
    assert forget == {"source": "file", "interactions": 20, "users": 1, "items": 20} | states
    # Of one user the demotion rate is 0, 0.5 or 1, which reads as a failure.
    assert "demotion" not in str(outcome)
    log = (tmp_path / "out" / "run.log").read_text()
    assert "forgetting about 20 of 600 training interactions, of 1 user and 20 items." in log
    assert not re.search("also hits|training interaction left", log)
    assert withheld["min_group"] == 10
    assert "--min_group=1" in withheld["why"]
    page = re.sub("</?code>", "", (tmp_path / "out" / "report.html").read_text())  # an option is set as code
    for text in (" ".join(str(outcome).split()), log, page):
        assert withheld["why"] in text
        assert text is log or "Its lines: up to 1 in the training data, 0 held out" in text
    assert write_comparison([outcome.output_dir], tmp_path / "page.html").stat().st_size > 1000


def test_injected_noise_is_shown_as_it_is(settings):
    own = settings | SMALL | {"inject_users": 0.1, "report": "none"}
    shown = run_unlearn("BPR", "tiny", config_dict=own).record
    assert shown.withheld is None
    assert shown.forget.users < 10
    assert shown.phases["original"].affected != {}


def test_a_sweep_over_few_users_is_refused(settings, tmp_path):
    (tmp_path / "r.csv").write_text(f"user_id\n{REQUESTER}\n")
    own = settings | SMALL | {"tune": True, "trials": 1, "workers": 1, "unlearn": "obliviate"}
    said = r"a sweep would show their figures.*--min_group=1"
    refused(said, tune_unlearn, "BPR", "tiny", forget=tmp_path / "r.csv", config_dict=own)


def test_a_larger_request_is_rounded(settings):
    request = {"item_id": ["i1", "i31"]}
    own = settings | {"unlearn": "obliviate", "report": "none"}
    exact, shown = (run_unlearn("BPR", "tiny", forget=request, config_dict=own | {"min_group": k}) for k in (1, 10))
    assert exact.record.forget.users == 19
    for name, phase in shown.record.phases.items():
        all_of_it = exact.record.phases[name]
        assert set(phase.affected) == set(all_of_it.affected) != set()
        for key, value in phase.affected.items():
            assert abs(10 * value - round(10 * value)) < 1e-9
            assert abs(value - all_of_it.affected[key]) <= 0.05 + 1e-9
        assert abs(phase.demotion_rate - all_of_it.demotion_rate) <= 0.05
        assert phase.distribution is None
    assert "rounded" in shown.result["withheld"]["why"]


values = st.floats(0, 1) | st.sampled_from([0.995, 0.9999, 1.0, 0.5])
metrics = st.fixed_dictionaries({key: values for key in METRICS})


@st.composite
def phases(draw, rate=None, everyone=None):
    """A phase with figures of all kinds; seconds are shown, so they are the same if ``rate`` is given."""
    auc, half = draw(values), draw(st.floats(0, 0.02))
    return PhaseResult(
        seconds=draw(st.none() | st.floats(0.001, 500)) if rate is None else 1.0,
        metrics=everyone or draw(metrics),
        affected=draw(metrics),
        unaffected=draw(metrics),
        forgetting={"demotion_rate": draw(values) if rate is None else rate, "resurfacing@10": draw(values),
                    "attack": {"auc": round(auc, 4), "low": max(0.0, auc - half), "high": min(1.0, auc + half),
                               "pairs": 9},
                    "demotion_gap": {"mean": draw(FIGURES), "error": draw(st.floats(0, 0.1))},
                    "overlap@20": {"all": draw(values), "affected": draw(values)}},
        groups={"core_edge": {"core": {"recall@20": draw(values), "users": draw(st.integers(0, 400))}}},
        distribution=Distribution([0.0, draw(st.floats(0.1, 9)), 10.0], [draw(st.integers(0, 9)), 4]),
    )  # fmt: skip


@st.composite
def results(draw, rate=None, everyone=None):
    """A result whose figures are of few users; ``rate`` and ``everyone`` are what is shown of it."""
    found = {name: draw(phases(rate, everyone)) for name in ("original", "unlearned", "retrained")}
    return RunResult(
        "BPR", "ml-100k", "obliviate", 1, {},
        Forgotten("file", draw(st.integers(1, 5000)), 1, draw(st.integers(1, 5000)),
                  {"orphan_items": draw(st.integers(0, 9)), "test_rows_removed": draw(st.integers(0, 30))}),
        found,
        certificates={"exact": True, "margin": {"loss": draw(values)}, "rows": {"user": draw(st.integers(1, 9))}},
        curves={"unlearned": {"loss": [(1, draw(values))]}},
        recovered=draw(metrics),
        speedup=draw(st.none() | FACTORS) if rate is None else 1.0,
        placebo=Placebo(0.5, *({"demotion": draw(FIGURES), "ks": draw(FIGURES)} for _ in range(2))),
        left_out=LeftOut(draw(st.lists(st.sampled_from(METRICS), min_size=1)), "noise"),
        verdict=Verdict("near", f"near ({draw(values)})"),
    )  # fmt: skip


@given(st.data(), values, metrics, st.sampled_from([2, 5, 10, 50]))
def test_nothing_of_few_users_reaches_what_is_shown(data, rate, everyone, group):
    """Two requests that differ in all their figures, and agree in those of all users, look the same."""
    discretion = Discretion(group, ONE)
    first, second = (data.draw(results(rate, everyone)) for _ in range(2))
    second = dataclasses.replace(second, forget=first.forget)
    a, b = (discretion.shown(one).to_json() for one in (first, second))
    assert a == b
    for phase in a["phases"].values():
        assert phase["affected"] == phase["unaffected"] == {}
        assert not {"groups", "distribution"} & set(phase)
        assert set(phase["forgetting"]) == {"demotion_rate"}
    assert not {"recovered", "recovered_left_out"} & set(a)
    assert (a["curves"], a["certificates"]) == ({}, {"exact": True})


@given(
    st.data(),
    st.builds(
        Crowd, users=st.integers(10, 500), compared=st.integers(10, 500), matched=st.integers(0, 500),
        measured=st.integers(0, 500), tested=st.integers(500, 2000), usual=st.just(100),
    ),
)  # fmt: skip
def test_affected_cannot_be_worked_out_from_what_is_left(data, crowd):
    """Where affected users are too few to be shown, none of the figures that would give them is."""
    discretion, result = Discretion(10, crowd), data.draw(results())
    shown = discretion.shown(result)
    hidden = 0 < crowd.measured < 10 or 0 < crowd.tested - crowd.measured < 10
    for name, phase in shown.phases.items():
        exact = result.phases[name]
        if hidden:
            assert (phase.affected, phase.unaffected) == ({}, {})
            assert shown.recovered is None
            continue
        for key in METRICS:
            # From the means over all and over the others, a sum over affected users is known to a whole user.
            step = step_from(1 / crowd.tested) * crowd.tested
            assert abs(phase.metrics[key] - exact.metrics[key]) * crowd.tested <= step / 2 + 1e-6
            assert step >= 1
            if crowd.measured:
                assert phase.affected[key] == to_step(exact.affected[key], step_from(1 / crowd.measured))
        assert ("attack" in phase.forgetting) == (not 0 < crowd.matched < 10)


@given(st.integers(1, 10**6), values, values)
def test_no_user_moves_a_mean_by_more_than_a_step(users, mean, own):
    step, moved = step_from(1 / users), mean + (own - mean) / users
    assert abs(to_step(mean, step) - to_step(moved, step)) <= step + 1e-9


@given(st.lists(st.integers(1, 3000), min_size=10, max_size=60), st.data(), st.integers(2, 10))
def test_enough_users_have_as_many_interactions(histories, data, group):
    """However many a user deletes, at least `min_group` users could have deleted as many as are shown."""
    user = data.draw(st.sampled_from(histories))
    deleted, usual = data.draw(st.integers(1, user)), sorted(histories, reverse=True)[group - 1]
    shown = Discretion(group, ONE._replace(usual=usual)).forgotten(Forgotten("file", deleted, 1, deleted, {}))
    least = max((n for n in map(coarse, range(shown.interactions)) if n < shown.interactions), default=0) + 1
    assert sum(own >= least for own in histories) >= group


@given(st.integers(1, 10**9))
def test_counts_are_1_2_5_10_and_so_on(count):
    shown = coarse(count)
    assert count <= shown < 2.5 * count + 1
    assert str(shown).rstrip("0") in {"1", "2", "5"}
    assert coarse(shown) == shown


def test_steps():
    found = [step_from(x) for x in (1.0, 0.1, 0.11, 1 / 943, 1 / 3, 7.0, 0.5)]
    assert found == [1, 0.1, 0.2, 0.002, 0.5, 10, 0.5]
    assert (coarse(0), coarse(3), coarse(20), coarse(21)) == (0, 5, 20, 50)
    assert (blunt(0.12345), blunt(1234), blunt(7)) == (0.12, 1200, 7)
    assert math.isnan(to_step(math.nan, 0.1))


@given(results())
def test_with_a_minimum_of_one_nothing_changes(result):
    assert Discretion(1, ONE).shown(result) is result
    assert Discretion(10, ONE, made_up=True).shown(result) is result


def test_a_measure_discloses_figures_of_a_known_group():
    with pytest.raises(ValueError, match="compared, matched"):
        measure("own", title="", meaning="", good="", discloses="everyone")(lambda view: {})


MANY = ONE._replace(users=40, compared=40, matched=40, measured=40)
SMALL_PART = {"low": {"recall@20": 0.31234, "users": 7}, "high": {"recall@20": 0.51234, "users": 300}}
LARGE_PART = {"edge": {"recall@20": 0.5, "users": 90}}


@pytest.mark.parametrize(("crowd", "phase", "shown"), [
    # A grouping with a small part is left out as a whole.
    (MANY, {"groups": {"own": SMALL_PART, "core_edge": LARGE_PART}}, {"groups": {"core_edge": LARGE_PART}}),
    # Means over all users have a decimal if one user is lost in it.
    (ONE, {"metrics": {"ndcg@20": 0.26789}}, {"metrics": {"ndcg@20": 0.3}}),
    (ONE._replace(tested=99), {"metrics": {"ndcg@20": 0.26789}}, {"metrics": {}}),
    # The original that a phase started from is held back as well.
    (ONE, {"before": PhaseResult(affected={"ndcg@20": 0.12345}, forgetting={"demotion_rate": 0.61})},
     {"before": PhaseResult(forgetting={"demotion_rate": 0.5})}),
])  # fmt: skip
def test_a_phase_shows_no_figure_of_few_users(crowd, phase, shown):
    found = Discretion(10, crowd).phase(PhaseResult(**phase))
    assert {key: getattr(found, key) for key in shown} == shown


def test_a_histogram_is_of_very_many_users():
    phase = PhaseResult(distribution=Distribution([0.123, 1.0, 2.0], [4321, 12345]))
    crowd = ONE._replace(users=999, compared=999, matched=999, measured=300)
    assert Discretion(10, crowd).phase(phase).distribution is None
    shown = Discretion(10, crowd._replace(users=1000, compared=1000)).phase(phase).distribution
    assert shown == Distribution([0.12, 1.0, 2.0], [4320, 12340])


def test_the_placebo_has_no_attack_where_the_phases_have_none():
    placebo = Placebo(0.512, {"attack": 0.112, "ks": 0.212}, {"attack": 0.1, "ks": 0.0})
    result = RunResult(phases={"original": PhaseResult()}, placebo=placebo)
    assert Discretion(10, MANY).shown(result).placebo.mark == {"attack": 0.1, "ks": 0.2}
    hidden = Discretion(10, MANY._replace(matched=9)).shown(result).placebo
    assert (hidden.demotion_rate, hidden.mark, hidden.memory) == (0.5, {"ks": 0.2}, {"ks": 0.0})
