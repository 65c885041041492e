"""README and docs are true: their commands, snippets and lists are run or compared."""

import ast
import dataclasses
import importlib
import json
import re

import pytest

import recbole_unlearn
from recbole_unlearn import run_unlearn
from recbole_unlearn.data import load, loaders
from recbole_unlearn.measures.base import measures
from recbole_unlearn.methods import UnlearnTrainer, method
from recbole_unlearn.settings import catalogue
from recbole_unlearn.training import build_model
from tests.conftest import ROOT, train_plain

README = (ROOT / "README.md").read_text()


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def test_ci_runs_the_test_command_of_readme():
    command = next(block for block in blocks(README, "bash") if "pytest" in block).strip()
    assert command in (ROOT / ".ci" / "run").read_text()


def test_both_commands_are_on_the_first_screen():
    first = "\n".join(README.splitlines()[:30])
    assert "python run_unlearn.py --model=LightGCN --dataset=ml-100k" in first
    assert 'pip install -c constraints.txt -e ".[test]" && pytest' in first


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def texts_of(path):
    """All texts of a Python file, with WORD for what an f-string fills in; the whole of any other file."""
    if path.suffix != ".py":
        return [path.read_text()]
    found, parts = [], set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(value) for value in node.values}
            found.append("".join(getattr(value, "value", "") if isinstance(value, ast.Constant) else "WORD"
                                 for value in node.values))  # fmt: skip
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            found.append(node.value)
    return found


def test_what_people_are_told_to_type_is_not_taken_apart_by_a_shell():
    """--eval_args={mode: full} has to be quoted: bash makes two words of it."""
    unquoted = re.compile(r"--\w+=[\[{(]")
    assert unquoted.search("--eval_args={mode: full}")
    assert not unquoted.search("--eval_args='{mode: full}' --metrics=NDCG")
    pages = [*(ROOT / "recbole_unlearn").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    pages += [*(ROOT / "properties").rglob("*.yaml"), *(ROOT / "examples").rglob("*.*")]
    assert len(pages) > 100
    for page in pages:
        if page.suffix in (".py", ".md", ".yaml", ".sh"):
            for text in texts_of(page):
                assert not unquoted.search(text), f"{page}: {unquoted.search(text)}"


def test_the_python_snippets_of_readme_run(tmp_path):
    checkpoint = train_plain("BPR", tmp_path / "saved", dataset="ml-100k", epochs=1, embedding_size=8)
    whole, pieces = blocks(README, "python")
    whole = whole.replace("saved/BPR-Nov-16-2026_02-03-04.pth", str(checkpoint))
    names = {}
    exec(whole, names)
    outcome = names["outcome"]
    for name in ("BPR-unlearned.pth", "ml-100k-Dataset.pth", "result.json", "run.log"):
        assert f"`{name}`" in README
        assert (tmp_path / "out" / name).is_file()
    config = outcome.config
    splits = load(config).splits
    train_data, valid_data, test_data = loaders(config, splits)
    given = {
        "config": config.to_recbole(), "model": build_model(config, splits), "train_data": train_data,
        "valid_data": valid_data, "test_data": test_data,
        "trainer": type("T", (), {"optimizer": None}),
    }  # fmt: skip
    exec(pieces, given)
    assert len(given["unlearned"].data.forget) == 1


def test_public_names_exist():
    for name in recbole_unlearn.__all__:
        assert getattr(recbole_unlearn, name) is not None
    with pytest.raises(AttributeError):
        _ = recbole_unlearn.nothing


def test_the_example_of_a_new_method_works(settings, tmp_path, monkeypatch):
    """docs/adding-a-method.md: one file and one YAML beside it, and it runs, is listed and has settings."""
    page = (ROOT / "docs" / "adding-a-method.md").read_text()
    (code,), (values,) = blocks(page, "python"), blocks(page, "yaml")
    (tmp_path / "example_method.py").write_text(code)
    (tmp_path / "example.yaml").write_text(values)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalogue, "_METHODS", {known.name: known for known in catalogue.methods()})
    importlib.import_module("example_method")
    outcome = run_unlearn(
        "BPR", "tiny", unlearn="example", compare="retrain", config_dict=settings | {"example_epochs": 3}
    )
    phases = outcome.result["phases"]
    assert list(phases) == ["original", "unlearned", "retrained"]
    assert outcome.result["settings"]["example_epochs"] == 3
    assert outcome.result["speedup"] > 0
    assert phases["unlearned"]["metrics"] != phases["original"]["metrics"]
    assert len(outcome.result["curves"]["unlearned"]["loss"]) == 3


def test_an_approximate_method_resets_rows_nobody_trained(settings, tmp_path, monkeypatch):
    """The base class gives a deleted user the row a new model has, whatever the method did to it."""

    @dataclasses.dataclass(frozen=True)
    class Nothing:
        """No settings."""

    class Idle(UnlearnTrainer):
        """Leaves the original as it is."""

        def unlearn(self, task):
            pass

    monkeypatch.setattr(catalogue, "_METHODS", {known.name: known for known in catalogue.methods()})
    method("idle", "Do nothing.", Nothing)(Idle)
    outcome = run_unlearn("BPR", "tiny", unlearn="idle", forget={"user_id": ["u5"]}, config_dict=settings)
    row = outcome.data.full.train.token2id("user_id", "u5")
    fresh = build_model(outcome.config, outcome.data.retain)
    weight, initial = outcome.model.user_embedding.weight, fresh.user_embedding.weight
    assert (weight[row] == initial[row]).all()
    assert (weight[row + 1] != initial[row + 1]).any()


def test_every_key_of_a_result_is_documented(settings):
    outcome = run_unlearn("BPR", "tiny", config_dict=settings)
    page = (ROOT / "docs" / "result-json.md").read_text()
    keys = set(outcome.result) | set(outcome.result["phases"]["original"])
    assert not [key for key in keys if f"`{key}`" not in page]
    json.dumps(outcome.result, allow_nan=False)


def test_every_measure_is_in_the_json_the_table_the_report_and_the_docs(settings, tmp_path):
    values = settings | {"inject_users": 0.5}
    outcome = run_unlearn("BPR", "tiny", unlearn="obliviate", compare="retrain", config_dict=values)
    page = (ROOT / "docs" / "measuring.md").read_text()
    report = (tmp_path / "out" / "report.html").read_text()
    found = outcome.result["phases"]["unlearned"]["forgetting"]
    for one in measures():
        keys = [key for key in found if key.split("@")[0] == one.key]
        assert keys, one.key
        assert re.search(rf"`{one.key}(@\w+)?`", page), one.key
        for _, title in one.figures(found):
            assert title in str(outcome), title
            assert title in report, title
