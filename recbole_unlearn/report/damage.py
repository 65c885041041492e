"""Who gains and who loses: changes of utility by how active users are and how popular items are."""

from __future__ import annotations

from recbole_unlearn.report import figures, page
from recbole_unlearn.report.columns import phase_of
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import listed, signed
from recbole_unlearn.results import ORIGINAL, RETRAINED, UNLEARNED, RunResult

_HARM = 0.02  # recall@20 that a group may lose beside retraining before a small request is looked at
_SEEN = 0.0005  # a change that is not 0.000 where it is written
_NAMED = {
    "user_activity": {
        "low": "the least active users",
        "middle": "users of middling activity",
        "high": "the most active users",
    },
    "item_popularity": {
        "tail": "the least popular items",
        "middle": "items of middling popularity",
        "head": "the most popular items",
    },
}


def damage(result: RunResult, phases: figures.Phases) -> Html:
    """The section; empty where the request is too small for that."""
    if is_small(result, phases):
        return Html("")
    caption = "Below zero is worse than the original. Where retraining moves as well, so should the unlearned model."
    drawn = (
        (
            figures.damage(phases, grouping),
            f"Change of recall@20 by {grouping.replace('_', ' ')}.",
            f"{gains_and_losses(phases, grouping)} {caption}",
        )
        for grouping in figures.GROUPINGS
    )
    return page.section("Who gains and who loses", page.drawings(*drawn))


def is_small(result: RunResult, phases: figures.Phases) -> bool:
    """Whether the request is too small for changes in thirds of all users to be its doing.

    With a tenth of a third, or fewer, they are what two trainings differ by; unless the method harms where retraining
    does not.
    """
    users = result.forget.users
    sizes = [
        part["users"]
        for part in phase_of(result, ORIGINAL).groups.get("user_activity", {}).values()
        if "users" in part
    ]
    if users is None or not sizes or 10 * users > min(sizes):
        return False
    worst = {name: _worst(phases, name) for name in (UNLEARNED, RETRAINED)}
    return worst[UNLEARNED] >= min(worst[RETRAINED], 0.0) - _HARM


def _worst(phases: figures.Phases, name: str) -> float:
    changes = [figures.changes(phases, name, grouping).values() for grouping in figures.GROUPINGS]
    return min((change for group in changes for change in group), default=0.0)


def gains_and_losses(phases: figures.Phases, grouping: str) -> str:
    """Who is better and who is worse off than with the original, and for whom retraining would be another matter."""
    names = _NAMED[grouping]
    own = figures.changes(phases, UNLEARNED, grouping)
    parts = []
    for words, chosen in (
        ("Better than with the original", {g: c for g, c in own.items() if c >= _SEEN}),
        ("Worse", {g: c for g, c in own.items() if c <= -_SEEN}),
    ):
        if chosen:
            who = [f"{names.get(group, group)} ({signed(change)})" for group, change in chosen.items()]
            parts.append(f"{words}: {listed(who)}.")
    if not parts:
        return "No group gains or loses." if own else ""
    goal = figures.changes(phases, RETRAINED, grouping)
    away = {group: own[group] - goal[group] for group in own if group in goal}
    if away:
        group = max(away, key=lambda key: abs(away[key]))
        parts.append(f"Farthest from the retrained model: {names.get(group, group)} ({signed(away[group])}).")
    return " ".join(parts)
