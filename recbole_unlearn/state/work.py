"""The worker: carries requests out, undoes them, and makes them final. One process at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import platform
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import recbole
import torch
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType

from recbole_unlearn import __version__
from recbole_unlearn.compat import own_randomness
from recbole_unlearn.data import Splits
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Trained, dataset_config, write_dataset
from recbole_unlearn.inputs import shown
from recbole_unlearn.methods.obliviate.curvature import from_retained, read_state
from recbole_unlearn.rows import Region, RetainedIndex, TrainIndex, Witness
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.state.changes import Tensors, digest, pack
from recbole_unlearn.state.core import Core, Receipt, now, set_requests, span
from recbole_unlearn.state.database import COUNTS, working
from recbole_unlearn.state.live import Masks
from recbole_unlearn.state.suppression import pair_hash
from recbole_unlearn.training.phase import train_here

logger = logging.getLogger(__name__)
Window = str | datetime.timedelta | None


@contextlib.contextmanager
def alone(core: Core) -> Iterator[None]:
    """Be the worker. What an earlier one left half done is as if it had not begun."""
    with working(core.folder):
        core.version()  # says so where the state is not finished
        with core.database.transaction() as connection:
            connection.execute("UPDATE requests SET status = 'pending' WHERE status = 'running'")
        if core.store.names() - core.named_files():
            finish(core)
        yield


def run(core: Core, window: Window) -> Iterator[Receipt]:
    """Carry out what is pending, in order; yields each request when it is done."""
    while done := step(core, window):
        yield from done


def step(core: Core, window: Window) -> list[Receipt]:
    """Carry out what is next: one request, or those within the window as one; nothing when nothing is pending."""
    batch, start = _next(core, window), time.perf_counter()
    done = _carry_out(core, batch) if batch else []
    seconds = time.perf_counter() - start
    return [receipt._replace(seconds=seconds) for receipt in done]


def _next(core: Core, window: Window) -> list[sqlite3.Row]:
    """The requests to do next: the first that is pending, with those that were submitted soon after it."""
    rows = core.database.rows("SELECT * FROM requests WHERE status = 'pending' ORDER BY number")
    if not rows or window is None:
        return rows[:1]
    last = datetime.datetime.fromisoformat(rows[0]["submitted"]) + span(window)
    return [row for row in rows if datetime.datetime.fromisoformat(row["submitted"]) <= last]


def _carry_out(core: Core, batch: Sequence[sqlite3.Row]) -> list[Receipt]:
    numbers = [row["number"] for row in batch]
    with core.database.transaction() as connection:
        set_requests(connection, numbers, status="running")
    try:
        _change(core, batch, numbers)
    except BaseException:
        core.drop()  # the model in memory may have changed, and what is on the disk has not
        with contextlib.suppress(UnlearnError), core.database.transaction() as connection:
            set_requests(connection, numbers, status="pending")  # else the next worker does so
        raise
    return core.receipts(numbers)


def _change(core: Core, batch: Sequence[sqlite3.Row], numbers: Sequence[int]) -> None:
    """Change the model in memory, then on the disk."""
    before, start = core.fingerprint(), time.perf_counter()
    live = core.live
    asked = _asked(core, numbers, live.removed)
    try:
        core.finder.refuse_emptying("The request", asked)
        change = live.forget(asked)
    except UnlearnError as error:
        core.drop()
        _failed(core, batch, str(error))
        return
    core.finder.remove(asked)
    file = core.store.write(change.pack())
    after = digest(f"{before} {file}".encode())
    seconds = time.perf_counter() - start
    with core.database.transaction() as connection:
        number = connection.execute(
            "INSERT INTO changes (file, fingerprint, drift) VALUES (?, ?, ?)", (file, after, change.drift)
        ).lastrowid
        set_requests(connection, numbers, status="done", finished=now(), change=number)
        for row in batch:
            core.enter(
                connection, "done", id=row["id"], request=row["digest"], together=len(batch),
                **{name: row[name] for name in COUNTS}, before=before, after=after, method="obliviate",
                settings=dataclasses.asdict(live.options),
                measures={"seconds": round(seconds, 4), "drift": change.drift}, versions=versions(),
            )  # fmt: skip
    core.keep()


def _failed(core: Core, batch: Sequence[sqlite3.Row], why: str) -> None:
    numbers = [row["number"] for row in batch]
    with core.database.transaction() as connection:
        set_requests(connection, numbers, status="failed", finished=now(), why=why)
        for row in batch:
            core.enter(connection, "failed", id=row["id"], request=row["digest"], why=why)


def _asked(core: Core, requests: Sequence[int], removed: Masks) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What requests ask for and is still there, by part."""
    parts: list[set[int]] = [set(), set(), set()]
    for request in requests:
        for part, number in core.database.rows("SELECT part, number FROM asked WHERE request = ?", request):
            parts[part].add(number)
    found = [np.array(sorted(part), dtype=np.int64) for part in parts]
    train, valid, test = (part[~gone[part]] for part, gone in zip(found, removed, strict=True))
    return train, valid, test


