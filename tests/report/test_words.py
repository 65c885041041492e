"""What a report says in words: what was done, what to do, certificates, gains and losses, and the command."""

import json
import os
import re
import shlex

import pytest

from recbole_unlearn.cli import parse
from recbole_unlearn.registry import METHODS
from recbole_unlearn.report import (
    PROGRAM,
    certificates,
    damage,
    figures,
    noise,
    opening,
    page,
    values,
    write_comparison,
    write_report,
)
from recbole_unlearn.report.account import account
from recbole_unlearn.report.advice import advice
from recbole_unlearn.report.command import command
from recbole_unlearn.results import PhaseResult, RunResult, Verdict
from recbole_unlearn.settings import UnlearnConfig, names
from tests.report.test_report import Reader, light, sample, without_retraining  # noqa: F401

DATE = "2026-11-17T19:24:51+02:00"


def read(tree, date=None):
    """The result of a file; the date as result.json is going to have it."""
    result = RunResult.from_json(tree)
    if date is not None:
        object.__setattr__(result, "date", date)
    return result


def changed(**changes):
    return RunResult.from_json(sample() | changes)


def few():
    """A request of three users, as it is saved."""
    tree = without_retraining()
    for phase in tree["phases"].values():
        for key in ("affected", "unaffected", "masked", "groups", "distribution"):
            phase.pop(key)
        phase["forgetting"] = {"demotion_rate": 0.5}
    why = "Fewer than 10 users have a deleted interaction (min_group=10; --min_group=1 shows all)."
    tree |= {"forget": {"source": "file", "interactions": 1, "users": 1, "items": 1}}
    return tree | {
        "withheld": {"min_group": 10, "why": why},
        "certificates": {},
        "curves": {},
        "difficulty": {},
    }


# ---- the headline and the first paragraph


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One (a 1; b 2); two; 3% is three.", ["One (a 1; b 2).", "Two.", "3% is three."]),
        ("Looks so: x; provisional: it rests. Only y.", ["Looks so: x.", "Provisional: it rests. Only y."]),
        ("No stop", ["No stop."]),
        ("", ["."]),
    ],
)
def test_a_verdict_is_whole_sentences(text, parts):
    assert opening.sentences(text) == parts


def test_the_first_paragraph_says_what_was_done():
    text = account(RunResult.from_json(sample())).replace("\N{NO-BREAK SPACE}", " ")
    assert text == (
        "A LightGCN model of the dataset ml-100k was to forget 7,191 interactions of 188 users and 756 items. "
        "The original was trained in 27.1 s. The method obliviate changed it in 1.5 s. The result is compared with "
        "two models retrained from scratch without them (43.7 s and 44.2 s) and fine_tune (6.3 s)."
    )


def test_one_is_singular_and_small_requests_are_rough(tmp_path, light):  # noqa: F811
    text = account(RunResult.from_json(few()))
    assert "up to 1 interaction of 1 user and up to 1 item, given from a file of requests." in text
    page_text = Reader(write_report(RunResult.from_json(few()), tmp_path)).text
    assert not re.search(r"\b1 (users|items|interactions|rows|steps)\b", page_text)
    assert "The verdict is from the figures themselves." in page_text


def test_noise_is_named_at_the_top_and_a_request_is_not(tmp_path, light):  # noqa: F811
    result = changed(settings={"inject_users": 0.2, "inject_amount": 0.8})
    assert "added to 20% of the users, to each 80% of what they have in training" in noise(result)
    text = Reader(write_report(result, tmp_path)).text
    assert text.index("Artificial noise:") < text.index("NDCG@20 recovered")
    assert noise(changed(forget={"source": "file", "interactions": 3})) is None


def test_a_request_of_held_out_interactions_only_changes_nothing():
    text = account(changed(forget={"source": "file", "interactions": 0, "users": 0, "items": 0}))
    assert "was to forget interactions that it was not trained on." in text
    assert "So obliviate had nothing to change." in text


