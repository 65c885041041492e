"""Membership inference: how well an attacker tells deleted pairs from held-out positives.

Members are deleted pairs, non-members held-out positives of the same users, matched by popularity (`observe.match`).
The attacker fits a logistic regression on what the model answers, and is scored on users it has not seen. A good
value is not .5 but the retrained model's own: noise differs from real preferences even for a model that never saw it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from recbole_unlearn.measures.base import View, measure
from recbole_unlearn.measures.scores import Observation, Standing
from recbole_unlearn.results.schema import Figure

MOST = 5_000  # pairs of each kind; the interval is then about .01 wide
FOLDS = 5


def features(*standings: Standing) -> np.ndarray:
    """What the attacker sees of each pair (m, 2k): its score and its share of demotions under each model.

    With two models (before and after) a linear classifier also has their difference.
    """
    return torch.stack([x for s in standings for x in (s.score, s.demoted)], dim=1).double().numpy()


def auc_interval(members: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """AUC = P(member scores above non-member) and its 95 % interval by DeLong.

    With V₁₀ the share of non-members below each member and V₀₁ the share of members above each non-member,
    Var(AUC) = Var(V₁₀)/m + Var(V₀₁)/n.
    """
    above = _share_below(others, members)
    below = 1.0 - _share_below(members, others)
    auc = float(above.mean())
    variance = above.var(ddof=1) / len(above) + below.var(ddof=1) / len(below)
    half = 1.96 * float(np.sqrt(variance))
    return auc, max(0.0, auc - half), min(1.0, auc + half)


def _share_below(reference: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The share of ``reference`` below each of ``values``, ties counted half."""
    ordered = np.sort(reference)
    low, high = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return (low + high) / (2.0 * len(ordered))


def tpr_at_fpr(members: np.ndarray, others: np.ndarray, fpr: float = 0.01) -> float:
    """The share of members found when at most ``fpr`` of non-members are accused."""
    threshold = np.quantile(others, 1.0 - fpr, method="higher")
    return float((members > threshold).mean())


def attack(members: np.ndarray, others: np.ndarray, users: np.ndarray) -> dict[str, Any] | None:
    """AUC with interval and TPR at 1 % FPR, from features (m, f) of members and of others; None with too few users.

    ``users`` (m,) are those of the pairs; no user is in both training and test of the attacker.
    """
    if len(np.unique(users)) < 2 * FOLDS:
        return None
    x, y = np.concatenate([members, others]), np.repeat([1, 0], [len(members), len(others)])
    model = make_pipeline(StandardScaler(), LogisticRegression(solver="newton-cholesky"))
    folds = GroupKFold(FOLDS)
    # Small matrices: more threads only wait for each other.
    with threadpool_limits(1):
        guess = cross_val_predict(
            model, x, y, groups=np.concatenate([users, users]), cv=folds, method="decision_function"
        )
    auc, low, high = auc_interval(guess[y == 1], guess[y == 0])
    return {
        "auc": round(auc, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "tpr@1%fpr": round(tpr_at_fpr(guess[y == 1], guess[y == 0]), 4),
        "pairs": len(members),
    }


def membership(view: View, before: Observation | None = None) -> dict[str, Any] | None:
    """The attack on one model, or on a model whose state ``before`` the attacker has as well."""
    questions = view.questions
    if len(questions.members) == 0:
        return None
    pick: Any = slice(None)
    if len(questions.members) > MOST:
        pick = np.sort(np.random.default_rng(0).choice(len(questions.members), MOST, replace=False))
    seen = [before, view.seen] if before is not None else [view.seen]
    members = features(*(one.deleted for one in seen))[questions.members.numpy()][pick]
    others = features(*(one.held_out for one in seen))[pick]
    return attack(members, others, questions.held_out.users.numpy()[pick])


@measure(
    "attack",
    title="Attack",
    meaning="an attacker with this model alone tells deleted pairs from held-out ones; guessing gives 0.5 and 0.01",
    good="the retrained model's, within the intervals",
    parts={"auc": ": AUC", "tpr@1%fpr": ": TPR at 1% FPR"},
    discloses="matched",
    place=3,
)
def _attack(view: View) -> dict[str, Figure]:
    found = membership(view) if len(view.questions.deleted) else None
    return {} if found is None else {"attack": found}


@measure(
    "attack_before_after",
    title="Attack, before and after",
    meaning="the same with the models before and after; guessing gives 0.5 and 0.01",
    good="the retrained model's, within the intervals",
    parts={"auc": ": AUC", "tpr@1%fpr": ": TPR at 1% FPR"},
    discloses="matched",
    place=4,
)
def _attack_before_after(view: View) -> dict[str, Figure]:
    if view.before is None or not len(view.questions.deleted):
        return {}
    found = membership(view, view.before)
    return {} if found is None else {"attack_before_after": found}
