"""The paper's synthetic protocol: noise is injected into the training data, and is then to be forgotten.

A share of the users is drawn. Each gets new training interactions (their number is a share of those the user has)
with items that the user never touched in any split. *Informed* injection draws these from the items that a clean
model, trained on the data as it is, scores lowest for that user; *random* injection draws them from all such items.
The original is then trained on D' = D and S, and the right answer to the request is a model of D.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction

from recbole_unlearn.data.requests import Located
from recbole_unlearn.data.splits import Splits, append
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.settings import ForgetSettings

Scorer = Callable[[torch.Tensor], torch.Tensor]


def inject(
    clean: Splits, settings: ForgetSettings, seed: int, scorer: Scorer | None
) -> tuple[Splits, Located]:
    """Add noise to the training interactions.

    Args:
        clean: the data as it is, D.
        settings: how many users, how many interactions, from which pool.
        seed: of the draw.
        scorer: user ids (n,) to scores (n, items) by the clean model; None draws any unseen item.

    Returns:
        D' and the interactions of it that were injected.

    """
    rng = np.random.default_rng(seed)
    users, amounts = _choose_users(clean.train, settings, rng)
    touched = _touched(clean, users)
    rows_of = _rows_by_user(clean.train)
    picked_users, picked_items, templates = [], [], []
    for position, (user, amount) in enumerate(zip(users, amounts, strict=True)):
        scores = scorer(torch.tensor([user]))[0] if scorer else None
        items = _choose_items(touched[position], amount, scores, settings.inject_pool, rng)
        picked_users.append(np.full(len(items), user))
        picked_items.append(items)
        templates.append(rng.choice(rows_of[user], len(items)))
    noise = _rows_like(
        clean.train, *(np.concatenate(part) for part in (picked_users, picked_items, templates))
    )
    train = append(clean.train, noise)
    mask = np.zeros(len(train), dtype=bool)
    mask[len(clean.train) :] = True
    if not mask.any():
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
    """For each of ``users``, which items they met in any split (n, items); the padding item counts."""
    touched = np.zeros((len(users), clean.train.item_num), dtype=bool)
    touched[:, 0] = True
    for part in clean:
        all_users = part.inter_feat[part.uid_field].numpy()
        all_items = part.inter_feat[part.iid_field].numpy()
        where = np.searchsorted(users, all_users).clip(max=len(users) - 1)
        ours = users[where] == all_users
        touched[where[ours], all_items[ours]] = True
    return touched


def _rows_by_user(train: Dataset) -> dict[int, np.ndarray]:
    users = train.inter_feat[train.uid_field].numpy()
    order = np.argsort(users, kind="stable")
    names, starts = np.unique(users[order], return_index=True)
    return dict(zip(names.tolist(), np.split(order, starts[1:]), strict=True))


def _choose_items(
    touched: np.ndarray,
    amount: int,
    scores: torch.Tensor | None,
    pool: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """``amount`` unseen items, from the lowest ``pool`` share of them when there are scores.

    The pool is never smaller than the amount, and never larger than what is unseen.
    """
    unseen = np.flatnonzero(~touched)
    amount = min(amount, len(unseen))
    if scores is not None:
        size = max(amount, int(np.ceil(pool * len(unseen))))
        order = np.argsort(scores.numpy()[unseen], kind="stable")
        unseen = unseen[order[:size]]
    return np.sort(rng.choice(unseen, amount, replace=False))


def _rows_like(train: Dataset, users: np.ndarray, items: np.ndarray, templates: np.ndarray) -> Interaction:
    """New interactions: user and item as given, all else (time, rating) from an interaction of the same user."""
    columns = dict(train.inter_feat[torch.from_numpy(templates)].interaction)
    columns[train.uid_field] = torch.from_numpy(users).to(columns[train.uid_field].dtype)
    columns[train.iid_field] = torch.from_numpy(items).to(columns[train.iid_field].dtype)
    return Interaction(columns)
