r"""LUA's new start for sequential models: an item belongs by what people met before it.

The same map as in `restart.py`, with other neighbours. Those of an item i are the items in histories of which i is
the target: over the n windows with target i,

    m = mean of the mean row of the last 5 items of the history, less the mean item,

and where the model has rows of users, also the mean row of the windows' users. Neighbours of a user are the targets
of the user's windows. The map is learned on D, at θ₀. With b what it says of a row by the windows of D\S, whose
histories are cleaned, and by the neighbours as they are now, a row of degree w (`contamination.py`) goes to

    θ₀ + w (b − θ₀)

Rows with nothing deleted of their own stay: that they follow their neighbours, as in models of pairs, cost more
ranking than it forgot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from recbole.data.dataset import SequentialDataset
from torch.nn.functional import embedding_bag

from recbole_unlearn.methods.obliviate.contamination import degree
from recbole_unlearn.methods.obliviate.restart import RIDGE, SAMPLE, features
from recbole_unlearn.rows import Region, Side, rarest

NEAR = 5  # items of a history that count as neighbours of its target

Tables = Mapping[Side, torch.Tensor]  # (n, d) each, with row k for id k; users only where the model has them


class Maps(NamedTuple):
    """What a model has learned about rows and their neighbours; it knows nothing of a request."""

    transform: dict[Side, torch.Tensor]  # T (3 d' + 3, d) for the rows of each side
    centre: dict[Side, torch.Tensor]  # (d,), the mean row of those that are in windows
    rare: torch.Tensor  # (d,), the row of an item that is nobody's


class Links:
    """The neighbours of ``ids`` (n,), sorted, of one side in some windows."""

    def __init__(self, side: Side, ids: torch.Tensor, windows: SequentialDataset) -> None:
        feat = windows.inter_feat
        own = feat[windows.uid_field if side == "user" else windows.iid_field]
        place = torch.searchsorted(ids, own).clamp(max=max(0, len(ids) - 1))
        chosen = (ids[place] == own).nonzero().flatten() if len(ids) else torch.empty(0, dtype=torch.long)
        place = place[chosen]
        order = torch.argsort(place, stable=True)
        chosen, place = chosen[order], place[order]
        self.side = side
        self.number = torch.bincount(place, minlength=len(ids))
        self._starts = self.number.cumsum(0) - self.number
        self._share = 1.0 / self.number.clamp(min=1)[place]
        self._other = feat[windows.iid_field if side == "user" else windows.uid_field][chosen]
        if side == "item":
            self._read_histories(windows, chosen, place)

    def _read_histories(self, windows: SequentialDataset, chosen: torch.Tensor, place: torch.Tensor) -> None:
        """The last items of each history, weighted so that every window counts the same."""
        feat, size = windows.inter_feat, windows.item_list_length_field
        length = feat[size][chosen]
        history = feat[f"{windows.iid_field}{windows.config['LIST_SUFFIX']}"]
        near = length.clamp(max=NEAR)
        at = (length - near)[:, None] + torch.arange(NEAR)
        inside = torch.arange(NEAR) < near[:, None]
        self._near = history[chosen[:, None], at.clamp(max=history.shape[1] - 1)][inside]
        self._weight = (self._share / near)[:, None].expand(-1, NEAR)[inside]
        begin = near.cumsum(0) - near
        ends = torch.cat([begin, near.sum()[None]])
        self._near_starts = ends[self._starts.clamp(max=len(near))]

    def mean(self, tables: Tables, centre: Tables) -> torch.Tensor:
        """The mean row of the neighbours (n, d'), less the centre; of items with users', side by side."""
        if self.side == "user":
            return self._mean(self._other, self._starts, self._share, tables["item"], centre["item"])
        found = [self._mean(self._near, self._near_starts, self._weight, tables["item"], centre["item"])]
        if "user" in tables:
            found.append(self._mean(self._other, self._starts, self._share, tables["user"], centre["user"]))
        return torch.cat(found, dim=1)

    def _mean(
        self,
        far: torch.Tensor,
        starts: torch.Tensor,
        weight: torch.Tensor,
        table: torch.Tensor,
        centre: torch.Tensor,
    ) -> torch.Tensor:
        far, starts, weight = far.to(table.device), starts.to(table.device), weight.to(table)
        return embedding_bag(far, table, starts, mode="sum", per_sample_weights=weight) - centre


def learn(tables: Tables, windows: SequentialDataset, generator: torch.Generator) -> Maps | None:
    """The maps of a model's tables by its training windows; None when there are too few rows to learn them from."""
    feat = windows.inter_feat
    fields: dict[Side, str] = {"user": windows.uid_field, "item": windows.iid_field}
    known = {side: torch.unique(feat[fields[side]]) for side in tables}
    centre = {side: table[known[side].to(table.device)].mean(dim=0) for side, table in tables.items()}
    width = sum(table.shape[1] for table in tables.values())
    transform: dict[Side, torch.Tensor] = {}
    for side, table in tables.items():
        if len(known[side]) < 4 * width:
            return None
        pick = torch.randperm(len(known[side]), generator=generator)[:SAMPLE]
        ids = known[side][pick].sort().values
        links = Links(side, ids, windows)
        x = features(links.mean(tables, centre), links.number.to(table.device)).double()
        gram = x.T @ x
        gram.diagonal().add_(RIDGE * gram.diagonal().mean())
        y = table[ids.to(table.device)].double()
        transform[side] = torch.linalg.solve(gram, x.T @ y).to(table.dtype)
    items = tables["item"]
    return Maps(transform, centre, items[rarest(windows).to(items.device)].mean(dim=0))


class _Side:
    """The rows of one side while they start again."""

    def __init__(
        self, side: Side, tables: Tables, maps: Maps, touched: Region, windows: SequentialDataset
    ) -> None:
        self.table, self.maps, self.transform = tables[side], maps, maps.transform[side]
        self.rows = touched[side].ids.to(self.table.device)
        self.first = self.table[self.rows].clone()
        self.links = Links(side, touched[side].ids, windows)
        self.degree = degree(side, touched[side].share.float()).to(self.table)[:, None]
        alone = (self.links.number == 0).to(self.table.device)
        # Without a window left an item is like one that is nobody's, and a user has nothing to start from.
        self.rare = alone if side == "item" else None
        self.degree[alone] = 1.0 if side == "item" else 0.0

    def turn(self, tables: Tables) -> None:
        """Move the rows to θ₀ + w (b − θ₀)."""
        mean = self.links.mean(tables, self.maps.centre)
        goal = features(mean, self.links.number.to(self.table.device)) @ self.transform
        if self.rare is not None:
            goal[self.rare] = self.maps.rare
        self.table[self.rows] = self.first + self.degree * (goal - self.first)


def restart(
    tables: Tables, maps: Maps, touched: Region, windows: SequentialDataset, rounds: int
) -> dict[Side, torch.Tensor]:
    r"""The new start of the rows of ``touched``, minus what they are now, by side (n, d).

    ``windows`` are the training windows of D\S. ``tables`` are left as they are.
    """
    sides = {side: _Side(side, tables, maps, touched, windows) for side in tables}
    again: list[Side] = ["item", "user"]
    for side in again[1:] + again * rounds:
        if side in sides:
            sides[side].turn(tables)
    found: dict[Side, torch.Tensor] = {}
    for side, state in sides.items():
        found[side] = state.table[state.rows] - state.first
        state.table[state.rows] = state.first
    return found
