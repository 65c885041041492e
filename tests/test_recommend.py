"""Recommendations in tokens, and the mask."""

import numpy as np
import pandas as pd
import pytest
from recbole.utils.case_study import full_sort_topk

from recbole_unlearn import load_unlearned, run_unlearn
from recbole_unlearn.errors import UnlearnError
from tests.conftest import ITEMS, USERS

GONE_USER, GONE_ITEM = "u3", "i7"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, tiny_path):
    """A BPR that forgot an item, a user and a pair."""
    out = tmp_path_factory.mktemp("recommend") / "out"
    values = {
        "data_path": str(tiny_path), "load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"]},
        "epochs": 20, "eval_step": 20, "embedding_size": 8, "learning_rate": 0.02, "train_batch_size": 64,
        "show_progress": False, "tensorboard": False, "cache": False, "report": "none",
    }  # fmt: skip
    run_unlearn("BPR", "tiny", forget={"user_id": [GONE_USER]}, output_dir=out, config_dict=values)
    run_unlearn(
        checkpoint=out / "BPR-unlearned.pth", forget={"item_id": [GONE_ITEM]}, output_dir=out.parent / "two",
        config_dict={"show_progress": False, "tensorboard": False, "cache": False, "report": "none"},
    )  # fmt: skip
    return load_unlearned(out.parent / "two")


EVERYBODY = [f"u{n}" for n in range(USERS) if f"u{n}" != GONE_USER]


def test_they_are_those_of_recbole(loaded):
    train = loaded.train_data._dataset
    users = loaded.test_data.uid_list[:7]
    scores, items = full_sort_topk(users.tolist(), loaded.model, loaded.test_data, 10)
    found = loaded.recommend(train.id2token("user_id", users.numpy()), k=10)
    for place, (_, own) in enumerate(found.groupby("user", sort=False)):
        theirs = [
            token for token in train.id2token("item_id", items[place].numpy()) if not token.startswith("[")
        ]
        assert own["item"].tolist()[: len(theirs)] == theirs
        assert own["rank"].tolist() == list(range(1, 11))
        assert own["score"].is_monotonic_decreasing
    assert list(found.columns) == ["user", "rank", "item", "score"]
    assert found["score"].iloc[0] == pytest.approx(scores[0, 0].item())


def test_nothing_that_was_had_or_is_gone_is_recommended(loaded):
    found = loaded.recommend(EVERYBODY, k=1000)
    assert not found["item"].str.startswith("[").any()  # no padding, no placeholder of an item that is gone
    assert GONE_ITEM not in set(found["item"])
    seen = set()
    for data in (loaded.train_data, loaded.valid_data):
        part = data._dataset
        pairs = (part.id2token(f, part.inter_feat[f].numpy()) for f in ("user_id", "item_id"))
        seen |= set(zip(*pairs, strict=True))
    shown = set(zip(found["user"], found["item"], strict=True))
    assert not shown & seen
    assert len(shown | seen) == len(EVERYBODY) * (
        ITEMS - 1
    )  # and everything else is: k is larger than what is left
    assert len(shown) == len(found)


def test_what_is_masked_is_never_shown(loaded, tmp_path):
    best = loaded.recommend("u1", k=2)["item"].tolist()
    pair = {"user_id": ["u1"], "item_id": [best[0]]}
    (tmp_path / "mask.csv").write_text(f"user_id,item_id\nu1,{best[0]}\n")
    for mask in (pair, pd.DataFrame(pair), tmp_path / "mask.csv", str(tmp_path / "mask.csv")):
        assert loaded.recommend("u1", k=1, mask=mask)["item"].tolist() == best[1:]
    other = loaded.recommend("u2", k=5)
    assert loaded.recommend("u2", k=5, mask=pair).equals(other)  # a pair is masked for its user
    for_all = loaded.recommend(EVERYBODY, k=60, mask={"item_id": [best[0]]})
    assert best[0] not in set(for_all["item"])
    assert loaded.recommend("u1", k=2)["item"].tolist() == best  # a mask is not kept
    nobody = {"user_id": ["u1", "nobody"], "item_id": ["i-none", best[0]]}
    assert loaded.recommend("u1", k=2, mask=nobody)["item"].tolist() == best
    assert loaded.recommend("u1", k=2, mask=pd.DataFrame(pair).iloc[:0])["item"].tolist() == best


def test_a_masked_user_gets_nothing_also_when_gone(loaded):
    found = loaded.recommend(["u1", GONE_USER, "u2"], mask={"user_id": ["u1", GONE_USER]})
    assert set(found["user"]) == {"u2"}
    assert list(loaded.recommend(["u1"], mask={"user_id": ["u1"]}).columns) == [
        "user",
        "rank",
        "item",
        "score",
    ]


def test_ways_to_name_users(loaded):
    one = loaded.recommend("u12", k=3)
    assert set(one["user"]) == {"u12"}  # one token, not its letters
    for users in (["u12"], ("u12",), np.array(["u12"]), pd.Series(["u12"]), ["u12", "u12"]):
        assert loaded.recommend(users, k=3).equals(one)
    assert len(loaded.recommend([], k=3)) == 0


@pytest.mark.parametrize(
    ("users", "k", "message"),
    [
        (
            ["u1", GONE_USER],
            3,
            "1 of 2 users have no interaction in the retained data, the first of them at position 1",
        ),
        (["[PAD]"], 3, "1 of 1 users"),
        (["[removed-1]", "nobody"], 3, "2 of 2 users"),
        ([("u1",)], 3, "not a tuple"),
        ([None], 3, "not a NoneType"),
        (["u1"], 0, "k=0"),
        (["u1"], True, "k=True"),
        (["u1"], "3", "k='3'"),
    ],
)
def test_what_cannot_be_answered(loaded, users, k, message):
    with pytest.raises(UnlearnError) as error:
        loaded.recommend(users, k)
    assert message in str(error.value)
    assert "nobody" not in str(error.value)
