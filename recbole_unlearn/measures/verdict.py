"""One sentence on a result: near retraining, short of it, beyond it, or not to be told."""

from __future__ import annotations

from typing import Any

TOLERANCE = 0.1  # of the demotion rate, unless two retrained models differ by more


def verdict(result: dict[str, Any]) -> dict[str, str]:
    """The level (near, under, over, unknown) and a sentence for people.

    The demotion rate of the deleted pairs is compared with the retrained model's. Within the tolerance it is *near*;
    below, the model still prefers what it should not know (*under*); above, it shows what was deleted (*over*).
    """
    phases = result["phases"]
    mine = phases["unlearned"]["forgetting"]
    rate = mine.get("demotion_rate")
    if "retrained" not in phases or rate is None:
        return {
            "level": "unknown",
            "text": "How near this model is to a retrained one is not known: retraining was not run "
            "(--compare=retrain).",
        }
    target = phases["retrained"]["forgetting"]
    second = phases.get("retrained_2", {}).get("forgetting", {}).get("demotion_rate")
    spread = abs(second - target["demotion_rate"]) if second is not None else 0.0
    gap = rate - target["demotion_rate"]
    level = "near" if abs(gap) <= max(TOLERANCE, 2 * spread) else "under" if gap < 0 else "over"
    start = {
        "near": "Forgotten, as far as measured: deleted items stand about where a retrained model puts them",
        "under": "Not fully forgotten: deleted items stand higher than a retrained model puts them",
        "over": "Forgotten too well: deleted items stand lower than a retrained model puts them, which can be seen",
    }[level]
    parts = [f"{start} (demotion rate {rate:.3f}, retrained {target['demotion_rate']:.3f})"]
    own, other = mine.get("attack"), target.get("attack")
    if own and other:
        alike = own["low"] <= other["high"] and other["low"] <= own["high"]
        parts.append(
            f"an attacker does {'as well as' if alike else 'otherwise than'} on the retrained model "
            f"(AUC {own['auc']:.2f}, retrained {other['auc']:.2f})"
        )
    share = result.get("recovered", {}).get("ndcg@20")
    if share is not None:
        parts.append(f"{share:.0%} of what retraining does for affected users is recovered")
    return {"level": level, "text": "; ".join(parts) + "."}
