"""Publication: requests that are done become final, and nothing is left from which they could be undone."""

from __future__ import annotations

import numpy as np
import torch

from recbole_unlearn.data import Splits
from recbole_unlearn.recbole_compat import own_randomness
from recbole_unlearn.state.context import Core, Tokens, pair_hash, versions
from recbole_unlearn.state.database import CLEARED, REBUILT, RETRAINED, TRAINED, packed, unpacked
from recbole_unlearn.state.deltas import Tensors, write_base
from recbole_unlearn.state.live import read_moments, squared_norm
from recbole_unlearn.training import SPECTRAL, train_here


def publish(core: Core) -> int:
    """Make all requests that are done final; returns how many."""
    done: int = core.database.value("SELECT count(*) FROM requests WHERE status = 'done'")
    if done:
        live = core.live
        _replace_base(core, "published", live.state(), live.moments, live.fitted)
    finish(core)
    return done


def retrain(core: Core, what: str = RETRAINED) -> float:
    """Train a new model on the retained data alone, and make it the base; returns the seconds it took.

    One that is rebuilt starts from an SVD of these data; nothing of the weights as they are is read.
    """
    data = core.live.retained()
    with own_randomness(), core.store.workplace() as work:
        config = core.config.replace(checkpoint_dir=str(work), output_dir=None, tensorboard=False)
        config = config.replace(start=SPECTRAL) if what == REBUILT else config
        trainer, trained = train_here(config, data.retain, what)
        moments = read_moments(config, trainer.model, trained, data.retain)
    _replace_base(core, what, trained.state_dict, moments, None)
    finish(core)
    assert trained.seconds is not None
    return trained.seconds


def finish(core: Core) -> None:
    """Overwrite the free pages of the database, its log, and files that the database does not name.

    In this order: while the files are there, the next worker knows that neither was done.
    """
    core.database.wipe()
    core.store.destroy_others(core.named_files())


def _replace_base(core: Core, what: str, weights: Tensors, moments: Tensors, fitted: torch.Tensor | None) -> None:
    """Make ``weights`` and the retained data the base, and requests that are done final."""
    before, database = core.fingerprint(), core.database
    data, left = core.live.kept()
    hashes = core.deleted() | {pair_hash(core.key, *pair) for pair in _final_pairs(core, data.retain)}
    base = write_base(core.store, core.config, weights, moments, data.retain, data.clock, fitted, hashes)
    places = [np.cumsum(mask) - 1 for mask in left]
    done = "requests WHERE status = 'done'"
    with database.transaction():
        row = {**base._asdict(), "fingerprint": base.fingerprint}
        if what in TRAINED:
            row |= {"trained_on": len(data.retain.train), "norm": squared_norm(weights), "gone": 0, "drift": 0.0}
        else:
            row["drift"] = database.value("SELECT drift + (SELECT total(drift) FROM changes) FROM base")
            row["gone"] = database.value(f"SELECT gone + (SELECT total(interactions) FROM {done}) FROM base")
        database.write(f"UPDATE base SET {', '.join(f'{name} = ?' for name in row)}", *row.values())
        number = database.value(f"SELECT count(*) FROM {done}")
        final = f"UPDATE requests SET status = 'published', change = NULL, {CLEARED}"
        database.write(f"{final} WHERE status = 'done'")
        database.write("DELETE FROM changes")
        # The interactions of pending requests get their numbers in the new base.
        for request, asked in database.rows("SELECT number, asked FROM requests WHERE asked != x''"):
            kept = [(part, places[part][n]) for part, n in unpacked(asked) if left[part][n]]
            database.write("UPDATE requests SET asked = ? WHERE number = ?", packed(kept), request)
        more = {"exact": True} if what in TRAINED else {}  # publishing leaves the model as it is
        database.enter(what, requests=number, before=before, after=base.fingerprint, **more, versions=versions())


def _final_pairs(core: Core, retain: Splits) -> set[Tokens]:
    """The pairs of requests that are done, and pairs of others whose user or item loses its token now."""
    train, kept = retain.train, []
    for field in (train.uid_field, train.iid_field):
        ids = torch.cat([part.inter_feat[field] for part in retain]).unique()
        kept.append({None, *map(str, train.field2id_token[field][ids])})
    others = core.tokens("status != 'done'")
    return core.tokens("status = 'done'") | {one for one in others if one[0] not in kept[0] or one[1] not in kept[1]}
