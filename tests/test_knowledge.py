"""Knowledge-aware models, whose graph is cleaned; what holds for sequential ones too; plain RecBole agrees."""

import pickle
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from recbole.data import create_dataset, data_preparation
from recbole.utils import KGDataLoaderState, init_seed

from recbole_unlearn import load_unlearned, run_unlearn
from recbole_unlearn.data import Facts, Located, divide, load, loaders
from recbole_unlearn.files import read_dataset, write_dataset
from recbole_unlearn.methods import RequestLosses
from recbole_unlearn.rows import TrainIndex, find_features, find_tables, loss_gradients
from recbole_unlearn.settings import KNOWLEDGE, UnlearnConfig
from recbole_unlearn.state import init_state
from recbole_unlearn.training import PhaseTrainer, build_model, compose, forget_neighbours
from tests import parts
from tests.conftest import ITEMS, KEPT, of_recbole, train_plain
from tests.files import strings
from tests.parts import check_plain_recbole, refused, request_of, same

METHODS = ("retrain", "finetune", "gradient_ascent", "obliviate")
GONE = ["u3", "u4"]


def pairs_of(dataset, feat):
    tokens = (dataset.id2token(field, np.asarray(feat[field])) for field in ("user_id", "item_id"))
    return set(zip(*tokens, strict=True))


def is_asked(pair, request):
    """Whether a line of ``request`` means the interaction ``pair`` of tokens."""
    asked = [[None if pd.isna(cell) else cell for cell in line] for line in request.to_numpy().tolist()]
    return any(user in (pair[0], None) and item in (pair[1], None) for user, item in asked)


@pytest.mark.parametrize("model", KNOWLEDGE)
@pytest.mark.parametrize("method", METHODS)
def test_methods_leave_nothing_of_the_request(quick, model, method, tmp_path):
    values = quick(model)
    request = request_of(values, model)
    result = run_unlearn(model, "tiny", forget=request, unlearn=method, config_dict=values)
    train = result.data.full.train
    for before, after in zip(result.data.full, result.data.retain, strict=True):
        old, new = (pairs_of(train, part.inter_feat) for part in (before, after))
        assert new < old
        assert not any(is_asked(pair, request) for pair in new)
    phase = result.result["phases"]["unlearned"]
    assert 0 <= phase["forgetting"]["demotion_rate"] <= 1
    assert 0 <= phase["metrics"]["ndcg@20"] <= 1

    paths = [result.output_dir / name for name in ("tiny-KnowledgeBasedDataset.pth", f"{model}-unlearned.pth")]
    saved, checkpoint = pickle.loads(paths[0].read_bytes()), torch.load(paths[1], weights_only=False)
    assert not any(is_asked(pair, request) for pair in pairs_of(saved, saved.inter_feat))
    assert not (strings(paths[0]) | strings(paths[1])) & {*GONE, "i5", "e5", "only5"}
    row = train.token2id("item_id", "i5")
    for field in ("item_id", "entity_id", "head_id", "tail_id"):
        assert saved.field2id_token[field][row] == f"[removed-{row}]"
    assert not saved.kg_feat[["head_id", "tail_id"]].isin([row]).any(axis=None)
    assert not {"i5", "e5"} & {*saved.item2entity, *saved.entity2item}
    assert {"i6", "e6"} <= {*saved.item2entity, *saved.entity2item}
    assert "[UI-Relation]" in saved.field2token_id["relation_id"]
    assert not checkpoint["optimizer"]["state"]
    if model == "KGCN":
        others = torch.arange(train.entity_num) != row
        assert not (checkpoint["other_parameter"]["adj_entity"][others] == row).any()
        assert (checkpoint["other_parameter"]["adj_entity"][row] == row).all()
    else:
        assert not checkpoint["other_parameter"]
    if method == "gradient_ascent":  # entities without a fact have the rows of a new model
        fresh = build_model(result.config, result.data.retain).entity_embedding.weight
        for token in ("e5", "only5"):
            row = train.token2id("entity_id", token)
            assert torch.equal(result.model.entity_embedding.weight[row], fresh[row])
    if method == "obliviate":  # loads again with its weights, graph and recommendations
        loaded = load_unlearned(result.output_dir)
        assert same(result.model.state_dict(), loaded.model.state_dict())
        shown = loaded.recommend(["u1", "u2"], k=ITEMS)
        assert set(shown["user"]) == {"u1", "u2"}
        assert "i5" not in set(shown["item"])
        assert same(loaded.train_data._dataset.kg_feat.interaction, result.data.retain.train.kg_feat)


