"""SISA and RecEraser: restarts, kept shards, runs, saving and loading, several models that answer as one."""

import json
import re
import shutil
from unittest import mock

import numpy as np
import pytest
import torch
from recbole.data.interaction import Interaction
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from recbole_unlearn import unlearn_model
from recbole_unlearn.data import loaders
from recbole_unlearn.methods import sharded
from recbole_unlearn.methods.sharded import AttentiveEnsemble, Shards, read_ensemble
from recbole_unlearn.training import PhaseTrainer, build_model, compose, train, train_all
from recbole_unlearn.training import trainings as cache_module
from tests.methods.conftest import make_task, run
from tests.parts import divided, loaded, refused, same, weights, without

METHODS = ["sisa", "receraser"]


def some_of_one(users):
    """A request for every second row of user 3."""
    return np.flatnonzero(users == 3)[::2]


class Watched:
    """Trains as `train_all`, and keeps the jobs of each call."""

    def __init__(self):
        self.calls = []

    def __call__(self, jobs):
        self.calls.append(jobs)
        return train_all(jobs)


@pytest.mark.parametrize("model", ["BPR", "LightGCN"])
@pytest.mark.parametrize("method", METHODS)
def test_the_rows_of_a_shard_are_its_own_and_only_touched_ones_change(make_config, method, model):
    config = make_config(model, epochs=2)
    data = divided(config, some_of_one)
    trainer, task = make_task(config, data, method)
    trainer.originate(task)
    parts = [trainer.shards.splits(data.full, shard) for shard in range(3)]
    assert sum(len(own.train) for own in parts) == len(data.full.train)
    for own in parts:
        users, items = (own.train.inter_feat[field] for field in ("user_id", "item_id"))
        known = loaders(config, own).train._sampler.used_ids
        for user in torch.unique(users).tolist():
            assert known[user] == set(items[users == user].tolist())
        assert torch.isin(own.valid.inter_feat["user_id"], users).all()
        assert torch.isin(own.valid.inter_feat["item_id"], items).all()
    old = [weights(part) for part in trainer.model.models]
    touched = set(trainer.shards.places[data.deleted].tolist())
    assert 0 < len(touched) < 3 or method == "receraser"
    finished = trainer.run(task)
    after = [part.state_dict() for part in trainer.model.models]
    for shard in range(3):
        assert same(old[shard], after[shard]) == (shard not in touched)
    assert finished.certificates["restarted"] == len(touched)
    assert set(finished.certificates["shard_seconds"]) == {str(shard + 1) for shard in touched}


def test_a_restarted_shard_is_one_that_never_saw_the_rows(make_config):
    config, watched = make_config(epochs=2), Watched()
    data = divided(config, some_of_one)
    trainer, task = make_task(config, data, "sisa", all_jobs=watched)
    trainer.originate(task)
    initial = [dict(weights) for weights in trainer.shards.initial]
    trainer.run(task)
    first, second = watched.calls
    (job,) = second
    of_three = data.retain.train.inter_feat["user_id"] == 3
    (shard,) = set(trainer.shards.places[of_three].tolist())
    assert len(first) == 3
    assert same(initial[shard], job.start)
    assert same(first[shard].start, job.start)
    assert len(job.splits.train) == len(first[shard].splits.train) - int(data.deleted.sum())
    assert same(train(*job).state_dict, trainer.model.models[shard].state_dict())
    assert job.config["seed"] == config["seed"] + shard


def test_a_shard_without_validation_rows_stops_by_all_and_without_rows_is_as_it_began(make_config):
    config, splits = loaded(make_config(epochs=1))
    user = splits.train.inter_feat["user_id"][0]
    alone, mine = (part.inter_feat["user_id"] == user for part in (splits.train, splits.valid))
    splits = splits._replace(valid=splits.valid.copy(splits.valid.inter_feat[~mine]))
    shards = Shards.new(config, splits, alone.long(), 2)
    assert len(shards.splits(splits, 1).valid) == len(splits.valid)
    data = without(splits, alone.numpy())
    shards, _ = shards.fitted(data.full, train_all, "x")
    shards, new = shards.without(data).fitted(data.retain, train_all, "x")
    assert (list(new), new[1].seconds) == ([1], 0.0)
    assert same(shards.initial[1], shards.trained[1].state_dict)
    assert not same(shards.initial[0], shards.trained[0].state_dict)


