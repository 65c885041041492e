"""What holds for sequential and for knowledge-aware models: from a checkpoint to the next request, and refusals."""

import pytest
import torch

from recbole_unlearn import load_unlearned, run_unlearn
from recbole_unlearn.data import load
from recbole_unlearn.settings import KNOWLEDGE, UnlearnConfig
from tests.conftest import KEPT, of_recbole, train_plain
from tests.parts import check_plain_recbole, refused, request_of, same

OF_PAIRS = {"forget_kind": "hard", "lac_forget": 0.5, "lac_negatives": 2.0, "lua_reach": 0.5}


@pytest.mark.parametrize("model", [*KNOWLEDGE, "SASRec", "BERT4Rec", "SASRecF"])
def test_a_checkpoint_of_plain_recbole_is_a_start(quick, tmp_path, model):
    """The original has its weights, and nothing of the data that is saved with them but KGCN's drawn neighbours."""
    values = quick(model)
    own = {"seed": 5} if model in KNOWLEDGE else {"train_neg_sample_args": None}
    path = train_plain(model, tmp_path, **of_recbole(values), **own)
    drawn = {}
    if model == "KGCN":  # as drawn with another state of numpy
        saved = torch.load(path, weights_only=False)
        drawn = saved["other_parameter"]
        order = torch.randperm(drawn["adj_entity"].shape[1] - 1) + 1
        for neighbours in drawn.values():
            neighbours[:, 1:] = neighbours[:, order]
        torch.save(saved, path)
    forget, method = request_of(values, model), "obliviate" if model in KNOWLEDGE else "finetune"
    own = {key: values[key] for key in KEPT} | {"unlearn": method}
    result = run_unlearn(checkpoint=path, forget={"user_id": ["u7"]} if drawn else forget, config_dict=own)
    assert result.result["phases"]["original"]["seconds"] is None
    assert len(result.data.forget) > 0
    saved = torch.load(result.output_dir / f"{model}-unlearned.pth", weights_only=False)
    assert set(saved["other_parameter"]) == set(drawn)
    for name, value in drawn.items():
        assert torch.equal(getattr(result.model, name), value)


@pytest.mark.parametrize("model", ["KGCN", "SASRec"])
def test_the_next_request_starts_where_the_last_one_ended(quick, tmp_path, model):
    values = quick(model)
    quiet = {key: values[key] for key in KEPT if key not in ("data_path", "output_dir")}
    first = run_unlearn(model, "tiny", forget=request_of(values, model), unlearn="obliviate", config_dict=values)

    def then(earlier, forget, folder):
        own = quiet | {"unlearn": "finetune", "output_dir": str(tmp_path / folder)}
        return run_unlearn(checkpoint=earlier.output_dir / f"{model}-unlearned.pth", forget=forget, config_dict=own)

    second = then(first, {"user_id": ["u11", None], "item_id": [None, "i9"]}, "second")
    figures = [result.result["phases"] for result in (first, second)]
    before, after = figures[0]["unlearned"]["metrics"], figures[1]["original"]["metrics"]
    assert after["ndcg@20"] == pytest.approx(before["ndcg@20"], abs=0.05)  # without u11 and i9
    for before, after in zip(first.data.retain.everything(), second.data.full.everything(), strict=True):
        assert same(before.inter_feat.interaction, after.inter_feat)
    gone = second.data.full.train.token2id("user_id", "u11")
    assert not any((part.inter_feat["user_id"] == gone).any() for part in second.data.retain.for_model())
    loaded = load_unlearned(second.output_dir)
    assert loaded.recommend(["u12", "u13"], k=5)["user"].value_counts().to_dict() == {"u12": 5, "u13": 5}
    if model == "KGCN":
        assert same(first.data.retain.train.kg_feat.interaction, second.data.full.train.kg_feat)
        assert not {"e5", "e9", "only9"} & set(loaded.dataset.field2token_id["entity_id"])
    refused("not in the dataset", then, second, {"item_id": ["i5"]}, "third")


@pytest.mark.slow
def test_plain_recbole_gets_the_same_figures(quick, settings, tmp_path):
    results = []
    for model in (*KNOWLEDGE, "SASRec", "BERT4Rec", "SASRecF", "HGN", "LightGCN", "FM"):
        values = settings | {"load_col": None} if model in ("LightGCN", "FM") else quick(model)
        values |= {"output_dir": str(tmp_path / model), "unlearn": "obliviate" if model in KNOWLEDGE else "retrain"}
        results.append(run_unlearn(model, "tiny", forget=request_of(values, model), config_dict=values))
    check_plain_recbole(results, tmp_path)


def test_the_synthetic_protocol_puts_noise_into_histories_and_keeps_the_graph(quick):
    for model in ("KGCN", "SASRec"):
        data = run_unlearn(model, "tiny", unlearn="finetune", config_dict=quick(model)).data
        assert data.source == "injected informed"
        clean = load(UnlearnConfig(model, "tiny", config_dict=quick(model))).splits
        for mine, theirs in zip(data.retain.for_model(), clean.for_model(), strict=True):
            assert same(theirs.inter_feat.interaction, mine.inter_feat)
        if model == "KGCN":
            assert same(clean.train.kg_feat.interaction, data.retain.train.kg_feat)
            continue
        noise, windows = data.forget.inter_feat, data.full.for_model().test.inter_feat
        pairs = set(zip(noise["user_id"].tolist(), noise["item_id"].tolist(), strict=True))
        histories = zip(windows["user_id"].tolist(), windows["item_id_list"].tolist(), strict=True)
        assert pairs & {(user, item) for user, history in histories for item in history}
        assert not pairs & set(zip(windows["user_id"].tolist(), windows["item_id"].tolist(), strict=True))


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
    ("KGAT", {}, "KGAT is a knowledge-aware model that cannot be unlearned: it needs dgl"),
    ("KGIN", {}, "it needs torch_scatter"),
    ("MCCLK", {}, "it needs torch_scatter"),
    ("MKR", {}, "Use CKE, CFKG, KGCN or KTUP, or train MKR again with RecBole"),
    ("RippleNet", {}, "it keeps users' histories"),
    ("KGNNLS", {}, "a table of all interactions"),
    ("CKE", {"unlearn": "sisa"}, "CKE is a knowledge-aware model, and sisa does not work on a knowledge graph."),
    ("CKE", {"compare": ["ultrare"]}, "ultrare does not work on a knowledge graph"),
    *((model, {"unlearn": name}, f"{name} does not work on a knowledge graph. Use finetune, gradient_ascent, ")
      for model, name in (("CKE", "receraser"), ("KGCN", "scif"), ("KTUP", "ifru"), ("CFKG", "rrl"))),
    ("CKE", {"load_col": {"inter": ["user_id", "item_id"]}}, "load_col leaves out kg and link"),
    ("KTUP", {"train_rec_step": 0}, "train_rec_step=0 is not valid"),
])  # fmt: skip
def test_what_is_not_supported_is_refused_before_any_data(quick, model, changes, message):
    values = quick(model, data_path="/nowhere")
    assert message in refused(
        "", run_unlearn, model, "tiny", forget={"user_id": ["u1"]}, config_dict=values | changes
    )
