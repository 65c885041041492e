"""The page of an audit, `audit.html`: a table of all phases, their attack curves, and how far outputs are apart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recbole_unlearn.report import figures, page
from recbole_unlearn.report.figures import Trace
from recbole_unlearn.results import UNLEARNED, in_order

COLUMNS = {
    "U-LiRA AUC": ("u_lira", "auc"), "TPR 1%": ("u_lira", "tpr@1%fpr"), "TPR 0.1%": ("u_lira", "tpr@0.1%fpr"),
    "AUC, worst tenth": ("u_lira", "worst", "auc"), "ε": ("epsilon", "mean"), "ε, 95%": ("epsilon", "p95"),
    "KLoM, deleted": ("klom", "deleted", "mean"), "95%": ("klom", "deleted", "p95"),
    "retained": ("klom", "retained", "mean"), "held out": ("klom", "held_out", "mean"),
}  # fmt: skip


def audit_rows(phases: Mapping[str, Any]) -> list[list[str]]:
    """The figures of :data:`COLUMNS`, a row for each phase of an `audit.json`."""

    def figure(tree: Any, path: tuple[str, ...]) -> str:
        for key in path:
            tree = (tree or {}).get(key)
        return page.decimal(tree)

    return [[name, *(figure(phase, path) for path in COLUMNS.values())] for name, phase in in_order(phases).items()]


def write_audit(content: Mapping[str, Any], directory: Path) -> Path:
    """Write the page of an `audit.json` into ``directory``."""
    phases: Any = in_order(content["phases"])
    looks, curves = figures.looks(phases), {"u_lira": list[Trace](), "klom": list[Trace]()}
    for name, phase in phases.items():
        for key, traces in curves.items():
            traces += [Trace(name, looks[name], phase[key]["curve"])] if "curve" in phase.get(key, {}) else []
    rows = [[page.chip(page.phase_title(name), looks[name].color), *cells] for name, *cells in audit_rows(phases)]
    run = page.run_title(content["method"], content["model"], content["dataset"], content["seed"])
    aucs = [
        phases[name]["u_lira"]["auc"] if name in phases else None for name in (UNLEARNED, "retrained", "original")
    ]
    return page.write_page(
        directory / "audit.html", "audit.html", title=f"Audit: {run}", run=run, content=content, rows=rows,
        head=["", *COLUMNS], aucs=aucs,
        drawings=[
            (figures.layout(curves["u_lira"], "false positive rate", "true positive rate", 1.0, in_percent=True),
             "Attack curves.", "The share of unlearned pairs found, by the share of others accused."),
            (figures.layout(curves["klom"], "KLoM of a deleted pair", "share of deleted pairs", 1.0, in_percent=True),
             "Distance of outputs.", "The share of deleted pairs that are no further from retraining than this."),
        ],
    )  # fmt: skip
