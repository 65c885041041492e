"""A warning, after a few steps of LAC, when unlearning is going to take longer than training did.

A step costs as much as one of the model's own training, on more interactions. For a model that was trained for a few
epochs, or is slow to compute and quick to train, retraining is then the better choice, and it is exact.
"""

from __future__ import annotations

import logging
import time

STEPS = 3  # after so many, the rest is foreseen
LEAST = 10.0  # seconds; nobody minds fewer

logger = logging.getLogger(__name__)


class Pace:
    """Foresees how long a request takes; ``trained`` is how long the original's training took, None if not known."""

    def __init__(self, trained: float | None) -> None:
        self.trained = trained
        self._start = self._first = time.perf_counter()

    def steps_begin(self) -> None:
        """All that comes before the steps is done."""
        self._first = time.perf_counter()

    def after(self, step: int, steps: int) -> None:
        """``step`` of ``steps`` are done."""
        if step != STEPS or self.trained is None:
            return
        whole = foreseen(self._first - self._start, time.perf_counter() - self._first, step, steps)
        if whole > max(LEAST, self.trained):
            logger.warning(
                "Obliviate will take about %.0f s here, and training the original took %.0f s: --unlearn=retrain is "
                "quicker, and exact.",
                whole, self.trained,
            )  # fmt: skip


def foreseen(before: float, spent: float, step: int, steps: int) -> float:
    """Seconds in all: ``before`` the steps, and ``spent`` on the first ``step`` of them as on all others."""
    return before + spent / step * steps
