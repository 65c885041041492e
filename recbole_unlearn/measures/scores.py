r"""What the measures need to know about a model, from one pass over its scores.

The *questions* are made once a run and are the same for every phase: which users are looked at, the deleted pairs,
the items each is compared with, and held-out positives of the same users, from which a membership attack has to
distinguish the deleted pairs. An *observation* is what one model answers. Items of the retained history are masked,
deleted ones are not.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from recbole_unlearn.data import Splits, UnlearnData, append
from recbole_unlearn.rows import RetainedIndex, TrainIndex
from recbole_unlearn.training import PhaseTrainer

DEPTH = 50  # of the ranked lists that are kept
OTHERS = 1000  # users without deleted interactions that are looked at


class Pairs:
    """Pairs of users and items, sorted by user, with the items they are compared with."""

    def __init__(self, users: torch.Tensor, items: torch.Tensor, others: torch.Tensor) -> None:
        order = torch.argsort(users, stable=True)
        self.users, self.items, self.others = users[order], items[order], others[order]

    def __len__(self) -> int:
        return len(self.users)

    def of(self, users: torch.Tensor) -> slice:
        """The pairs of ``users``, who follow each other in the order of the questions, as a slice."""
        ends = torch.searchsorted(self.users, torch.stack([users[0], users[-1] + 1]))
        return slice(int(ends[0]), int(ends[1]))


@dataclasses.dataclass(frozen=True)
class Questions:
    """What is looked at, in every phase."""

    users: torch.Tensor  # (n,), sorted: the affected ones, and a sample of the others in the test split
    affected: torch.Tensor  # (n,), a mask
    deleted: Pairs
    members: torch.Tensor  # (m,), positions of deleted pairs that have a match
    held_out: Pairs  # (m pairs), the matches, in the order of ``members``
    history: TrainIndex  # of retained interactions before test: what evaluation masks

    @classmethod
    def of(cls, data: UnlearnData, deleted: Pairs, seed: int) -> Questions:
        """Look at all affected users and some others, and match deleted pairs with held-out ones."""
        others = torch.unique(data.retain.test.inter_feat[data.retain.test.uid_field])
        others = others[~torch.isin(others, data.affected_users)]
        pick = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[:OTHERS]
        users = torch.cat([others[pick], data.affected_users]).sort().values
        members, held_out = match(deleted, data, np.random.default_rng(seed))
        affected = torch.isin(users, data.affected_users)
        history = TrainIndex(append(data.retain.train, data.retain.valid.inter_feat))
        return cls(users, affected, deleted, members, held_out, history)


def match(deleted: Pairs, data: UnlearnData, rng: np.random.Generator) -> tuple[torch.Tensor, Pairs]:
    """Match held-out positives with deleted pairs of the same user and nearly the same popularity, each used once.

    Without the match an attacker could recognise deleted pairs by their user or their item alone.
    """
    train = data.full.train
    popularity = np.bincount(train.inter_feat[train.iid_field].numpy(), minlength=train.item_num)
    parts = [data.retain.valid, data.retain.test]
    users, items = (
        np.concatenate([part.inter_feat[field].numpy() for part in parts])
        for field in (train.uid_field, train.iid_field)
    )
    order = np.argsort(users, kind="stable")
    users, items = users[order], items[order]
    chosen, matches = [], []
    own_users, own_items = deleted.users.numpy(), deleted.items.numpy()
    for user in np.unique(own_users):
        mine = np.arange(*np.searchsorted(own_users, [user, user + 1]))
        free = np.ones(len(mine), dtype=bool)
        level = popularity[own_items[mine]].astype(float)
        for item in rng.permutation(items[slice(*np.searchsorted(users, [user, user + 1]))]):
            if not free.any():
                break
            nearest = int(np.argmin(np.where(free, np.abs(level - popularity[item]), np.inf)))
            free[nearest] = False
            chosen.append(mine[nearest])
            matches.append(item)
    places = np.array(chosen, dtype=np.int64)
    order = np.argsort(places, kind="stable")
    members = torch.from_numpy(places[order])
    found = torch.from_numpy(np.array(matches, dtype=np.int64)[order])
    return members, Pairs(deleted.users[members], found, deleted.others[members])


def deleted_pairs(data: UnlearnData, negatives: int, seed: int) -> Pairs:
    """The deleted pairs, each with ``negatives`` items that its user met in no split, uniform."""
    users, items = data.forget_pairs
    drawn, usable = never_touched(users, data.full, negatives, torch.Generator().manual_seed(seed))
    return Pairs(users[usable], items[usable], drawn[usable])


def never_touched(
    users: torch.Tensor, splits: Splits, k: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Items (n, k) that each of ``users`` met in no split, and which users have any such item (n,)."""
    index = TrainIndex(append(append(splits.train, splits.valid.inter_feat), splits.test.inter_feat))
    nothing = torch.empty(0, dtype=torch.long)
    met = RetainedIndex(index, nothing, nothing, torch.zeros(len(index), dtype=torch.bool))
    several = users[:, None].expand(-1, k).contiguous()
    drawn, left = met.draw(several, generator, tries=20)
    usable = torch.ones(len(users), dtype=torch.bool)
    # Users who met almost everything: choose among what is left, one by one.
    everything = torch.arange(1, index.sizes["item"])
    for row in torch.unique(left // k).tolist():
        own = everything[~met.are_known(users[row].expand(len(everything)), everything)]
        usable[row] = len(own) > 0
        if len(own):
            drawn[row] = own[torch.randint(0, len(own), (k,), generator=generator)]
    return drawn, usable


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where pairs rank for their users."""

    score: torch.Tensor  # (m,), (s − mean)/std over all items of the user
    demoted: torch.Tensor  # (m,), share of the compared items that score higher


@dataclasses.dataclass(frozen=True)
class Observation:
    """What a model answers to the questions."""

    top: torch.Tensor  # (n, depth), best items of each user, retained history left out
    top_masked: torch.Tensor  # the same with deleted items left out too
    deleted: Standing
    held_out: Standing


@torch.no_grad()
def observe(trainer: PhaseTrainer, questions: Questions, splits: Splits) -> Observation:
    """Score all users of the questions once."""
    size = questions.history.sizes["item"]
    depth = min(DEPTH, size - 1)
    step = max(1, trainer.test_batch_size // size)
    tops, masked = [], []
    standings: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {"deleted": [], "held_out": []}
    for users in questions.users.split(step):
        scores = trainer.scores(users, splits.train)
        asked = torch.isin(users, questions.deleted.users).nonzero().flatten()
        # Of nobody, where a request has no training interaction: torch would warn.
        spread, mean = torch.std_mean(scores[asked, 1:], dim=1) if len(asked) else scores.new_zeros(2, 0)
        for name, pairs in (("deleted", questions.deleted), ("held_out", questions.held_out)):
            mine = pairs.of(users)
            row, place = (torch.searchsorted(x, pairs.users[mine]) for x in (users, users[asked]))
            own = scores[row, pairs.items[mine]]
            others = scores.take(row[:, None] * size + pairs.others[mine])
            demoted = (own[:, None] < others).float().mean(dim=1)
            standings[name].append(((own - mean[place]) / spread[place].clamp(min=1e-12), demoted))
        known = questions.history.of("user", users)
        scores[
            torch.searchsorted(users, questions.history.ids["user"][known]),
            questions.history.ids["item"][known],
        ] = -torch.inf
        tops.append(scores.topk(depth, dim=1).indices)
        gone = questions.deleted.of(users)
        scores[
            torch.searchsorted(users, questions.deleted.users[gone]), questions.deleted.items[gone]
        ] = -torch.inf
        masked.append(tops[-1].clone())
        masked[-1][asked] = scores[asked].topk(depth, dim=1).indices
    joined = {
        name: Standing(*(torch.cat(x) for x in zip(*parts, strict=True))) for name, parts in standings.items()
    }
    return Observation(torch.cat(tops), torch.cat(masked), **joined)
