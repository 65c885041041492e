"""Models that other code made: they are loaded, and measured as those of our methods are (`judge.py`)."""

import dataclasses
from typing import Any

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files import read_checkpoint
from recbole_unlearn.methods import Outcome, UnlearnTask, UnlearnTrainer, method
from recbole_unlearn.settings import Role, UnlearnConfig, setting


@dataclasses.dataclass(frozen=True)
class GivenSettings:
    """Where the models are."""

    unlearned: str | None = setting("evaluate: the unlearned model.", role=Role.PLACE, per_run=False)
    retrained: str | None = setting("evaluate: the retrained model.", role=Role.PLACE, per_run=False)


@method("given", "Load a model that other code unlearned (`recbole-unlearn evaluate`).", GivenSettings)
class Given(UnlearnTrainer):
    """The model of a checkpoint, as it is."""

    verb = "load the model"
    role = "unlearned"
    on_sequences = True
    on_knowledge = True
    fits_closed_forms = True  # a closed form is not fitted: its file has it

    @classmethod
    def check(cls, settings: Any, config: UnlearnConfig) -> None:
        """Refuse runs without a model to load."""
        if getattr(settings, cls.role) is None:
            raise UnlearnError(
                f"{cls.name} measures a model that other code made: use `recbole-unlearn evaluate` (docs/judging.md)."
            )

    def apply(self, task: UnlearnTask) -> Outcome:
        """Load the model; how long it took to make is not known."""
        checkpoint = read_checkpoint(getattr(task.settings, self.role), task.config.model_class)
        if checkpoint.trained is None or checkpoint.model != task.config["model"]:
            raise UnlearnError(
                f"{shown(checkpoint.path)} is not one model of {task.config['model']}, which the original is."
            )
        checkpoint.trained.load_into(self.model)
        return Outcome()


@method("given_retrained", "Load a model that other code retrained, as the reference.", GivenSettings)
class GivenRetrained(Given):
    """As :class:`Given`; all others are measured against it."""

    role = "retrained"
    reference = True
