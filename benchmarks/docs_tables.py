"""Write the tables of README, docs/results.md, docs/leaderboard.md and the grid's record from finished runs.

    python run_unlearn.py --model=LightGCN --dataset=ml-100k --unlearn=obliviate --compare=retrain --output_dir=FIRST
    python benchmarks/obliviate.py --methods= --cached --out=RUNS ...
    python run_unlearn.py --grid=properties/grid/machine.yaml --output_dir=GRID
    python benchmarks/docs_tables.py --readme=FIRST --runs=RUNS --grid=GRID --record=benchmarks/grid-DATE.md
    python benchmarks/docs_tables.py --leaderboard=RUNS,SUBMITTED
    python benchmarks/audits.py --out=AUDITS
    python benchmarks/docs_tables.py --audits=AUDITS

Each option alone writes its own tables. A table stands between `<!-- NAME: ... -->` and `<!-- end -->`; all else in a
page stays as it is. The record of a grid is the file that `--report` writes, with its settings.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path

import numpy as np
from obliviate import figures
from tabulate import tabulate

from recbole_unlearn.report import read_result, write_comparison
from recbole_unlearn.results import ORIGINAL, RETRAINED, UNLEARNED
from recbole_unlearn.results.table import table
from recbole_unlearn.text import counted

# Columns of the tables of docs/results.md: a head, a figure, its format, and how the worst run is found.
COLUMNS: dict[str, list[tuple]] = {
    "genuine": [
        ("attack AUC − retrained's", "attack", "+.3f", abs),
        ("the original's", "attack of the original", "+.2f", None),
        ("demotion rate − retrained's", "gap", "+.3f", abs), ("the original's", "gap of the original", "+.2f", None),
        ("unaffected users (NDCG@20, against the original)", "unaffected", "+.1%", lambda x: -x),
        ("affected users, against retrained", "affected of retrained", "+.1%", None),
        ("memory, demotion", "memory", "+.3f", abs),
    ],
    "injected": [
        ("recovered", "recovered", ".0%", lambda x: -x), ("demotion rate − retrained's", "gap", "+.3f", abs),
        ("unaffected users", "unaffected", "+.1%", lambda x: -x),
        ("retrained", "unaffected of retrained", "+.1%", None),
        ("memory, demotion", "memory", "+.3f", abs), ("changes accepted", "accepted", ".2f", lambda x: -x),
    ],
}  # fmt: skip


def printed(value: float, style: str) -> str:
    """A figure as the docs have it: a minus sign, and no zero before the point of a share."""
    text = format(value, style).replace("-", "−").replace("%", " %")
    return text if "%" in text else re.sub(r"\b0(?=\.)", "", text)


def github(rows: list[list], heads: list[str]) -> str:
    """A table in Markdown, without the spaces that align its source."""
    text = tabulate(rows, heads, tablefmt="github", disable_numparse=True)
    return re.sub("--+", "---", re.sub("  +", " ", text))


def written(page: Path, name: str, text: str) -> None:
    """Put ``text`` between the marks of ``name`` in a page."""
    found, number = re.subn(
        rf"(<!-- {name}:[^\n]*-->\n).*?(\n<!-- end -->)",
        lambda marks: f"{marks[1]}{text}{marks[2]}",
        page.read_text(),
        flags=re.S,
    )
    if number != 1:
        raise SystemExit(f"{page} has {number} blocks named {name}; expected one")
    page.write_text(found)


def cells_of(out: Path) -> dict[tuple[str, str, str], list[dict]]:
    """The figures of all finished runs by kind of request, dataset and model."""
    found: dict[tuple[str, str, str], list[dict]] = {}
    for path in sorted(out.glob("*-obliviate/result.json")):
        dataset, model, kind, _, _ = path.parent.name.rsplit("-", 4)
        result = json.loads(path.read_text())
        first, last = (figures(result, phase) for phase in ("original", "retrained"))
        own = figures(result, "unlearned")
        own |= {f"{key} of the original": first[key] for key in ("gap", "attack")}
        own["affected of retrained"] = own["affected"] / last["affected"] - 1
        own["unaffected of retrained"] = last["unaffected"]
        own["memory"] = result.get("placebo", {}).get("memory", {}).get("demotion", float("nan"))
        own["accepted"] = result["certificates"].get("accepted", 1.0)
        own["verdict"] = result["verdict"]["level"]
        found.setdefault((kind, dataset, model), []).append(own)
    return found


def results_tables(out: Path) -> dict[str, str]:
    """The mean over seeds of every finished cell, in brackets the worst run; by kind of request."""
    found, tables = cells_of(out), {}
    for kind, columns in COLUMNS.items():
        rows = []
        for (_, dataset, model), cells in ((key, cells) for key, cells in found.items() if key[0] == kind):
            row = [f"{model}, {dataset}", len(cells)]
            for _, key, style, worst in columns:
                values = [cell[key] for cell in cells]
                shown = printed(float(np.mean(values)), style)
                row.append(
                    f"{shown} ({printed(max(values, key=worst), style)})" if worst and len(values) > 1 else shown
                )
            rows.append([*row, ", ".join(cell["verdict"] for cell in cells)])
        heads = ["", "seeds", *(head for head, *_ in columns), "verdicts"]
        tables[kind] = github(rows, heads)
    return tables


# Columns of the leaderboard: a head, a figure of `standing`, and its format.
RANKED = (
    ("NDCG@20, of retraining's", "all", ".0%"), ("affected", "affected", ".0%"), ("unaffected", "unaffected", ".0%"),
    ("demotion rate −", "gap", "+.3f"), ("attack AUC −", "attack", "+.3f"), ("RMIA", "rmia", ".3f"),
    ("relearned −", "relearned", "+.3f"), ("times faster", "speedup", ".0f"),
)  # fmt: skip
REQUESTS = {True: "noise", False: "genuine"}
SHOWN = ("ml-100k", "amazon-music")
SAID = {ORIGINAL: "(do nothing)", RETRAINED: "retrain"}


def standing(result: dict, phase: str) -> dict[str, float]:
    """The figures of one phase, as shares of the retrained model's or differences from them."""
    last, mine = result["phases"][RETRAINED], result["phases"][phase]
    known = {group: mine[group]["ndcg@20"] / last[group]["ndcg@20"] for group in ("affected", "unaffected")}
    found, goal = mine["forgetting"], last["forgetting"]
    known |= {"all": mine["metrics"]["ndcg@20"] / last["metrics"]["ndcg@20"]}
    for key, path in {"gap": ["demotion_rate"], "attack": ["attack", "auc"]}.items():
        known[key] = inner(found, path) - inner(goal, path)
    known["rmia"], known["relearned"] = inner(found, ["rmia", "auc"]), inner(found, ["relearning_gap", "mean"])
    return known | {"speedup": last["seconds"] / mine["seconds"] if phase != ORIGINAL else np.nan}


