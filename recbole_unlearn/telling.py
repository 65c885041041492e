"""What a run says of its request and its models, on the screen and in its log: counts, and figures that may be shown.

Nobody is named. Where a request is of few users, what comes here has been rounded or left out before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from recbole_unlearn.data import UnlearnData
from recbole_unlearn.results import Forgotten, PhaseResult, Withheld
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.words import counted

logger = logging.getLogger(__name__)


def say_what_is_forgotten(
    config: UnlearnConfig, data: UnlearnData, forget: Forgotten, withheld: Withheld | None
) -> None:
    """How much a request takes away, and what follows from that for all phases."""
    if data.done_earlier is not None:
        logger.info(
            "This request was carried out earlier (%s): its interactions are not in the data, and no weight has to "
            "change.", data.done_earlier,
        )  # fmt: skip
        return
    logger.info(
        "%s with %s on %s: forgetting %s%d of %s, of %s and %s.",
        config["unlearn"], config["model"], config["dataset"], "about " if withheld else "", forget.interactions,
        counted(len(data.full.train), "training interaction"), counted(forget.users, "user"),
        counted(forget.items, "item"),
    )  # fmt: skip
    if withheld is not None:
        logger.info(withheld.why)
    if len(data.forget) == 0:
        logger.info(
            "The request hits validation and test interactions alone. No model was trained on them, so no weight has "
            "to change; they leave the retained data."
        )
    elif forget.counts:
        _say_what_is_left_out(forget.counts)


def _say_what_is_left_out(counts: Mapping[str, int]) -> None:
    held_out = counts["valid_rows_removed"] + counts["test_rows_removed"]
    if held_out:
        logger.warning(
            "The request also hits %s and %s. No model trained on them; they are left out of those splits for every "
            "phase.",
            counted(counts["valid_rows_removed"], "validation interaction"),
            counted(counts["test_rows_removed"], "test interaction"),
        )
    if counts["orphan_users"] or counts["orphan_items"]:
        logger.warning(
            "Without any training interaction left: %s and %s. They are treated as never seen, and %s of theirs left "
            "out of utility.",
            counted(counts["orphan_users"], "user"),
            counted(counts["orphan_items"], "item"),
            counted(counts["orphan_test_rows"], "test interaction"),
        )


def say_what_was_measured(name: str, phase: PhaseResult) -> None:
    """The main figures of a model, in one line."""
    took = "loaded" if phase.seconds is None else f"{phase.seconds:.1f} s"
    parts = [f"{name}: {took}" + (" (cached)" if phase.seconds_from_cache else "")]
    for figures, label in ((phase.metrics, "all"), (phase.affected, "affected")):
        if "ndcg@20" in figures:
            parts.append(f"NDCG@20 {label} {figures['ndcg@20']:.4f}")
    if phase.demotion_rate is not None:
        parts.append(f"demotion rate {phase.demotion_rate:.3f}")
    logger.info(", ".join(parts))
