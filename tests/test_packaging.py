"""The wheel: `properties/` lives at the top of the checkout and must be found when installed."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from recbole_unlearn.settings.yaml_files import properties_dir
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("build")
    copy = tmp_path_factory.mktemp("copy") / "src"
    ignore = shutil.ignore_patterns(".git", ".venv*", "*.egg-info", "build", "dist", "saved")
    shutil.copytree(ROOT, copy, ignore=ignore)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "out", "."],
        cwd=copy, check=True, capture_output=True,
    )  # fmt: skip
    (path,) = (copy / "out").glob("*.whl")
    return path


def test_the_wheel_holds_every_property_file(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {path.relative_to(properties_dir()).as_posix() for path in properties_dir().rglob("*.yaml")}
    assert expected
    assert {f"recbole_unlearn/properties/{name}" for name in expected} <= names
    assert not any(name.startswith(("tests/", "properties/")) for name in names)


def test_it_runs_from_another_directory(wheel, tmp_path, flags):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "recbole_unlearn", "--model=BPR", "--dataset=tiny", *flags(epochs=1)],
        cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "out" / "result.json").is_file()
