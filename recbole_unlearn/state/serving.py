"""What serves people: recommendations that respect every deletion from its submission on."""

from __future__ import annotations

import pandas as pd
import torch

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.state.context import Core
from recbole_unlearn.state.suppression import Suppression


def suppression(core: Core) -> Suppression:
    """What is never to be recommended again, pending requests included."""
    requests = [row[0] for row in core.database.rows("SELECT DISTINCT request FROM suppressed")]
    hashes = {row[0] for row in core.database.rows("SELECT hash FROM deleted")}
    return Suppression(core.key, core.tokens(requests) if requests else set(), hashes)


def recommend(core: Core, user: str, k: int) -> pd.DataFrame:
    """The first ``k`` items for a user: item, score. Neither what they have, nor anything that was deleted."""
    if k < 1:
        raise UnlearnError(f"k={k} is not a number of items; give at least 1.")
    live = core.live
    train = live.base.splits.train
    id = train.field2token_id[train.uid_field].get(str(user), 0)
    if id == 0 or int(live.index.counts("user", torch.tensor([id]))) == 0:
        raise UnlearnError("The model does not know this user: there is no training interaction of theirs.")
    scores = live.trainer.scores(torch.tensor([id]), train)[0]
    for index in core.finder.parts[:2]:  # as RecBole's evaluation does: training and validation
        mine = index.of("user", torch.tensor([id]))
        scores[index.ids["item"][mine]] = -torch.inf
    hidden, names = suppression(core), train.field2id_token[train.iid_field]
    found: list[tuple[str, float]] = []
    for item in scores.argsort(descending=True, stable=True).tolist():
        if len(found) == k or scores[item] == -torch.inf:
            break
        if (str(user), str(names[item])) not in hidden:
            found.append((str(names[item]), float(scores[item])))
    return pd.DataFrame(found, columns=[train.iid_field, "score"])
