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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import recbole
import torch

from recbole_unlearn import __version__
from recbole_unlearn.data import load
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import keyed_hash, load_key
from recbole_unlearn.settings import UnlearnConfig, model_names
from recbole_unlearn.state.database import FILES, Database, asked, unpacked
from recbole_unlearn.state.deltas import Base, Change, Store, unpack
from recbole_unlearn.state.live import LiveModel
from recbole_unlearn.text import ranges

LAST = 2**62  # later than every change
Span = str | datetime.timedelta  # of time, see :func:`span`
Tokens = tuple[str | None, str | None]  # user and item; None for all users, or for all items


class Version(NamedTuple):
    """Identifies a model: the files of the base, and the number of the last change to it, which is never reused."""

    base: Base
    change: int | None


class Lines(NamedTuple):
    """The lines of a request by their states, with their numbers in its file."""

    unit: str  # "line" in a text file, "row" elsewhere
    queued: list[int]
    unknown: dict[str, list[int]]  # by the columns whose values are not, or not together, in the data
    deleted_before: list[int]

    def counts(self) -> tuple[int, int, int]:
        """How many are queued, unknown, and deleted before."""
        return len(self.queued), sum(map(len, self.unknown.values())), len(self.deleted_before)

    def others(self) -> list[str]:
        """Those that are not queued, all by their numbers."""
        named = {f"unknown {column}": numbers for column, numbers in self.unknown.items()}
        named |= {"deleted before": self.deleted_before} if self.deleted_before else {}
        return [f"{what}: {self.unit}{'s' * (len(own) > 1)} {ranges(own)}" for what, own in named.items()]


class Receipt(NamedTuple):
    """A request: its id, its status, and how much it asks for."""

    id: str
    status: str
    interactions: int | None  # the counts are None once it is published or undone
    held_out: int | None
    users: int | None
    items: int | None
    queued_up_to: int  # lines, in steps
    unknown_up_to: int
    deleted_before_up_to: int
    why: str = ""
    lines: Lines | None = None  # when it is submitted
    same_as: str | None = None  # the id of the same request, submitted before
    seconds: float | None = None  # that it took, from the call that carried it out
    exact: bool | None = None  # whether it is now, see `status.Exactness`; None while it is not in the model
    since: str | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any] | sqlite3.Row) -> Receipt:
        """From a row of the database."""
        return cls(**{name: row[name] for name in cls._fields[: cls._fields.index("lines")]})


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
        return bool(self.hashes) and any(self.has(*one) for one in forms)

    def has(self, user: str | None, item: str | None) -> bool:
        """Whether this is suppressed by itself; None for all users, or for all items."""
        return pair_hash(self._key, user, item) in self.hashes

    def __len__(self) -> int:
        return len(self.hashes)

    def of(self, users: Sequence[str], items: Sequence[str]) -> np.ndarray:
        """Which pairs (n,) are suppressed, as by ``in``; users and items are looked up once each."""
        if not self.hashes:
            return np.zeros(len(users), dtype=bool)
        own = {one for one in set(users) if self.has(one, None)}
        targets = {one for one in set(items) if self.has(None, one)}
        pairs = zip(users, items, strict=True)
        return np.array([one[0] in own or one[1] in targets or self.has(*one) for one in pairs], dtype=bool)


def pair_hash(key: bytes, user: str | None, item: str | None) -> str:
    """The keyed hash of a pair of tokens."""
    return keyed_hash(key, "pair", f"[{_quoted(user)}, {_quoted(item)}]".encode())


def _quoted(token: str | None) -> str:
    """As `json.dumps` does, which takes longer than the hash."""
    return "null" if token is None else json.encoder.encode_basestring_ascii(token)


