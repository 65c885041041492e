"""The measures of forgetting, each a function with its formula.

Deleted items (demotion, resurfacing, uncleaned and emptied histories), an attacker (membership inference), and the
distances to the retrained model (gaps, score distributions, ranked lists).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from recbole_unlearn.measures.base import View, measure, rounded
from recbole_unlearn.measures.scores import HistoryObservation, HistoryQuestions, Questions, Standing
from recbole_unlearn.results.schema import Distribution, Figure, Metrics

TOPK = (10, 20, 50)
ATTACKED = 5_000  # pairs of each kind; the interval is then about .01 wide
FOLDS = 5  # of the attack
BINS = 60  # of the histograms of a run
GAP = {"mean": "", "error": ": standard error"}
AUC = {"auc": ": AUC", "tpr@1%fpr": ": TPR at 1% FPR"}
_USERS = {"all": ", all users", "affected": ", affected users", "unaffected": ", unaffected users"}


@measure(
    "demotion_rate", title="Demotion rate", place=1,
    meaning="share of comparisons in which a deleted item scores below one its user never met; a tie does not count",
    good="the retrained model's; more is over-forgetting, which can be seen",
)  # fmt: skip
def demotion_rate(view: View) -> dict[str, Figure]:
    """The mean over deleted pairs of the share of never-touched items that score higher."""
    return {"demotion_rate": mean(view.seen.deleted.demoted) if len(view.questions.deleted) else None}


@measure(
    "resurfacing", title="Resurfacing@{k}", place=2,
    meaning="share of deleted items that are in their user's first K",
    good="the retrained model's (for genuine interactions it is not 0)",
)  # fmt: skip
def resurfacing(view: View) -> dict[str, Figure]:
    """Share of deleted items among the first K of their user; only the retained history is masked."""
    pairs = view.questions.deleted
    if len(pairs) == 0:
        return {}
    lists = view.seen.top[torch.searchsorted(view.questions.users, pairs.users)]
    hits = lists == pairs.items[:, None]
    return {f"resurfacing@{k}": mean(hits[:, :k].any(dim=1)) for k in TOPK if k <= lists.shape[1]}


@measure(
    "exposure", title="Exposure@{k}", place=3,
    meaning="share of users with a targeted item in their first K: of a deleted category, or promoted by spam",
    good="the retrained model's",
)  # fmt: skip
def _exposure(view: View) -> dict[str, Figure]:
    """Of the users of the request who keep an interaction; where none does, as after spam, of all others."""
    questions = view.questions
    if questions.exposed is None:
        return {}
    keep = questions.affected & torch.isin(questions.users, questions.history.ids["user"])
    shown = torch.isin(view.seen.top[keep if keep.any() else ~questions.affected], questions.exposed)
    return {f"exposure@{k}": mean(shown[:, :k].any(dim=1)) for k in TOPK if k <= shown.shape[1] and len(shown)}


@measure(
    "demotion_gap", title="Demotion gap", parts=GAP, is_distance=True, place=5,
    meaning="demotion rate minus the retrained model's, on the same comparisons, and its standard error over users",
    good="0, within twice its error",
)  # fmt: skip
def demotion_gap(view: View) -> dict[str, Figure]:
    """The mean of the paired differences, with an error that takes a user's pairs as one observation."""
    mine, target = (one.deleted.demoted for one in (view.seen, view.target))
    return gap("demotion_gap", mine, target, view.questions.deleted.users)


@measure(
    "probe", title="Probe of item vectors", discloses="probed", place=4,
    meaning="AUC with which a new row, fitted to half of a user's deleted items, finds the other half",
    good="the retrained model's (it is above 0.5 there too)",
)  # fmt: skip
def _probe(view: View) -> dict[str, Figure]:
    return {} if view.seen.probe is None else {"probe": mean(view.seen.probe)}


def gap(
    key: str, mine: torch.Tensor | None, target: torch.Tensor | None, users: torch.Tensor | None = None
) -> dict[str, Figure]:
    """The mean of the differences of values (n,), and its standard error over ``users`` (n,), by default one each."""
    if mine is None or target is None or len(mine) == 0:
        return {}
    mean, error = clustered(mine.double() - target.double(), torch.arange(len(mine)) if users is None else users)
    return {key: {"mean": rounded(mean), "error": rounded(error)}}


@measure(
    "probe_gap", title="Probe of item vectors: gap", parts=GAP, is_distance=True, discloses="probed", place=5,
    meaning="the probe's AUC minus the retrained model's, for the same users, and its standard error over them",
    good="0, within twice its error; more is memory of S in the item vectors",
)  # fmt: skip
def _probe_gap(view: View) -> dict[str, Figure]:
    return gap("probe_gap", view.seen.probe, view.target.probe)


@measure(
    "utility_gap", title="NDCG@20 of affected users: gap", parts=GAP, is_distance=True, discloses="measured",
    meaning="NDCG@20 of affected users minus the retrained model's, and its standard error over them", place=5,
    good="0, within twice its error; less is damage",
)  # fmt: skip
def _utility_gap(view: View) -> dict[str, Figure]:
    return gap("utility_gap", view.seen.ndcg, view.target.ndcg)


