r"""Fine-tuning: a few more epochs on the retained interactions, from the original's weights.

The simplest baseline, from no paper: training continues as RecBole does it, on D\S only, and interactions that are
no longer trained on fade. Filled in: a new optimizer (the moments of the old one hold gradients of S), new samplers
over D\S (a deleted item can be drawn as a negative again), and a learning rate of its own. Avoided: a loader over D,
whose sampler never draws deleted pairs as negatives.
"""

import dataclasses

from recbole.utils import init_seed

from recbole_unlearn.data import SequenceSplits, loaders
from recbole_unlearn.log import progress_bar
from recbole_unlearn.methods import Outcome, UnlearnTask, UnlearnTrainer, method
from recbole_unlearn.settings import setting


@dataclasses.dataclass(frozen=True)
class FinetuneSettings:
    """Settings of fine-tuning."""

    finetune_epochs: int = setting("Epochs over the retained interactions.", low=1)
    finetune_learning_rate: float | None = setting("Their learning rate; the model's own when empty.", low=0.0)


@method("finetune", "Train a few more epochs on the retained interactions.", FinetuneSettings)
class Finetune(UnlearnTrainer):
    r"""θ after `finetune_epochs` epochs of the training objective over D\S, from θ₀. May change every weight."""

    needs_gradients = True
    on_sequences = True
    on_knowledge = True
    forgets_more = ("raise finetune_epochs", "raise finetune_learning_rate")
    forgets_less = ("lower finetune_epochs", "lower finetune_learning_rate")

    def unlearn(self, task: UnlearnTask) -> Outcome:
        """The epochs, as RecBole trains them."""
        options: FinetuneSettings = task.settings
        init_seed(task.config["seed"], task.config["reproducibility"])
        if options.finetune_learning_rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = options.finetune_learning_rate
        data = loaders(task.config, task.data.retain).train
        # Training may draw orphan items as negatives: these epochs start from their new rows.
        fits_orphans = isinstance(task.data.retain, SequenceSplits)
        if fits_orphans:
            self.reset_orphans(task)
        points, epochs = [], options.finetune_epochs
        with progress_bar(f"Finetune {self.label}", epochs, bool(task.config["show_progress"])) as self._bar:
            for epoch in range(epochs):
                loss = self._train_epoch(data, epoch)
                loss = sum(loss) if isinstance(loss, tuple) else loss
                points.append((epoch + 1, round(loss / len(data), 6)))
        self._bar = None
        return Outcome(curves={"loss": points}, refits_orphan_items=fits_orphans)
