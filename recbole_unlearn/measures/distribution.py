"""Distances between the scores of deleted pairs under two models.

Scores are taken relative to the user's other items, (s − mean)/std, so that models of different scale compare.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from recbole_unlearn.measures.base import View, measure, rounded
from recbole_unlearn.results.schema import Distribution, Figure


def kolmogorov_smirnov(a: torch.Tensor, b: torch.Tensor) -> float:
    """Sup |F_a − F_b|: the largest difference of the two distribution functions, between 0 and 1."""
    return float(stats.ks_2samp(a.numpy(), b.numpy(), method="asymp").statistic)


def wasserstein(a: torch.Tensor, b: torch.Tensor) -> float:
    """∫ |F_a − F_b|: how far scores have to move, on average, to turn one distribution into the other."""
    return float(stats.wasserstein_distance(a.numpy(), b.numpy()))


BINS = 60  # of the histograms of a run


def common_edges(scores: list[torch.Tensor]) -> np.ndarray:
    """Edges of bins that serve all of ``scores``."""
    low, high = np.quantile(torch.cat(scores).numpy(), [0.001, 0.999])
    return np.linspace(low, high, BINS + 1)


def histogram(scores: torch.Tensor, edges: np.ndarray) -> Distribution:
    """Counts between ``edges``; what lies outside counts in the first or last bin."""
    inside = np.clip(scores.numpy(), edges[0], edges[-1])
    return Distribution(
        [round(float(edge), 4) for edge in edges], np.histogram(inside, bins=edges)[0].tolist()
    )


@measure(
    "ks",
    title="Kolmogorov–Smirnov",
    meaning="largest difference of the distribution functions of the deleted pairs' scores, here and retrained",
    good="that of two retrained models; 0 is equal",
    is_distance=True,
    place=6,
)
def _ks(view: View) -> dict[str, Figure]:
    if view.retrained is None:
        return {}
    return {"ks": rounded(kolmogorov_smirnov(view.seen.deleted.score, view.retrained.deleted.score))}


@measure(
    "wasserstein",
    title="Wasserstein",
    meaning="how far the deleted pairs' scores have to move to be the retrained model's, in standard deviations",
    good="that of two retrained models; 0 is equal",
    is_distance=True,
    place=7,
)
def _wasserstein(view: View) -> dict[str, Figure]:
    if view.retrained is None:
        return {}
    return {"wasserstein": rounded(wasserstein(view.seen.deleted.score, view.retrained.deleted.score))}