@pytest.mark.parametrize(("method", "model", "extra"), [
    ("receraser", "BPR", {"receraser_partition": "interactions"}),  # by users is the default
    ("receraser", "NeuMF", {"receraser_aggregation": "mean"}),  # no full sort and no vectors
    ("sisa", "NeuMF", {}),
    ("receraser", "FM", {"receraser_aggregation": "mean"}),  # users and items in one table
])  # fmt: skip
def test_variants_and_other_models(settings, method, model, extra):
    result = run(settings, method, model, forget={"user_id": ["u3"]}, epochs=1, **extra).result
    assert 0 < result["certificates"]["restarted"] <= 3
    assert result["settings"] | extra == result["settings"]
    assert result["phases"]["unlearned"]["metrics"]["ndcg@20"] > 0


@pytest.fixture
def saved(settings, tmp_path):
    """An ensemble of RecEraser on disk, which has forgotten u3, and the outcome it was saved from."""
    return run(settings, "receraser", forget={"user_id": ["u3"]}, epochs=2), tmp_path / "out" / "BPR-unlearned"


def test_the_next_request_starts_from_the_directory(saved, settings, tmp_path):
    first, path = saved
    moved = shutil.move(path, tmp_path / "moved")
    second = run(
        {k: v for k, v in settings.items() if k not in ("data_path", "load_col", "epochs", "embedding_size")}
        | {"output_dir": str(tmp_path / "next")},
        "receraser", checkpoint=str(moved), forget={"user_id": ["u7"]},
    )  # fmt: skip
    users, train_rows = torch.arange(1, 6), first.data.retain.train
    old = compose(PhaseTrainer, first.config, first.model, "x").scores(users, train_rows)
    config = second.config.method_values("receraser")
    assert config["receraser_attention_epochs"] == 3  # as it was trained, not the default
    assert second.result["phases"]["original"]["seconds"] is None
    full = second.data.full
    shards, rule = read_ensemble(moved, first.config, full)
    assert len(shards.initial) == 3
    net = AttentiveEnsemble(first.config, shards.models(full), full.train).eval()
    net.load_state_dict({**net.state_dict(), **rule})
    assert torch.equal(old, compose(PhaseTrainer, first.config, net, "x").scores(users, train_rows))
    assert (tmp_path / "next" / "BPR-unlearned" / "shard-2.safetensors").is_file()


def test_the_directory_holds_nothing_of_what_was_deleted(saved):
    outcome, path = saved
    left, groups = len(outcome.data.retain.train), load_file(path / "rule.safetensors")
    assert groups["partition.rows"].shape == (left,)
    assert [name for name in groups if not name.startswith("rule.")] == ["partition.rows"]
    # The bytes of a weight may spell a token by chance.
    content = {file.name: file.read_bytes() for file in path.iterdir()}
    tokens = {one for name in content if "shard" not in name for one in re.findall(rb"u\d+", content[name])}
    assert b"u4" in tokens
    assert b"u3" not in tokens
    assert not any(b"exp_avg" in one for one in content.values())
    head = json.loads((path / "ensemble.json").read_text())
    assert "u3" not in json.dumps(head)
    assert not {"forget", "data_path", "output_dir", "cache_dir", "unlearn"} & set(head["settings"])
    assert (head["settings"]["receraser_shards"], len(head["rows"])) == (3, 64)


def held(change):
    """A change of all tensors of a file."""
    return lambda path: save_file(change(load_file(path)), path)