@pytest.mark.parametrize("model", KNOWLEDGE)
def test_rows_of_items_are_found_in_the_table_of_entities(quick, model):
    config = UnlearnConfig(model, "tiny", config_dict=quick(model))
    splits = load(config).splits
    net = build_model(config, splits)
    found = {(table.parameter, table.side, table.offset, table.axis) for table in find_tables(net, splits.train)}
    expected = {("user_embedding.weight", "user", 0, 0), ("entity_embedding.weight", "item", 0, 0)}
    if model in ("CKE", "KTUP"):
        expected.add(("item_embedding.weight", "item", 0, 0))
    assert found == expected
    assert [table.parameter for table in find_features(net, splits.train)] == ["entity_embedding.weight"]
    for item in range(1, splits.train.item_num):
        assert splits.train.id2token("entity_id", item) == splits.train.id2token("item_id", item).replace("i", "e")


def without(config, item):
    """The data of a request that takes a whole item away."""
    full = load(config).splits
    gone = int(full.train.token2id("item_id", item))
    return gone, divide(full, Located(*((part.inter_feat["item_id"] == gone).numpy() for part in full)), "python")


def test_neighbours_that_no_fact_joins_are_taken_out(quick):
    config = UnlearnConfig("KGCN", "tiny", config_dict=quick("KGCN"))
    gone, data = without(config, "i5")
    model = build_model(config, data.full)
    entity, relation = model.adj_entity.clone(), model.adj_relation.clone()
    forget_neighbours(model, data.full.train)
    assert torch.equal(model.adj_entity, entity)
    assert torch.equal(model.adj_relation, relation)
    forget_neighbours(model, data.retain.train)
    facts = data.retain.train.kg_feat
    columns = (facts[name].tolist() for name in ("head_id", "relation_id", "tail_id"))
    joined = set(zip(*columns, strict=True))
    alone = [*data.full.train.token2id("entity_id", ["e5", "only5"]).tolist(), 0]
    for here, (there, how) in enumerate(zip(model.adj_entity.tolist(), model.adj_relation.tolist(), strict=True)):
        for other, by in zip(there, how, strict=True):
            if here in alone:
                assert (other, by) == (here, 0)
            else:
                assert (here, by, other) in joined or (other, by, here) in joined
    kept = ~(entity == gone).any(dim=1)
    kept[alone] = False
    assert torch.equal(model.adj_entity[kept], entity[kept])
    whole = data.retain._replace(train=data.retain.train.copy(data.retain.train.inter_feat))
    whole.train.kg_feat = data.full.train.kg_feat
    assert whole.digest() != data.retain.digest()  # the cache tells graphs apart


def test_facts_are_those_of_the_graph_and_batches_those_of_recbole(quick):
    config = UnlearnConfig("CKE", "tiny", config_dict=quick("CKE"))
    splits, plain = load(config).splits, config.to_recbole()
    train = splits.train
    facts = Facts(train, "neg_")
    numbers = torch.cat([torch.arange(len(facts)), torch.tensor([-1, -1])])
    batch = facts.batch(numbers, torch.Generator().manual_seed(0))
    known = set(zip(train.kg_feat["head_id"].tolist(), train.kg_feat["tail_id"].tolist(), strict=True))
    for name in ("head_id", "relation_id", "tail_id"):
        assert torch.equal(batch[name][:-2], train.kg_feat[name])
    assert not set(zip(batch["head_id"][:-2].tolist(), batch["neg_tail_id"][:-2].tolist(), strict=True)) & known
    assert batch["neg_tail_id"][:-2].min() >= 1
    assert all(not batch[name][-2:].any() for name in batch.columns)
    item = train.token2id("item_id", "i5")
    expected = (train.kg_feat["head_id"] == item) | (train.kg_feat["tail_id"] == item)
    assert facts.about(torch.tensor([item])).sort().values.tolist() == expected.nonzero().flatten().tolist()
    init_seed(plain["seed"], True)
    theirs = data_preparation(plain, create_dataset(plain))[0]
    batches = []
    for loader in (loaders(config, splits).train, theirs):
        init_seed(1, True)
        loader.set_mode(KGDataLoaderState.RSKG)
        batches.append(next(iter(loader)))
    assert set(batches[0].columns) == set(batches[1].columns)
    assert same(batches[0].interaction, batches[1])


