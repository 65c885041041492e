r"""Attacks on single pairs from the margins of many models: U-LiRA, ε per example, and KLoM.

The *margin* of a pair z = (u, i) under a model is m(z) = s_ui − logsumexp over j ≠ i of s_uj = log p(z) / (1 − p(z)),
with p the softmax over all items of the user.

N *shadow models* are trained on D\S and half of the deleted pairs each, and unlearn that half. Two shadow models are
a couple: one has the half that the other does not. So for each pair, N/2 models unlearned it, and N/2 never saw it
but had a request of the same size. `saw` (N, n) says which; rows 2k and 2k + 1 are a couple.

**U-LiRA.** With Q_in(z) and Q_out(z) the normal distributions of the margins of models that unlearned z and of models
that never saw it,

    Λ(m, z) = log Q_in(m; z) − log Q_out(m; z),    members: margins of models that unlearned z.

Means are of each pair, and variances of all pairs together, which is better below some 64 models (Carlini et al.,
2022). A couple is attacked with the statistics of the other couples, so both distributions are of N/2 − 1 models:
where nothing is left, members and non-members are exchangeable, and the AUC is .5 whatever N is.

**ε per example**, of the NeurIPS 2023 challenge: with FPR and FNR of telling N/2 unlearned models from N/2 retrained
ones by a threshold on the margin, ε = max over thresholds of log (1 − δ − FPR) / FNR and log (1 − δ − FNR) / FPR. A
threshold where one of both is 0 does not count. Where both are, half an error is put in: the largest ε that is found
is log(N − 1).

**KLoM** (Georgiev et al., 2024): KL(unlearned ‖ retrained) of the histograms of margins, clipped to ±100, in 20 bins.
"""

from typing import Any

import numpy as np

from recbole_unlearn.measures.forgetting import auc_interval, found_at
from recbole_unlearn.results.schema import Metrics

CLIP, BINS, EMPTY = 100.0, 20, 1e-5  # of KLoM
DELTA = 1e-5  # of ε
WORST = 0.1  # share of the pairs that are easiest to attack
RATES = (0.01, 0.001)
CURVE = np.linspace(0.0, 1.0, 101)  # false positive rates of the curve that is drawn


def log_normal(x: np.ndarray, mean: np.ndarray, variance: float) -> np.ndarray:
    """Log density of the normal distribution, without the constant."""
    return -0.5 * (np.log(variance) + (x - mean) ** 2 / variance)


def likelihood_ratios(margins: np.ndarray, saw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Λ of each model and pair (N, n), and by couple how far its pairs are apart by the other couples (N/2, n).

    The distance is |mean of Q_in − mean of Q_out|, by which an attacker knows the pairs that are easy to attack.
    """
    couples = len(margins) // 2
    number = couples - 1  # of models behind each mean
    ratios, apart = np.zeros_like(margins), np.zeros((couples, margins.shape[1]))
    for couple in range(couples):
        own = slice(2 * couple, 2 * couple + 2)
        others = np.delete(np.arange(len(margins)), own)
        means, variances = [], []
        for group in (saw[others], ~saw[others]):
            mean = (margins[others] * group).sum(axis=0) / number
            spread = ((margins[others] - mean) ** 2 * group).sum() / max(1, (number - 1) * margins.shape[1])
            means.append(mean)
            variances.append(max(float(spread), 1e-12))
        inside, outside = (log_normal(margins[own], *one) for one in zip(means, variances, strict=True))
        ratios[own], apart[couple] = inside - outside, np.abs(means[0] - means[1])
    return ratios, apart


def u_lira(margins: np.ndarray, saw: np.ndarray) -> dict[str, Any]:
    """AUC with interval, TPR at small FPR, that of the worst tenth of the pairs, and the curve (FPR, TPR)."""
    ratios, apart = likelihood_ratios(margins, saw)
    found: dict[str, Any] = _attacked(ratios[saw], ratios[~saw])
    worst = np.repeat(apart >= np.quantile(apart, 1 - WORST, axis=1, keepdims=True), 2, axis=0)
    found["worst"] = _attacked(ratios[saw & worst], ratios[~saw & worst])
    shares = [(ratios[saw] >= cut).mean() for cut in np.quantile(ratios[~saw], 1 - CURVE)]
    found["curve"] = [(round(float(at), 4), round(float(one), 4)) for at, one in zip(CURVE, shares, strict=True)]
    return found


def _attacked(members: np.ndarray, others: np.ndarray) -> dict[str, Any]:
    auc, low, high = auc_interval(members, others)
    found = {"auc": auc, "low": low, "high": high}
    for rate in RATES:
        found |= found_at(members, others, rate)
    return {key: round(value, 4) for key, value in found.items()}


def epsilon(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """ε of each pair (n,) by margins (k, n) of unlearned models and of retrained ones."""
    number, both = len(one), np.concatenate([one, other])
    found = np.zeros(one.shape[1])
    for cut in both:  # each margin as a threshold, on both sides
        for a, b in ((one, other), (other, one)):
            fpr, fnr = (b >= cut).mean(axis=0), (a < cut).mean(axis=0)
            clean = (fpr == 0) & (fnr == 0)
            counts = clean | ((fpr > 0) & (fnr > 0))
            fpr, fnr = (np.where(clean, 0.5 / number, np.where(counts, rate, 0.5)) for rate in (fpr, fnr))
            for x, y in ((fpr, fnr), (fnr, fpr)):
                found = np.maximum(found, np.log(np.maximum(1 - DELTA - x, EMPTY) / y))
    return found


def klom(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(one ‖ other) of each pair (n,) by margins (k, n)."""
    both = np.clip(np.concatenate([one, other]), -CLIP, CLIP)
    low, high = both.min(axis=0), both.max(axis=0)
    place = ((both - low) / np.maximum(high - low, 1e-12) * BINS).astype(int).clip(0, BINS - 1)
    shares = []
    for part in (place[: len(one)], place[len(one) :]):
        counts = np.zeros((BINS, one.shape[1]))
        np.add.at(counts, (part, np.arange(one.shape[1])), 1)
        shares.append(counts / len(part) + EMPTY)
    return (shares[0] * np.log(shares[0] / shares[1])).sum(axis=0)


def spread(values: np.ndarray) -> Metrics:
    """Mean, median and 95th percentile."""
    middle, high = np.quantile(values, [0.5, 0.95])
    found = {"mean": values.mean(), "median": middle, "p95": high}
    return {key: round(float(value), 4) for key, value in found.items()}
