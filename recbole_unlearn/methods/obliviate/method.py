"""Obliviate: LUA takes back what S did to the rows of its users and items, LAC fits those rows again.

Everything that is not contaminated keeps its weights bit for bit. See the other files of this folder for the stages,
and docs/method.md for what is from the paper and what is not. The presets are the same method with other values.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from recbole.utils import ModelType

from recbole_unlearn.data import SequenceSplits
from recbole_unlearn.methods import Outcome, UnlearnTask, UnlearnTrainer, method
from recbole_unlearn.methods.obliviate import curvature, restart, window_restart
from recbole_unlearn.methods.obliviate.request import Request, paired_tables, side_tables
from recbole_unlearn.methods.obliviate.settings import ObliviateSettings
from recbole_unlearn.methods.obliviate.window_request import WindowRequest
from recbole_unlearn.rows import find_tables
from recbole_unlearn.settings import UnlearnConfig

logger = logging.getLogger(__name__)


class Prepared(NamedTuple):
    """What serves any number of requests to one model."""

    maps: restart.Maps | window_restart.Maps | None
    curvature: curvature.Curvature | None  # None where the optimizer left none, or it is not asked for


@method(
    "obliviate",
    "New start of the rows a request touches and a downdate by Adam's state at a low rank (LUA), then a calibration "
    "on retained interactions (LAC).",
    ObliviateSettings,
    models="differentiable, with rows of users or items; closed forms (EASE), exactly",
    recommended="when retraining takes too long",
)
class Obliviate(UnlearnTrainer):
    """W' = W + R + A Bᵀ on contaminated rows."""

    needs_index = True
    on_sequences = True
    on_knowledge = True
    forgets_more: ClassVar[Sequence[str]] = ("raise lua_limit", "set forget_kind=hard and raise lac_forget")
    forgets_less: ClassVar[Sequence[str]] = ("lower lua_limit", "set forget_kind=genuine")

    of_pairs = (
        "forget_kind", "lac_forget", "lac_hard_negatives", "lac_distill", "lac_negatives", "lua_reach", "lua_hops",
    )  # fmt: skip

    @classmethod
    def check(cls, settings: ObliviateSettings, config: UnlearnConfig) -> None:
        """As the base class; what the limits of single settings cannot say."""
        settings.check()
        if config["MODEL_TYPE"] == ModelType.SEQUENTIAL:
            settings.refuse_turned(cls.of_pairs, config.usual_values(cls.name))

    @classmethod
    def steps(cls, settings: ObliviateSettings) -> int:
        """The steps of LAC."""
        return settings.lac_steps

    @classmethod
    def settings_after(cls, settings: ObliviateSettings, step: int) -> dict[str, Any]:
        """The first ``step`` steps of the same calibration."""
        return {"lac_steps": step, "lac_horizon": settings.lac_horizon or settings.lac_steps}

    def prepare(self, task: UnlearnTask) -> Prepared:
        """What the model has learned about rows and their neighbours, and the curvature its optimizer left."""
        options = task.settings
        maps = state = None
        if task.config["MODEL_TYPE"] == ModelType.TRADITIONAL:
            return Prepared(None, None)
        if options.lua_target != "none":
            maps = self._maps(task)
        if options.lua_scale and options.lua_curvature == "optimizer" and task.original is not None:
            state = curvature.read_state(self.model, task.original.optimizer, task.original.epoch)
        return Prepared(maps, state)

    def _maps(self, task: UnlearnTask) -> restart.Maps | window_restart.Maps | None:
        """How rows follow from their neighbours in the original."""
        full = task.data.full
        found = find_tables(self.model, full.train)
        generator = torch.Generator().manual_seed(task.config["seed"])
        if isinstance(full, SequenceSplits):
            tables = side_tables(self.model, found, task.index)
            return (
                window_restart.learn(tables, full.for_model().train, generator) if "item" in tables else None
            )
        tables = paired_tables(self.model, found, task.index)
        return restart.learn(tables, task.index, generator) if tables else None

    def unlearn(self, task: UnlearnTask) -> Outcome:
        r"""The two stages, on ``self.model`` (built on D\S, with the original's weights)."""
        if task.config["MODEL_TYPE"] == ModelType.TRADITIONAL:
            return self._fit_again(task)
        self.reset_features(task)  # first, so that no row is fitted beside what only S taught
        kind = WindowRequest if isinstance(task.data.full, SequenceSplits) else Request
        return kind(self, task).run()

    def _fit_again(self, task: UnlearnTask) -> Outcome:
        """A model that is a formula of its data (EASE, ItemKNN, Pop) is unlearned by that formula, exactly."""
        logger.info(
            "%s is a closed form of its training data: it is computed again from the retain set, which is exact.",
            task.config["model"],
        )
        trained = task.train(task.config, task.data.retain, task.label)
        trained.load_into(self.model)
        return Outcome(
            {"exact": True},
            seconds=trained.seconds,
            from_cache=trained.from_cache,
            refitted_items=torch.arange(task.data.full.train.item_num),
        )