@pytest.mark.parametrize("model", ["CKE", "CFKG"])
def test_a_deleted_interaction_takes_back_nothing_of_the_graph(quick, model):
    """Its gradient is that of users and items: no entity but the items of the batch moves, nor any relation."""
    config = UnlearnConfig(model, "tiny", config_dict=quick(model))
    full = load(config).splits
    data = parts.without(full, (full.train.inter_feat["user_id"] == 3).numpy())
    net = build_model(config, data.retain)

    request = RequestLosses(SimpleNamespace(config=config, data=data, index=TrainIndex(full.train).complete()), net)
    batch = request.deleted_batch(torch.arange(len(data.forget)))
    gradients = loss_gradients(net, batch)[1]
    moved = gradients["entity_embedding.weight"].abs().sum(dim=1).nonzero().flatten()
    asked = torch.cat([batch["item_id"], batch["neg_item_id"], torch.zeros(1, dtype=torch.int64)])
    assert torch.isin(moved, asked).all()
    assert float(gradients["relation_embedding.weight"].abs().sum(dim=1)[1 : full.train.relation_num].max()) == 0
    (kept,) = request.kept_sample(50)
    assert kept["head_id"].min() > 0
    gradients = loss_gradients(net, kept)[1]
    assert float(gradients["relation_embedding.weight"].abs().sum(dim=1)[1:-1].max()) > 0


def test_graphs_that_are_missing_or_left_empty_are_refused(quick, tiny_path, graph_path, tmp_path):
    values = quick("CKE", data_path=str(tiny_path))
    refused(r"has no tiny\.kg and no tiny\.link", run_unlearn, "CKE", "tiny", config_dict=values)
    shutil.copytree(graph_path, tmp_path / "data")
    facts = ["head_id:token\trelation_id:token\ttail_id:token"] + [f"e{n}\tlike\te5" for n in range(6, ITEMS)]
    (tmp_path / "data" / "tiny" / "tiny.kg").write_text("\n".join(facts) + "\n")
    values = quick("CKE", data_path=str(tmp_path / "data"))
    said = "no item that is left is in the knowledge graph"
    refused(said, run_unlearn, "CKE", "tiny", forget={"item_id": ["i5"]}, config_dict=values)


@pytest.mark.parametrize("changes", [{"load_col": None}, {"kg_reverse_r": True}])
def test_other_ways_to_load_a_graph(quick, changes):
    """With features of users and items, of which i0 is in no fact; with every fact in both directions."""
    values = quick("KGCN", **changes)
    result = run_unlearn("KGCN", "tiny", forget={"item_id": ["i5"]}, unlearn="finetune", config_dict=values)
    loaded = load_unlearned(result.output_dir)
    assert loaded.dataset.kg_reverse_r is bool(values.get("kg_reverse_r"))
    assert torch.equal(loaded.model.adj_entity, result.model.adj_entity)
    trainers = (compose(PhaseTrainer, result.config, model, "x") for model in (loaded.model, result.model))
    assert torch.equal(*(one.scores(torch.arange(1, 9), result.data.retain.train) for one in trainers))


