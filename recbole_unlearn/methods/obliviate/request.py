"""One request to Obliviate while it is worked on: its region, the witness set, the adapters, and the two stages.

:class:`Request` is for models that score pairs of a user and an item. What differs for models that read sequences is
in `window_request.py`: how batches are made, and where neighbours come from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.data import facts_of
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.log import progress_bar
from recbole_unlearn.methods import Outcome, UnlearnTask, UnlearnTrainer
from recbole_unlearn.methods.obliviate import certificates, curvature, downdate, lac, lua, restart
from recbole_unlearn.methods.obliviate.adapters import Adapter, AdapterSet
from recbole_unlearn.methods.obliviate.contamination import spread, started_again
from recbole_unlearn.methods.obliviate.pace import Pace
from recbole_unlearn.methods.obliviate.settings import ObliviateSettings
from recbole_unlearn.rows import (
    PAIRS,
    ExpectedStanding,
    Moments,
    Region,
    RetainedIndex,
    Side,
    Table,
    TrainIndex,
    Witness,
    as_rows,
    find_region,
    find_tables,
    pair_scores,
    with_neighbours,
)
from recbole_unlearn.text import counted

DECAY, MOST = 0.5, 1000  # of neighbours without a new start: share from hop to hop, and how many join a side

BATCH_SIZE = 8192  # interactions in a step of LAC

logger = logging.getLogger(__name__)


def block_of(model: AbstractRecommender, table: Table, index: TrainIndex) -> torch.Tensor:
    """The rows of a table's users or items, a view (n, d) with row k for id k."""
    rows = as_rows(model.get_parameter(table.parameter), table.axis)
    return rows[table.offset : table.offset + index.sizes[table.side]]


def side_tables(
    model: AbstractRecommender, tables: Sequence[Table], index: TrainIndex
) -> dict[Side, torch.Tensor]:
    """All rows of each side that has any (n, d), tables side by side.

    With one table a side they are views of the model's weights, otherwise copies.
    """
    found: dict[Side, torch.Tensor] = {}
    for side in ("user", "item"):
        blocks = [block_of(model, t, index) for t in tables if t.side == side and t.axis == 0]
        if blocks:
            found[side] = blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)
    return found


def paired_tables(
    model: AbstractRecommender, tables: Sequence[Table], index: TrainIndex
) -> dict[Side, torch.Tensor]:
    """As :func:`side_tables`; nothing unless both sides have rows."""
    found = side_tables(model, tables, index)
    return found if len(found) == 2 else {}


