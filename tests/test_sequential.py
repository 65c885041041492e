"""Sequential models from the request to the saved model: histories are cleaned, and plain RecBole agrees."""

import pickle
import random

import numpy as np
import pandas as pd
import pytest
import torch

from recbole_unlearn import load_unlearned, run_unlearn, tune_unlearn, unlearn_model
from recbole_unlearn.data import load, loaders
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.methods import UnlearnTask, WindowLosses
from recbole_unlearn.rows import find_tables, rarest
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import build_model
from tests.conftest import train_plain, write_tiny
from tests.parts import check_plain_recbole, request_of_all_kinds, same, without

SMALL = {"MAX_ITEM_LIST_LENGTH": 6, "epochs": 2, "eval_step": 1, "report": "none"}
OWN = {
    "SASRec": {"hidden_size": 8, "inner_size": 8, "n_layers": 1, "n_heads": 1},
    "SASRecF": {"load_col": None, "selected_features": ["kind"]},
}
GONE = ["u3", "u4"]
OF_PAIRS = {"forget_kind": "hard", "lac_forget": 0.5, "lac_negatives": 2.0, "lua_reach": 0.5}


@pytest.fixture
def small(settings):
    """Settings of a quick run of a sequential model on `tiny`."""
    return {key: value for key, value in settings.items() if key != "embedding_size"} | SMALL


def request_of(settings, model="SASRec"):
    return request_of_all_kinds(load(UnlearnConfig(model, "tiny", config_dict=settings)).splits)


def pairs_of(feat):
    return set(zip(feat["user_id"].tolist(), feat["item_id"].tolist(), strict=True))


def is_free(feat, full, request):
    """Whether no window has a deleted interaction, as its target or in its history."""
    users, items = feat["user_id"], torch.cat([feat["item_id"][:, None], feat["item_id_list"]], dim=1)
    for user, item in request.itertuples(index=False):
        mine = torch.ones_like(users, dtype=torch.bool) if pd.isna(user) else users == full.token2id("user_id", user)
        asked = mine if pd.isna(item) else items[mine] == full.token2id("item_id", item)
        if asked.any():
            return False
    return True


def run(small, model="SASRec", **changes):
    values = small | OWN.get(model, {}) | changes
    request = request_of(values, model)
    return request, run_unlearn(model=model, dataset="tiny", forget=request, config_dict=values)


@pytest.mark.parametrize("loss", ["CE", "BPR"])
def test_retraining_leaves_nothing_of_the_request(small, loss):
    request, result = run(small, loss_type=loss)
    data = result.data
    full = data.full.train
    assert ("neg_item_id" in next(iter(loaders(result.config, data.retain).train))) == (loss == "BPR")
    for before, after in zip(data.full, data.retain, strict=True):  # no interaction changes its split
        assert pairs_of(after.inter_feat) < pairs_of(before.inter_feat)
    for part in data.retain.for_model():
        assert is_free(part.inter_feat, full, request)
    assert not all(is_free(part.inter_feat, full, request) for part in data.full.for_model())
    phases = result.result["phases"]
    assert {"original", "unlearned"} <= set(phases)
    for phase in phases.values():
        assert 0 <= phase["forgetting"]["demotion_rate"] <= 1
        assert 0 <= phase["metrics"]["ndcg@20"] <= 1
    saved = pickle.loads((result.output_dir / "tiny-SequentialDataset.pth").read_bytes())
    assert not set(GONE) & set(saved.field2token_id["user_id"])
    assert "i5" not in saved.field2token_id["item_id"]
    removed = full.token2id("item_id", "i5")
    assert not (np.stack(saved.inter_feat["item_id_list"]) == removed).any()
    assert not (saved.unlearn_raw["item_id"] == removed).any()


