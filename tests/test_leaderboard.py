"""The shipped defaults give the figures that docs/leaderboard.md prints, up to the rounding of another processor."""

import re

import numpy as np
import pytest

from recbole_unlearn import run_unlearn
from tests.conftest import ROOT

HEAD = "## ml-100k, genuine, BPR (3 seeds)"
NEAR = {"all": 0.04, "gap": 0.015, "attack": 0.03, "rmia": 0.03}


def printed(page, method):
    """The figures of a row, by the keys of `docs_tables.RANKED`."""
    (row,) = re.findall(rf"^\| {method} \|(.*)\|$", page.partition(HEAD)[2].partition("\n## ")[0], re.M)
    cells = [cell.strip().replace("−", "-").replace(" %", "e-2") for cell in row.split("|")]
    keys = ("all", "affected", "unaffected", "gap", "attack", "rmia", "relearned", "speedup")
    return {key: float(cell) for key, cell in zip(keys, cells, strict=False) if cell not in ("–", "")}


@pytest.mark.slow
def test_the_defaults_give_the_printed_figures(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import deletion_requests
    import docs_tables

    found = []
    for seed in (2020, 2021, 2022):
        values = {
            "seed": seed, "show_progress": False, "tensorboard": False, "save_unlearned": False, "report": "none",
            "min_group": 1, "placebo": False, "cache": False, "relearn_epochs": 0, "threads": 1,
        }  # fmt: skip
        request = deletion_requests.draw("genuine", "BPR", "ml-100k", values, seed)
        outcome = run_unlearn(
            "BPR", "ml-100k", forget=request, unlearn="obliviate", compare=["retrain"], config_dict=values,
            output_dir=tmp_path / str(seed),
        )  # fmt: skip
        found.append(docs_tables.standing(outcome.result, "unlearned"))
    page = printed((ROOT / "docs" / "leaderboard.md").read_text(), "obliviate")
    means = {key: np.mean([one[key] for one in found]) for key in NEAR}
    assert {key: value for key, value in means.items() if abs(value - page[key]) > NEAR[key]} == {}
    assert abs(page["gap"]) < 0.05  # doing nothing has .06
