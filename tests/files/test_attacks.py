"""Attacks by the content of checkpoints, datasets and settings: each worked once, or would in a careless reader."""

import json
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from recbole_unlearn import UnlearnConfig, UnlearnError, cli, read_checkpoint, run_unlearn
from recbole_unlearn.data import load
from recbole_unlearn.files import Trained
from recbole_unlearn.recbole_compat import other_parameters
from recbole_unlearn.training import build_model
from tests.files import RUN, Trap
from tests.parts import refused


@pytest.fixture
def forged(plain_checkpoint, tmp_path):
    """``forged({key: value})``: the plain checkpoint with other settings in its config, or other ``parts``."""

    def make(values=(), **parts):
        content = torch.load(plain_checkpoint, weights_only=False) | parts
        content["config"].final_config_dict.update(values)
        torch.save(content, tmp_path / "forged.pth", pickle_protocol=4)
        return tmp_path / "forged.pth"

    return make


@pytest.fixture
def unlearn(tmp_path, tiny_path):
    """``unlearn(path)``: forget a user of the checkpoint."""
    given = {"forget": {"user_id": ["u1"]}, "unlearn": "obliviate", "output_dir": tmp_path / "o"}
    return lambda path: run_unlearn(checkpoint=path, config_dict=RUN | {"data_path": str(tiny_path)}, **given)


@pytest.mark.parametrize("source", ["checkpoint", "file", "dict"])
def test_a_teacher_is_a_name_and_never_code(tmp_path, tiny_path, forged, source):
    """KD_DAGFM evaluates the name of its teacher."""
    code = f"open({str(tmp_path / 'ran')!r}, 'w')"
    values = {"data_path": str(tiny_path), "epochs": 1}
    (tmp_path / "c.yaml").write_text(f'teacher: "{code}"\n')
    given = {
        "checkpoint": {"checkpoint": forged({"model": "KD_DAGFM", "teacher": code}), "forget": {"user_id": ["u1"]}},
        "file": {"model": "KD_DAGFM", "dataset": "tiny", "config_files": [str(tmp_path / "c.yaml")]},
        "dict": {"model": "KD_DAGFM", "dataset": "tiny"},
    }[source]
    values |= {"teacher": code} if source == "dict" else {}
    refused("teacher=", run_unlearn, **given, output_dir=tmp_path / "o", config_dict=values)
    assert not (tmp_path / "ran").exists()


def test_a_pickled_array_in_a_datasets_folder_is_not_unpickled(tmp_path, tiny_path):
    """LDiffRec opens `item_emb.npy` of the dataset's folder with pickles allowed."""
    folder = tmp_path / "data" / "tiny"
    folder.mkdir(parents=True)
    (folder / "tiny.inter").write_bytes((tiny_path / "tiny" / "tiny.inter").read_bytes())
    trap = np.array([Trap(open, str(tmp_path / "ran"), "w")], dtype=object)
    np.save(folder / "item_emb.npy", trap, allow_pickle=True)
    values = {"data_path": str(tmp_path / "data"), "n_cate": 2, "epochs": 1}
    config = UnlearnConfig("LDiffRec", "tiny", config_dict=values)
    refused("allow_pickle", build_model, config, load(config).splits)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("key", [
    "pre_model_path", "pretrain_path", "mf_pretrain_path", "mlp_pretrain_path", "warm_up", "data_path", "worker",
])  # fmt: skip
def test_no_path_and_no_number_of_processes_comes_from_a_file(forged, tmp_path, key):
    assert key not in read_checkpoint(forged({key: str(tmp_path / "x")})).settings


