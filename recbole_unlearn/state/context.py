"""The parts of a state that its commands share: files, database, key, the model in memory, suppressed pairs.

The model is loaded when it is first needed and kept; when another process has changed the state, it is loaded again.
"""

from __future__ import annotations

import datetime
import functools
import json
import platform
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import recbole
import torch

from recbole_unlearn import __version__
from recbole_unlearn.data import load
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import keyed_hash, load_key
from recbole_unlearn.results.disclosure import coarse
from recbole_unlearn.settings import UnlearnConfig, model_names
from recbole_unlearn.state.database import FILES, STEPS, Database, unpacked
from recbole_unlearn.state.deltas import Base, Change, Store, unpack
from recbole_unlearn.state.live import LiveModel

Tokens = tuple[str | None, str | None]  # user and item; None for all users, or for all items


class Version(NamedTuple):
    """Identifies a model: the files of the base, and the number of the last change to it, which is never reused."""

    base: Base
    change: int | None


class Receipt(NamedTuple):
    """A request: its id, its status, and how much it asks for."""

    id: str
    status: str
    interactions: int | None  # the counts are None once it is published or undone
    held_out: int | None
    users: int | None
    items: int | None
    why: str = ""
    seconds: float | None = None  # that it took, from the call that carried it out
    exact: bool | None = None  # whether it is now, see `status.Exactness`; None while it is not in the model
    since: str | None = None

    @classmethod
    def of(cls, row: sqlite3.Row) -> Receipt:
        """From a row of the database."""
        return cls(**{name: row[name] for name in cls._fields[:-3]})

    def in_steps(self, usual: int) -> dict[str, int]:
        """How much it asks for, as shown without the key: ten users have ``usual`` training interactions or more."""
        users, total = self.users or 0, (self.interactions or 0) + (self.held_out or 0)
        return dict(zip(STEPS, (coarse(min(total, max(1, users * usual))), coarse(users)), strict=True))


class Suppression:
    """Pairs that are never recommended, from the submission on, before the model has changed.

    They are kept as HMAC(key, user token, item token), from which a pair cannot be read without the key, and with
    which a given pair can be tested.
    """

    def __init__(self, key: bytes, hashes: set[str]) -> None:
        self._key, self.hashes = key, hashes

    def __contains__(self, pair: tuple[str, str]) -> bool:
        """Whether a pair (user token, item token) is suppressed, by itself, or with its item or its user."""
        forms = (pair, (None, pair[1]), (pair[0], None))
        return bool(self.hashes) and any(pair_hash(self._key, *one) in self.hashes for one in forms)

    def __len__(self) -> int:
        return len(self.hashes)


def pair_hash(key: bytes, user: str | None, item: str | None) -> str:
    """The keyed hash of a pair of tokens."""
    return keyed_hash(key, "pair", json.dumps([user, item], ensure_ascii=True).encode())


