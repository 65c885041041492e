"""Certificates in words: what a method can say of its result without retraining, a sentence each.

A certificate that has no sentence here, or has another shape than its sentence expects, stays as it is, in a table.
docs/method.md and docs/result-json.md say what each of them is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recbole_unlearn.report.values import count, counted, duration, listed, percent, plain
from recbole_unlearn.results import number, numbers

_FOLLOWING = ", following"  # the end of a table's name, of rows that only follow their neighbours
Sentence = Callable[[Any, Mapping[str, Any]], str | None]  # of a certificate, and of all of them


def in_words(certificates: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """A sentence for each certificate that has one, and what is left."""
    sentences, left = [], {}
    for key, value in certificates.items():
        said = _SENTENCES[key](value, certificates) if key in _SENTENCES else None
        if said is None:
            left[key] = value
        elif said:
            sentences.append(said)
    return sentences, left


def _exact(value: Any, _: Mapping[str, Any]) -> str | None:
    if value is not True:
        return None
    return "The model is a formula of its data and was computed again from the retained interactions: exact."


def _curvature(value: Any, _: Mapping[str, Any]) -> str | None:
    if not isinstance(value, str):
        return "" if value is None else None
    return f"How firmly each weight was learned was read from {value}."


def _energy(value: Any, _: Mapping[str, Any]) -> str | None:
    parts = numbers(value) if isinstance(value, Mapping) else {}
    if number(value) is not None:
        return f"Of the first step, {percent(value)} was kept when it was compressed to its rank."
    if not parts:
        return None
    kept = listed([f"{percent(share)} in {name}" for name, share in parts.items()])
    return f"Of the first step, this much was kept when it was compressed to its rank: {kept}."


def _scale(value: Any, _: Mapping[str, Any]) -> str | None:
    return None if number(value) is None else f"The first step was scaled by {plain(value)} (lua_scale)."


def _lac(value: Any, _: Mapping[str, Any]) -> str | None:
    if value == {}:
        return "The calibration had no step to take."
    way = _way(value)
    steps = numbers(value).get("steps")
    if way is None or steps is None:
        return None
    return f"The calibration took {counted(steps, 'step')}; its objective, which should fall, went {way}."


def _way(value: Any) -> str | None:
    """From 0.67 to 0.63, of a mapping with both ends."""
    ends = numbers(value)
    if not {"first", "last"} <= ends.keys():
        return None
    return f"from {plain(ends['first'])} to {plain(ends['last'])}"


def _rows(value: Any, _: Mapping[str, Any]) -> str | None:
    if number(value) is not None:
        return f"{counted(value, 'row')} of users {'was' if value == 1 else 'were'} changed."
    parts = numbers(value)
    if not parts or len(parts) != len(value):
        return None
    sides = {"user": "users", "item": "items"}
    own = [
        f"{count(n)} of {sides.get(name, name)}" for name, n in parts.items() if not name.endswith(_FOLLOWING)
    ]
    rest = [
        f"{count(n)} of {name.removesuffix(_FOLLOWING)}"
        for name, n in parts.items()
        if name.endswith(_FOLLOWING)
    ]
    also = (
        f" Others were moved by their neighbours alone, and not calibrated: {listed(rest)}." if rest else ""
    )
    return f"Rows that were changed: {listed(own)}.{also}" if own else None


def _rank(value: Any, _: Mapping[str, Any]) -> str | None:
    if not isinstance(value, Mapping) or not value:
        return None
    parts = {str(n) for n in numbers(value).values()}
    if len(parts) == 1:
        return f"Every changed row may move in {counted(float(parts.pop()), 'direction')} (its rank)."
    ranks = listed([f"{plain(rank)} in {table}" for table, rank in value.items()])
    return f"Directions a changed row may move in (its rank): {ranks}."


def _drift(value: Any, every: Mapping[str, Any]) -> str | None:
    if number(value) is None:
        return None
    bound = number(every.get("drift_bound"))
    proven = "" if bound is None else f", and is proven not to exceed {plain(bound)}"
    return f"The squared length of the whole change of the weights is {plain(value)}{proven}."


def _drift_bound(value: Any, every: Mapping[str, Any]) -> str | None:
    return (
        "" if None not in (number(value), number(every.get("drift"))) else None
    )  # it is said with the drift


def _margin(value: Any, _: Mapping[str, Any]) -> str | None:
    if value == {}:
        return ""
    found = numbers(value)
    if not {"mean", "bound", "pairs"} <= found.keys():
        return None
    mean, bound = found["mean"], found["bound"]
    return (
        f"Over {counted(found['pairs'], 'deleted pair')}, a deleted item scores {plain(abs(mean))} "
        f"{'below' if mean >= 0 else 'above'} an item drawn at random, on average; its loss proves that this is at "
        f"{'least' if bound >= 0 else 'most'} {plain(abs(bound))} {'below' if bound >= 0 else 'above'}."
    )


def _retained(value: Any, _: Mapping[str, Any]) -> str | None:
    found = numbers(value)
    if not {"mean", "largest", "pairs"} <= found.keys():
        return None
    return (
        f"Scores of {counted(found['pairs'], 'retained pair')} moved by {plain(found['mean'])} on average, and by "
        f"{plain(found['largest'])} at most."
    )


def _level(value: Any, _: Mapping[str, Any]) -> str | None:
    if number(value) is None:
        return None
    return f"A model that never saw the deleted interactions is expected to have a demotion rate of {plain(value)}."


def _shards(value: Any, every: Mapping[str, Any]) -> str | None:
    if number(value) is None:
        return None
    restarted = number(every.get("restarted"))
    if restarted is None:
        return f"The model is made of {counted(value, 'shard')}, each trained on a part of the data."
    others = "; no other shard has seen one" if restarted < value else ""
    return (
        f"{count(restarted)} of {counted(value, 'shard')} held a deleted interaction and {_was(restarted)} trained "
        f"again without it{others}."
    )


def _restarted(value: Any, every: Mapping[str, Any]) -> str | None:
    return (
        "" if None not in (number(value), number(every.get("shards"))) else None
    )  # it is said with the shards


def _was(amount: float) -> str:
    return "was" if amount == 1 else "were"


def _shard_seconds(value: Any, _: Mapping[str, Any]) -> str | None:
    spent = list(numbers(value).values())
    if not spent:
        return "" if value == {} else None
    if len(spent) == 1:
        return f"Training that shard again took {duration(spent[0])}."
    least, most, total = map(duration, (min(spent), max(spent), sum(spent)))
    return f"Training a shard again took {least} to {most}, {total} in all."


def _rule_seconds(value: Any, _: Mapping[str, Any]) -> str | None:
    return None if number(value) is None else f"Combining the shards took {duration(value)}."


def _solver(value: Any, _: Mapping[str, Any]) -> str | None:
    found = numbers(value)
    if not {"steps", "residual"} <= found.keys():
        return None
    damping = f" with a damping of {plain(found['damping'])}" if "damping" in found else ""
    curved = ""
    if value.get("negative_curvature") is True:
        curved = " It met a direction without a lowest point, and stopped there."
    return (
        f"The solver took {counted(found['steps'], 'step')}{damping} and left a relative error of "
        f"{plain(found['residual'])}.{curved}"
    )


def _capped(value: Any, _: Mapping[str, Any]) -> str | None:
    if number(value) is None:
        return None
    return f"The step of {counted(value, 'row')} was cut to its greatest length (scif_cap)."


def _norm(value: Any, _: Mapping[str, Any]) -> str | None:
    return None if number(value) is None else f"The step of all rows together has length {plain(value)}."


def _spillover(value: Any, _: Mapping[str, Any]) -> str | None:
    if number(value) is None:
        return None
    return (
        f"What the deleted interactions do to others through the graph is {plain(value)} times as large as what they "
        "do by themselves."
    )


def _steps(value: Any, _: Mapping[str, Any]) -> str | None:
    return None if number(value) is None else f"{counted(value, 'step')} {_was(value)} taken and kept."


def _retained_loss(value: Any, _: Mapping[str, Any]) -> str | None:
    way = _way(value)
    return None if way is None else f"The loss of retained interactions, which should not rise, went {way}."


def _objective(value: Any, _: Mapping[str, Any]) -> str | None:
    way = _way(value)
    return None if way is None else f"The objective, which should fall, went {way}."


_SENTENCES: dict[str, Sentence] = {
    "exact": _exact,
    "curvature": _curvature,
    "energy": _energy,
    "lua_scale": _scale,
    "lac": _lac,
    "rows": _rows,
    "rank": _rank,
    "drift": _drift,
    "drift_bound": _drift_bound,
    "margin": _margin,
    "retained": _retained,
    "level": _level,
    "shards": _shards,
    "restarted": _restarted,
    "shard_seconds": _shard_seconds,
    "rule_seconds": _rule_seconds,
    "solver": _solver,
    "capped": _capped,
    "norm": _norm,
    "spillover": _spillover,
    "steps": _steps,
    "retained_loss": _retained_loss,
    "objective": _objective,
}
