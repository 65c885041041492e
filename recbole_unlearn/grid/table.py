"""The figures of a grid's cells: the main ones for people, and all of them as a data frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from recbole_unlearn.console import drawn, wrapped
from recbole_unlearn.grid.plan import Cell
from recbole_unlearn.report import decimal, duration, percent, read_result, times
from recbole_unlearn.results import ORIGINAL, RETRAINED, UNLEARNED, PhaseResult, RunResult
from recbole_unlearn.results.frame import frame as frame_of
from recbole_unlearn.words import speed


def _figures(result: RunResult) -> list[str]:
    """The main figures of a cell's first method."""
    before, after, target = (
        result.phases.get(name, PhaseResult()) for name in (ORIGINAL, UNLEARNED, RETRAINED)
    )
    return [
        *(decimal(phase.affected.get("ndcg@20"), 4) for phase in (before, after, target)),
        percent((result.recovered or {}).get("ndcg@20")),
        *(decimal(phase.demotion_rate) for phase in (after, target)),
        duration(after.seconds),
        times(result.speedup),
    ]


def frame(cells: Sequence[Cell], directory: Path) -> pd.DataFrame:
    """The figures of finished cells, a row each, with the cell that they are of."""
    parts = []
    for cell in cells:
        result = read_result(directory / cell.name / "result.json")
        own = {
            "cell": cell.name, "model": cell.model, "dataset": cell.dataset, "ratio": cell.ratio, "seed": cell.seed,
            "method": result.method,
        }  # fmt: skip
        figures = frame_of(result)
        parts.append(pd.DataFrame(own, index=figures.index).join(figures))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def said(folder: Path) -> str:
    """One line about a cell that has been done."""
    result = read_result(folder / "result.json")
    before, after, target, _, demotion, goal, seconds, _ = _figures(result)
    faster = "" if result.speedup is None else f", {speed(result.speedup, '×')}"
    return (
        f"{result.method}, NDCG@20 of affected users {before} to {after} (retrained {target}), demotion rate "
        f"{demotion} (retrained {goal}), {seconds}{faster}."
    )


def table(cells: Sequence[Cell], failed: Mapping[str, str], directory: Path) -> str:
    """A row for each cell with the figures of its first method; below it, what failed and why."""
    head = [
        "cell",
        "method",
        "N@20 before",
        "after",
        "retrained",
        "recovered",
        "demotion",
        "retrained",
        "time",
        "speed-up",
    ]
    rows = []
    for cell in cells:
        done = cell.name not in failed
        figures = _figures(read_result(directory / cell.name / "result.json")) if done else ["failed"]
        rows.append([cell.name, cell.methods[0], *figures, *[""] * (len(head) - 2 - len(figures))])
    lines = ["N@20: NDCG@20 of affected users. All methods, with means over seeds: tables.md."]
    lines += [f"{name} failed: {why}" for name, why in failed.items()]
    return "\n".join([drawn(head, rows, left=2), *map(wrapped, lines)])
