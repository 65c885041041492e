"""After a publication nothing under a state holds what was deleted: not its bytes, its tensors, nor its free pages.

The users and items of this dataset have long and odd names (quotes, line breaks, unicode), so that they can be
searched for as bytes; every search is tried first on a state that is not published, where it has to find something.
"""

import functools
import json
import logging
import pickletools

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from recbole_unlearn.state import init_state, open_state
from tests.conftest import tiny_rows, train_plain
from tests.state.conftest import PLAIN, done, pairs_of

ODD = {
    "u3": "user-zebra-7f3a \"the cat\" O'Neil'; DROP TABLE requests; --",
    "u5": "user-zebra-a\nline-break, a comma and a \\",
    "u8": "user-zebra-王小明-🦓-Zoë",
    "u9": "user-zebra-90ab with  two spaces",
    "i7": 'item-okapi-"quoted", <b>&amp;</b>',
    "i20": "item-okapi-Ünïcode-𝔘",
}
LOADED = {"inter": ["user_id", "item_id", "rating", "timestamp"], "user": ["user_id", "city"]}


def name(token):
    """The name in this dataset of a user or an item of `tiny`."""
    kind = {"u": "user-zebra", "i": "item-okapi"}[token[0]]
    return ODD.get(token, f"{kind}-{int(token[1:]) * 7919 + 10**6}")


def city(user):
    return f"city-quagga-{int(user[1:]) * 104729 + 10**7}"


@pytest.fixture(scope="module")
def odd(tmp_path_factory, key_file):
    """``odd("BPR")``: a new state of a model on that dataset, to copy."""
    root = tmp_path_factory.mktemp("odd")
    (root / "odd").mkdir()
    rows = [(name(user), name(item), rating, time) for user, item, rating, time in tiny_rows()]
    users = [(name(f"u{n}"), city(f"u{n}")) for n in range(40)]
    for kind, content, columns in (
        ("inter", rows, ["user_id:token", "item_id:token", "rating:float", "timestamp:float"]),
        ("user", users, ["user_id:token", "city:token"]),
    ):
        pd.DataFrame(content, columns=columns).to_csv(root / "odd" / f"odd.{kind}", sep="\t", index=False)

    @functools.cache
    def make(model):
        place = tmp_path_factory.mktemp(f"odd-{model}")
        settings = {**PLAIN, "data_path": str(root), "load_col": LOADED}
        checkpoint = train_plain(model, place, dataset="odd", **settings)
        init_state(place / "S", checkpoint, hash_key=key_file, data_path=str(root)).close()
        return place / "S"

    return make


def traces(folder, words):
    """Files that hold one of ``words`` as bytes, however it is written."""
    codes = ("utf-8", "utf-16-le", "utf-32-le", "unicode_escape")
    needles = {word.encode(code) for word in words for code in codes}
    needles |= {json.dumps(word, ensure_ascii=flag)[1:-1].encode() for word in words for flag in (True, False)}
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name for path in files if any(needle in path.read_bytes() for needle in needles)}


def rows_like(folder, wanted):
    """Rows in all tensors of all files, within rounding, of those ``wanted`` (n, d)."""
    found = 0
    for path in folder.rglob("*.safetensors"):
        for tensor in load_file(path).values():
            if tensor.dim() == 2 and tensor.shape[1] == wanted.shape[1] and tensor.is_floating_point():
                scale = wanted.abs().amax(dim=1) + 1e-12
                distance = torch.cdist(tensor.double(), wanted.double(), p=torch.inf) / scale
                found += int((distance < 1e-4).sum())
    return found


def packed_left(folder, packed):
    """How many of the pairs of numbers in ``packed`` are in the bytes of the database and its log."""
    content = b"".join(path.read_bytes() for path in folder.glob("*.sqlite*"))
    return sum(packed[at : at + 16] in content for at in range(0, len(packed), 16))


EVERY = [(name(user), name(item)) for user, item, _, _ in tiny_rows()]
REQUESTS = [
    {"user_id": [name("u8"), name("u5")]},
    {"item_id": name("i7")},
    {"user_id": [name("u3")] * 2, "item_id": [item for user, item in EVERY if user == name("u3")][:2]},
]
GONE = [name("u8"), name("u5"), name("i7"), city("u8"), city("u5")]


