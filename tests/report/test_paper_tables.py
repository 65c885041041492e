"""The tables of the paper: known means, missing runs, the paper's own figures, and how they are written."""

import json
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn import report
from recbole_unlearn.report import NO_PLAN, comparison, page, write_comparison
from recbole_unlearn.results import RunResult
from tests.report.test_report import HOSTILE, Reader


def phase(level, demotion, seconds, **more):
    figures = {f"{metric}@{cut}": level for metric in ("recall", "ndcg") for cut in (10, 20, 50)}
    return {
        "seconds": seconds, "seconds_from_cache": False, "metrics": figures,
        "affected": {key: value / 2 for key, value in figures.items()},
        "forgetting": {"demotion_rate": demotion}, **more,
    }  # fmt: skip


def result(seed, shift=0.0, dataset="ml-1m", model="BPR", ratio=0.2, **phases):
    """A run in which every figure of a phase is easy to average; ``shift`` moves what is unlearned."""
    return {
        "schema": 1, "model": model, "dataset": dataset, "method": "obliviate", "seed": seed,
        "settings": {"inject_users": ratio}, "forget": {"source": "injected informed"},
        "phases": {
            "original": phase(0.2, 0.1, 50.0),
            "unlearned": phase(0.3 + shift, 0.7 + shift, 2.0),
            "retrained": phase(0.4, 0.9, 100.0),
            "no_lua": phase(0.25, 0.5, 4.0),
            "sisa": phase(0.15, 0.8, 80.0, before=phase(0.1, 0.2, 60.0)),
            **phases,
        },
    }  # fmt: skip


RUNS = [result(1, -0.08), result(2), result(3, 0.08)]


def tables(results, plan=NO_PLAN):
    """The tables of what files with this content are read as."""
    return comparison.tables_of([RunResult.from_json(one) for one in results], plan)


def rendered(results):
    """The page, and the tables as Markdown and LaTeX."""
    return [one.decode() for one in comparison.rendered([RunResult.from_json(one) for one in results])]


def rows(results, title, plan=NO_PLAN, subject="ml-1m"):
    """The rows of a table as mappings, by method; one model."""
    (found,) = (t for t in tables(results, plan) if t.title == title and t.subject.startswith(subject))
    (body,) = found.bodies.values()
    assert all(len(cells) == len(found.head) for cells in body)
    return {cells[0]: dict(zip(found.head, cells, strict=True)) for cells in body}


def test_utility_is_the_mean_over_seeds_next_to_the_papers_figures():
    table = rows(RUNS, "NDCG@20")
    assert list(table) == ["retrained", "obliviate", "no_lua", "sisa"]
    assert table["obliviate"] == {
        "Method": "obliviate", "Before": "0.2000 ± 0.0000", "After": "0.3000 ± 0.0800", "Change": "+50.0%",
        "Paper": "0.3043 → 0.3117 (+2.4%)", "Gap": "−25.0%", "Gap, worst": "−45.0%", "Runs": "3",
    }  # fmt: skip
    assert table["sisa"]["Before"] == "0.1000 ± 0.0000"  # its own original
    assert (table["sisa"]["Change"], table["sisa"]["Paper"]) == ("+50.0%", "0.2741 → 0.2876 (+4.9%)")
    assert table["retrained"]["Gap"] == table["no_lua"]["Paper"] == "–"
    for title, printed in (("Recall@10", "0.1190 → 0.1210 (+1.7%)"), ("NDCG@50", "0.3191 → 0.3263 (+2.3%)")):
        assert rows(RUNS, title)["obliviate"]["Paper"] == printed


