"""Windows of sequential models: those of RecBole, and what is left of them when interactions are deleted."""

import numpy as np
import pytest
import torch
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from recbole.config import Config
from recbole.data import create_dataset
from recbole.data.dataset import Dataset
from recbole.utils import init_seed

from recbole_unlearn import recbole_compat
from recbole_unlearn.data import Sequences, Splits, load
from recbole_unlearn.settings import UnlearnConfig
from tests.parts import refused

SPLITS = {
    "leave one out": {"split": {"LS": "valid_and_test"}},
    "ratio by user": {"split": {"RS": [0.8, 0.1, 0.1]}, "group_by": "user"},
    "ratio": {"split": {"RS": [0.7, 0.2, 0.1]}, "group_by": "none"},
}
if hasattr(Dataset, "time_based_split"):  # since RecBole 1.2.1
    SPLITS["time"] = {"split": {"TS": [0.8, 0.1, 0.1]}}
HEADER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\ttags:token_seq"


def raw_dataset(dataset="tiny", split="leave one out", length=5, **changes):
    recbole_compat.restore_numpy_names()
    values = {
        "load_col": None, "train_neg_sample_args": None, "MAX_ITEM_LIST_LENGTH": length, "show_progress": False,
        "eval_args": {"order": "TO", "mode": "full", "group_by": "user"} | SPLITS[split],
    }  # fmt: skip
    with recbole_compat.anomaly_mode_kept():
        config = Config("SASRec", dataset, config_dict=values | changes)
    init_seed(config["seed"], config["reproducibility"])
    return create_dataset(config)


def assert_same(ours, theirs):
    """The same windows in the same order, in every field."""
    for mine, other in zip(ours, theirs, strict=True):
        assert set(mine.inter_feat.columns) == set(other.inter_feat.columns)
        for field in other.inter_feat.columns:
            assert mine.inter_feat[field].dtype == other.inter_feat[field].dtype
            assert torch.equal(mine.inter_feat[field], other.inter_feat[field]), field
        for name in ("field2type", "field2source", "field2seqlen"):
            assert getattr(mine, name) == getattr(other, name)


def write_rows(root, rows, name="drawn"):
    """A dataset with the interactions ``rows`` (user, item, time), and several tags each."""
    folder = root / name
    folder.mkdir(exist_ok=True)
    lines = [f"{u}\t{i}\t{1 + i % 5}\t{t}\tt{i % 3} t{t}" for u, i, t in rows]
    (folder / f"{name}.inter").write_text("\n".join([HEADER, *lines]) + "\n")
    return str(root)


def assert_recboles_own(**given_):
    """Our windows are those of RecBole's `build()`, which are returned."""
    built, raw = raw_dataset(**given_).build(), raw_dataset(**given_)
    number, sequences = len(raw.inter_feat), Sequences.of(raw)
    assert len(sequences) == number
    assert_same(sequences.windows(), built)
    return built


@pytest.mark.parametrize("length", [1, 4, 50])
@pytest.mark.parametrize("split", SPLITS)
def test_windows_are_recboles_own(tiny_path, split, length):
    assert_recboles_own(data_path=str(tiny_path), split=split, length=length)


ROWS = st.lists(st.tuples(*(st.integers(1, most) for most in (4, 8, 4))), min_size=12, max_size=40, unique=True)


# Without shrinking: every example is a dataset that RecBole reads twice.
@hypothesis_settings(max_examples=12, phases=[Phase.explicit, Phase.generate])
@given(rows=ROWS, split=st.sampled_from(sorted(SPLITS)), length=st.integers(1, 6))
def test_windows_with_many_ties_are_recboles_own(tmp_path_factory, rows, split, length):
    path = write_rows(tmp_path_factory.getbasetemp(), rows)
    built = assert_recboles_own(dataset="drawn", data_path=path, split=split, length=length)
    assert_same(Sequences.recovered(Splits(*built)).windows(), built)


def test_fields_for_the_split_alone_are_dropped_and_numbers_with_buckets_are_listed_as_by_recbole(tiny_path):
    built = assert_recboles_own(data_path=str(tiny_path), unused_col={"inter": ["timestamp"]})
    assert "timestamp" not in built[0].inter_feat.columns
    refused("unused_col", Sequences.recovered, Splits(*built))
    buckets = {"rating": {"method": "ED", "bucket": 3}}
    built = assert_recboles_own(data_path=str(tiny_path), numerical_features=["rating"], discretization=buckets)
    assert built[0].inter_feat["rating_list"].shape[1:] == (5, 2)


