"""Requests: every kind of file and header, and the interactions they mean."""

import json
import logging

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn import run_unlearn
from recbole_unlearn.data import Fields, locate, read_request
from tests.parts import refused

FIELDS = Fields("user_id", "item_id", "timestamp")
ROWS = [("u1", "i2"), ("Zoë", "i4"), ("u1", "i2")]


def write(path, columns=("user_id", "item_id"), rows=ROWS):
    frame = pd.DataFrame(rows, columns=list(columns))
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text(frame.to_json(orient="records", lines=True))
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


def asked(forget):
    """(user, item, time) of each request; None where there is none."""
    rows = read_request(forget, FIELDS).frame.itertuples(index=False, name=None)
    return [(user, item, None if time != time else time) for user, item, time in rows]


def unread(forget, said):
    """A request cannot be read."""
    refused(said, read_request, forget, FIELDS)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_kind_of_file_and_its_damaged_form(tmp_path, suffix):
    plain = write(tmp_path / f"r{suffix}")
    expected = [("u1", "i2", None), ("Zoë", "i4", None)]  # duplicates count once
    assert asked(plain) == expected
    unread(tmp_path / f"r{suffix}.gz", "unknown kind of file")
    if suffix != ".parquet":
        for encoding in ("utf-8-sig", "utf-16"):  # with byte order marks
            (tmp_path / f"m{suffix}").write_bytes(plain.read_text(encoding="utf-8").encode(encoding))
            assert asked(tmp_path / f"m{suffix}") == expected
    plain.write_bytes(bytes(range(255, 0, -1)) * 5)
    unread(plain, "r" + suffix)


@pytest.mark.parametrize(("columns", "meant"), [
    (("user_id",), ("1", None, None)), (("item_id",), (None, "1", None)), (("item_id", "user_id"), ("1", "1", None)),
    (("user_id:token", "item_id:token"), ("1", "1", None)), (("user_id", "item_id", "timestamp"), ("1", "1", 1.0)),
    (("user_id", "reason", "Ticket number"), ("1", None, None)),
    (("user_id", "item_id", "rating"), ("1", "1", None)),
])  # fmt: skip
def test_the_header_decides(tmp_path, columns, meant):
    assert asked(write(tmp_path / "r.csv", columns, [tuple("1" for _ in columns)])) == [meant]


# Also a column next to one id column: a misspelt item_id would turn an interaction into a whole user.
WRONG_HEADERS = [
    "user,item", "timestamp", "timestamp,reason", "user_id,movie_id", "item_id,user", "user_id,date", "user_id,",
    "user_id,user_id", "user_id,user_id:token", "user_id,item_id,user_id",
]  # fmt: skip


def test_interactions_users_and_items_mix_in_every_form(tmp_path, caplog):
    mixed = [("u1", "i2", 7.0), ("u22", None, None), (None, "i50", None), ("u3", "i4", None)]
    columns = {
        "user_id": ["u1", "u22", None, "u3"], "item_id": ["i2", "", "i50", "i4"], "timestamp": [7, None, None, None],
    }  # fmt: skip
    pd.DataFrame(columns).to_parquet(tmp_path / "r.parquet")
    lines = [json.dumps({k: v[n] for k, v in columns.items() if v[n] is not None}) for n in range(4)]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    text = "user_id,item_id,timestamp,reason\nu1,i2,7,moved away\nu22,,,\n,,,\n ,i50, ,\nu3, i4 ,,x\n"
    (tmp_path / "r.csv").write_text(text)
    frame = pd.DataFrame(columns, index=[9, 3, 3, 0])
    for form in (columns, frame, *(tmp_path / f"r.{kind}" for kind in ("parquet", "jsonl", "csv"))):
        assert asked(form) == mixed
    assert list(frame.columns) == list(columns)  # the caller's frame is left as it is
    # The blank line has a number and no request.
    assert read_request(tmp_path / "r.csv", FIELDS).rows.tolist() == [2, 3, 5, 6]


@pytest.mark.parametrize(("columns", "said"), [
    (["reason"], "1 other column is not used (reason)."), (["note", "4711"], "2 other columns are not used."),
])  # fmt: skip
def test_other_columns_are_named_in_the_log_when_they_look_like_names(caplog, columns, said):
    with caplog.at_level(logging.INFO):
        read_request({"user_id": ["u1"], "item_id": ["i2"]} | {name: ["moved"] for name in columns}, FIELDS)
    assert said in caplog.text
    assert "moved" not in caplog.text