def test_an_exact_method_is_said_to_be_exact():
    result = changed(method="retrain", verdict={"level": "near", "text": "Near."})
    del result.phases["retrained_2"]
    assert "The method retrain trained a new model without these interactions in" in account(result)
    assert "retrained from scratch" not in account(result)


def test_the_date_is_at_the_top_and_need_not_be_there(tmp_path, light):  # noqa: F811
    path = write_report(read(sample(), DATE), tmp_path)
    assert "seed 2020 · 17 November 2026, 17:24 UTC\n" in Reader(path).text
    assert "Run on 17 November 2026" in Reader(path).text
    for strange in (None, "yesterday", "0001-01-01T00:00:00+09:00", 7):
        assert "Run on" not in Reader(write_report(read(sample(), strange), tmp_path)).text


# ---- advice


@pytest.mark.parametrize("trainer", METHODS.all(), ids=lambda trainer: trainer.name)
def test_a_method_names_settings_of_its_own(trainer):
    for way in [*trainer.forgets_more, *trainer.forgets_less]:
        assert re.match(r"(raise|lower|set) ", way)
        assert set(re.findall(r"\w+_\w+|rank", way)) <= set(names(trainer.Settings))
    assert bool(trainer.forgets_more) == bool(trainer.forgets_less)


def test_too_little_says_which_setting_to_raise_and_that_retraining_is_exact():
    result = changed(method="finetune", settings={"finetune_epochs": 1, "finetune_learning_rate": 0.01})
    text = " ".join(advice(result, {"rrl": "near", "scif": "over"}).points)
    assert "raise finetune_epochs (now 1) or raise finetune_learning_rate (now 0.01)" in text
    assert "--unlearn=retrain, which is exact" in text
    assert "it took 43.7" in text
    assert "In this run, rrl came near the retrained model." in text


def test_too_much_says_which_setting_to_lower():
    result = changed(method="finetune", verdict={"level": "over", "text": "Over."}, settings={})
    assert "forget less, lower finetune_epochs or lower" in " ".join(advice(result, {}).points)


def test_what_sequences_refuse_is_not_recommended_for_them():
    verdict = {"level": "under", "text": "Under."}
    for model, said in (("BPR", True), ("SASRec", False)):
        text = " ".join(advice(changed(method="obliviate", model=model, verdict=verdict), {}).points)
        assert "raise lua_limit" in text
        assert ("forget_kind" in text) is said


@pytest.mark.parametrize(
    ("method", "words"), [("retrain", "is exact: what differs is chance"), ("sisa", "is an ensemble")]
)
def test_methods_for_which_turning_settings_is_no_answer(method, words):
    assert words in advice(changed(method=method), {}).points[0]


def test_cannot_tell_says_how_to_be_able_to_tell():
    verdict = {"level": "cannot_tell", "text": "Alike."}
    own = advice(changed(verdict=verdict, forget={"source": "file", "interactions": 2}), {})
    assert "larger request" in " ".join(own.points)
    assert "--forget=injected" in " ".join(own.points)
    assert "--forget=injected" not in " ".join(advice(changed(verdict=verdict), {}).points)


def test_unknown_asks_for_retraining_and_near_for_nothing():
    assert "--compare=retrain" in advice(RunResult.from_json(without_retraining()), {}).after[0]
    assert advice(changed(verdict={"level": "near", "text": "Near."}), {}) is None


def test_a_provisional_under_has_both():
    looks = {"looks": "under", "rests_on": "a ranker", "expected": 0.9, "users": 30}
    tree = without_retraining() | {"verdict": {"level": "unknown", "text": "Looks.", "provisional": looks}}
    after = " ".join(advice(RunResult.from_json(tree), {}).after)
    assert "--compare=retrain" in after
    assert "To make obliviate forget more" in after


# ---- the methods beside each other


def test_every_compared_method_has_its_verdict(tmp_path, light):  # noqa: F811
    result = RunResult.from_json(sample())
    phase = result.phases["fine_tune"]
    for key, value in {
        "verdict": Verdict("over", "x"),
        "recovered": {"ndcg@20": 0.5},
        "speedup": 0.04,
    }.items():
        object.__setattr__(phase, key, value)
    text = Reader(write_report(result, tmp_path)).text.split("The methods beside retraining")[1]
    assert "obliviate (unlearned)\nnot fully forgotten\n96%\n−0.130\n+0.080\n" in text
    assert "fine_tune\nforgotten too well\n50%\n−0.539\n+0.250\n" in text
    assert "0.04×" in text


