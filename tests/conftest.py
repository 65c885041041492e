"""Shared fixtures: a small dataset in RecBole's format, configs over it, and a plain RecBole checkpoint."""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.utils import get_model, get_trainer, init_seed

from recbole_unlearn import recbole_compat
from recbole_unlearn.settings import KNOWLEDGE, UnlearnConfig, own_settings

ROOT = Path(__file__).resolve().parent.parent
hypothesis.settings.register_profile("any machine", deadline=None)  # no test asserts on time
hypothesis.settings.load_profile("any machine")
USERS, ITEMS = 40, 60


def pytest_xdist_auto_num_workers(config) -> int:
    """All tests run on several cores; the tests of a path that is given run in one process."""
    given = any((ROOT / argument.split("::")[0]).exists() for argument in config.invocation_params.args)
    return 0 if given else min(4, os.cpu_count() or 1)


def pytest_collection_modifyitems(items) -> None:
    """The long tests begin first, and those of Ray on one worker: others are stolen from its end."""
    first = ("test_on_ray.py", "test_golden.py")
    items.sort(key=lambda item: first.index(item.path.name) if item.path.name in first else len(first))


def run_command(command: list[str], folder: Path, root: Path = ROOT, **environment: str) -> str:
    """The output of a command in ``folder`` with this checkout on its path; a failure with its error output."""
    paths = [str(root), *([environment.pop("PYTHONPATH")] if "PYTHONPATH" in environment else [])]
    given = {
        "OMP_NUM_THREADS": "1", "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=folder, env=os.environ | given | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def own_key(tmp_path_factory):
    """The key of hashes is made in a configuration of the tests, never in that of the user who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.delenv("RECBOLE_UNLEARN_KEY", raising=False)
        yield


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    """Tests never write to the checkout, and never see pytest's arguments as RecBole's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    yield
    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler, logging.FileHandler)]


def tiny_rows(seed: int = 0) -> list[tuple[str, str, float, float]]:
    """Two taste groups of users and items; users mostly like their own half."""
    rng, rows = np.random.default_rng(seed), []
    for user in range(USERS):
        own = np.arange(ITEMS // 2) + (user % 2) * (ITEMS // 2)
        other = np.arange(ITEMS // 2) + (1 - user % 2) * (ITEMS // 2)
        for item in np.concatenate([rng.choice(own, 14, replace=False), rng.choice(other, 3, replace=False)]):
            rows.append((f"u{user}", f"i{item}", float(rng.integers(1, 6)), 8.8e8 + rng.integers(0, 10**6)))
    return [rows[i] for i in rng.permutation(len(rows))]


def write_tiny(root: Path) -> None:
    """Write the dataset `tiny` below ``root``, with features of users and items."""
    folder = root / "tiny"
    folder.mkdir(parents=True)
    files = {
        "inter": ["user_id:token\titem_id:token\trating:float\ttimestamp:float",
                  *(f"{u}\t{i}\t{r}\t{t:.0f}" for u, i, r, t in tiny_rows())],
        "user": ["user_id:token\tcity:token", *(f"u{n}\tc{n % 3}" for n in range(USERS))],
        "item": ["item_id:token\tkind:token_seq", *(f"i{n}\tk{n % 4} k{n % 5}" for n in range(ITEMS))],
    }  # fmt: skip
    for name, lines in files.items():
        (folder / f"tiny.{name}").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory) -> Path:
    """A data_path that holds the dataset `tiny`, with features of users and items."""
    root = tmp_path_factory.mktemp("data")
    write_tiny(root)
    return root


def quick_settings(data_path: Path, folder: Path) -> dict:
    """Settings of a quick run on the data in ``data_path``, with all outputs in ``folder``."""
    return {
        "data_path": str(data_path), "load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"]},
        "epochs": 4, "eval_step": 2, "embedding_size": 8, "learning_rate": 0.01, "train_batch_size": 64,
        "show_progress": False, "tensorboard": False, "cache_dir": str(folder / "cache"),
        "checkpoint_dir": str(folder / "work"), "output_dir": str(folder / "out"), "replace": True,
        "demotion_negatives": 10, "min_group": 1,  # figures of small groups are left out in test_privacy.py
    }  # fmt: skip


@pytest.fixture
def settings(tiny_path, tmp_path):
    """Settings of a quick run on `tiny`."""
    return quick_settings(tiny_path, tmp_path)


KEPT = ("data_path", "output_dir", "replace", "cache_dir", "min_group", "show_progress", "tensorboard", "report")
COLUMNS = {"inter": ["user_id", "item_id", "rating", "timestamp"]}
OF_GRAPH = COLUMNS | {"kg": ["head_id", "relation_id", "tail_id"], "link": ["item_id", "entity_id"]}
# A small model that plain RecBole trains in a moment.
PLAIN = {"epochs": 3, "embedding_size": 8, "train_batch_size": 64, "learning_rate": 0.01, "load_col": COLUMNS}
OF_MODELS = {
    "SASRec": {"hidden_size": 8, "inner_size": 8, "n_layers": 1, "n_heads": 1},
    **{name: {"load_col": None, "selected_features": ["kind"]} for name in ("SASRecF", "GRU4RecF", "FDSA")},
    "CKE": {"kg_embedding_size": 8},
    "KGCN": {"neighbor_sample_size": 3},
    # Epochs of the graph come after two of the interactions. Scores without noise can be compared.
    "KTUP": {"train_rec_step": 2, "train_kg_step": 1, "use_st_gumbel": False},
}


