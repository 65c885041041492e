r"""RMIA, a likelihood-ratio attack on single pairs, offline: with the retrained model as the only reference.

With p(z) the softmax probability of item i among all items of user u under the attacked model, z = (u, i), and
p_OUT(z) that under the retrained model, which never saw a deleted pair,

    Pr(z) = ½ ((1 + a) p_OUT(z) + 1 − a),    R(z) = p(z) / Pr(z),
    score(z) = share of held-out pairs z′ with R(z) / R(z′) ≥ γ,    γ = 2.

Members are deleted pairs, non-members the held-out pairs that they are matched to. A fifth of the users is the
attacker's: with their pairs `a` is chosen (by the AUC), and their held-out pairs are the z′. The other users' pairs
are scored. The retrained model has no score, since R would be 1; a second one is the *floor*, which is not exactly .5
because two trainings differ.

Injected noise has no score. Its items were chosen because no one likes them, so no held-out pair is like them, and a
model that never saw them but is of another recipe looks as if it had: rebuilt models had an AUC of .78 to .997.
"""

import numpy as np

from recbole_unlearn.measures.base import View, measure
from recbole_unlearn.measures.forgetting import AUC, FOLDS, auc_interval, found_at
from recbole_unlearn.results.schema import Figure

GAMMA = 2.0
SHARES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0)  # candidates for a: most items have small probabilities


def log_ratio(own: np.ndarray, reference: np.ndarray, a: float) -> np.ndarray:
    """Log R(z) by log p(z) and log p_OUT(z), each (n,)."""
    return own - np.log(((1.0 + a) * np.exp(reference) + 1.0 - a) / 2.0 + np.finfo(float).tiny)


def dominated(ratios: np.ndarray, population: np.ndarray) -> np.ndarray:
    """The share of ``population`` (k,) that each of ``ratios`` (n,) exceeds by γ or more; all are logarithms."""
    return np.searchsorted(np.sort(population), ratios - np.log(GAMMA), side="right") / len(population)


@measure(
    "rmia", title="RMIA", parts=AUC | {"tpr@0.1%fpr": ": TPR at 0.1% FPR"}, is_distance=True, discloses="matched",
    meaning="likelihood-ratio attack on single pairs, with the retrained model as reference; guessing gives 0.5",
    good="that of a second retrained or a rebuilt model", place=4,
)  # fmt: skip
def _rmia(view: View) -> dict[str, Figure]:
    """AUC and TPR at small FPR on the users that are not the attacker's; none with few users, or for noise."""
    questions = view.questions
    if questions.of_noise:
        return {}
    names, user = np.unique(questions.held_out.users.numpy(), return_inverse=True)
    if len(names) < 2 * FOLDS:
        return {}
    mine = np.random.default_rng(0).permutation(len(names))[user] < len(names) // FOLDS
    pairs = []  # log p and log p_OUT of members, then of the others
    for side in ("deleted", "held_out"):
        both = [getattr(model, side).log_p.double().numpy() for model in (view.seen, view.target)]
        pairs.append([one[questions.members.numpy()] if side == "deleted" else one for one in both])

    def scored(a: float, who: np.ndarray) -> list[np.ndarray]:
        ratios = [log_ratio(own, reference, a) for own, reference in pairs]
        return [dominated(one[who], ratios[1][mine]) for one in ratios]

    best = max(SHARES, key=lambda a: auc_interval(*scored(a, mine))[0])
    members, others = scored(best, ~mine)
    auc, low, high = auc_interval(members, others)
    found = {"auc": auc, "low": low, "high": high}
    found |= found_at(members, others, 0.01) | found_at(members, others, 0.001)
    return {"rmia": {key: round(value, 4) for key, value in found.items()} | {"pairs": len(members)}}
