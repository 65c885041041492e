"""The examples and the wheel run as they are, from another directory, and leave what they say."""

import json
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from recbole_unlearn.settings import properties_dir
from tests.conftest import ROOT, run_command

pytestmark = pytest.mark.slow
EXAMPLES, COMMAND = ROOT / "examples", [sys.executable, "-m", "recbole_unlearn"]


def run_example(name, folder):
    """The output of an example, which is called with a directory for its files."""
    program = "bash" if name.endswith(".sh") else sys.executable
    return run_command([program, str(EXAMPLES / name), str(folder / "work")], folder)


def test_a_checkpoint_and_a_csv(tmp_path):
    assert "BPR-unlearned.pth" in run_example("checkpoint_and_csv.sh", tmp_path)
    paths = (tmp_path / "work" / day / "result.json" for day in ("monday", "tuesday"))
    first, second = (json.loads(path.read_text()) for path in paths)
    assert (first["forget"]["users"], second["forget"]["users"]) == (2, 1)


def test_from_python_and_with_a_model_of_ones_own(tmp_path):
    assert "interactions forgotten in" in run_example("from_python.py", tmp_path)
    assert (tmp_path / "work" / "out" / "result.json").is_file()
    (tmp_path / "own").mkdir()
    said = run_example("own_model.py", tmp_path / "own")
    assert "retrained" in said
    assert "rank" in said  # recommendations of the loaded model
    assert json.loads((tmp_path / "own" / "work" / "out" / "result.json").read_text())["model"] == "BiasedBPR"


def test_a_sequential_model(tmp_path):
    said = run_example("unlearn_sequences.py", tmp_path)
    forgotten = int(re.findall(r"(\d+) interactions of 2 users forgotten", said)[0])
    before, after = (int(number) for number in re.findall(r"windows: (\d+) before, (\d+) now", said)[0])
    assert before - after == forgotten > 0
    assert "20 items recommended to 2 users, 0 of them deleted ones." in said
    assert (tmp_path / "work" / "out" / "GRU4Rec-unlearned.pth").is_file()


@pytest.mark.slow
def test_a_week(tmp_path):
    said = run_example("week.sh", tmp_path)
    for line in (
        "unknown user_id: line 4", "T-3 rolled back", "2 requests published", "week.csv: 1 deleted pair",
        "2 new interactions, 1 new user, 0 new items; 0 known before, 1 left out", "No fault in",
    ):  # fmt: skip
        assert line in said, line
    assert re.search(r"The delta has [\d,]+ bytes", said)
    states = ["published", "published", "rolled", "published"]
    assert re.findall(r"^T-\d +(\S+)", said[said.rindex("overdue") :], re.M) == states
    receipt = json.loads((tmp_path / "work" / "officer" / "receipt-T-2.json").read_text())
    assert (receipt["status"], receipt["asked"]["unknown_up_to"]) == ("published", 1)


def test_serving_with_faiss(tmp_path):
    pytest.importorskip("faiss")
    said = run_example("serve_with_faiss.py", tmp_path)
    steps = {line.split()[0]: line for line in said.splitlines() if "by the model alone" in line}
    assert list(steps) == ["before", "submitted", "done", "published", "rebuilt"]
    assert "recommended by flat, " in steps.pop("before")
    assert all("recommended by none" in line for line in steps.values())
    small, whole = (int(number) for number in re.findall(r"(\d+) of (\d+) bytes", steps["done"])[0])
    assert small < whole / 10


def test_a_method_of_ones_own_is_installed_and_found(tmp_path, flags):
    site, copy = tmp_path / "site", shutil.copytree(EXAMPLES / "own_method", tmp_path / "source")
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site), str(copy)]
    run_command([sys.executable, *install], tmp_path)
    given = ["--model=BPR", "--dataset=tiny", "--unlearn=shrink", "--compare=retrain", *flags()]
    run_command([*COMMAND, *given], tmp_path, PYTHONPATH=str(site))
    listed, helped = (
        run_command([*COMMAND, one], tmp_path, PYTHONPATH=str(site)) for one in ("--unlearn=?", "--help")
    )
    assert "\nshrink" in listed
    assert "--shrink_strength=0.5" in helped
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["method"], result["settings"]["shrink_strength"]) == ("shrink", 0.5)
    assert result["certificates"]["rows"] == result["forget"]["users"]


def test_the_tutorial(tmp_path):
    """Committed with outputs; all code cells run in one file, in order, as `Restart and run all` does."""
    text = (EXAMPLES / "tutorial.ipynb").read_text()
    assert not re.search(r"/(tmp|home|root|work)/", text)
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    assert all(cell["outputs"] for cell in cells[2:])  # the first two import and train
    (tmp_path / "tutorial.py").write_text("\n\n".join("".join(cell["source"]) for cell in cells))
    said = run_command([sys.executable, "tutorial.py"], tmp_path, PYTHONPATH=str(EXAMPLES))
    tables = [
        re.findall(r"^(?:phase|forgetting) .*", one, re.M) for one in (said, "".join(cells[3]["outputs"][0]["text"]))
    ]
    heads, shown = ([line.split() for line in lines] for lines in tables)
    assert heads == shown
    assert len(heads) == 2


def files_below(folder):
    found = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(folder).as_posix() for path in found}


def test_the_wheel_holds_all_files_and_runs_elsewhere(tmp_path, flags):
    pytest.importorskip("build")
    source, site = tmp_path / "copy", tmp_path / "site"
    ignored = shutil.ignore_patterns(".git", ".venv*", "*.egg-info", "build", "dist", "saved", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "out", "."]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = (source / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(site)
    expected = {f"recbole_unlearn/properties/{name}" for name in files_below(properties_dir())}
    expected |= {f"recbole_unlearn/{name}" for name in files_below(ROOT / "recbole_unlearn")}
    assert expected - names == set()
    assert not any(name.startswith(("tests/", "properties/")) for name in names)

    (tmp_path / "elsewhere").mkdir()
    run_command([*COMMAND, "--model=BPR", "--dataset=tiny", *flags(epochs=1)], tmp_path / "elsewhere", root=site)
    assert (tmp_path / "out" / "result.json").is_file()