class Core:
    """The files, the database and the key of a state, and its model in memory."""

    def __init__(
        self, folder: str | Path, hash_key: str | Path | None, model: type | None, new: bool = False
    ) -> None:
        """``model`` is the class of a model that RecBole does not have."""
        self.folder = Path(folder).resolve()
        self.database = Database(self.folder, new)
        key = load_key(hash_key, make=new)  # an old state has its own
        if key is None:
            raise UnlearnError("A state needs a key for its hashes. Give one with --hash_key=FILE.")
        self.key, self.model, self.store = key, model, Store(self.folder / FILES, key)
        self.database.use_key(key)
        self.about = self.database.about
        self._live: LiveModel | None = None
        self._version: Version | None = None

    @functools.cached_property
    def config(self) -> UnlearnConfig:
        """The settings of the training and of obliviate."""
        return self.configured({key: self.about(key) for key in ("model", "dataset", "settings", "own")})

    def configured(self, said: Mapping[str, Any]) -> UnlearnConfig:
        """The settings of a state about which this is ``said``."""
        own = {
            **said["own"], "unlearn": "obliviate", "compare": [], "show_progress": False, "cache": False,
            "checkpoint_dir": str(self.folder),  # RecBole's trainers create this folder
        }  # fmt: skip
        name, model = said["model"], self.model
        if model is not None and model.__name__ != name:
            raise UnlearnError(f"The model of the state is a {name}, and the class given is {model.__name__}.")
        if model is None and name not in model_names():
            raise UnlearnError(
                f"{name} is a model class of your own: give it with --model=package.module:{name}, or "
                f"open_state(..., model={name})."
            )
        return UnlearnConfig(model or name, said["dataset"], config_dict=own, inherited=said["settings"])

    def fingerprint(self) -> str:
        """Identifies the current model: the fingerprint of the last change, or of the base."""
        last = self.database.value("SELECT fingerprint FROM changes ORDER BY number DESC LIMIT 1")
        return str(last or self.database.value("SELECT fingerprint FROM base"))

    def version(self) -> Version:
        """The current files and changes."""
        names = self.database.rows("SELECT weights, moments, dataset, deleted FROM base")[0]
        return Version(Base(*names), self.database.value("SELECT max(number) FROM changes"))

    def named_files(self) -> set[str]:
        """The files that the database names."""
        return {*self.version().base, *(row[0] for row in self.database.rows("SELECT file FROM changes"))}

    def redo(self, change: int) -> list[str]:
        """Take back the changes after ``change``, in a transaction; their requests, whose ids it returns, wait."""
        ids = [row["id"] for row in self.database.rows("SELECT id FROM requests WHERE change > ?", change)]
        waiting = "UPDATE requests SET status = 'pending', finished = NULL, change = NULL WHERE change > ?"
        self.database.write(waiting, change)
        self.database.write("DELETE FROM changes WHERE number > ?", change)
        return ids

    def drop(self) -> None:
        """Drop the model in memory, and its settings, which an adopted model does not have."""
        self._live = self._version = None
        self.__dict__.pop("config", None)

    def refreshed(self) -> Version:
        """The current version; a model of another version is dropped from memory."""
        now = self.version()
        if self._version not in (None, now):
            self.drop()
        self._version = now
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

    def at(self, change: int) -> LiveModel:
        """The model after a change, for the worker: the one in memory, unless other changes follow."""
        version = self.version()
        return self.live if change == (version.change or 0) else self._loaded(version.base, change)

    def _loaded(self, base: Base, change: int = LAST) -> LiveModel:
        with self.store.opened(base.dataset) as path:
            source = load(self.config, path)
        removed = [np.zeros(len(part), dtype=bool) for part in source.splits]
        done = self.database.rows("SELECT asked FROM requests WHERE change <= ?", change)
        for mask, numbers in zip(removed, asked(done), strict=True):
            mask[numbers] = True
        changes = [
            Change.unpack(self.store.read(file), drift)
            for file, drift in self.database.rows(
                "SELECT file, drift FROM changes WHERE number <= ? ORDER BY number", change
            )
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


def span(text: Span) -> datetime.timedelta:
    """A time span such as "30d", "12h", "45m" or "10s"."""
    if isinstance(text, datetime.timedelta):
        return text
    units = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
    fits = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([dhms])", str(text).strip())
    if not fits:
        raise UnlearnError(f"{text!r} is not a time span; give for example 30d, 12h, 45m or 10s.")
    return datetime.timedelta(**{units[fits[2]]: float(fits[1])})


def due_at(deadline: Span) -> str:
    """The time at which a request is due: after a span, or at the end of a day such as "2026-12-01", in UTC."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", str(deadline)):
        return (datetime.datetime.now(datetime.UTC) + span(deadline)).isoformat(timespec="seconds")
    try:
        return datetime.datetime.fromisoformat(f"{deadline}T23:59:59+00:00").isoformat()
    except ValueError as error:
        raise UnlearnError(f"{deadline!r} is not a date: {error}.") from error


def versions() -> dict[str, str]:
    """The versions of the packages that an entry of the ledger was made with."""
    return {
        "recbole_unlearn": __version__, "recbole": recbole.__version__, "torch": torch.__version__,
        "python": platform.python_version(),
    }  # fmt: skip