def test_tokens_keep_their_spelling(tmp_path):
    (tmp_path / "r.csv").write_text("user_id,item_id\n007,1e3\nNA,null\n")
    assert asked(tmp_path / "r.csv") == [("007", "1e3", None), ("NA", "null", None)]
    (tmp_path / "r.jsonl").write_text('{"user_id": 90071992547409931}\n{"item_id": "1"}\n')
    assert asked(tmp_path / "r.jsonl") == [("90071992547409931", None, None), (None, "1", None)]
    for users in ([1, 2], [1.0, 2.0], np.array([1, 2], dtype=np.int32)):
        assert read_request({"user_id": users}, FIELDS).frame["user"].tolist() == ["1", "2"]


@pytest.mark.parametrize(("text", "message"), [
    ("", "is empty"), ("user_id,item_id\n", "no rows"), ("user_id,item_id\n\n\n", "no rows"),
    ("user_id,item_id,timestamp\nu1,i1,\n,,7\n", r"neither a user nor an item .* line 3"),
    ("user_id,item_id,reason\nu1,i1,\n ,,moved\n", r"neither a user nor an item .* line 3"),
    ("user_id,item_id,timestamp\nu1,,7\n", r"timestamp is given with a whole user or item in line 2"),
    ("user_id,timestamp\nu1,7\n", r"timestamp is given with a whole user or item in line 2"),
    ("user_id,item_id,timestamp\nu1,i1,inf\n", r"not a number in line 2"),
    ('user_id,reason\nu1,"two\nlines"\n,x\n', r"neither a user nor an item is given in line 4"),
    ('user_id,reason\nu1,"open\nu2,x\n', r"line 2 has quotes that do not match"),
    ("user_id,item_id,timestamp\nu1,i1,noon\n", r"not a number in line 2"),
    ("user_id,item_id\nu1,i1,extra,more\n", "line 2 has more values"),
    *((f"{header}\n1{',1' * header.count(',')}\n", r"(?<=r\.csv): the header .*expected columns user_id,item_id")
      for header in WRONG_HEADERS),
])  # fmt: skip
def test_bad_content_names_file_and_line(tmp_path, text, message):
    (tmp_path / "r.csv").write_text(text)
    unread(tmp_path / "r.csv", rf"r\.csv.*{message}")


@pytest.mark.parametrize(("forget", "message"), [
    ("nowhere.csv", "no such file"), ("r.xlsx", "unknown kind of file"), (42, "cannot be a int"),
    ({"user_id": [1], "item_id": [1, 2]}, "differ in length"),
    (b"22", "cannot be a bytes"), (None, "cannot be a NoneType"), (pd.Series(["22"]), "cannot be a Series"),
    (["22", "50"], "two users, or a user and an item"), (("22", None), "item_id cannot be a NoneType"),
    ({"user_id": "22", "item_id": ["50", "51"]}, "differ in length"),
    ({"user_id": [1, None]}, "neither a user nor an item is given in row 1"),
    ({"user_id": [1e18]}, "too large to be exact"), ({"user_id": [float("inf")]}, "too large to be exact"),
])  # fmt: skip
def test_other_python_values_are_unread(forget, message):
    unread(forget, message)


VALUES = st.one_of(
    st.text("abc123 é-", min_size=1).filter(str.strip), st.integers(0, 2**70), st.integers(0, 99).map(np.int64),
    st.text("xyz", min_size=1).map(np.str_),
)  # fmt: skip
SHAPES = st.sampled_from([list, tuple, pd.Series, pd.Index, lambda v: np.array(v, dtype=object)])


@given(values=st.lists(VALUES, min_size=1, max_size=6), other=VALUES, shape=SHAPES)
def test_one_value_is_one_token_and_a_column_is_its_values(values, other, shape):
    """`{"user_id": "22"}` is user 22, never users 2 and 2."""
    first, *_ = tokens = list(dict.fromkeys(str(value).strip() for value in values))
    assert asked({"user_id": shape(values)}) == [(token, None, None) for token in tokens]
    assert asked({"user_id": values[0]}) == [(first, None, None)]
    column = shape([other])
    for form in ((values[0], other), {"item_id": column, "user_id": values[0]}, [[values[0]], column]):
        assert asked(form) == [(first, str(other).strip(), None)]
    assert asked((values, shape([other] * len(values)))) == [(token, str(other).strip(), None) for token in tokens]