class Core:
    """The files, the database and the key of a state, and its model in memory."""

    def __init__(
        self, folder: str | Path, hash_key: str | Path | None, model: type | None, new: bool = False
    ) -> None:
        """``model`` is the class of a model that RecBole does not have."""
        self.folder = Path(folder).resolve()
        self.database = Database(self.folder, new)
        key = load_key(hash_key)
        if key is None:
            raise UnlearnError("A state needs a key for its hashes. Give one with --hash_key=FILE.")
        self.key, self._model, self.store = key, model, Store(self.folder / FILES, key)
        self.database.use_key(key)
        self.about = self.database.about
        self._live: LiveModel | None = None
        self._version: Version | None = None

    @functools.cached_property
    def config(self) -> UnlearnConfig:
        """The settings of the training and of obliviate."""
        own = {
            **self.about("own"), "unlearn": "obliviate", "compare": [], "show_progress": False, "cache": False,
            "checkpoint_dir": str(self.folder),  # RecBole's trainers create this folder
        }  # fmt: skip
        name, model, dataset = self.about("model"), self._model, self.about("dataset")
        if model is not None and model.__name__ != name:
            raise UnlearnError(f"The model of the state is a {name}, and the class given is {model.__name__}.")
        if model is None and name not in model_names():
            raise UnlearnError(
                f"{name} is a model class of your own: give it with --model=package.module:{name}, or "
                f"open_state(..., model={name})."
            )
        return UnlearnConfig(model or name, dataset, config_dict=own, inherited=self.about("settings"))

    def fingerprint(self) -> str:
        """Identifies the current model: the fingerprint of the last change, or of the base."""
        last = self.database.value("SELECT fingerprint FROM changes ORDER BY number DESC LIMIT 1")
        return str(last or self.database.value("SELECT fingerprint FROM base"))

    def version(self) -> Version:
        """The current files and changes."""
        base = self.database.rows("SELECT weights, moments, dataset, deleted FROM base")
        if not base:
            self.about("model")  # says what to do
        return Version(Base(*base[0]), self.database.value("SELECT max(number) FROM changes"))

    def named_files(self) -> set[str]:
        """The files that the database names."""
        return {*self.version().base, *(row[0] for row in self.database.rows("SELECT file FROM changes"))}

    def drop(self) -> None:
        """Drop the model in memory."""
        self._live = self._version = None

    def refreshed(self) -> Version:
        """The current version; a model of another version is dropped from memory."""
        now = self.version()
        if self._version != now:
            self._live, self._version = None, now
        return now

    def keep(self) -> None:
        """Take the model in memory as current, after this process has changed it."""
        self._version = self.version()

    @property
    def live(self) -> LiveModel:
        """The model in memory."""
        version = self.refreshed()
        while self._live is None:
            try:
                self._live = self._loaded(version.base)
            except UnlearnError:
                if self.version() == version:
                    raise
            version = self.refreshed()  # another process may have changed or destroyed the files meanwhile
        return self._live

    def _loaded(self, base: Base) -> LiveModel:
        with self.store.opened(base.dataset) as path:
            source = load(self.config, path)
        removed = [np.zeros(len(part), dtype=bool) for part in source.splits]
        done = self.database.rows("SELECT asked FROM requests WHERE status = 'done'")
        for mask, numbers in zip(removed, asked(done), strict=True):
            mask[numbers] = True
        changes = [
            Change.unpack(self.store.read(file), drift)
            for file, drift in self.database.rows("SELECT file, drift FROM changes ORDER BY number")
        ]
        weights, moments = (unpack(self.store.read(name)) for name in base[:2])
        return LiveModel(self.config, source, weights, moments, removed, changes)

    def tokens(self, which: str) -> set[Tokens]:
        """The suppressed pairs of requests that are not published; ``which`` is a condition on their rows."""
        train, query = self.live.base.splits.train, f"SELECT suppressed FROM requests WHERE {which}"
        pairs = unpacked(b"".join(row[0] for row in self.database.rows(query))).tolist()
        users, items = (train.field2id_token[field] for field in (train.uid_field, train.iid_field))
        return {(str(users[user]) if user else None, str(items[item]) if item else None) for user, item in pairs}

    def deleted(self) -> set[str]:
        """The keyed hashes of published pairs."""
        return set(self.store.read(self.version().base.deleted).decode().split())

    def suppression(self) -> Suppression:
        """All suppressed pairs, those of pending requests included."""
        return Suppression(self.key, self.deleted() | {pair_hash(self.key, *pair) for pair in self.tokens("true")})


def asked(rows: Sequence[sqlite3.Row]) -> list[np.ndarray]:
    """The interactions of requests by their numbers in training, validation and test data, ascending."""
    pairs = unpacked(b"".join(row["asked"] for row in rows))
    return [np.unique(pairs[pairs[:, 0] == part, 1]) for part in range(3)]


def span(text: str | datetime.timedelta) -> datetime.timedelta:
    """A time span such as "30d", "12h", "45m" or "10s"."""
    if isinstance(text, datetime.timedelta):
        return text
    units = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
    fits = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([dhms])", str(text).strip())
    if not fits:
        raise UnlearnError(f"{text!r} is not a time span; give for example 30d, 12h, 45m or 10s.")
    return datetime.timedelta(**{units[fits[2]]: float(fits[1])})


def versions() -> dict[str, str]:
    """The versions of the packages that an entry of the ledger was made with."""
    return {
        "recbole_unlearn": __version__, "recbole": recbole.__version__, "torch": torch.__version__,
        "python": platform.python_version(),
    }  # fmt: skip