def test_forgetting_time_and_ablations():
    affected = rows(RUNS, "NDCG@20, affected users")["obliviate"]
    assert (affected["After"], affected["Recovered"]) == ("0.1500 ± 0.0400", "50%")
    assert affected["Recovered, worst"] == "10%"
    demotion = rows(RUNS, "Demotion rate")
    assert demotion["obliviate"] == {
        "Method": "obliviate", "Before": "0.100 ± 0.000", "After": "0.700 ± 0.080", "Gap": "−0.200 ± 0.080",
        "Gap, worst": "−0.280", "Paper": "0.0640 → 0.3573", "Runs": "3",
    }  # fmt: skip
    assert (demotion["sisa"]["Before"], demotion["retrained"]["Gap"]) == ("0.200 ± 0.000", "–")
    time = rows([*RUNS, result(4, unlearned=phase(0.3, 0.7, 10.0))], "Time")
    assert time["obliviate"] == {
        "Method": "obliviate", "Seconds": "4.00 ± 4.00", "Speed-up": "25.0×", "Speed-up, worst": "10.0×",
        "Paper": "19.95 of 533.50 (26.7×)", "Runs": "4",
    }  # fmt: skip
    cached = rows([result(1, retrained=phase(0.4, 0.9, 100.0) | {"seconds_from_cache": True})], "Time")
    assert (cached["retrained"]["Seconds"], cached["obliviate"]["Seconds"]) == ("100.0*", "2.00")  # one: no spread
    ablations = rows(RUNS, "Ablations")
    assert list(ablations) == ["retrained", "obliviate", "no_lua"]
    assert (ablations["no_lua"]["N@20"], ablations["no_lua"]["N@20 paper"]) == ("0.2500 ± 0.0000", "0.3089")
    assert ablations["obliviate"]["R@20 paper"] == "0.1932"


def test_metrics_that_were_asked_for_the_attack_and_the_verdict():
    def attacked(auc):
        return {"forgetting": {"demotion_rate": 0.5, "attack": {"auc": auc, "low": 0.4, "high": 0.6}}}

    runs = []
    for seed, level in enumerate(("near", "near", "under")):
        own = {name: phase(0.3, 0.5, 1.0) | attacked(auc) for name, auc in (("unlearned", 0.6), ("retrained", 0.5))}
        own["unlearned"]["metrics"] |= {"mrr@5": 0.7, "itemcoverage@5": 0.7}
        runs.append(result(seed, **own) | {"verdict": {"level": level, "text": "X."}})
        runs[-1]["settings"] |= {"metrics": ["MRR", "NDCG", "ItemCoverage"], "topk": [5, 10]}
    assert [one.title for one in tables(runs)][:4] == ["Overview", "NDCG@10", "MRR@5", "ItemCoverage@5"]
    assert rows(runs, "MRR@5")["obliviate"]["After"] == "0.7000 ± 0.0000"
    found = rows(runs, "Attack AUC, and verdict")["obliviate"]
    assert (found["Gap"], found["Verdict"]) == ("+0.100 ± 0.000", "near retraining 2×, not fully forgotten 1×")
    for text in rendered(runs):
        assert "no one-to-one comparison" in text
        assert "Amazon" not in text  # nothing is said of data that is not there
    assert not [text for text in rendered([result(1, ratio=0.05)]) if "one-to-one" in text]


def test_ratios_datasets_and_models_stay_apart():
    results = [*RUNS, result(1, ratio=0.05), result(1, dataset="ml-100k"), result(1, model="LightGCN")]
    found = [table for table in tables(results) if table.title == "NDCG@20"]
    assert [table.subject for table in found] == [
        "ml-1m · injected informed, 20% of users", "ml-1m · injected informed, 5% of users",
        "ml-100k · injected informed, 20% of users",
    ]  # fmt: skip
    assert (list(found[0].bodies), found[0].bodies["LightGCN"][1][-1]) == (["BPR", "LightGCN"], "1")
    # The paper has no figures for these, so there is no column for them.
    assert [any(head == "Paper" for head in table.head) for table in found] == [True, False, False]
    assert "ml-1m · injected informed, 5% of users" in rendered(results)[0]
    alone = result(1)
    del alone["phases"]["no_lua"]
    assert "Ablations" not in [table.title for table in tables([alone])]


