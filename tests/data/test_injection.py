"""The synthetic protocol: who gets noise, how much, and of which items."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recbole_unlearn.data import inject, load
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.settings import ForgetSettings, UnlearnConfig


@pytest.fixture(scope="module")
def clean(tiny_path, tmp_path_factory):
    values = {
        "data_path": str(tiny_path), "checkpoint_dir": str(tmp_path_factory.mktemp("w")),
        "load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"]},
    }  # fmt: skip
    return load(UnlearnConfig("BPR", "tiny", config_dict=values)).splits


def options(**changes):
    base = {
        "forget": "injected", "on_missing": "error", "inject_mode": "informed", "inject_users": 0.25,
        "inject_amount": 0.5, "inject_pool": 0.2,
    }  # fmt: skip
    return ForgetSettings(**base | changes)


def rows(dataset, start=0):
    feat = dataset.inter_feat
    return list(zip(feat["user_id"].tolist()[start:], feat["item_id"].tolist()[start:], strict=True))


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    share=st.floats(0.05, 1.0), amount=st.floats(0.1, 3.0), seed=st.integers(0, 1000), scored=st.booleans()
)
def test_noise_is_new_to_its_user_and_of_the_asked_amount(clean, share, amount, seed, scored):
    scorer = (lambda users: torch.arange(clean.train.item_num)[None].float()) if scored else None
    full, located = inject(clean, options(inject_users=share, inject_amount=amount), seed, scorer)
    before = len(clean.train)
    assert rows(full.train)[:before] == rows(clean.train)  # D' minus S is D, row for row
    assert not located.train[:before].any()
    assert located.train[before:].all()
    noise = rows(full.train, before)
    touched = {pair for split in clean for pair in rows(split)}
    assert not touched & set(noise)
    assert len(noise) == len(set(noise))
    assert all(item > 0 for _, item in noise)
    per_user = {user: sum(1 for u, _ in noise if u == user) for user, _ in noise}
    assert len(per_user) == round(share * len({u for u, _ in rows(clean.train)}))
    for user, number in per_user.items():
        own = sum(1 for u, _ in rows(clean.train) if u == user)
        unseen = clean.train.item_num - 1 - sum(1 for u, _ in touched if u == user)
        assert number == min(unseen, max(1, round(amount * own)))


def test_informed_noise_comes_from_the_lowest_scores(clean):
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=clean.train.item_num)).float()
    full, _ = inject(clean, options(inject_amount=0.1), 3, lambda users: scores[None])
    touched = {pair for split in clean for pair in rows(split)}
    for user, item in rows(full.train, len(clean.train)):
        unseen = [i for i in range(1, clean.train.item_num) if (user, i) not in touched]
        lower = sum(1 for other in unseen if scores[other] < scores[item])
        assert lower < np.ceil(0.2 * len(unseen))


def test_other_columns_are_the_users_own(clean):
    full, _ = inject(clean, options(), 3, None)
    feat, before = full.train.inter_feat, len(clean.train)
    for row in range(before, len(full.train)):
        mine = clean.train.inter_feat["user_id"] == feat["user_id"][row]
        assert feat["timestamp"][row] in clean.train.inter_feat["timestamp"][mine]


def test_the_seed_decides(clean):
    draws = [rows(inject(clean, options(), seed, None)[0].train) for seed in (1, 1, 2)]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


@pytest.mark.parametrize("changes", [{"inject_users": 0.0}, {"inject_amount": 0.0}, {"inject_users": 0.001}])
def test_nothing_to_inject_is_refused(clean, changes):
    with pytest.raises(UnlearnError, match="nothing to forget"):
        inject(clean, options(**changes), 0, None)
