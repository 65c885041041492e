"""Shrink: rows of users with a deleted interaction go part of the way back to their initial values.

A deliberately simple method: p_u ← (1 − λ ρ_u) p_u + λ ρ_u p_u⁰, with ρ_u the share of the user's training
interactions that is deleted and p_u⁰ the row of a model that has seen nothing.
"""

import dataclasses

import torch

from recbole_unlearn.methods import Outcome, UnlearnTask, UnlearnTrainer, method
from recbole_unlearn.rows import as_rows, find_region, find_tables
from recbole_unlearn.settings import setting


@dataclasses.dataclass(frozen=True)
class ShrinkSettings:
    """Settings of Shrink; their values are in shrink.yaml beside this file."""

    shrink_strength: float = setting("How far back: λ.", low=0.0, high=1.0)


@method("shrink", "Move the rows of users with deleted interactions back to their start.", ShrinkSettings)
class Shrink(UnlearnTrainer):
    """p_u ← (1 − λ ρ_u) p_u + λ ρ_u p_u⁰ for users with a deleted interaction; all else stays bit for bit."""

    needs_index = True

    @torch.no_grad()
    def unlearn(self, task: UnlearnTask) -> Outcome:
        """One step, in closed form."""
        forget = task.data.forget
        users, items = forget.inter_feat[forget.uid_field], forget.inter_feat[forget.iid_field]
        touched = find_region(task.index, users, items)["user"]
        weight = (task.settings.shrink_strength * touched.share)[:, None]
        named = dict(self.model.named_parameters())
        for table in find_tables(self.model, task.data.full.train):
            if table.side == "user":
                rows, start = (as_rows(x[table.parameter], table.axis) for x in (named, task.initial))
                at = touched.ids + table.offset
                rows[at] = torch.lerp(rows[at], start[at].to(rows), weight.to(rows))
        return Outcome({"rows": len(touched)})
