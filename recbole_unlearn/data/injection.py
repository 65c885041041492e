"""The paper's synthetic protocol: noise is injected into the training data, and then has to be forgotten.

A share of the users is drawn. Each gets new training interactions (their number is a share of those the user has)
with items that the user has in no split. *Informed* injection draws from the items that a clean model, trained on
D, scores lowest for that user; *random* injection draws them from all unseen items. The original is then
trained on D' = D ∪ S, and the right answer to the request is a model of D.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction

from recbole_unlearn.data.splits import Located, Splits, append
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.settings import ForgetSettings

Scorer = Callable[[torch.Tensor], torch.Tensor]


def inject(clean: Splits, settings: ForgetSettings, seed: int, scorer: Scorer | None) -> tuple[Splits, Located]:
    """Add noise to the training interactions of D; returns D' and the interactions of it that were injected.

    ``scorer`` maps user ids (n,) to scores (n, items) by the clean model; None draws any unseen item.
    """
    rng = np.random.default_rng(seed)
    users, amounts = _choose_users(clean.train, settings, rng)
    touched = _touched(clean, users)
    owners = clean.train.inter_feat[clean.train.uid_field].numpy()
    order = np.argsort(owners, kind="stable")
    names, starts = np.unique(owners[order], return_index=True)
    rows_of = dict(zip(names.tolist(), np.split(order, starts[1:]), strict=True))
    picked_users, picked_items, templates = [], [], []
    for position, (user, amount) in enumerate(zip(users, amounts, strict=True)):
        scores = scorer(torch.tensor([user]))[0] if scorer else None
        items = _choose_items(touched[position], amount, scores, settings.inject_pool, rng)
        picked_users.append(np.full(len(items), user))
        picked_items.append(items)
        templates.append(rng.choice(rows_of[user], len(items)))
    # User and item as drawn, all else (time, rating) from an interaction of the same user.
    columns = dict(clean.train.inter_feat[torch.from_numpy(np.concatenate(templates))].interaction)
    for field, ids in ((clean.train.uid_field, picked_users), (clean.train.iid_field, picked_items)):
        columns[field] = torch.from_numpy(np.concatenate(ids)).to(columns[field].dtype)
    train = append(clean.train, Interaction(columns))
    mask = np.zeros(len(train), dtype=bool)
    mask[len(clean.train) :] = True
    if not mask.any():  # the users who were drawn have all items
        raise UnlearnError("The synthetic protocol injected nothing; raise inject_users or inject_amount.")
    located = Located(mask, np.zeros(len(clean.valid), bool), np.zeros(len(clean.test), bool))
    return clean.with_train(train), located


def _choose_users(
    train: Dataset, settings: ForgetSettings, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Users who get noise, sorted, and how many interactions each gets."""
    users, counts = np.unique(train.inter_feat[train.uid_field].numpy(), return_counts=True)
    number = round(settings.inject_users * len(users))
    if number == 0 or settings.inject_amount == 0:
        raise UnlearnError(
            f"inject_users={settings.inject_users:g} of {len(users)} users with "
            f"inject_amount={settings.inject_amount:g} is nothing to forget; raise them."
        )
    chosen = np.sort(rng.choice(len(users), number, replace=False))
    amounts = np.maximum(1, np.round(settings.inject_amount * counts[chosen])).astype(int)
    return users[chosen], amounts


def _touched(clean: Splits, users: np.ndarray) -> np.ndarray:
    """For each of ``users``, which items they have in any split (n, items); the padding item counts."""
    touched = np.zeros((len(users), clean.train.item_num), dtype=bool)
    touched[:, 0] = True
    for part in clean:
        all_users = part.inter_feat[part.uid_field].numpy()
        all_items = part.inter_feat[part.iid_field].numpy()
        where = np.searchsorted(users, all_users).clip(max=len(users) - 1)
        ours = users[where] == all_users
        touched[where[ours], all_items[ours]] = True
    return touched


def _choose_items(
    touched: np.ndarray, amount: int, scores: torch.Tensor | None, pool: float, rng: np.random.Generator
) -> np.ndarray:
    """``amount`` unseen items (fewer if there are no more), of the lowest ``pool`` share when there are scores."""
    unseen = np.flatnonzero(~touched)
    amount = min(amount, len(unseen))
    if scores is not None:
        size = max(amount, int(np.ceil(pool * len(unseen))))
        unseen = unseen[np.argsort(scores.numpy()[unseen], kind="stable")[:size]]
    return np.sort(rng.choice(unseen, amount, replace=False))
