"""The settings of Obliviate and of its presets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.settings import Role, setting


@dataclasses.dataclass(frozen=True)
class ObliviateSettings:
    """Settings of Obliviate."""

    forget_kind: str = setting(
        "What the deleted interactions are: auto need not know; genuine preferences get stand-ins; noise is pushed "
        "down to the level of never-seen items; hard is pushed down without end (the paper's Figure 3).",
        choices=("auto", "genuine", "noise", "hard"),
    )
    lua_target: str = setting(
        "New start of contaminated rows: what the model gives to others with such retained neighbours, or none.",
        choices=("neighbours", "none"),
    )
    lua_reach: float = setting(
        "Rows follow their neighbours when so much of them starts again: 0 for all, 1 for none.",
        low=0.0,
        high=1.0,
    )
    lua_rounds: int = setting("How often users and items start again in turn.", low=1)
    lua_hops: int = setting(
        "Without a new start: neighbours up to this many hops away are adapted too.", low=0
    )
    lua_scale: float = setting(
        "Scale c of the downdate by the optimizer's state, c / batch size times the gradient over its curvature: "
        "undoes c / learning rate epochs of the deleted interactions. 0 for none.",
        low=0.0,
    )
    lua_limit: float | None = setting(
        "How far a row goes by the downdate, as a share of its length, when all its interactions are deleted; less "
        "by the square of the deleted share. Empty for no limit.",
        low=0.0,
    )
    lua_curvature: str = setting(
        "Curvature: the optimizer's second moments where it has them, or Fisher information.",
        choices=("optimizer", "fisher"),
    )
    rank: int | str = setting(
        "Rank of the adapters: how many directions the downdate keeps and the calibration has. A number, or 'full'.",
        low=1,
        words=("full",),
    )
    lua_shared: bool = setting(
        "One subspace B for all tables of the same width; a graph then carries r columns."
    )
    lac_steps: int = setting(
        "Steps of the calibration; fewer for a small request, of whose interactions each is seen 16 times at most.",
        low=0,
    )
    lac_horizon: int | None = setting(
        "Steps over which the learning rate falls; lac_steps when empty. With more than those, calibration is the "
        "beginning of a longer one, bit for bit.",
        low=1,
    )
    lac_learning_rate: float | None = setting(
        "Adam's learning rate at the first step; when empty, twelve times that of the training, at most .06; of "
        "sequential models four times.",
        low=0.0,
    )
    lac_schedule: str = setting("How the learning rate falls over the steps.", choices=("linear", "constant"))
    lac_batch_size: int | None = setting(
        "Interactions in a step; when empty 8192, and of a sequential model as many windows as make nine tenths of "
        "all over the steps, at least 512.",
        low=1,
    )
    lac_train_b: bool = setting("Train B as well as A, as the paper prints it.")
    lac_buffer: float = setting(
        "Retained interactions to calibrate on, as a share of all; 0 for those that touch the region.",
        low=0.0,
        high=1.0,
    )
    lac_negatives: float = setting(
        "How often the region's items are negatives, relative to training.", low=0.0
    )
    lac_ranking: float = setting("Weight of the model's own loss on retained interactions.", low=0.0)
    lac_forget: float = setting(
        "Weight of the loss on deleted interactions, unless forget_kind is auto.", low=0.0
    )
    lac_hard_negatives: int = setting(
        "Candidates of which a deleted pair gets the highest-scored as negative; 1 is uniform.", low=1
    )
    lac_distill: float = setting("Weight of distillation: retained pairs keep their scores.", low=0.0)
    lac_drift: float = setting("Weight of the squared change of the weights.", low=0.0)
    save_adapters: bool = setting(
        "Also write the adapters to OUTPUT_DIR/adapters. They show who asked, and restore the original.",
        role=Role.SPEED,
    )

    def refuse_turned(self, of_pairs: Sequence[str], usual: Mapping[str, Any]) -> None:
        """Refuse what a sequential model does not read: settings ``of_pairs`` whose value is not the usual one."""
        turned = [key for key in of_pairs if getattr(self, key) != usual[key]]
        if turned:
            raise UnlearnError(
                f"{', '.join(turned)}: a setting of models that score pairs of a user and an item, and a sequential "
                "model scores items after a history. Leave it out."
            )

    def check(self) -> None:
        """Refuse values that do not go together."""
        if self.lac_horizon is not None and self.lac_horizon < self.lac_steps:
            raise UnlearnError(
                f"lac_horizon={self.lac_horizon} is not valid: at least lac_steps, which is {self.lac_steps}."
            )