def clustered(values: torch.Tensor, users: torch.Tensor) -> tuple[float, float]:
    """The mean of ``values`` (m,) and its standard error when values of one user may all be alike.

        error² = Σ over users of (Σ over the user's values of (x − mean))² / m²

    With a single user the error is unknown, and 1 is returned for it.
    """
    mean = values.mean()
    names, place = torch.unique(users, return_inverse=True)
    if len(names) < 2:
        return float(mean), 1.0
    sums = torch.zeros(len(names), dtype=values.dtype).index_add_(0, place, values - mean)
    return float(mean), float(sums.square().sum().sqrt() / len(values))


def mean(values: torch.Tensor) -> float:
    """The mean of ``values`` (n,), rounded as in results."""
    return rounded(values.double().mean())


# Histories of sequential models; `scores.py` defines cleaned, uncleaned and emptied ones


def _histories(view: View) -> tuple[HistoryQuestions, HistoryObservation]:
    assert isinstance(view.questions, HistoryQuestions)
    assert isinstance(view.seen, HistoryObservation)
    return view.questions, view.seen


@measure(
    "uncleaned", title="Uncleaned histories", of_sequences=True, place=2,
    meaning="the same rate with histories that still hold the deleted interactions: the memory of the weights",
    good="the retrained model's", parts={"demotion_rate": ": demotion rate"},
)  # fmt: skip
def _uncleaned(view: View) -> dict[str, Figure]:
    questions, seen = _histories(view)
    return {"uncleaned": {"demotion_rate": mean(seen.uncleaned)}} if len(questions.deleted) else {}


@measure(
    "emptied", title="Emptied histories", of_sequences=True, discloses="emptied", place=2,
    meaning="deleted items with nothing retained before them, as of whole users, after their uncleaned histories",
    good="the retrained model's",
    parts={"demotion_rate": ": demotion rate", "held_out": ": held-out items of others"},
)  # fmt: skip
def _emptied(view: View) -> dict[str, Figure]:
    questions, seen = _histories(view)
    if not len(questions.emptied) or not len(questions.control):  # without a control it means nothing
        return {}
    return {"emptied": {"demotion_rate": mean(seen.emptied), "held_out": mean(seen.control)}}


@measure(
    "emptied_gap", title="Emptied histories: demotion gap",
    meaning="how much more that rate differs from the retrained model's than that of held-out items of others does",
    good="0, within twice its error",
    parts=GAP, is_distance=True, of_sequences=True, discloses="emptied", place=5,
)  # fmt: skip
def _emptied_gap(view: View) -> dict[str, Figure]:
    (questions, seen), target = _histories(view), view.target
    assert isinstance(target, HistoryObservation)
    if not len(questions.emptied) or not len(questions.control):
        return {}
    gap = clustered(seen.emptied.double() - target.emptied.double(), questions.emptied.users)
    other = clustered(seen.control.double() - target.control.double(), questions.control.users)
    error = math.hypot(gap[1], other[1])  # they are of different users
    return {"emptied_gap": {"mean": rounded(gap[0] - other[0]), "error": rounded(error)}}


# Membership inference: an attacker tells deleted pairs (members) from held-out positives of the same users, matched
# by popularity. It fits a logistic regression on the model's answers, and is scored on users it has not seen. The
# target is not .5 but the retrained model's value: noise differs from preferences also where it was never seen.


def auc_interval(members: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """AUC = P(member scores above non-member) and its 95 % interval by DeLong.

    With V₁₀ the share of non-members below each member and V₀₁ the share of members above each non-member,
    Var(AUC) = Var(V₁₀)/m + Var(V₀₁)/n.
    """
    m, ranks = len(members), stats.rankdata(np.concatenate([members, others]))  # ties count half
    above = (ranks[:m] - stats.rankdata(members)) / len(others)
    below = 1.0 - (ranks[m:] - stats.rankdata(others)) / m
    auc = float(above.mean())
    half = 1.96 * float(np.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / len(others)))
    return auc, max(0.0, auc - half), min(1.0, auc + half)


def tpr_at_fpr(members: np.ndarray, others: np.ndarray, fpr: float = 0.01) -> float:
    """The share of members found when at most ``fpr`` of non-members are accused."""
    return float((members > np.quantile(others, 1.0 - fpr, method="higher")).mean())


def found_at(members: np.ndarray, others: np.ndarray, fpr: float) -> Metrics:
    """As :func:`tpr_at_fpr`, under its name (`tpr@1%fpr`), with Wilson's 95 % interval for that many members."""
    key, share = f"tpr@{100 * fpr:g}%fpr", tpr_at_fpr(members, others, fpr)
    between = stats.binomtest(round(share * len(members)), len(members)).proportion_ci(method="wilson")
    return {key: share, f"{key}_low": float(between.low), f"{key}_high": float(between.high)}