class Request:
    """A request to a model of pairs."""

    others: ClassVar[str] = "others follow"  # rows that are moved and not calibrated, in words

    def __init__(self, trainer: UnlearnTrainer, task: UnlearnTask) -> None:
        self.trainer, self.task = trainer, task
        self.model: AbstractRecommender = trainer.model
        self.options: ObliviateSettings = task.settings
        self.index = task.index
        self.tables = find_tables(self.model, task.data.full.train)
        if not self.tables:
            raise UnlearnError(
                f"{task.config['model']} has no weights that belong to users or items, which obliviate works on. "
                "Use --unlearn=retrain."
            )
        self.read: str | None = None  # what the curvature was read from
        self.starts_again = self.options.lua_target != "none"
        self.certain, self.witness = self._witness()
        self.adapters = AdapterSet(self.model, self._adapters(self.witness.region))

    def run(self) -> Outcome:
        """LUA, then LAC."""
        pace = Pace(None if self.task.original is None else self.task.original.seconds)
        energy = self._downdate()
        objective, interactions = self._objective()
        self.adapters.attach()
        chosen = self.witness.interactions() if interactions is None else interactions
        schedule = self._schedule(len(chosen) if interactions is None else None)
        shown = bool(self.task.config["show_progress"])
        with progress_bar(f"LAC {self.task.label}", schedule.steps, shown) as bar:
            report = self._step_report()
            pace.steps_begin()
            after = report or (lambda step: pace.after(step, schedule.steps))
            trace = lac.calibrate(self.adapters, self.witness, objective, schedule, chosen, bar, after)
            if (
                report is not None
            ):  # a small request has fewer steps; the model is then the same after all later ones
                for step in range(max(1, schedule.steps), self.options.lac_steps):
                    report(step)
        # Without figures of the request: those are in the certificates, which a result of few users leaves out.
        logger.info("LAC: %s of %d directions a row, on retained interactions.", *self._said(schedule))
        level = {} if objective.standing is None else {"level": round(objective.standing.level, 6)}
        scale = self.options.lua_scale
        return Outcome(
            {
                "curvature": self.read,
                "energy": energy,
                **level,
                "lua_scale": scale,
                "lac": trace.summary(),
            },
            {
                "loss": [(step + 1, round(value, 6)) for step, value in enumerate(trace.values)],
                "demotion": [(step, round(value, 6)) for step, value in trace.demotion],
            },
            refits_orphan_items=self.starts_again,
            refitted_items=self.witness.region["item"].ids if self.starts_again else None,
            certify=lambda: self._certificates(trace),
        )

    def _said(self, schedule: lac.Schedule) -> tuple[str, int]:
        """What LAC did, for the log."""
        rank = max((adapter.a.shape[1] for adapter in self.adapters.trained), default=0)
        return f"{schedule.steps} steps", rank

    def _schedule(self, interactions: int | None) -> lac.Schedule:
        """How long and how fast LAC goes; shorter where there are few ``interactions``."""
        options = self.options
        rate = options.lac_learning_rate
        schedule = lac.Schedule(
            options.lac_steps,
            lac.rate_of(self.task.config["learning_rate"]) if rate is None else rate,
            self._batch_size() if options.lac_batch_size is None else options.lac_batch_size,
            options.lac_schedule,
            options.lac_train_b,
            options.lac_horizon,
        )
        return schedule if interactions is None else schedule.within(interactions)

    def _batch_size(self) -> int:
        """Interactions in a step of LAC, unless somebody says how many."""
        return BATCH_SIZE

    def _witness(self) -> tuple[Region, Witness]:
        """The region that S itself touches, with the shares it has certainly lost, and the witness set.

        What is calibrated goes by what rows may have lost, where that is not known exactly (`data/item_counts.py`).
        """
        options, data = self.options, self.task.data
        users, items = (data.forget.inter_feat[f] for f in (data.forget.uid_field, data.forget.iid_field))
        retained = RetainedIndex(self.index, users, items, data.deleted, data.numbers)
        touched = region = find_region(self.index, users, items, data.lost)
        certain = find_region(self.index, users, items, data.lost_at_least)
        if self.starts_again and any(table.side == "user" for table in self.tables):
            region = started_again(touched)  # otherwise all that S left behind is in the items
        elif options.lua_hops and not self.starts_again:
            region = with_neighbours(region, retained, options.lua_hops, DECAY, 0.0, MOST)
        generator = torch.Generator().manual_seed(self.task.config["seed"])
        config = self.task.config
        facts = facts_of(data.retain.train, config["NEG_PREFIX"])
        return certain, Witness(config, retained, region, generator, options.lac_negatives, facts)

    def _adapters(self, region: Region) -> list[Adapter]:
        """Adapters of the region's rows that change nothing yet."""
        named = dict(self.model.named_parameters())
        adapters = []
        for table in self.tables:
            rows = region[table.side].ids + table.offset
            if len(rows) == 0:
                continue
            weights = as_rows(named[table.parameter], table.axis)
            rows = rows.to(weights.device)
            base = weights[rows].clone()
            eye = torch.eye(base.shape[1], dtype=base.dtype, device=base.device)
            adapters.append(
                Adapter(table.parameter, rows, torch.zeros_like(base), eye, base, table.axis, table.side)
            )
        return adapters

    def _downdate(self) -> dict[str, float]:
        """LUA: put new start and downdate into the adapters; returns the energy that the rank keeps, by adapter."""
        options, adapters = self.options, self.adapters.trained
        steps = [torch.zeros_like(adapter.base) for adapter in adapters]
        if options.lua_scale and adapters:  # at θ₀, before anything is moved
            limit = float("inf") if options.lua_limit is None else options.lua_limit
            found, reach = self._directions(self._moments())
            scale = options.lua_scale / self.task.config["train_batch_size"]
            steps = downdate.steps(self.adapters, self.witness.region, found, scale, limit, reach)
        if self.starts_again:
            self._restart()
        lows = lua.project_all(steps, options.rank, options.lua_shared)
        for adapter, low in zip(adapters, lows, strict=True):
            adapter.a, adapter.b = low.a, low.b
        energy = {a.label: round(low.energy, 6) for a, low in zip(adapters, lows, strict=True)}
        if options.lua_scale and energy:
            least = min(energy.values())
            logger.info(
                "LUA: the downdate at rank %s keeps %.0f %% of its energy.", options.rank, 100 * least
            )
        return energy

    def _directions(self, moments: Moments) -> tuple[list[torch.Tensor], float]:
        """The downdate of every trained adapter's rows (n, d) up to its scale, and e, their part of a score."""
        return downdate.directions(self.adapters, self.witness, moments)

    def _restart(self) -> None:
        """Give contaminated rows their new start: those of the adapters there, others in adapters of their own."""
        maps = self.task.prepared.maps
        paired = paired_tables(self.model, self.tables, self.index) if maps is not None else {}
        if not paired:
            self._from_initial(self.tables)
            return
        region = spread(self.certain, self.witness.retained, self.options.lua_reach)
        moved = restart.restart(
            paired, maps, self.certain, region, self.witness.retained, self.options.lua_rounds
        )
        self._move(region, moved)

    def _move(self, region: Region, moved: Mapping[Side, torch.Tensor]) -> None:
        """Put the new start of the rows of ``region``, by side (n, d), into adapters."""
        self._from_initial([table for table in self.tables if table.axis])
        trained = {(a.name, a.side): a for a in self.adapters.trained}
        column: dict[Side, int] = {"user": 0, "item": 0}
        for table in self.tables:
            if table.axis:
                continue
            side, width = table.side, block_of(self.model, table, self.index).shape[1]
            change = moved[side][:, column[side] : column[side] + width]
            column[side] += width
            own = self.witness.region[side].contains(region[side].ids)
            if (table.parameter, side) in trained:
                trained[table.parameter, side].shift = change[own.to(change.device)]
            if not own.all():
                self.adapters.adapters.append(self._follower(table, region[side].ids[~own], change, ~own))
        logger.info(
            "LUA: a new start of the request's rows from retained neighbours, in %s%s.",
            counted(self.options.lua_rounds, "round"),
            "" if len(self.adapters.adapters) == len(trained) else f"; {self.others}",
        )

    def _follower(
        self, table: Table, ids: torch.Tensor, change: torch.Tensor, which: torch.Tensor
    ) -> Adapter:
        """An adapter of rows that move with their neighbours and are not calibrated."""
        weights = as_rows(self.model.get_parameter(table.parameter), table.axis)
        rows = (ids + table.offset).to(weights.device)
        base = weights[rows].clone()
        none = base.new_zeros(len(rows), 0), base.new_zeros(base.shape[1], 0)
        shift = change[which.to(change.device)]
        return Adapter(table.parameter, rows, *none, base, table.axis, table.side, shift, trained=False)

    def _from_initial(self, tables: Sequence[Table]) -> None:
        """Give touched rows their initial values: where one side alone has rows, nothing tells where they belong."""
        chosen = {(table.parameter, table.side) for table in tables}
        for adapter in self.adapters.trained:
            if (adapter.name, adapter.side) in chosen:
                initial = as_rows(self.task.initial[adapter.name], adapter.axis)[adapter.rows]
                adapter.shift = initial - adapter.base

    def _moments(self) -> Moments:
        """The curvature of the downdate: the optimizer's, or Fisher information of the retained interactions."""
        found = self.task.prepared.curvature
        if found is None:
            parts = self._retained().split(self.task.config["train_batch_size"])
            batches = [self.witness.batch(self.witness.triples(part)) for part in parts]
            found = curvature.from_retained(self.model, batches)
        self.read = found.read
        return found.moments

    def _retained(self) -> torch.Tensor:
        """The numbers of all retained interactions that the loss counts."""
        kept = (~self.task.data.deleted).nonzero().flatten()
        return kept[self.witness.units(self.index.ids["user"][kept])]

    def _objective(self) -> tuple[lac.WitnessObjective, torch.Tensor | None]:
        """What LAC minimises, and the retained interactions it sees (None: those that touch the region)."""
        options, witness = self.options, self.witness
        kind = options.forget_kind
        forget = 0.0 if kind == "auto" or len(witness.retained.gone) == 0 else options.lac_forget
        standing = None
        if forget and kind in ("genuine", "noise"):
            standing = ExpectedStanding(witness, witness.deleted(PAIRS))
        interactions = witness.buffer(options.lac_buffer) if options.lac_buffer else None
        return lac.WitnessObjective(
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
                self.trainer.show(self.task, step, self.starts_again)

        return after_step

    def _deleted_scores(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores of deleted pairs, and of negatives of the same users."""
        deleted = self.witness.deleted(certificates.PAIRS)
        train = self.index.train
        return (
            pair_scores(self.model, train, deleted.users, deleted.items),
            pair_scores(self.model, train, deleted.users, deleted.negatives),
        )

    def _retained_scores(self) -> Callable[[], torch.Tensor]:
        """What gives the scores of some retained pairs by the model as it is."""
        size = self.witness.retained.size
        looked_at = (
            self.witness.buffer(certificates.PAIRS / size) if size else torch.empty(0, dtype=torch.long)
        )
        users, items = (self.index.ids[side][looked_at] for side in ("user", "item"))
        return lambda: pair_scores(self.model, self.index.train, users, items)

    def _certificates(self, trace: lac.Trace) -> dict[str, Any]:
        """Rows, rank, drift and its bound, forgetting margin, largest change on retained pairs."""
        adapters = self.adapters.adapters
        found = {
            "rows": {adapter.label: len(adapter.rows) for adapter in adapters},
            "rank": {adapter.label: adapter.a.shape[1] for adapter in self.adapters.trained},
            "drift": round(self.adapters.drift(), 6),
            "margin": certificates.margin(*self._deleted_scores()),
            "retained": certificates.retained_change(self.adapters, self._retained_scores()),
        }
        went, weight = trace.summary(), self.options.lac_drift
        if weight and went and went["last"] <= went["first"]:
            found["drift_bound"] = round(certificates.drift_bound(went["first"], weight), 6)
        directory = self.task.config["output_dir"]
        if self.options.save_adapters and directory:
            self.adapters.save(f"{directory}/adapters", method=self.trainer.name)
        return found
