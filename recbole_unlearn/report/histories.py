"""The histories of a sequential model: what cleaning them alone does, and what the weights still know."""

from __future__ import annotations

from collections.abc import Callable

from recbole_unlearn.report import figures, page
from recbole_unlearn.report.columns import heading, side_by_side
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import MISSING, decimal
from recbole_unlearn.results import RETRAINED, PhaseResult

_COLUMNS: dict[str, Callable[[PhaseResult], str]] = {
    "Demotion rate, cleaned": lambda phase: decimal(phase.demotion_rate),
    "Uncleaned": lambda phase: decimal(phase.figure("uncleaned", "demotion_rate")),
    "Cleaned, at test": lambda phase: decimal(phase.figure("demotion_at_test")),
    "Emptied, uncleaned": lambda phase: decimal(phase.figure("emptied", "demotion_rate")),
    "NDCG@20 of affected users, cleaned": lambda phase: decimal(phase.affected.get("ndcg@20"), 4),
    "Uncleaned ": lambda phase: decimal(phase.figure("uncleaned", "ndcg@20"), 4),
}


def histories(phases: figures.Phases) -> Html:
    """A row per phase with its figures at cleaned and uncleaned histories; nothing for other models."""
    known = ("uncleaned", "emptied")
    if not any(key in phase.forgetting for phase in phases.values() for key in known):
        return Html("")
    order = side_by_side(phases)
    columns = {title: [of(phases[name]) for name in order] for title, of in _COLUMNS.items()}
    shown = {title: cells for title, cells in columns.items() if any(cell != MISSING for cell in cells)}
    rows = [
        [heading(name, phases), *(cells[place] for cells in shown.values())]
        for place, name in enumerate(order)
    ]
    goal = (
        "the retrained model's"
        if RETRAINED in phases
        else "a retrained model's, which this run does not have"
    )
    caption = (
        "Cleaned histories are without what was deleted; uncleaned ones still have it. The original's row shows what "
        "cleaning alone does. In the others, uncleaned figures show what the weights still know: they should be "
        f"{goal}."
    )
    table = page.table(caption, ["Phase", *(title.strip() for title in shown)], {"": rows})
    return page.section("Cleaned and uncleaned histories", table)
