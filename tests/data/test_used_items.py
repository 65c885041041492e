"""Users' items in samplers and loaders: RecBole's own sets, made for the users who are asked about."""

import numpy as np
import pytest
import torch
from recbole.sampler import Sampler

from recbole_unlearn.data import loaders
from recbole_unlearn.data.used_items import used_ids
from tests.parts import Rows, loaded


def test_they_are_the_sets_of_recbole(make_config):
    _, splits = loaded(make_config())
    sampler = Sampler(["train", "valid", "test"], list(splits))
    for phase, ours in used_ids(sampler).items():
        theirs = sampler.used_ids[phase]
        assert ours[np.arange(sampler.user_num)] == theirs.tolist()
        assert ours[np.int64(3)] == ours[3] == theirs[3]


def test_an_epoch_of_the_lean_loop_makes_none_and_evaluation_its_users_own(make_config):
    config, splits = loaded(make_config())
    made = loaders(config, splits, most=5)
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
    for pairs, is_refused in (([(1, 1), (1, 2), (2, 1), (2, 1)], True), ([(1, 1), (1, 1), (2, 2)], False)):
        sampler = Sampler.__new__(Sampler)
        sampler.datasets, sampler.phases = [Rows(pairs, users=3, items=3)], ["train"]
        sampler.uid_field, sampler.user_num, sampler.item_num = "user_id", 3, 3
        if is_refused:
            with pytest.raises(ValueError, match="all items; set user_inter_num_interval"):
                used_ids(sampler)
        else:
            assert used_ids(sampler)["train"][[1, 2]] == [{1}, {2}]
