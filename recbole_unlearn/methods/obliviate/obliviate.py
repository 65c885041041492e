r"""Obliviate: rows that a request touches start again without it (LUA) and are fitted to what is retained (LAC).

    W' = W + R + A Bᵀ    on contaminated rows; every other weight stays the same bit for bit

This file is the method, from top to bottom. S is the forget set, D\S the retain set, θ₀ the original.

**The region**: the users and items of S with their deleted shares ρ (`rows/region.py`). Rows that lost enough of
their interactions get an adapter (`adapters.py`); rows near them only follow the new start.

**LUA, the new start R** (`new_start.py`): each contaminated row moves to where its retained neighbours put it.

**LUA, the downdate.** With J the training objective and g_S the gradient of the loss on S at θ₀, stationarity of J −
J_S gives −g_S + HΔ = 0, so Δ = **+**H⁻¹g_S: up the deleted loss. (The paper prints a minus in its theorem and in LUA;
that learns S a second time.) The curvature is √v̂ + ε, with the second moments v̂ of the optimizer that trained the
model (`curvature.py`):

    Δ = η · g_S / (√v̂ + ε),    η = c / batch size,    c = `lua_scale`

g_S is a sum over S, √v̂ the size of a batch *mean*, and one epoch of Adam moved a row by about
lr · (g_S / batch) / √v̂ because of S. So c = K · lr undoes K epochs of these interactions.

**LUA, the limit.** At a model that has memorised S the gradient is nearly zero, at one that never saw S it is large:
the step is smallest where there is most to undo. So it gives the direction, and a row goes at most

    ‖Δ_row‖ ≤ min(κ (ρ / e)², 0.2) · ‖row‖,    κ = `lua_limit`

e is the share of a score that the pair's own rows θ make up: s = ½ Σ θ·∂s/∂θ for a dot product of two rows, so e = 1
for BPR. A row of LightGCN is one layer of several in a score, so it has to go further for the same change.

**LUA, the rank.** The downdate is projected to rank r, A Bᵀ, by a truncated SVD; B is shared by tables of one width.

**LAC** trains A with Adam, everything else frozen:

    minimise  own training loss on R  +  λ · mean over S of −log σ(s(u, i⁻) − s(u, i⁺))

λ = `lac_forget` is 0 by default. R are the retained interactions of the region's users and items
(`rows/batches.py`). B is fixed, so the rows are linear in A. The learning rate falls to zero, which matters more than
the loss; it starts at a multiple of the training's rate, which says how large a step the model bears.

**Bystanders** (`bystanders.py`): a large request is accepted only as far as people who did not ask lose nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType
from tqdm import tqdm

from recbole_unlearn import rows
from recbole_unlearn.data import SequenceSplits, facts_of
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.log import progress_bar
from recbole_unlearn.methods import Outcome, UnlearnTask, UnlearnTrainer, method
from recbole_unlearn.methods.downdate import closed_form
from recbole_unlearn.methods.obliviate import curvature, new_start
from recbole_unlearn.methods.obliviate.adapters import Adapter, AdapterSet, LowRank, project_shared
from recbole_unlearn.methods.obliviate.bystanders import Bystanders
from recbole_unlearn.methods.obliviate.fast_gradients import RowGradients, row_gradients
from recbole_unlearn.rows import Region, Side, Witness, as_rows, find_region, find_tables, reverse_ranking_loss
from recbole_unlearn.settings import UnlearnConfig, setting

EPSILON = 1e-8
BATCH = 65536  # deleted interactions whose gradient is computed at once
DRAWS = 4  # of negatives, over which the gradient is averaged where S is small
LARGEST = 0.2  # of a row's length: the downdate's limit
LEAST_REACH = 0.1  # lower bound of e
LOOKED_AT = 32  # deleted pairs that e is the mean of; with many, rows of one are neighbours of another
BATCH_SIZE = 8192  # interactions in a step of LAC
RATE, HIGHEST_RATE = 12.0, 0.06  # of LAC: times the training's learning rate, and at most
PASSES = 16  # of LAC over the region's interactions, at most
CHECK_EVERY = 10  # steps between measurements of how far deleted items have come down
CERTIFIED = 8192  # pairs that certificates are computed from
WARN_AFTER, WARN_SECONDS = 3, 10.0  # steps after which the time is estimated; shorter requests do not matter

LARGE = 0.02  # share of the interactions from which on a request is checked on people who did not ask
LESS = (0.75, 0.5, 0.25)  # what is tried of the changes that harm them
TOO_LARGE = (
    "This request is more than obliviate can carry: people who did not ask would lose by it. Of the changes to items "
    "and to rows of other users %.0f %% were made. Use --unlearn=rebuild, which is exact."
)
logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ObliviateSettings:
    """Settings of Obliviate."""

    lua_target: str = setting("New start of contaminated rows, or none.", choices=("neighbours", "none"))
    lua_scale: float = setting(
        "Scale c of the downdate by the optimizer's state, c / batch size times the gradient over its curvature: "
        "undoes c / learning rate epochs of the deleted interactions. 0 for none.", low=0.0,
    )  # fmt: skip
    lua_limit: float | None = setting(
        "Limit of a row's downdate, as a share of its length, when all its interactions are deleted; less by the "
        "square of the deleted share. Empty for no limit below .2.", low=0.0,
    )  # fmt: skip
    rank: int | str = setting(
        "Rank of the adapters: the directions that the downdate keeps and the calibration has. A number, or 'full'.",
        low=1, words=("full",),
    )  # fmt: skip
    lac_steps: int = setting("Steps of LAC; fewer for a small request: 16 passes over it at most.", low=0)
    lac_learning_rate: float | None = setting(
        "Adam's learning rate at the first step; when empty, twelve times the training's, at most .06; for "
        "sequential models four times.", low=0.0,
    )  # fmt: skip
    lac_batch_size: int | None = setting(
        "Interactions in a step; when empty 8192, and for a sequential model as many windows as make nine tenths of "
        "all over the steps, at least 512.", low=1,
    )  # fmt: skip
    lac_forget: float = setting("Weight of a loss that pushes deleted items below others: for known noise.", low=0)


class Prepared(NamedTuple):
    """Prepared before any request to a model: the map of new starts, and the curvature that its optimizer left."""

    maps: new_start.Maps | None
    curvature: curvature.Curvature | None


@method(
    "obliviate",
    "New start of the rows a request touches and a downdate by Adam's state at a low rank (LUA), then a calibration "
    "on retained interactions (LAC).",
    ObliviateSettings,
    models="differentiable, with rows of users or items; closed forms (EASE), exactly",
    recommended="for one person at a time, on a live model",
)
class Obliviate(UnlearnTrainer):
    """W' = W + R + A Bᵀ on contaminated rows."""

    needs_index = True
    on_sequences = True
    on_knowledge = True
    fits_closed_forms = True
    forgets_more: ClassVar[Sequence[str]] = ("raise lua_limit", "raise lac_forget if the deleted data is noise")
    forgets_less: ClassVar[Sequence[str]] = ("lower lua_limit",)
    of_pairs: ClassVar[Sequence[str]] = ("lac_forget",)

    @classmethod
    def check(cls, settings: Any, config: UnlearnConfig) -> None:
        """Refuse settings that a sequential model does not read."""
        if config["MODEL_TYPE"] == ModelType.SEQUENTIAL:
            usual = config.usual_values(cls.name)
            turned = ", ".join(key for key in cls.of_pairs if getattr(settings, key) != usual[key])
            if turned:
                raise UnlearnError(
                    f"{turned}: a setting of models that score pairs of a user and an item, and a sequential model "
                    "scores items after a history. Leave it out."
                )

    def request_class(self, task: UnlearnTask) -> type[Request]:
        """The class of a request, by the kind of data."""
        from recbole_unlearn.methods.obliviate.windows import WindowRequest  # derived from Request, below

        return WindowRequest if isinstance(task.data.full, SequenceSplits) else Request

    def prepare(self, task: UnlearnTask) -> Prepared:
        """The map of new starts and the curvature, both at the original."""
        maps = state = None
        if task.config["MODEL_TYPE"] == ModelType.TRADITIONAL:
            return Prepared(None, None)
        if task.settings.lua_target != "none":
            tables = new_start.joined_tables(self.model, find_tables(self.model, task.data.full.train), task.index)
            generator = torch.Generator().manual_seed(task.config["seed"])
            maps = self.request_class(task).learn_maps(tables, task, generator)
        if task.settings.lua_scale and task.original is not None:
            state = curvature.read_state(self.model, task.original.optimizer, task.original.epoch)
        return Prepared(maps, state)

    def unlearn(self, task: UnlearnTask) -> Outcome:
        r"""LUA and LAC, on ``self.model`` (built on D\S, with the original's weights)."""
        if task.config["MODEL_TYPE"] == ModelType.TRADITIONAL:
            return closed_form(self, task)
        features = self.reset_features(task)  # first: no row is fitted next to a feature row that only S taught
        outcome = self.request_class(task)(self, task).run()
        return dataclasses.replace(outcome, earlier=[*features, *(outcome.earlier or [])])


