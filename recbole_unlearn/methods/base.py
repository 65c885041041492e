"""The base of all methods: :class:`UnlearnTask` goes in, a :class:`UnlearnTrainer` works, :class:`Outcome` comes out.

Everything derived from one request (indices, adapters, batches with deleted interactions) is local to
:meth:`UnlearnTrainer.unlearn` and freed when it returns. A trainer keeps only the new model and the item counts that
the next request needs.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType

from recbole_unlearn.data import SequenceSplits, UnlearnData
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Trained, write_model
from recbole_unlearn.recbole_compat import clear_caches
from recbole_unlearn.rows import Earlier, TrainIndex, find_features, find_tables, reset_rows, reset_to_rarest
from recbole_unlearn.settings import UnlearnConfig, pushes_all_items
from recbole_unlearn.training import Job, PhaseTrainer, check_finite, forget_neighbours, train_all

Curve = list[tuple[int, float]]  # (step, value)


@dataclasses.dataclass(frozen=True)
class UnlearnTask:
    """The input of a method: the data, the original, and a way to train."""

    config: UnlearnConfig
    data: UnlearnData
    original: Trained | None  # None where the run does not need the plain original
    initial: dict[str, torch.Tensor]  # parameters of an untrained model, on the CPU
    settings: Any  # an instance of the method's settings class
    train: Callable[..., Trained]  # takes the fields of a Job
    label: str = "unlearned"
    repeat: int = 0  # how often this method ran before in the same run
    train_all: Callable[[Sequence[Job]], list[Trained]] = train_all
    stored: Path | None = None  # directory of the method's own original, when the run starts from it
    prepared_index: TrainIndex | None = None  # of D, for methods with `needs_index`
    prepared: Any = None  # the result of the method's `prepare`

    @property
    def index(self) -> TrainIndex:
        """The training interactions by user, item and pair."""
        assert self.prepared_index is not None, "the method has to set needs_index"
        return self.prepared_index


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A method's statements about the model it made; every field may be left out."""

    certificates: dict[str, Any] = dataclasses.field(default_factory=dict)  # provable statements about the model
    curves: dict[str, Curve] = dataclasses.field(default_factory=dict)  # for the report
    seconds: float | None = None  # measured by the method itself; by default by a clock around it
    from_cache: bool = False
    trained: Trained | None = None  # of an exact method: the training's result with its optimizer
    refits_orphan_items: bool = False  # it gave orphan items a new start itself, and fitted them
    refitted_items: torch.Tensor | None = None  # items whose rows it refitted to retained interactions
    certify: Callable[[], dict[str, Any]] | None = None  # certificates of the final model; not timed
    earlier: list[Earlier] | None = None  # what all rows it wrote were before, in that order; None: any may be new


