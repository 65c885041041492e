"""What is saved: usable by plain RecBole, and free of what was deleted."""

import os
import pickle
import pickletools
import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from recbole_unlearn import run_unlearn
from recbole_unlearn.errors import UnlearnError

GONE = ["u3", "u8"]


@pytest.fixture
def unlearn(settings):
    def run(model="LightGCN", **changes):
        features = {
            "inter": ["user_id", "item_id", "rating", "timestamp"],
            "user": ["user_id", "city"],
            "item": ["item_id", "kind"],
        }
        values = settings | {"load_col": features} | changes
        return run_unlearn(model, "tiny", forget={"user_id": GONE}, config_dict=values)

    return run


def open_checkpoint(result, name):
    return torch.load(result.output_dir / f"{name}-unlearned.pth", weights_only=False)


def test_the_checkpoint_keeps_nothing_of_what_was_deleted(unlearn):
    result = unlearn()
    content = open_checkpoint(result, "LightGCN")
    assert content["optimizer"]["state"] == {}  # no moments
    assert content["other_parameter"] == {}  # no cached embeddings
    assert set(content) == {
        "config", "epoch", "cur_step", "best_valid_score", "state_dict", "other_parameter", "optimizer",
        "unlearn_dataset_sha256",
    }  # fmt: skip
    model = result.model
    rows = result.data.full.train.token2id("user_id", GONE)
    graph = model.norm_adj_matrix.to_sparse_coo()
    assert not np.isin(graph.indices()[0].numpy(), rows).any()
    assert model.interaction_matrix.nnz == len(result.data.retain.train)


def test_no_file_names_the_people(unlearn):
    """Every string of every file: no deleted user's token, no list of requests, nothing of the plugin."""
    result = unlearn()
    tokens = set(GONE)
    for path in result.output_dir.rglob("*"):
        if path.suffix == ".pth":
            raw = path.read_bytes()
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    raw = archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))
            strings = {str(arg) for _, arg, _ in pickletools.genops(raw) if isinstance(arg, str)}
            assert not tokens & strings, path
            assert not any("recbole_unlearn" in text for text in strings), path
        elif path.is_file():
            text = path.read_text()
            if path.suffix == ".html":  # without plotly.js itself, whose variables have short names
                text = text.replace(max(re.findall(r"<script.*?</script>", text, re.S), key=len), "")
            words = set(text.replace('"', " ").replace(",", " ").split())
            assert not tokens & words, path


def test_the_dataset_holds_the_retained_rows_only(unlearn):
    result = unlearn()
    with open(result.output_dir / "tiny-Dataset.pth", "rb") as stream:
        dataset = pickle.load(stream)
    rows = result.data.full.train.token2id("user_id", GONE)
    assert not dataset.inter_feat["user_id"].isin(rows).any()
    assert len(dataset.inter_feat) == sum(len(part) for part in result.data.retain)
    assert dataset.field2id_token["user_id"][rows].tolist() == [f"[removed-{row}]" for row in rows]
    assert not set(GONE) & set(dataset.field2token_id["user_id"])
    assert (dataset.user_feat["city"].iloc[rows] == 0).all()
    assert (dataset.user_feat["city"].drop(index=[0, *rows]) > 0).all()
    # The live objects still know them: only the copy that is written was blanked.
    assert set(GONE) <= set(result.data.full.train.field2token_id["user_id"])