def test_what_is_missing_is_named(tmp_path):
    grid = tmp_path / "grid"
    grid.mkdir()
    names = {f"ml-1m-BPR-0.2-{seed}": None for seed in (1, 2, 3)} | {"yelp2018-BPR-mine-1": "mine"}
    (grid / report.PLAN_FILE).write_text(json.dumps({"schema": 1, "cells": names}))
    (grid / report.FAILED_FILE).write_text(json.dumps({"ml-1m-BPR-0.2-3": "out of luck"}))
    for seed in (1, 2):
        (grid / f"ml-1m-BPR-0.2-{seed}").mkdir()
        (grid / f"ml-1m-BPR-0.2-{seed}" / "result.json").write_text(json.dumps(result(seed)))
    plan = report.read_plan([grid, tmp_path])
    assert plan.missing == {"ml-1m-BPR-0.2-3": "out of luck", "yelp2018-BPR-mine-1": "not done yet"}
    assert plan.requests == {"mine"}
    assert report.results_in(grid) == [grid / "ml-1m-BPR-0.2-1", grid / "ml-1m-BPR-0.2-2"]
    text = Reader(write_comparison(report.results_in(grid), tmp_path / "comparison.html", [grid])).text
    for written in (text, *((tmp_path / name).read_text() for name in comparison.TABLES)):
        for part in ("out of luck", "no one-to-one comparison"):
            assert part in written


@pytest.mark.parametrize("content", ["", "[]", "{", '{"cells": 3}', '{"cells": [3, {}]}'])
def test_a_damaged_plan_is_no_plan(tmp_path, content):
    (tmp_path / report.PLAN_FILE).write_text(content)
    (tmp_path / report.FAILED_FILE).write_text(content)
    assert report.read_plan([tmp_path]) == NO_PLAN


def check_latex(text):
    """By structure: environments close, lines of a table have all cells, nothing is left that TeX would trip over."""
    assert text.isascii()
    _, body = text.split(r"\begin{document}")
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", r"\begin{document}" + body):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert opened == []
    for columns, table in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", body, re.S):
        assert table.count(r"\toprule") == table.count(r"\bottomrule") == 1
        for line in table.splitlines():
            if line.endswith(r"\\") and "multicolumn" not in line:
                assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1
    bare = re.sub(r"\\[A-Za-z]+\*?|\\[{}$&#%_\\]", "", body)
    assert (bare.count("{"), bare.count("$") % 2) == (bare.count("}"), 0)
    assert not re.search(r"[#%_^]|\\", bare)


def test_results_with_gaps_and_hostile_names_are_written():
    named = {"dataset": HOSTILE, "model": HOSTILE, "method": HOSTILE, "forget": {"source": HOSTILE}}
    phases = {"unlearned": {}, HOSTILE: {"metrics": {"ndcg@20": 0.1}, "seconds": "soon"}}
    odd = {"schema": 1, "phases": phases, **named}
    content, markdown, latex = rendered([odd, *RUNS, result(1, dataset="my_data")])
    assert "<img" not in content
    assert not re.search(r"(?<!\\)[<>]", markdown)
    check_latex(latex)
    for part in (r"\usepackage{booktabs}", r"no\_lua & ", r"my\_data", r"0.3043 $\to$ 0.3117 (+2.4\%)"):
        assert part in latex
    assert tables([{"phases": {"unlearned": {}}}]) == []


@given(st.text(max_size=30) | st.text(alphabet=string.ascii_letters + "09_.+-", max_size=12))
def test_any_text_can_be_written_in_latex_and_markdown(text):
    written = page.latex_text(text)
    if set(text) <= {*string.ascii_letters, *string.digits, *"_.+-"}:
        assert written.replace(r"\_", "_") == text
    check_latex(rf"\begin{{document}}{written}\end{{document}}")
    cell = page.markdown_text(text)
    assert not re.search(r"(?<!\\)(?:\\\\)*[|<`*#]", cell)
    assert "\n" not in written + cell