def test_whole_users_are_judged_at_uncleaned_histories(small):
    """Nothing is left of their own; the text says so, the page shows the figures."""
    values = small | OWN["SASRec"] | {"report": "html"}
    result = run_unlearn(
        model="SASRec", dataset="tiny", forget={"user_id": GONE}, unlearn="finetune", compare="retrain",
        config_dict=values,
    )  # fmt: skip
    phases, said = result.result["phases"], result.result["verdict"]["text"]
    assert phases["unlearned"]["forgetting"]["demotion_rate"] is None
    rates = [phases[name]["forgetting"]["emptied"]["demotion_rate"] for name in ("unlearned", "retrained")]
    assert f"(demotion rate {rates[0]:.3f}, retrained {rates[1]:.3f})" in said
    assert "so all models were asked at uncleaned histories" in said
    control = [phases[name]["forgetting"]["emptied"]["held_out"] for name in ("unlearned", "retrained")]
    gap = phases["unlearned"]["forgetting"]["emptied_gap"]["mean"]
    assert gap == pytest.approx(rates[0] - rates[1] - (control[0] - control[1]), abs=4e-6)
    for shown in (str(result), (result.output_dir / "report.html").read_text()):
        assert "Emptied histories: demotion rate" in shown


@pytest.mark.parametrize("loss", ["CE", "BPR"])
def test_orphan_items_start_again(small, loss):
    """Whatever a deleted item's row was: a loss over all items makes it one of the rarest, another never reads it."""
    values = small | OWN["SASRec"] | {"gradient_ascent_steps": 1, "loss_type": loss, "unlearn": "gradient_ascent"}
    result = run_unlearn(model="SASRec", dataset="tiny", forget={"item_id": ["i5"]}, config_dict=values)
    train = result.data.full.train
    row, rows = train.token2id("item_id", "i5"), result.model.item_embedding.weight
    fresh = build_model(result.config, result.data.retain).item_embedding.weight[row]
    expected = rows[rarest(result.data.retain.train)].mean(dim=0) if loss == "CE" else fresh
    assert torch.allclose(rows[row], expected)


def test_rows_of_users_without_a_window_start_again(small):
    """u7 keeps its first training interaction, which no window has any more; u3 keeps nothing."""
    splits = load(UnlearnConfig("HGN", "tiny", config_dict=small)).splits
    ids = splits.train.token2id("user_id", ["u7", "u3"])
    own = splits.train.inter_feat["item_id"][splits.train.inter_feat["user_id"] == ids[0]][1:]
    items = splits.train.id2token("item_id", own.numpy())
    request = pd.DataFrame({"user_id": ["u7"] * len(items) + ["u3"], "item_id": [*items, None]})
    values = small | {"gradient_ascent_steps": 1}
    result = run_unlearn(model="HGN", dataset="tiny", forget=request, unlearn="gradient_ascent", config_dict=values)
    fresh = build_model(result.config, result.data.retain).user_embedding.weight
    same = (result.model.user_embedding.weight == fresh).all(dim=1)
    assert same.nonzero().flatten().tolist() == sorted({0, *ids.tolist()})


def test_masks_of_the_measures_are_the_same_every_time(small):
    splits = load(UnlearnConfig("BERT4Rec", "tiny", config_dict=small)).splits
    users = torch.arange(1, 9)
    random.seed(1)
    first, after = splits.batch(users), random.random()
    random.seed(2)
    again = splits.batch(users)
    assert all(torch.equal(first[field], again[field]) for field in first.columns)
    assert (first["MASK_INDEX"] > 0).any()
    random.seed(1)
    assert random.random() == after


def test_bert4rec_masks_the_deleted_item_in_a_history(small):
    """The deleted item is the one that is masked, as the last of the history of the next training window."""
    values = small | {"unlearn": "gradient_ascent"}
    config = UnlearnConfig("BERT4Rec", "tiny", config_dict=values)
    splits = load(config).splits
    data = without(splits, slice(None, None, 7))
    model = build_model(config, data.retain)
    task = UnlearnTask(config, data, None, {}, None, None)
    losses = WindowLosses(task, model)
    batch = losses._deleted.collate_fn(losses.deleted_rows())
    masked = zip(batch["user_id"].tolist(), batch["Pos_item_id"][:, -1].tolist(), strict=True)
    feat = data.forget.inter_feat
    last = {
        int(user): int(splits.train.inter_feat["item_id"][splits.train.inter_feat["user_id"] == user][-1])
        for user in feat["user_id"].unique()
    }
    first = splits.train.inter_feat[splits.sequences.lengths()[: len(splits.train)] == 0]
    assert set(masked) == pairs_of(feat) - set(last.items()) - pairs_of(first)
    assert torch.isfinite(losses.deleted_loss(losses.deleted_rows()))


