"""Losses and validation scores of each epoch for Weights & Biases, one set of curves for each training of a run.

It takes the place of RecBole's `WandbLogger`, which gives all trainings the same names, and sends the test figures of
every evaluation (a small request could be recognised in them) and the whole config with its paths.
"""

from __future__ import annotations

from typing import Any

from recbole_unlearn.settings import UnlearnConfig


class NoCurves:
    """Sends nothing."""

    def log_metrics(self, metrics: dict[str, Any], head: str = "train", commit: bool = True) -> None:
        """Drop the figures of an epoch."""

    def log_eval_metrics(self, metrics: dict[str, Any], head: str = "eval") -> None:
        """Drop the figures of an evaluation: a result has them at its end, as far as they may be shown."""


class WandbCurves(NoCurves):
    """Sends the figures of each epoch to the W&B run that is open, as `original/train/train_loss`."""

    def __init__(self, run: Any, label: str) -> None:
        self.run, self.label = run, label
        for head in ("train", "valid"):
            step = f"{label}/{head}_step"
            run.define_metric(step)
            run.define_metric(f"{label}/{head}/*", step_metric=step)

    def log_metrics(self, metrics: dict[str, Any], head: str = "train", commit: bool = True) -> None:
        """Send the figures of an epoch."""
        named = {
            f"{self.label}/{key}" if key.endswith("_step") else f"{self.label}/{head}/{key}": value
            for key, value in metrics.items()
        }
        self.run.log(named, commit=commit)


def curves_of(config: UnlearnConfig, label: str) -> NoCurves:
    """What a trainer with this config sends its epochs to."""
    if not config["log_wandb"]:
        return NoCurves()
    import wandb

    return NoCurves() if wandb.run is None else WandbCurves(wandb.run, label)
