"""The HTML pages: what is on them, what must never, and that a browser draws them without complaint."""

import copy
import dataclasses
import html
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.measures import SHORT, base
from recbole_unlearn.report import comparison, figures, opening, values, write_comparison, write_report
from recbole_unlearn.results import LEVELS, RunResult

CUTS = (10, 20, 50)
VERDICT = (
    "Not fully forgotten: deleted items rank higher than a retrained model puts them (demotion rate 0.811, "
    "retrained 0.941); an attacker does differently than on the retrained model (AUC 0.61, retrained 0.53); "
    "96% of what retraining does for affected users is recovered; 29 times faster than retraining."
)
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=alert(1)>\"'&<a href='https://evil.example/'>"


GOOD_DEMOTION = "Good: the retrained model's; more is over-forgetting, which can be seen"


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
        forgetting |= {"ks": 1 - near, "wasserstein": 1.3 * (1 - near), "overlap@20": lists, "rbo": lists}
    users, rows = ("low", "middle", "high"), ("tail", "middle", "head")
    return {
        "seconds": seconds, "seconds_from_cache": False,
        "metrics": metrics(level * 1.02), "affected": metrics(level), "unaffected": metrics(level * 1.05),
        "masked": metrics(level * 1.03), "forgetting": forgetting,
        "groups": {
            "user_activity": {
                group: {"recall@20": level * (1 + place / 5), "ndcg@20": level, "users": 312 + place}
                for place, group in enumerate(users)
            },
            "item_popularity": {
                group: {"recall@20": level * (0.4 + place / 2), "rows": 2100 * (place + 1)}
                for place, group in enumerate(rows)
            },
        },
        "distribution": {"edges": edges, "counts": counts},
    }  # fmt: skip


def sample(method="obliviate", dataset="ml-100k", model="LightGCN", seed=2020):
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
        "difficulty": {"entanglement": 0.3124, "deleted_share_users": 0.41, "deleted_share_items": 0.22},
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
    }  # fmt: skip


def without_retraining():
    result = sample()
    for name in ("retrained", "retrained_2"):
        del result["phases"][name]
    del result["recovered"], result["speedup"], result["verdict"]
    return result


def report(result, directory):
    """The page of what a result.json with this content is read as."""
    return write_report(RunResult.from_json(result), directory)


