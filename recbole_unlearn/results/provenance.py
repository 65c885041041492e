"""What a result says about itself for the record: the date, the run's id, and keyed hashes of what it was about."""

from __future__ import annotations

import dataclasses
import re
import uuid
from datetime import UTC, datetime
from typing import Any

import pandas as pd
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Done, load_key, model_digest, request_digest
from recbole_unlearn.settings import RecordSettings, UnlearnConfig

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclasses.dataclass
class Evidence:
    """Gathered while a run goes on; without a key there are no hashes."""

    request: str
    key_file: str | None = None
    key: bytes | None = None
    hashes: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, options: RecordSettings) -> Evidence:
        """For one run; refuses an id that is none."""
        given = options.request_id
        if given is not None and not _ID.fullmatch(given):
            raise UnlearnError(
                "request_id is not valid: expected up to 64 letters, digits, dots, hyphens and underscores."
            )
        # Random: what follows from the content would tell of it.
        return cls(given or str(uuid.uuid4()), options.hash_key)

    def open(self) -> None:
        """Read the key, or make one."""
        self.key = load_key(self.key_file)

    def add_request(self, frame: pd.DataFrame) -> None:
        """``frame`` as a :class:`~recbole_unlearn.data.ForgetRequest` has it."""
        if self.key is not None:
            self.hashes["request"] = request_digest(self.key, frame)

    def add_model(self, name: str, model: AbstractRecommender, config: UnlearnConfig) -> None:
        """``name`` is original or result; the result of one request is the original of the next, with one hash."""
        if self.key is not None:
            self.hashes[name] = model_digest(self.key, model, config.model_values())

    def stamp(self) -> dict[str, Any]:
        """Date, id and hashes, for :class:`~recbole_unlearn.results.schema.RunResult`."""
        date = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {"date": date, "request": self.request, "hashes": dict(self.hashes)}

    def done(self, date: str | None) -> tuple[Done, ...]:
        """The request, for the list in the saved dataset."""
        digest = self.hashes.get("request")
        return () if digest is None or date is None else (Done(digest, date[:10]),)
