r"""The witness set of a sequential model: windows of D\S, those of S as they were, and pairs of S to look at.

Windows and their losses are those of `methods/request_losses.py`. Batches are of all users: every window says of
every item whether it belongs there, of its target that it does, of all others that they do not.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.data import SCORES, TRAIN, SequenceSplits
from recbole_unlearn.methods import UnlearnTask, WindowLosses
from recbole_unlearn.rows import Region, RetainedIndex, Triples, Witness


class WindowWitness(Witness):
    """Batches of retained windows. Numbers of interactions are those of raw ones, numbers in batches of windows."""

    watched = 256  # a window costs more than a pair

    def __init__(
        self,
        task: UnlearnTask,
        model: AbstractRecommender,
        retained: RetainedIndex,
        region: Region,
        generator: torch.Generator,
    ) -> None:
        super().__init__(task.config, retained, region, generator, 0.0)
        full, retain = task.data.full, task.data.retain
        assert isinstance(full, SequenceSplits)
        assert isinstance(retain, SequenceSplits)
        self._full, self._retain = full, retain
        self.losses = WindowLosses(task, model)
        self.windows = retain.for_model().train.inter_feat
        sequences = full.sequences
        self._keep = torch.zeros(len(sequences), dtype=torch.bool)
        self._keep[retain.sequences.numbers] = True
        rows = (sequences.role == TRAIN).nonzero().flatten()[task.data.deleted]
        # Something is left to ask after; then something was before them, and they were a target.
        self._asked = rows[sequences.lengths(self._keep)[rows] > 0]

    def interactions(self) -> torch.Tensor:
        """Retained windows whose targets are in the region, or whose users are."""
        train = self._retain.train
        users, items = (self.windows[field] for field in (train.uid_field, train.iid_field))
        touch = self.region["item"].contains(items) | self.region["user"].contains(users)
        return touch.nonzero().flatten()

    def buffer(self, share: float) -> torch.Tensor:
        """A uniform sample of all retained windows."""
        number = len(self.windows)
        size = max(1, round(share * number))
        return torch.randint(0, number, (size,), generator=self.generator)

    def triples(self, numbers: torch.Tensor) -> Triples:
        """Windows by their numbers; the loader draws their negatives."""
        train = self._retain.train
        users, items = (self.windows[field][numbers] for field in (train.uid_field, train.iid_field))
        return Triples(numbers, users, items, torch.zeros_like(items))

    def batches(self, numbers: torch.Tensor, size: int, steps: int) -> Iterator[Triples]:
        """``steps`` batches of ``size`` windows, in epochs over ``numbers``."""
        left = numbers[:0]
        for _ in range(steps):
            while len(left) < size:
                order = torch.randperm(len(numbers), generator=self.generator)
                left = torch.cat([left, numbers[order]])
            yield self.triples(left[:size])
            left = left[size:]

    def deleted(self, size: int) -> Triples:
        """``size`` deleted pairs at most with uniform negatives, numbered by their places in the data."""
        rows, train = self._asked, self._full.train
        feat = self._full.sequences.raw.inter_feat
        users, items = feat[train.uid_field][rows], feat[train.iid_field][rows]
        gone = torch.isin(self.index.keys(users, items), self.retained.gone)
        rows, users, items = rows[gone], users[gone], items[gone]
        if len(rows) > size:
            pick = torch.randint(0, len(rows), (size,), generator=self.generator)
            rows, users, items = rows[pick], users[pick], items[pick]
        return Triples(rows, users, items, self.retained.negatives(users, self.generator))

    def cleaned(self, rows: torch.Tensor) -> Interaction:
        """The windows at which deleted interactions are asked for: their cleaned prefixes, as a model reads them."""
        return self.read(self._full.sequences.prefix(rows, self._keep))

    def read(self, windows: Interaction) -> Interaction:
        """Windows as a model reads them to score items."""
        return self._retain.read(windows)

    def batch(self, triples: Triples) -> Interaction:
        """Retained windows as the loss takes them."""
        return self.losses.kept_batch(triples.numbers)


@torch.no_grad()
def window_scores(
    model: AbstractRecommender, witness: WindowWitness, deleted: Triples
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores (m,) of deleted pairs and of their negatives, after the cleaned prefixes."""
    asked = torch.stack([deleted.items, deleted.negatives], dim=1)
    found = scores_after(model, witness.cleaned(deleted.numbers), asked)
    return found[:, 0], found[:, 1]


@torch.no_grad()
def scores_after(model: AbstractRecommender, windows: Interaction, items: torch.Tensor) -> torch.Tensor:
    """Scores (m, k) of ``items`` (m, k) after the histories of ``windows`` (m), by a model as it is."""
    model.eval()
    device = next(model.parameters()).device
    found = [torch.empty(0, items.shape[1])]
    for rows in torch.arange(len(items)).split(max(1, SCORES // model.n_items)) if len(items) else ():
        scores = model.full_sort_predict(windows[rows].to(device)).view(len(rows), -1)
        found.append(scores.gather(1, items[rows].to(device)).cpu())
    return torch.cat(found)
