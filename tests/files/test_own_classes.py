"""Checkpoints of people's own model classes: given the class, the file may name it, and nothing else changes."""

import os
import sys
from types import ModuleType

import pytest
import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.model.general_recommender import BPR
from recbole.trainer import Trainer
from recbole.utils import init_seed

from recbole_unlearn import load_unlearned, recbole_compat, run_unlearn
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import StandIn, load_torch, only, read_checkpoint

RUN = {
    "show_progress": False, "tensorboard": False, "demotion_negatives": 5, "report": "none", "cache": False,
    "min_group": 1,
}  # fmt: skip


def own_class(monkeypatch, module):
    """A model class that lives in ``module``, as pickle sees it."""

    def __init__(self, config, dataset):
        super(cls, self).__init__(config, dataset)
        self.strength = config["own_strength"]

    cls = type("OwnBPR", (BPR,), {"__module__": module, "__init__": __init__})
    home = sys.modules.get(module) or ModuleType(module)
    monkeypatch.setitem(sys.modules, module, home)
    monkeypatch.setattr(home, "OwnBPR", cls, raising=False)
    return cls


def train_own(cls, folder, data_path):
    """Train with RecBole's own trainer and return the checkpoint it saved."""
    recbole_compat.restore_numpy_names()
    values = {
        "checkpoint_dir": str(folder), "data_path": str(data_path), "epochs": 2, "embedding_size": 8,
        "own_strength": 3, "load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"]},
    }  # fmt: skip
    config = Config(cls, "tiny", config_dict=values)
    init_seed(config["seed"], config["reproducibility"])
    train, valid, _ = data_preparation(config, create_dataset(config))
    trainer = Trainer(config, cls(config, train._dataset))
    trainer.fit(train, valid, verbose=False, show_progress=False)
    return trainer.saved_model_file


@pytest.mark.parametrize("module", ["__main__", "somebodys_models"])
def test_from_recbole_to_the_second_request_and_back(monkeypatch, tmp_path, tiny_path, module):
    cls = own_class(monkeypatch, module)
    path = train_own(cls, tmp_path / "saved", tiny_path)
    with pytest.raises(
        UnlearnError, match=r"If OwnBPR is a model class of yours, give it: --model=package.module"
    ):
        read_checkpoint(path)
    first = run_unlearn(
        cls, checkpoint=path, forget={"user_id": ["u3", "u8"]}, output_dir=tmp_path / "one",
        config_dict=RUN | {"data_path": str(tiny_path)},
    )  # fmt: skip
    assert type(first.model) is cls
    # A setting that only the class reads, though it has no source to look at.
    assert first.model.strength == 3
    second = run_unlearn(
        cls, checkpoint=tmp_path / "one" / "OwnBPR-unlearned.pth", forget={"user_id": ["u5", "u6"]},
        unlearn="obliviate", output_dir=tmp_path / "two", config_dict=RUN,
    )  # fmt: skip
    loaded = load_unlearned(tmp_path / "two", model=cls)
    assert type(loaded.model) is cls
    for name, value in second.model.state_dict().items():
        assert torch.equal(value, loaded.model.state_dict()[name])
    assert len(loaded.recommend("u1", 3)) == 3
    with pytest.raises(UnlearnError, match="If OwnBPR is a model class of yours"):
        load_unlearned(tmp_path / "two")


def test_another_class_is_not_the_one_of_the_checkpoint(monkeypatch, tmp_path, tiny_path, plain_checkpoint):
    cls = own_class(monkeypatch, "somebodys_models")
    path = train_own(cls, tmp_path / "saved", tiny_path)
    with pytest.raises(
        UnlearnError, match=r"somebodys_models\.OwnBPR"
    ):  # consent to one name is not to another
        run_unlearn(BPR, checkpoint=path, forget={"user_id": ["u3"]}, output_dir=tmp_path / "o")
    with pytest.raises(UnlearnError, match="is of the model BPR, not OwnBPR"):
        run_unlearn(cls, checkpoint=plain_checkpoint, forget={"user_id": ["u3"]}, output_dir=tmp_path / "o")
    with pytest.raises(UnlearnError, match="is not a model class of RecBole"):
        run_unlearn(dict, "tiny", output_dir=tmp_path / "o")


class Trap:
    """Makes a directory when a careless unpickler meets it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_consented_name_is_never_imported_or_called(tmp_path):
    """Not even when the class that is given has the name of something dangerous."""
    torch.save({"config": Trap(tmp_path / "ran")}, tmp_path / "x.pth", pickle_protocol=4)
    mkdir = type("mkdir", (BPR,), {})
    for model in (None, BPR):
        with pytest.raises(UnlearnError, match="mkdir") as error:
            read_checkpoint(tmp_path / "x.pth", model)
        assert "model class of yours" not in str(error.value)
    found = load_torch(tmp_path / "x.pth", only(mkdir))
    assert isinstance(found["config"], StandIn)
    assert not (tmp_path / "ran").exists()
