"""How hard a request is, before anything is done about it."""

from __future__ import annotations

from typing import Any

import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.data import SequenceSplits, UnlearnData
from recbole_unlearn.rows import as_rows, find_tables

MOST = 20_000  # interactions of each kind


def entanglement(forget: torch.Tensor, retain: torch.Tensor) -> float:
    """ES = (spread of R + spread of S) / ½(|μ_R − μ|² + |μ_S − μ|²) for embeddings (m, d) and (n, d).

    The spread is the mean squared distance to the own centre μ_R or μ_S; μ is the centre of both. It is high when the
    two overlap: what S taught cannot be separated from what R taught (Zhao et al., What makes unlearning hard).
    """
    centres = [part.mean(dim=0) for part in (retain, forget)]
    middle = torch.cat([retain, forget]).mean(dim=0)
    parts = list(zip((retain, forget), centres, strict=True))
    inside = torch.stack([(part - centre).square().sum(dim=1).mean() for part, centre in parts]).sum()
    between = torch.stack([(centre - middle).square().sum() for centre in centres]).sum() / 2
    return float(inside / between.clamp(min=1e-12))


def difficulty(model: AbstractRecommender, data: UnlearnData, seed: int) -> dict[str, Any]:
    """Entanglement of the deleted interactions in the original, and their share in their users and items.

    Empty where no training interaction is deleted.
    """
    train, forget = data.full.train, data.forget
    if len(forget) == 0:
        return {}
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Any] = {}
    for side, field, size in (
        ("users", train.uid_field, train.user_num),
        ("items", train.iid_field, train.item_num),
    ):
        gone, had = (torch.bincount(part.inter_feat[field], minlength=size) for part in (forget, train))
        share = (gone / had.clamp(min=1))[gone > 0]
        found[f"deleted_share_{side}"] = round(float(share.mean()), 6)
    tables = [t for t in find_tables(model, train) if t.axis == 0]
    named = dict(model.named_parameters())
    fields = {"user": train.uid_field, "item": train.iid_field}
    # A sequential model has no rows of users; a table of positions may be as long as one.
    if not isinstance(data.full, SequenceSplits) and {t.side for t in tables} == {"user", "item"}:
        parts = []
        for dataset in (forget, data.retain.train):
            chosen = torch.randperm(len(dataset), generator=generator)[:MOST]
            parts.append(
                torch.cat(
                    [
                        as_rows(named[t.parameter])[
                            dataset.inter_feat[fields[t.side]][chosen] + t.offset
                        ].cpu()
                        for t in tables
                    ],
                    dim=1,
                )
            )
        found["entanglement"] = round(entanglement(*parts), 6)
    return found
