"""README and docs are true: their commands, snippets and lists are run or compared; their site builds."""

import ast
import configparser
import importlib
import re
import shlex
import subprocess
import sys
from importlib import util

import pandas as pd
import pytest

import recbole_unlearn
from recbole_unlearn import UnlearnConfig, cli, run_unlearn
from recbole_unlearn.data import Fields, load, loaders, locate, read_request
from recbole_unlearn.measures import measures
from recbole_unlearn.measures.base import MEASURES
from recbole_unlearn.registry import METHODS
from recbole_unlearn.settings import GROUPS, declared
from recbole_unlearn.training import build_model
from tests.conftest import COLUMNS, ROOT, run_command, tiny_rows, train_plain
from tests.parts import refused

README = (ROOT / "README.md").read_text()
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
NOT_OURS = {"CUDA out of memory", "obliviate"}  # at the start of a line of docs/troubleshooting.md


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def test_the_two_sets_of_versions():
    """The second is installed without the plugin's own requirements, so its file has to name all of them."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    needed, first, second = (
        dict(re.findall(r"^([\w-]+)(?:\[tune\])?(?:==)?([\d.<>].*)$", text, re.M))
        for text in (
            setup["options"]["install_requires"],
            (ROOT / "constraints.txt").read_text(),
            (ROOT / "requirements-recbole-1.2.1.txt").read_text(),
        )
    )
    assert needed.keys() == second.keys()
    pythons = ", ".join(re.findall(r"Python :: (3\.\d+)", setup["metadata"]["classifiers"]))
    page = (ROOT / "docs" / "installation.md").read_text().lower()
    for name, version in first.items() | {("python", pythons)}:
        assert f"| {name} | {version} | {second.get(name, '3.11')} |" in page


def test_options_in_texts_are_quoted_for_the_shell():
    """--eval_args={mode: full} has to be quoted: bash makes two words of it."""
    unquoted = re.compile(r"--\w+=[\[{(]")
    assert unquoted.search("--eval_args={mode: full}")
    pages = [*PAGES, *(ROOT / "properties").rglob("*.yaml"), *(ROOT / "examples").rglob("*.[sy]*")]
    texts = {page: page.read_text() for page in pages if page.is_file()}
    for page in [*(ROOT / "recbole_unlearn").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        tree = ast.walk(ast.parse(page.read_text()))
        texts[page] = "\n".join(str(node.value) for node in tree if isinstance(node, ast.Constant))
    assert len(texts) > 100
    assert [(page, unquoted.search(text)) for page, text in texts.items() if unquoted.search(text)] == []


@pytest.mark.slow
def test_the_commands_for_a_checkpoint_and_a_csv_run(tmp_path):
    (commands,) = [block for block in blocks(README, "bash") if "train_plain.py" in block]
    for name in ("examples/", "run_unlearn.py"):
        commands = commands.replace(name, f"{ROOT}/{name}")
    run_command(["bash", "-e", "-c", commands], tmp_path)
    written = re.findall(r"^\| `([\w.-]+\.(?:pth|html|json|log))`", README, re.M)
    assert len(written) == 5
    for name in written:
        assert (tmp_path / "out" / name).is_file(), name


def test_troubleshooting_quotes_messages_that_exist():
    constants = [
        node.value
        for file in (ROOT / "recbole_unlearn").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    others = page[page.index("## Installing") : page.index("## Data")]  # errors of RecBole and torch
    symptoms = re.findall(r"^\| `[^|]*", page.replace(others, ""), re.M)
    quoted = {one for symptom in symptoms for one in re.findall(r"`([^`]+)`", symptom)} - NOT_OURS
    assert {one for one in quoted if not any(one in text for text in constants)} == set()


def test_names_of_tests_and_links_in_the_docs_lead_somewhere():
    files = (ROOT / "tests").rglob("*.py")
    defined = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    for page in (ROOT / "docs").glob("*.md"):
        named = set(re.findall(r"`(test_\w+)`", page.read_text()))
        assert named <= defined | {"test_rows_removed"}, page.name  # which is a key of result.json
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_python_snippets_of_readme_run(tmp_path, monkeypatch):
    serve, whole, pieces = blocks(README, "python")
    (tmp_path / "requests.csv").write_text("user_id,item_id\n196,242\n186,302\n")
    checkpoint = train_plain("BPR", tmp_path / "saved", dataset="ml-100k", epochs=1, embedding_size=8)
    run_unlearn(checkpoint=checkpoint, forget="requests.csv", unlearn="obliviate", output_dir="out")
    names = {}
    exec(serve, names)
    shown = names["served"].recommend(["196", "186"], k=2000, mask="requests.csv")
    assert set(shown["user"]) == {"196", "186"}
    assert not {("196", "242"), ("186", "302")} & set(zip(shown["user"], shown["item"], strict=True))

    (tmp_path / "another").mkdir()
    monkeypatch.chdir(tmp_path / "another")
    exec(whole.replace("saved/BPR-Nov-16-2026_02-03-04.pth", str(checkpoint)), names)
    for name in ("BPR-unlearned.pth", "ml-100k-Dataset.pth", "result.json", "run.log"):
        assert f"`{name}`" in README
        assert (tmp_path / "another" / "out" / name).is_file()
    config = names["outcome"].config
    splits = load(config).splits
    names |= dict(zip(("train_data", "valid_data", "test_data"), loaders(config, splits), strict=True)) | {
        "config": config.to_recbole(), "model": build_model(config, splits),
        "trainer": type("T", (), {"optimizer": None}),
    }  # fmt: skip
    exec(pieces, names)
    assert len(names["unlearned"].data.forget) == 1
    assert re.fullmatch(r"Unlearned\(\w+, 1 training interactions forgotten in [\d.e-]+ s\)", str(names["unlearned"]))


def test_the_example_of_a_new_method_works(settings, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "extending.md").read_text()
    (code, _), (values,) = blocks(page, "python"), blocks(page, "yaml")
    (tmp_path / "example_method.py").write_text(code)
    (tmp_path / "example.yaml").write_text(values)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(METHODS, "entries", {known.name: known for known in METHODS.all()})
    importlib.import_module("example_method")
    own = settings | {"example_epochs": 3, "unlearn": "example", "compare": "retrain"}
    result = run_unlearn("BPR", "tiny", config_dict=own).result
    assert result["phases"]["unlearned"]["metrics"] != result["phases"]["original"]["metrics"]
    assert (result["settings"]["example_epochs"], len(result["curves"]["unlearned"]["loss"])) == (3, 3)


@pytest.mark.parametrize("wrong", [False, True])
def test_the_example_of_a_new_measure_works_and_one_that_is_not_finite_is_named(settings, monkeypatch, wrong):
    code = blocks((ROOT / "docs" / "extending.md").read_text(), "python")[1]
    monkeypatch.setattr(MEASURES, "entries", {one.key: one for one in measures()})
    exec(code.replace("double().mean()", "double().mean() * torch.nan") if wrong else code, {})
    own = {"unlearn": "finetune", "config_dict": settings | {"report": "none"}}
    if wrong:
        refused("phases / original / forgetting / never_first is not a finite", run_unlearn, "BPR", "tiny", **own)
    else:
        phases = run_unlearn("BPR", "tiny", **own).result["phases"].values()
        assert all(0 < phase["forgetting"]["never_first"] <= 1 for phase in phases)


def test_the_requests_of_the_docs_mean_what_they_say(ml_100k, tmp_path):
    page = (ROOT / "docs" / "deletion-requests.md").read_text()
    (file,) = [block for block in blocks(page, "text") if block.startswith("user_id")]
    (forms,) = [block for block in blocks(page, "python") if block.startswith("forget = ")]
    (tmp_path / "requests.csv").write_text(file)
    source = load(UnlearnConfig("BPR", "ml-100k", config_dict=ml_100k("BPR") | {"load_col": COLUMNS}))
    splits = source.splits
    names = ("user_id", "item_id")
    frames = [pd.DataFrame({name: part.id2token(name, part.inter_feat[name]) for name in names}) for part in splits]
    pairs = pd.concat(frames).to_numpy().tolist()
    of_22, of_50 = sum(user == "22" for user, _ in pairs), sum(item == "50" for _, item in pairs)
    both, of_196 = sum(pair == ["22", "50"] for pair in pairs), sum(user == "196" for user, _ in pairs)
    expected = [2 + of_22 + of_50 - both, of_22, of_22 + of_196, 1 + of_22 + of_50 - both, 1, 1, 2]
    for line, number in zip(forms.strip().splitlines(), expected, strict=True):
        names = {"pd": pd}
        exec(line, names)
        request = read_request(names["forget"], Fields("user_id", "item_id", "timestamp"))
        located = locate(request, splits, clock=source.clock)
        assert sum(int(mask.sum()) for mask in (located.train, located.valid, located.test)) == number, line


@pytest.mark.parametrize("of_sequences", [False, True])
def test_every_measure_is_in_the_json_the_table_the_report_and_the_docs(settings, tmp_path, of_sequences):
    """A whole user has emptied histories, the others have cleaned ones; every key of result.json is documented."""
    rows = [row[:2] for number, row in enumerate(tiny_rows()) if number % 6 and int(row[0][1:]) < 20]
    model, request, own = "BPR", tuple(zip(*rows, strict=True)), {"unlearn": "obliviate"}
    if of_sequences:
        del settings["embedding_size"]
        model, request = "GRU4Rec", pd.DataFrame({"user_id": ["u1", None], "item_id": [None, "i5"]})
        own = {"hidden_size": 8, "MAX_ITEM_LIST_LENGTH": 6, "epochs": 1, "eval_step": 1, "unlearn": "finetune"}
    outcome = run_unlearn(model, "tiny", forget=request, compare="retrain", config_dict=settings | own)
    page, keys = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("measuring", "result-json"))
    assert not [key for key in {*outcome.result, *outcome.result["phases"]["original"]} if f"`{key}`" not in keys]
    report = (tmp_path / "out" / "report.html").read_text()
    found = outcome.result["phases"]["unlearned"]["forgetting"]
    for one in (known for known in measures() if known.of_sequences == of_sequences):
        # Exposure is of drawn requests alone: tests/data/test_protocols.py.
        assert one.key == "exposure" or [key for key in found if key.split("@")[0] == one.key], one.key
        assert re.search(rf"`{one.key}(@\w+)?`", page), one.key
        for _, title in one.figures(found):
            assert title in str(outcome), title
            assert title in report, title


def plain_words(text):
    """Output without what differs from run to run: hashes, numbers, paths and the widths of tables."""
    text = re.sub(r"\b[0-9a-f]{64}\b|\d[\d.,:-]*(e-\d+)?", "#", text)
    text = re.sub(r"/\S*/|-{3,}", "", text)
    return [line.split() for line in text.splitlines() if line.strip()]


@pytest.mark.slow
def test_the_commands_of_requests_print_what_the_page_says(tmp_path, capsys):
    page = (ROOT / "docs" / "requests.md").read_text()
    checkpoint = train_plain("BPR", tmp_path / "saved", dataset="ml-100k", epochs=3, embedding_size=16)
    page = page.replace('"$(ls -t saved/BPR-*.pth | head -1)"', str(checkpoint))
    parts = re.findall(r"```bash\n(.*?)```\n\n```text\n(.*?)```|```python\n(.*?)```", page, re.S)
    assert len(parts) == 9
    for commands, expected, code in parts:
        capsys.readouterr()
        exec(code, {})
        for line in [] if code else commands.splitlines():
            if line.startswith("recbole-unlearn requests"):
                own, _, other = line.partition(" || echo ")
                failed = cli.main(shlex.split(own)[1:])
                assert other or not failed, line
                if failed:
                    print(*shlex.split(other))
            elif "train_plain.py" not in line:
                subprocess.run(["bash", "-e", "-c", line], check=True)
        if not code:
            assert plain_words(capsys.readouterr().out) == plain_words(expected)
    assert (tmp_path / "receipt-T-1043.html").is_file()


# A page may link to the web; it may not load anything from there.
FETCHES = re.compile(
    r"""<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|srcset|href)=["']?(?:https?:)?//"""
    r"""|@import\s+(?:url\()?["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)
HAS_SPHINX = all(util.find_spec(package) for package in ("sphinx", "myst_parser", "furo"))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_SPHINX, reason="Sphinx with its theme is not installed")
def test_the_site(tmp_path):
    site = tmp_path / "html"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(ROOT / "docs")]
    run_command([*command, "-d", str(tmp_path / "work"), str(ROOT), str(site)], tmp_path)
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    home = (site / "index.html").read_text()
    for page in pages:
        assert (site / page.relative_to(ROOT)).with_suffix(".html").is_file()
        assert page == pages[0] or page.relative_to(ROOT).with_suffix(".html").as_posix() in home
    looked = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(looked) > 20
    for path in looked:
        assert not FETCHES.search(path.read_text()), path.name

    named = {
        "python": recbole_unlearn.__all__, "settings": [key for group in GROUPS.values() for key in declared(group)],
        "methods": [key for method in METHODS.all() for key in declared(method.Settings)],
        "measures": [one.key for one in measures()], "result": ["RunResult", "PhaseResult", "Verdict"],
    }  # fmt: skip
    for page, names in named.items():
        text = (site / "docs" / "api" / f"{page}.html").read_text()
        assert [name for name in names if name not in text and not name.startswith("__")] == []