def test_data_is_not_looked_for_where_a_file_says(forged, unlearn, tmp_path, settings, plain_checkpoint):
    """The checkpoint may name any folder; people say where their data is. Nor are pickles read that it names."""
    asked = {"checkpoint": forged(), "forget": {"user_id": ["u1"]}, "output_dir": tmp_path / "o"}
    refused(r"paths are not taken from files. Add --data_path=", run_unlearn, **asked, config_dict=RUN)
    (tmp_path / "trap.pth").write_bytes(pickle.dumps(Trap(open, str(tmp_path / "ran"), "w")))
    named = dict.fromkeys(("dataset_save_path", "dataloaders_save_path"), str(tmp_path / "trap.pth"))
    assert unlearn(forged(named)).result["forget"]["users"] == 1
    assert not (tmp_path / "ran").exists()
    run_unlearn("BPR", "tiny", unlearn="obliviate", forget={"user_id": ["u1"]}, config_dict=settings)
    dataset = pickle.loads((tmp_path / "out" / "tiny-Dataset.pth").read_bytes())
    dataset.dataset_path = "/etc"
    (tmp_path / "out" / "tiny-Dataset.pth").write_bytes(pickle.dumps(dataset, protocol=4))
    config = UnlearnConfig("BPR", "tiny", config_dict=settings)
    found = load(config, tmp_path / "out" / "tiny-Dataset.pth").splits.train
    assert found.dataset_path == config["data_path"] != "/etc"


@pytest.mark.parametrize("values", [
    {"output_dir": "/elsewhere"}, {"cache_dir": "/elsewhere"}, {"save_unlearned": False}, {"threads": 10**6},
    {"lac_steps": 0, "lua_target": "none"}, {"download_url": "http://127.0.0.1:9/x.zip"}, {"unlearn": "finetune"},
    {"replace": True}, {"ray_address": "auto"}, {"min_group": 1},
])  # fmt: skip
def test_a_checkpoint_sets_nothing_of_ours(forged, unlearn, tmp_path, tiny_path, values):
    path = forged(values)
    assert not set(values) & set(read_checkpoint(path).settings)
    outcome = unlearn(path)
    assert outcome.output_dir == tmp_path / "o"
    assert not (tmp_path / "o" / "adapters").exists()
    own = RUN | {"data_path": str(tiny_path), "unlearn": "obliviate"}
    plain = UnlearnConfig("BPR", "tiny", config_dict=own).method_values("obliviate")
    ours = outcome.config.method_values("obliviate")
    assert [ours[key] for key in ("lac_steps", "lua_target")] == [plain[key] for key in ("lac_steps", "lua_target")]


@pytest.mark.parametrize("name", ["os", "BPR; import os", "..", "recbole.utils"])
def test_a_model_is_a_class_of_recbole(forged, unlearn, name):
    refused("Unknown model", unlearn, forged({"model": name}))


@pytest.mark.parametrize("values", [{"embedding_size": 10**9}, {"mlp_hidden_size": [8, 10**8]}, {"n_layers": 10**7}])
def test_no_layer_is_larger_than_the_weights(forged, values):
    """A tensor of no numbers takes no bytes, and says nothing of a size."""
    path = forged(values, state_dict={"w": torch.zeros(8), "empty": torch.zeros(0, 10**9)})
    refused("larger than anything in its weights", read_checkpoint, path)


def test_a_key_that_is_no_text_is_no_setting(forged):
    assert {3, None} & set(read_checkpoint(forged({3: 4, None: 5})).settings) == set()


@pytest.mark.parametrize("change", [
    {"dataset": "../tiny"}, {"dataset": "/tmp/tiny"}, {"shards": "3"}, {"settings": []}, {"schema": 2},
    {"rows": None}, {"shards": 10**12}, {"shards": 0},
])  # fmt: skip
def test_an_odd_ensemble_is_refused(tmp_path, change):
    head = {"method": "sisa", "model": "BPR", "dataset": "tiny", "settings": {}, "shards": 2, "rows": ""}
    (tmp_path / "ensemble.json").write_text(json.dumps({"schema": 1, **head, **change}))
    refused(next(iter(change)), read_checkpoint, tmp_path)