def halved(name):
    """Every other row of a tensor; of an attention's, as an old `receraser_attention_size` of half the width."""
    return held(lambda own: own | {name: own[name][::2].clone()})


def first(name, value):
    """A first place that no shard has, or places that are no whole numbers."""
    return held(lambda own: own | {name: torch.cat([torch.tensor([value]), own[name][1:]]).to(type(value))})


def changed(**values):
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | values))


OLD = "written with other settings or by another version. Train the ensemble again"
SHARD, RULE, HEAD = "shard-1.safetensors", "rule.safetensors", "ensemble.json"


def test_a_damaged_directory_is_refused_in_one_line(saved, settings, tmp_path):
    _, path = saved
    for file, damage, message in (
        (RULE, halved("partition.rows"), "places do not fit"),
        (RULE, first("partition.rows", 3), "places do not"), (RULE, first("partition.rows", -1), "places do not"),
        (RULE, first("partition.rows", 0.0), "places do not"),
        (RULE, halved("rule.of_user.inner.weight"), OLD),
        (RULE, held(lambda own: {k: v for k, v in own.items() if not k.startswith("rule.")}), OLD),
        (SHARD, lambda path: path.unlink(), "Cannot read"),
        (SHARD, lambda path: path.write_bytes(path.read_bytes()[:100]), "Cannot read"),
        (SHARD, held(lambda own: {k: torch.full_like(v, float("nan")) for k, v in own.items()}), "not finite"),
        (SHARD, held(lambda own: {"initial.x": torch.zeros(1)}), "does not hold initial"),
        (HEAD, lambda path: path.write_text("{"), "not JSON"),
        (HEAD, changed(schema=9), "schema 1"), (HEAD, changed(shards="three"), "shards"),
        (HEAD, changed(rows="0" * 64), "other interactions"),
        (HEAD, lambda path: path.unlink(), "not the directory of an ensemble"),
    ):  # fmt: skip
        copied = shutil.copytree(path, tmp_path / "copy")
        damage(copied / file)
        elsewhere = settings | {"output_dir": str(tmp_path / "b")}
        refused(message, run, elsewhere, "receraser", checkpoint=copied, forget={"user_id": ["u7"]})
        shutil.rmtree(copied)


def test_starts_that_do_not_fit_the_method(saved, settings, plain_checkpoint, make_config):
    _, path = saved
    for method, start, message in (
        ("sisa", path, "Use --unlearn=receraser"), ("sisa", plain_checkpoint, "is one model"),
        ("receraser", path, "overwrite"),
    ):  # fmt: skip
        refused(message, run, settings, method, checkpoint=start, forget={"user_id": ["u7"]})
    config, splits = loaded(make_config())
    asked = config, build_model(config, splits), splits, {"user_id": ["u1"]}
    refused("several models", unlearn_model, *asked, method="sisa")


def test_a_full_disk_leaves_the_old_directory(saved, settings, monkeypatch):
    _, path = saved
    before = (path / "ensemble.json").read_text()

    monkeypatch.setattr("os.fsync", mock.Mock(side_effect=OSError(28, "No space left on device")))
    refused("No space left", run, settings, "receraser", forget={"user_id": ["u7"]}, epochs=2, cache=False)
    assert (path / "ensemble.json").read_text() == before
    assert not list(path.parent.glob(".BPR-unlearned*"))


def test_a_request_trains_one_shard_and_the_cache_keeps_the_others(settings, tmp_path, monkeypatch):
    """A second request takes shards from the cache, but for the one that the first request deleted from: not kept."""
    jobs, original = [], cache_module.train
    monkeypatch.setattr(cache_module, "train", lambda *job: (jobs.append(job), original(*job))[1])
    outcome = run(settings, "sisa", forget={"user_id": ["u3"]}, epochs=1)
    labels = [job[2] for job in jobs]
    assert outcome.result["certificates"]["restarted"] == 1
    assert [label.startswith("unlearned shard") for label in labels] == [False, False, False, True]
    assert 0.2 < len(jobs[3][1].train) / len(outcome.data.retain.train) < 0.45  # about a third
    run(settings | {"output_dir": str(tmp_path / "b")}, "sisa", forget={"user_id": ["u7"]}, epochs=1)
    again, touched = (job[2] for job in jobs[4:])
    assert again in labels[:3]
    assert touched.startswith("unlearned shard")


