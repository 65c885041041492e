"""The HTML pages: their content, their words, hostile input, and that a browser draws them without complaint."""

import copy
import functools
import html
import json
import math
import re
import shlex
import shutil
import subprocess
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn.cli import parse
from recbole_unlearn.measures import SHORT
from recbole_unlearn.registry import METHODS
from recbole_unlearn.report import comparison, figures, page, run_report, write_comparison, write_report
from recbole_unlearn.report.figures import Look, Trace
from recbole_unlearn.results import LEVELS, PhaseResult, RunResult
from recbole_unlearn.settings import names
from tests.parts import refused

CUTS = (10, 20, 50)
DATE = "2026-11-17T19:24:51+02:00"
VERDICT = (
    "Not fully forgotten: deleted items rank higher than a retrained model puts them (demotion rate 0.811, "
    "retrained 0.941); an attacker does differently than on the retrained model (AUC 0.61, retrained 0.53); "
    "96% of what retraining does for affected users is recovered; 29 times faster than retraining."
)
PLACEBO = {"mark": {"demotion": 0.05}, "memory": {"demotion": -0.09}}
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=alert(1)>\"'&<a href='https://evil.example/'>"


def metrics(level):
    growth = {10: 1.0, 20: 1.4, 50: 2.2}
    recall = {f"recall@{k}": round(level * growth[k], 6) for k in CUTS}
    return recall | {f"ndcg@{k}": round(level * 0.8 * growth[k] ** 0.5, 6) for k in CUTS}


def phase(level, demotion, auc, seconds, centre, near=None):
    """A phase as result.json has it; ``near`` is how near the lists come to the retrained model's."""
    edges = [round(-3 + 0.1 * step, 3) for step in range(61)]
    counts = [round(400 * math.exp(-(((edge - centre) / 0.7) ** 2))) for edge in edges[:-1]]
    attack = {"auc": auc, "low": auc - 0.02, "high": auc + 0.02, "tpr@1%fpr": (auc - 0.5) / 4 + 0.01}
    forgetting = {"demotion_rate": demotion, "attack": attack, "attack_before_after": attack}
    forgetting |= {f"resurfacing@{k}": round((1 - demotion) * k / 200, 6) for k in CUTS}
    if near is not None:
        lists = {"all": near, "affected": near - 0.07, "unaffected": near + 0.02}
        forgetting["demotion_gap"] = {"mean": near - 1, "error": 0.01}
        forgetting |= {"ks": 1 - near, "overlap@20": lists}
    return {
        "seconds": seconds, "seconds_from_cache": False,
        "metrics": metrics(level * 1.02), "affected": metrics(level), "unaffected": metrics(level * 1.05),
        "forgetting": forgetting,
        "groups": {
            "core_edge": {
                group: {"recall@20": level * (1 + place / 5), "users": 47}
                for place, group in enumerate(("edge", "core"))
            },
        },
        "distribution": {"edges": edges, "counts": counts},
    }  # fmt: skip


