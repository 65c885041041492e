"""The examples run as they are, from another directory, and leave what they say."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.background_commands import Beside
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"


def run(command, folder, **environment):
    """Run a command; its output, or a failure with what it said."""
    given = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
    }
    paths = [str(ROOT), *([environment.pop("PYTHONPATH")] if "PYTHONPATH" in environment else [])]
    done = subprocess.run(
        command, cwd=folder, env=given | environment | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def script(test, name):
    """An example that is called with a directory for what it leaves."""
    program = "bash" if name.endswith(".sh") else sys.executable
    return Beside(f"test_examples.py::{test}", [program, str(EXAMPLES / name), "FOLDER/work"])


CHECKPOINT_AND_CSV = script("test_a_checkpoint_and_a_csv", "checkpoint_and_csv.sh")
FROM_PYTHON = script("test_from_python", "from_python.py")
OWN_MODEL = script("test_a_model_of_ones_own", "own_model.py")
SEQUENCES = script("test_a_sequential_model", "unlearn_sequences.py")
WITH_FAISS = script("test_serving_with_faiss", "serve_with_faiss.py")


@pytest.mark.slow
def test_a_checkpoint_and_a_csv():
    said, folder = CHECKPOINT_AND_CSV.wait(), CHECKPOINT_AND_CSV.folder
    assert "BPR-unlearned.pth" in said
    first, second = (
        json.loads((folder / "work" / day / "result.json").read_text()) for day in ("monday", "tuesday")
    )
    assert (first["forget"]["users"], second["forget"]["users"]) == (2, 1)


@pytest.mark.slow
def test_from_python():
    said, folder = FROM_PYTHON.wait(), FROM_PYTHON.folder
    assert "interactions forgotten in" in said
    assert (folder / "work" / "out" / "result.json").is_file()


@pytest.mark.slow
def test_a_model_of_ones_own():
    said, folder = OWN_MODEL.wait(), OWN_MODEL.folder
    assert "retrained" in said
    assert json.loads((folder / "work" / "out" / "result.json").read_text())["model"] == "BiasedBPR"
    assert "rank" in said  # recommendations of what was loaded again


@pytest.mark.slow
def test_a_sequential_model():
    said, folder = SEQUENCES.wait(), SEQUENCES.folder
    forgotten = int(re.findall(r"(\d+) interactions of 2 users forgotten", said)[0])
    before, after = (int(number) for number in re.findall(r"windows: (\d+) before, (\d+) now", said)[0])
    assert before - after == forgotten > 0
    assert "20 items recommended to 2 users, 0 of them deleted ones." in said
    assert (folder / "work" / "out" / "GRU4Rec-unlearned.pth").is_file()


@pytest.mark.slow
def test_serving_with_faiss():
    pytest.importorskip("faiss")
    said = WITH_FAISS.wait()
    steps = {line.split()[0]: line for line in said.splitlines() if "by the model alone" in line}
    assert list(steps) == ["before", "submitted", "done", "published", "retrained"]
    assert "recommended by flat, " in steps.pop("before")
    assert all("recommended by none" in line for line in steps.values())
    small, whole = (int(number) for number in re.findall(r"(\d+) of (\d+) bytes", steps["done"])[0])
    assert small < whole / 10


@pytest.mark.slow
def test_a_method_of_ones_own_is_installed_and_found(tmp_path, flags):
    """A package with an entry point and a YAML file: listed, helped, run, and refused as ours are."""
    site = tmp_path / "site"
    copy = tmp_path / "source"
    run(["cp", "-r", str(EXAMPLES / "own_method"), str(copy)], tmp_path)
    run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site),
         str(copy)],
        tmp_path,
    )  # fmt: skip
    tool = [sys.executable, "-m", "recbole_unlearn"]
    given = ["--model=BPR", "--dataset=tiny", "--unlearn=shrink", "--compare=retrain", *flags()]
    with ThreadPoolExecutor(2) as pool:
        _, listed, helped = pool.map(
            lambda arguments: run([*tool, *arguments], tmp_path, PYTHONPATH=str(site)),
            (given, ["--unlearn=?"], ["--help"]),
        )
    assert "shrink" in listed
    assert "--shrink_strength=0.5" in helped
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["method"] == "shrink"
    assert result["settings"]["shrink_strength"] == 0.5
    assert result["certificates"]["rows"] == result["forget"]["users"]


TUTORIAL = json.loads((EXAMPLES / "tutorial.ipynb").read_text())


def write_tutorial(folder):
    """All code cells in one file, in order: run as `Restart and run all` does."""
    code = ["".join(cell["source"]) for cell in TUTORIAL["cells"] if cell["cell_type"] == "code"]
    (folder / "tutorial.py").write_text("\n\n".join(code))


RUN_TUTORIAL = Beside(
    "test_examples.py::test_the_tutorial", [sys.executable, "tutorial.py"], write_tutorial,
    PYTHONPATH=f"{ROOT}{os.pathsep}{EXAMPLES}",
)  # fmt: skip


def test_the_tutorial_is_committed_without_outputs():
    for cell in TUTORIAL["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
def test_the_tutorial():
    assert "retrained" in RUN_TUTORIAL.wait()


BROKEN = """
[recbole_unlearn.methods]
broken = broken_method
"""
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
    for name, points in (("broken", BROKEN), ("idle", BROKEN.replace("broken = broken_", "idle = idle_"))):
        folder = site / f"{name}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(points)
    (site / "broken_method.py").write_text("import nothing_of_this_name\n")
    (site / "idle_method.py").write_text(DEFAULTS)
    tool = [sys.executable, "-m", "recbole_unlearn", "--model=BPR", "--dataset=tiny", *flags(report="none")]
    given = {**os.environ, "PYTHONPATH": f"{ROOT}:{site}", "OMP_NUM_THREADS": "1"}
    elsewhere = ["--unlearn=broken", f"--output_dir={tmp_path / 'other'}"]
    with subprocess.Popen(
        [flag for flag in tool if not flag.startswith("--output_dir")] + elsewhere, cwd=tmp_path, env=given,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as beside:  # fmt: skip
        run([*tool, "--unlearn=idle"], tmp_path, PYTHONPATH=str(site))
        failed = beside.communicate()[1]
    assert json.loads((tmp_path / "out" / "result.json").read_text())["settings"]["idle_level"] == 3
    assert beside.returncode == 2
    assert "The unlearning method broken of another package cannot be used: ModuleNotFoundError" in failed
