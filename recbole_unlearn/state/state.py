"""The Python interface of a state: a directory with a model to which deletion requests are submitted."""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.data import Fields, ForgetRequest, read_requests
from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files import new_directory, remove_stale, sync
from recbole_unlearn.settings import GROUPS, declared
from recbole_unlearn.state import publish, submit, verify, worker
from recbole_unlearn.state.adopt import adopt, described, opened, taken
from recbole_unlearn.state.context import Core, Receipt, Span, versions
from recbole_unlearn.state.database import FILES, REBUILT, RETRAINED, TAKEN
from recbole_unlearn.state.deltas import write_base
from recbole_unlearn.state.export import Exported, export
from recbole_unlearn.state.learn import Learned, learn
from recbole_unlearn.state.live import squared_norm
from recbole_unlearn.state.status import Overview, overview


def init_state(
    path: str | Path, checkpoint: str | Path, *, model: type | None = None, hash_key: str | Path | None = None,
    **settings: Any,
) -> State:  # fmt: skip
    """Make a state of a trained model and its data.

    Args:
        path: a directory that does not exist yet.
        checkpoint: of RecBole, or the unlearned model of an earlier run.
        model: the class, if it is your own.
        hash_key: a file with the key of the hashes; the user's own when None. Keep it apart from the state.
        **settings: `data_path`, and settings of `obliviate`.

    """
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UnlearnError(f"{shown(folder)} exists already. Choose another directory for the state.")
    for key in settings:
        if any(key in declared(group) for group in GROUPS.values()):
            raise UnlearnError(
                f"{key} is a setting of run_unlearn.py and has no meaning for a state. Leave it out; settings of "
                "obliviate and of RecBole are taken."
            )
    config, original = opened(checkpoint, model, settings)
    remove_stale(folder.parent, f".{glob.escape(folder.name)}.*.tmp")  # of an `init` that was killed
    with new_directory(folder) as place:
        (place / FILES).mkdir(mode=0o700)
        core = Core(place, hash_key, model, new=True)
        said, database = described(original, settings), core.database
        with contextlib.closing(database):
            new, exact = taken(core, config, original, said)
            base, train = write_base(core.store, new), new.data.splits.train
            row = (1, *base, base.fingerprint, len(train), squared_norm(new.weights), 0, 0.0)
            with database.transaction():
                for key, value in said.items():
                    database.write("INSERT INTO about VALUES (?, ?)", key, json.dumps(value))
                database.write(f"INSERT INTO base VALUES ({', '.join('?' * len(row))})", *row)
                database.enter(
                    TAKEN, model=original.model, dataset=original.dataset, exact=exact,
                    interactions=sum(map(len, new.data.splits)), after=base.fingerprint, versions=versions(),
                )  # fmt: skip
            database.wipe()
        sync(place)
    sync(folder.parent)
    return State(path, hash_key, model)


def open_state(path: str | Path, hash_key: str | Path | None = None, *, model: type | None = None) -> State:
    """Open a state that :func:`init_state` made; ``model`` is the class, if it is your own."""
    return State(path, hash_key, model)