DAMAGES = [
    (lambda saved: saved.feat_name_list.remove("kg_feat"), "its graph is missing"),
    (lambda saved: saved.kg_feat.drop(columns="tail_id", inplace=True), "its graph is missing"),
    (lambda saved: setattr(saved, "kg_feat", saved.kg_feat[:0]), "its graph is empty"),
    (lambda saved: saved.kg_feat.__setitem__("head_id", 10**6), "not in its vocabulary"),
    (lambda saved: saved.item2entity.update(i6=6), "item2entity is odd"),
    (lambda saved: delattr(saved, "entity2item"), "entity2item is odd"),
    (lambda saved: (saved.field2id_token.update(head_id=np.append(saved.field2id_token["head_id"], "x")),
                    saved.field2token_id["head_id"].update(x=len(saved.field2token_id["head_id"]))),
     "not one vocabulary that begins with the items"),
]  # fmt: skip


def test_a_damaged_graph_is_refused_when_it_is_read(quick, tmp_path):
    config = UnlearnConfig("CKE", "tiny", config_dict=quick("CKE"))
    path = tmp_path / "saved.pth"
    write_dataset(path, config.to_recbole(), load(config).splits, None)
    whole = path.read_bytes()
    assert read_dataset(path, config)[0].entity_num == load(config).splits.train.entity_num
    for damage, message in DAMAGES:
        saved = pickle.loads(whole)
        damage(saved)
        path.write_bytes(pickle.dumps(saved, protocol=4))
        refused(message, read_dataset, path, config)


def test_neighbours_from_a_file_are_checked_and_a_state_is_refused(quick, tmp_path):
    values = quick("KGCN", epochs=1)
    path, own = train_plain("KGCN", tmp_path, **of_recbole(values)), {key: values[key] for key in KEPT}
    asked = {"checkpoint": tmp_path / "spoiled.pth", "forget": {"user_id": ["u1"]}, "config_dict": own}
    for name in ("adj_entity", "adj_relation"):
        for spoil in (lambda x: x + 10**6, lambda x: x[:-1], lambda x: x.float(), lambda x: None):
            saved = torch.load(path, weights_only=False)
            saved["other_parameter"][name] = spoil(saved["other_parameter"][name])
            torch.save(saved, tmp_path / "spoiled.pth")
            refused(f"{name}, which the model keeps, does not fit", run_unlearn, **asked)
    refused("histories nor a graph", init_state, tmp_path / "state", path, data_path=values["data_path"])
    assert not (tmp_path / "state").exists()


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
    ("S3Rec", {}, "two stages"),
    ("BERT4Rec", {"MAX_ITEM_LIST_LENGTH": 4}, "is not one item"),
    ("BERT4Rec", {"transform": None}, "use transform=mask_itemseq"),
    ("SASRec", {"unlearn": "obliviate_paper"},
     "on sequences yet. Use finetune, gradient_ascent, obliviate, rebuild, retrain."),
    ("SASRec", {"unlearn": "obliviate", "lac_forget": 0.5}, "lac_forget: a setting of models that score"),
    ("SASRec", {"unlearn": "obliviate", "lac_distill": 0.5}, "lac_distill is a setting of no_distill"),
    ("SASRec", {"transform": "crop_itemseq"}, "transform=crop_itemseq changes histories"),
    ("SASRec", {"eval_args": {"split": {"RS": [8, 1, 1]}, "order": "TO", "mode": "full"}}, "LS: valid_and_test"),
    ("MKR", {}, "Use CKE, CFKG, KGCN or KTUP, or train MKR again with RecBole"),
    ("RippleNet", {}, "it keeps users' histories"),
    ("KGNNLS", {}, "a table of all interactions"),
    ("CKE", {"unlearn": "sisa"}, "CKE is a knowledge-aware model, and sisa does not work on a knowledge graph."),
    *((model, {"unlearn": name}, f"{name} does not work on a knowledge graph. Use finetune, gradient_ascent, ")
      for model, name in (("KTUP", "ifru"), ("CFKG", "rrl"))),
    ("CKE", {"load_col": {"inter": ["user_id", "item_id"]}}, "load_col leaves out kg and link"),
    ("KTUP", {"train_rec_step": 0}, "train_rec_step=0 is not valid"),
])  # fmt: skip
def test_what_is_not_supported_is_refused_before_any_data(quick, model, changes, message):
    values = quick(model, data_path="/nowhere")
    assert message in refused(
        "", run_unlearn, model, "tiny", forget={"user_id": ["u1"]}, config_dict=values | changes
    )
