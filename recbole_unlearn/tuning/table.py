"""The table a sweep ends with: the best of every trial, best first, with the models it is compared with."""

from __future__ import annotations

from typing import Any

from recbole_unlearn.text import MISSING, counted, decimal, drawn, wrapped
from recbole_unlearn.tuning.journal import FAILED, STOPPED
from recbole_unlearn.tuning.objective import Candidate, best

ROWS = 15  # trials that are shown


def plain(value: Any) -> str:
    """The value of a setting as a file has it, numbers to four digits that count."""
    return f"{value:z.4g}" if isinstance(value, float) else MISSING if value is None else str(value)


def table(result: dict[str, Any]) -> str:
    """`tune.json` as a table, with a line on what was best and one on each kind of failure."""
    keys = list(result["space"])
    steps = any(report["step"] is not None for record in result["trials"] for report in record["reports"])
    metric = result["objective"]["metric"]
    columns = [*keys, *(["steps"] if steps else [])]
    rows = [["original", *[""] * len(columns), *_cells(result["original"])]]
    if result["retrained"]:
        rows.append(["retrained", *[""] * len(columns), *_cells(result["retrained"])])
    trials = sorted(_best_of_trials(result), key=lambda pair: -pair[0]["score"])
    for candidate, record in trials[:ROWS]:
        name = f"trial {record['number']}" + ("*" if record["state"] == STOPPED else "")
        values = [plain(record["settings"].get(key)) for key in keys]
        rows.append([name, *values, *([str(candidate["step"])] if steps else []), *_cells(candidate)])
    head = ["", *columns, metric, "affected", "demotion", "score", "seconds"]
    lines = [drawn(head, rows)]
    if result["settings"]["tune_pareto"]:
        title = "The front, nearest to the target first; its settings are in front/:"
        lines += ["", title, _front(result, head, steps), ""]
    return "\n".join([*lines, *map(wrapped, _closing_lines(result, len(trials)))])


def _front(result: dict[str, Any], head: list[str], steps: bool) -> str:
    settings = {record["number"]: record["settings"] for record in result["trials"]}
    rows = [
        [
            f"{place:02d}.yaml",
            *(plain(settings[candidate["trial"]].get(key)) for key in result["space"]),
            *([str(candidate["step"])] if steps else []),
            *_cells(candidate),
        ]
        for place, candidate in enumerate(result["front"], 1)
    ]
    return drawn(head, rows)


def _best_of_trials(result: dict[str, Any]) -> list[tuple[Candidate, dict[str, Any]]]:
    return [
        (best([{"trial": record["number"], **report} for report in record["reports"]]), record)
        for record in result["trials"]
        if record["state"] != FAILED
    ]


def _cells(figures: dict[str, Any]) -> list[str]:
    seconds = figures.get("seconds")
    return [
        decimal(figures["everyone"]),
        decimal(figures["affected"]),
        decimal(figures["demotion"], 3),
        decimal(figures["score"]),
        "" if seconds is None else f"{seconds:.2f}",
    ]


def _closing_lines(result: dict[str, Any], good: int) -> list[str]:
    chosen, objective, records = result["best"], result["objective"], result["trials"]
    lines = []
    if good > ROWS:
        lines.append(f"The best {ROWS} of {counted(good, 'trial')}; tune.json has all.")
    if any(record["state"] == STOPPED for record in records):
        lines.append("* stopped early by the scheduler.")
    for record in records:
        if record["state"] == FAILED:
            lines.append(f"Trial {record['number']} failed: {record['error']}")
    settings = ", ".join(f"{key}={plain(value)}" for key, value in chosen["settings"].items())
    lines.append(f"Best, on validation interactions: trial {chosen['trial']}, {settings}.")
    if objective["target"] is not None:
        source = "retrained" if objective["target_source"] == "retrained" else "expected of never-seen items"
        lines.append(f"Demotion rate to reach: {decimal(objective['target'], 3)} ({source}).")
    front = counted(len(result["front"]), "candidate")
    lines.append(f"On the front of utility and forgetting: {front}.")
    return lines
