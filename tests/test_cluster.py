"""Independent work, here and on Ray: when Ray is started, the same results there, and what goes wrong."""

import importlib
import os
import sys
import time

import pytest
import torch

from recbole_unlearn import cluster
from recbole_unlearn.cluster import Workers
from recbole_unlearn.errors import UnlearnError
from tests.parts import refused


def square(x):
    return x * x


def waits(x):
    time.sleep(0.02)
    return x


def refuses(x):
    raise UnlearnError(f"no {x}")


def dies(x):
    os._exit(1)


def threads(x):
    return torch.get_num_threads(), os.getpid()


class Unreadable:
    """Can be sent, but not be read by another process."""

    def __reduce__(self):
        return importlib.import_module, ("no_such_module",)


def all_done(workers, work, pieces):
    return dict(workers.do(work, pieces))


@pytest.fixture
def no_ray(monkeypatch):
    """Ray may be asked for, but does not start: the pieces that would go to it are noted."""
    sent = []

    def on_ray(self, work, pieces, left):
        sent.extend(left)
        yield from ((k, work(*pieces[k])) for k in left)

    monkeypatch.setattr(Workers, "_on_ray", on_ray)
    return sent


@pytest.mark.parametrize(("workers", "expected"), [
    (Workers(), []), (Workers(1), []), (Workers(2), [0, 1, 2]), (Workers(1, "x"), [0, 1, 2]),
    (Workers(None, "x"), [0, 1, 2]), (Workers(None), []),
])  # fmt: skip
def test_ray_is_started_when_asked_for(no_ray, workers, expected):
    assert (all_done(Workers(2), square, []), all_done(Workers(2), square, [(3,)])) == ({}, {0: 9})
    assert no_ray == []  # one piece needs no Ray
    assert (all_done(workers, square, [(1,), (2,), (3,)]), no_ray) == ({0: 1, 1: 4, 2: 9}, expected)


@pytest.mark.parametrize(("installed", "cores", "load", "pieces", "expected"), [
    (True, 2, 1.0, 5, [1, 2, 3, 4]),  # 4 pieces left take 2 rounds: 2 · 0.02 s saved
    (True, 2, 1.0, 2, []),  # one piece is left: nothing to do in parallel
    (True, 1, 1.0, 5, []),
    (True, 2, 3.0, 5, []),  # others are busy on both cores
    (True, 4, 3.0, 5, [1, 2, 3, 4]),  # two cores are left
    (False, 4, 1.0, 5, []),
])  # fmt: skip
def test_ray_is_started_when_it_pays(no_ray, monkeypatch, installed, cores, load, pieces, expected):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(cluster, "START_SECONDS", 0.03)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if installed else None)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert all_done(Workers(None), waits, [(k,) for k in range(pieces)]) == {k: k for k in range(pieces)}
    assert no_ray == expected


@pytest.mark.parametrize(("module", "said"), [("ray", "Ray is not .*--workers=1"), ("ray.tune", "Ray Tune is not")])
def test_what_is_missing_is_said(monkeypatch, module, said):
    monkeypatch.setitem(sys.modules, module, None)
    assert "ray[tune]>=2.40" in refused(said, cluster.import_ray, module)


@pytest.mark.parametrize(("module", "error"), [
    ("pyarrow", "ImportError('pyarrow requires NumPy 2.0 or newer')"),
    # With RecBole 1.2.1, Ray 2.6 and numpy 2, `import ray.tune` ends in np.bool8.
    ("ray.tune", "AttributeError('module numpy has no attribute bool8.\\nMore.')"),
])  # fmt: skip
def test_packages_that_do_not_fit_say_what_to_install(monkeypatch, tmp_path, module, error):
    (tmp_path / f"{module.removeprefix('ray.')}.py").write_text(f"raise {error}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, module, raising=False)
    if module == "ray.tune":
        monkeypatch.setattr(sys.modules["ray"], "__path__", [str(tmp_path)])
    said = r"cannot be used here: (pyarrow requires NumPy 2\.0 or newer|module numpy has no attribute bool8)\. These"
    message = refused(said, cluster.import_ray, module if module == "ray.tune" else "ray")
    assert 'pip install "recbole==1.2.0" "ray[tune]>=2.40"' in message
