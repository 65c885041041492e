"""Phases side by side: their order in tables, and their heads."""

from __future__ import annotations

from recbole_unlearn.report import figures, page
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import phase_title
from recbole_unlearn.results import ORIGINAL, RETRAINED, SECOND, UNLEARNED, PhaseResult, RunResult

OWN = (ORIGINAL, UNLEARNED, RETRAINED, SECOND)  # all other phases are compared methods


def phase_of(result: RunResult, name: str) -> PhaseResult:
    """A phase, or one without figures."""
    return result.phases.get(name, PhaseResult())


def heading(name: str, phases: figures.Phases) -> Html:
    """A phase's name with its colour."""
    return page.chip(figures.looks(phases)[name].color, phase_title(name))


def side_by_side(phases: figures.Phases) -> list[str]:
    """The names of phases as tables have them: what the run is about beside its goal, which a phone then shows."""
    return [
        name for name in dict.fromkeys([UNLEARNED, RETRAINED, SECOND, ORIGINAL, *phases]) if name in phases
    ]
