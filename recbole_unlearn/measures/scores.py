"""Distances between the scores of deleted pairs under two models.

Scores are taken relative to the user's other items, (s − mean)/std, so that models of different scale compare.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats


def kolmogorov_smirnov(a: torch.Tensor, b: torch.Tensor) -> float:
    """Sup |F_a − F_b|: the largest difference of the two distribution functions, between 0 and 1."""
    return float(stats.ks_2samp(a.numpy(), b.numpy(), method="asymp").statistic)


def wasserstein(a: torch.Tensor, b: torch.Tensor) -> float:
    """∫ |F_a − F_b|: how far scores have to move, on average, to turn one distribution into the other."""
    return float(stats.wasserstein_distance(a.numpy(), b.numpy()))


def histogram(scores: torch.Tensor, edges: np.ndarray) -> dict[str, list[float]]:
    """Counts between ``edges``; what lies outside counts in the first or last bin."""
    inside = np.clip(scores.numpy(), edges[0], edges[-1])
    return {
        "edges": [round(float(edge), 4) for edge in edges],
        "counts": np.histogram(inside, bins=edges)[0].tolist(),
    }
