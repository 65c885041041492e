"""Fast loading: the same bits, ids, order and refusals as RecBole's own, whatever is in the files."""

import io

import numpy as np
import pandas as pd
import pytest
import torch

from recbole_unlearn.data import fast_loading, load
from recbole_unlearn.recbole_compat import replaced
from recbole_unlearn.settings import UnlearnConfig

HEAD = "u:token\ti:token\tt:float\n"
FAST = [
    "a\tb\t1\n", "a\tNA\t1.5\nb c\t007\t\n", "a\tb\t0.30000000000000004", "é\t日本\t1e-5\r\n\t\t.5\r\n",
    "a\tb\tTrue\n",
]  # fmt: skip
SLOW = [
    '"a\tb"\tc\t1\n', "a\tb\n", "a\tb\nc\td\t1\te\n", "a\tb\t1\t2\n", "a\tb\t1\n\nc\td\t2\n",
    "a\tb\t9007199254740993\n", "a\tb\t-0\n", "a\tb\tx\n", "a\tb\t1\n\u3000\n", "a\tb\t1\rc\td\t2\n",
    "a\r2\tb\t1\n", "a\0\tb\t1\n",
]  # fmt: skip


def outcome(read, path):
    """The columns of a file with the bits of their numbers; or how it was refused."""
    types = {"u:token": str, "i:token": str, "t:float": np.float64}
    try:
        frame = read(path, delimiter="\t", usecols=list(types), dtype=types, encoding=None, engine="python")
    except ValueError as error:
        return type(error), str(error)
    bits = [np.isnan(frame["t:float"]).tolist(), np.signbit(frame["t:float"]).tolist()]
    return frame.index.tolist(), bits, frame.astype(object).map(repr).to_numpy().tolist()


@pytest.mark.parametrize("rows", [*FAST, *SLOW])
def test_every_file_is_read_as_by_the_parser_in_python(rows, tmp_path):
    """Quotes, ragged and empty lines, large integers and negative zeros are what the parsers read otherwise."""
    parsers, path = [], tmp_path / "x.inter"
    path.write_text(HEAD.replace("\n", "\r\n" if "\r\n" in rows else "\n") + rows, newline="")

    def read(source, **options):
        parsers.append((options["engine"], isinstance(source, io.BytesIO)))
        return pd.read_csv(source, **options)

    with replaced(fast_loading, "_read_csv", read):
        assert outcome(fast_loading.read_csv, str(path)) == outcome(pd.read_csv, str(path))
    assert parsers[-1] == (("c", True) if rows in FAST else ("python", False))


@pytest.mark.parametrize(("model", "settings"), [
    ("BPR", {}), ("SASRec", {}), ("FM", {"load_col": None}),  # token_seq in the file of items
    ("BPR", {"eval_args": {"split": {"RS": [8, 1, 1]}, "order": "RO", "group_by": None, "mode": "full"}}),
    ("BPR", {"eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full"}}),
    ("BPR", {"user_inter_num_interval": "[20,90]", "val_interval": {"rating": "[3,inf)"}, "rm_dup_inter": "last"}),
])  # fmt: skip
def test_a_dataset_is_loaded_as_by_recbole(model, settings):
    config = UnlearnConfig(model, "ml-100k", config_dict=settings)
    ours, theirs = load(config), load.__wrapped__(config)
    assert ours.clock == theirs.clock
    for mine, other in zip(ours.splits, theirs.splits, strict=True):
        for field, names in other.field2id_token.items():
            assert np.array_equal(mine.field2id_token[field], names)
        assert mine.field2token_id == other.field2token_id
        for feat in other.feat_name_list:
            a, b = getattr(mine, feat).interaction, getattr(other, feat).interaction
            assert list(a) == list(b)
            assert all(a[field].dtype == b[field].dtype and torch.equal(a[field], b[field]) for field in b)
