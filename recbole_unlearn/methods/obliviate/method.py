"""Obliviate: LUA takes back what S did to the rows of its users and items, LAC fits those rows again.

Everything outside the region keeps its weights bit for bit. See the other files of this folder for the stages, and
docs/method.md for what is from the paper and what is not. The presets are the same method with other values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.log import progress
from recbole_unlearn.methods import Outcome, UnlearnTask, UnlearnTrainer, method
from recbole_unlearn.methods.obliviate import certificates, curvature, lua, newton, reembed
from recbole_unlearn.methods.obliviate.adapters import Adapter, AdapterSet
from recbole_unlearn.methods.obliviate.lac import Schedule, Trace, WitnessObjective, calibrate
from recbole_unlearn.methods.obliviate.settings import ObliviateSettings
from recbole_unlearn.rows import (
    PAIRS,
    ExpectedStanding,
    Moments,
    Region,
    RetainedIndex,
    Side,
    Table,
    Witness,
    as_rows,
    find_region,
    find_tables,
    fisher,
    pair_scores,
    with_neighbours,
)
from recbole_unlearn.settings import UnlearnConfig

logger = logging.getLogger(__name__)


@method(
    "obliviate",
    "Downdate the rows a request touches (LUA), then calibrate them on retained interactions (LAC).",
    ObliviateSettings,
)
class Obliviate(UnlearnTrainer):
    """W' = W + A Bᵀ on the rows of the region."""

    needs_index = True

    @classmethod
    def check(cls, settings: ObliviateSettings, config: UnlearnConfig) -> None:
        """As the base class; what the limits of single settings cannot say."""
        settings.check()

    @classmethod
    def steps(cls, settings: ObliviateSettings) -> int:
        """The steps of LAC."""
        return settings.lac_steps

    @classmethod
    def settings_after(cls, settings: ObliviateSettings, step: int) -> dict[str, Any]:
        """The first ``step`` steps of the same calibration."""
        return {"lac_steps": step, "lac_horizon": settings.lac_horizon or settings.lac_steps}

    def unlearn(self, task: UnlearnTask) -> Outcome:
        r"""The two stages, on ``self.model`` (built on D\S, with the original's weights)."""
        if task.config["MODEL_TYPE"] == ModelType.TRADITIONAL:
            return self._fit_again(task)
        self.reset_features(task)  # first, so that no row is fitted beside what only S taught
        return _Request(self, task).run()

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


