"""The parts of a state that all of its commands share: files, database, key, and the model in memory.

The model is loaded when it is first needed and kept; if another process has changed the state since, it is loaded
again.
"""

from __future__ import annotations

import datetime
import functools
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recbole_unlearn.data import Source, load
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import load_key
from recbole_unlearn.settings import UnlearnConfig, model_names
from recbole_unlearn.state import ledger
from recbole_unlearn.state.database import Database
from recbole_unlearn.state.deltas import Change, unpack
from recbole_unlearn.state.live import LiveModel, Masks
from recbole_unlearn.state.locate import Finder
from recbole_unlearn.state.store import Store

FILES = "files"


class Version(NamedTuple):
    """Which model a process has in memory: the files of the base, and the numbers of the changes to it."""

    base: tuple[str, str, str]  # weights, moments, dataset
    changes: tuple[int, ...]


class Receipt(NamedTuple):
    """What is known of a request: its id, how far it is, and how much it asks for."""

    id: str
    status: str
    interactions: int
    held_out: int
    users: int
    items: int
    why: str = ""
    seconds: float | None = None  # that it took, from those that have just carried it out

    @classmethod
    def of(cls, row: sqlite3.Row) -> Receipt:
        """From a row of the database."""
        return cls(**{name: row[name] for name in cls._fields if name != "seconds"})