class Request:
    """One request to a model that scores pairs; `windows.py` and `paper.py` have subclasses."""

    low_rank: ClassVar[Callable[..., list[LowRank]]] = staticmethod(project_shared)
    rounds: ClassVar[int] = 8  # of the new start, at most
    region_negatives: ClassVar[float] = 1.0  # how often the region's items are negatives, relative to training

    def __init__(self, trainer: UnlearnTrainer, task: UnlearnTask) -> None:
        self.trainer, self.task, self.options = trainer, task, task.settings
        self.model: AbstractRecommender = trainer.model
        self.index, data = task.index, task.data
        self.tables = find_tables(self.model, data.full.train)
        if not self.tables:
            raise UnlearnError(
                f"{task.config['model']} has no weights that belong to users or items, which obliviate works on. "
                "Use --unlearn=retrain."
            )
        self.starts_again = self.options.lua_target != "none"
        users, items = (data.forget.inter_feat[f] for f in (data.forget.uid_field, data.forget.iid_field))
        self.retained = rows.RetainedIndex(self.index, data.deleted, data.numbers)
        # Shares may be known only within limits (`data/item_counts.py`): rows are calibrated by what they may have
        # lost, and start again by what they certainly lost.
        touched = find_region(self.index, users, items, data.lost)
        self.certain = find_region(self.index, users, items, data.lost_at_least)
        generator = torch.Generator().manual_seed(task.config["seed"])
        self.witness = self.make_witness(self.calibrated(touched), generator)
        self.adapters = AdapterSet.on_region(self.model, self.tables, self.witness.region)
        self.new_start: new_start.NewStart | None = None
        large = len(self.retained.asked) > LARGE * self.retained.size  # a smaller one moves too little for harm
        self.bystanders = Bystanders(trainer, task, self.retained) if large and self.starts_again else None

    @staticmethod
    def learn_maps(tables: new_start.Tables, task: UnlearnTask, generator: torch.Generator) -> new_start.Maps | None:
        """The map from neighbours to rows; None where only one side has rows, or they are too few."""
        return new_start.learn_pairs(tables, task.index, generator) if len(tables) == 2 else None

    def calibrated(self, touched: Region) -> Region:
        """The region, rows with an adapter. Of pairs without rows of users, all items: they have all memory of S."""
        some = isinstance(self.task.data.full, SequenceSplits) or any(table.side == "user" for table in self.tables)
        return new_start.started_again(touched) if self.starts_again and some else touched

    def make_witness(self, region: Region, generator: torch.Generator) -> Witness:
        """The witness set."""
        facts = facts_of(self.task.data.retain.train, self.task.config["NEG_PREFIX"])
        return Witness(self.task.config, self.retained, region, generator, self.region_negatives, facts)

    def run(self) -> Outcome:
        """LUA, then LAC."""
        began = time.perf_counter()
        found = self.lua()
        objective, interactions, schedule = self.plan()
        self.adapters.attach()
        self.scatter()
        steps, first = schedule.steps, time.perf_counter()
        shown = bool(self.task.config["show_progress"]) and self.task.config.leaves_curves
        original = self.task.original

        def after(step: int) -> None:
            """Warn when retraining would be quicker."""
            if step == WARN_AFTER and original is not None:
                warn_if_slow(original.seconds, first - began + (time.perf_counter() - first) / step * steps)

        with progress_bar(f"LAC {self.task.label}", steps, shown) as bar:
            values, demotion = calibrate(
                self.adapters, self.witness, objective, schedule, interactions, bar, after,
                watches=self.task.config.leaves_curves,
            )  # fmt: skip
        found["accepted"] = self.finish()
        if found["accepted"] < 1.0:
            logger.warning(TOO_LARGE, 100 * found["accepted"])
        rank = max((adapter.a.shape[1] for adapter in self.adapters.trained), default=0)
        if self.task.config.leaves_curves:  # both go with the size of the request, as the energy does
            logger.info("LAC: %d steps at rank %d on retained interactions.", steps, rank)
        lac: dict[str, float] = {}
        if values:
            last = values[-10:]
            lac = {"first": round(values[0], 6), "last": round(sum(last) / len(last), 6), "steps": len(values)}
        curves = {
            "loss": [(step + 1, round(value, 6)) for step, value in enumerate(values)],
            "demotion": [(step, round(value, 6)) for step, value in demotion],
        }
        return Outcome(
            found | {"lac": lac}, curves, refits_orphan_items=self.starts_again,
            refitted_items=self.witness.region["item"].ids if self.starts_again else None,
            certify=lambda: self.certificates(lac), earlier=self.adapters.earlier(),
        )  # fmt: skip

    def lua(self) -> dict[str, Any]:
        """The downdate at θ₀, the new start, and the downdate at rank r on it; returns certificates."""
        trained, options, read = self.adapters.trained, self.options, None
        steps = [torch.zeros_like(adapter.base) for adapter in trained]
        if options.lua_scale and trained:
            moments, read = self.moments()
            steps = self.downdate(moments)
        if self.starts_again:
            self.start_again()
        energy = {}
        for adapter, low in zip(trained, self.low_rank(steps, options.rank), strict=True):
            adapter.a, adapter.b = low.a, low.b
            energy[adapter.label] = round(low.energy, 6)
        if options.lua_scale and energy and self.task.config.leaves_curves:
            least = 100 * min(energy.values())
            logger.info("LUA: the downdate at rank %s keeps %.0f %% of its energy.", options.rank, least)
        return {"curvature": read, "energy": energy, "lua_scale": options.lua_scale}

    # The downdate

    def moments(self) -> curvature.Curvature:
        """v̂: the optimizer's second moments, or Fisher information of the retained interactions."""
        if self.task.prepared.curvature is not None:
            return self.task.prepared.curvature
        parts = self.witness.everything().split(self.task.config["train_batch_size"])
        with torch.backends.cudnn.flags(enabled=False):  # has no gradients of recurrent layers in evaluation mode
            return curvature.from_retained(self.model, [self.witness.batch(self.witness.triples(p)) for p in parts])

    def downdate(self, moments: rows.Moments) -> list[torch.Tensor]:
        """η g_S / (√v̂ + ε), limited, for the rows (n, d) of every trained adapter; zero without a moment."""
        gradients, reach = self.deleted_gradients()
        scale = self.options.lua_scale / self.task.config["train_batch_size"]
        limit = math.inf if self.options.lua_limit is None else self.options.lua_limit
        steps = []
        for adapter, gradient in zip(self.adapters.trained, gradients, strict=True):
            assert adapter.side is not None
            step = torch.zeros_like(gradient)
            if adapter.name in moments:  # otherwise a parameter that never had a gradient
                step = direction(gradient, as_rows(moments[adapter.name], adapter.axis)[adapter.rows])
            share = self.witness.region[adapter.side].share.to(adapter.base)
            steps.append(limited(scale * step, adapter.base, share, limit, reach))
        return steps

    def deleted_gradients(self) -> tuple[list[torch.Tensor], float]:
        """g_S for the rows (n, d) of every trained adapter, and e."""
        return deleted_gradients(self.adapters, self.witness)

    # The new start

    def start_again(self) -> None:
        """R of contaminated rows: in the trained adapters, and in untrained ones for rows that only follow."""
        maps = self.task.prepared.maps
        for adapter in self.adapters.trained:
            if maps is None or adapter.axis:  # no neighbours to start from: the initial values
                initial = as_rows(self.task.initial[adapter.name], adapter.axis)[adapter.rows.cpu()]
                adapter.shift = initial.to(adapter.base) - adapter.base
        if maps is None:
            return
        tables = new_start.joined_tables(self.model, self.tables, self.index)
        self.new_start = new_start.NewStart(tables, maps, self.certain, self.neighbours(tables))
        self.shift(self.new_start.moves(self.rounds))
        followed = len(self.adapters.adapters) > len(self.adapters.trained) and self.task.config.leaves_curves
        others = "; others in part" if followed else ""
        logger.info("LUA: new start of the request's rows from retained neighbours%s.", others)

    def shift(self, change: dict[Side, torch.Tensor]) -> None:
        """Add ``change`` (n, d) of the contaminated rows to R; those that only follow have untrained adapters."""
        assert self.new_start is not None
        adapters = {(a.name, a.side, a.trained): a for a in self.adapters.adapters}
        for table in [table for table in self.tables if table.axis == 0]:
            side, ids = table.side, self.new_start.region[table.side].ids
            width = as_rows(self.model.get_parameter(table.parameter)).shape[1]
            part, change[side] = change[side].tensor_split([width], dim=1)
            own = self.witness.region[side].contains(ids)
            for trained, mine in ((True, own), (False, ~own)):
                adapter = adapters.get((table.parameter, side, trained))
                if adapter is None and mine.any():
                    adapter = Adapter.on_rows(self.model, table, ids[mine], trained)
                    self.adapters.adapters.append(adapter)
                if adapter is not None:
                    more = part[mine.to(part.device)]
                    adapter.shift = more if adapter.shift is None else adapter.shift + more

    def scatter(self, again: bool = False) -> None:
        """Rows that started again lie as far from the map as trained ones; ``again`` after they were calibrated."""
        if self.new_start is not None:
            tables = new_start.joined_tables(self.model, self.tables, self.index)
            self.shift(self.new_start.scatter(tables, again))
            self.adapters.attach()

    def finish(self) -> float:
        """Scatter, then take changes back as far as people who did not ask lose by them; returns the share made.

        Rows of users who asked keep theirs. Where there are none (a sequential model), a quarter is always left:
        otherwise nothing would be forgotten.
        """
        self.scatter(again=True)
        if self.bystanders is None or self.bystanders.are_fine():
            return 1.0
        others = [adapter for adapter in self.adapters.adapters if adapter.side != "user" or not adapter.trained]
        whole = [(adapter.a, adapter.shift) for adapter in others]
        shares = LESS if len(others) == len(self.adapters.adapters) else (*LESS, 0.0)
        for share in shares:  # the last one is taken in any case
            for adapter, (a, shift) in zip(others, whole, strict=True):
                adapter.a, adapter.shift = share * a, None if shift is None else share * shift
            self.adapters.attach()
            if share != shares[-1] and self.bystanders.are_fine():
                break
        return share

    def neighbours(self, tables: new_start.Tables) -> new_start.Neighbours:
        """All contaminated rows, and their neighbours by interactions."""
        region = new_start.spread(self.certain, self.retained)
        return region, functools.partial(new_start.PairLinks, self.index, tables), self.retained

    # LAC

    def plan(self) -> tuple[Objective, torch.Tensor, Schedule]:
        """The objective of LAC, the retained interactions it is fitted to, and its schedule."""
        witness = self.witness
        objective = Objective(self.options.lac_forget if len(witness.retained.gone) else 0.0)
        interactions = witness.interactions()
        rate = min(RATE * self.task.config["learning_rate"], HIGHEST_RATE)
        return objective, interactions, Schedule.by(self.options, rate, BATCH_SIZE).within(len(interactions))

    # Certificates

    def certificates(self, lac: dict[str, float]) -> dict[str, Any]:
        """Rows, rank, drift, forgetting margin, and the largest change of retained scores; ``lac`` is LAC's own."""
        return {
            "rows": {adapter.label: len(adapter.rows) for adapter in self.adapters.adapters},
            "rank": {adapter.label: adapter.a.shape[1] for adapter in self.adapters.trained},
            "drift": round(self.adapters.drift(), 6),
            "margin": margin(*self.witness.scores(self.model, self.witness.deleted(CERTIFIED))),
            "retained": retained_change(self.adapters, self.retained_scores()),
        }

    def retained_scores(self) -> Callable[[], torch.Tensor]:
        """A function for the scores of some retained pairs by the model as it is."""
        drawn = self.witness.uniform(CERTIFIED if self.witness.retained.size else 0)
        users, items = (self.index.ids[side][drawn] for side in rows.SIDES)
        return lambda: rows.pair_scores(self.model, self.index.train, users, items)


