r"""Obliviate for sequential models: the same two stages, on windows. Only what differs from models of pairs is here.

* The downdate is by the windows whose targets are deleted, with the histories they were trained with.
* Rows start again from the items that were met before. The neighbours of an item i are the items in histories of
  which i is the target: over the n windows with target i,

      m = mean of the mean row of the last 5 items of the history, less the mean item,

  and where the model has rows of users, also the mean row of the windows' users. The neighbours of a user are the
  targets of the user's windows.
* LAC sees windows of D\S of all users: under a softmax every window says of every item whether it belongs there.
  Layers that all windows share are never moved.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from recbole.data.dataset import SequentialDataset
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender
from torch import nn
from torch.nn.functional import embedding_bag

from recbole_unlearn.data import SCORES, TRAIN, SequenceSplits
from recbole_unlearn.methods import BATCH, UnlearnTask, WindowLosses
from recbole_unlearn.methods.obliviate import new_start
from recbole_unlearn.methods.obliviate.fast_gradients import RowGradients, row_gradients
from recbole_unlearn.methods.obliviate.new_start import Maps, Tables
from recbole_unlearn.methods.obliviate.obliviate import CERTIFIED, Objective, Request, Schedule
from recbole_unlearn.rows import Region, RetainedIndex, Side, Triples, Witness

NEAR = 5  # items of a history that count as neighbours of its target
RATE = 4.0  # of LAC at its first step, times the training's: a softmax over all items moves every row in every step
SEEN, LEAST, MOST = (0.9, 512, 2)  # windows: share of all seen over all steps; in a step; in batches of training


class WindowLinks:
    """The neighbours of ``ids`` (n,), sorted, of one side in some windows."""

    def __init__(self, windows: SequentialDataset, side: Side, ids: torch.Tensor) -> None:
        feat = windows.inter_feat
        own, far = windows.iid_field, windows.uid_field
        if side == "user":
            own, far = far, own
        place = torch.searchsorted(ids, feat[own]).clamp(max=max(0, len(ids) - 1))
        chosen = (ids[place] == feat[own]).nonzero().flatten() if len(ids) else ids
        place = place[chosen]
        order = torch.argsort(place, stable=True)
        chosen, place = chosen[order], place[order]
        self.side = side
        self.number = torch.bincount(place, minlength=len(ids))
        starts = self.number.cumsum(0) - self.number
        share = 1.0 / self.number.clamp(min=1)[place]
        self._far = feat[far][chosen], starts, share
        if side == "item":  # the last items of each history, weighted so that every window counts the same
            length = feat[windows.item_list_length_field][chosen]
            history = feat[f"{windows.iid_field}{windows.config['LIST_SUFFIX']}"]
            near = length.clamp(max=NEAR)
            at = (length - near)[:, None] + torch.arange(NEAR)
            inside = torch.arange(NEAR) < near[:, None]
            items = history[chosen[:, None], at.clamp(max=history.shape[1] - 1)][inside]
            weight = (share / near)[:, None].expand(-1, NEAR)[inside]
            begin = torch.cat([near.cumsum(0) - near, near.sum()[None]])
            self._near = items, begin[starts.clamp(max=len(near))], weight

    def mean(self, tables: Tables, centre: Tables) -> torch.Tensor:
        """The mean row of the neighbours (n, d'), less the centre; for items with the users' next to it."""
        if self.side == "user":
            return self._mean(self._far, tables["item"], centre["item"])
        found = [self._mean(self._near, tables["item"], centre["item"])]
        if "user" in tables:
            found.append(self._mean(self._far, tables["user"], centre["user"]))
        return torch.cat(found, dim=1)

    def _mean(self, links: Sequence[torch.Tensor], table: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
        far, starts, weight = links[0].to(table.device), links[1].to(table.device), links[2].to(table)
        return embedding_bag(far, table, starts, mode="sum", per_sample_weights=weight) - centre


def learn_windows(tables: Tables, windows: SequentialDataset, generator: torch.Generator) -> Maps | None:
    """The map by windows, centred on the mean row of the users and items in them."""
    fields: dict[Side, str] = {"user": windows.uid_field, "item": windows.iid_field}
    known = {side: torch.unique(windows.inter_feat[fields[side]]) for side in tables}
    centre = {side: table[known[side].to(table.device)].mean(dim=0) for side, table in tables.items()}
    width = dict.fromkeys(tables, sum(table.shape[1] for table in tables.values()))
    links_of = functools.partial(WindowLinks, windows)
    return new_start.learn(tables, known, width, links_of, centre, {}, windows, generator)


class WindowGradients(RowGradients):
    """Gradients of rows for sequential models, which score items after a history.

    Layers that all windows share are held fixed, and without dropout. Where a loss reads a table of items as a whole
    (the softmax over all items), its rows learn from how they are scored, and not from the histories they are in: no
    gradient goes back through the layers, and more is forgotten.
    """

    witness: "WindowWitness"
    trains = False

    def _set_up(self) -> None:
        self._others = [p for name, p in self.model.named_parameters() if p.requires_grad and name not in self._names]
        self._cut: list[nn.Module] | None = None  # tables whose rows in histories have no gradient

    def add(self, loss: Callable[[], torch.Tensor], weight: float) -> float:
        """As :meth:`RowGradients.add`."""
        with fixed(self._others), torch.backends.cudnn.flags(enabled=False):  # has none in evaluation mode
            if self._cut is None:
                self._cut = self._read_as_a_whole(loss)
            with without_lookups(self._cut):
                return super().add(loss, weight)

    def _read_as_a_whole(self, loss: Callable[[], torch.Tensor]) -> list[nn.Module]:
        """The tables of items that have a gradient also when no row of theirs is looked up."""
        items = dict.fromkeys(a.name for a in self.chosen if a.side == "item" and a.name in self._names)
        tables = {name: self.model.get_submodule(name.rpartition(".")[0]) for name in items}
        tables = {name: module for name, module in tables.items() if isinstance(module, nn.Embedding)}
        with without_lookups(tables.values()):
            value = loss()
        if not tables or not value.requires_grad:
            return []
        parameters = [self.model.get_parameter(name) for name in tables]
        found = torch.autograd.grad(value.sum(), parameters, allow_unused=True)
        return [module for module, value in zip(tables.values(), found, strict=True) if value is not None]

    def compared(self, deleted: Triples) -> tuple[torch.Tensor, torch.Tensor]:
        """As :meth:`RowGradients.compared`, after the cleaned prefixes of the deleted interactions."""
        return self.witness.scores(self.model, deleted)


@contextlib.contextmanager
def fixed(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Take no gradients of ``parameters``."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def without_lookups(tables: Iterable[nn.Module]) -> contextlib.ExitStack:
    """While it is open, rows that are looked up in ``tables`` have no gradient; the tables themselves keep theirs."""
    stack = contextlib.ExitStack()
    for table in tables:
        stack.enter_context(table.register_forward_hook(lambda _module, _ids, rows: rows.detach()))
    return stack


class WindowWitness(Witness):
    """Batches of retained windows. Triples have numbers of windows, deleted pairs those of raw interactions."""

    watched: ClassVar[int] = 256  # a window costs more than a pair
    gradients = WindowGradients

    def __init__(
        self, task: UnlearnTask, model: AbstractRecommender, retained: RetainedIndex, region: Region,
        generator: torch.Generator,
    ) -> None:  # fmt: skip
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
        # With a cleaned prefix to ask after; those were the target of a window.
        self._asked = rows[sequences.lengths(self._keep)[rows] > 0]

    def interactions(self) -> torch.Tensor:
        """Retained windows whose targets or users are in the region."""
        everything = self.triples(self.everything())
        items, users = (self.region[side] for side in ("item", "user"))
        return (items.contains(everything.items) | users.contains(everything.users)).nonzero().flatten()

    def everything(self) -> torch.Tensor:
        """All retained windows."""
        return torch.arange(len(self.windows))

    def uniform(self, size: int) -> torch.Tensor:
        """``size`` retained windows, uniform, with replacement."""
        return torch.randint(0, len(self.windows), (size,), generator=self.generator)

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
                left = torch.cat([left, numbers[torch.randperm(len(numbers), generator=self.generator)]])
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
        """The cleaned prefixes of deleted interactions, as a model reads them."""
        return self._retain.read(self._full.sequences.prefix(rows, self._keep))

    def batch(self, triples: Triples) -> Interaction:
        """Retained windows as the loss takes them."""
        return self.losses.kept_batch(triples.numbers)

    def scores(self, model: AbstractRecommender, deleted: Triples) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores (m,) of deleted pairs and of their negatives, after the cleaned prefixes."""
        asked = torch.stack([deleted.items, deleted.negatives], dim=1)
        found = scores_after(model, self.cleaned(deleted.numbers), asked)
        return found[:, 0], found[:, 1]


@torch.no_grad()
def scores_after(model: AbstractRecommender, windows: Interaction, items: torch.Tensor) -> torch.Tensor:
    """Scores (m, k) of ``items`` (m, k) after the histories of ``windows`` (m)."""
    model.eval()
    device = next(model.parameters()).device
    found = [torch.empty(0, items.shape[1])]
    for rows in torch.arange(len(items)).split(max(1, SCORES // model.n_items)) if len(items) else ():
        scores = model.full_sort_predict(windows[rows].to(device)).view(len(rows), -1)
        found.append(scores.gather(1, items[rows].to(device)).cpu())
    return torch.cat(found)


class WindowRequest(Request):
    """A request to a model of sequences."""

    witness: WindowWitness
    rounds = 1  # more moved items that were right

    @staticmethod
    def learn_maps(tables: Tables, task: UnlearnTask, generator: torch.Generator) -> Maps | None:
        """The map from neighbours in the training windows to rows."""
        return learn_windows(tables, task.data.full.for_model().train, generator) if "item" in tables else None

    def make_witness(self, region: Region, generator: torch.Generator) -> Witness:
        """Windows instead of interactions."""
        return WindowWitness(self.task, self.model, self.retained, region, generator)

    def deleted_gradients(self) -> tuple[list[torch.Tensor], float]:
        """By the windows of S as they were; a target's own row makes up all of its score."""
        gradients, losses = row_gradients(self.adapters, self.witness), self.witness.losses
        self.model.eval()
        rows = losses.deleted_rows()
        for part in rows.split(BATCH) if len(rows) else ():  # first interactions were no target
            gradients.add(functools.partial(losses.deleted_loss, part), len(part))
        return gradients.take(), 1.0

    def neighbours(self, tables: Tables) -> new_start.Neighbours:
        """Rows that lost interactions, and their neighbours in retained windows; no rows follow."""
        return self.certain, functools.partial(WindowLinks, self.task.data.retain.for_model().train), None

    def plan(self) -> tuple[Objective, torch.Tensor, Schedule]:
        """All retained windows, in batches that cost together about as much as half an epoch of training."""
        config, windows = self.task.config, self.witness.everything()
        seen = round(SEEN * len(windows) / max(1, self.options.lac_steps))
        size = max(LEAST, min(seen, MOST * int(config["train_batch_size"])))
        schedule = Schedule.by(self.options, RATE * config["learning_rate"], size)
        return Objective(), windows, schedule.within(len(self.witness.interactions()))

    def retained_scores(self) -> Callable[[], torch.Tensor]:
        """Of the targets of some retained windows."""
        windows = self.witness.windows
        chosen = windows[self.witness.uniform(min(CERTIFIED, len(windows)))]
        retain: Any = self.task.data.retain  # SequenceSplits
        batch, items = retain.read(chosen), chosen[self.index.train.iid_field]
        return lambda: scores_after(self.model, batch, items[:, None])[:, 0]
