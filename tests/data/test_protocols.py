"""Requests as the literature draws them."""

import json

import numpy as np
import pytest
import torch

from recbole_unlearn import run_stream, run_unlearn
from recbole_unlearn.data import Protocol, Source, load
from tests.parts import refused


@pytest.fixture
def drawn(make_config):
    def make(forget, seed=7, **changes):
        config, protocol = make_config(**changes), Protocol.read(forget)
        protocol.load_column(config)
        return protocol.divided(Source(load(config).splits, None), seed)

    return make


def per_user(dataset):
    return torch.bincount(dataset.inter_feat["user_id"], minlength=dataset.user_num)


def test_core_and_edge_are_the_users_with_most_and_fewest_interactions(drawn):
    for name, sign in (("core", 1), ("edge", -1)):
        data = drawn(f"{name}:10%")
        before, users = per_user(data.full.train), data.affected_users
        assert len(users) == 4
        rest = np.setdiff1d(np.arange(1, len(before)), users)
        assert (sign * before[users]).min() >= (sign * before[rest]).max()
        assert (per_user(data.retain.train)[users] == 0).all()
    one, same, other = (drawn("random:10%", seed).affected_users for seed in (7, 7, 8))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_parts_of_a_stream_are_equal_and_in_order(drawn, make_config):
    whole = set(drawn("core:20%").affected_users.tolist())
    config, protocol, seen = make_config(), Protocol.read("core:20%"), []
    splits = load(config).splits
    for part in range(1, 5):
        data = protocol._replace(part=(part, 4)).divided(Source(splits, None), 7)
        seen += data.affected_users.tolist()
        splits = data.retain
    assert len(seen) == len(set(seen)) == 8
    before = per_user(load(config).splits.train)
    assert sorted(before[seen]) == sorted(before[list(whole)])


def test_a_sensitive_category_leaves_and_its_exposure_is_measured(drawn, settings):
    data = drawn("sensitive:kind=k3")
    feat, train = data.full.train.item_feat, data.retain.train
    number = train.field2token_id["kind"]["k3"]
    items = feat["item_id"][(feat["kind"] == number).any(dim=1)]
    assert torch.equal(data.exposed.sort().values, items.sort().values)
    assert torch.isin(data.forget.inter_feat["item_id"], items).all()
    users = data.affected_users
    assert len(users) == 2
    mine = torch.isin(train.inter_feat["user_id"], users)
    assert mine.any()
    assert not torch.isin(train.inter_feat["item_id"][mine], items).any()

    values = settings | {"forget": "sensitive:kind=k3", "unlearn": "rebuild", "compare": ["retrain"], "min_group": 10}
    result = run_unlearn("BPR", "tiny", config_dict=values)
    for name, phase in result.result["phases"].items():
        assert 0 <= phase["forgetting"]["exposure@10"] <= phase["forgetting"]["exposure@50"] <= 1, name
    assert result.result["forget"]["source"] == "drawn sensitive:kind=k3"
    assert "hashes" not in result.result
    page = (result.output_dir / "report.html").read_text()
    assert "--forget=sensitive:kind=k3" in page
    assert "Exposure@10" in page
    assert "Exposure@10" in str(result)


def test_spam_adds_users_who_promote_unpopular_items(drawn, make_config):
    data, clean = drawn("spam:3"), load(make_config()).splits.train
    train, forget = data.full.train, data.forget
    assert train.user_num == clean.user_num + 3
    assert torch.unique(forget.inter_feat["user_id"]).tolist() == list(range(clean.user_num, train.user_num))
    assert len(data.retain.train) == len(clean)
    popularity = torch.bincount(clean.inter_feat["item_id"], minlength=clean.item_num)
    assert (popularity[data.exposed] <= popularity[1:].double().quantile(0.5)).all()
    for user in range(clean.user_num, train.user_num):
        mine = forget.inter_feat["user_id"] == user
        items = forget.inter_feat["item_id"][mine]
        assert len(torch.unique(items)) == len(items)
        place = torch.isin(items, data.exposed).nonzero().flatten()
        assert len(place) == 1
        assert 0.2 * len(items) - 1 <= int(place) <= 0.8 * len(items)
        times = forget.inter_feat["timestamp"][mine]
        assert (times.diff() >= 0).all()
    assert data.is_made_up


def test_a_stream_goes_on_from_its_own_models(settings):
    values = settings | {"forget": "stream:2:random:10%", "unlearn": "rebuild", "report": "none"}
    made = run_stream("BPR", "tiny", config_dict=values)
    results = [json.loads((made.output_dir / str(n) / "result.json").read_text()) for n in (1, 2)]
    assert [one["forget"]["users"] for one in results] == [2, 2]
    assert results[1]["phases"]["original"]["metrics"] != results[0]["phases"]["original"]["metrics"]
    assert results[1]["phases"]["original"]["seconds"] is None  # it is the model of the first request
    assert (made.output_dir / "comparison.html").is_file()
    assert "deleted in all" in str(made)


@pytest.mark.parametrize(
    ("forget", "said"),
    [
        ("core:5", "expected core:5%"), ("edge:0%", "expected core:5%"), ("random:100%", "expected core:5%"),
        ("sensitive:kind", "expected core:5%"), ("spam:0", "expected core:5%"), ("stream:3:x", "expected core:5%"),
        ("stream:2:random:5%", "run_stream"), ("sensitive:city=c1", "no such column"),
        ("sensitive:kind=zz", "for example k"), ("spam:500", "only 30 unpopular items"),
    ],
)  # fmt: skip
def test_requests_that_cannot_be_drawn_are_refused(settings, forget, said):
    refused(said, run_unlearn, "BPR", "tiny", config_dict=settings | {"forget": forget})
    refused("stream:K:REQUEST", run_stream, "BPR", "tiny", forget="core:5%", config_dict=settings)
