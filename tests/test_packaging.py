"""The wheel: `properties/` lives at the top of the checkout and must be found when installed."""

import configparser
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.specifiers import SpecifierSet

from recbole_unlearn.settings import properties_dir
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


@pytest.fixture
def installed(wheel, tmp_path):
    """``installed("--key=value", ...)``: the command of an unpacked wheel, in another directory."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    (tmp_path / "elsewhere").mkdir()

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "recbole_unlearn", *arguments],
            cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def test_it_runs_from_another_directory(installed, tmp_path, flags):
    done = installed("--model=BPR", "--dataset=tiny", *flags(epochs=1))
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "out" / "result.json").is_file()


def test_it_finds_the_grids_that_it_brings(installed, tmp_path):
    done = installed("--grid=smoke", "--inject_mode=none")  # refused after the file was read, before any run
    assert done.returncode == 2
    file = tmp_path / "site" / "recbole_unlearn" / "properties" / "grid" / "smoke.yaml"
    assert done.stderr.startswith(f"Error: {file}: inject_mode='none' is not valid")


def test_classifiers_name_the_versions_of_python_that_pip_accepts():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    accepted = SpecifierSet(parser["options"]["python_requires"])
    language = "Programming Language :: Python :: "
    named = {
        line.removeprefix(language)
        for line in parser["metadata"]["classifiers"].splitlines()
        if language in line
    }
    assert named == {f"3.{minor}" for minor in range(30) if f"3.{minor}.1" in accepted}
