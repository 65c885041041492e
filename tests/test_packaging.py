"""The wheel: `properties/` is at the top of the checkout and must be found when installed."""

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


def files_below(folder):
    found = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(folder).as_posix() for path in found}


@pytest.mark.slow
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

    def run(*arguments):
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, "-m", "recbole_unlearn", *arguments], cwd=tmp_path / "elsewhere", text=True,
            env=os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}, capture_output=True, check=False,
        )  # fmt: skip

    done = run("--model=BPR", "--dataset=tiny", *flags(epochs=1))
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "out" / "result.json").is_file()
    done = run("--grid=smoke", "--inject_mode=none")  # refused after the file was read, before any run
    assert done.returncode == 2
    file = site / "recbole_unlearn" / "properties" / "grid" / "smoke.yaml"
    assert done.stderr.startswith(f"Error: {file}: inject_mode='none' is not valid")


def test_classifiers_name_the_versions_of_python_that_pip_accepts():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    accepted = SpecifierSet(parser["options"]["python_requires"])
    language = "Programming Language :: Python :: "
    lines = parser["metadata"]["classifiers"].splitlines()
    named = {line.removeprefix(language) for line in lines if language in line}
    assert named == {f"3.{minor}" for minor in range(30) if f"3.{minor}.1" in accepted}
