"""Grids: reading the file, running, continuing, failing, and the files of the output directory."""

import importlib
import json
import re
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn import cli, run_grid, run_unlearn
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.grid import run as grid_run
from recbole_unlearn.registry import METHODS
from recbole_unlearn.settings import properties_dir
from tests.conftest import ROOT
from tests.parts import refused

GOOD = {
    "datasets": ["ml-100k"], "models": ["BPR", "LightGCN"], "methods": ["retrain", "obliviate", "finetune"],
    "seeds": [1, 2], "ratios": [0.05, 0.2],
}  # fmt: skip


def write(path, content):
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.fixture
def file(tmp_path):
    return lambda content: write(tmp_path / "grid.yaml", content)


def test_a_cell_is_a_run_with_all_methods_and_blocks_share_the_keys_next_to_them(file):
    shared = {key: GOOD[key] for key in ("methods", "seeds", "ratios")}
    shared["settings"] = {"epochs": 3, "finetune_epochs": 2}
    blocks = [
        {"datasets": ["ml-100k"], "models": ["BPR", "LightGCN"]},
        {"datasets": "ml-1m", "models": "BPR", "seeds": 7, "settings": {"finetune_epochs": 9}},
    ]
    cells = grid_run.load(file(shared | {"grids": blocks}), {"epochs": 4})
    names = [f"ml-100k-{m}-{r}-{s}" for m in ("BPR", "LightGCN") for r in ("0.05", "0.2") for s in (1, 2)]
    assert [cell.name for cell in cells] == [*names, "ml-1m-BPR-0.05-7", "ml-1m-BPR-0.2-7"]
    assert cells[0].methods == ("obliviate", "retrain", "finetune")  # first the method that is not retraining
    config = cells[0].config()
    assert (config["seed"], config["inject_users"], config["unlearn"]) == (1, 0.05, "obliviate")
    assert config["compare"] == ["retrain", "finetune"]
    assert (config["epochs"], config["workers"], config["save_unlearned"]) == (4, 1, False)
    assert [cell.config().method_values("finetune")["finetune_epochs"] for cell in cells] == [2] * 8 + [9] * 2


def unchecked(content):
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(grid_run, "_checked", lambda cell: {"settings": {"inject_mode": "random"}})
        path = write(Path(folder) / "grid.yaml", content)
        try:
            return grid_run.load(path), None
        except UnlearnError as error:
            assert "\n" not in str(error)
            assert str(path) in str(error)
            return None, str(error)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([*GOOD, "settings", "grids", "models "]), ANY)
def test_any_file_is_read_or_refused_in_one_line(key, value):
    cells, error = unchecked(GOOD | {key: value})
    assert cells or error


@pytest.mark.parametrize(("content", "message"), [
    ("", "is empty"),
    ("models: [BPR]\nmodels: [DMF]\n", r"models is there twice \(line 2\)"),
    ("models: !!python/object/apply:os.system ['true']\n", "is not valid YAML"),
    (GOOD | {"modles": ["BPR"]}, r"unknown key 'modles'\. Did you mean models\?"),
    ({k: v for k, v in GOOD.items() if k != "datasets"}, r"datasets is missing; expected for example datasets: \[ml"),
    (GOOD | {"models": ["DIEN"]}, "DIEN is a sequential model"),
    (GOOD | {"seeds": None}, "seeds is empty"),
    (GOOD | {"methods": ["obliviate"]}, "retrain is missing"),
    (GOOD | {"ratios": [0.2, 0]}, "ratios: 0 is not a share of users"),
    (GOOD | {"seeds": [1.5]}, "seeds: 1.5 is not a seed"),
    (GOOD | {"datasets": ["../ml"]}, "is not a name"),
    (GOOD | {"settings": {"sisa_shards": 3}}, "sisa_shards is a setting of sisa, but this run uses"),
    (GOOD | {"settings": {"report": "out"}}, "report is html or none"),
    (GOOD | {"settings": {"seed": 3}}, "list its values under seeds"),
    (GOOD | {"settings": {"workers": 2}}, "workers is not a setting of the runs"),
    (GOOD | {"grids": {}}, "grids is not a list"),
    (GOOD | {"grids": [{}, {"grids": [{}]}]}, "grid 2: unknown key 'grids'"),
    (GOOD | {"grids": [{}, {}]}, "the cell: ml-100k-BPR-0.05-1 is there twice"),
    (GOOD | {"seeds": list(range(5001))}, "more than 10000"),
])  # fmt: skip
def test_bad_files_are_refused_in_one_line(file, content, message):
    path = file(content)
    assert str(path) in refused(message, grid_run.load, path)