class UnlearnTrainer(PhaseTrainer):
    r"""Base of all methods: a RecBole trainer over the retained data with an unlearning phase.

    ``self.model`` was built on D\S and holds the original's weights when :meth:`unlearn` is called. A method
    overrides :meth:`unlearn`, which changes ``self.model``.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    verb: ClassVar[str] = "unlearn with"  # in the plan of a run, before its name
    Settings: ClassVar[type]
    exact: ClassVar[bool] = False  # the result is a function of D\S alone
    reference: ClassVar[bool] = False  # the model that all others are measured against
    auto_order: ClassVar[int | None] = None  # --unlearn=auto takes the first exact method that suits a model
    needs_original: ClassVar[bool] = True  # starts from the original's weights
    needs_index: ClassVar[bool] = False  # looks interactions up by user, item and pair
    needs_gradients: ClassVar[bool] = False  # cannot work on a closed-form model
    on_sequences: ClassVar[bool] = False  # works on sequential models, whose windows share interactions
    on_knowledge: ClassVar[bool] = False  # works on knowledge-aware models, which learn a graph as well
    fits_closed_forms: ClassVar[bool] = False  # unlearn fits or downdates closed forms; the model is built without
    own_original: ClassVar[bool] = False  # trains an original of its own, see originate
    # Advice of the report when a result shows too little or too much forgetting, such as "raise finetune_epochs";
    # empty where no setting changes it.
    forgets_more: ClassVar[Sequence[str]] = ()
    forgets_less: ClassVar[Sequence[str]] = ()
    of_pairs: ClassVar[Sequence[str]] = ()  # settings without a meaning for a sequential model

    fitted: torch.Tensor | None = None  # (items,), counts for the next request, see UnlearnData

    @classmethod
    def suits(cls, model: type[AbstractRecommender]) -> bool:
        """Whether --unlearn=auto may choose this method for models of a class; see `auto_order`."""
        return True

    @classmethod
    def check(cls, settings: Any, config: UnlearnConfig) -> None:
        """Refuse models and combinations of settings that the method cannot handle, before data is loaded."""
        if cls.needs_gradients and config["MODEL_TYPE"] == ModelType.TRADITIONAL:
            raise UnlearnError(
                f"{config['model']} is a closed form of its data, and {cls.name} needs gradients. "
                "Use --unlearn=obliviate or --unlearn=retrain, which are exact there."
            )

    @classmethod
    def training(cls, settings: Any, config: UnlearnConfig, repeat: int) -> UnlearnConfig:
        """The config with which an exact method trains; ``repeat`` as in :class:`UnlearnTask`."""
        return config

    @classmethod
    def epochs(cls, settings: Any, config: UnlearnConfig) -> int:
        """The largest number of epochs of a training, for methods that train."""
        return int(config["epochs"])

    def originate(self, task: UnlearnTask) -> Outcome:
        """Make ``self.model`` the method's own model of D, for methods with `own_original`; called before `run`."""
        raise NotImplementedError(f"{type(self).__name__} starts from the plain original.")

    def prepare(self, task: UnlearnTask) -> Any:
        """Untimed work that serves any number of requests to one model; the result becomes ``task.prepared``."""
        return None

    def unlearn(self, task: UnlearnTask) -> Outcome | None:
        """Change ``self.model`` so that it behaves as if it had never seen ``task.data.forget``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement unlearn().")

    def reset_orphans(self, task: UnlearnTask, refitted_items: bool = False) -> list[Earlier]:
        """Give orphans (users, items and values of features with no training interaction left) initial values.

        Where a sequential model's loss is over all items, training pushes items without interactions down: there,
        orphan items get the rows of the rarest items. Returns what the rows were.
        """
        if self.exact:
            return []
        users, items = task.data.unread
        items = items[:0] if refitted_items else items
        train = task.data.retain.train
        earlier = reset_rows(self.model, task.initial, find_tables(self.model, train), {"user": users, "item": items})
        if pushes_all_items(task.config):
            earlier += reset_to_rarest(self.model, train, items)
        return earlier + self.reset_features(task)

    def reset_features(self, task: UnlearnTask) -> list[Earlier]:
        """Give feature values that no training interaction has any more their initial rows."""
        features = find_features(self.model, task.data.retain.train)
        # Finding the values takes a pass over the data.
        return reset_rows(self.model, task.initial, features, task.data.orphan_values) if features else []

    def save(self, directory: Path, data: UnlearnData, home: Path) -> str:
        """Write the unlearned model and the retained data into ``directory``; returns the model's name.

        ``home`` is their final directory, which the checkpoint names.
        """
        optimizer = self._build_optimizer().state_dict()  # a new one, which has seen no gradient
        fitted = None if self.fitted is None else self.fitted.numpy()
        windows = data.retain.for_model() if isinstance(data.retain, SequenceSplits) else None
        return write_model(
            directory, home, self.config, self.snapshot(), optimizer, data.retain.everything(), data.clock, fitted,
            data.done, windows,
        )  # fmt: skip

    def keep(self, task: UnlearnTask) -> Outcome:
        """The phase of a request without training interactions: the model is the original, bit for bit."""
        assert task.original is not None
        task.original.load_into(self.model)
        forget_neighbours(self.model, task.data.retain.train)
        self.fitted = task.data.fitted_after(None)
        return Outcome(seconds=0.0)

    def apply(self, task: UnlearnTask) -> Outcome:
        """Unlearn (timed), reset orphans, and check that the weights are finite: the step runs and states share."""
        start = time.perf_counter()
        outcome = self.unlearn(task) or Outcome()
        orphans = self.reset_orphans(task, outcome.refits_orphan_items)
        seconds = time.perf_counter() - start
        clear_caches(self.model)
        if outcome.earlier is None:
            check_finite(self.model, task.label)
        else:
            earlier = [*outcome.earlier, *orphans]
            outcome = dataclasses.replace(outcome, earlier=earlier)
            check_finite(self.model, task.label, ((one.parameter, one.now(self.model)) for one in earlier))
        self.fitted = task.data.fitted_after(outcome.refitted_items)
        return dataclasses.replace(outcome, seconds=seconds) if outcome.seconds is None else outcome

    def run(self, task: UnlearnTask) -> Outcome:
        """The phase of a run: index the data, apply, certify; the result holds nothing of the request."""
        if self.needs_index:  # it serves any number of requests, so it is not timed with one
            index = TrainIndex(task.data.full.train).complete()
            task = dataclasses.replace(task, prepared_index=index)
        task = dataclasses.replace(task, prepared=self.prepare(task))
        outcome = self.apply(task)
        check_finite(self.model, task.label)  # all of it: the original's as well
        certificates = outcome.certificates | (outcome.certify() if outcome.certify else {})
        clear_caches(self.model)
        for name, points in outcome.curves.items():
            for step, value in points:
                self.tensorboard.add_scalar(f"Unlearn/{name}", value, step)
        return dataclasses.replace(
            outcome, certificates=certificates, refitted_items=None, certify=None, earlier=None
        )
