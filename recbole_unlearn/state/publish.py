"""Publication: what is done becomes final, and nothing that could bring it back is left."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import numpy as np
import torch

from recbole_unlearn.data import Splits
from recbole_unlearn.recbole_compat import own_randomness
from recbole_unlearn.state.base import read_moments, squared_norm, versions, write_base
from recbole_unlearn.state.context import Core, set_requests
from recbole_unlearn.state.deltas import Tensors
from recbole_unlearn.state.live import Masks
from recbole_unlearn.state.suppression import pair_hash
from recbole_unlearn.training import train_here


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
    base = write_base(core, weights, moments, data.retain, data.clock, fitted)
    hashes = {pair_hash(core.key, *pair) for pair in _final_pairs(core, numbers, data.retain)}
    after = base.fingerprint
    with core.database.transaction() as connection:
        drift = "drift + (SELECT total(drift) FROM changes)"
        connection.execute(
            f"UPDATE base SET weights = ?, moments = ?, dataset = ?, fingerprint = ?, drift = {drift}",
            (*base, after),
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


def _renumber(connection: sqlite3.Connection, left: Masks) -> None:
    """Numbers of interactions in pending requests, once those that are not ``left`` are gone from the base."""
    places = [np.cumsum(mask) - 1 for mask in left]
    rows = connection.execute("SELECT request, part, number FROM asked").fetchall()
    connection.execute("DELETE FROM asked")
    connection.executemany(
        "INSERT INTO asked VALUES (?, ?, ?)",
        ((request, part, int(places[part][number])) for request, part, number in rows if left[part][number]),
    )
