"""Publication: requests that are done become final, and nothing is left from which they could be undone.

Changes become final in their order, up to the first with a request that is to stay undoable.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from recbole_unlearn.data import Source, Splits
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.recbole_compat import own_randomness
from recbole_unlearn.state.context import LAST, Core, Span, Tokens, pair_hash, span, versions
from recbole_unlearn.state.database import CLEARED, PUBLISHED, REBUILT, RETRAINED, TRAINED, now, packed, unpacked
from recbole_unlearn.state.deltas import NewBase, write_base
from recbole_unlearn.state.live import LiveModel, read_moments, squared_norm
from recbole_unlearn.training import SPECTRAL, train_here


class Final(NamedTuple):
    """What is final when all is that was submitted longer than a span ago."""

    change: int  # the last change, 0 for none
    requests: int  # that are done
    pending: int  # old enough, once they are done


def final(core: Core, older_than: Span | None) -> Final:
    """What is final when everything is that was submitted longer than ``older_than`` ago; without it, everything."""
    age = datetime.timedelta() if older_than is None else span(older_than)
    until = (datetime.datetime.now(datetime.UTC) - age).isoformat(timespec="milliseconds")
    value = core.database.value
    young = value("SELECT min(change) FROM requests WHERE submitted > ?", until) or LAST
    change = value("SELECT max(number) FROM changes WHERE number < ?", young) or 0
    pending = value("SELECT count(*) FROM requests WHERE status = 'pending' AND submitted <= ?", until)
    return Final(change, value("SELECT count(*) FROM requests WHERE change <= ?", change), pending)


def publish(core: Core, older_than: Span | None = None) -> Final:
    """Make requests that are done final; returns which."""
    found = final(core, older_than)
    if found.requests:
        live = core.at(found.change)
        data = live.retained()
        new = NewBase(core.config, live.state(), live.moments, Source(data.retain, data.clock, live.trainer.fitted))
        replace_base(core, PUBLISHED, live, found.change, new)
    else:
        finish(core)
    return found


def retrain(core: Core, what: str = RETRAINED, older_than: Span | None = None) -> float:
    """Train a new model on the retained data alone, and make it the base; returns the seconds it took.

    Requests that are not final are retained, and pending again.
    """
    change = final(core, older_than).change
    live = core.at(change)
    new, seconds = trained(core, live.retained().retain, what)
    replace_base(core, what, live, change, new)
    return seconds


def trained(core: Core, splits: Splits, what: str) -> tuple[NewBase, float]:
    """A new model of ``splits``, and the seconds of its training.

    One that is rebuilt starts from an SVD of these data; nothing of the weights as they are is read.
    """
    with own_randomness(), core.store.workplace() as work:
        config = core.config.replace(checkpoint_dir=str(work), output_dir=None, tensorboard=False)
        config = config.replace(start=SPECTRAL) if what == REBUILT else config
        trainer, trained = train_here(config, splits, what)
        moments = read_moments(config, trainer.model, trained, splits)
    assert trained.seconds is not None
    data = Source(splits, core.live.base.clock)
    return NewBase(core.config, trained.state_dict, moments, data), trained.seconds


def finish(core: Core) -> None:
    """Overwrite the free pages of the database, its log, and files that the database does not name.

    While one of the files is there, the next worker knows that the database was not overwritten. The others go first:
    a full disk then has room for it.
    """
    named = core.named_files()
    core.store.destroy_others({*named, *sorted(core.store.names() - named)[:1]})
    core.database.wipe()
    core.store.destroy_others(named)


def replace_base(
    core: Core, what: str, live: LiveModel, change: int, new: NewBase, which: str = "",
    about: Mapping[str, Any] | None = None, outdated: Callable[[], bool] = lambda: False, **entry: Any,
) -> int:  # fmt: skip
    """Make ``new`` the base and requests final, and return how many; one transaction, and one entry of the ledger.

    Final are the requests up to ``change``, or those of the condition ``which``; ``live`` has the data without them.
    ``about`` is what is said of a model with other settings. It is refused if the new data is ``outdated`` by a
    request that was submitted meanwhile.
    """
    before, database = core.fingerprint(), core.database
    (data, left), which = live.kept(), which or f"change <= {change}"
    pairs = {pair_hash(core.key, *one) for one in _final_pairs(core, data.retain, which)}
    base = write_base(core.store, new, core.deleted() | pairs)
    places = [np.cumsum(mask) - 1 for mask in left]
    with database.transaction():
        if outdated():
            raise UnlearnError(
                "A request was submitted meanwhile that the new data does not take into account. The state is "
                "unchanged; run the same command again."
            )
        for key, value in (about or {}).items():
            database.write("UPDATE about SET value = ? WHERE key = ?", json.dumps(value), key)
        train = len(new.data.splits.train)
        row = {**base._asdict(), "fingerprint": base.fingerprint}
        if what in TRAINED:
            row |= {"trained_on": train, "norm": squared_norm(new.weights), "gone": 0, "drift": 0.0}
        else:
            drift = "drift + (SELECT total(drift) FROM changes WHERE number <= ?)"
            spent = database.rows(f"SELECT trained_on - ? AS gone, {drift} AS drift FROM base", train, change)
            row |= dict(spent[0])
        database.write(f"UPDATE base SET {', '.join(f'{name} = ?' for name in row)}", *row.values())
        ids = [one["id"] for one in database.rows(f"SELECT id FROM requests WHERE {which} ORDER BY number")]
        published = f"status = 'published', finished = coalesce(finished, ?), change = NULL, {CLEARED}"
        database.write(f"UPDATE requests SET {published} WHERE {which}", now())
        again = core.redo(change) if what in TRAINED else []
        database.write("DELETE FROM changes WHERE number <= ?", change)
        # The interactions of other requests get their numbers in the new base.
        for request, numbers in database.rows("SELECT number, asked FROM requests WHERE asked != x''"):
            kept = [(part, places[part][n]) for part, n in unpacked(numbers) if left[part][n]]
            database.write("UPDATE requests SET asked = ? WHERE number = ?", packed(kept), request)
        # Publishing leaves the model as it is.
        entry = {"exact": True, "again": again, **entry} if what in TRAINED else entry
        after = core.fingerprint()
        database.enter(what, requests=len(ids), ids=ids, before=before, after=after, **entry, versions=versions())
    if about is not None:
        core.drop()
    finish(core)
    return len(ids)


def _final_pairs(core: Core, retain: Splits, which: str) -> set[Tokens]:
    """The pairs of the requests ``which``, and pairs of others whose user or item loses its token now."""
    train, kept = retain.train, []
    for field in (train.uid_field, train.iid_field):
        ids = torch.cat([part.inter_feat[field] for part in retain]).unique().numpy()
        kept.append({None, *map(str, train.field2id_token[field][ids])})
    others = core.tokens(f"({which}) IS NOT TRUE")
    return core.tokens(which) | {one for one in others if one[0] not in kept[0] or one[1] not in kept[1]}
