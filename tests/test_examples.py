"""The examples run as they are, from another directory, and leave what they say."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT, run_command

EXAMPLES = ROOT / "examples"


def run_example(name, folder):
    """The output of an example, which is called with a directory for its files."""
    program = "bash" if name.endswith(".sh") else sys.executable
    return run_command([program, str(EXAMPLES / name), str(folder / "work")], folder)


@pytest.mark.slow
def test_a_checkpoint_and_a_csv(tmp_path):
    said = run_example("checkpoint_and_csv.sh", tmp_path)
    assert "BPR-unlearned.pth" in said
    first, second = (
        json.loads((tmp_path / "work" / day / "result.json").read_text()) for day in ("monday", "tuesday")
    )
    assert (first["forget"]["users"], second["forget"]["users"]) == (2, 1)


@pytest.mark.slow
def test_from_python_and_with_a_model_of_ones_own(tmp_path):
    assert "interactions forgotten in" in run_example("from_python.py", tmp_path)
    assert (tmp_path / "work" / "out" / "result.json").is_file()
    (tmp_path / "own").mkdir()
    said = run_example("own_model.py", tmp_path / "own")
    assert "retrained" in said
    assert "rank" in said  # recommendations of the loaded model
    result = json.loads((tmp_path / "own" / "work" / "out" / "result.json").read_text())
    assert result["model"] == "BiasedBPR"


@pytest.mark.slow
def test_a_sequential_model(tmp_path):
    said = run_example("unlearn_sequences.py", tmp_path)
    forgotten = int(re.findall(r"(\d+) interactions of 2 users forgotten", said)[0])
    before, after = (int(number) for number in re.findall(r"windows: (\d+) before, (\d+) now", said)[0])
    assert before - after == forgotten > 0
    assert "20 items recommended to 2 users, 0 of them deleted ones." in said
    assert (tmp_path / "work" / "out" / "GRU4Rec-unlearned.pth").is_file()


@pytest.mark.slow
def test_serving_with_faiss(tmp_path):
    pytest.importorskip("faiss")
    said = run_example("serve_with_faiss.py", tmp_path)
    steps = {line.split()[0]: line for line in said.splitlines() if "by the model alone" in line}
    assert list(steps) == ["before", "submitted", "done", "published", "rebuilt"]
    assert "recommended by flat, " in steps.pop("before")
    assert all("recommended by none" in line for line in steps.values())
    small, whole = (int(number) for number in re.findall(r"(\d+) of (\d+) bytes", steps["done"])[0])
    assert small < whole / 10


@pytest.mark.slow
def test_a_method_of_ones_own_is_installed_and_found(tmp_path, flags):
    """A package with an entry point and a YAML file: listed, helped, run, and refused as ours are."""
    site, copy = tmp_path / "site", shutil.copytree(EXAMPLES / "own_method", tmp_path / "source")
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site), str(copy)]
    run_command([sys.executable, *install], tmp_path)
    tool = [sys.executable, "-m", "recbole_unlearn"]
    given = ["--model=BPR", "--dataset=tiny", "--unlearn=shrink", "--compare=retrain", *flags()]
    run_command([*tool, *given], tmp_path, PYTHONPATH=str(site))
    assert "shrink" in run_command([*tool, "--unlearn=?"], tmp_path, PYTHONPATH=str(site))
    assert "--shrink_strength=0.5" in run_command([*tool, "--help"], tmp_path, PYTHONPATH=str(site))
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["method"] == "shrink"
    assert result["settings"]["shrink_strength"] == 0.5
    assert result["certificates"]["rows"] == result["forget"]["users"]


DEFAULTS = """
import dataclasses
from recbole_unlearn.methods import UnlearnTrainer, method
from recbole_unlearn.settings import setting

@dataclasses.dataclass(frozen=True)
class S:
    idle_level: int = setting("Nothing.", low=0, default=3)

@method("idle", "Do nothing.", S)
class Idle(UnlearnTrainer):
    def unlearn(self, task):
        assert task.settings.idle_level == 3
"""


@pytest.mark.slow
def test_defaults_of_declarations_and_a_broken_package(tmp_path, flags):
    """Values may come with the declarations; a package that cannot be imported does not stop the others."""
    site = tmp_path / "site"
    for name in ("broken", "idle"):
        folder = site / f"{name}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[recbole_unlearn.methods]\n{name} = {name}_method\n")
    (site / "broken_method.py").write_text("import nothing_of_this_name\n")
    (site / "idle_method.py").write_text(DEFAULTS)
    tool = [sys.executable, "-m", "recbole_unlearn", "--model=BPR", "--dataset=tiny", *flags(report="none")]
    run_command([*tool, "--unlearn=idle"], tmp_path, PYTHONPATH=str(site))
    assert json.loads((tmp_path / "out" / "result.json").read_text())["settings"]["idle_level"] == 3
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{site}", "OMP_NUM_THREADS": "1"}
    failed = subprocess.run(
        [*tool, "--unlearn=broken"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert failed.returncode == 2
    assert "method broken of another package cannot be used: ModuleNotFoundError" in failed.stderr


@pytest.mark.slow
def test_the_tutorial(tmp_path):
    """Committed without outputs; all code cells run in one file, in order, as `Restart and run all` does."""
    cells = json.loads((EXAMPLES / "tutorial.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (tmp_path / "tutorial.py").write_text("\n\n".join(code))
    assert "retrained" in run_command([sys.executable, "tutorial.py"], tmp_path, PYTHONPATH=str(EXAMPLES))
