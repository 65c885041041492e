"""The settings of Obliviate and of its presets."""

from __future__ import annotations

import dataclasses

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.methods.obliviate.lac import OPTIMIZERS, SCHEDULES
from recbole_unlearn.settings import Role, setting


@dataclasses.dataclass(frozen=True)
class ObliviateSettings:
    """Settings of Obliviate."""

    forget_kind: str = setting(
        "What the deleted interactions are: auto need not know; genuine preferences get stand-ins; noise is pushed "
        "down to the level of never-seen items; hard is pushed down without end (the paper's Figure 3).",
        choices=("auto", "genuine", "noise", "hard"),
    )
    lua_threshold: float = setting(
        "Items that lose at least this share of their interactions are changed, as is every affected user.",
        low=0.0,
        high=1.0,
    )
    lua_hops: int = setting("Neighbours up to this many hops away are calibrated too.", low=0)
    lua_decay: float = setting(
        "A neighbour's share, relative to that of what it touches; it joins from lua_threshold on.",
        low=0.0,
        high=1.0,
    )
    lua_cap: int = setting("Neighbours that may join at a hop, on each side.", low=0)
    lua_layers: bool = setting("Also adapt layers that belong to no user or item.")
    lua_target: str = setting(
        "New start of the region's rows: what the model gives to others with such retained neighbours, their initial "
        "value, or none.",
        choices=("neighbours", "initial", "none"),
    )
    lua_scale: float | str = setting(
        "Scale of the Newton downdate: a number, 'auto' (a line search on the witness set), or 0 for none.",
        words=("auto",),
    )
    lua_draws: int = setting("Draws of negatives over which the deletion gradient is averaged.", low=1)
    lua_curvature: str = setting(
        "Curvature: the optimizer's second moments where it has them, or Fisher information.",
        choices=("optimizer", "fisher"),
    )
    rank: int | str = setting(
        "Rank of the adapters: a number, 'auto' (by lua_energy), or 'full' rows.",
        low=1,
        words=("auto", "full"),
    )
    lua_energy: float = setting("rank=auto: share of the downdate's energy to keep.", low=0.0, high=1.0)
    lua_shared: bool = setting(
        "One subspace B for all tables of the same width; a graph then carries r columns."
    )
    lac_steps: int = setting("Steps of the calibration.", low=0)
    lac_horizon: int | None = setting(
        "Steps over which the learning rate falls; lac_steps when empty. With more than those, calibration is the "
        "beginning of a longer one, bit for bit.",
        low=1,
    )
    lac_learning_rate: float = setting("The optimizer's learning rate at the first step.", low=0.0)
    lac_optimizer: str = setting("Optimizer of the calibration.", choices=tuple(OPTIMIZERS))
    lac_schedule: str = setting("How the learning rate falls over the steps.", choices=tuple(SCHEDULES))
    lac_batch_size: int = setting("Interactions in a step.", low=1)
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

    def check(self) -> None:
        """Refuse values that do not go together."""
        if self.lac_horizon is not None and self.lac_horizon < self.lac_steps:
            raise UnlearnError(
                f"lac_horizon={self.lac_horizon} is not valid: at least lac_steps, which is {self.lac_steps}."
            )