def attack(members: np.ndarray, others: np.ndarray, users: np.ndarray) -> dict[str, Any] | None:
    """AUC with interval and TPR at 1 % FPR by features (m, f) of members and others; None with few ``users`` (m,)."""
    if len(np.unique(users)) < 2 * FOLDS:
        return None
    x, y = np.concatenate([members, others]), np.repeat([1, 0], [len(members), len(others)])
    model = make_pipeline(StandardScaler(), LogisticRegression(solver="newton-cholesky"))
    with threadpool_limits(1):  # small matrices: more threads only wait for each other
        groups = np.concatenate([users, users])
        guess = cross_val_predict(model, x, y, groups=groups, cv=GroupKFold(FOLDS), method="decision_function")
    auc, low, high = auc_interval(guess[y == 1], guess[y == 0])
    found = {"auc": auc, "low": low, "high": high, "tpr@1%fpr": tpr_at_fpr(guess[y == 1], guess[y == 0])}
    return {key: round(value, 4) for key, value in found.items()} | {"pairs": len(members)}


def membership(questions: Questions, standings: Sequence[tuple[Standing, Standing]]) -> dict[str, Any] | None:
    """The attack by the answers of one or more models, (deleted, held out) each."""
    if len(questions.members) == 0:
        return None
    pick = np.arange(len(questions.members))
    if len(pick) > ATTACKED:
        pick = np.sort(np.random.default_rng(0).choice(len(pick), ATTACKED, replace=False))
    # What the attacker sees of each pair (m, 2k): its score and its share of demotions under each of k models.
    members, others = (
        torch.stack([x for one in own for x in (one.score, one.demoted)], dim=1).double().numpy()
        for own in zip(*standings, strict=True)
    )
    members, others = members[questions.members.numpy()[pick]], others[pick]
    return attack(members, others, questions.held_out.users.numpy()[pick])


@measure(
    "attack", title="Attack", parts=AUC, discloses="matched", place=3,
    meaning="an attacker with this model alone tells deleted pairs from held-out ones; guessing gives 0.5 and 0.01",
    good="the retrained model's, within the intervals",
)  # fmt: skip
def _attack_alone(view: View) -> dict[str, Figure]:
    found = membership(view.questions, [(view.seen.deleted, view.seen.held_out)])
    return {} if found is None else {"attack": found}


@measure(
    "attack_before_after", title="Attack, before and after", parts=AUC, discloses="matched", place=4,
    meaning="the same with the models before and after; guessing gives 0.5 and 0.01",
    good="the retrained model's, within the intervals",
)  # fmt: skip
def _attack_before_after(view: View) -> dict[str, Figure]:
    if view.before is None:
        return {}
    found = membership(view.questions, [(one.deleted, one.held_out) for one in (view.before, view.seen)])
    return {} if found is None else {"attack_before_after": found}


# Score distributions of deleted pairs, relative to the user's other items: (s − mean)/std


def kolmogorov_smirnov(a: torch.Tensor, b: torch.Tensor) -> float:
    """Sup |F_a − F_b|: the largest difference of the two distribution functions, between 0 and 1."""
    return float(stats.ks_2samp(a.numpy(), b.numpy(), method="asymp").statistic)


@measure(
    "ks", title="Kolmogorov–Smirnov", is_distance=True, place=6,
    meaning="largest difference of the distribution functions of the deleted pairs' scores, here and retrained",
    good="that of two retrained models; 0 is equal",
)  # fmt: skip
def _ks(view: View) -> dict[str, Figure]:
    return {"ks": rounded(kolmogorov_smirnov(view.seen.deleted.score, view.target.deleted.score))}


def histograms(scores: Mapping[str, torch.Tensor]) -> dict[str, Distribution]:
    """Counts in the same bins for all of ``scores``; values outside count in the first or last bin."""
    low, high = np.quantile(torch.cat(list(scores.values())).numpy(), [0.001, 0.999])
    edges, found = np.linspace(low, high, BINS + 1), {}
    for name, values in scores.items():
        counts = np.histogram(np.clip(values.double().numpy(), edges[0], edges[-1]), bins=edges)[0]
        found[name] = Distribution([round(float(edge), 4) for edge in edges], counts.tolist())
    return found


def _by_group(view: View, values: torch.Tensor) -> dict[str, float]:
    affected = view.questions.affected
    who = {"all": torch.ones_like(affected), "affected": affected, "unaffected": ~affected}
    return {group: rounded(values[mask].mean()) for group, mask in who.items() if mask.any()}


@measure(
    "overlap", title="Top-{k} overlap", parts=_USERS, is_distance=True, place=8,
    meaning="share of the first K items that the retrained model's list has too",
    good="that of two retrained models; 1 is equal",
)  # fmt: skip
def _overlap(view: View) -> dict[str, Figure]:
    """|A_K ∩ B_K| / K over users, for K = 20 or the whole of shorter lists."""
    mine, target = (one.top[:, :20] for one in (view.seen, view.target))
    same = (mine[:, :, None] == target[:, None, :]).sum(dim=(1, 2))
    return {"overlap@20": _by_group(view, same / mine.shape[1])}