def test_a_run_without_compared_methods_has_no_such_table(tmp_path, light):  # noqa: F811
    result = RunResult.from_json(sample())
    del result.phases["fine_tune"]
    assert "The methods beside" not in Reader(write_report(result, tmp_path)).text


def test_the_comparison_has_dates_levels_and_distances(tmp_path, light, monkeypatch):  # noqa: F811
    tree = sample()
    (tmp_path / "result.json").write_text(json.dumps(tree))
    monkeypatch.setattr("recbole_unlearn.report.comparison.read_result", lambda path: read(tree, DATE))
    text = Reader(write_comparison([tmp_path], tmp_path / "comparison.html")).text
    assert "1 run: 2 methods, 1 dataset, 1 model · 17 November 2026, 17:24 UTC\n" in text
    own = text.split("obliviate\n")[1]
    assert own.startswith("not fully forgotten\n")
    assert "+0.080\nis 0.610\n" in own
    assert "nobody asked to have them forgotten" in text


# ---- gains and losses


def grouped(before, after, retrained=None, users=(300, 300)):
    def phase(recalls):
        parts = dict(zip(("low", "high"), recalls, strict=True))
        groups = {
            "user_activity": {
                k: {"recall@20": v, "users": n} for (k, v), n in zip(parts.items(), users, strict=True)
            }
        }
        return PhaseResult(groups=groups)

    found = {"original": phase(before), "unlearned": phase(after)}
    return found | ({} if retrained is None else {"retrained": phase(retrained)})


def test_gains_are_named_as_well_as_losses():
    text = damage.gains_and_losses(grouped((0.1, 0.2), (0.15, 0.17), (0.1, 0.2)), "user_activity")
    assert "Better than with the original: the least active users (+0.050)." in text
    assert "Worse: the most active users (−0.030)." in text
    assert "Farthest from the retrained model: the least active users (+0.050)." in text
    only = damage.gains_and_losses(grouped((0.1, 0.2), (0.15, 0.2)), "user_activity")
    assert "Better" in only
    assert "Worse" not in only
    assert (
        damage.gains_and_losses(grouped((0.1, 0.2), (0.1, 0.2)), "user_activity")
        == "No group gains or loses."
    )


@pytest.mark.parametrize(
    ("users", "after", "is_small"),
    [(31, (0.1, 0.2), False), (30, (0.1, 0.2), True), (30, (0.1, 0.15), False), (30, (0.1, 0.185), True)],
    ids=["enough", "too small", "small but harmful", "small change"],
)
def test_a_small_request_hides_gains_and_losses_unless_there_is_harm(users, after, is_small):
    phases = grouped((0.1, 0.2), after, (0.1, 0.2))
    result = RunResult("BPR", "d", "m", 1, {}, changed(forget={"users": users}).forget, phases)
    assert damage.is_small(result, phases) is is_small
    assert bool(damage.damage(result, phases)) is not is_small


# ---- axes


def test_axes_of_shares_start_at_zero_and_others_have_a_least_span():
    phases = RunResult.from_json(sample()).phases
    assert figures.by_k(phases, "ndcg")["layout"]["yaxis"]["rangemode"] == "tozero"
    flat = {"unlearned": {"demotion": [(0, 0.90), (9, 0.91)], "own": [(0, -5.00), (9, -5.01)]}}
    assert figures.curve(flat, "demotion", "y", is_share=True)["layout"]["yaxis"]["range"][0] == 0
    low, high = figures.curve(flat, "own", "y")["layout"]["yaxis"]["range"]
    assert high - low >= 2.5
    tiny = figures.damage(grouped((0.1, 0.2), (0.101, 0.2)), "user_activity")
    assert tiny["layout"]["yaxis"]["range"] == [-figures.LEAST_CHANGE, figures.LEAST_CHANGE]
    shades = figures.heat(["a", "b"], ["c"], [[1.0, 1.001]], "x", "y", ".3f")["data"][0]
    assert shades["zmax"] - shades["zmin"] == pytest.approx(0.1, abs=0.01)