def test_all_that_is_wrong_with_a_file_is_said_at_once(file):
    wrong = {"models": ["LightGNC", "BPR", "nowhere:Own"], "seeds": [1.5, 2], "requests": ["none.csv"], "odd": 1}
    said = refused("^.*grid.yaml: 5 problems: ", grid_run.load, file(GOOD | wrong))
    for part in (
        "(1) unknown key 'odd'",
        "(2) seeds: 1.5 is not",
        "(3) requests: 'none.csv' is not a file",
        "Did you mean LightGCN",
    ):
        assert part in said
    said = refused("3 problems", grid_run.load, file(GOOD | {"models": wrong["models"], "settings": {"epoch": 3}}))
    for part in ("Did you mean LightGCN", "Unknown setting 'epoch'", "The module nowhere"):
        assert said.count(part) == 1
    wrong = {
        "methods": ["retrian"],
        "models": ["LightGNC", "BPR"],
        "settings": {"epoch": 3},
        "config_files": "none.yaml",
    }
    said = refused("4 problems", grid_run.load, file(GOOD | wrong))
    for part in ("no file none.yaml", "Unknown setting 'epoch'", "mean retrain?", "mean LightGCN?"):
        assert said.count(part) == 1
    blocks = {"grids": [{"seeds": None}, {}, {"modles": 1}]}
    assert "grid 3: unknown key" in refused("grid 1: seeds is empty", grid_run.load, file(GOOD | blocks))


