"""The witness set: retained rows that tell what the region's rows should be, drawn in batches.

A batch is what RecBole's loader would give the model (pairs with a negative, labelled rows, or users), drawn with
vectorised negatives. Where items are calibrated, part of a batch has an item of the region as the negative: in
training every item is a negative far more often than a positive, and its own rows alone would not tell.
"""

from __future__ import annotations

import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction, cat_interactions
from recbole.utils import InputType

from recbole_unlearn.config import UnlearnConfig
from recbole_unlearn.obliviate.region import Region

TABLE_BYTES = 2**28  # up to this size a table of all pairs is kept, which is quicker to look up


class Negatives:
    """Uniform items a user has no row with, all at once."""

    def __init__(self, train: Dataset, generator: torch.Generator) -> None:
        self.item_num = train.item_num
        self.generator = generator
        keys = train.inter_feat[train.uid_field] * self.item_num + train.inter_feat[train.iid_field]
        self.table = None
        if train.user_num * train.item_num <= TABLE_BYTES:
            self.table = torch.zeros(train.user_num * train.item_num, dtype=torch.bool)
            self.table[keys] = True
        else:
            self.known = torch.unique(keys)

    def are_known(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Which pairs stand in the data (a mask)."""
        keys = users * self.item_num + items
        if self.table is not None:
            return self.table[keys]
        place = torch.searchsorted(self.known, keys).clamp(max=len(self.known) - 1)
        return self.known[place] == keys

    def draw(self, users: torch.Tensor, tries: int = 8) -> torch.Tensor:
        """One item per user, drawn again while it is known; after ``tries`` a known one may remain."""
        items = torch.randint(1, self.item_num, users.shape, generator=self.generator)
        for _ in range(tries):
            known = self.are_known(users, items).nonzero().flatten()
            if len(known) == 0:
                break
            items[known] = torch.randint(1, self.item_num, known.shape, generator=self.generator)
        return items


class Witness:
    """Batches of retained rows that touch the region."""

    def __init__(
        self,
        config: UnlearnConfig,
        train: Dataset,
        region: Region,
        generator: torch.Generator,
        region_negatives: float,
    ) -> None:
        self.config, self.train, self.generator = config, train, generator
        self.negatives = Negatives(train, generator)
        self.users = train.inter_feat[train.uid_field]
        self.items = train.inter_feat[train.iid_field]
        self.inside = {side: region.inside(side) for side in ("user", "item")}
        self.region_items = region.ids("item")
        self.region_negatives = region_negatives

    def rows(self, sides: tuple[str, ...]) -> torch.Tensor:
        """Retained rows that tell of the region's users, of its items, or of both.

        Items alone learn from users outside the region: those inside are yet to be fitted.
        """
        user, item = self.inside["user"][self.users], self.inside["item"][self.items]
        if sides == ("user",):
            touched = user
        elif sides == ("item",):
            touched = item & ~user
        else:
            touched = user | item
        return touched.nonzero().flatten()

    def negative_share(self, rows: torch.Tensor) -> float:
        r"""The part of a batch in which an item of the region is the negative.

        In training each of |D\S| rows draws one of n items, so the region's b items are drawn |D\S| b / n times
        for each time ``rows`` are seen; ``region_negatives`` scales that.
        """
        often = self.region_negatives * len(self.users) * len(self.region_items) / self.train.item_num
        return often / (often + len(rows)) if often else 0.0

    def triples(self, rows: torch.Tensor, size: int, items: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Row numbers (m,) and negatives (m,), m ≤ ``size``: of ``rows``, and of any row against the region."""
        extra = int(size * self.negative_share(rows)) if items else 0
        chosen = rows[torch.randint(0, len(rows), (size - extra,), generator=self.generator)]
        drawn = self.negatives.draw(self.users[chosen])
        if extra:
            more = torch.randint(0, len(self.users), (extra,), generator=self.generator)
            pick = torch.randint(0, len(self.region_items), (extra,), generator=self.generator)
            other = self.region_items[pick]
            fits = ~self.negatives.are_known(self.users[more], other)
            chosen, drawn = torch.cat([chosen, more[fits]]), torch.cat([drawn, other[fits]])
        return chosen, drawn

    def batch(self, chosen: torch.Tensor, drawn: torch.Tensor) -> Interaction:
        """Retained rows and negatives in the form the model's loss takes."""
        return as_batch(self.config, self.train, chosen, drawn)


def as_batch(config: UnlearnConfig, train: Dataset, chosen: torch.Tensor, drawn: torch.Tensor) -> Interaction:
    """Rows ``chosen`` of ``train`` with negatives ``drawn``, as pairs, labelled rows or users."""
    positives = train.join(Interaction(dict(train.inter_feat[chosen].interaction)))
    if config["MODEL_INPUT_TYPE"] == InputType.PAIRWISE:
        items = train.join(Interaction({train.iid_field: drawn}))
        items.add_prefix(config["NEG_PREFIX"])
        positives.update(items)
        return positives
    if config["MODEL_INPUT_TYPE"] == InputType.POINTWISE:
        negatives = Interaction(dict(train.inter_feat[chosen].interaction))
        negatives.update(Interaction({train.iid_field: drawn}))
        both = cat_interactions([positives, train.join(negatives)])
        labels = torch.cat([torch.ones(len(chosen)), torch.zeros(len(chosen))])
        both.update(Interaction({config["LABEL_FIELD"]: labels}))
        return both
    return Interaction({train.uid_field: torch.unique(train.inter_feat[train.uid_field][chosen])})
