"""README and docs are true: their commands, snippets and lists are run or compared."""

import dataclasses
import importlib
import json
import re

import pandas as pd
import pytest

import recbole_unlearn
from recbole_unlearn import UnlearnConfig, run_unlearn
from recbole_unlearn.data import Fields, load, loaders, locate, read_request
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


def test_the_requests_of_the_docs_mean_what_they_say(ml_100k, tmp_path):
    """docs/forget-sets.md: the file and every Python form are found in ml-100k."""
    page = (ROOT / "docs" / "forget-sets.md").read_text()
    (file,), (forms,) = blocks(page, "csv"), blocks(page, "python")
    (tmp_path / "requests.csv").write_text(file)
    columns = {"load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"]}}
    source = load(UnlearnConfig("BPR", "ml-100k", config_dict=ml_100k("BPR") | columns))
    splits = source.splits
    pairs = pd.concat(
        pd.DataFrame({field: part.id2token(field, part.inter_feat[field]) for field in ("user_id", "item_id")})
        for part in splits
    ).to_numpy().tolist()  # fmt: skip
    of_22, of_50 = sum(user == "22" for user, _ in pairs), sum(item == "50" for _, item in pairs)
    both, of_196 = sum(pair == ["22", "50"] for pair in pairs), sum(user == "196" for user, _ in pairs)
    expected = [2 + of_22 + of_50 - both, of_22, of_22 + of_196, 1 + of_22 + of_50 - both, 1, 1, 2]
    for line, number in zip(forms.strip().splitlines(), expected, strict=True):
        names = {"pd": pd}
        exec(line, names)
        request = read_request(names["forget"], Fields("user_id", "item_id", "timestamp"))
        located = locate(request, splits, clock=source.clock)
        assert sum(int(mask.sum()) for mask in (located.train, located.valid, located.test)) == number, line


def test_every_key_of_a_result_is_documented(settings):
    outcome = run_unlearn("BPR", "tiny", forget={"user_id": "u1"}, config_dict=settings)
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
