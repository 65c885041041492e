"""The page of an audit, `audit.html`: a table of all phases, their attack curves, and how far outputs are apart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recbole_unlearn.report import figures, page
from recbole_unlearn.report.figures import Trace
from recbole_unlearn.results import in_order

HEAD = [
    "", "U-LiRA: AUC", "TPR at 1% FPR", "TPR at 0.1% FPR", "AUC, worst tenth", "ε, mean", "ε, 95%", "KLoM, deleted",
    "… 95%", "retained", "held out",
]  # fmt: skip


def write_audit(content: Mapping[str, Any], directory: Path) -> Path:
    """Write the page of an `audit.json` into ``directory``."""
    phases: Any = in_order(content["phases"])
    looks = figures.looks(phases)
    rows, attacked, apart = [], [], []
    for name, phase in phases.items():
        attack, klom, epsilon = phase["u_lira"], phase["klom"], phase["epsilon"]
        cells = [attack["tpr@1%fpr"], attack["tpr@0.1%fpr"], attack["worst"]["auc"], epsilon["mean"], epsilon["p95"]]
        cells += [klom["deleted"]["mean"], klom["deleted"]["p95"], klom["retained"]["mean"], klom["held_out"]["mean"]]
        low, auc, high = (page.decimal(attack[key]) for key in ("low", "auc", "high"))
        rows.append(
            [
                page.chip(page.phase_title(name), looks[name].color),
                page.lines(auc, f"{low} to {high}"),
                *map(page.decimal, cells),
            ]
        )
        if "curve" in attack:
            attacked.append(Trace(name, looks[name], attack["curve"]))
            apart.append(Trace(name, looks[name], klom["curve"]))
    run = page.run_title(content["method"], content["model"], content["dataset"], content["seed"])
    return page.write_page(
        directory / "audit.html", "audit.html", title=f"Audit: {run}", run=run, content=content, head=HEAD, rows=rows,
        own=phases["unlearned"]["u_lira"]["auc"], floor=phases.get("retrained", phases["unlearned"])["u_lira"]["auc"],
        ceiling=phases["original"]["u_lira"]["auc"],
        drawings=[
            (figures.layout(attacked, "false positive rate", "true positive rate", most=1.0, in_percent=True),
             "Attack curves.", "The share of unlearned pairs found, by the share of others accused."),
            (figures.layout(apart, "KLoM of a deleted pair", "share of deleted pairs", most=1.0, in_percent=True),
             "Distance of outputs.", "The share of deleted pairs that are no further from retraining than this."),
        ],
    )  # fmt: skip