@pytest.mark.parametrize("model", ["BPR", "LightGCN"])
@pytest.mark.parametrize("final", ["publish", "rebuild", "retrain"])
def test_nothing_of_what_was_deleted_is_left(copied, odd, key_file, caplog, tmp_path, model, final):
    caplog.set_level(logging.DEBUG)
    state, here = copied(odd(model)), set(tmp_path.iterdir())
    folder, names = state.core.folder, state.core.live.base.splits.train
    live, trained = state.core.live, pairs_of(state, slice(1))
    weights, moments = live.state(), {key: value.clone() for key, value in live.moments.items()}
    done(state, *REQUESTS)
    state.submit({"user_id": name("u9")}, id="later")
    there = pairs_of(state)
    gone = {pair for pair in EVERY if {*pair} & {*GONE}} | set(zip(*REQUESTS[2].values(), strict=True))
    users = torch.tensor([names.token2id("user_id", name(user)) for user in ("u5", "u8")])
    items = torch.tensor([names.token2id("item_id", name("i7"))])
    sides = (("user", users), ("item", items))
    rows = [found[f"{side}_embedding.weight"][ids] for found in (weights, moments) for side, ids in sides]
    kept = state.core.database.rows("SELECT asked, suppressed FROM requests WHERE status = 'done'")
    packed = b"".join(part for row in kept for part in row)

    # Each search finds what it is for.
    assert all(traces(folder, [word]) for word in GONE)
    assert all(rows_like(folder, table) >= len(table) for table in rows)
    assert packed_left(folder, packed) == len(packed) / 16 > 2 * 30

    getattr(state, final)()
    for again in (state, open_state(folder, key_file)):
        assert (traces(folder, GONE), sum(rows_like(folder, table) for table in rows)) == (set(), 0)
        assert packed_left(folder, packed) == 0
        assert not pairs_of(again) & gone
        kept = there - gone
        assert pairs_of(again) == (kept if final == "publish" else {p for p in kept if p[0] != name("u9")})
        again.verify()
    assert state.core.store.names() == set(state.core.version().base)
    # Blanks instead of deleted names; a user with interactions left keeps their name.
    after = state.core.live.base.splits.train
    for field, ids in (("user_id", users), ("item_id", items)):
        assert list(after.field2id_token[field][ids.numpy()]) == [f"[removed-{id}]" for id in ids.tolist()]
        assert not {*GONE} & after.field2token_id[field].keys()
    content = state.core.store.read(state.core.version().base[2])
    words = {argument for _, argument, _ in pickletools.genops(content) if isinstance(argument, str)}
    assert (name("u9") in words) == (final == "publish")
    assert not {*GONE} & words
    assert traces(folder, [name("u3")]) == traces(folder, [city("u3")]) == {state.core.version().base[2]}
    # Nothing in the database but the pending request; free pages and the log are empty.
    rows = state.core.database.rows
    assert state.core.database.value("PRAGMA freelist_count") == 0
    assert (folder / "state.sqlite-wal").stat().st_size == 0
    kept = rows("SELECT id FROM requests WHERE length(asked) > 0 OR length(suppressed) > 0")
    assert [row[0] for row in kept] == (["later"] if final == "publish" else [])
    assert rows("SELECT * FROM changes") == []
    every = [row[0] for row in rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
    dump = json.dumps([[tuple(row) for row in rows(f"SELECT * FROM {table}")] for table in every], default=repr)
    # Rows of users and items that lost a training interaction: none has the second moments it had.
    for side, place in (("user", 0), ("item", 1)):
        ids = [names.token2id(f"{side}_id", pair[place]) for pair in gone & trained]
        first, last = (found[f"{side}_embedding.weight"][ids] for found in (moments, state.core.live.moments))
        assert (first != last).any(dim=1).all()
    assert set(tmp_path.iterdir()) == here  # nothing next to the state
    assert not any(word in caplog.text + dump for word in ("zebra", "okapi", "quagga"))


def test_names_of_any_kind_are_deleted_from_end_to_end(copied, odd, tmp_path):
    state = copied(odd("BPR"))
    assert {name(user) for user in ("u3", "u5", "u8", "u9")} <= {user for user, _ in pairs_of(state)}
    pd.DataFrame({"user_id": [name("u3"), name("u5")]}).to_csv(tmp_path / "r.csv", index=False)
    state.submit(tmp_path / "r.csv", id="file")
    state.submit(pd.DataFrame({"user_id": [name("u8")]}), id="frame")
    state.submit({"item_id": name("i20")}, id="dict")
    assert name("i20") not in set(state.recommend(name("u9"), 60)["item_id"])
    assert [receipt.status for receipt in state.run()] == ["done"] * 3
    state.rollback("frame")
    assert name("u8") in {user for user, _ in pairs_of(state)}
    state.publish()
    left = pairs_of(state)
    assert not {name("u3"), name("u5")} & {user for user, _ in left}
    assert name("i20") not in {item for _, item in left}
    new = {"user_id": [name("u3"), name("u8")], "item_id": [name("i20"), name("i7")]}
    pd.DataFrame(new).to_csv(tmp_path / "new.csv", index=False)
    assert state.check(tmp_path / "new.csv") == {"new.csv": 1}
    state.verify()
    assert traces(state.core.folder, [name("u3"), name("u5"), name("i20")]) == set()
