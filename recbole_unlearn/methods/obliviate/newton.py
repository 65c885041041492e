"""LUA's Newton downdate of a model: +η g_S / (√v̂ + ε) for the rows of the adapters, with η by line search."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from recbole.data.interaction import Interaction

from recbole_unlearn.data import UnlearnData
from recbole_unlearn.methods.obliviate import curvature, lua
from recbole_unlearn.methods.obliviate.adapters import AdapterSet
from recbole_unlearn.methods.obliviate.gradients import row_gradients
from recbole_unlearn.rows import Witness, as_batch, as_rows, losses


def directions(
    adapters: AdapterSet,
    witness: Witness,
    data: UnlearnData,
    moments: curvature.Moments,
    draws: int,
    size: int,
) -> list[torch.Tensor]:
    """g_S / (√v̂ + ε) for the rows of every adapter (n, d), the gradient averaged over ``draws`` of negatives."""
    model, forget = adapters.model, data.forget
    users = forget.inter_feat[forget.uid_field]

    def batches() -> Iterator[tuple[Interaction, float]]:
        for _ in range(draws):
            for chosen in torch.arange(len(forget)).split(size):
                drawn = witness.retained.negatives(users[chosen], witness.generator)
                yield as_batch(witness.config, forget, chosen, drawn), len(chosen) / draws

    model.train()
    found = lua.newton_directions(lua.deletion_gradient(model, batches()), moments)
    return [
        as_rows(found[adapter.name], adapter.axis)[adapter.rows]
        if adapter.name in found
        else torch.zeros_like(adapter.base)
        for adapter in adapters.adapters
    ]


def search(adapters: AdapterSet, witness: Witness, steps: list[torch.Tensor], size: int) -> float:
    """η by line search on the witness objective: retained items above, deleted items below their negatives."""
    kept = witness.triples(witness.interactions())
    if len(kept.numbers) > size:
        kept = kept.part(torch.randperm(len(kept.numbers), generator=witness.generator)[:size])
    deleted = witness.deleted(size)
    scorer = row_gradients(adapters, adapters.adapters, witness)
    users = torch.cat([kept.users, kept.users, deleted.users, deleted.users])
    items = torch.cat([kept.items, kept.negatives, deleted.items, deleted.negatives])
    parts = [len(kept.users)] * 2 + [len(deleted.users)] * 2
    before = [adapter.a for adapter in adapters.adapters]

    @torch.no_grad()
    def objective(scale: float) -> float:
        for adapter, start, step in zip(adapters.adapters, before, steps, strict=True):
            adapter.a = start + scale * step @ adapter.b
        scorer.changed()
        kept_pos, kept_neg, gone, other = scorer.scores(users, items).split(parts)
        return float(losses.ranking(kept_pos, kept_neg) + losses.reverse_ranking(gone, other))

    rms = max((float(step.square().mean().sqrt()) for step in steps), default=0.0)
    scale = lua.line_search(objective, start=1e-4 / max(rms, 1e-12))
    objective(0.0)
    for adapter, start in zip(adapters.adapters, before, strict=True):
        adapter.a = start
    return scale
