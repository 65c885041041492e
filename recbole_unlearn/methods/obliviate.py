"""Obliviate: LUA takes back what the deleted rows did to the rows of their users and items, LAC fits those again.

Everything outside the region keeps its weights bit for bit. See `recbole_unlearn/obliviate/` for the stages and
docs/method.md for what is from the paper and what is not.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import torch
from recbole.data.interaction import Interaction
from recbole.utils import set_color
from tqdm import tqdm

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.methods.registry import register
from recbole_unlearn.obliviate import curvature, lua
from recbole_unlearn.obliviate.adapters import Adapter, AdapterSet
from recbole_unlearn.obliviate.lac import Pass, calibrate
from recbole_unlearn.obliviate.region import Region, find_region
from recbole_unlearn.obliviate.witness import Witness, as_batch
from recbole_unlearn.settings import setting
from recbole_unlearn.tables import Table, find_tables
from recbole_unlearn.trainer import UnlearnTask, UnlearnTrainer, clear_caches

PASSES = {"items": ("item",), "users": ("user",), "both": ("user", "item")}


@dataclasses.dataclass(frozen=True)
class ObliviateSettings:
    """Settings of Obliviate."""

    lua_threshold: float = setting(
        "Items that lose at least this share of their rows are changed, as is every user with a deleted row.",
        low=0.0,
        high=1.0,
    )
    lua_retire: float = setting(
        "A row goes back to its initial value by this many times its deleted share (1 at most).", low=0.0
    )
    lua_scale: Any = setting(
        "Scale of the Newton downdate: a number, 'auto' (a line search on the witness set), or 0 for none."
    )
    lua_draws: int = setting("Draws of negatives over which the deletion gradient is averaged.", low=1)
    rank: Any = setting("Rank of the adapters: a number, 'auto' (by lua_energy), or 'full' rows.")
    lua_energy: float = setting("rank=auto: share of the downdate's energy to keep.", low=0.0, high=1.0)
    lac_passes: list[str] = setting("What is calibrated, one after the other: items, users, or both at once.")
    lac_steps: int = setting("Steps of each pass.", low=0)
    lac_learning_rate: float = setting("Adam's learning rate at the first step; it falls to zero.", low=0.0)
    lac_batch_size: int = setting("Retained rows in a step.", low=1)
    lac_negatives: float = setting(
        "How often the region's items are negatives, relative to training.", low=0.0
    )


@register(
    "obliviate",
    "Downdate the rows a request touches (LUA), then calibrate them on retained rows (LAC).",
    ObliviateSettings,
)
class Obliviate(UnlearnTrainer):
    """W' = W + A Bᵀ on the rows of the region."""

    def unlearn(self, task: UnlearnTask) -> None:
        r"""The two stages, on ``self.model`` (built on D\S, with the original's weights)."""
        options: ObliviateSettings = task.settings
        passes = [self._pass(name, options) for name in options.lac_passes]
        if options.lua_scale != "auto" and not isinstance(options.lua_scale, (int, float)):
            raise UnlearnError(f"lua_scale={options.lua_scale!r} is not valid: a number or 'auto'.")
        train = task.data.retain.train
        region = find_region(task.data, options.lua_threshold)
        tables = find_tables(self.model, train)
        if not tables:
            raise UnlearnError(
                f"{task.config['model']} has no embedding table of users or items, which obliviate works on. "
                "Use --unlearn=retrain."
            )
        generator = torch.Generator().manual_seed(task.config["seed"])
        witness = Witness(task.config, train, region, generator, options.lac_negatives)
        newton, scale = self._newton(task, region, tables, witness)
        adapters, energy = self._downdate(task, region, tables, newton)
        adapters.attach()
        losses = calibrate(adapters, tables, witness, passes, self._bar_for)
        self.certificates = {
            "rows": {adapter.name: len(adapter.rows) for adapter in adapters.adapters},
            "energy": energy,
            "lua_scale": scale,
            "drift": round(adapters.drift(), 6),
            "lac_loss": {"first": round(losses[0], 6), "last": round(losses[-1], 6)} if losses else {},
        }
        logging.getLogger().info(
            "Obliviate changed %d user and %d item rows, %d steps of calibration.",
            len(region.ids("user")), len(region.ids("item")), len(losses),
        )  # fmt: skip
        adapters.merge()

    def _newton(
        self, task: UnlearnTask, region: Region, tables: list[Table], witness: Witness
    ) -> tuple[dict[str, torch.Tensor], float]:
        """LUA's Newton downdate +η g_S / (√v̂ + ε) of the region's rows, by parameter, and its scale η."""
        options: ObliviateSettings = task.settings
        if options.lua_scale == 0:
            return {}, 0.0
        self.model.train()
        forget = task.data.forget
        deleted = torch.arange(len(forget)).split(options.lac_batch_size)
        users = forget.inter_feat[forget.uid_field]

        def batches() -> Iterator[tuple[Interaction, float]]:
            for _ in range(options.lua_draws):
                for chosen in deleted:
                    drawn = witness.negatives.draw(users[chosen])
                    yield as_batch(task.config, forget, chosen, drawn), len(chosen) / options.lua_draws

        retained = torch.arange(len(task.data.retain.train)).split(options.lac_batch_size)
        moments = curvature.second_moments(
            self.model,
            task.original.optimizer,
            (witness.batch(chosen, witness.negatives.draw(witness.users[chosen])) for chosen in retained),
        )
        gradients = lua.deletion_gradient(self.model, batches())
        directions = lua.newton_directions(gradients, moments)
        rows = {t.parameter: region.ids(t.side) + t.offset for t in tables if t.parameter in directions}
        rows = {name: directions[name][ids] for name, ids in rows.items() if len(ids)}
        if options.lua_scale != "auto":
            return {name: float(options.lua_scale) * step for name, step in rows.items()}, options.lua_scale
        scale = self._search(task, region, tables, witness, rows)
        return {name: scale * step for name, step in rows.items()}, scale

    def _search(
        self,
        task: UnlearnTask,
        region: Region,
        tables: list[Table],
        witness: Witness,
        directions: dict[str, torch.Tensor],
    ) -> float:
        """η by line search on the witness objective: the loss of retained rows and of reversed deleted rows."""
        size = task.settings.lac_batch_size
        kept = witness.rows(("user", "item"))
        chosen, drawn = witness.triples(kept, size, items=False)
        forget = task.data.forget
        pick = torch.randint(0, len(forget), (min(size, len(forget)),), generator=witness.generator)
        against = witness.negatives.draw(forget.inter_feat[forget.uid_field][pick])
        own = dict(self.model.named_parameters())
        places = {t.parameter: region.ids(t.side) + t.offset for t in tables if t.parameter in directions}
        base = {name: own[name].detach()[ids].clone() for name, ids in places.items()}
        reversed_rows = forget.copy(Interaction(dict(forget.inter_feat[pick].interaction)))
        deleted = reversed_rows.inter_feat[forget.iid_field]
        reversed_rows.inter_feat.update(Interaction({forget.iid_field: against}))

        @torch.no_grad()
        def objective(scale: float) -> float:
            for name, ids in places.items():
                own[name][ids] = base[name] + scale * directions[name]
            clear_caches(self.model)
            everything = torch.arange(len(pick))
            return sum(
                float(curvature.training_loss(self.model, batch))
                for batch in (
                    witness.batch(chosen, drawn),
                    as_batch(task.config, reversed_rows, everything, deleted),
                )
            )

        rms = max(float(step.square().mean().sqrt()) for step in directions.values())
        scale = lua.line_search(objective, start=1e-4 / max(rms, 1e-12))
        objective(0.0)  # the rows as they were
        return scale

    def _downdate(
        self, task: UnlearnTask, region: Region, tables: list[Table], newton: dict[str, torch.Tensor]
    ) -> tuple[AdapterSet, dict[str, float]]:
        """LUA: Newton downdate and retirement of the region's rows as adapters, and the energy each keeps."""
        options: ObliviateSettings = task.settings
        own = dict(self.model.named_parameters())
        adapters, energy = [], {}
        for table in tables:
            ids = region.ids(table.side)
            if len(ids) == 0:
                continue
            rows = ids + table.offset
            base = own[table.parameter].detach()[rows].clone()
            share = region.share(table.side)[ids].to(base)
            target = lua.retire(base, task.initial[table.parameter][rows], share, options.lua_retire)
            delta = target - base + newton.get(table.parameter, torch.zeros_like(base))
            low = _low_rank(delta, options)
            energy[table.parameter] = round(low.energy, 6)
            adapters.append(Adapter(table.parameter, rows, low.a, low.b, base))
        return AdapterSet(self.model, adapters), energy

    def _pass(self, name: str, options: ObliviateSettings) -> Pass:
        if name not in PASSES:
            raise UnlearnError(f"lac_passes={name!r} is not valid: choose from {', '.join(PASSES)}.")
        return Pass(PASSES[name], options.lac_steps, options.lac_learning_rate, options.lac_batch_size)

    def _bar_for(self, steps: int, what: str) -> tqdm:
        return tqdm(
            total=steps,
            ncols=100,
            desc=set_color(f"LAC {what}", "pink"),
            disable=not self.config["show_progress"],
        )


def _low_rank(delta: torch.Tensor, options: ObliviateSettings) -> lua.LowRank:
    """The downdate at the rank that is asked for."""
    if options.rank == "full":
        eye = torch.eye(delta.shape[1], dtype=delta.dtype, device=delta.device)
        return lua.LowRank(delta.clone(), eye, 1.0)
    if options.rank == "auto":
        return lua.project(delta, None, options.lua_energy)
    if isinstance(options.rank, int) and options.rank > 0:
        return lua.project(delta, options.rank)
    raise UnlearnError(f"rank={options.rank!r} is not valid: a positive number, 'auto' or 'full'.")