def sample(method="obliviate", dataset="ml-100k", model="LightGCN", seed=2020, **changes):
    """A whole result, with figures as a run on MovieLens has them."""
    shift = (seed - 2020) / 300
    phases = {
        "original": phase(0.156 + shift, 0.025, 0.93, 27.1, 1.4, near=0.31),
        "unlearned": phase(0.249 + shift, 0.811, 0.61, 1.5, -0.5, near=0.61),
        "retrained": phase(0.253 + shift, 0.941, 0.53, 43.7, -0.8),
        "retrained_2": phase(0.250 + shift, 0.936, 0.53, 44.2, -0.85, near=0.68),
        "fine_tune": phase(0.201 + shift, 0.402, 0.78, 6.3, 0.5, near=0.44),
    }
    del phases["original"]["forgetting"]["attack_before_after"]
    return {
        "schema": 1, "model": model, "dataset": dataset, "method": method, "seed": seed,
        "settings": {"learning_rate": 0.001, "topk": [10, 20, 50], "lac_steps": 200, "reproducibility": True},
        "forget": {"source": "injected informed", "interactions": 7191, "users": 188, "items": 756},
        "phases": phases,
        "recovered": {"ndcg@20": 0.9588}, "speedup": 29.13,
        "verdict": {"level": "under", "text": VERDICT},
        "curves": {
            "unlearned": {
                "loss": [[step, 0.1 + 0.6 * math.exp(-step / 40)] for step in range(1, 201)],
                "demotion": [[step, 0.81 - 0.7 * math.exp(-step / 30)] for step in range(0, 201, 10)],
            }
        },
        "certificates": {
            "rows": {"user_embedding.weight": 188, "item_embedding.weight": 756}, "energy": 0.98231337,
            "drift": 22593.628906, "level": "noise", "margin": {"mean": 1.2345678, "bound": -0.3},
        },
        "environment": {"python": "3.11.7", "torch": "2.13.0", "recbole": "1.2.1", "cores": 2, "threads": 1},
        **changes,
    }  # fmt: skip


def without_retraining(**changes):
    result = sample(**changes)
    for name in ("retrained", "retrained_2"):
        del result["phases"][name]
    for key in {"recovered", "speedup", "verdict"} - set(changes):
        del result[key]
    return result


def read(**changes):
    return RunResult.from_json(sample(**changes))


