"""The page of one run, `report.html`: the verdict, what it rests on, and how the run was made."""

from __future__ import annotations

from pathlib import Path

from recbole_unlearn.report import figures, page
from recbole_unlearn.report.cards import key_figures
from recbole_unlearn.report.closing import certificates_of, curves, placebo, record
from recbole_unlearn.report.damage import damage
from recbole_unlearn.report.forgetting import forgetting
from recbole_unlearn.report.opening import account_of, advice_of, left_out, note, verdict, withheld
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.tables import methods, results
from recbole_unlearn.report.values import run_title
from recbole_unlearn.results import RETRAINED, RunResult, in_order

NAME = "report.html"
_GOAL = "Goal: the retrained model's value. Closer to it is better; smaller or larger by itself is not."


def write_report(result: RunResult, directory: Path) -> Path:
    """Write the page of ``result`` into ``directory`` and return its path."""
    phases = in_order(result.phases)
    run = run_title(result.method, result.model, result.dataset, result.seed)
    return page.write(
        Path(directory) / NAME,
        f"Unlearning report: {run}",
        verdict(result, run),
        account_of(result),
        advice_of(result),
        page.cards(key_figures(result)),
        page.element("p", _GOAL, class_="quiet") if RETRAINED in phases else Html(""),
        note(withheld(result)),
        note(left_out(result.left_out)),
        methods(result, phases),
        results(result, phases),
        _scores(phases),
        _utility(phases),
        forgetting(result, phases),
        placebo(result),
        damage(result, phases),
        curves(result),
        certificates_of(result),
        record(result),
    )


def _scores(phases: figures.Phases) -> Html:
    caption = "The unlearned curve should lie on the retrained one: scored as if never seen."
    if RETRAINED not in phases:
        caption = (
            "Forgetting moves them away from the original's; how far it should, only retraining can tell."
        )
    caption += " Scores are in standard deviations from the user's mean."
    return page.section(
        "Scores of the deleted pairs",
        page.drawings((figures.distribution(phases), "Scores of deleted pairs by phase.", caption)),
    )


def _utility(phases: figures.Phases) -> Html:
    titles = {
        metric: f"{figures.metric_title(metric)}@K of affected users by phase."
        for metric in ("recall", "ndcg")
    }
    return page.section(
        "What affected users get",
        page.drawings(*((figures.by_k(phases, m), t, "") for m, t in titles.items())),
    )