def inner(figures: dict, path: list[str]) -> float:
    """The figure at ``path``; NaN where there is none."""
    for key in path:
        figures = figures.get(key) or {}
    return figures if isinstance(figures, float) else np.nan


def leaderboard(folders: list[Path]) -> str:
    """A table of each dataset, request and model: the mean over seeds of every method in all runs."""
    found: dict[tuple, dict[str, list[dict]]] = {}
    for path in sorted(path for folder in folders for path in folder.glob("**/result.json")):
        result = json.loads(path.read_text())
        if RETRAINED not in result["phases"] or result["dataset"] not in SHOWN:
            continue
        noise = result["forget"]["source"].startswith("injected")
        cell = found.setdefault((result["dataset"], REQUESTS[noise], result["model"]), {})
        for name in (ORIGINAL, RETRAINED, *result["phases"]):
            said = SAID.get(name, result["method"] if name == UNLEARNED else name)
            one = standing(result, name) | {"seed": result["seed"]}
            if (
                noise
            ):  # results of earlier versions have it (recbole_unlearn/measures/rmia.py says why it means nothing)
                one["rmia"] = np.nan
            if name not in (ORIGINAL, RETRAINED):
                one["verdict"] = (result["phases"][name].get("verdict") or {}).get("level", "")
            cell.setdefault(said, [])
            if one not in cell[said]:
                cell[said].append(one)
        if mark := result.get("placebo", {}).get("mark"):
            one = {"gap": mark["demotion"], "attack": mark["attack"], "seed": result["seed"]}
            cell.setdefault(f"{result['method']}, placebo", []).append(one)
    lines = []
    for (dataset, request, model), cell in sorted(found.items(), key=lambda one: (SHOWN.index(one[0][0]), one[0])):
        rows = []
        for name, ones in cell.items():
            means = [np.mean([one.get(key, np.nan) for one in ones]) for _, key, _ in RANKED]
            shown = ["–" if np.isnan(mean) else printed(float(mean), style)
                     for mean, (*_, style) in zip(means, RANKED, strict=True)]  # fmt: skip
            rows.append([name, *shown, ", ".join(one.get("verdict", "") for one in ones).strip(", ")])
        seeds = len({one["seed"] for ones in cell.values() for one in ones})
        heads = ["", *(head for head, *_ in RANKED), "verdicts"]
        lines.append(f"## {dataset}, {request}, {model} ({counted(seeds, 'seed')})\n\n{github(rows, heads)}")
    return "\n\n".join(lines)


