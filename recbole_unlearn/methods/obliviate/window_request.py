r"""A request to a sequential model: the same two stages, on windows.

What differs from `request.py`:

* The downdate is by the windows whose targets are deleted, with the histories they were trained with. Windows that
  only lose a part of their history are left out: they cost several times more, and did not help.
* Neighbours, from which rows start again, are the items people met before (`window_restart.py`).
* LAC sees windows of D\S of all users (`window_witness.py`), and fits rows of which at least half started again:
  under a softmax every window says of every item where it belongs.
* Layers that all windows share are never moved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from recbole_unlearn.methods import BATCH
from recbole_unlearn.methods.obliviate import certificates, downdate, lac, window_restart
from recbole_unlearn.methods.obliviate.contamination import started_again
from recbole_unlearn.methods.obliviate.gradients import row_gradients
from recbole_unlearn.methods.obliviate.request import Request, side_tables
from recbole_unlearn.methods.obliviate.window_witness import WindowWitness, scores_after, window_scores
from recbole_unlearn.rows import Moments, Region, RetainedIndex, find_region

RATE = 4.0  # of LAC at its first step, times the training's
SEEN, LEAST, MOST = (
    0.9,
    512,
    2,
)  # windows: over all steps, of those there are; in a step; in batches of training


class WindowRequest(Request):
    """A request to a model of sequences."""

    witness: WindowWitness
    others = "of items that lost little, in part"

    def _witness(self) -> tuple[Region, WindowWitness]:
        """As for pairs: the region of the raw interactions, and windows."""
        data = self.task.data
        users, items = (data.forget.inter_feat[f] for f in (data.forget.uid_field, data.forget.iid_field))
        retained = RetainedIndex(self.index, users, items, data.deleted)
        touched = find_region(self.index, users, items, data.lost)
        region = started_again(touched) if self.starts_again else touched
        certain = find_region(self.index, users, items, data.lost_at_least)
        generator = torch.Generator().manual_seed(self.task.config["seed"])
        return certain, WindowWitness(self.task, self.model, retained, region, generator)

    def _directions(self, moments: Moments) -> tuple[list[torch.Tensor], float]:
        """By the windows of S as they were; a target's own row makes up all of its score."""
        chosen = self.adapters.trained
        gradients, losses = row_gradients(self.adapters, chosen, self.witness), self.witness.losses
        self.model.eval()
        rows = losses.deleted_rows()
        for part in rows.split(BATCH) if len(rows) else ():  # first interactions were no target
            gradients.add(functools.partial(losses.deleted_loss, part), len(part))
        return downdate.over_curvature(chosen, gradients.take(), moments), 1.0

    def _restart(self) -> None:
        maps = self.task.prepared.maps
        if maps is None:
            self._from_initial(self.tables)
            return
        tables = side_tables(self.model, self.tables, self.index)
        windows = self.task.data.retain.for_model().train
        moved = window_restart.restart(tables, maps, self.certain, windows, self.options.lua_rounds)
        self._move(self.certain, moved)

    def _moments(self) -> Moments:
        # cuDNN's recurrent layers have gradients in training mode alone.
        with torch.backends.cudnn.flags(enabled=False):
            return super()._moments()

    def _retained(self) -> torch.Tensor:
        return torch.arange(len(self.witness.windows))

    def _schedule(self, interactions: int | None) -> lac.Schedule:
        """Slower than for pairs: a softmax over all items moves every row in every step."""
        few = None if self.options.lac_buffer else len(self.witness.interactions())
        schedule = super()._schedule(few)
        if self.options.lac_learning_rate is not None:
            return schedule
        return schedule._replace(learning_rate=RATE * self.task.config["learning_rate"])

    def _batch_size(self) -> int:
        """So many that the steps cost about as much as half an epoch of training, whatever the data."""
        seen = round(SEEN * len(self.witness.windows) / max(1, self.options.lac_steps))
        return max(LEAST, min(seen, MOST * int(self.task.config["train_batch_size"])))

    def _objective(self) -> tuple[lac.WitnessObjective, torch.Tensor | None]:
        """The model's own loss on retained windows, of all users unless a share is asked for, and the drift."""
        options, witness = self.options, self.witness
        chosen = witness.buffer(options.lac_buffer) if options.lac_buffer else self._retained()
        return lac.WitnessObjective(ranking=options.lac_ranking, drift=options.lac_drift), chosen

    def _deleted_scores(self) -> tuple[torch.Tensor, torch.Tensor]:
        return window_scores(self.model, self.witness, self.witness.deleted(certificates.PAIRS))

    def _retained_scores(self) -> Callable[[], torch.Tensor]:
        windows = self.witness.windows
        chosen = windows[self.witness.buffer(min(1.0, certificates.PAIRS / len(windows)))]
        batch, items = self.witness.read(chosen), chosen[self.index.train.iid_field]
        return lambda: scores_after(self.model, batch, items[:, None])[:, 0]
