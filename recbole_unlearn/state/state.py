"""A state: a directory with a model under care. What people call; the work is done in the modules beside this one."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.state import ledger, publish, queue, serving, verify, worker
from recbole_unlearn.state.context import Core, Receipt
from recbole_unlearn.state.export import Exported, export
from recbole_unlearn.state.init import begin
from recbole_unlearn.state.overview import Overview, overview

Span = str | datetime.timedelta


def init_state(
    path: str | Path,
    checkpoint: str | Path,
    *,
    model: type | None = None,
    hash_key: str | Path | None = None,
    **settings: Any,
) -> State:
    """Take a trained model and its data under care.

    Args:
        path: a directory that does not exist yet.
        checkpoint: of RecBole, or the unlearned model of an earlier run.
        model: the class, where it is your own.
        hash_key: a file with the key of the hashes; the user's own when None. Keep it apart from the state.
        **settings: `data_path`, and settings of `obliviate`.

    """
    begin(Path(path), checkpoint, settings, hash_key, model)
    return State(path, hash_key, model)


def open_state(path: str | Path, hash_key: str | Path | None = None, *, model: type | None = None) -> State:
    """A state that :func:`init_state` made; ``model`` is the class, where it is your own."""
    return State(path, hash_key, model)


class State:
    """A model under care; see docs/requests.md. Usable as a context manager."""

    def __init__(
        self, path: str | Path, hash_key: str | Path | None = None, model: type | None = None
    ) -> None:
        self.core = Core(path, hash_key, model)

    @property
    def model(self) -> AbstractRecommender:
        """The model as it is now, in memory; it is not yours to change."""
        return self.core.live.model

    def submit(
        self, forget: Any, id: str | None = None, deadline: Span | None = None, on_missing: str = "error"
    ) -> Receipt:
        """Check a request and put it into the queue; from now on its pairs are not recommended any more.

        The same request a second time is recognised, and answered by the first one's receipt.

        Args:
            forget: a file, a DataFrame, a dict of columns, or a pair (users, items).
            id: its name in the ledger, for example a ticket's number; never a person's name.
            deadline: from now, for example "30d" or "12h".
            on_missing: "error" refuses a request with something that is not there, "skip" leaves it out.

        """
        return queue.submit(self.core, forget, id, deadline, on_missing)

    def run(self, window: Span | None = None) -> list[Receipt]:
        """Carry out what is pending, in order; requests submitted within ``window`` of the first of them as one."""
        with worker.alone(self.core):
            return list(worker.run(self.core, window))

    def watch(self, window: Span | None = None, every: float = 0.2) -> Iterator[Receipt]:
        """As :meth:`run`, without end: yields every request when it is done, and keeps the model in memory."""
        with worker.alone(self.core):
            _ = self.core.live
            while True:
                yield from worker.run(self.core, window)
                time.sleep(every)

    def status(self, id: str | None = None) -> Overview:
        """All requests, what is due, how far the model has drifted, and whether retraining is due."""
        return overview(self.core.database, id)

    def rollback(self, id: str) -> list[Receipt]:
        """Undo a request that is not published: exactly the model before it, and later requests done again on top."""
        with worker.alone(self.core):
            worker.rollback(self.core, id)
            return list(worker.run(self.core, None))

    def publish(self) -> int:
        """Make all requests that are done final, and destroy what could bring them back; returns how many."""
        with worker.alone(self.core):
            return publish.publish(self.core)

    def retrain(self) -> float:
        """Train the model again on what is retained and publish that; returns the seconds of the training."""
        with worker.alone(self.core):
            list(worker.run(self.core, None))
            return publish.retrain(self.core)

    def fault(self, head: str | None = None) -> str | None:
        """The first thing in ledger, files, fingerprints and data that does not fit, in words; None when all does.

        ``head`` is a link of the ledger that was noted elsewhere: with it, entries that were cut off are missed.
        """
        return verify.verify(self.core, head)

    def verify(self, head: str | None = None) -> None:
        """As :meth:`fault`; raises UnlearnError where something does not fit."""
        verify.refuse(self.core, head)

    def check(self, dataset: str | Path) -> dict[str, int]:
        """How many pairs that were deleted are in each file of data about to be trained on."""
        return verify.check(self.core, dataset)

    def recommend(self, user: str, k: int = 10) -> pd.DataFrame:
        """The first ``k`` items for a user, without anything that was deleted or is asked to be."""
        return serving.recommend(self.core, user, k)

    def export(self, out: str | Path, since: str | Path | None = None) -> Exported:
        """Write the model as it is now for serving; see docs/serving.md.

        Args:
            out: a directory that does not exist yet, or is empty.
            since: an earlier export of this state; the rows that moved since are written as a delta.

        """
        return export(self.core, out, since)

    def ledger(self) -> str:
        """The ledger as JSON Lines, each entry with its link."""
        return "".join(ledger.lines(self.core.database.connection))

    def close(self) -> None:
        """Give the files back."""
        self.core.database.close()

    def __enter__(self) -> State:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