def test_points_have_room_and_are_whole_at_zero():
    points = [figures.Point("m", 0.0, 0.20), figures.Point("m", 0.01, 0.21)]
    figure = figures.trade_off(points, figures.looks(["m"]), "x", "y")
    for axis in ("xaxis", "yaxis"):
        low, high = figure["layout"][axis]["range"]
        assert low >= 0
        assert high - low >= figures.LEAST_SHARE - 1e-9
    assert figure["data"][0]["cliponaxis"] is False


def test_one_point_is_no_curve():
    assert figures.curve({"unlearned": {"loss": [(1, 0.2)]}}, "loss", "y") is None


# ---- certificates


SAID = {
    "exact": (True, "exact"),
    "curvature": ("Adam's state of epoch 5", "Adam's state of epoch 5"),
    "energy": ({"t": 0.735}, "74% in t"),
    "lua_scale": (0.05, "0.05"),
    "lac": ({"first": 0.67, "last": 0.63, "steps": 1}, "1 step; its objective, which should fall, went from 0.67 to"),
    "rows": ({"t": 188, "t, following": 7}, "188 of t. Others were moved by their neighbours alone, and not calib"),
    "rank": ({"t": 32, "u": 32}, "32 directions"),
    "drift": (312.5, "312.5, and is proven not to exceed 400"),
    "drift_bound": (400.0, None),
    "margin": ({"loss": 2.4, "bound": -2.3, "mean": -2.1, "pairs": 1}, "1 deleted pair, a deleted item scores 2.1"),
    "retained": ({"largest": 1.7, "mean": 0.058, "pairs": 8200}, "moved by 0.058 on average, and by 1.7 at most"),
    "level": (0.86, "demotion rate of 0.86"),
    "shards": (4, "1 of 4 shards held a deleted interaction and was trained again without it; no other"),
    "restarted": (1, None),
    "shard_seconds": ({"1": 2.0}, "took 2.0"),
    "rule_seconds": (0.5, "0.5"),
    "solver": ({"steps": 98, "residual": 0.1, "negative_curvature": True, "damping": 0.2}, "98 steps with a damping"),
    "capped": (2, "2 rows"),
    "norm": (12.4, "12.4"),
    "spillover": (0.3, "0.3 times"),
    "steps": (1, "1 step was taken"),
    "retained_loss": ({"first": 0.1, "last": 0.2}, "from 0.1 to 0.2"),
    "objective": ({"first": 0.2, "last": 0.1}, "from 0.2 to 0.1"),
}  # fmt: skip


def test_every_certificate_that_is_known_has_a_sentence():
    assert SAID.keys() == certificates._SENTENCES.keys()
    said, left = certificates.in_words({key: value for key, (value, _) in SAID.items()})
    assert left == {}
    expected = [words for _, words in SAID.values() if words is not None]
    assert len(said) == len(expected)
    for sentence, words in zip(said, expected, strict=True):
        assert words in sentence.replace("\N{NO-BREAK SPACE}", " ")
        assert sentence.endswith(".")


@pytest.mark.parametrize("strange", [[], {}, "text", {"a": "b"}, [1], {"a": None}, False], ids=str)
def test_a_certificate_of_another_shape_stays_in_the_table(strange):
    said, left = certificates.in_words(dict.fromkeys([*SAID, "new_one"], strange))
    assert left["new_one"] == strange
    assert all(isinstance(sentence, str) for sentence in said)


def test_certificates_are_sentences_on_the_page_and_others_a_table(tmp_path, light):  # noqa: F811
    text = Reader(write_report(changed(certificates={"lua_scale": 0.05, "proof": "yes"}), tmp_path)).text
    assert "The first step was scaled by 0.05 (lua_scale).\n" in text
    assert "Others.\nproof\nyes\n" in text


# ---- the command