@pytest.fixture(scope="session")
def graph_path(tiny_path, tmp_path_factory):
    """A data_path with `tiny` and a graph: item i7 is the entity e7, of a genre, a maker and an age of its own."""
    root = tmp_path_factory.mktemp("graph")
    shutil.copytree(tiny_path / "tiny", root / "tiny")
    links = ["item_id:token\tentity_id:token"] + [f"i{n}\te{n}" for n in range(1, ITEMS)]  # i0 has no entity
    (root / "tiny" / "tiny.link").write_text("\n".join(links) + "\n")
    facts = ["head_id:token\trelation_id:token\ttail_id:token"]
    for n in range(1, ITEMS):
        facts += [f"e{n}\tgenre\tg{n % 5}", f"m{n % 9}\tmade\te{n}", f"e{n}\tage\tonly{n}"]
    facts += [f"e{n}\tsequel\te{n + 1}" for n in range(1, ITEMS - 1, 4)]
    (root / "tiny" / "tiny.kg").write_text("\n".join(facts) + "\n")
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A cache for all tests of a file."""
    return str(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def quick(settings, graph_path, trained):
    """``quick("CKE", key=value)``: settings of a quick run of a knowledge-aware or sequential model on `tiny`."""

    def make(model, **changes) -> dict:
        values = settings | {"report": "none"}
        if model in KNOWLEDGE:
            values |= {"data_path": str(graph_path), "load_col": OF_GRAPH, "cache_dir": trained}
        else:
            values |= {"MAX_ITEM_LIST_LENGTH": 6, "epochs": 2, "eval_step": 1}
            del values["embedding_size"]
        return values | OF_MODELS.get(model, {}) | changes

    return make


# Trainings on ml-100k that are long enough to learn something; the same for all tests, so that they share them.
QUICK = {
    "BPR": {"epochs": 20, "embedding_size": 32, "learning_rate": 0.015},
    "LightGCN": {"epochs": 10, "embedding_size": 32, "learning_rate": 0.03},
}


@pytest.fixture(scope="session")
def ml_100k(tmp_path_factory):
    """``ml_100k("BPR")``: settings of a run on ml-100k whose models are trained once for all tests."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "trained"  # of all workers

    def make(model) -> dict:
        return QUICK[model] | {
            "eval_step": 7, "show_progress": False, "tensorboard": False, "save_unlearned": False,
            "report": "none", "cache_dir": str(cache), "output_dir": str(tmp_path_factory.mktemp("out")),
            "min_group": 1,
        }  # fmt: skip

    return make


@pytest.fixture
def make_config(settings):
    """``make_config("BPR", key=value)``: a config over `tiny`."""

    def make(model="BPR", **changes) -> UnlearnConfig:
        return UnlearnConfig(model, "tiny", config_dict={**settings, **changes})

    return make


@pytest.fixture
def flags(settings):
    """The quick settings as command-line arguments; ``flags(epochs=1)`` changes some."""

    def make(**changes) -> list[str]:
        return [f"--{key}={value}" for key, value in {**settings, **changes}.items()]

    return make


def of_recbole(values):
    """The settings for a training by plain RecBole."""
    ours = {*own_settings(), "checkpoint_dir"}
    return {key: value for key, value in values.items() if key not in ours}


def train_plain(model: str | type, folder: Path, **settings) -> Path:
    """Train with RecBole's own classes, as `run_recbole` does, and return the checkpoint it saved."""
    recbole_compat.restore_numpy_names()
    dataset = settings.pop("dataset", "tiny")
    config = Config(model, dataset, config_dict={"checkpoint_dir": str(folder), "show_progress": False, **settings})
    init_seed(config["seed"], config["reproducibility"])
    loaded = create_dataset(config)
    train, valid, _ = data_preparation(config, loaded)
    init_seed(config["seed"], config["reproducibility"])
    with recbole_compat.dok_update():
        net = (get_model(model) if isinstance(model, str) else model)(config, train._dataset).to(config["device"])
    trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, net)
    trainer.fit(train, valid, verbose=False, show_progress=False)
    return Path(trainer.saved_model_file)


@pytest.fixture(scope="session")
def plain_checkpoint(tiny_path, tmp_path_factory) -> Path:
    """A checkpoint of BPR on `tiny`, written by RecBole itself with its default metrics and Adam."""
    folder = tmp_path_factory.mktemp("plain")
    with contextlib.chdir(folder):
        return train_plain("BPR", folder, data_path=str(tiny_path), **PLAIN)