class Reader(HTMLParser):
    """Tags, attributes and text of a page, without styles and SVG, and the titles of its figures."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.attributes, self.text, self.figures, self.open = [], [], "", [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag != "meta":
            self.open.append(tag)
        if ("class", "plot") in attrs:
            self.figures.append(dict(attrs)["aria-label"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and not {"style", "svg"} & set(self.open) and data.strip():
            self.text += data.strip() + "\n"


def show(tree, given=None):
    """The page of what a result.json with this content is read as."""
    result = tree if isinstance(tree, RunResult) else RunResult.from_json(tree)
    with tempfile.TemporaryDirectory() as directory:
        return Reader(write_report(result, Path(directory), given))


def words(tree):
    return " ".join(show(tree).text.split())


@pytest.fixture
def compare(tmp_path):
    def write(*results):
        directories = [tmp_path / f"run{place}" for place in range(len(results))]
        for directory, result in zip(directories, results, strict=True):
            directory.mkdir()
            (directory / "result.json").write_text(json.dumps(result))
        return write_comparison(directories, tmp_path / "comparison.html")

    return write


def test_the_report_has_all_parts_in_order():
    """Forgetting is a distance to retraining, with a floor; for an attack, which has only a goal, it comes first."""
    tree = sample(date=DATE, placebo=PLACEBO)
    tree["phases"] = dict(reversed(tree["phases"].items()))  # another order than the page's
    own = {"verdict": {"level": "near", "text": "x"}, "recovered": {"ndcg@20": 0.5}, "speedup": 0.04}
    tree["phases"]["fine_tune"] |= own
    tree["phases"]["unlearned"] |= {"verdict": tree["verdict"], "recovered": tree["recovered"], "speedup": 29.13}
    tree["settings"] |= {"inject_users": 0.2, "inject_amount": 0.8}
    tree["certificates"] |= {"proof": "yes", "lac": {}}
    whole = show(tree, {"epochs": 5})
    parts = [
        "seed 2020 · 17 November 2026, 17:24 UTC", "Forgets too little",
        "(demotion rate 0.811, retrained 0.941). An attacker",
        "The model LightGCN of the dataset ml-100k was to forget 7,191 interactions of 188 users and 756 items. The "
        "method obliviate changed it. The result is compared with a retrained model and fine_tune.",
        "Artificial noise:", "added to 20% of the users, to each 80% of their training interactions, so",
        "What to do", "In this run, fine_tune came near the retrained model.", "NDCG@20 recovered 96% ",
        "Attack AUC off by +0.080 is 0.610 goal 0.530 ", "29.1×", "7,191",
        "The methods against retraining", "unlearned (obliviate) not fully forgotten -0.130 +0.080 -0.004 96% 29.1x",
        f"fine_tune {SHORT['near']} -0.539 +0.250 -0.049 50% 0.04x Results",
        "Scores of the deleted pairs", "Forgetting",
        "Demotion rate 0.811 −0.130 0.941 0.025 −0.916 0.402 −0.539 0.005 ",
        "Attack: AUC +0.080 is 0.610 0.590 to 0.630 0.530 0.510 to 0.550 +0.400 is 0.930 ", "Goal here: 0.530",
        "Top-20 overlap, affected users 0.540 – 0.240 0.370 0.610 ", "Memory", "Demotion rate −0.090 +0.050",
        "Who gains and who loses", "edge 47 users +0.093 +0.097 ",
        "Step by step", "Certificates", "energy Share of the first step", "0.9823",
        "mean 1.235 bound −0.3 proof yes How it was made", "Run on 17 November 2026", "python -m recbole_unlearn",
        "All 6 settings", "3.11.7",
    ]  # fmt: skip
    start, text = 0, " ".join(whole.text.split())
    for part in parts:
        start = text.index(part, start)
    assert not whole.open
    for strange in (None, "yesterday", "0001-01-01T00:00:00+09:00", 7):
        assert "Run on" not in show(sample(date=strange)).text


def test_nothing_is_remote_or_runs_and_pages_are_small(tmp_path, compare):
    for path, drawn in (write_report(read(), tmp_path), 3), (compare(sample(), sample("other")), 0):
        reader, text = Reader(path), path.read_text()
        assert not {"src", "href", "srcset", "action", "data", "poster"} & set(reader.attributes)
        assert not {"link", "a", "img", "iframe", "object", "embed", "base"} & set(reader.tags)
        assert "script" not in reader.tags
        assert "default-src 'none'; style-src" in html.unescape(text[:1000])
        assert len(text) < 200_000
        assert not re.search(r"url\(|@import", text.split("<style>")[1].split("</style>")[0])
        assert len(reader.figures) == drawn


NUMBERS = st.floats(-1e9, 1e9, allow_subnormal=False)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=9), st.sampled_from(["lines", "filled"]))
def test_all_of_a_figure_is_inside_its_axes_and_ticks_are_where_their_values_are(points, kind):
    made = figures.layout([Trace("x", Look("red"), points, kind)], "x", "y", in_percent=True)
    (own,) = made["traces"]
    placed = [float(one) for one in re.findall(r"-?[\d.]+", own["path"])]
    assert all(figures.TOP <= one <= figures.RIGHT for one in placed)
    heights = [at for at, _ in made["y_ticks"]]
    assert heights == sorted(heights, reverse=True)
    assert 2 <= len(heights) <= figures.MOST + 1


def test_a_figure_against_its_arithmetic():
    steps = Trace("a", Look("red"), [(0, 0.0), (10, 5.0)], "steps")
    made = figures.layout([steps, steps._replace(kind="lines")], "x", "y", most=10)
    assert [one["path"] for one in made["traces"]] == ["M76.0 262.0H550.0V138.0", "M76.0 262.0L550.0 138.0"]
    assert made["y_ticks"][0] == (262.0, "0")
    assert made["y_ticks"][-1] == (14.0, "10")
    below = figures.layout([steps._replace(points=[(0, -10.0), (1, 10.0)], kind="filled")], "x", "y", most=10)
    assert (below["zero"], below["traces"][0]["fill"]) == (138.0, "M76.0 262.0H550.0V14.0V138.0H76.0Z")


def paths(tree, above=()):
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


STRANGE = {"absent": "absent", "none": None, "text": "text", "list": [], "nan": math.nan, "huge": 10**400}


@pytest.mark.parametrize("instead", STRANGE.values(), ids=STRANGE)
def test_any_key_may_be_missing_or_strange(tmp_path, monkeypatch, instead):
    monkeypatch.setattr(page, "write_bytes", lambda path, content: None)
    result = sample(date=DATE, placebo=PLACEBO)
    del result["phases"]["retrained_2"], result["phases"]["fine_tune"]
    for own in result["phases"].values():
        del own["unaffected"], own["groups"]["core_edge"]["core"]
        del own["forgetting"]["resurfacing@50"]
        own["metrics"] = own["affected"] = {"ndcg@20": 0.2}
    for *above, last in [path for path in paths(result) if path[:2] != ("phases", "original")]:
        changed = copy.deepcopy(result)
        parent = functools.reduce(dict.__getitem__, above, changed)
        parent[last] = instead
        if instead == "absent":
            del parent[last]
        assert write_report(RunResult.from_json(changed), tmp_path).name == "report.html"
        if len(above) < 3:
            assert b"</html>" in comparison.rendered([RunResult.from_json(changed)])[0]
    assert write_report(RunResult.from_json({}), tmp_path).name == "report.html"


def test_what_is_missing_is_never_zero():
    result = sample()
    del result["phases"]["unlearned"]["forgetting"]["demotion_rate"], result["phases"]["unlearned"]["seconds"]
    result["phases"]["original"]["seconds"] = None
    text = show(result).text
    assert text.count("Demotion rate\n") == 1  # in the table, not among the key figures
    assert "\nDemotion rate\n–\n0.941\n0.025\n−0.916\n" in text.split("\nForgetting\n")[1]
    assert text.count("loaded\n") == 2


def poisoned(tree):
    """Every text replaced, and a hostile key next to every other."""
    if isinstance(tree, dict):
        changed = {key: poisoned(value) for key, value in tree.items()}
        return changed | {HOSTILE: copy.deepcopy(next(iter(changed.values()), HOSTILE))}
    if isinstance(tree, list):
        return [poisoned(value) for value in tree]
    return HOSTILE if isinstance(tree, str) else tree


def test_hostile_text_stays_text(compare):
    result = poisoned(sample(date=DATE, placebo=PLACEBO))
    for reader in (show(result, {HOSTILE: HOSTILE, "compare": [HOSTILE]}), Reader(compare(result))):
        assert not {"script", "img", "a"} & set(reader.tags)
        assert not any(name.startswith("on") for name in reader.attributes)
        assert HOSTILE in reader.text


def test_settings_that_name_a_path_are_left_out():
    secret = {"a": "/jane/x", "b": "~/jane", "c": "C:\\Users\\jane", "d": ["/home/jane"], "e": {"f": "/jane"}}
    text = show(sample(settings={"k": 1, "l": 2} | secret), secret | {"checkpoint": "jane", "data_path": "jane"}).text
    assert "jane" not in text
    assert "All 2 settings" in text


def test_one_is_singular_and_small_requests_are_rough():
    one = {"source": "file", "interactions": 1, "users": 1, "items": 1}
    text = show(without_retraining(forget=one, withheld={"min_group": 10, "why": "Few."}, curves={})).text
    assert not re.search(r"\b1 (users|items|interactions|rows|steps)\b", text)
    assert "\nForgetting\n" not in text  # a table with figures of these users
    text = " ".join(text.split())
    assert "up to 1 interaction of 1 user and up to 1 item, given from a file of requests." in text
    assert "Few. The verdict is from the exact figures." in text


def test_a_method_names_settings_of_its_own():
    for trainer in METHODS.all():
        for way in [*trainer.forgets_more, *trainer.forgets_less]:
            assert re.match(r"(raise|lower|set) ", way)
            assert set(re.findall(r"\w+_\w+|rank", way)) <= set(names(trainer.Settings))
        assert bool(trainer.forgets_more) == bool(trainer.forgets_less)


UNDER, OVER, UNSURE = ({"verdict": {"level": one, "text": "X."}} for one in ("under", "over", "cannot_tell"))
FILE = {"forget": {"source": "file", "interactions": 2}}


@pytest.mark.parametrize(("changes", "said", "absent"), [
    ({"method": "finetune", "settings": {"finetune_epochs": 1, "finetune_learning_rate": 0.01}},
     "raise finetune_epochs or raise finetune_learning_rate", "came near"),
    ({"method": "finetune"}, "--unlearn=retrain , which are exact: they make a new model without these "
     "interactions; retraining took 43.7", "nothing to change"),
    ({"method": "finetune", "settings": {}, **OVER}, "forget less, lower finetune_epochs or lower", "raise"),
    ({"model": "BPR", **UNDER}, "raise lac_forget", "exact: what"),
    ({"model": "SASRec", **UNDER}, "raise lua_limit", "lac_forget"),  # refused for sequences
    ({"method": "sisa"}, "is an ensemble", "raise"),
    ({**UNSURE, **FILE}, "--forget=injected", "too little"),
    (UNSURE, "Inconclusive X. ", "--forget=injected"),
])  # fmt: skip
def test_advice_by_verdict_and_method(changes, said, absent):
    text = words(sample(**changes))
    assert said in text
    assert absent not in text


def test_without_retraining_it_says_which_claims_cannot_be_made():
    assert tuple(SHORT) == LEVELS
    for verdict in (None, {"level": "unknown", "text": "L."}):
        text = words(without_retraining(verdict=verdict))
        assert "Run it again with --compare=retrain to have" in text
        for absent in ("Speed-up", "recovered ", "Kolmogorov", "overlap", "floor", "Near the", "Attack AUC"):
            assert absent not in text


def test_the_command_repeats_the_run():
    given = {
        "epochs": 5, "learning_rate": 1e-05, "topk": [5, 20], "lua_target": "none",
        "unlearn": "obliviate", "val_interval": {"rating": "[4,inf)"},
        "rank": "full", "compare": ["retrain", "retrain", "fine_tune"],
    }  # fmt: skip
    words = shlex.split(run_report.command(read(model="BPR"), given | {"output_dir": "x", "data_path": "/y"}))
    assert words[:3] == list(run_report.PROGRAM)
    fixed = {"model": "BPR", "seed": 2020, "dataset": "ml-100k", "compare": "retrain,retrain,fine_tune"}
    assert parse(words[3:]) == given | fixed | {"data_path": "FOLDER"}
    assert f"--model={__name__}:Own" in run_report.command(read(model="Own"), {"model": type("Own", (), {})})
    loaded = read(forget={"source": "file"})
    loaded.phases["original"] = PhaseResult()
    line = run_report.command(loaded, {"model": "BPR", "min_group": 1})
    assert line.endswith("--checkpoint=FILE --unlearn=obliviate --forget=FILE --min_group=1")
    assert run_report.command(read(model=None), {}) is None


def test_a_strange_setting_cannot_write_a_command_of_its_own():
    evil = "'; rm -rf ~ #"
    given = {evil: evil, "epochs": "2001-99-99", "compare": [evil]}
    words = shlex.split(run_report.command(read(model=evil, dataset=evil, method=evil), given))
    assert words[3] == f"--model=PACKAGE.MODULE:{evil}"
    assert f"--compare={evil}" in words
    assert all(word.startswith("--") for word in words[3:])


def test_the_comparison_averages_seeds_and_counts_a_model_once(compare):
    runs = [sample(name, seed=seed, date=DATE) for name in ("obliviate", "other") for seed in (2020, 2023)]
    for run in runs[2:]:
        run["phases"]["unlearned"] = phase(0.2, 0.5, 0.7, 2.0, 0, near=0.5)
    exact = sample("retrain", dataset="ml-1m")
    exact["phases"]["unlearned"] = exact["phases"]["retrained"]
    exact["phases"]["original"]["seconds"] = None
    text = Reader(compare(*runs, exact)).text
    assert "5 runs · 17 November 2026, 17:24 UTC\n" in text
    assert "\nretrain\n" not in text  # an exact method is not listed next to itself
    first = text.split("Overview")[1].split("ml-1m")[0]
    # Both methods ran with the same two seeds, so the retrained model is there twice and not four times.
    assert first.split("retrained\n")[1].split("obliviate\n")[0].split()[-1] == "2"
    own = first.split("obliviate\n")[1].split("\n")
    assert own[:4] == ["not fully forgotten", "−0.130 ± 0.000", "+0.080 ± 0.000", "96%"]
    ndcg = [run["phases"]["unlearned"]["affected"]["ndcg@20"] for run in runs[:2]]
    assert f"{sum(ndcg) / 2:.4f} ± " in text


@pytest.mark.parametrize(("content", "why"), [
    (None, "There is no file"), ("{", "not JSON"), ("\udcff", "not JSON"), ("[]", "schema 1"),
    ('{"schema": 2, "phases": {"original": {}}}', "schema 1"), ('{"schema": 1, "phases": []}', "no phases"),
    pytest.param("[" * 100_000, "not JSON", id="deep"),
])  # fmt: skip
def test_a_bad_directory_is_named_in_one_line(tmp_path, content, why):
    if content is not None:
        (tmp_path / "result.json").write_text(content, errors="surrogateescape")
    assert str(tmp_path / "result.json") in refused(why, write_comparison, [tmp_path], tmp_path / "comparison.html")
    assert not (tmp_path / "comparison.html").exists()
    refused("Nothing to compare", write_comparison, [], tmp_path / "comparison.html")


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
PROBE = """<script>
document.body.dataset.probe = [
  window.hacked, document.querySelectorAll("img, a[href]").length,
  getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector("h1")).color,
  document.documentElement.scrollWidth <= innerWidth
].join("|");
</script>"""


def browse(path, tmp_path, dark=False):
    """Open a page in Chromium at the width of a narrow window; the DOM, and what the console said."""
    flags = (
        "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --enable-logging=stderr --v=0 --virtual-time-budget=3000 "
        f"--window-size=500,900 --blink-settings=preferredColorScheme={0 if dark else 1} --dump-dom"
    )
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def check_in_chromium(path, folder, plots, is_dark):
    """All is drawn, in light or dark colors, and only tables scroll sideways in a narrow window."""
    page, probed = path.read_text(), path.with_name("probed.html")
    page = page.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")  # for the probe
    probed.write_text(page.replace("</body>", PROBE + "</body>"))
    dom, console = browse(probed, folder, is_dark)
    assert (console, len(re.findall(r'<svg class="plot"', dom)) >= plots) == ([], True)
    colors = "rgb(20, 23, 27)|rgb(232, 234, 237)" if is_dark else "rgb(255, 255, 255)|rgb(28, 33, 39)"
    assert f'data-probe="|0|{colors}|true"' in dom


@pytest.mark.slow
@in_chromium
def test_chromium_draws_the_pages_in_light_and_dark(tmp_path, compare):
    broken = tmp_path / "broken.html"
    broken.write_text("<script>missing()</script>")
    assert browse(broken, tmp_path)[1], "an error in a page must be seen for this test to mean anything"
    (tmp_path / "hostile").mkdir()
    hostile = write_report(RunResult.from_json(poisoned(sample())), tmp_path / "hostile")
    check_in_chromium(write_report(read(), tmp_path), tmp_path, 3, False)
    check_in_chromium(compare(sample(), sample("other")), tmp_path, 0, True)
    check_in_chromium(hostile, tmp_path, 3, True)