PLAIN = """
import sys
sys.argv = ["plain"]
import numpy as np
import torch
for name in ("float_", "complex_", "unicode_"):  # numpy 2, on which RecBole itself does not start
    if name not in np.__dict__:
        setattr(np, name, {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_}[name])
from recbole.config import Config
Config.compatibility_settings(None)  # an unpickled config does not restore the names RecBole reads
try:
    from recbole.quick_start import load_data_and_model
except ImportError:
    print("NO RAY")
    sys.exit(0)
import scipy.sparse as sp
if not hasattr(sp.dok_matrix, "_update"):
    sp.dok_matrix._update = lambda self, entries: self._dict.update(entries)
from recbole.utils import get_trainer
config, model, dataset, train, valid, test = load_data_and_model(FILE)
trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
trainer.eval_collector.data_collect(train)
result = trainer.evaluate(test, load_best_model=False)
assert not any(name.startswith("recbole_unlearn") for name in sys.modules)
print("ROWS", len(train._dataset), len(valid._dataset), len(test._dataset))
print("NDCG", result["ndcg@20"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["LightGCN", "FM"])
def test_plain_recbole_loads_it_and_gets_the_same_figures(unlearn, model):
    """In a process of its own, without the plugin; torch is told to trust the file, as RecBole needs."""
    result = unlearn(model)
    script = PLAIN.replace("FILE", repr(str(result.output_dir / f"{model}-unlearned.pth")))
    environment = os.environ | {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, env=environment,
        cwd=result.output_dir, check=False,
    )  # fmt: skip
    if "NO RAY" in done.stdout:
        pytest.skip("recbole.quick_start needs Ray, which is not installed")
    assert done.returncode == 0, done.stderr[-2000:]
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("ROWS", "NDCG")))
    assert lines["ROWS"] == " ".join(str(len(part)) for part in result.data.retain)
    assert float(lines["NDCG"]) == pytest.approx(
        result.result["phases"]["unlearned"]["metrics"]["ndcg@20"], abs=1e-4
    )


def test_the_next_request_starts_where_the_last_one_ended(unlearn, settings, tmp_path):
    first = unlearn("BPR")
    moved = tmp_path / "moved"
    first.output_dir.rename(moved)  # both files are found when they are moved together
    train = first.data.retain.train
    user, item = (int(train.inter_feat[field][0]) for field in ("user_id", "item_id"))
    pair = (train.id2token("user_id", [user]), train.id2token("item_id", [item]))
    second = run_unlearn(
        checkpoint=moved / "BPR-unlearned.pth", forget=pair, output_dir=tmp_path / "second",
        config_dict={"show_progress": False, "tensorboard": False, "cache": False, "min_group": 1},
    )  # fmt: skip
    before, after = first.result["phases"]["unlearned"], second.result["phases"]["original"]
    assert after["metrics"]["ndcg@20"] == pytest.approx(before["metrics"]["ndcg@20"], abs=1e-6)
    assert len(second.data.full.train) == len(train)
    assert second.result["forget"]["interactions"] == 1
    assert second.data.full.train.user_num == train.user_num
    with pytest.raises(UnlearnError, match="name a user or an item that is not in the dataset"):
        run_unlearn(
            checkpoint=moved / "BPR-unlearned.pth", forget={"user_id": GONE[:1]}, output_dir=tmp_path / "third",
            config_dict={"show_progress": False, "tensorboard": False},
        )  # fmt: skip


def test_the_input_is_not_overwritten(unlearn, tmp_path):
    first = unlearn("BPR")
    path = first.output_dir / "BPR-unlearned.pth"
    before = path.read_bytes()
    with pytest.raises(UnlearnError, match="would overwrite the checkpoint you passed"):
        run_unlearn(checkpoint=path, forget={"user_id": ["u1"]}, output_dir=first.output_dir)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["rows", "truncated", "other"])
def test_a_damaged_dataset_is_refused(unlearn, tmp_path, damage):
    first = unlearn("BPR")
    path = first.output_dir / "tiny-Dataset.pth"
    dataset = pickle.loads(path.read_bytes())
    if damage == "rows":
        dataset.inter_feat = dataset.inter_feat.iloc[:-1]
        path.write_bytes(pickle.dumps(dataset))
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:1000])
    else:
        path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UnlearnError, match=r"tiny-Dataset\.pth"):
        run_unlearn(
            checkpoint=first.output_dir / "BPR-unlearned.pth",
            forget={"user_id": ["u1"]},
            output_dir=tmp_path / "o",
        )


def test_nothing_is_saved_when_not_asked(unlearn):
    result = unlearn("BPR", save_unlearned=False)
    assert {path.name for path in result.output_dir.iterdir()} == {"report.html", "result.json", "run.log"}


@pytest.mark.parametrize("model", ["EASE", "ItemKNN", "MultiVAE", "DMF"])
def test_models_that_keep_data_are_rebuilt_on_what_is_retained(unlearn, model):
    result = unlearn(model, epochs=1, eval_step=1)
    rows = result.data.full.train.token2id("user_id", GONE)
    other = open_checkpoint(result, model)["other_parameter"]
    assert "i_embedding" not in other
    if model == "EASE":
        assert other["interaction_matrix"].tocsr()[rows].nnz == 0
    if model == "ItemKNN":
        assert other["pred_mat"][rows].nnz == 0
    if model == "MultiVAE":
        assert (result.model.history_item_id[rows] == 0).all()
    if model == "DMF":
        assert result.model.interaction_matrix.tocsr()[rows].nnz == 0
