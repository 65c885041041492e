"""Requests: every kind of file and header, and the rows they are found to mean."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recbole_unlearn.data.requests import Fields, locate, read_request
from recbole_unlearn.data.splits import load
from recbole_unlearn.errors import UnlearnError

FIELDS = Fields("user_id", "item_id", "timestamp")
ROWS = [("u1", "i2"), ("u3", "i4"), ("u1", "i2")]


def write(path, columns=("user_id", "item_id"), rows=ROWS, **kinds):
    frame = pd.DataFrame(rows, columns=list(columns))
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in rows))
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_kind_of_file(tmp_path, suffix):
    request = read_request(write(tmp_path / f"r{suffix}"), FIELDS)
    assert request.kind == "interactions"
    assert request.frame.to_numpy().tolist() == [["u1", "i2"], ["u3", "i4"]]  # duplicates count once


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        (("user_id",), "users"),
        (("item_id",), "items"),
        (("item_id", "user_id"), "interactions"),
        (("user_id:token", "item_id:token"), "interactions"),
        (("user_id", "item_id", "timestamp"), "interactions"),
    ],
)
def test_the_header_decides(tmp_path, columns, kind):
    rows = [tuple("1" for _ in columns)]
    assert read_request(write(tmp_path / "r.csv", columns, rows), FIELDS).kind == kind


@pytest.mark.parametrize(
    "columns",
    [("user", "item"), ("timestamp",), ("user_id", "timestamp"), ("user_id", "item_id", "rating"),
     ("user_id", "user_id"), ("user_id", "user_id:token")],
)  # fmt: skip
def test_wrong_headers_say_what_is_expected(tmp_path, columns):
    path = tmp_path / "r.csv"
    path.write_text(",".join(columns) + "\n" + ",".join("1" for _ in columns) + "\n")
    with pytest.raises(UnlearnError, match=r"r\.csv: the header .*expected columns user_id,item_id"):
        read_request(path, FIELDS)


def test_tokens_keep_their_spelling(tmp_path):
    (tmp_path / "r.csv").write_text("user_id,item_id\n007,1e3\nNA,null\n")
    assert read_request(tmp_path / "r.csv", FIELDS).frame.to_numpy().tolist() == [
        ["007", "1e3"],
        ["NA", "null"],
    ]


def test_numbers_become_tokens():
    for users in ([1, 2], [1.0, 2.0], np.array([1, 2], dtype=np.int32)):
        request = read_request({"user_id": users}, FIELDS)
        assert request.frame["user"].tolist() == ["1", "2"]


def test_python_forms_agree():
    users, items = ["a", "b"], ["x", "y"]
    frame = pd.DataFrame({"user_id": users, "item_id": items}, index=[9, 3])
    forms = [frame, {"user_id": users, "item_id": items}, (users, items), [np.array(users), np.array(items)]]
    frames = [read_request(form, FIELDS).frame for form in forms]
    assert all(f.equals(frames[0]) for f in frames)
    assert list(frame.columns) == ["user_id", "item_id"]  # the caller's frame is left as it is


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("user_id,item_id\n", "no rows"),
        ("user_id,item_id\n\n\n", "no rows"),
        ("user_id,item_id\nu1,i1\nu2,\n", r"missing in line 3"),
        ("user_id,item_id,timestamp\nu1,i1,noon\n", r"not a number in line 2"),
        ("user_id,item_id\nu1,i1,extra,more\n", "r.csv"),
    ],
)
def test_bad_content_names_file_and_line(tmp_path, text, message):
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(UnlearnError, match=message) as error:
        read_request(tmp_path / "r.csv", FIELDS)
    assert "r.csv" in str(error.value)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_binary_rubbish_is_refused(tmp_path, suffix):
    path = tmp_path / f"r{suffix}"
    path.write_bytes(bytes(range(255, 0, -1)) * 5)
    with pytest.raises(UnlearnError, match="r" + suffix) as error:
        read_request(path, FIELDS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("forget", "message"),
    [("nowhere.csv", "no such file"), ("r.xlsx", "unknown kind of file"), (42, "cannot be a int"),
     ({"user_id": [1], "item_id": [1, 2]}, "differ in length")],
)  # fmt: skip
def test_what_is_no_request(forget, message):
    with pytest.raises(UnlearnError, match=message):
        read_request(forget, FIELDS)


@pytest.fixture(scope="module")
def source(tiny_path, tmp_path_factory):
    from recbole_unlearn.settings.config import UnlearnConfig

    values = {
        "data_path": str(tiny_path), "load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"]},
        "checkpoint_dir": str(tmp_path_factory.mktemp("w")), "normalize_all": True,
    }  # fmt: skip
    return load(UnlearnConfig("BPR", "tiny", config_dict=values))


def tokens(split):
    return list(
        zip(
            split.id2token("user_id", split.inter_feat["user_id"]).tolist(),
            split.id2token("item_id", split.inter_feat["item_id"]).tolist(),
            strict=True,
        )
    )


@hypothesis_settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_rows_found_are_those_a_loop_finds(source, data):
    """Against brute force, for any mixture of rows of all splits, and for each kind of request."""
    everything = [pair for split in source.splits for pair in tokens(split)]
    chosen = data.draw(st.lists(st.sampled_from(everything), min_size=1, max_size=15))
    kind = data.draw(st.sampled_from(["interactions", "users", "items"]))
    if kind == "interactions":
        request, wanted = (list(zip(*chosen, strict=True)), lambda pair: pair in chosen)
    elif kind == "users":
        names = {user for user, _ in chosen}
        request, wanted = ({"user_id": list(names)}, lambda pair: pair[0] in names)
    else:
        names = {item for _, item in chosen}
        request, wanted = ({"item_id": list(names)}, lambda pair: pair[1] in names)
    expected = [[wanted(pair) for pair in tokens(split)] for split in source.splits]
    located = locate(read_request(request, FIELDS), source.splits)
    assert [located.train.tolist(), located.valid.tolist(), located.test.tolist()] == expected
    assert located.skipped == 0


@pytest.mark.parametrize("split", [1, 2])
def test_held_out_interactions_alone_are_found(source, split):
    """No model was trained on them, and they leave the data all the same."""
    user, item = tokens(source.splits[split])[0]
    located = locate(read_request(([user], [item]), FIELDS), source.splits)
    found = [located.train, located.valid, located.test]
    assert [int(mask.sum()) for mask in found] == [int(n == split) for n in range(3)]


def test_a_request_that_names_nothing_in_the_data_is_refused(source):
    user = tokens(source.splits.train)[0][0]
    had = {item for split in source.splits for name, item in tokens(split) if name == user}
    other = next(f"i{n}" for n in range(60) if f"i{n}" not in had)
    for request in (([user], [other]), {"user_id": ["stranger"]}):
        with pytest.raises(UnlearnError, match=r"nothing to forget.*check the file"):
            locate(read_request(request, FIELDS), source.splits, "skip")


def raw_times(tiny_path):
    return pd.read_csv(tiny_path / "tiny" / "tiny.inter", sep="\t")


def test_a_timestamp_is_matched_although_recbole_scaled_it(source, tiny_path):
    assert source.splits.train.inter_feat["timestamp"].max() <= 1  # scaled while loading
    raw = raw_times(tiny_path)
    user, item = tokens(source.splits.train)[0]
    row = raw[(raw["user_id:token"] == user) & (raw["item_id:token"] == item)].iloc[0]
    request = {"user_id": [user], "item_id": [item], "timestamp": [row["timestamp:float"]]}
    located = locate(read_request(request, FIELDS), source.splits, clock=source.clock)
    assert np.flatnonzero(located.train).tolist() == [0]
    request["timestamp"] = [row["timestamp:float"] + 1000]
    with pytest.raises(UnlearnError, match="not in the training data"):
        locate(read_request(request, FIELDS), source.splits, clock=source.clock)


def test_unknown_and_missing_are_counted_without_names(source, tmp_path, caplog):
    user, item = tokens(source.splits.train)[0]
    absent = next(f"i{n}" for n in range(60) if (user, f"i{n}") not in
                  {pair for split in source.splits for pair in tokens(split)})  # fmt: skip
    path = write(tmp_path / "r.csv", rows=[(user, item), ("stranger", item), (user, absent)])
    request = read_request(path, FIELDS)
    with pytest.raises(
        UnlearnError, match=r"r\.csv: 1 of 3 requests name .* \(line 3\).*on_missing=skip"
    ) as error:
        locate(request, source.splits)
    assert "stranger" not in str(error.value)
    located = locate(request, source.splits, "skip")
    assert located.skipped == 2
    assert located.train.sum() == 1
    assert "r.csv: requests that are not in the training data were skipped" in caplog.text
    assert "of 3" not in caplog.text
    assert "stranger" not in caplog.text
    assert absent not in caplog.text


def test_only_the_first_rows_are_listed(source):
    request = read_request({"user_id": [f"x{n}" for n in range(30)]}, FIELDS)
    with pytest.raises(UnlearnError, match=r"30 of 30 .*\(rows 0, 1, 2, 3, 4 and 25 more\)"):
        locate(request, source.splits)


def test_forgetting_everything_is_refused(source):
    request = read_request({"user_id": [f"u{n}" for n in range(40)]}, FIELDS)
    with pytest.raises(UnlearnError, match=r"all \d+ training interactions"):
        locate(request, source.splits)