class Fixed(torch.nn.Module):
    """A model with given scores (users, items)."""

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def predict(self, interaction):
        return self.scores[interaction["user_id"], interaction["item_id"]]

    def full_sort_predict(self, interaction):
        return self.scores[interaction["user_id"]].reshape(-1)


SCORES = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
MODELS = [Fixed(part) for part in SCORES]


def answers(ensemble):
    """Scores (5, 7) by both ways RecBole asks; they must agree."""
    users, items = torch.arange(5), torch.arange(7)
    whole = ensemble.full_sort_predict(Interaction({"user_id": users})).reshape(5, 7)
    pairs = Interaction({"user_id": users.repeat_interleave(7), "item_id": items.repeat(5)})
    assert torch.allclose(ensemble.predict(pairs).reshape(5, 7), whole)
    return whole


def test_how_several_models_answer_as_one():
    assert torch.allclose(answers(sharded.Ensemble(MODELS)), SCORES.mean(dim=0))


@pytest.fixture
def attentive(make_config):
    """Three untrained BPR models and the attention over them."""
    config, splits = loaded(make_config())
    nets = [build_model(config.replace(seed=seed), splits) for seed in range(3)]
    torch.manual_seed(0)
    return nets, sharded.AttentiveEnsemble(config, nets, splits.train).eval()


def test_attention_is_the_formula(attentive):
    nets, ensemble = attentive
    with torch.no_grad():
        ensemble.turn += 0.1 * torch.randn(ensemble.turn.shape, generator=torch.Generator().manual_seed(1))
        ensemble.shift += 0.3
    user, item, found = 4, 7, []
    for side, row, part in (("user", user, ensemble.of_user), ("item", item, ensemble.of_item)):
        moved, weights = [], []
        for shard, net in enumerate(nets):
            vector = getattr(net, f"{side}_embedding").weight[row]
            vector = vector @ ensemble.turn[shard] + ensemble.shift[shard, 0]
            hidden = torch.relu(part.inner.weight @ vector + part.inner.bias)
            moved.append(vector)
            weights.append((part.outer.weight[0] @ hidden).exp())
        total = sum(weights)
        found.append(sum(w / total * v for w, v in zip(weights, moved, strict=True)))
    expected = (found[0] * found[1]).sum()
    assert torch.allclose(ensemble.pair_scores(torch.tensor([user]), torch.tensor([item])), expected)


def test_training_the_attention_leaves_the_models_alone(attentive, monkeypatch):
    monkeypatch.setattr(sharded.receraser, "BATCH", 64)
    nets, ensemble = attentive
    before = [weights(net) for net in nets]
    scores, states = iter([0.1, 0.2, 0.5, 0.3, 0.3, 0.9]), []

    def score():
        states.append(ensemble.turn.detach().clone())
        return next(scores)

    losses = sharded.fit_attention(ensemble, 10, 2, torch.Generator().manual_seed(0), score, tqdm(disable=True))
    assert [epoch for epoch, _ in losses] == [1, 2, 3, 4]  # two looks without a gain
    assert losses[-1][1] < losses[0][1]
    assert torch.equal(ensemble.turn, states[2])
    assert all(same(old, net.state_dict()) for old, net in zip(before, nets, strict=True))
    _, ensemble = attentive
    with torch.no_grad():
        ensemble.turn[0, 0, 0] = float("nan")
    refused("receraser_aggregation=mean", sharded.fit_attention, ensemble, 2, 2, torch.Generator(), lambda: 0.0, None)
