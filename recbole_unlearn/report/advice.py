"""What to do about a verdict: which setting to turn, what to measure, or that retraining is exact.

Which settings make a method forget more, the method says itself (`UnlearnTrainer.forgets_more`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from recbole_unlearn.methods import UnlearnTrainer
from recbole_unlearn.report.account import is_injected, trainer
from recbole_unlearn.report.values import duration, listed, plain
from recbole_unlearn.results import RETRAINED, RunResult
from recbole_unlearn.settings import SEQUENTIAL, names, properties_dir

_TITLES = {
    "under": "It forgets too little. What to do",
    "over": "It forgets too much. What to do",
    "cannot_tell": "These figures cannot tell. What to do",
    "unknown": "No retrained model in this run. So this page cannot say",
}
_CLAIMS = (
    "that the model behaves like one that never saw the deleted interactions",
    "how much of retraining's effect was recovered, and how much faster that was",
    "whether the demotion rate and the attack are where they should be: both have the retrained model's value as "
    "their goal, not 1 and not 0.5",
)
_COMPARE = "Run it again with --compare=retrain to have these measured."


class Advice(NamedTuple):
    """A heading, points below it, and what else there is to say."""

    title: str
    points: Sequence[str]
    after: Sequence[str] = ()


def advice(result: RunResult, levels: dict[str, str]) -> Advice | None:
    """What to do about the verdict; None where nothing has to be done.

    ``levels`` are those of the methods it was compared with.
    """
    level = "unknown" if result.verdict is None else result.verdict.level
    provisional = None if result.verdict is None else result.verdict.provisional
    if level in ("under", "over"):
        return Advice(_TITLES[level], [*_turn(result, level), *_others(levels), *_retrain(result)])
    if level == "cannot_tell":
        return Advice(_TITLES[level], [*_tell(result), *_retrain(result)])
    if level != "unknown" or result.certificates.get("exact") is True:
        return None
    if RETRAINED in result.phases:
        return Advice(_TITLES["cannot_tell"], [*_tell(result), *_retrain(result)])
    after = [_COMPARE]
    if provisional is not None and provisional.looks in ("under", "over"):
        after += [*_turn(result, provisional.looks), *_retrain(result)]
    return Advice(_TITLES["unknown"], _CLAIMS, after)


def _turn(result: RunResult, level: str) -> list[str]:
    """Settings to turn so that the method forgets more (under) or less (over)."""
    method = trainer(result.method)
    if method is not None and method.exact:
        return [
            f"{method.name} is exact: what differs is chance, as between any two trainings. "
            "--compare=retrain,retrain measures how much of it there is."
        ]
    if method is not None and method.own_original:
        return [
            f"{method.name} trained again what had seen these interactions. It is an ensemble, which may rank "
            "otherwise than one retrained model even where nothing is left; these figures cannot tell the two apart."
        ]
    first = (
        "Do not count these interactions as forgotten yet."
        if level == "under"
        else "Deleted items that rank lower than they would by themselves show an attacker which ones they were."
    )
    return [first, *(_settings(method, result, level) if method is not None else [])]


def _settings(method: type[UnlearnTrainer], result: RunResult, level: str) -> list[str]:
    more, ways = ("more", method.forgets_more) if level == "under" else ("less", method.forgets_less)
    if result.model in SEQUENTIAL:
        ways = [way for way in ways if not set(method.of_pairs) & set(re.findall(r"\w+", way))]
    if not ways:
        return [f"{method.name} has no setting that makes it forget {more}: try another method."]
    turned = listed([_with_value(way, method, result) for way in ways], "or")
    points = [
        f"To make {method.name} forget {more}, {turned}. Turn one at a time, and run with --compare=retrain again."
    ]
    if (properties_dir() / "tune" / f"{method.name}.yaml").is_file():
        points.append(
            f"Or let a sweep choose: --tune tries settings of {method.name} on validation interactions."
        )
    return points


def _with_value(way: str, method: type[UnlearnTrainer], result: RunResult) -> str:
    """Raise finetune_epochs (now 1)."""
    known = {
        key: result.settings[key] for key in names(method.Settings) if result.settings.get(key) is not None
    }
    now = [plain(value) for key, value in known.items() if key in re.findall(r"\w+", way)]
    return f"{way} (now {listed(now)})" if now else way


def _others(levels: dict[str, str]) -> list[str]:
    near = [name for name, level in levels.items() if level == "near"]
    return [f"In this run, {listed(near)} came near the retrained model."] if near else []


def _retrain(result: RunResult) -> list[str]:
    """That retraining is exact, and what it cost here."""
    method = trainer(result.method)
    if method is not None and method.exact:
        return []
    phase = result.phases.get(RETRAINED)
    took = f"; it took {duration(phase.seconds)} here" if phase and phase.seconds is not None else ""
    return [f"Or use --unlearn=retrain, which is exact: it trains again without these interactions{took}."]


def _tell(result: RunResult) -> list[str]:
    """How to be able to tell."""
    points = [
        "By these figures, a model that did nothing would pass as well: the original ranks the deleted items as a "
        "model does that never saw them.",
        "Measure a larger request: more users, or more interactions of each, in one file, with --compare=retrain.",
    ]
    if not is_injected(result) and result.method and result.model and result.dataset:
        points.append(
            f"To see whether {result.method} works on this model and data, run --model={result.model} "
            f"--dataset={result.dataset} --unlearn={result.method} --forget=injected --compare=retrain, which trains "
            "a model on noise that it has to forget."
        )
    return points
