"""Obliviate: LUA takes back what the deleted rows did to the rows of their users and items, LAC fits those again.

Everything outside the region keeps its weights bit for bit. See `recbole_unlearn/obliviate/` for the stages and
docs/method.md for what is from the paper and what is not. The presets are the same method with other values.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import torch
from recbole.utils import ModelType, set_color
from tqdm import tqdm

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.index import Retained
from recbole_unlearn.methods.registry import register
from recbole_unlearn.obliviate import certificates, curvature, lua, newton, reembed
from recbole_unlearn.obliviate.adapters import Adapter, AdapterSet
from recbole_unlearn.obliviate.lac import OPTIMIZERS, SCHEDULES, Objective, Plan, calibrate
from recbole_unlearn.obliviate.level import ExpectedStanding
from recbole_unlearn.obliviate.region import Region, find_region, with_neighbours
from recbole_unlearn.obliviate.witness import Witness
from recbole_unlearn.settings import setting
from recbole_unlearn.tables import Table, as_rows, find_tables
from recbole_unlearn.trainer import IndexedTrainer, UnlearnTask

STANDING_PAIRS = 8192  # deleted pairs whose standing is looked up


@dataclasses.dataclass(frozen=True)
class ObliviateSettings:
    """Settings of Obliviate."""

    forget_kind: str = setting(
        "What the deleted rows are: auto needs not know; genuine preferences get stand-ins; noise is pushed down "
        "to the level of never-seen items; hard is pushed down without end (the paper's Figure 3).",
        choices=("auto", "genuine", "noise", "hard"),
    )
    lua_threshold: float = setting(
        "Items that lose at least this share of their rows are changed, as is every user with a deleted row.",
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
        "Rows of the region start again from what the model gives others with their retained neighbours, from their "
        "initial value, or (none) from where they are.",
        choices=("neighbours", "initial", "none"),
    )
    lua_scale: Any = setting(
        "Scale of the Newton downdate: a number, 'auto' (a line search on the witness set), or 0 for none."
    )
    lua_draws: int = setting("Draws of negatives over which the deletion gradient is averaged.", low=1)
    lua_curvature: str = setting(
        "Curvature: the optimizer's second moments where it has them, or Fisher information.",
        choices=("optimizer", "fisher"),
    )
    rank: Any = setting("Rank of the adapters: a number, 'auto' (by lua_energy), or 'full' rows.")
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
    lac_batch_size: int = setting("Rows in a step.", low=1)
    lac_train_b: bool = setting("Train B as well as A, as the paper prints it.")
    lac_buffer: float = setting(
        "Retained rows to calibrate on, as a share of all; 0 for those that touch the region.",
        low=0.0,
        high=1.0,
    )
    lac_negatives: float = setting(
        "How often the region's items are negatives, relative to training.", low=0.0
    )
    lac_rank: float = setting("Weight of the model's own loss on retained rows.", low=0.0)
    lac_forget: float = setting("Weight of the loss on deleted rows, unless forget_kind is auto.", low=0.0)
    lac_hard_negatives: int = setting(
        "Candidates of which a deleted row gets the highest-scored as negative; 1 is uniform.", low=1
    )
    lac_distill: float = setting("Weight of distillation: retained pairs keep their scores.", low=0.0)
    lac_drift: float = setting("Weight of the squared change of the weights.", low=0.0)
    save_adapters: bool = setting(
        "Also write the adapters to OUTPUT_DIR/adapters. They tell who asked, and bring the original back."
    )


@register(
    "obliviate",
    "Downdate the rows a request touches (LUA), then calibrate them on retained rows (LAC).",
    ObliviateSettings,
)
class Obliviate(IndexedTrainer):
    """W' = W + A Bᵀ on the rows of the region."""

    def unlearn(self, task: UnlearnTask) -> None:
        r"""The two stages, on ``self.model`` (built on D\S, with the original's weights)."""
        options: ObliviateSettings = task.settings
        self.check(options)
        if task.config["MODEL_TYPE"] == ModelType.TRADITIONAL:
            self._fit_anew(task)
            return
        self.tables = tables = find_tables(self.model, task.data.full.train)
        if not tables and not options.lua_layers:
            raise UnlearnError(
                f"{task.config['model']} has no weights that belong to users or items, which obliviate works on. "
                "Use --unlearn=retrain."
            )
        self.witness = self._witness(task, tables)
        self.adapters = self._adapters(task, tables)
        scale = self._downdate(task)
        objective, rows = self._objective(task)
        self.adapters.attach()
        plan = Plan(
            options.lac_steps, options.lac_learning_rate, options.lac_batch_size,
            options.lac_optimizer, options.lac_schedule, options.lac_train_b, options.lac_horizon,
        )  # fmt: skip
        # Items that lost all their rows started again from retained data, and were negatives of retained rows.
        self.refits_orphan_items = options.rank == "full" and options.lua_target != "none"
        with self._bar_for(plan.steps) as bar:
            trace = calibrate(
                self.adapters, self.witness, objective, plan, rows, bar, self._step_report(task)
            )
        self.certificates |= {"lua_scale": scale, "lac": _summary(trace.values)}
        self.curves = {
            "loss": [(step + 1, round(value, 6)) for step, value in enumerate(trace.values)],
            "demotion": [(step, round(value, 6)) for step, value in trace.demotion],
        }
        logging.getLogger().info(
            "Obliviate changed %d user and %d item rows, %d steps of calibration.",
            len(self.witness.region["user"]), len(self.witness.region["item"]), len(trace.values),
        )  # fmt: skip

    @classmethod
    def check(cls, settings: ObliviateSettings) -> None:
        """As the base class; what its limits cannot say."""
        _check(settings)

    @classmethod
    def steps(cls, settings: ObliviateSettings) -> int:
        """The steps of LAC."""
        return settings.lac_steps

    @classmethod
    def settings_after(cls, settings: ObliviateSettings, step: int) -> dict[str, Any]:
        """The first ``step`` steps of the same calibration."""
        return {"lac_steps": step, "lac_horizon": settings.lac_horizon or settings.lac_steps}

    def _step_report(self, task: UnlearnTask) -> Callable[[int], None] | None:
        """What LAC is to call after a step, where somebody wants to see it."""
        if task.watch is None:
            return None

        def after_step(step: int) -> None:
            if step in task.watch.steps:
                self.adapters.attach()  # not every kind of gradient writes to the model as it goes
                self.show(task, step)

        return after_step

    def _fit_anew(self, task: UnlearnTask) -> None:
        """A model that is a formula of its data (EASE, ItemKNN, Pop) is unlearned by that formula, exactly."""
        logging.getLogger().info(
            "%s is a closed form of its training data: on what is retained it is exact, nothing to approximate.",
            task.config["model"],
        )
        trained = task.train(task.config, task.data.retain, task.label)
        trained.load_into(self.model)
        self.seconds, self.from_cache = trained.seconds, trained.from_cache
        self.certificates["exact"] = True

    def certify(self, task: UnlearnTask) -> None:
        """Kept energy, drift and its bound, forgetting margin, largest change on retained pairs."""
        super().certify(task)
        if "exact" in self.certificates:
            return
        drift = self.adapters.drift()
        self.certificates |= {
            "rows": {_label(adapter): len(adapter.rows) for adapter in self.adapters.adapters},
            "rank": {_label(adapter): adapter.a.shape[1] for adapter in self.adapters.adapters},
            "drift": round(drift, 6),
            "margin": certificates.margin(self.model, self.witness),
            "retained": certificates.retained_change(self.adapters, self.witness),
        }
        lac, weight = self.certificates["lac"], task.settings.lac_drift
        if weight and lac and lac["last"] <= lac["first"]:
            self.certificates["drift_bound"] = round(certificates.drift_bound(lac["first"], weight), 6)
        if task.settings.save_adapters and task.config["output_dir"]:
            self.adapters.save(f"{task.config['output_dir']}/adapters", method=self.name)
        del self.adapters, self.witness, self.touched  # they hold the original's rows

    def _witness(self, task: UnlearnTask, tables: list[Table]) -> Witness:
        """The region of the request and the rows that tell of it."""
        options: ObliviateSettings = task.settings
        forget = task.data.forget
        users, items = forget.inter_feat[forget.uid_field], forget.inter_feat[forget.iid_field]
        retained = Retained(self.index, users, items, task.data.deleted)
        # Where users have no rows of their own, all that is left of them is in the items.
        threshold = options.lua_threshold if any(t.side == "user" for t in tables) else 0.0
        self.touched = region = find_region(self.index, users, items, threshold)
        if options.lua_hops:
            region = with_neighbours(
                region, retained, options.lua_hops, options.lua_decay, threshold, options.lua_cap
            )
        generator = torch.Generator().manual_seed(task.config["seed"])
        return Witness(task.config, retained, region, generator, options.lac_negatives)

    def _adapters(self, task: UnlearnTask, tables: list[Table]) -> AdapterSet:
        """Adapters of the region's rows that change nothing yet."""
        region: Region = self.witness.region
        named = dict(self.model.named_parameters())
        places = [(t.parameter, region[t.side].ids + t.offset, t.axis, t.side) for t in tables]
        if task.settings.lua_layers:
            taken = {table.parameter for table in tables}
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

    def _downdate(self, task: UnlearnTask) -> float:
        """LUA: put the downdate of the region's rows into the adapters, at the rank asked for; returns η."""
        options: ObliviateSettings = task.settings
        deltas = self._restarts(task)
        scale = 0.0
        if options.lua_scale != 0 and self.adapters.adapters:
            moments = self._moments(task)
            steps = newton.directions(
                self.adapters, self.witness, task.data, moments, options.lua_draws, options.lac_batch_size
            )
            scale = options.lua_scale
            if scale == "auto":
                scale = newton.search(self.adapters, self.witness, steps, options.lac_batch_size)
            deltas = [delta + scale * step for delta, step in zip(deltas, steps, strict=True)]
        lows = lua.project_all(deltas, options.rank, options.lua_energy, options.lua_shared)
        for adapter, low in zip(self.adapters.adapters, lows, strict=True):
            adapter.a, adapter.b = low.a, low.b
        self.certificates["energy"] = {
            _label(adapter): round(low.energy, 6)
            for adapter, low in zip(self.adapters.adapters, lows, strict=True)
        }
        return float(scale)

    def _restarts(self, task: UnlearnTask) -> list[torch.Tensor]:
        """The way of every adapter's rows to where they start again (n, d): items first, they tell of users."""
        deltas = [torch.zeros_like(adapter.base) for adapter in self.adapters.adapters]
        for side in ("item", "user") if task.settings.lua_target != "none" else ():
            for k, adapter in enumerate(self.adapters.adapters):
                if adapter.side == side:
                    own = self.touched[side].contains(self.witness.region[side].ids)  # not its neighbours
                    own = own.to(adapter.base.device)[:, None]
                    adapter.a = deltas[k] = torch.where(own, self._target(task, adapter) - adapter.base, 0.0)
            self.adapters.attach()
        return deltas

    def _target(self, task: UnlearnTask, adapter: Adapter) -> torch.Tensor:
        """Where the rows of an adapter would be without S (n, d)."""
        initial = as_rows(task.initial[adapter.name], adapter.axis)[adapter.rows]
        others = [t for t in self.tables if t.side not in (adapter.side, None) and t.axis == 0]
        if task.settings.lua_target == "initial" or not others or adapter.axis:
            return initial
        region, retained = self.witness.region, self.witness.retained
        own = self._block(
            next(t for t in self.tables if (t.parameter, t.side) == (adapter.name, adapter.side))
        )
        blocks = [self._block(table) for table in others]
        told, known = reembed.predict(
            retained, region, adapter.side, own, blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1),
            self.witness.generator,
        )  # fmt: skip
        return torch.where(known[:, None], told, initial)

    def _block(self, table: Table) -> torch.Tensor:
        """The rows of a table's users or items, a view (n, d) with row k for id k."""
        rows = as_rows(dict(self.model.named_parameters())[table.parameter], table.axis)
        return rows[table.offset : table.offset + self.index.sizes[table.side]]

    def _moments(self, task: UnlearnTask) -> curvature.Moments:
        """The curvature of the downdate."""
        witness, size = self.witness, task.settings.lac_batch_size
        kept = (~task.data.deleted).nonzero().flatten()
        batches = (witness.batch(witness.triples(rows)) for rows in kept.split(size))
        if task.settings.lua_curvature == "fisher":
            return curvature.fisher(self.model, batches)
        return curvature.second_moments(self.model, task.original.optimizer, batches)

    def _objective(self, task: UnlearnTask) -> tuple[Objective, torch.Tensor | None]:
        """What LAC minimises, and the retained rows it sees (None: those that touch the region)."""
        options: ObliviateSettings = task.settings
        kind = options.forget_kind
        forget = 0.0 if kind == "auto" or len(self.witness.retained.gone) == 0 else options.lac_forget
        standing = None
        if forget and kind in ("genuine", "noise"):
            standing = ExpectedStanding(self.witness, self.witness.deleted(STANDING_PAIRS))
            logging.getLogger().info("Level of never-seen items: a demotion rate of %.3f.", standing.level)
            self.certificates["level"] = round(standing.level, 6)
        rows = self.witness.buffer(options.lac_buffer) if options.lac_buffer else None
        return Objective(
            rank=options.lac_rank,
            forget=forget,
            distill=options.lac_distill,
            drift=options.lac_drift,
            hard_negatives=options.lac_hard_negatives,
            standing=standing,
            stand_ins=kind == "genuine",
            stop=kind == "noise",
            teacher=self._teacher(rows) if options.lac_distill else None,
        ), rows

    def _teacher(self, rows: torch.Tensor | None) -> Any:
        """Scores at θ₀ by row of D. Leaves the adapters detached."""
        rows = self.witness.rows() if rows is None else rows
        rows = torch.unique(rows)
        users, items = (self.index.ids[side][rows] for side in ("user", "item"))
        self.adapters.detach()
        scores = certificates.pair_scores(self.model, self.index.train, users, items)
        return lambda asked: scores[torch.searchsorted(rows, asked)]

    def _bar_for(self, steps: int) -> tqdm:
        return tqdm(
            total=steps,
            ncols=100,
            desc=set_color(f"LAC {self.label}", "pink"),
            disable=not self.config["show_progress"],
        )


def _label(adapter: Adapter) -> str:
    """A name for an adapter: its parameter, and the side where one parameter serves both."""
    return (
        adapter.name
        if adapter.side is None or adapter.side in adapter.name
        else f"{adapter.name} ({adapter.side})"
    )


def _summary(values: list[float]) -> dict[str, float]:
    """The objective at the first and over the last steps."""
    if not values:
        return {}
    last = values[-10:]
    return {"first": round(values[0], 6), "last": round(sum(last) / len(last), 6), "steps": len(values)}


def _check(options: ObliviateSettings) -> None:
    scale, rank = options.lua_scale, options.rank
    if scale != "auto" and (isinstance(scale, bool) or not isinstance(scale, (int, float))):
        raise UnlearnError(f"lua_scale={scale!r} is not valid: a number or 'auto'.")
    if rank not in ("full", "auto") and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 1):
        raise UnlearnError(f"rank={rank!r} is not valid: a positive number, 'auto' or 'full'.")
    if options.lac_horizon is not None and options.lac_horizon < options.lac_steps:
        raise UnlearnError(
            f"lac_horizon={options.lac_horizon} is not valid: at least lac_steps, which is {options.lac_steps}."
        )
