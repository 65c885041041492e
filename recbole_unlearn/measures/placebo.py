"""The placebo: what is memory, and what is the method's own mark.

The method also runs on the retrained model, with the same request. That model never saw S, so all that the method
does to it is its *mark*. What is left between the results from the original and from the retrained model is *memory*:

    mark = method(retrained) − retrained,    memory = method(original) − method(retrained)
"""

from __future__ import annotations

from collections.abc import Mapping

from recbole_unlearn.measures.base import rounded
from recbole_unlearn.measures.distribution import kolmogorov_smirnov
from recbole_unlearn.measures.evaluation import Measured
from recbole_unlearn.results.schema import Metrics, Placebo


def compare(unlearned: Measured, placebo: Measured, retrained: Measured) -> Placebo:
    """The two differences, in demotion rate, in the attacker's AUC and between the scores of deleted pairs."""
    rate = placebo.forgetting.get("demotion_rate")
    return Placebo(
        rate if isinstance(rate, float) else None,
        mark=_difference(placebo, retrained),
        memory=_difference(unlearned, placebo),
    )


def _difference(after: Measured, before: Measured) -> Metrics:
    found: Metrics = {}
    rates = [one.forgetting.get("demotion_rate") for one in (after, before)]
    if isinstance(rates[0], float) and isinstance(rates[1], float):
        found["demotion"] = rounded(rates[0] - rates[1])
        found["ks"] = rounded(kolmogorov_smirnov(after.seen.deleted.score, before.seen.deleted.score))
    attacks = [one.forgetting.get("attack") for one in (after, before)]
    if isinstance(attacks[0], Mapping) and isinstance(attacks[1], Mapping):
        found["attack"] = rounded(attacks[0]["auc"] - attacks[1]["auc"])
    return found