class Reader(HTMLParser):
    """Tags, attributes and text of a page; what is inside scripts and styles is not text."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.attributes, self.text, self.figures, self.open = [], [], "", [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag != "meta":
            self.open.append(tag)
        if "data-figure" in dict(attrs):
            self.figures.append(json.loads(dict(attrs)["data-figure"]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data + "\n"


def row(reader, title):
    """What follows ``title`` in the text of a page, up to a few cells further."""
    return reader.text.split(f"\n{title}\n", 1)[1][:120]


def forgetting(reader, title):
    """The cells of a row in the table of measures."""
    return reader.text.split("\nForgetting\n", 1)[1].split(f"\n{title}\n", 1)[1][:120]


@pytest.fixture
def light(monkeypatch):
    """Pages without plotly.js, for tests that do not draw."""
    monkeypatch.setattr("recbole_unlearn.report.page.get_plotlyjs", lambda: "")


@pytest.fixture
def compare(tmp_path):
    def write(*results):
        directories = []
        for place, result in enumerate(results):
            directory = tmp_path / f"run{place}"
            directory.mkdir()
            (directory / "result.json").write_text(json.dumps(result))
            directories.append(directory)
        return write_comparison(directories, tmp_path / "comparison.html")

    return write


def test_the_report_says_it_in_order(tmp_path, light):
    path = report(sample(), tmp_path)
    assert path == tmp_path / "report.html"
    reader = Reader(path)
    parts = [
        "Forgets too little", "(demotion rate 0.811, retrained 0.941).\nAn attacker", "was to forget 7,191",
        "Artificial noise:", "What to do", "96%\n", "29.1×", "7,191", "The methods beside retraining", "Results",
        "Scores of the deleted pairs", "What affected users get", "Forgetting",
        "Who gains and who loses", "How it went, step by step", "Certificates", "How it was made",
        "python -m recbole_unlearn", "All 4 settings", "3.11.7",
    ]  # fmt: skip
    start = 0
    for part in parts:
        start = reader.text.index(part, start)
    assert len(reader.figures) == 7
    assert not reader.open


def test_forgetting_is_a_distance_to_retraining_with_a_floor(tmp_path, light):
    reader = Reader(report(sample(), tmp_path))
    cells = re.findall(r"\S+", forgetting(reader, "Demotion rate"))[:8]
    assert cells == ["0.811", "−0.130", "0.941", "0.025", "−0.916", "0.402", "−0.539", "0.005"]
    assert "0.540\n–\n0.240\n0.370\n0.610\n" in forgetting(reader, "Top-20 overlap, affected users")


def test_an_attack_is_shown_by_its_distance_and_its_goal(tmp_path, light):
    """A model that never saw noise tells it apart as well: neither a small nor a large AUC is good."""
    reader = Reader(report(sample(), tmp_path))
    cells = forgetting(reader, "Attack: AUC")
    assert cells.startswith("+0.080\nis 0.610\n0.590 to 0.630\n0.530\n0.510 to 0.550\n+0.400\nis 0.930\n")
    assert "Goal here: 0.530" in reader.text
    assert "Closer to it is better; smaller or larger is not." in reader.text
    assert "Attack AUC off by\n+0.080\nis 0.610\ngoal 0.530\n" in reader.text
    assert "original 0.930" not in reader.text
    assert "Attack AUC" not in Reader(report(without_retraining(), tmp_path)).text  # it has no goal there


def test_the_share_of_a_bin_and_the_change_of_a_group(tmp_path, light):
    phases = RunResult.from_json(sample()).phases
    (trace, *_) = figures.distribution(phases)["data"]
    assert sum(trace["y"]) == pytest.approx(1)
    assert len(trace["x"]) == len(trace["y"]) == 62
    bars = {trace["name"]: trace["y"] for trace in figures.damage(phases, "user_activity")["data"]}
    assert bars["unlearned"][0] == pytest.approx(0.249 - 0.156)
    assert "original" not in bars
    (first, *_) = figures.damage(phases, "item_popularity")["data"]
    assert first["x"][0] == "tail<br>2,100 test<br>interactions"


def test_every_recorded_curve_is_drawn(tmp_path, light):
    result = sample()
    result["curves"]["fine_tune"] = {
        "loss": [[1, 0.5], [2, 0.4]], "retained_loss": [[1, 0.3], [2, 0.2]], "residual": [[1, 0.1], [2, 0.01]],
        "validation": [[10, 0.2], [20, 0.25]], "own_idea": [[1, 7.0], [2, 8.0]], "empty": [],
    }  # fmt: skip
    drawn = {
        f["layout"]["yaxis"]["title"]["text"]: f["data"] for f in Reader(report(result, tmp_path)).figures
    }
    names = {title: [trace["name"] for trace in traces] for title, traces in drawn.items()}
    assert names["objective"] == ["unlearned", "fine_tune"]
    assert names["demotion rate of deleted pairs"] == ["unlearned", "retrained"]  # and its goal
    assert drawn["demotion rate of deleted pairs"][1]["y"] == [0.941, 0.941]
    assert names["loss of retained interactions"] == names["relative residual of the solver"] == ["fine_tune"]
    assert drawn["validation score"][0]["y"] == [0.2, 0.25]
    assert (drawn["own idea"][0]["x"], drawn["own idea"][0]["y"]) == ([1, 2], [7.0, 8.0])
    assert "empty" not in names


@pytest.fixture
def registry(monkeypatch):
    """The registry of measures, as it was again afterwards."""
    base.measures()  # all of them are found, and not into a copy
    monkeypatch.setattr(base.MEASURES, "entries", dict(base.MEASURES.entries))


def test_a_registered_measure_is_in_the_report(tmp_path, light, registry):
    @base.measure(
        "surprise",
        title="Surprise@{k}",
        meaning="how <odd> it is",
        good="little",
        parts={"all": ", all"},
        place=0,
    )
    def surprise(view):
        return {"surprise@5": {"all": 0.25}}

    result = sample()
    result["phases"]["unlearned"]["forgetting"]["surprise@5"] = {"all": 0.25}
    reader = Reader(report(result, tmp_path))
    cells = row(reader, "Surprise@5, all")
    assert cells.startswith("0.250\n–\n–\n–\n")
    assert "how <odd> it is\nGood: little\n" in cells
    assert reader.text.index("Surprise@5") < reader.text.index(GOOD_DEMOTION)


def test_measures_are_in_the_order_of_the_registry_and_explained_once(tmp_path, light):
    text = Reader(report(sample(), tmp_path)).text.split("\nForgetting\n")[1]
    phases = RunResult.from_json(sample()).phases
    entries = {key: None for own in phases.values() for key in own.forgetting}
    titles = [title for one in base.measures() for _, title in one.figures(entries)]
    assert len(titles) == 18
    places = [text.index(f"\n{title}\n") for title in titles]
    assert places == sorted(places)
    for one in base.measures():
        if one.of_sequences:
            assert one.meaning not in text
            continue
        assert text.count(f"\n{one.meaning}\n") == 1
        assert f"\n{one.meaning}\nGood: {one.good}\n" in text


def sequential_sample():
    """A result of a sequential model: figures at both kinds of histories."""
    result = sample(model="SASRec")
    for name, own in result["phases"].items():
        rate = own["forgetting"]["demotion_rate"]
        own["forgetting"] |= {"demotion_at_test": rate + 0.01, "uncleaned": {"demotion_rate": rate - 0.02}}
        if name == "original":
            own["forgetting"]["uncleaned"]["ndcg@20"] = 0.1234
    return result


def test_the_histories_of_a_sequential_model_have_a_section(tmp_path, light):
    reader = Reader(report(sequential_sample(), tmp_path))
    section = reader.text.split("\nCleaned and uncleaned histories\n")[1].split("\nWho gains")[0]
    assert "The original's row shows what cleaning alone does." in section
    assert "what the weights still know: they should be the retrained model's." in section
    assert "0.811\n0.791\n0.821\n" in section
    assert "\n0.1234\n" in section
    assert "Emptied" not in section  # nobody has such histories
    alone = sequential_sample()
    for name in ("retrained", "retrained_2"):
        del alone["phases"][name]
    assert "which this run does not have." in Reader(report(alone, tmp_path)).text
    for other in (
        sample(),
        sequential_sample() | {"forget": {"users": 3}, "withheld": {"min_group": 10, "why": "x"}},
    ):
        assert "uncleaned" not in Reader(report(other, tmp_path)).text.split("\nForgetting\n")[-1]


def test_compared_methods_come_after_the_references(tmp_path, light):
    """The pipeline makes phases in the order they were asked for."""
    result = RunResult.from_json(sample())
    turned = dataclasses.replace(result, phases=dict(reversed(result.phases.items())))
    assert write_report(turned, tmp_path).read_bytes() == write_report(result, tmp_path).read_bytes()


def test_every_level_of_a_verdict_has_words(tmp_path, light):
    assert tuple(opening.HEADINGS) == tuple(SHORT) == LEVELS
    result = sample() | {"verdict": {"level": "cannot_tell", "text": "Both are near."}}
    assert "These figures cannot tell\nBoth are near.\n" in Reader(report(result, tmp_path)).text


def test_a_model_that_was_loaded_has_no_time(tmp_path, light, compare):
    result = sample()
    result["phases"]["original"]["seconds"] = None
    for page in (report(result, tmp_path), compare(result)):
        assert Reader(page).text.count("\nloaded\n") == 1


def test_plotly_knows_every_property_of_the_figures(tmp_path, light, compare):
    pages = [Reader(report(sample(), tmp_path)), Reader(compare(sample(), sample("other")))]
    drawn = [figure for page in pages for figure in page.figures]
    assert len(drawn) == 9
    for figure in drawn:
        go.Figure(figure)


def test_nothing_is_remote(tmp_path, compare):
    for path in (report(sample(), tmp_path), compare(sample())):
        reader = Reader(path)
        assert not {"src", "href", "srcset", "action", "data", "poster"} & set(reader.attributes)
        assert not {"link", "a", "img", "iframe", "object", "embed", "base"} & set(reader.tags)
        assert reader.tags.count("script") == 2
        page = path.read_text()
        assert "default-src 'none'" in html.unescape(page[:1000])
        assert page.count("plotly.js v") == 1
        style = page.split("<style>")[1].split("</style>")[0]
        assert "url(" not in style
        assert "@import" not in style


def test_without_retraining_it_says_which_claims_cannot_be_made(tmp_path, light):
    text = Reader(report(without_retraining(), tmp_path)).text
    assert "No retrained model in this run." in text
    assert "--compare=retrain" in text
    assert "7,191 interactions were to be forgotten." in text
    for absent in ("Speed-up", "recovered\n", "Kolmogorov", "overlap", "floor", "Near the retrained"):
        assert absent not in text
    assert "Time to forget" in text


def paths(tree, above=()):
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


@pytest.mark.parametrize(
    "instead",
    ["absent", None, "text", [], math.nan, 10**400],
    ids=["absent", "none", "text", "list", "nan", "huge"],
)
def test_any_key_may_be_missing_or_strange(tmp_path, light, monkeypatch, instead):
    monkeypatch.setattr("recbole_unlearn.report.page.write_bytes", lambda path, content: None)
    result = sample()
    for name in ("original", "retrained_2", "fine_tune"):
        del result["phases"][name]["masked"], result["phases"][name]["groups"]["item_popularity"]
    for *above, last in list(paths(result)):
        changed = copy.deepcopy(result)
        parent = changed
        for key in above:
            parent = parent[key]
        if instead == "absent":
            del parent[last]
        else:
            parent[last] = instead
        assert report(changed, tmp_path).name == "report.html"
        assert b"</html>" in comparison.page_of([RunResult.from_json(changed)])
    assert report({}, tmp_path).name == "report.html"


def test_what_is_missing_is_never_zero(tmp_path, light):
    result = sample()
    del result["phases"]["unlearned"]["forgetting"]["demotion_rate"]
    del result["phases"]["unlearned"]["seconds"]
    result["phases"]["original"]["seconds"] = None
    reader = Reader(report(result, tmp_path))
    assert reader.text.count("Demotion rate\n") == 2  # in both tables, not among the key figures
    assert forgetting(reader, "Demotion rate").startswith("–\n0.941\n0.025\n−0.916")
    assert reader.text.count("loaded\n") == 3
    assert values.decimal(None) == values.percent(None) == values.duration(None) == "–"


def poisoned(tree):
    """Every text replaced, and a hostile key beside every other."""
    if isinstance(tree, dict):
        changed = {key: poisoned(value) for key, value in tree.items()}
        return changed | {HOSTILE: copy.deepcopy(next(iter(changed.values()), HOSTILE))}
    if isinstance(tree, list):
        return [poisoned(value) for value in tree]
    return HOSTILE if isinstance(tree, str) else tree


def test_hostile_text_stays_text(tmp_path, light, compare):
    result = poisoned(sample())
    for path in (report(result, tmp_path), compare(result)):
        reader = Reader(path)
        assert reader.tags.count("script") == 2
        assert not {"img", "a"} & set(reader.tags)
        assert not any(name.startswith("on") for name in reader.attributes)
        assert HOSTILE in reader.text
        # plotly reads markup in labels, so they are escaped once more inside a figure.
        assert "<img" not in json.dumps(reader.figures)
        assert "&lt;img" in json.dumps(reader.figures)


def test_settings_that_name_a_path_are_left_out(tmp_path, light):
    result = sample()
    result["settings"] |= {
        "a": "/home/jane/x",
        "b": "~/x",
        "c": "C:\\Users\\jane",
        "d": ["/home/jane"],
        "e": {"f": "/jane"},
    }
    text = Reader(report(result, tmp_path)).text
    assert "jane" not in text
    assert "All 4 settings" in text


def test_an_unwritable_directory_is_one_line(tmp_path, light):
    with pytest.raises(UnlearnError, match="Cannot write"):
        report(sample(), tmp_path / "missing")


def test_the_comparison_averages_seeds_and_counts_a_model_once(light, compare):
    runs = [sample(method, seed=seed) for method in ("obliviate", "other") for seed in (2020, 2023)]
    for run in runs:
        if run["method"] == "other":
            run["phases"]["unlearned"] = phase(0.2, 0.5, 0.7, 2.0, 0, near=0.5)
    reader = Reader(compare(*runs, sample(dataset="ml-1m")))
    assert "5 runs: 3 methods, 2 datasets, 1 model\n" in reader.text
    assert "ml-100k · LightGCN · injected informed" in reader.text
    first = reader.text.split("ml-100k · LightGCN")[1].split("ml-1m")[0]
    # Both methods ran with the same two seeds, so the retrained model is there twice and not four times.
    original = first.split("original\n")[1].split("retrained\n")[0].split()
    assert original[-1] == "2"
    own = [part for part in first.split("obliviate\n")[1].split("\n") if part]
    ndcg = [run["phases"]["unlearned"]["affected"]["ndcg@20"] for run in runs[:2]]
    assert own[0] == "not fully forgotten"
    assert own[1].startswith(f"{sum(ndcg) / 2:.4f} ± ")
    assert own[3] == "96%"
    assert "29.1×" in own


def test_an_exact_method_is_not_listed_beside_itself(light, compare):
    result = sample("retrain")
    result["phases"]["unlearned"] = result["phases"]["retrained"]
    text = Reader(compare(result)).text
    assert "retrain\n" not in text.replace("retrained\n", "")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ("\udcff", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "schema 1"),
        ('{"schema": 2, "phases": {"original": {}}}', "schema 1"),
        ('{"schema": 1}', "no phases"),
        ('{"schema": 1, "phases": []}', "no phases"),
    ],
    ids=["missing", "cut off", "bytes", "deep", "list", "schema", "no phases", "odd phases"],
)
def test_a_bad_directory_is_named_in_one_line(tmp_path, content, why):
    if content is not None:
        (tmp_path / "result.json").write_text(content, errors="surrogateescape")
    with pytest.raises(UnlearnError, match=why) as caught:
        write_comparison([tmp_path], tmp_path / "comparison.html")
    assert str(tmp_path / "result.json") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "comparison.html").exists()


def test_nothing_to_compare_is_an_error(tmp_path):
    with pytest.raises(UnlearnError, match="Nothing to compare"):
        write_comparison([], tmp_path / "comparison.html")


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.0312, "0.031 s"),
        (1.5, "1.5 s"),
        (99.99, "1 min 40 s"),
        (296.02, "4 min 56 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations(seconds, written):
    assert values.duration(seconds).replace("\N{NO-BREAK SPACE}", " ") == written


@pytest.mark.parametrize(
    ("largest", "step"), [(0, 1), (1, 1), (6, 1), (7, 2), (12, 2), (13, 5), (31, 10), (5000, 1000)]
)
def test_counts_over_time_have_whole_ticks(largest, step):
    drawn = figures.over_time({"done": [("2026-01-01", 0), ("2026-01-02", largest)]}, "requests", whole=True)
    axis = drawn["layout"]["yaxis"]
    assert (axis["tick0"], axis["dtick"]) == (0, step)
    assert "dtick" not in figures.over_time({"drift": [("2026-01-01", 0.5)]}, "drift")["layout"]["yaxis"]


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# A page as a phone shows it; the window of a headless Chromium is never narrower than 500 px.
PHONE = '<body style="margin:0"><iframe style="width:390px;height:844px;border:0" srcdoc="{page}"></iframe></body>'
PHONE_PROBE = """<script>
const fits = document.documentElement.scrollWidth <= innerWidth;
const head = [...document.querySelectorAll("th[scope=col]")].find(one => one.textContent.trim() === "retrained");
parent.document.body.dataset.probe = [innerWidth, fits, head.getBoundingClientRect().right <= innerWidth].join("|");
</script>"""
PROBE = """<script>
document.body.dataset.probe = [
  window.hacked, document.querySelectorAll("img, a[href]").length,
  getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector(".plot text")).fill,
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


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_chromium_draws_both_pages_in_light_and_dark(tmp_path, compare):
    broken = tmp_path / "broken.html"
    broken.write_text("<script>nobody()</script>")
    assert browse(broken, tmp_path)[1], "an error in a page must be seen for this test to mean anything"

    single, several = report(sample(), tmp_path), compare(sample(), sample("other"))
    (tmp_path / "hostile").mkdir()
    hostile = report(poisoned(sample()), tmp_path / "hostile")
    white, night = "rgb(255, 255, 255)|rgb(28, 33, 39)", "rgb(20, 23, 27)|rgb(232, 234, 237)"
    for path, dark, plots in (
        (single, False, 7), (single, True, 7), (several, False, 2), (several, True, 2), (hostile, False, 7),
    ):  # fmt: skip
        copied = path.with_name("probed.html")
        copied.write_text(path.read_text().replace("</body>", PROBE + "</body>"))
        dom, console = browse(copied, tmp_path, dark)
        assert console == []
        assert len(re.findall(r'<svg class="main-svg"', dom)) >= plots
        assert f'data-probe="|0|{night if dark else white}|true"' in dom


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_a_phone_shows_the_retrained_column_and_scrolls_only_inside_tables(tmp_path):
    page = report(sample(), tmp_path).read_text().replace("</body>", PHONE_PROBE + "</body>")
    phone = tmp_path / "phone.html"
    phone.write_text(PHONE.format(page=html.escape(page)))
    dom, console = browse(phone, tmp_path)
    assert console == []
    assert 'data-probe="390|true|true"' in dom
