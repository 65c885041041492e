"""Keyed hashes: where the key comes from, who can read it, and what a hash depends on."""

import hmac
import multiprocessing
import os
import stat
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn.files import hash_keys
from tests.parts import refused

KEY = b"k" * 32


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "recbole_unlearn" / "key"


def test_a_key_is_made_once_for_its_owner_alone(home):
    first = hash_keys.load_key()
    assert (len(first), stat.S_IMODE(home.stat().st_mode)) == (64, 0o600)
    assert hash_keys.load_key() == hash_keys.load_key(home) == first
    assert [entry.name for entry in home.parent.iterdir()] == ["key"]


def test_of_two_processes_the_first_makes_it(home):
    home.parent.mkdir(parents=True)
    # An executor lets its processes end; a pool kills them, and one that waits for a lock then may stay.
    with ProcessPoolExecutor(4, multiprocessing.get_context("fork")) as pool:
        assert len(set(pool.map(hash_keys.load_key, [None] * 8, chunksize=1))) == 1


def test_a_file_wins_over_the_environment_and_that_over_the_configuration(home, tmp_path, monkeypatch):
    hash_keys.load_key()
    monkeypatch.setenv(hash_keys.VARIABLE, "v" * 32)
    assert hash_keys.load_key() == b"v" * 32
    (tmp_path / "key").write_text("f" * 32 + "\n")
    assert hash_keys.load_key(tmp_path / "key") == b"f" * 32
    monkeypatch.setenv(hash_keys.VARIABLE, "mellon")
    assert "mellon" not in refused("RECBOLE_UNLEARN_KEY has 6 characters", hash_keys.load_key)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o644, True)])
def test_a_key_that_others_can_read_is_warned_of(tmp_path, caplog, mode, warned):
    (tmp_path / "key").write_text("f" * 32)
    os.chmod(tmp_path / "key", mode)
    hash_keys.load_key(tmp_path / "key")
    assert ("chmod 600" in caplog.text) == warned


def test_no_place_for_a_key_means_no_hashes(tmp_path, monkeypatch, caplog):
    (tmp_path / "config").write_text("a file where a directory is needed")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert hash_keys.load_key() is None
    assert "--hash_key=FILE" in caplog.text


def digest(rows, key=KEY):
    columns = dict(zip(("user", "item", "time"), map(list, zip(*rows, strict=True)), strict=True))
    return hash_keys.request_digest(key, pd.DataFrame(columns))


NAMES = st.sampled_from(["a", "b", "1", "11", "a,b", 'x"', "\n"])
ROWS = st.one_of(
    st.tuples(NAMES, NAMES, st.sampled_from([np.nan, 1.0, 2.5])),
    st.tuples(NAMES, st.none(), st.just(np.nan)),
    st.tuples(st.none(), NAMES, st.just(np.nan)),
)


def plain(rows):
    """The rows of a request that no other row covers."""
    rows = {(user, item, None if time != time else time) for user, item, time in rows}
    users, items = {u for u, i, _ in rows if i is None}, {i for u, i, _ in rows if u is None}
    return {
        (user, item, time)
        for user, item, time in rows
        if None in (user, item)
        or not (user in users or item in items or (time is not None and (user, item, None) in rows))
    }


@given(st.lists(ROWS, min_size=1, max_size=6), st.lists(ROWS, min_size=1, max_size=6), st.data())
def test_requests_have_one_hash_if_they_ask_for_the_same(first, second, data):
    assert digest(first) == digest(data.draw(st.permutations(first + first[:2]))) != digest(first, b"l" * 32)
    assert (digest(first) == digest(second)) == (plain(first) == plain(second))


def test_what_a_hash_depends_on():
    assert hash_keys.keyed_hash(KEY, "a", b"bc") == hash_keys.keyed_hash(KEY, "a", [b"b", b"c"])
    assert hash_keys.keyed_hash(KEY, "a", b"bc") != hash_keys.keyed_hash(KEY, "ab", b"c")
    for key in (KEY, b"k" * 64, bytes(range(65))):
        assert hash_keys.keyed_hash(key, "a", b"bc") == hmac.new(key, b"a\0bc", "sha256").hexdigest()
    weight = torch.arange(6.0)
    models = [
        model(weight), model(weight + 1e-6), model(weight.reshape(2, 3)), model(weight.double()),
        model(weight, table=np.arange(3)), model(weight, table=np.arange(3.0)), model(weight, table=sp.eye(3)),
        model(weight, table=2 * sp.eye(3)), model(weight, number=3), model(weight, number=None),
    ]  # fmt: skip
    digests, again = ([hash_keys.model_digest(KEY, one, {"n_layers": 2}) for one in models] for _ in range(2))
    assert len(set(digests)) == len(models)
    assert digests == again
    assert hash_keys.model_digest(KEY, models[0], {"n_layers": 3}) not in digests


def model(weight, **others):
    """As much of a RecBole model as is hashed."""
    found = torch.nn.ParameterDict({"weight": weight})
    found.other_parameter = lambda: others
    return found