def test_the_command_repeats_the_run():
    settings = {
        "epochs": 5, "learning_rate": 1e-05, "topk": [5, 20], "inject_users": 0.1, "forget_kind": "noise",
        "lac_horizon": 40, "val_interval": {"rating": "[4,inf)"}, "lua_shared": False, "rank": "full",
    }  # fmt: skip
    own = UnlearnConfig("BPR", "ml-100k", config_dict=settings | {"unlearn": "obliviate"})
    written = {**own.final_config_dict, **own.method_values("obliviate")}
    tree = sample(model="BPR") | {
        "settings": {
            k: v if isinstance(v, (int, float, list, dict, type(None))) else str(v)
            for k, v in written.items()
        }
    }
    line = command(RunResult.from_json(tree))
    words = shlex.split(line)
    assert words[:3] == list(PROGRAM)
    given = parse(words[3:])
    fixed = {
        "model": "BPR",
        "dataset": "ml-100k",
        "unlearn": "obliviate",
        "compare": "retrain,retrain,fine_tune",
    }
    assert given.items() >= (fixed | {"seed": 2020}).items()
    again = UnlearnConfig(
        "BPR", "ml-100k", config_dict={k: v for k, v in given.items() if k in {*settings, "unlearn"}}
    )
    for key in settings:
        assert (again.final_config_dict | again.method_values("obliviate"))[key] == written[key], key
    assert set(given) - set(fixed) - {"seed"} <= set(settings)  # nothing that is the default anyway


def test_places_are_stood_in_for(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    tree = sample(model="BPR") | {
        "forget": {"source": "file"},
        "settings": {"min_group": 1, "learning_rate": 7.0, "mine": "/home/jane"},
    }
    tree["phases"]["original"]["seconds"] = None
    line = command(RunResult.from_json(tree))
    assert "--checkpoint=FILE" in line
    assert "--forget=FILE" in line
    assert "--min_group=1" in line
    for absent in ("--model", "--seed", "--learning_rate", "jane"):
        assert absent not in line
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"  # looking up defaults takes no device


def test_a_strange_result_cannot_write_a_command_of_its_own():
    evil = "'; rm -rf ~ #"
    line = command(
        changed(
            model=evil, dataset=evil, method=evil, seed=evil, settings={evil: evil, "epochs": "2001-99-99"}
        )
    )
    words = shlex.split(line)
    assert words[3] == f"--model=PACKAGE.MODULE:{evil}"
    assert f"--{evil}={evil}" in words
    assert all(word.startswith("--") for word in words[3:])
    assert command(changed(model=None)) is None


def test_retraining_alone_is_not_compared_with_itself():
    result = changed(method="retrain")
    result.phases["unlearned"] = result.phases["retrained"]
    del result.phases["retrained_2"], result.phases["fine_tune"]
    assert "--compare" not in command(result)


# ---- numbers and looks


def test_zeros_have_no_sign_and_small_factors_are_not_zero():
    assert values.percent(-0.001) == "0%"
    assert values.decimal(-0.0001) == values.signed(-0.0001) == values.signed(0.0) == "0.000"
    assert values.times(0.04) == "0.04×"
    assert [values.counted(n, "user") for n in (0, 1, 7191)] == ["0 users", "1 user", "7,191 users"]
    assert values.listed(["a", "b", "c"]) == "a, b and c"


def contrast(first, second):
    """The ratio of WCAG 2 of two colours such as #1c2127."""

    def light_of(color):
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((light_of(first), light_of(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_in_light_and_dark():
    light_style, dark_style = page._STYLE.split("prefers-color-scheme: dark", 1)
    for style in (light_style, dark_style.split("* {")[0]):
        colors = dict(re.findall(r"--(\w+): (#\w{6})", style))
        for ground in ("paper", "panel"):
            for ink in ("ink", "quiet", "near", "under", "over", "unknown"):
                assert contrast(colors[ink], colors[ground]) >= 4.5, (ink, ground)
        for look in [*figures._FIXED.values(), *figures._METHODS]:
            assert contrast(look.color, colors["paper"]) >= 3
