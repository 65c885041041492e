"""One sentence on a result: near retraining, short of it, beyond it, or unknown."""

from __future__ import annotations

from collections.abc import Mapping

from recbole_unlearn.results.schema import RETRAINED, SECOND, UNLEARNED, PhaseResult, Verdict

TOLERANCE = 0.1  # of the demotion rate, unless two retrained models differ by more
UNCHANGED = "No model was trained on the interactions of this request, so no weight had to change."
_WORDS = {
    "near": "Forgotten, as far as measured: deleted items rank about where a retrained model puts them",
    "under": "Not fully forgotten: deleted items rank higher than a retrained model puts them",
    "over": "Forgotten too well: deleted items rank lower than a retrained model puts them, which can be seen",
    "unknown": "How near this model is to a retrained one is not known: retraining was not run (--compare=retrain)",
}


def verdict(
    phases: Mapping[str, PhaseResult], recovered: Mapping[str, float], deleted: int | None = None
) -> Verdict:
    """The level (near, under, over, unknown) and a sentence for people.

    The demotion rate of the deleted pairs is compared with the retrained model's. Within the tolerance it is *near*;
    below, the model still prefers what it should not know (*under*); above, it shows what was deleted (*over*).
    Where no training interaction was ``deleted``, the original never saw what is to be forgotten.
    """
    if deleted == 0:
        return Verdict("near", UNCHANGED)
    level = _level(phases)
    return Verdict(level, sentence(level, phases, recovered))


def _level(phases: Mapping[str, PhaseResult]) -> str:
    rate, goal, second = (
        phases.get(name, PhaseResult()).demotion_rate for name in (UNLEARNED, RETRAINED, SECOND)
    )
    if rate is None or goal is None:
        return "unknown"
    spread = abs(second - goal) if second is not None else 0.0
    gap = rate - goal
    return "near" if abs(gap) <= max(TOLERANCE, 2 * spread) else "under" if gap < 0 else "over"


def sentence(level: str, phases: Mapping[str, PhaseResult], recovered: Mapping[str, float]) -> str:
    """A level in words, with those of its figures that are in ``phases`` and ``recovered``."""
    mine, target = (phases.get(name, PhaseResult()) for name in (UNLEARNED, RETRAINED))
    rate, goal = mine.demotion_rate, target.demotion_rate
    if level == "unknown":
        return f"{_WORDS[level]}."
    parts = [_WORDS[level]]
    if rate is not None and goal is not None:
        parts[0] += f" (demotion rate {rate:.3f}, retrained {goal:.3f})"
    own, other = mine.forgetting.get("attack"), target.forgetting.get("attack")
    if isinstance(own, dict) and isinstance(other, dict):
        alike = own["low"] <= other["high"] and other["low"] <= own["high"]
        parts.append(
            f"an attacker does {'as well as' if alike else 'differently than'} on the retrained model "
            f"(AUC {own['auc']:.2f}, retrained {other['auc']:.2f})"
        )
    share = recovered.get("ndcg@20")
    if share is not None:
        parts.append(f"{share:.0%} of what retraining does for affected users is recovered")
    return "; ".join(parts) + "."