AUDITED = ("original", "retrained", "rebuild", "unlearned", "finetune", "rrl")


def audits_table(out: Path) -> str:
    """U-LiRA's AUC, TPR at 1 % FPR, and AUC of the worst tenth of the pairs, by audit and method."""
    rows, names = [], []
    for path in sorted(out.glob("*/audit.json")):
        audit = json.loads(path.read_text())
        kind = "noise" if audit["forget"]["source"].startswith("injected") else "genuine"
        cells = []
        for name in AUDITED:
            phase = audit["phases"][name]
            attack = phase["u_lira"]
            figures = (
                printed(attack["auc"], ".3f"),
                printed(attack["tpr@1%fpr"], ".3f"),
                printed(attack["worst"]["auc"], ".2f"),
            )
            cells.append(" · ".join(figures))
        rows.append([f"{audit['model']}, {audit['dataset']}, {kind}", *cells])
        names = [audit["method"] if name == UNLEARNED else SAID.get(name, name) for name in AUDITED]
    return github(rows, ["AUC · TPR at 1 % FPR · worst tenth", *names])


def grid_record(grid: Path, record: Path) -> None:
    """The tables of a grid, as `--report` writes them."""
    results = sorted(path.parent for path in grid.glob("*/result.json"))
    with tempfile.TemporaryDirectory() as folder:
        page = write_comparison(results, Path(folder) / "report.html", [grid])
        tables = page.with_name("tables.md").read_text()
    head = f"# A grid: all tables\n\nWritten by `benchmarks/docs_tables.py` from {len(results)} runs."
    record.write_text(f"{head}\n\n{tables}")


def main() -> None:
    """Write the tables that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", type=Path, help="the directory of the run of README's first command")
    parser.add_argument("--runs", type=Path, help="the directory that benchmarks/obliviate.py wrote")
    parser.add_argument("--leaderboard", help="directories of finished runs, separated by commas")
    parser.add_argument("--audits", type=Path, help="the directory that benchmarks/audits.py wrote")
    parser.add_argument("--grid", type=Path, help="the directory of a grid")
    parser.add_argument("--record", type=Path, help="the page to write the grid's tables to")
    args = parser.parse_args()
    if args.readme:
        shown = table(read_result(args.readme / "result.json")).split("\n\n")[0]
        written(Path("README.md"), "first run", f"```text\n{shown}\n```")
    if args.runs:
        tables = results_tables(args.runs)
        written(Path("docs/results.md"), "genuine", tables["genuine"])
        written(Path("docs/results.md"), "noise", tables["injected"])
    if args.leaderboard:
        folders = [Path(folder) for folder in args.leaderboard.split(",")]
        written(Path("docs/leaderboard.md"), "leaderboard", leaderboard(folders))
    if args.audits:
        written(Path("docs/results.md"), "audits", audits_table(args.audits))
    if args.grid:
        grid_record(args.grid, args.record)


if __name__ == "__main__":
    main()