class _Request:
    """One request while it is worked on: its region, the witness set, the adapters."""

    def __init__(self, trainer: Obliviate, task: UnlearnTask) -> None:
        self.trainer, self.task = trainer, task
        self.model: AbstractRecommender = trainer.model
        self.options: ObliviateSettings = task.settings
        self.index = task.index
        self.tables = find_tables(self.model, task.data.full.train)
        if not self.tables and not self.options.lua_layers:
            raise UnlearnError(
                f"{task.config['model']} has no weights that belong to users or items, which obliviate works on. "
                "Use --unlearn=retrain."
            )
        self.touched, self.witness = self._witness()
        self.adapters = self._adapters()
        # Items that lost all their interactions start again from retained data, and are negatives of retained ones.
        self.refits_items = self.options.rank == "full" and self.options.lua_target != "none"

    def run(self) -> Outcome:
        """LUA, then LAC."""
        options = self.options
        scale, energy = self._downdate()
        objective, interactions = self._objective()
        self.adapters.attach()
        schedule = Schedule(
            options.lac_steps, options.lac_learning_rate, options.lac_batch_size,
            options.lac_optimizer, options.lac_schedule, options.lac_train_b, options.lac_horizon,
        )  # fmt: skip
        shown = bool(self.task.config["show_progress"])
        with progress(f"LAC {self.task.label}", schedule.steps, shown) as bar:
            trace = calibrate(
                self.adapters, self.witness, objective, schedule, interactions, bar, self._step_report()
            )
        # Without figures of the request: those are in the certificates, which a result of few users leaves out.
        logger.info("Obliviate changed the rows of the request's users and items, and calibrated them.")
        level = {} if objective.standing is None else {"level": round(objective.standing.level, 6)}
        return Outcome(
            {"energy": energy, **level, "lua_scale": scale, "lac": trace.summary()},
            {
                "loss": [(step + 1, round(value, 6)) for step, value in enumerate(trace.values)],
                "demotion": [(step, round(value, 6)) for step, value in trace.demotion],
            },
            refits_orphan_items=self.refits_items,
            refitted_items=self.touched["item"].ids if self.refits_items else None,
            certify=lambda: self._certificates(trace),
        )

    def _witness(self) -> tuple[Region, Witness]:
        """The region that S itself touches, and the witness set of it and its neighbours."""
        options, data = self.options, self.task.data
        users, items = (data.forget.inter_feat[f] for f in (data.forget.uid_field, data.forget.iid_field))
        retained = RetainedIndex(self.index, users, items, data.deleted)
        # Where users have no rows of their own, all that S left behind is in the items.
        threshold = options.lua_threshold if any(t.side == "user" for t in self.tables) else 0.0
        touched = region = find_region(self.index, users, items, threshold, data.lost)
        if options.lua_hops:
            region = with_neighbours(
                region, retained, options.lua_hops, options.lua_decay, threshold, options.lua_cap
            )
        generator = torch.Generator().manual_seed(self.task.config["seed"])
        return touched, Witness(self.task.config, retained, region, generator, options.lac_negatives)

    def _adapters(self) -> AdapterSet:
        """Adapters of the region's rows that change nothing yet."""
        region: Region = self.witness.region
        named = dict(self.model.named_parameters())
        places: list[tuple[str, torch.Tensor, int, Side | None]] = [
            (t.parameter, region[t.side].ids + t.offset, t.axis, t.side) for t in self.tables
        ]
        if self.options.lua_layers:
            taken = {table.parameter for table in self.tables}
            others = [name for name, p in named.items() if name not in taken and p.dim() <= 2]
            places += [(name, torch.arange(len(named[name])), 0, None) for name in others]
        adapters = []
        for name, rows, axis, side in places:
            if len(rows) == 0:
                continue
            weights = as_rows(named[name], axis)
            rows = rows.to(weights.device)
            base = weights[rows].clone()
            eye = torch.eye(base.shape[1], dtype=base.dtype, device=base.device)
            adapters.append(Adapter(name, rows, torch.zeros_like(base), eye, base, axis, side))
        return AdapterSet(self.model, adapters)

    def _downdate(self) -> tuple[float, dict[str, float]]:
        """LUA: put the downdate of the region's rows into the adapters, at the rank asked for.

        Returns η and the energy that the rank keeps, by adapter.
        """
        options, adapters = self.options, self.adapters.adapters
        deltas = self._restarts()
        scale = 0.0
        if options.lua_scale != 0 and adapters:
            size = options.lac_batch_size
            steps = newton.directions(
                self.adapters, self.witness, self.task.data, self._moments(), options.lua_draws, size
            )
            if options.lua_scale == "auto":
                scale = newton.search(self.adapters, self.witness, steps, size)
            else:
                scale = float(options.lua_scale)
            deltas = [delta + scale * step for delta, step in zip(deltas, steps, strict=True)]
        lows = lua.project_all(deltas, options.rank, options.lua_energy, options.lua_shared)
        for adapter, low in zip(adapters, lows, strict=True):
            adapter.a, adapter.b = low.a, low.b
        return scale, {a.label: round(low.energy, 6) for a, low in zip(adapters, lows, strict=True)}

    def _restarts(self) -> list[torch.Tensor]:
        """The change of every adapter's rows to their new start (n, d); items first, because they predict users."""
        deltas = [torch.zeros_like(adapter.base) for adapter in self.adapters.adapters]
        for side in ("item", "user") if self.options.lua_target != "none" else ():
            for k, adapter in enumerate(self.adapters.adapters):
                if adapter.side == side:
                    own = self.touched[side].contains(self.witness.region[side].ids)  # not its neighbours
                    own = own.to(adapter.base.device)[:, None]
                    adapter.a = deltas[k] = torch.where(own, self._target(adapter) - adapter.base, 0.0)
            self.adapters.attach()
        return deltas

    def _target(self, adapter: Adapter) -> torch.Tensor:
        """Where the rows of an adapter would be without S (n, d)."""
        initial = as_rows(self.task.initial[adapter.name], adapter.axis)[adapter.rows]
        others = [t for t in self.tables if t.side not in (adapter.side, None) and t.axis == 0]
        if self.options.lua_target == "initial" or not others or adapter.axis:
            return initial
        own = self._block(
            next(t for t in self.tables if (t.parameter, t.side) == (adapter.name, adapter.side))
        )
        assert adapter.side is not None
        blocks = [self._block(table) for table in others]
        predicted, known = reembed.predict(
            self.witness.retained, self.witness.region, adapter.side, own,
            blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1), self.witness.generator,
        )  # fmt: skip
        return torch.where(known[:, None], predicted, initial)

    def _block(self, table: Table) -> torch.Tensor:
        """The rows of a table's users or items, a view (n, d) with row k for id k."""
        rows = as_rows(dict(self.model.named_parameters())[table.parameter], table.axis)
        return rows[table.offset : table.offset + self.index.sizes[table.side]]

    def _moments(self) -> Moments:
        """The curvature of the downdate."""
        witness, size = self.witness, self.options.lac_batch_size
        kept = (~self.task.data.deleted).nonzero().flatten()

        def draw() -> list[Interaction]:
            return [witness.batch(witness.triples(chosen)) for chosen in kept.split(size)]

        if self.options.lua_curvature == "fisher":
            return fisher(self.model, draw())
        assert self.task.original is not None
        return curvature.second_moments(self.model, self.task.original.optimizer, draw)

    def _objective(self) -> tuple[WitnessObjective, torch.Tensor | None]:
        """What LAC minimises, and the retained interactions it sees (None: those that touch the region)."""
        options, witness = self.options, self.witness
        kind = options.forget_kind
        forget = 0.0 if kind == "auto" or len(witness.retained.gone) == 0 else options.lac_forget
        standing = None
        if forget and kind in ("genuine", "noise"):
            standing = ExpectedStanding(witness, witness.deleted(PAIRS))
        interactions = witness.buffer(options.lac_buffer) if options.lac_buffer else None
        return WitnessObjective(
            ranking=options.lac_ranking,
            forget=forget,
            distill=options.lac_distill,
            drift=options.lac_drift,
            hard_negatives=options.lac_hard_negatives,
            standing=standing,
            stand_ins=kind == "genuine",
            stop=kind == "noise",
            teacher=self._teacher(interactions) if options.lac_distill else None,
        ), interactions

    def _teacher(self, interactions: torch.Tensor | None) -> Callable[[torch.Tensor], torch.Tensor]:
        """Scores at θ₀ by interaction of D. Leaves the adapters detached."""
        chosen = torch.unique(self.witness.interactions() if interactions is None else interactions)
        users, items = (self.index.ids[side][chosen] for side in ("user", "item"))
        self.adapters.detach()
        scores = pair_scores(self.model, self.index.train, users, items)
        return lambda asked: scores[torch.searchsorted(chosen, asked)]

    def _step_report(self) -> Callable[[int], None] | None:
        """What LAC is to call after a step, where somebody wants to see it."""
        watch = self.task.watch
        if watch is None:
            return None

        def after_step(step: int) -> None:
            if step in watch.steps:
                self.adapters.attach()  # not every kind of gradient writes to the model as it goes
                self.trainer.show(self.task, step, self.refits_items)

        return after_step

    def _certificates(self, trace: Trace) -> dict[str, Any]:
        """Rows, rank, drift and its bound, forgetting margin, largest change on retained pairs."""
        adapters = self.adapters.adapters
        found = {
            "rows": {adapter.label: len(adapter.rows) for adapter in adapters},
            "rank": {adapter.label: adapter.a.shape[1] for adapter in adapters},
            "drift": round(self.adapters.drift(), 6),
            "margin": certificates.margin(self.model, self.witness),
            "retained": certificates.retained_change(self.adapters, self.witness),
        }
        lac, weight = trace.summary(), self.options.lac_drift
        if weight and lac and lac["last"] <= lac["first"]:
            found["drift_bound"] = round(certificates.drift_bound(lac["first"], weight), 6)
        directory = self.task.config["output_dir"]
        if self.options.save_adapters and directory:
            self.adapters.save(f"{directory}/adapters", method=self.trainer.name)
        return found