@pytest.mark.parametrize(("changes", "said"), [
    ({"eval_args": {"split": {"LS": "valid_and_test"}, "order": "RO", "mode": "full"}}, "order to TO"),
    ({"load_col": {"inter": ["user_id", "item_id"]}}, r"load_col='\{inter: \[user_id, item_id, timestamp\]\}'"),
])  # fmt: skip
def test_data_without_the_order_of_time_is_refused(tiny_path, changes, said):
    refused(said, Sequences.of, raw_dataset(data_path=str(tiny_path), **changes))


def test_the_times_are_loaded_where_the_file_has_them_unless_the_columns_are_chosen(settings):
    del settings["load_col"]
    config = UnlearnConfig("GRU4Rec", "tiny", config_dict=settings)
    assert config["load_col"] == {"inter": ["user_id", "item_id"]}
    assert "timestamp" in load(config).splits.train.inter_feat
    assert config["load_col"] == {"inter": ["user_id", "item_id", "timestamp"]}  # as the checkpoint has it


def brute_force(sequences, keep):
    """By interaction: the numbers of its history among ``keep``, made one interaction after the other."""
    feat = sequences.raw.inter_feat
    users, times = feat["user_id"].tolist(), feat["timestamp"].tolist()
    found, so_far = {}, {}
    for row in sorted(range(len(users)), key=lambda row: (users[row], times[row], row)):
        own = so_far.setdefault(users[row], [])
        found[row] = own[-sequences.length :]
        if keep[row]:
            own.append(row)
    return found


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    rng = np.random.default_rng(3)
    rows = {tuple(row) for row in rng.integers(1, [6, 15, 6], size=(60, 3)).tolist()}
    path = write_rows(tmp_path_factory.mktemp("sequences"), sorted(rows, key=lambda row: hash(row) % 97))
    return Sequences.of(raw_dataset(dataset="drawn", data_path=path, length=4))


def as_rows(sequences, windows):
    """Windows as (target, history) in numbers of the raw interactions, from every field of theirs."""
    feat = sequences.raw.inter_feat
    fields = [field for field in feat.columns if field != "user_id"]

    def key(user, values):
        return (int(user), *(tuple(np.ravel(value).tolist()) for value in values))

    numbers = {key(feat["user_id"][n], [feat[f][n] for f in fields]): n for n in range(len(sequences))}
    found = {}
    for n in range(len(windows)):
        user, size = windows["user_id"][n], int(windows["item_length"][n])
        history = [numbers[key(user, [windows[f"{f}_list"][n, i] for f in fields])] for i in range(size)]
        assert all(not windows[f"{f}_list"][n, size:].any() for f in fields)
        found[numbers[key(user, [windows[f][n] for f in fields])]] = history
    return found


@given(data=st.data())
def test_deleting_follows_the_definition(drawn, data):
    keep, everything = torch.ones(len(drawn), dtype=torch.bool), set(range(len(drawn)))
    keep[list(data.draw(st.just(everything) | st.sets(st.sampled_from(sorted(everything)))))] = False
    windows, after = drawn.only(keep).windows(), brute_force(drawn, keep)
    for role, part in enumerate(windows):
        expected = {row: after[row] for row in after if keep[row] and after[row] and drawn.role[row] == role}
        assert as_rows(drawn, part.inter_feat) == expected
    deleted = (~keep).nonzero().flatten()
    assert as_rows(drawn, drawn.prefix(deleted, keep)) == {row: after[row] for row in deleted.tolist()}


def test_a_user_whose_first_window_is_missing_is_recovered_from_the_next(drawn):
    built = drawn.windows()
    train = built.train.inter_feat
    later = built.train.copy(train[train["item_length"] > 1])
    found = Sequences.recovered(Splits(later, built.valid, built.test)).raw.inter_feat
    raw = drawn.raw.inter_feat
    raw = raw[torch.isin(raw["user_id"], found["user_id"])]
    fields = ("user_id", "item_id", "timestamp")
    rows = [sorted(zip(*(feat[field].tolist() for field in fields), strict=True)) for feat in (found, raw)]
    assert rows[0] == rows[1]
