"""Measures against closed forms: the demotion rate, groups of users, never-touched items."""

import numpy as np
import pytest
import torch
from recbole.data.interaction import Interaction

from recbole_unlearn.data import Located, divide, load, loaders
from recbole_unlearn.measures import (
    Measurement,
    deleted_pairs,
    never_touched,
    paired_errors,
    report_config,
    utility,
)
from recbole_unlearn.training import PhaseTrainer, build_model, compose


def located(splits, rows):
    mask = np.zeros(len(splits.train), bool)
    mask[list(rows)] = True
    return Located(mask, np.zeros(len(splits.valid), bool), np.zeros(len(splits.test), bool))


@pytest.fixture
def divided(make_config):
    splits = load(make_config()).splits
    return divide(splits, located(splits, range(0, 120, 2)), "python")


def test_negatives_were_never_touched_and_stay_the_same(divided):
    pairs = deleted_pairs(divided, 10, seed=1)
    touched = {
        pair
        for split in divided.full
        for pair in zip(
            split.inter_feat["user_id"].tolist(), split.inter_feat["item_id"].tolist(), strict=True
        )
    }
    assert pairs.others.shape == (60, 10)
    for user, negatives in zip(pairs.users.tolist(), pairs.others.tolist(), strict=True):
        assert all(item > 0 and (user, item) not in touched for item in negatives)
    assert torch.equal(pairs.others, deleted_pairs(divided, 10, seed=1).others)
    assert not torch.equal(pairs.others, deleted_pairs(divided, 10, seed=2).others)


def test_users_who_touched_almost_everything(divided):
    """One item left: it is the only negative. None left: the user is not asked."""
    train = divided.full.train
    items = torch.arange(1, train.item_num)
    feat = Interaction({
        "user_id": torch.cat([torch.full((len(items) - 1,), 1), torch.full((len(items),), 2)]),
        "item_id": torch.cat([items[items != 17], items]),
    })  # fmt: skip
    empty = train.copy(Interaction({"user_id": torch.empty(0).long(), "item_id": torch.empty(0).long()}))
    splits = divided.full._replace(train=train.copy(feat), valid=empty, test=empty)
    drawn, usable = never_touched(torch.tensor([1, 2]), splits, 5, torch.Generator().manual_seed(0))
    assert drawn[0].tolist() == [17] * 5
    assert usable.tolist() == [True, False]


def test_groups_add_up_and_equal_recboles_figures(make_config, divided):
    """Metrics of all users are the mean over the two groups, weighted by how many users each has."""
    config = make_config()
    model = build_model(config, divided.full)
    trainer = compose(PhaseTrainer, config, model, "x")
    data = loaders(config, divided.retain)
    measured = utility(trainer, config, data, divided.affected_users)
    users = data.test.uid_list
    affected = torch.isin(users, divided.affected_users)
    assert 0 < affected.sum() < len(users)
    for metric, value in measured["metrics"].items():
        weighted = (
            measured["affected"][metric] * affected.sum() + measured["unaffected"][metric] * (~affected).sum()
        ) / len(users)
        assert float(weighted) == pytest.approx(value, abs=2e-6)
    trainer.eval_collector.data_collect(data.train)
    plain = trainer.evaluate(data.test, load_best_model=False)
    for metric, value in plain.items():
        assert measured["metrics"][metric] == pytest.approx(value, abs=1e-4)


def test_recall_and_ndcg_by_hand(make_config, divided):
    """The reported numbers are the textbook ones, with training items masked and deleted ones not."""
    config = make_config()
    trainer = compose(PhaseTrainer, config, build_model(config, divided.full), "x")
    data = loaders(config, divided.retain)
    measured = utility(trainer, config, data, divided.affected_users)["metrics"]
    recalls, ndcgs = [], []
    for user in data.test.uid_list.tolist():
        seen = {
            item
            for split in (divided.retain.train, divided.retain.valid)
            for owner, item in zip(
                split.inter_feat["user_id"].tolist(), split.inter_feat["item_id"].tolist(), strict=True
            )
            if owner == user
        }
        test = divided.retain.test.inter_feat
        wanted = {
            i for u, i in zip(test["user_id"].tolist(), test["item_id"].tolist(), strict=True) if u == user
        }
        scores = trainer.scores(torch.tensor([user]), divided.full.train)[0]
        ranking = [i for i in scores.argsort(descending=True).tolist() if i not in seen and i != 0][:10]
        gains = [1 / np.log2(rank + 2) for rank, item in enumerate(ranking) if item in wanted]
        recalls.append(len(gains) / len(wanted))
        ndcgs.append(sum(gains) / sum(1 / np.log2(rank + 2) for rank in range(min(10, len(wanted)))))
    assert measured["recall@10"] == pytest.approx(np.mean(recalls), abs=1e-6)
    assert measured["ndcg@10"] == pytest.approx(np.mean(ndcgs), abs=1e-6)


def test_reported_metrics_are_always_there(make_config):
    config = report_config(make_config(metrics=["MRR"], topk=[5], valid_metric="MRR@5"), item_num=61)
    assert config["metrics"] == ["Recall", "NDCG", "MRR"]
    assert config["topk"] == [5, 10, 20, 50]
    assert report_config(make_config(), item_num=30)["topk"] == [10, 20]


def test_paired_errors_are_those_of_the_users_own_differences(make_config, divided):
    """Values by user have RecBole's means, and a model is paired with another user by user."""
    config = make_config(metrics=["Recall", "MRR", "ItemCoverage"], valid_metric="Recall@10")
    measurement = Measurement(config, divided, loaders(config, divided.retain), 10)
    first, second = (
        measurement.measure(
            compose(PhaseTrainer, config, build_model(config.replace(seed=n), divided.full), "x")
        )
        for n in (1, 2)
    )
    assert "itemcoverage@10" in first.utility["affected"]
    assert set(first.affected) == {key for key in first.utility["affected"] if "coverage" not in key}
    for key, own in first.affected.items():
        assert float(own.mean()) == pytest.approx(first.utility["affected"][key], abs=1e-6)
    errors = paired_errors(first, second)
    moved = (second.affected["mrr@10"] - first.affected["mrr@10"]).numpy()
    assert errors["mrr@10"] == pytest.approx(np.std(moved, ddof=1) / np.sqrt(len(moved)))
    assert set(paired_errors(first, first).values()) == {0.0}
