"""`patch_recbole`: scripts of plain RecBole run in this environment, and nothing else changes."""

import gc
import os
import pickle
import sys

import numpy as np
import pytest
import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.evaluator import Collector
from recbole.model.general_recommender import BPR
from recbole.trainer import Trainer

from recbole_unlearn import patch, patch_recbole, recbole_compat, run_unlearn
from tests.conftest import run_command, tiny_rows
from tests.files import Trap
from tests.parts import refused, same


class PatchedBPR(BPR):
    """A class that a script defines; its checkpoint names it."""


@pytest.fixture
def trainer(tmp_path, tiny_path):
    """A trained model of plain RecBole with its test data, and its checkpoint on disk."""
    recbole_compat.restore_numpy_names()
    values = {
        "checkpoint_dir": str(tmp_path / "saved"), "data_path": str(tiny_path), "epochs": 1, "embedding_size": 8,
        "metrics": ["NDCG", "ItemCoverage"], "valid_metric": "NDCG@10", "show_progress": False,
    }  # fmt: skip

    def make(cls=BPR):
        config = Config(cls, "tiny", config_dict=values | {"learning_rate": np.float64(0.01)})
        train, valid, test = data_preparation(config, create_dataset(config))
        made = Trainer(config, cls(config, train._dataset))
        made.eval_collector.data_collect(train)
        with patch_recbole():
            made.fit(train, valid, verbose=False, show_progress=False)
        return made, test

    return make


@pytest.mark.parametrize("cls", [BPR, PatchedBPR])
def test_a_trained_model_is_tested_and_resumed(trainer, cls):
    made, test = trainer(cls)
    with pytest.raises((pickle.UnpicklingError, AttributeError)):
        made.evaluate(test)  # as RecBole is without the patch
    with patch_recbole():
        best = {name: value.clone() for name, value in made.model.state_dict().items()}
        torch.nn.init.zeros_(made.model.item_embedding.weight)
        assert {"ndcg@10", "itemcoverage@10"} == set(made.evaluate(test))
        assert same(made.model.state_dict(), best)
        made.resume_checkpoint(made.saved_model_file)
        assert made.start_epoch == 1
        assert set(made.optimizer.state_dict()["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}


def test_it_is_done_once_and_undone(tmp_path):
    before = torch.load, Collector.get_data_struct, sorted(np.__dict__)
    first, patched = patch_recbole(), torch.load
    assert patched is not before[0]
    with patch_recbole():
        assert torch.load is patched
    assert torch.load is patched  # the second one had nothing to undo
    first.undo()
    first.undo()
    assert (torch.load, Collector.get_data_struct, sorted(np.__dict__)) == before
    patch_recbole()  # no reference is kept, and it stays
    gc.collect()
    assert torch.load is not before[0]
    patch._active[0].close()
    assert torch.load is before[0]


def test_files_are_read_as_data_and_other_callers_as_before(trainer, tmp_path):
    made, test = trainer()
    content = torch.load(made.saved_model_file, weights_only=False)
    content["other_parameter"] = {"x": Trap(os.mkdir, str(tmp_path / "ran"))}
    torch.save(content, tmp_path / "evil.pth", pickle_protocol=4)
    with patch_recbole():
        said = "mkdir, which cannot be read without running code"
        refused(said, made.evaluate, test, model_file=str(tmp_path / "evil.pth"))
        with pytest.raises(pickle.UnpicklingError):
            torch.load(tmp_path / "evil.pth")
        assert not (tmp_path / "ran").exists()
        torch.save({"x": torch.ones(2)}, tmp_path / "mine.pth")
        assert torch.load(tmp_path / "mine.pth", "cpu", weights_only=True)["x"].sum() == 2


SCRIPT = """
import sys
sys.argv = ["plain"]
import recbole_unlearn
recbole_unlearn.patch_recbole()
assert "ray" not in sys.modules
from recbole.quick_start import load_data_and_model, run_recbole
from pathlib import Path
values = {"epochs": 1, "embedding_size": 8, "data_path": "DATA", "show_progress": False, "state": "ERROR"}
result = run_recbole(model="BPR", dataset="tiny", config_dict=values)
print("TEST", sorted(result["test_result"]))
(path,) = Path("saved").glob("BPR-*.pth")
config, model, dataset, *loaders = load_data_and_model(str(path))
print("LOADED", config["model"], len(dataset), len(loaders))
unlearned, _, dataset, *_ = load_data_and_model("moved/BPR-unlearned.pth")
print("MOVED", unlearned["dataset"], len(dataset))
"""


@pytest.mark.slow
def test_a_script_of_plain_recbole_runs_to_its_end(tmp_path, tiny_path, settings, monkeypatch):
    outcome = run_unlearn("BPR", "tiny", forget={"user_id": ["u3"]}, config_dict=settings | {"report": "none"})
    outcome.output_dir.rename(tmp_path / "moved")
    for key in [key for key in os.environ if key.startswith("TORCH_FORCE")]:
        monkeypatch.delenv(key)
    said = run_command([sys.executable, "-W", "ignore", "-c", SCRIPT.replace("DATA", str(tiny_path))], tmp_path)
    lines = dict(line.split(" ", 1) for line in said.splitlines() if line[:1].isupper() and " " in line)
    assert "'ndcg@10'" in lines["TEST"]
    assert lines["LOADED"] == f"BPR {len(tiny_rows())} 3"
    assert lines["MOVED"] == f"tiny {sum(len(part) for part in outcome.data.retain)}"