class Core:
    """The files, the database and the key of a state, and its model in memory."""

    def __init__(
        self,
        folder: str | Path,
        hash_key: str | Path | None = None,
        model: type | None = None,
        new: bool = False,
    ) -> None:
        """``model`` is the class, where it is somebody's own."""
        self.folder = Path(folder).resolve()
        self.database = Database(self.folder, new)
        self.store = Store(self.folder / FILES)
        key = load_key(hash_key)
        if key is None:
            raise UnlearnError("A state needs a key for its hashes. Give one with --hash_key=FILE.")
        self.key, self._model = key, model
        ledger.refuse_another_key(self.database, key)
        self._live: LiveModel | None = None
        self._finder: Finder | None = None
        self._version: Version | None = None

    def about(self, key: str) -> Any:
        """A value that was set when the state was made."""
        return self.database.about(key)

    @functools.cached_property
    def config(self) -> UnlearnConfig:
        """The settings the model was trained with, and those its requests are done with."""
        own = {
            **self.about("own"),
            "unlearn": "obliviate",
            "compare": [],
            "show_progress": False,
            "cache": False,
            "checkpoint_dir": str(self.folder),  # RecBole's trainers make theirs, wherever the process is
        }
        name, model = self.about("model"), self._model
        if model is not None and model.__name__ != name:
            raise UnlearnError(
                f"The model under care is a {name}, and the class that was given is {model.__name__}."
            )
        if model is None and name not in model_names():
            raise UnlearnError(
                f"{name} is a model class of your own: give it with --model=package.module:{name}, or "
                f"open_state(..., model={name})."
            )
        return UnlearnConfig(
            model or name, self.about("dataset"), config_dict=own, inherited=self.about("settings")
        )

    def fingerprint(self) -> str:
        """Which model is current: the base's fingerprint, or that of the last change to it."""
        last = self.database.value("SELECT fingerprint FROM changes ORDER BY number DESC LIMIT 1")
        return str(last or self.database.value("SELECT fingerprint FROM base"))

    def version(self) -> Version:
        """Which files and changes are current."""
        base = self.database.rows("SELECT weights, moments, dataset FROM base")
        if not base:
            self.about("model")  # says what to do
        changes = self.database.rows("SELECT number FROM changes ORDER BY number")
        return Version((base[0][0], base[0][1], base[0][2]), tuple(row[0] for row in changes))

    def named_files(self) -> set[str]:
        """The files that the database names."""
        return {*self.version().base, *(row[0] for row in self.database.rows("SELECT file FROM changes"))}

    def drop(self) -> None:
        """Take nothing from memory any more."""
        self._live = self._finder = self._version = None

    def refreshed(self) -> Version:
        """Drop what is in memory if it is not current."""
        now = self.version()
        if self._version != now:
            self.drop()
            self._version = now
        return now

    def keep(self) -> None:
        """What is in memory is current again: this process has made the change."""
        self._version = self.version()

    @property
    def live(self) -> LiveModel:
        """The model in memory."""
        version = self.refreshed()
        while self._live is None:
            try:
                live = self._loaded(version)
            except UnlearnError:
                if self.version() == version:
                    raise
            else:
                if self.version() == version:
                    self._live = live
                    self._finder = Finder(live.base, live.index, live.removed)
            version = self.refreshed()  # another process may have changed or destroyed what was being read
        return self._live

    def _loaded(self, version: Version) -> LiveModel:
        weights, moments, dataset = version.base
        self.store.read(dataset)  # checked before it is parsed
        source = load(self.config, self.store.path(dataset))
        return LiveModel(
            self.config, source, unpack(self.store.read(weights)), unpack(self.store.read(moments)),
            self._removed(source), list(self._changes()),
        )  # fmt: skip

    @property
    def finder(self) -> Finder:
        """Finds what a request means in what is left."""
        _ = self.live
        assert self._finder is not None
        return self._finder

    def _removed(self, source: Source) -> Masks:
        """What requests that are done took out of the base."""
        masks = [np.zeros(len(part), dtype=bool) for part in source.splits]
        done = "JOIN requests ON requests.number = request WHERE status = 'done'"
        for part, number in self.database.rows(f"SELECT part, asked.number FROM asked {done}"):
            masks[part][number] = True
        return masks[0], masks[1], masks[2]

    def _changes(self) -> Iterator[Change]:
        for row in self.database.rows("SELECT file, drift FROM changes ORDER BY number"):
            yield Change.unpack(self.store.read(row["file"]), row["drift"])

    def receipts(self, numbers: Sequence[int]) -> list[Receipt]:
        """What is known of requests, by their numbers."""
        rows = (self.database.rows("SELECT * FROM requests WHERE number = ?", n)[0] for n in numbers)
        return [Receipt.of(row) for row in rows]

    def enter(self, connection: sqlite3.Connection, what: str, **more: Any) -> None:
        """Add an entry to the ledger, inside a transaction."""
        ledger.append(connection, self.key, {"what": what, "time": now(), **more})

    def tokens(self, requests: Sequence[int]) -> set[tuple[str | None, str | None]]:
        """The suppressed pairs of requests, by token; None for everybody, or for everything."""
        dataset = self.finder.dataset
        users, items = (dataset.field2id_token[field] for field in (dataset.uid_field, dataset.iid_field))
        found: set[tuple[str | None, str | None]] = set()
        for request in requests:
            for user, item in self.database.rows(
                "SELECT user, item FROM suppressed WHERE request = ?", request
            ):
                found.add((str(users[user]) if user else None, str(items[item]) if item else None))
        return found


def set_requests(connection: sqlite3.Connection, numbers: Sequence[int], **values: Any) -> None:
    """Change columns of requests."""
    columns = ", ".join(f"{name} = ?" for name in values)
    for number in numbers:
        connection.execute(f"UPDATE requests SET {columns} WHERE number = ?", (*values.values(), number))


def now() -> str:
    """The time, as the database and the ledger have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def span(text: str | datetime.timedelta) -> datetime.timedelta:
    """A time span such as "30d", "12h", "45m" or "10s"."""
    if isinstance(text, datetime.timedelta):
        return text
    units = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
    fits = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([dhms])", str(text).strip())
    if not fits:
        raise UnlearnError(f"{text!r} is not a time span; give for example 30d, 12h, 45m or 10s.")
    return datetime.timedelta(**{units[fits[2]]: float(fits[1])})