def direction(gradient: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
    """+g_S / (√v̂ + ε): the downdate per coordinate, up to its scale."""
    return gradient / (moment.sqrt() + EPSILON)


def limited(step: torch.Tensor, rows: torch.Tensor, share: torch.Tensor, limit: float, reach: float) -> torch.Tensor:
    """``step`` (n, d) with ‖step‖ ≤ min(limit · (share / reach)², LARGEST) · ‖row‖ for each of ``rows``."""
    most = (limit * (share / reach).square()).clamp(max=LARGEST)[:, None] * rows.norm(dim=1, keepdim=True)
    length = step.norm(dim=1, keepdim=True).clamp(min=torch.finfo(step.dtype).tiny)
    return step * (most / length).clamp(max=1.0)


def deleted_gradients(adapters: AdapterSet, witness: Witness) -> tuple[list[torch.Tensor], float]:
    """g_S for the rows (n, d) of every trained adapter, and e. The model is at θ₀, B the identity."""
    gradients = row_gradients(adapters, witness)
    deleted = witness.retained.asked
    draws = max(1, min(DRAWS, BATCH // max(1, len(deleted))))
    for _ in range(draws):
        for part in deleted.split(BATCH):
            gradients.own(witness.triples(part), len(part) / draws)
    return gradients.take(), own_share(gradients, witness)


def own_share(gradients: RowGradients, witness: Witness) -> float:
    """The share e = Σ θ·∂|s|/∂θ / (2 Σ |s|) over the scores s of some deleted pairs, with θ the pairs' own rows."""
    pairs = witness.deleted(LOOKED_AT)
    if len(pairs.users) == 0:
        return 1.0
    scores = gradients.scores(pairs.users, pairs.items)
    gradients.back(scores.sign())
    ids = {"user": torch.unique(pairs.users), "item": torch.unique(pairs.items)}
    own = 0.0
    for adapter, gradient in zip(gradients.chosen, gradients.take(), strict=True):
        assert adapter.side is not None
        mine = witness.region[adapter.side].place(ids[adapter.side]).to(gradient.device)
        own += float((adapter.start[mine] * gradient[mine]).sum())
    whole = 2.0 * float(scores.abs().sum())
    return max(LEAST_REACH, min(1.0, own / whole)) if whole > 0 else 1.0


class Schedule(NamedTuple):
    """The length and speed of LAC."""

    steps: int
    learning_rate: float
    batch_size: int

    @classmethod
    def by(cls, options: Any, rate: float, size: int) -> Schedule:
        """By the settings, with ``rate`` and ``size`` of a batch where they are empty."""
        rate = rate if options.lac_learning_rate is None else options.lac_learning_rate
        return cls(options.lac_steps, rate, options.lac_batch_size or size)

    def within(self, interactions: int) -> Schedule:
        """At most a few passes over so many interactions: a small request takes few steps."""
        most = max(1, -(-PASSES * interactions // self.batch_size))
        return self._replace(steps=min(self.steps, most))


@dataclasses.dataclass(frozen=True)
class Objective:
    """Own training loss on R + λ · reverse ranking on S."""

    forget: float = 0.0  # λ
    trains_b: ClassVar[bool] = False  # at a constant rate; else the learning rate falls to zero

    def value(self, gradients: RowGradients, witness: Witness, batch: rows.Triples) -> float:
        """The objective on a batch of R and as many interactions of S; gradients are added to ``gradients``."""
        value = gradients.own(batch)
        if not self.forget:
            return value
        _, users, items, others = witness.deleted(len(batch.users))
        pairs = [(users, items), (users, others)]
        return value + loss_of_scores(gradients, pairs, lambda *both: self.forget * reverse_ranking_loss(*both))

    def set_gradient(self, adapter: Adapter, gradient: torch.Tensor) -> float:
        """Set the gradient of A; returns a penalty to add to the objective."""
        adapter.a.grad = gradient
        return 0.0


def loss_of_scores(
    gradients: RowGradients, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], loss_of: Callable[..., torch.Tensor]
) -> float:
    """``loss_of`` the scores of each of ``pairs`` (users, items); its gradient is added to ``gradients``."""
    users, items = (torch.cat(column) for column in zip(*pairs, strict=True))
    scores = gradients.scores(users, items).clone().requires_grad_()
    loss = loss_of(*scores.split([len(users) for users, _ in pairs]))
    loss.backward()
    assert scores.grad is not None
    gradients.back(scores.grad)
    return loss.item()


def calibrate(
    adapters: AdapterSet, witness: Witness, objective: Objective, schedule: Schedule, interactions: torch.Tensor,
    bar: tqdm, after_step: Callable[[int], None] | None = None, watches: bool = True,
) -> tuple[list[float], list[tuple[int, float]]]:  # fmt: skip
    """Fit the adapters to retained ``interactions``.

    Returns the objective of every step, and the demotion rate of deleted pairs every few steps. ``after_step`` is
    called with the number of steps done, after each but the last.
    Without ``watches`` deleted pairs are not scored, which costs a graph model as much as a step.
    """
    values: list[float] = []
    demotion: list[tuple[int, float]] = []
    chosen = adapters.trained
    if not chosen or len(interactions) == 0 or schedule.steps == 0:
        return values, demotion
    gradients = row_gradients(adapters, witness, objective.trains_b)
    trained = [x.a for x in chosen] + ([x.b for x in chosen] if objective.trains_b else [])
    optimizer = torch.optim.Adam(trained, lr=schedule.learning_rate)
    watched = witness.deleted(witness.watched)
    batches = witness.batches(interactions, schedule.batch_size, schedule.steps)
    for step, batch in enumerate(batches):
        if watches and step % CHECK_EVERY == 0:
            demotion.append((step, gradients.demotion(watched)))
        value = objective.value(gradients, witness, batch)
        optimizer.zero_grad()
        for adapter, gradient in zip(chosen, gradients.take(), strict=True):
            value += objective.set_gradient(adapter, gradient)
        if value != value:
            raise UnlearnError("LAC failed: its loss is not a number. Lower lac_learning_rate.")
        values.append(value)
        if not objective.trains_b:
            optimizer.param_groups[0]["lr"] = schedule.learning_rate * (1.0 - step / schedule.steps)
        optimizer.step()
        gradients.changed()
        bar.update()
        if after_step is not None and step + 1 < schedule.steps:
            after_step(step + 1)
    if watches:
        demotion.append((len(values), gradients.demotion(watched)))
    for adapter in chosen:
        adapter.a.grad = adapter.b.grad = None
    adapters.attach()
    return values, demotion


def warn_if_slow(trained: float | None, seconds: float) -> None:
    """Warn when a request takes longer (``seconds``, estimated) than training the original did: of few epochs."""
    if trained is not None and seconds > max(WARN_SECONDS, trained):
        logger.warning(
            "Obliviate will take about %.0f s here, and training the original took %.0f s: --unlearn=retrain is "
            "quicker, and exact.", seconds, trained,
        )  # fmt: skip


def margin_bound(loss: float) -> float:
    """The least margin m that a loss allows: log(1 + e^−m) ≤ ε gives m ≥ −log(e^ε − 1).

    The paper prints the negative of it. The loss is convex in m, so a mean loss bounds the mean margin the same way.
    """
    if loss <= 0.0:
        return math.inf
    return -math.log(math.expm1(loss)) if loss < 500 else -loss


def _round(value: float) -> float:
    return round(value, 6) if math.isfinite(value) else math.copysign(1e9, value)


def margin(own: torch.Tensor, other: torch.Tensor) -> dict[str, Any]:
    """How far deleted items score (m,) below negatives: the mean reverse ranking loss, its bound, and the mean."""
    if len(own) == 0:
        return {}
    loss, mean = float(reverse_ranking_loss(own, other)), float((other - own).mean())
    found = {"loss": loss, "bound": margin_bound(loss), "mean": mean}
    return {key: _round(value) for key, value in found.items()} | {"pairs": len(own)}


def retained_change(adapters: AdapterSet, scores: Callable[[], torch.Tensor]) -> dict[str, Any]:
    """The largest and the mean change of ``scores()`` of retained pairs from those at θ₀, on the same data."""
    after = scores()
    with adapters.detached():
        change = (after - scores()).abs()
    largest, mean = (_round(float(value)) for value in (change.max(), change.mean()))
    return {"largest": largest, "mean": mean, "pairs": len(change)}