@pytest.mark.parametrize("values", [
    {"benchmark_filename": 3}, {"benchmark_filename": ["../../x"]}, {"additional_feat_suffix": ["../x"]},
    {"unused_col": 3}, {"unused_col": [1]}, {"load_col": "x"}, {"train_neg_sample_args": 5}, {"learner": 5},
    {"eval_args": {"split": {"RS": [8, 1, 1]}, "order": ["RO"], "group_by": "user", "mode": "full"}},
    {"eval_args": {"split": 3, "order": "RO", "group_by": "user", "mode": "full"}}, {"train_batch_size": 0},
    {"encoding": "open('ran', 'w')"},
])  # fmt: skip
def test_settings_of_another_kind_end_in_one_line(forged, unlearn, tmp_path, values):
    """RecBole fails on them in the middle of loading or training, or evaluates them."""
    refused("", unlearn, forged(values))
    assert not (tmp_path / "ran").exists()


def test_a_grid_file_names_no_place_but_its_data(tmp_path, capsys):
    for key in ("cache_dir", "download_url", "pretrain_path", "output_dir", "checkpoint"):
        lists = "datasets: [tiny]\nmodels: [BPR]\nmethods: [finetune, retrain]\nseeds: [1]\nratios: [0.1]\n"
        (tmp_path / "g.yaml").write_text(f"{lists}settings: {{{key}: /x}}\n")
        assert cli.main([f"--grid={tmp_path / 'g.yaml'}"]) == 2
        assert key in capsys.readouterr().err


@pytest.mark.parametrize("name", ["forward", "user_embedding", "training", "__class__", "state_dict", "x" * 1000])
def test_no_attribute_is_set_that_the_model_does_not_declare(forged, unlearn, name):
    """RecBole sets every name in other_parameter as an attribute of the model."""
    assert unlearn(forged(other_parameter={name: torch.zeros(3)})).result["forget"]["users"] == 1


@pytest.mark.parametrize(("model", "odd"), [
    ("Pop", {"item_cnt": torch.zeros(3, 1, dtype=torch.int64)}), ("Pop", {"max_cnt": torch.zeros(5)}),
    ("EASE", {"item_similarity": np.zeros((2, 2), np.float32)}), ("EASE", {"interaction_matrix": 3}),
    ("EASE", {"interaction_matrix": sp.eye(3).tocsr()}), ("EASE", {"item_similarity": np.array(["a"])}),
])  # fmt: skip
def test_what_a_model_keeps_has_its_kind_and_shape(settings, model, odd):
    config = UnlearnConfig(model, "tiny", config_dict=settings)
    made = build_model(config, load(config).splits)
    Trained(made.state_dict(), None, other_parameters(made), 0).load_into(made)
    said = f"{next(iter(odd))}, which the model keeps, does not fit"
    refused(said, Trained(made.state_dict(), None, odd, 0).load_into, made)


NAME = "x\n\x1b[2J\x1b]0;t\x07Error: all is well\u202e"


def test_names_in_files_cannot_write_on_the_screen(forged, tmp_path, tiny_path, capsys):
    """Line breaks, escape sequences and marks that turn text around, in every name that a message repeats."""
    for number, path in enumerate((forged({"model": NAME}), forged({"dataset": NAME}), forged({NAME: 10**30}))):
        assert cli.main([f"--checkpoint={path}", f"--data_path={tiny_path}", f"--output_dir={tmp_path / 'o'}"]) == 2
        said = capsys.readouterr().err.rstrip("\n").splitlines()
        assert all(line.isprintable() for line in said), number
        assert not any(line.startswith("Error: all") for line in said)
    assert str(UnlearnError(NAME)) == "x??[2J?]0;t?Error: all is well?"


def test_weights_that_overflow_write_nothing(plain_checkpoint, forged, unlearn, tmp_path):
    weights = torch.load(plain_checkpoint, weights_only=False)["state_dict"]
    weights["user_embedding.weight"].fill_(1e38)
    refused("", unlearn, forged(state_dict=weights))
    assert {path.name for path in (tmp_path / "o").iterdir()} <= {"run.log"}
