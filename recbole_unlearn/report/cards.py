"""The key figures at the top of a report, a card each."""

from __future__ import annotations

from recbole_unlearn.report.account import is_few, roughly
from recbole_unlearn.report.columns import phase_of
from recbole_unlearn.report.entries import FigureOf, affected_ndcg
from recbole_unlearn.report.values import (
    MISSING,
    count,
    counted,
    decimal,
    difference,
    duration,
    percent,
    signed,
    times,
)
from recbole_unlearn.results import ORIGINAL, RETRAINED, SECOND, UNLEARNED, RunResult


def key_figures(result: RunResult) -> list[tuple[str, str, str]]:
    """What is known of: utility, demotion, attack, overlap, time, and interactions forgotten."""
    forget = result.forget
    entries = [
        _utility_figure(result),
        _rate_figure(result, "Demotion rate", lambda phase: phase.demotion_rate, 1 if is_few(result) else 3),
        _attack_figure(result),
        _overlap_figure(result),
        _time_figure(result),
        (
            f"Interactions{', ' + roughly(result).strip() if roughly(result) else ' forgotten'}",
            count(forget.interactions),
            "\n".join(
                f"{rough}{counted(amount, noun)}"
                for amount, noun, rough in (
                    (forget.users, "user", ""),
                    (forget.items, "item", roughly(result)),
                )
                if amount is not None
            ),
        ),
    ]
    return [entry for entry in entries if entry[1] != MISSING]


def _utility_figure(result: RunResult) -> tuple[str, str, str]:
    share = (result.recovered or {}).get("ndcg@20")
    if share is None:
        return _rate_figure(result, "NDCG@20, affected users", affected_ndcg)
    before, after, goal = (
        decimal(affected_ndcg(phase_of(result, name))) for name in (ORIGINAL, UNLEARNED, RETRAINED)
    )
    return "NDCG@20 recovered", percent(share), f"affected users\n{before} → {after}\nretrained {goal}"


def _rate_figure(result: RunResult, title: str, of: FigureOf, digits: int = 3) -> tuple[str, str, str]:
    """The unlearned model's value, beside those of the models it is between."""
    held = {name: of(phase_of(result, name)) for name in (RETRAINED, ORIGINAL)}
    beside = "\n".join(
        f"{'goal' if name == RETRAINED else name} {decimal(value, digits)}"
        for name, value in held.items()
        if value is not None
    )
    return title, decimal(of(result.unlearned), digits), beside


def _attack_figure(result: RunResult) -> tuple[str, str, str]:
    """How far the attacker's AUC is from where it should be; without a goal it would only mislead."""
    own, goal = (phase_of(result, name).figure("attack", "auc") for name in (UNLEARNED, RETRAINED))
    return "Attack AUC off by", signed(difference(own, goal)), f"is {decimal(own)}\ngoal {decimal(goal)}"


def _overlap_figure(result: RunResult) -> tuple[str, str, str]:
    shared, again = (phase_of(result, name).figure("overlap@20", "affected") for name in (UNLEARNED, SECOND))
    beside = "affected users\nwith retrained" + ("" if again is None else f"\nretrained 2: {percent(again)}")
    return "Top-20 overlap", percent(shared if result.retrained else None), beside


def _time_figure(result: RunResult) -> tuple[str, str, str]:
    fast, slow = (duration(phase_of(result, name).seconds) for name in (UNLEARNED, RETRAINED))
    if result.speedup is None:
        return "Time to forget", fast, ""
    return "Speed-up", times(result.speedup), f"{fast}\nretrained {slow}"