def test_a_request_of_first_interactions_has_no_loss_to_climb(small):
    values = small | OWN["SASRec"] | {"unlearn": "gradient_ascent"}
    splits = load(UnlearnConfig("SASRec", "tiny", config_dict=values)).splits
    feat = splits.sequences.raw.inter_feat[splits.sequences.lengths() == 0]
    tokens = [list(splits.train.id2token(field, feat[field][:3].numpy())) for field in ("user_id", "item_id")]
    result = run_unlearn(model="SASRec", dataset="tiny", forget=tuple(tokens), config_dict=values)
    assert result.result["certificates"]["steps"] == 0


@pytest.mark.parametrize("model", ["SASRec", "BERT4Rec", "SASRecF"])
def test_a_checkpoint_of_plain_recbole_is_a_start(small, tmp_path, model):
    """The original has the weights of plain RecBole's checkpoint, and nothing of the data that is saved with them."""
    trained = ("data_path", "load_col", "train_batch_size", "MAX_ITEM_LIST_LENGTH", "epochs", "eval_step")
    plain = {key: small[key] for key in trained} | OWN.get(model, {})
    path = train_plain(model, tmp_path, **plain, train_neg_sample_args=None)
    request = request_of(small | OWN.get(model, {}), model)
    own = ("output_dir", "replace", "cache_dir", "min_group", "show_progress", "tensorboard", "report", "data_path")
    values = {key: small[key] for key in own}
    result = run_unlearn(checkpoint=path, forget=request, unlearn="finetune", config_dict=values)
    assert result.result["phases"]["original"]["seconds"] is None
    assert len(result.data.forget) > 0
    saved = torch.load(result.output_dir / f"{model}-unlearned.pth", weights_only=False)
    assert saved["other_parameter"] == {}


def test_the_synthetic_protocol_puts_noise_into_histories(small):
    data = run_unlearn(model="SASRec", dataset="tiny", config_dict=small).data
    assert data.source == "injected informed"
    clean = load(UnlearnConfig("SASRec", "tiny", config_dict=small)).splits
    for mine, theirs in zip(data.retain.for_model(), clean.for_model(), strict=True):
        assert torch.equal(mine.inter_feat["item_id_list"], theirs.inter_feat["item_id_list"])
    noise = pairs_of(data.forget.inter_feat)
    windows = data.full.for_model().test.inter_feat
    histories = zip(windows["user_id"].tolist(), windows["item_id_list"].tolist(), strict=True)
    assert noise & {(user, item) for user, history in histories for item in history}
    assert not noise & pairs_of(windows)


@pytest.mark.slow
def test_plain_recbole_gets_the_same_figures(small, tmp_path):
    models = ("SASRec", "BERT4Rec", "SASRecF", "HGN")
    check_plain_recbole([run(small, name, output_dir=str(tmp_path / name))[1] for name in models], tmp_path)


def test_the_next_request_starts_where_the_last_one_ended(small, tmp_path):
    _, first = run(small)
    keys = ("cache_dir", "min_group", "show_progress", "tensorboard", "report")
    second = run_unlearn(
        checkpoint=first.output_dir / "SASRec-unlearned.pth", forget={"user_id": ["u11"]},
        output_dir=tmp_path / "second", config_dict={k: small[k] for k in keys},
    )  # fmt: skip
    for before, after in zip(first.data.retain.everything(), second.data.full.everything(), strict=True):
        assert same(before.inter_feat.interaction, after.inter_feat)
    gone = second.data.full.train.token2id("user_id", "u11")
    for part in second.data.retain.for_model():
        assert not (part.inter_feat["user_id"] == gone).any()
    loaded = load_unlearned(second.output_dir)
    table = loaded.recommend(["u12", "u13"], k=5)
    assert table["user"].value_counts().to_dict() == {"u12": 5, "u13": 5}