def test_requests_own_models_config_files_and_data_paths(file, settings, tmp_path, monkeypatch):
    """Two files of requests of one model class in the working directory, with RecBole's settings in a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_model.py").write_text(
        "from recbole.model.general_recommender import BPR\n\n\nclass Own(BPR): ...\n"
    )
    for name, user in (("first", "u1"), ("second", "u2")):
        (tmp_path / f"{name}.csv").write_text(f"user_id,item_id\n{user},\n")
    kept = ("data_path", "load_col", "epochs", "embedding_size", "cache_dir", "min_group", "train_batch_size")
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({key: settings[key] for key in kept}))
    content = {"datasets": ["tiny"], "models": ["own_model:Own"], "methods": ["retrain", "finetune"], "seeds": 1,
               "requests": ["first.csv", "second.csv"], "config_files": "own.yaml",
               "settings": {"epochs": 1, "report": "none"}}  # fmt: skip
    path, given = file(content), {"workers": 1, "show_progress": False, "output_dir": str(tmp_path / "grid")}
    result = run_grid(path, config_dict=given)
    assert [cell.name for cell in result.cells] == ["tiny-Own-first-1", "tiny-Own-second-1"]
    assert (result.failed, [cell.request for cell in result.cells]) == ({}, ["first", "second"])
    held = json.loads((tmp_path / "grid" / "tiny-Own-first-1" / "result.json").read_text())
    assert (held["model"], held["settings"]["epochs"], held["forget"]["users"]) == ("Own", 1, 1)
    tables = (tmp_path / "grid" / "tables.md").read_text()
    assert all(f"tiny · file {name}" in tables for name in ("first", "second"))
    assert "Missing" not in tables
    assert "tiny · file second" in (tmp_path / "grid" / "comparison.html").read_text()
    (tmp_path / "first.csv").write_text("user_id,item_id\nu3,\n")  # its result is of another request
    refused("older than first.csv", run_grid, path, config_dict=given)


def test_the_files_that_come_along_and_the_example_of_the_documentation(file, monkeypatch):
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "many-runs.md").read_text(), re.S)
    cells = grid_run.load(file(example))
    assert (len(cells), cells[-1].values["epochs"]) == (2 * 3 + 1, 30)
    assert all(cell.values["cache_size"] == 20.0 for cell in cells)
    folder = properties_dir() / "grid"
    assert {path.stem for path in folder.glob("*.yaml")} == {"smoke", "machine", "paper"}
    every = {method.name for method in METHODS.all() if not method.name.startswith("given")} - {"downdate"}
    paper = grid_run.load(folder / "paper.yaml")
    assert len(paper) == 3 * 2 * 3 * 5
    assert all(set(cell.methods) == every for cell in paper)
    assert {cell.dataset for cell in grid_run.load(folder / "smoke.yaml")} == {"ml-100k"}
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for cell in grid_run.load(folder / "machine.yaml"):
        expected = importlib.import_module("trainings").settings_of(cell.model, cell.dataset)
        assert ({key: cell.values[key] for key in expected}, cell.config()["embedding_size"]) == (expected, 64)


@pytest.fixture
def small(file, settings, tmp_path):
    """A grid of two runs on `tiny`, and how it is given to `run_grid`."""
    path = file(
        {"datasets": ["tiny"], "models": ["BPR"], "methods": ["retrain", "obliviate", "no_lac"], "seeds": [1, 2],
         "ratios": [0.2], "settings": {"inject_mode": "random", "epochs": 2, "report": "none"}}
    )  # fmt: skip
    given = {k: v for k, v in settings.items() if k not in ("checkpoint_dir", "epochs", "tensorboard")}
    return path, given | {"workers": 1, "show_progress": False, "output_dir": str(tmp_path / "grid")}


@pytest.fixture
def watched(monkeypatch):
    """``watched({"-1": error})``: a list of the cells that are run from then on; those named raise."""
    real = grid_run.opened

    def watch(fail=()):
        ran = []

        def opened(*args, output_dir, **given):
            ran.append(Path(output_dir).name)
            for part, error in dict(fail).items():
                if ran[-1].endswith(part):
                    raise error
            return real(*args, output_dir=output_dir, **given)

        monkeypatch.setattr(grid_run, "opened", opened)
        return ran

    return watch


def command(path, given, *more):
    return cli.main([f"--grid={path}", *(f"--{key}={value}" for key, value in given.items()), *more])


FIRST, SECOND = "tiny-BPR-0.2-1", "tiny-BPR-0.2-2"


def test_a_grid_from_the_command_line(small, watched, tmp_path, capsys):
    path, given = small
    ran, out = watched(), tmp_path / "grid"
    assert command(path, given, "--report=html") == 0
    shown = capsys.readouterr().out
    assert ran == [FIRST, SECOND]
    for name in ran:
        assert name in shown
        found = {file.name for file in (out / name).iterdir()}
        assert found == {"result.json", "report.html", "run.log", "cell.json"}
    assert all(str(out / name) in shown for name in ("comparison.html", "tables.md", "tables.tex"))
    assert not (out / "failed.json").exists()
    # The same run by hand gives the same figures.
    first, second = (json.loads((out / name / "result.json").read_text())["phases"] for name in ran)
    values = {k: v for k, v in given.items() if k not in ("output_dir", "workers")}
    values |= {"seed": 1, "inject_mode": "random", "epochs": 2, "tensorboard": False, "unlearn": "obliviate"}
    alone = run_unlearn("BPR", "tiny", compare=["retrain", "no_lac"], config_dict=values).result["phases"]
    for name, phase in alone.items():
        assert first[name]["metrics"] == phase["metrics"]
    tables = (out / "tables.md").read_text()
    mean = sum(phases["unlearned"]["metrics"]["ndcg@20"] for phases in (first, second)) / 2
    assert f"{mean:.4f} ±" in tables
    # Finished cells are not done again; page and tables are written again.
    (out / "tables.md").unlink()
    assert (command(path, given), len(ran)) == (0, 2)
    assert (out / "tables.md").read_text() == tables
    capsys.readouterr()
    assert cli.main([f"--report={out}", f"--output_dir={tmp_path / 'page'}"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "page" / "comparison.html")
    assert (tmp_path / "page" / "tables.md").read_text() == tables
    # More seeds cost only themselves; other settings or methods are not mixed in.
    more = yaml.safe_load(path.read_text())
    wider = run_grid(write(path, more | {"seeds": [1, 2, 3]}), config_dict=given)
    assert [cell.name for cell in wider.cells] == ran == [FIRST, SECOND, "tiny-BPR-0.2-3"]
    figures = json.loads((wider.output_dir / FIRST / "result.json").read_text())["phases"]["unlearned"]["metrics"]
    assert figures == alone["unlearned"]["metrics"]
    for key, value in (("epochs", 3), ("rank", 4)):
        refused(rf"other (methods_)?settings .*{key}\.", run_grid, path, config_dict=given | {key: value})
    refused("other methods", run_grid, write(path, more | {"methods": ["retrain", "obliviate"]}), config_dict=given)
    assert len(ran) == 3


def test_a_failing_cell_does_not_stop_the_others_and_is_tried_again_alone(small, watched, tmp_path, capsys):
    path, given = small
    out = tmp_path / "grid"
    watched({"-1": UnlearnError("no way."), "-2": ValueError()})
    refused(r"^All 2 cells of the grid failed; the first one: no way\.$", run_grid, path, config_dict=given)
    assert json.loads((out / "failed.json").read_text()) == {FIRST: "no way.", SECOND: "ValueError"}
    ran = watched({"-1": ZeroDivisionError("by accident\nand a long story")})
    result, reason = run_grid(path, config_dict=given), "ZeroDivisionError: by accident"
    assert result.failed == json.loads((out / "failed.json").read_text()) == {FIRST: reason}
    assert f"{FIRST} failed: {reason}" in str(result)
    assert not (out / FIRST).exists()
    tables = (out / "tables.md").read_text()
    assert f"- {FIRST}: {reason}" in tables
    # The command line tells it by its exit code, and shows what there is.
    assert command(path, given) == 1
    shown = capsys.readouterr()
    assert SECOND in shown.out
    assert "1 of 2 cells failed; the same command tries them again." in shown.err
    assert ran == [FIRST, SECOND, FIRST]
    again = watched()
    assert (run_grid(path, config_dict=given).failed, again) == ({}, [FIRST])
    assert not (out / "failed.json").exists()
    assert "Missing" not in (out / "tables.md").read_text()


def test_an_interrupt_and_a_full_disk_keep_finished_cells(small, watched, monkeypatch, tmp_path, capsys):
    path, given = small
    out = tmp_path / "grid"
    watched({"-2": KeyboardInterrupt()})
    assert command(path, given) == 130
    assert "finished cells are kept" in capsys.readouterr().err
    assert (out / FIRST / "result.json").is_file()
    assert cli.main([f"--report={out}"]) == 0  # of what is there
    assert f"- {SECOND}: not done yet" in (tmp_path / "tables.md").read_text()
    # A directory that a killed process was filling is no result.
    half = out / f".{SECOND}.x.tmp"
    half.mkdir()
    (half / "result.json").write_text("{")
    ran, real = watched(), Path.write_bytes

    def full(self, data):
        if self.name == "result.json":
            raise OSError(28, "No space left on device")
        return real(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        refused("No space left on device", run_grid, path, config_dict=given)
    assert not (out / SECOND).exists()
    assert (run_grid(path, config_dict=given).failed, ran) == ({}, [SECOND, SECOND])


def test_bad_arguments_are_refused_before_training(small, watched, tmp_path):
    path, given = small
    ran = watched()
    for file, changes, message in (
        (path, {"model": "BPR"}, "list its values under models"),
        (path, {"checkpoint": "x.pth"}, "checkpoint is not a setting of the runs"),
        (path, {"workers": 0}, "workers=0"),
        (path, {"data_path": str(tmp_path / "nowhere")}, r"Unknown dataset \[tiny\]"),
        (path, {"ray_address": "127.0.0.1:1"}, "Cannot connect to the Ray cluster"),
        *((file, {}, "--grid") for file in (True, "", "nowhere.yaml")),
    ):
        refused(message, run_grid, file, config_dict=given | changes)
    refused("run_grid", run_unlearn, "BPR", "tiny", config_dict=given | {"grid": str(path)})
    write(path, yaml.safe_load(path.read_text()) | {"datasets": ["tiny", "tinny"]})
    refused(r"Unknown dataset \[tinny\]", run_grid, path, config_dict=given)
    assert ran == []