def rollback(core: Core, id: str) -> None:
    """Undo a request that is not published: the model before it, exactly. Later requests are pending again."""
    rows = core.database.rows("SELECT * FROM requests WHERE id = ?", id)
    if not rows:
        raise UnlearnError(f"There is no request {shown(id)}; `requests status` lists them.")
    row = rows[0]
    if row["status"] == "published":
        raise UnlearnError(f"The request {id} is published: what it deleted is gone and cannot come back.")
    if row["status"] == "rolled back":
        return  # by a command that was killed: what comes after is still to be done
    if row["status"] not in ("pending", "done"):
        raise UnlearnError(f"The request {id} is {row['status']}; there is nothing to undo.")
    before = core.fingerprint()
    with core.database.transaction() as connection:
        change = row["change"]
        if change is not None:
            connection.execute(
                "UPDATE requests SET status = 'pending', finished = NULL, change = NULL WHERE change >= ?",
                (change,),
            )
            connection.execute("DELETE FROM changes WHERE number >= ?", (change,))
        for table in ("asked", "suppressed"):
            connection.execute(f"DELETE FROM {table} WHERE request = ?", (row["number"],))
        set_requests(connection, [row["number"]], status="rolled back", finished=now(), change=None)
        after = core.fingerprint()
        core.enter(connection, "rolled back", id=id, request=row["digest"], before=before, after=after)
    core.store.destroy_others(core.named_files())


def publish(core: Core) -> int:
    """Make all that is done final; returns how many requests. Nothing that could bring them back is left."""
    done = core.database.rows("SELECT number FROM requests WHERE status = 'done' ORDER BY number")
    if done:
        live = core.live
        _replace_base(core, [row[0] for row in done], live.state(), live.moments, live.fitted, "published")
    finish(core)
    return len(done)


def retrain(core: Core) -> float:
    """Train the model again without what was deleted, and make that the base; returns the seconds it took."""
    done = core.database.rows("SELECT number FROM requests WHERE status = 'done' ORDER BY number")
    live = core.live
    data = live.retained()
    with own_randomness(), core.store.workplace() as work:
        config = core.config.replace(checkpoint_dir=str(work), output_dir=None, tensorboard=False)
        trainer, trained = train_here(config, data.retain, "retrained")
    moments = read_moments(config, trainer.model, trained, data.retain)
    _replace_base(core, [row[0] for row in done], trained.state_dict, moments, None, "retrained")
    finish(core)
    assert trained.seconds is not None
    return trained.seconds


def finish(core: Core) -> None:
    """Overwrite all that a publication left: free pages of the database, its log, and files that nothing names.

    In this order: as long as the files are there, the next worker knows that neither was done.
    """
    core.database.wipe()
    core.store.destroy_others(core.named_files())