@pytest.mark.parametrize("model", ["SASRec", "HGN"])
def test_obliviate_changes_rows_of_the_request_alone(small, model):
    """Layers that all windows share, and rows without a deleted interaction, stay the same bit for bit."""
    values = small | OWN.get(model, {})
    ours = UnlearnConfig(model, "tiny", config_dict=values)
    splits = load(ours).splits
    original = build_model(ours, splits)
    held = loaders(ours, splits)
    done = unlearn_model(ours.to_recbole(), original, held, request_of(values, model), method="obliviate")
    gone = torch.as_tensor(splits.train.token2id("user_id", GONE))
    assert not torch.isin(done.loaders.train._dataset.inter_feat["user_id"], gone).any()
    forget, now = done.data.forget.inter_feat, done.model.state_dict()
    touched = {table.parameter: forget[f"{table.side}_id"] for table in find_tables(original, splits.train)}
    assert ("user_embedding.weight" in touched) is (model == "HGN")
    changed = [name for name, before in original.state_dict().items() if not torch.equal(before, now[name])]
    assert "item_embedding.weight" in changed
    for name in changed:
        rows = (original.state_dict()[name] != now[name]).flatten(1).any(dim=1).nonzero().flatten()
        assert torch.isin(rows, touched[name]).all(), name


@pytest.mark.parametrize(("model", "changes", "message"), [
    ("DIEN", {}, "DIEN is a sequential model that cannot be unlearned yet: it makes windows"),
    ("S3Rec", {}, "two stages"),
    ("FOSSIL", {}, "These can: SASRec"),
    ("BERT4Rec", {"MAX_ITEM_LIST_LENGTH": 4}, "is not one item"),
    ("BERT4Rec", {"transform": None}, "use transform=mask_itemseq"),
    ("SASRec", {"unlearn": "obliviate_paper"},
     "on sequences yet. Use finetune, gradient_ascent, obliviate, retrain."),
    *(("SASRec", {"unlearn": "obliviate", key: value}, f"{key}: a setting of models that score")
      for key, value in OF_PAIRS.items()),
    ("SASRec", {"unlearn": "obliviate", "lac_distill": 0.5}, "lac_distill is a setting of no_distill"),
    ("SASRec", {"transform": "crop_itemseq"}, "transform=crop_itemseq changes histories"),
    ("SASRec", {"compare": ["sisa"]}, "sisa does not work on sequences yet"),
    ("SASRec", {"eval_args": {"split": {"RS": [8, 1, 1]}, "order": "TO", "mode": "full"}}, "LS: valid_and_test"),
    ("SASRec", {"benchmark_filename": ["a", "b", "c"]}, "leave benchmark_filename out"),
    ("SASRec", {"load_col": {"inter": ["user_id", "item_id"]}}, "need the times"),
])  # fmt: skip
def test_what_is_not_supported_is_refused_before_training(small, tmp_path, model, changes, message):
    write_tiny(tmp_path / "own")
    for name in "abc":
        lines = ["user_id:token\titem_id_list:token_seq\titem_id:token", "u1\ti1 i2\ti3"]
        (tmp_path / "own" / "tiny" / f"tiny.{name}.inter").write_text("\n".join(lines) + "\n")
    values = small | {"data_path": str(tmp_path / "own"), "load_col": None} | changes
    with pytest.raises(UnlearnError) as error:
        run_unlearn(model=model, dataset="tiny", forget={"user_id": ["u1"]}, config_dict=values)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_sweep_needs_the_retrained_model(small):
    """Nothing else shows where deleted items belong, and by utility alone the best is to forget nothing."""
    with pytest.raises(UnlearnError, match=r"only a retrained one shows .* add --compare=retrain"):
        tune_unlearn(
            model="SASRec", dataset="tiny", forget={"user_id": ["u1"]}, unlearn="finetune", config_dict=small
        )


def test_users_without_a_window_are_not_measured_by_models_with_rows_of_users(small):
    """u7 keeps its first training interaction, which is no target any more, and both held-out ones."""
    shown = {}
    for model in ("SASRec", "HGN"):
        splits = load(UnlearnConfig(model, "tiny", config_dict=small)).splits
        user = splits.train.token2id("user_id", "u7")
        own = (splits.train.inter_feat["user_id"] == user).numpy()
        own[np.flatnonzero(own)[0]] = False
        windows = without(splits, own).retain.for_model()
        shown[model] = [(part.inter_feat["user_id"] == user).any().item() for part in windows]
    assert shown["SASRec"][0] is shown["HGN"][0] is False
    assert shown["SASRec"][1:] == [True, True]
    assert shown["HGN"][1:] == [False, False]
