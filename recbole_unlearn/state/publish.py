"""Publication: requests that are done become final, and nothing is left from which they could be undone.

Changes become final in their order, up to the first with a request that is to stay undoable.
"""

from __future__ import annotations

import datetime
from typing import NamedTuple

import numpy as np
import torch

from recbole_unlearn.data import Splits
from recbole_unlearn.recbole_compat import own_randomness
from recbole_unlearn.state.context import Core, Tokens, pair_hash, span, versions
from recbole_unlearn.state.database import CLEARED, REBUILT, RETRAINED, TRAINED, packed, unpacked
from recbole_unlearn.state.deltas import Tensors, write_base
from recbole_unlearn.state.live import LiveModel, read_moments, squared_norm
from recbole_unlearn.training import SPECTRAL, train_here

Age = str | datetime.timedelta | None


class Final(NamedTuple):
    """What is final when all is that was submitted longer than a span ago."""

    change: int  # the last change, 0 for none
    requests: int  # that are done
    younger: int  # done as well, and not final
    pending: int  # old enough, once they are done


def final(core: Core, older_than: Age) -> Final:
    """What is final when everything is that was submitted longer than ``older_than`` ago; without it, everything."""
    age = datetime.timedelta() if older_than is None else span(older_than)
    until = (datetime.datetime.now(datetime.UTC) - age).isoformat(timespec="milliseconds")
    value = core.database.value
    young = value("SELECT min(change) FROM requests WHERE status = 'done' AND submitted > ?", until)
    change = value("SELECT max(number) FROM changes WHERE ? IS NULL OR number < ?", young, young) or 0
    done = "SELECT count(*) FROM requests WHERE status = 'done' AND change"
    pending = value("SELECT count(*) FROM requests WHERE status = 'pending' AND submitted <= ?", until)
    return Final(change, value(f"{done} <= ?", change), value(f"{done} > ?", change), pending)


def publish(core: Core, older_than: Age = None) -> Final:
    """Make requests that are done final; returns which."""
    found = final(core, older_than)
    if found.requests:
        live = core.at(found.change)
        _replace_base(core, "published", live, found.change, live.state(), live.moments, live.fitted)
    finish(core)
    return found


def retrain(core: Core, what: str = RETRAINED, older_than: Age = None) -> float:
    """Train a new model on the retained data alone, and make it the base; returns the seconds it took.

    One that is rebuilt starts from an SVD of these data; nothing of the weights as they are is read. Requests that
    are not final are retained, and pending again.
    """
    change = final(core, older_than).change
    live = core.at(change)
    data = live.retained()
    with own_randomness(), core.store.workplace() as work:
        config = core.config.replace(checkpoint_dir=str(work), output_dir=None, tensorboard=False)
        config = config.replace(start=SPECTRAL) if what == REBUILT else config
        trainer, trained = train_here(config, data.retain, what)
        moments = read_moments(config, trainer.model, trained, data.retain)
    _replace_base(core, what, live, change, trained.state_dict, moments, None)
    finish(core)
    assert trained.seconds is not None
    return trained.seconds


def finish(core: Core) -> None:
    """Overwrite the free pages of the database, its log, and files that the database does not name.

    While one of the files is there, the next worker knows that the database was not overwritten. The others go first:
    a full disk then has room for it.
    """
    named = core.named_files()
    core.store.destroy_others({*named, *sorted(core.store.names() - named)[:1]})
    core.database.wipe()
    core.store.destroy_others(named)


def _replace_base(
    core: Core, what: str, live: LiveModel, change: int, weights: Tensors, moments: Tensors,
    fitted: torch.Tensor | None,
) -> None:  # fmt: skip
    """Make ``weights`` and the data retained by ``live`` the base, and the requests up to ``change`` final."""
    before, database = core.fingerprint(), core.database
    data, left = live.kept()
    hashes = core.deleted() | {pair_hash(core.key, *pair) for pair in _final_pairs(core, data.retain, change)}
    base = write_base(core.store, core.config, weights, moments, data.retain, data.clock, fitted, hashes)
    places = [np.cumsum(mask) - 1 for mask in left]
    with database.transaction():
        train = len(data.retain.train)
        row = {**base._asdict(), "fingerprint": base.fingerprint}
        if what in TRAINED:
            row |= {"trained_on": train, "norm": squared_norm(weights), "gone": 0, "drift": 0.0}
        else:
            drift = "drift + (SELECT total(drift) FROM changes WHERE number <= ?)"
            spent = database.rows(f"SELECT trained_on - ? AS gone, {drift} AS drift FROM base", train, change)
            row |= dict(spent[0])
        database.write(f"UPDATE base SET {', '.join(f'{name} = ?' for name in row)}", *row.values())
        ids = [one["id"] for one in database.rows("SELECT id FROM requests WHERE change <= ?", change)]
        published = f"UPDATE requests SET status = 'published', change = NULL, {CLEARED}"
        database.write(f"{published} WHERE change <= ?", change)
        again = core.redo(change) if what in TRAINED else []
        database.write("DELETE FROM changes WHERE number <= ?", change)
        # The interactions of other requests get their numbers in the new base.
        for request, asked in database.rows("SELECT number, asked FROM requests WHERE asked != x''"):
            kept = [(part, places[part][n]) for part, n in unpacked(asked) if left[part][n]]
            database.write("UPDATE requests SET asked = ? WHERE number = ?", packed(kept), request)
        # Publishing leaves the model as it is.
        more = {"exact": True, "again": again} if what in TRAINED else {}
        after = core.fingerprint()
        database.enter(what, requests=len(ids), before=before, after=after, **more, versions=versions())


def _final_pairs(core: Core, retain: Splits, change: int) -> set[Tokens]:
    """The pairs of requests up to ``change``, and pairs of others whose user or item loses its token now."""
    train, kept = retain.train, []
    for field in (train.uid_field, train.iid_field):
        ids = torch.cat([part.inter_feat[field] for part in retain]).unique()
        kept.append({None, *map(str, train.field2id_token[field][ids])})
    final, others = core.tokens(f"change <= {change}"), core.tokens(f"change IS NULL OR change > {change}")
    return final | {one for one in others if one[0] not in kept[0] or one[1] not in kept[1]}