NO_COLUMN = st.one_of(
    st.none(), st.booleans(), st.binary(), st.complex_numbers(), st.sets(st.integers()), st.datetimes(),
    st.dictionaries(st.text(), st.integers()), st.builds(lambda n: iter(range(n)), st.integers(0, 3)),
    st.just(np.array("22")), st.just(np.array([["22"]])), st.binary().map(bytearray), st.just(object()),
)  # fmt: skip
NO_CELL = st.one_of(
    st.booleans(), st.binary(), st.lists(st.integers()), st.tuples(st.text()), st.datetimes(), st.just(object()),
    st.booleans().map(np.bool_), st.just(np.datetime64("2026-01-01")), st.dictionaries(st.text(), st.text()),
)  # fmt: skip


@given(
    given=st.one_of(NO_COLUMN, st.tuples(st.just("22"), NO_CELL).map(list)),
    key=st.sampled_from(["user_id", "item_id"]),
)
def test_neither_a_value_nor_a_column_is_refused(given, key):
    unread({key: given}, r"cannot be a|neither text nor a number in row 1")


def tokens(split):
    columns = (split.id2token(field, split.inter_feat[field]).tolist() for field in ("user_id", "item_id"))
    return list(zip(*columns, strict=True))


@given(data=st.data())
def test_the_rows_found_are_those_a_loop_finds(source, data):
    some = st.lists(st.sampled_from([pair for split in source.splits for pair in tokens(split)]), max_size=8)
    pairs = data.draw(some)
    users, items = {user for user, _ in data.draw(some)}, {item for _, item in data.draw(some)}
    rows = [*pairs, *((user, None) for user in users), *((None, item) for item in items)]
    if not rows:
        return
    asked_users, asked_items = zip(*data.draw(st.permutations(rows)), strict=True)
    request = {"user_id": asked_users, "item_id": asked_items}

    def wanted(pair):
        return pair in pairs or pair[0] in users or pair[1] in items

    expected = [[wanted(pair) for pair in tokens(split)] for split in source.splits]
    located = locate(read_request(request, FIELDS), source.splits)
    assert [located.train.tolist(), located.valid.tolist(), located.test.tolist()] == expected
    assert located.lines["unknown"] == 0


def test_a_timestamp_is_matched_although_recbole_scaled_it(source, tiny_path):
    assert source.splits.train.inter_feat["timestamp"].max() <= 1  # scaled while loading
    raw = pd.read_csv(tiny_path / "tiny" / "tiny.inter", sep="\t")
    user, item = tokens(source.splits.train)[0]
    row = raw[(raw["user_id:token"] == user) & (raw["item_id:token"] == item)].iloc[0]
    request = {"user_id": [user], "item_id": [item], "timestamp": [row["timestamp:float"]]}
    located = locate(read_request(request, FIELDS), source.splits, clock=source.clock)
    assert np.flatnonzero(located.train).tolist() == [0]
    request["timestamp"] = [row["timestamp:float"] + 1000]
    refused("not in the training data", locate, read_request(request, FIELDS), source.splits, clock=source.clock)


def test_unknown_and_missing_are_counted_without_names(source, tmp_path, caplog):
    user, item = tokens(source.splits.train)[0]
    had = {own for split in source.splits for name, own in tokens(split) if name == user}
    absent = next(f"i{n}" for n in range(60) if f"i{n}" not in had)
    path = write(tmp_path / "r.csv", rows=[(user, item), ("stranger", item), (user, absent)])
    request = read_request(path, FIELDS)
    said = r"r\.csv: 1 of 3 requests name .* \(line 3\).*on_missing=skip"
    assert "stranger" not in refused(said, locate, request, source.splits)
    located = locate(request, source.splits, "skip")
    assert located.lines == {"training": 1, "held_out": 0, "unknown": 2}
    assert located.train.sum() == 1
    assert "r.csv: requests that are not in the training data were skipped" in caplog.text
    assert not any(word in caplog.text for word in ("of 3", "stranger", absent))
    many = read_request({"user_id": [f"x{n}" for n in range(30)]}, FIELDS)
    refused(r"30 of 30 .*\(rows 0, 1, 2, 3, 4 and 25 more\)", locate, many, source.splits)
    for nothing in (([user], [absent]), {"user_id": ["stranger"]}):
        refused(r"nothing to forget.*check the file", locate, read_request(nothing, FIELDS), source.splits, "skip")


def test_python_data_in_the_settings_is_refused_without_its_values(settings):
    values = settings | {"forget": {"user_id": ["u22"]}}
    assert "u22" not in refused(r"run_unlearn\(forget=\.\.\.\)", run_unlearn, "BPR", "tiny", config_dict=values)
