"""Publication: requests that are done become final, and nothing is left from which they could be undone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from recbole_unlearn.data import Splits
from recbole_unlearn.recbole_compat import own_randomness
from recbole_unlearn.state.context import Core, Tokens, pair_hash, versions
from recbole_unlearn.state.deltas import Tensors, write_base
from recbole_unlearn.state.live import read_moments, squared_norm
from recbole_unlearn.training import train_here


def publish(core: Core) -> int:
    """Make all requests that are done final; returns how many."""
    done = _done(core)
    if done:
        live = core.live
        _replace_base(core, done, live.state(), live.moments, live.fitted, "published")
    finish(core)
    return len(done)


def retrain(core: Core) -> float:
    """Train the model again on the retained data, and make it the base; returns the seconds it took."""
    data = core.live.retained()
    with own_randomness(), core.store.workplace() as work:
        config = core.config.replace(checkpoint_dir=str(work), output_dir=None, tensorboard=False)
        trainer, trained = train_here(config, data.retain, "retrained")
    moments = read_moments(config, trainer.model, trained, data.retain)
    _replace_base(core, _done(core), trained.state_dict, moments, None, "retrained")
    finish(core)
    assert trained.seconds is not None
    return trained.seconds


def finish(core: Core) -> None:
    """Overwrite the free pages of the database, its log, and files that the database does not name.

    In this order: while the files are there, the next worker knows that neither was done.
    """
    core.database.wipe()
    core.store.destroy_others(core.named_files())


def _done(core: Core) -> list[int]:
    rows = core.database.rows("SELECT number FROM requests WHERE status = 'done' ORDER BY number")
    return [row[0] for row in rows]


def _replace_base(
    core: Core, numbers: Sequence[int], weights: Tensors, moments: Tensors, fitted: torch.Tensor | None, what: str
) -> None:  # fmt: skip
    """Make ``weights`` and the retained data the base, and the requests ``numbers`` final."""
    before = core.fingerprint()
    data, left = core.live.kept()
    base = write_base(core.store, core.config, weights, moments, data.retain, data.clock, fitted)
    hashes = {pair_hash(core.key, *pair) for pair in _final_pairs(core, numbers, data.retain)}
    row = {**base._asdict(), "fingerprint": base.fingerprint}
    with core.database.transaction() as write:
        if what == "retrained":
            row |= {"trained_on": len(data.retain.train), "norm": squared_norm(weights), "drift": 0.0}
        else:
            row["drift"] = core.database.value("SELECT drift + (SELECT total(drift) FROM changes) FROM base")
        write.update("base", row)
        write.set_requests(numbers, status="published", change=None)
        write.delete("changes")
        for number in numbers:
            write.drop_asked(number)
        hashes -= {known[0] for known in core.database.rows("SELECT hash FROM deleted")}
        write.insert("deleted", ["hash"], ((one,) for one in sorted(hashes)))
        # The interactions of pending requests get their numbers in the new base.
        places = [np.cumsum(mask) - 1 for mask in left]
        rows = core.database.rows("SELECT request, part, number FROM asked")
        write.delete("asked")
        kept = [(request, part, int(places[part][n])) for request, part, n in rows if left[part][n]]
        write.insert("asked", ("request", "part", "number"), kept)
        write.enter(what, requests=len(numbers), before=before, after=base.fingerprint, versions=versions())


def _final_pairs(core: Core, numbers: Sequence[int], retain: Splits) -> set[Tokens]:
    """The pairs of the requests ``numbers``, and pairs of others whose user or item loses its token now."""
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