def _replace_base(
    core: Core,
    numbers: Sequence[int],
    weights: Tensors,
    moments: Tensors,
    fitted: torch.Tensor | None,
    what: str,
) -> None:
    """Make ``weights`` and what is retained the base, and the requests ``numbers`` final."""
    before = core.fingerprint()
    data, left = core.live.kept()
    files = core.store.write(pack(weights)), core.store.write(pack(moments))
    dataset = write_base_dataset(core, data.retain, data.clock, fitted)
    hashes = {pair_hash(core.key, *pair) for pair in _final_pairs(core, numbers, data.retain)}
    after = fingerprint_of(files[0])
    with core.database.transaction() as connection:
        drift = "drift + (SELECT total(drift) FROM changes)"
        connection.execute(
            f"UPDATE base SET weights = ?, moments = ?, dataset = ?, fingerprint = ?, drift = {drift}",
            (*files, dataset, after),
        )
        if what == "retrained":
            trained = (len(data.retain.train), squared_norm(weights))
            connection.execute("UPDATE base SET trained_on = ?, norm = ?, drift = 0", trained)
        set_requests(connection, numbers, status="published", change=None)
        connection.execute("DELETE FROM changes")
        for number in numbers:
            for table in ("asked", "suppressed"):
                connection.execute(f"DELETE FROM {table} WHERE request = ?", (number,))
        connection.executemany("INSERT OR IGNORE INTO deleted VALUES (?)", ((one,) for one in sorted(hashes)))
        _renumber(connection, left)
        core.enter(connection, what, requests=len(numbers), before=before, after=after, versions=versions())


def _final_pairs(core: Core, numbers: Sequence[int], retain: Splits) -> set[tuple[str | None, str | None]]:
    """The pairs of the requests ``numbers``, and those pending ones whose user or item has no name from now on."""
    pairs = core.tokens(numbers)
    others = [row[0] for row in core.database.rows("SELECT DISTINCT request FROM suppressed")]
    others = [request for request in others if request not in set(numbers)]
    if others:
        train, kept = retain.train, []
        for field in (train.uid_field, train.iid_field):
            ids = torch.cat([part.inter_feat[field] for part in retain]).unique()
            kept.append({None, *map(str, train.field2id_token[field][ids])})
        pairs |= {pair for pair in core.tokens(others) if pair[0] not in kept[0] or pair[1] not in kept[1]}
    return pairs


def fingerprint_of(weights: str) -> str:
    """The fingerprint of a base with this file of weights."""
    return digest(weights.encode())


def squared_norm(weights: Mapping[str, torch.Tensor]) -> float:
    """‖θ‖² of all weights."""
    return float(
        sum(value.double().square().sum() for value in weights.values() if value.is_floating_point())
    )


def read_moments(
    config: UnlearnConfig, model: AbstractRecommender, trained: Trained, splits: Splits
) -> Tensors:
    """Second moments of a model: its optimizer's, or Fisher information of its data where that left none."""
    if config["MODEL_TYPE"] == ModelType.TRADITIONAL:
        return {}
    found = read_state(model, trained.optimizer, trained.epoch)
    if found is None:
        index = TrainIndex(splits.train)
        nobody = torch.empty(0, dtype=torch.long)
        retained = RetainedIndex(index, nobody, nobody, index.removed)
        witness = Witness(config, retained, Region(), torch.Generator().manual_seed(config["seed"]))
        parts = torch.arange(len(index)).split(config["train_batch_size"])
        found = from_retained(model, [witness.batch(witness.triples(part)) for part in parts])
    return dict(found.moments)


def _renumber(connection: sqlite3.Connection, left: Masks) -> None:
    """Numbers of interactions in pending requests, once those that are not ``left`` are gone from the base."""
    places = [np.cumsum(mask) - 1 for mask in left]
    rows = connection.execute("SELECT request, part, number FROM asked").fetchall()
    connection.execute("DELETE FROM asked")
    connection.executemany(
        "INSERT INTO asked VALUES (?, ?, ?)",
        ((request, part, int(places[part][number])) for request, part, number in rows if left[part][number]),
    )


def write_base_dataset(core: Core, parts: Sequence[Any], clock: Any, fitted: torch.Tensor | None) -> str:
    """Write the interactions of a base; returns the file's name."""
    with core.store.workplace() as work:
        path = work / "dataset"
        plain = dataset_config(core.config, core.folder, core.folder / "dataset")
        write_dataset(path, plain, parts, clock, None if fitted is None else fitted.numpy())
        return core.store.write(path.read_bytes(), ".pth")


def versions() -> dict[str, str]:
    """What an entry of the ledger was made with."""
    return {
        "recbole_unlearn": __version__, "recbole": recbole.__version__, "torch": torch.__version__,
        "python": platform.python_version(),
    }  # fmt: skip
