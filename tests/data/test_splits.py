"""Forget and retain data: the same ids, nothing of S left in samplers, loaders and masks; the synthetic protocol."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recbole.sampler import Sampler

from recbole_unlearn.data import Located, append, divide, inject, load, loaders, used_items
from recbole_unlearn.data.used_items import used_ids
from recbole_unlearn.settings import ForgetSettings
from tests.data.conftest import pairs
from tests.parts import Rows, refused, without


@given(data=st.data())
def test_dividing_loses_nothing_and_keeps_ids(splits, data):
    rows = data.draw(st.sets(st.integers(0, len(splits.train) - 1), min_size=1, max_size=200))
    divided = without(splits, sorted(rows))
    assert splits.digest() != divided.retain.digest()
    everything = pairs(splits.train)
    assert pairs(divided.forget) == [everything[row] for row in sorted(rows)]
    assert pairs(divided.retain.train) == [p for row, p in enumerate(everything) if row not in rows]
    assert divided.retain.train.field2token_id == splits.train.field2token_id
    assert divided.retain.train.user_num == splits.train.user_num
    left = {user for user, _ in pairs(divided.retain.train)}
    assert set(divided.orphan_users.tolist()) == {u for u, _ in everything} - left
    test = pairs(divided.retain.test)
    assert len(test) + divided.counts["orphan_test_rows"] == len(splits.test)
    gone_users, gone_items = set(divided.orphan_users.tolist()), set(divided.orphan_items.tolist())
    assert not any(u in gone_users or i in gone_items for u, i in test)
    assert divided.summary()["interactions"] == len(rows)


def test_held_out_interactions_of_a_request_leave_every_phase_but_not_all_of_them(splits):
    def located(*rows):
        return Located(*(np.isin(np.arange(len(part)), some) for part, some in zip(splits, rows, strict=True)))

    divided = divide(splits, located([0], [1, 2], [3]), "python")
    assert (divided.counts["valid_rows_removed"], divided.counts["test_rows_removed"]) == (2, 1)
    assert pairs(splits.test)[3] not in pairs(divided.retain.test)
    refused("no test interaction is left", divide, splits, located([0], [], range(len(splits.test))), "python")


def test_deleted_pairs_become_negatives_unless_they_stay_in_another_row(splits, tiny_config):
    user = int(splits.train.inter_feat["user_id"][0])
    divided = without(splits, torch.nonzero(splits.train.inter_feat["user_id"] == user).flatten().tolist()[:-2])
    deleted = {item for owner, item in pairs(divided.forget) if owner == user}
    order = [pairs(split) for split in splits]
    before, after = loaders(tiny_config, splits), loaders(tiny_config, divided.retain)
    list(before.train)
    assert [pairs(split) for split in splits] == order  # loaders do not reorder the data
    assert deleted <= before.train._sampler.used_ids[user]
    assert not deleted & after.train._sampler.used_ids[user]
    assert deleted & set(after.train._sampler.sample_by_user_ids(np.full(3000, user), None, 1).tolist())
    assert deleted <= set(before.test.uid2history_item[user].tolist())
    assert not deleted & set(after.test.uid2history_item[user].tolist())
    # The same pair twice in the data, one of them deleted by its timestamp: it is still known.
    twice = splits._replace(train=append(splits.train, splits.train.inter_feat[[0]]))
    users, items = without(twice, [0, 1]).forget_pairs
    assert list(zip(users.tolist(), items.tolist(), strict=True)) == [pairs(splits.train)[1]]


@pytest.mark.parametrize(("changes", "said"), [
    ({"eval_args": {"split": {"RS": [0.8, 0.2]}}}, "2 parts"),
    ({"val_interval": {"rating": "[9,inf)"}}, "RecBole cannot|no training interactions"),
    ({"data_path": "."}, "RecBole cannot load the dataset tiny"),
])  # fmt: skip
def test_data_that_cannot_be_loaded_or_split_is_refused(make_config, changes, said):
    Path("tiny").mkdir()
    Path("tiny/tiny.inter").write_text("nothing useful\n")
    refused(said, load, make_config(**changes))


def options(**changes):
    base = {
        "forget": "injected", "on_missing": "error", "inject_mode": "informed", "inject_users": 0.25,
        "inject_amount": 0.5, "inject_pool": 0.2,
    }  # fmt: skip
    return ForgetSettings(**base | changes)


@given(share=st.floats(0.05, 1.0), amount=st.floats(0.1, 3.0), seed=st.integers(0, 1000), scored=st.booleans())
def test_noise_is_new_to_its_user_and_of_the_asked_amount(splits, share, amount, seed, scored):
    scorer = (lambda users: torch.arange(splits.train.item_num)[None].float()) if scored else None
    full, located = inject(splits, options(inject_users=share, inject_amount=amount), seed, scorer)
    before = len(splits.train)
    assert pairs(full.train)[:before] == pairs(splits.train)  # D' minus S is D, row for row
    assert not located.train[:before].any()
    assert located.train[before:].all()
    noise = pairs(full.train)[before:]
    touched = {pair for split in splits for pair in pairs(split)}
    assert not touched & set(noise)
    assert len(noise) == len(set(noise))
    assert all(item > 0 for _, item in noise)
    per_user, own, seen = (Counter(user for user, _ in rows) for rows in (noise, pairs(splits.train), touched))
    assert len(per_user) == round(share * len(own))
    for user, number in per_user.items():
        assert number == min(splits.train.item_num - 1 - seen[user], max(1, round(amount * own[user])))


def test_how_noise_is_drawn(splits):
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=splits.train.item_num)).float()
    full, _ = inject(splits, options(inject_amount=0.1), 3, lambda users: scores[None])
    touched = {pair for split in splits for pair in pairs(split)}
    for user, item in pairs(full.train)[len(splits.train) :]:
        unseen = [i for i in range(1, splits.train.item_num) if (user, i) not in touched]
        assert sum(1 for other in unseen if scores[other] < scores[item]) < np.ceil(0.2 * len(unseen))
    full, again, other = (inject(splits, options(), seed, None)[0].train for seed in (3, 3, 2))
    feat, mine = full.inter_feat, splits.train.inter_feat
    for row in range(len(splits.train), len(full)):
        assert feat["timestamp"][row] in mine["timestamp"][mine["user_id"] == feat["user_id"][row]]
    assert pairs(full) == pairs(again)
    assert pairs(full) != pairs(other)


@pytest.mark.parametrize("changes", [{"inject_users": 0.0}, {"inject_amount": 0.0}, {"inject_users": 0.001}])
def test_nothing_to_inject_is_refused(splits, changes):
    refused("nothing to forget", inject, splits, options(**changes), 0, None)


@pytest.mark.parametrize("held", [2**16, 2])
def test_used_items_are_the_sets_of_recbole(splits, monkeypatch, held):
    monkeypatch.setattr(used_items, "HELD", held)
    sampler = Sampler(["train", "valid", "test"], list(splits))
    for phase, ours in used_ids(sampler).items():
        theirs = sampler.used_ids[phase]
        assert ours[np.arange(sampler.user_num)] == theirs.tolist()
        assert ours[np.int64(3)] == ours[3] == theirs[3]
        assert len(ours._sets) <= held


def test_an_epoch_of_the_lean_loop_makes_no_used_items_and_evaluation_its_users_own(splits, tiny_config):
    made = loaders(tiny_config, splits, most=5)
    assert not any(made.train._sampler.used_ids._sets.values())
    for loader, number in ((made.valid, 2), (made.test, 3)):
        users, parts = loader.uid_list.tolist(), loader._sampler.datasets[:number]
        assert len(users) == 5
        assert loader._sampler.used_ids._sets.keys() == {0, *users}
        for user in users:
            items = [part.inter_feat["item_id"][part.inter_feat["user_id"] == user] for part in parts]
            history = set(torch.cat(items).tolist()) - set(loader.uid2positive_item[user].tolist())
            assert set(loader.uid2history_item[user].tolist()) == history


def test_a_user_with_all_items_is_refused_also_where_a_pair_is_there_twice():
    for known, is_refused in (([(1, 1), (1, 2), (2, 1), (2, 1)], True), ([(1, 1), (1, 1), (2, 2)], False)):
        sampler = Sampler.__new__(Sampler)
        sampler.datasets, sampler.phases = [Rows(known, users=3, items=3)], ["train"]
        sampler.uid_field, sampler.user_num, sampler.item_num = "user_id", 3, 3
        if is_refused:
            with pytest.raises(ValueError, match="all items; set user_inter_num_interval"):
                used_ids(sampler)
        else:
            assert used_ids(sampler)["train"][[1, 2]] == [{1}, {2}]
