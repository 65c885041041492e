"""The paper's synthetic protocol: noise is injected into the training data, and then has to be forgotten.

A share of the users is drawn. Each gets new training interactions (their number is a share of those the user has)
with items that the user has in no split. *Informed* injection draws from the items that a clean model, trained on
D, scores lowest for that user; *random* injection draws them from all unseen items. The original is then
trained on D' = D ∪ S, and the right answer to the request is a model of D.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from recbole.data.interaction import Interaction

from recbole_unlearn.data.splits import Located, Splits, append
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.settings import ForgetSettings

Scorer = Callable[[torch.Tensor], torch.Tensor]


def inject(clean: Splits, settings: ForgetSettings, seed: int, scorer: Scorer | None) -> tuple[Splits, Located]:
    """D' = D with noise, and where it is; ``scorer`` gives scores (n, items) of users (n,); None: any unseen item."""
    rng = np.random.default_rng(seed)
    fields = clean.train.uid_field, clean.train.iid_field
    users, counts = np.unique(clean.train.inter_feat[fields[0]].numpy(), return_counts=True)
    number = round(settings.inject_users * len(users))
    if number == 0 or settings.inject_amount == 0:
        raise UnlearnError(
            f"inject_users={settings.inject_users:g} of {len(users)} users with "
            f"inject_amount={settings.inject_amount:g} is nothing to forget; raise them."
        )
    chosen = np.sort(rng.choice(len(users), number, replace=False))
    amounts = np.maximum(1, np.round(settings.inject_amount * counts[chosen])).astype(int)
    owners, owned = (np.concatenate([part.inter_feat[field].numpy() for part in clean]) for field in fields)
    rows_of = pd.Series(owners).groupby(owners).indices  # in all splits, of which training is the first
    picked_users, picked_items, templates = [], [], []
    for user, amount in zip(users[chosen], amounts, strict=True):
        rows = rows_of[user]
        unseen = np.setdiff1d(np.arange(1, clean.train.item_num), owned[rows])
        number = min(amount, len(unseen))
        if scorer is not None:
            scores = scorer(torch.tensor([user]))[0].cpu().numpy()[unseen]
            size = max(number, int(np.ceil(settings.inject_pool * len(unseen))))
            unseen = unseen[np.argsort(scores, kind="stable")[:size]]  # of the lowest scores
        items = np.sort(rng.choice(unseen, number, replace=False))
        picked_users.append(np.full(len(items), user))
        picked_items.append(items)
        templates.append(rng.choice(rows[rows < len(clean.train)], len(items)))
    # User and item as drawn, all else (time, rating) from an interaction of the same user.
    columns = dict(clean.train.inter_feat[torch.from_numpy(np.concatenate(templates))].interaction)
    for field, ids in zip(fields, (picked_users, picked_items), strict=True):
        columns[field] = torch.from_numpy(np.concatenate(ids)).to(columns[field].dtype)
    train = append(clean.train, Interaction(columns))
    mask = np.zeros(len(train), dtype=bool)
    mask[len(clean.train) :] = True
    if not mask.any():  # the users who were drawn have all items
        raise UnlearnError("The synthetic protocol injected nothing; raise inject_users or inject_amount.")
    return clean.with_train(train), Located(mask, np.zeros(len(clean.valid), bool), np.zeros(len(clean.test), bool))
