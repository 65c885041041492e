"""The synthetic protocol: who gets noise, how much, and of which items."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recbole_unlearn.data import inject
from recbole_unlearn.settings import ForgetSettings
from tests.data.conftest import pairs
from tests.parts import refused


def options(**changes):
    base = {
        "forget": "injected", "on_missing": "error", "inject_mode": "informed", "inject_users": 0.25,
        "inject_amount": 0.5, "inject_pool": 0.2,
    }  # fmt: skip
    return ForgetSettings(**base | changes)


@hypothesis_settings(max_examples=30, deadline=None)
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
        unseen = splits.train.item_num - 1 - seen[user]
        assert number == min(unseen, max(1, round(amount * own[user])))


def test_informed_noise_comes_from_the_lowest_scores(splits):
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=splits.train.item_num)).float()
    full, _ = inject(splits, options(inject_amount=0.1), 3, lambda users: scores[None])
    touched = {pair for split in splits for pair in pairs(split)}
    for user, item in pairs(full.train)[len(splits.train) :]:
        unseen = [i for i in range(1, splits.train.item_num) if (user, i) not in touched]
        lower = sum(1 for other in unseen if scores[other] < scores[item])
        assert lower < np.ceil(0.2 * len(unseen))


def test_other_columns_are_the_users_own_and_the_seed_decides(splits):
    full, again, other = (inject(splits, options(), seed, None)[0].train for seed in (3, 3, 2))
    feat, mine = full.inter_feat, splits.train.inter_feat
    for row in range(len(splits.train), len(full)):
        assert feat["timestamp"][row] in mine["timestamp"][mine["user_id"] == feat["user_id"][row]]
    assert pairs(full) == pairs(again)
    assert pairs(full) != pairs(other)


@pytest.mark.parametrize("changes", [{"inject_users": 0.0}, {"inject_amount": 0.0}, {"inject_users": 0.001}])
def test_nothing_to_inject_is_refused(splits, changes):
    refused("nothing to forget", inject, splits, options(**changes), 0, None)