class State(contextlib.AbstractContextManager["State"]):
    """A model with its data, a queue of requests and a ledger; see docs/requests.md. Usable in `with`."""

    def __init__(self, path: str | Path, hash_key: str | Path | None, model: type | None) -> None:
        self.core = Core(path, hash_key, model)

    @property
    def model(self) -> AbstractRecommender:
        """The model as it is now, in memory; do not change it."""
        return self.core.live.model

    def submit(
        self, forget: Any, id: str | None = None, deadline: Span | None = None, dry_run: bool = False
    ) -> Receipt:
        """Check a request and put it into the queue; from now on its pairs are not recommended any more.

        Lines that are unknown or were deleted before are left out and counted, with their numbers in the receipt. The
        same request a second time is recognized, answered with the receipt of the first, and recorded if it has an
        ``id`` of its own.

        Args:
            forget: a file, a DataFrame, a dict of columns, or a pair (users, items).
            id: its name in the ledger, for example a ticket's number; never a person's name.
            deadline: from now, for example "30d" or "12h", or a day, "2026-12-01".
            dry_run: only say what would be queued.

        """
        return submit.submit(self.core, forget, id, deadline, dry_run)

    def requests_in(self, table: Any, per: str) -> dict[str, ForgetRequest]:
        """The requests to submit in a file or table, one for each value of its column ``per``, such as tickets."""
        return read_requests(table, Fields.of(self.core.config), per)

    def run(self, window: Span | None = None) -> list[Receipt]:
        """Carry out pending requests, in order; requests submitted within ``window`` of the first of them as one."""
        with worker.alone(self.core):
            return list(worker.run(self.core, window))

    def status(self, id: str | None = None) -> Overview:
        """All requests, deadlines, whether the model is exact, its drift, and whether retraining is due."""
        return overview(self.core.database, id)

    def rollback(self, id: str) -> list[Receipt]:
        """Undo a request that is not published: restore the model before it, and carry out later requests again."""
        with worker.alone(self.core):
            worker.rollback(self.core, id)
            return list(worker.run(self.core, None))

    def publish(self, older_than: Span | None = None) -> int:
        """Make requests that are done final, and destroy the data to undo them; returns how many.

        With ``older_than``, such as "1d", only those that were submitted longer ago, and all before them.
        """
        with worker.alone(self.core):
            return publish.publish(self.core, older_than).requests

    def retrain(self, older_than: Span | None = None) -> float:
        """Carry out pending requests, train on the retained data and publish; returns the seconds of training.

        With ``older_than``, younger requests are carried out again on the new model, and can still be undone.
        """
        return self._train(RETRAINED, older_than)

    def rebuild(self, older_than: Span | None = None) -> float:
        """As :meth:`retrain`, from an SVD of the retained data and in a few epochs: as exact, and within seconds."""
        return self._train(REBUILT, older_than)

    def learn(self, data: str | Path, by: str | None = None, older_than: Span | None = None) -> Learned:
        """Append new interactions, users and items to the data, train a model on all of it, and publish.

        Args:
            data: a `.inter`, CSV, TSV or parquet file with the dataset's columns, or a folder of such files.
            by: "rebuild" or "retrain"; rebuild when None and the model was measured to suit it.
            older_than: as for :meth:`retrain`; pending requests stay pending without it.

        """
        with worker.alone(self.core):
            found = learn(self.core, data, by, older_than)
            if older_than is not None:
                list(worker.run(self.core, None))
            return found

    def adopt(self, checkpoint: str | Path, data_path: str | Path | None = None) -> int:
        """Take a model that was trained elsewhere on new data, in ``data_path``, without what was deleted.

        Refused if a deleted pair is in its data, or one that is asked for. All requests are published; returns how
        many were not yet.
        """
        with worker.alone(self.core):
            return adopt(self.core, checkpoint, data_path)

    def _train(self, what: str, older_than: Span | None) -> float:
        with worker.alone(self.core):
            list(worker.run(self.core, None))
            seconds = publish.retrain(self.core, what, older_than)
            list(worker.run(self.core, None))
            return seconds

    def fault(self, head: str | None = None) -> str | None:
        """The first fault in ledger, files, fingerprints and data, in words; None when there is none.

        ``head`` is a link of the ledger that was noted elsewhere: with it, a ledger whose end was cut off is found.
        """
        return next(verify.faults(self.core, head), None)

    def verify(self, head: str | None = None) -> None:
        """As :meth:`fault`; raises UnlearnError where there is one."""
        problem = self.fault(head)
        if problem:
            raise UnlearnError(f"The state does not fit its ledger: {problem}.")

    def check(self, dataset: str | Path) -> dict[str, int]:
        """How many deleted pairs are in each file of a dataset."""
        return verify.check(self.core, dataset)

    def recommend(self, user: str, k: int = 10) -> pd.DataFrame:
        """The ``k`` best items of a user (item, score).

        Without items they have, items without a training interaction, and suppressed pairs.
        """
        if k < 1:
            raise UnlearnError(f"k={k} is not a number of items; give at least 1.")
        live = self.core.live
        train = live.base.splits.train
        id = torch.tensor([train.field2token_id[train.uid_field].get(str(user), 0)])
        if id == 0 or live.index.counts("user", id) == 0:
            raise UnlearnError("The model does not know this user: they have no training interaction.")
        scores = live.trainer.scores(id, train)[0].cpu()
        # A published item has a blank for its name, which the suppression list does not know.
        scores[live.index.counts("item", torch.arange(len(scores))) == 0] = -torch.inf
        for index in live.parts[:2]:  # as in RecBole's evaluation: training and validation
            scores[index.ends("user", id)] = -torch.inf
        hidden, names = self.core.suppression(), train.field2id_token[train.iid_field]
        best = scores.argsort(descending=True, stable=True)
        named = ((str(names[item]), float(scores[item])) for item in best[scores[best] > -torch.inf].tolist())
        shown = (one for one in named if (str(user), one[0]) not in hidden)
        return pd.DataFrame(itertools.islice(shown, k), columns=[train.iid_field, "score"])

    def export(self, out: str | Path, since: str | Path | None = None) -> Exported:
        """Write the model as it is now into the new directory ``out`` for serving; see docs/serving.md.

        ``since`` is an earlier export of this state; the rows that moved since are written as a delta.
        """
        return export(self.core, out, since)

    def ledger(self) -> str:
        """The ledger as JSON Lines, each entry with its link."""
        return self.core.database.ledger()

    def close(self) -> None:
        """Close the files."""
        self.core.database.close()

    def __exit__(self, *error: object) -> None:
        self.close()
