"""Trainers: RecBole's, with safe evaluation, and with an unlearning phase.

:class:`PhaseTrainer` is mixed into whatever trainer RecBole picks for a model (:func:`compose`), so that
models with a trainer of their own keep it. It keeps the best epoch in memory instead of in a file (nothing
that was trained on deleted rows is left on disk), shows one progress bar for a whole training, and stops at
a loss that is not a number. :class:`UnlearnTrainer` adds the phase every method goes through: prepare,
unlearn, check, and it is what a method subclasses.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import get_trainer, init_seed, set_color
from tqdm import tqdm

from recbole_unlearn import compat, tables
from recbole_unlearn.config import UnlearnConfig
from recbole_unlearn.data import Loaders, Splits, UnlearnData, loaders
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.index import TrainIndex
from recbole_unlearn.recbole_values import refuse_unmeasured


@dataclasses.dataclass
class Trained:
    """A trained model as data: what a checkpoint holds of it."""

    state_dict: dict[str, torch.Tensor]
    optimizer: dict[str, Any] | None
    other_parameter: dict[str, Any]
    epoch: int
    seconds: float | None = None
    from_cache: bool = False

    def load_weights(self, model: AbstractRecommender) -> None:
        """Put these weights into ``model``, and nothing else: what the model knows of its data stays."""
        try:
            model.load_state_dict(self.state_dict)
        except RuntimeError as error:
            raise UnlearnError(_misfit(self.state_dict, model)) from error
        clear_caches(model)

    def load_into(self, model: AbstractRecommender) -> None:
        """Make ``model``, built on the same rows, this trained model."""
        self.load_weights(model)
        model.load_other_parameter(self.other_parameter)
        clear_caches(model)


def _misfit(state: dict[str, torch.Tensor], model: AbstractRecommender) -> str:
    """Why weights do not fit a model, by the first parameter that differs."""
    own = model.state_dict()
    text = "The weights do not fit the model and dataset"
    hint = "Give the dataset, data_path and settings that the checkpoint was trained with."
    for name in sorted(state.keys() | own.keys()):
        if name not in state or name not in own:
            where = "the model" if name in own else "the checkpoint"
            return f"{text}: {name} is only in {where}. {hint}"
        if state[name].shape != own[name].shape:
            return (
                f"{text}: {name} is {list(state[name].shape)} there and {list(own[name].shape)} here. {hint}"
            )
    return f"{text}. {hint}"


def clear_caches(model: AbstractRecommender) -> None:
    """Forget embeddings a model (or a part of it) keeps for evaluation; RecBole does so only in `calculate_loss`."""
    for part in model.modules():
        for name in cache_names(part):
            setattr(part, name, None)


def cache_names(model: torch.nn.Module) -> list[str]:
    """Those of the model's `other_parameter_name` that only cache what the weights already say."""
    names = getattr(model, "other_parameter_name", [])
    return [name for name in names if name.startswith("restore_") or name == "i_embedding"]


def build_model(config: UnlearnConfig, splits: Splits) -> AbstractRecommender:
    """A new model on the training rows of ``splits``, initialised from the config's seed as RecBole does."""
    init_seed(config["seed"], config["reproducibility"])
    try:
        with compat.dok_update():
            return config.model_class(config, splits.train).to(config["device"])
    except ImportError as error:
        raise _missing_package(config, error) from error


def _missing_package(config: UnlearnConfig, error: ImportError) -> UnlearnError:
    """Some of RecBole's models import what RecBole does not install, when built or while they train."""
    return UnlearnError(f"{config['model']} needs a package that is not installed: {error.name or error}.")


class PhaseTrainer:
    """Mixed into a RecBole trainer: trains and evaluates one phase."""

    label: str = "model"

    def __init__(self, config: UnlearnConfig, model: AbstractRecommender) -> None:
        folder = None
        if config["tensorboard"] and config["output_dir"]:
            folder = Path(config["output_dir"]) / "tensorboard" / self.label
        with compat.tensorboard_in(folder):
            super().__init__(config, model)
        # RecBole's trainer of closed-form models sets one epoch after this was read, and would never evaluate.
        self.eval_step = min(self.eval_step, self.epochs)
        self.eval_collector = compat.TensorCollector(config)
        self.best: Trained | None = None
        self.validation_seconds = 0.0
        self._bar: tqdm | None = None

    def train(self, data: Loaders) -> Trained:
        """Train to the best validation epoch and return it; the model holds its weights afterwards."""
        refuse_unmeasured(self.config)
        start = time.perf_counter()
        with tqdm(
            total=self.epochs,
            ncols=100,
            desc=set_color(f"Train {self.label}", "pink"),
            unit="epoch",
            disable=not self.config["show_progress"],
        ) as self._bar:
            try:
                self.fit(data.train, data.valid, verbose=False, saved=True, show_progress=False)
            except ImportError as error:
                raise _missing_package(self.config, error) from error
        self._bar = None
        seconds = time.perf_counter() - start - self.validation_seconds
        assert self.best is not None, "fit() saves at least one epoch"
        self.best.load_into(self.model)
        check_finite(self.model, self.label)
        return dataclasses.replace(self.best, seconds=seconds)

    def _train_epoch(self, train_data: Any, epoch_idx: int, *args: Any, **kwargs: Any) -> Any:
        result = super()._train_epoch(train_data, epoch_idx, *args, **kwargs)
        if self._bar is not None:
            self._bar.update(epoch_idx + 1 - self._bar.n)
        return result

    def _valid_epoch(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = super()._valid_epoch(*args, **kwargs)
        self.validation_seconds += time.perf_counter() - start
        return result

    def _check_nan(self, loss: torch.Tensor) -> None:
        if not torch.isfinite(loss):
            raise UnlearnError(
                f"Training of the {self.label} model failed: the loss is {loss.item()}. "
                "Lower learning_rate, or set clip_grad_norm."
            )

    def _save_checkpoint(self, epoch: int, verbose: bool = True, **kwargs: Any) -> None:
        self.best = self.snapshot(epoch)

    def snapshot(self, epoch: int = -1) -> Trained:
        """The model and its optimizer as they are now, copied."""
        state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        caches = cache_names(self.model)
        other = {k: v for k, v in self.model.other_parameter().items() if k not in caches}
        return Trained(state, copy.deepcopy(self.optimizer.state_dict()), other, epoch)

    def evaluate(
        self,
        eval_data: Any,
        load_best_model: bool = True,
        model_file: str | None = None,
        show_progress: bool = False,
    ) -> Any:
        """RecBole's evaluation; the best model comes from memory, never from a pickle."""
        if load_best_model and self.best is not None:
            self.best.load_into(self.model)
        return super().evaluate(eval_data, load_best_model=False, show_progress=show_progress)

    def validation_score(self, model: AbstractRecommender, valid_data: Any) -> float:
        """RecBole's validation score of ``model``, turned so that higher is better; this trainer's model stays."""
        own, self.model = self.model, model
        try:
            score = float(self._valid_epoch(valid_data)[0])
        finally:
            self.model = own
        return score if self.valid_metric_bigger else -score

    @torch.no_grad()
    def scores(self, users: torch.Tensor, dataset: Any) -> torch.Tensor:
        """Scores of all items for ``users`` (n,), shape (n, items), on the CPU; padding is -inf."""
        self.model.eval()
        if self.item_tensor is None:
            self.item_tensor = dataset.get_item_feature().to(self.device)
        self.tot_item_num = dataset.item_num
        batch = dataset.join(Interaction({dataset.uid_field: users}))
        return self._full_sort_batch_eval((batch, None, None, None))[1].cpu()


def check_finite(model: AbstractRecommender, label: str) -> None:
    """Refuse a model with NaN or infinite weights: it is neither evaluated nor saved."""
    for name, value in model.named_parameters():
        if not torch.isfinite(value).all():
            raise UnlearnError(
                f"The {label} model has weights that are not finite ({name}); nothing was saved. "
                "Lower the learning rate or the step size."
            )


class Job(NamedTuple):
    """One training: a model of ``splits`` from the config's seed, or from the weights ``start``."""

    config: UnlearnConfig
    splits: Splits
    label: str
    start: dict[str, torch.Tensor] | None = None


def train(
    config: UnlearnConfig, splits: Splits, label: str, start: dict[str, torch.Tensor] | None = None
) -> Trained:
    """Train a new model on ``splits``, see :class:`Job`."""
    model = build_model(config, splits)
    if start is not None:
        model.load_state_dict(start)
    return compose(PhaseTrainer, config, model, label).train(loaders(config, splits))


def train_all(jobs: Sequence[Job]) -> list[Trained]:
    """Independent trainings, one after the other."""
    return [train(*job) for job in jobs]


@dataclasses.dataclass(frozen=True)
class Watch:
    """Somebody who wants to see the model before a method that works in steps has ended."""

    steps: frozenset[int]  # after which
    look: Callable[
        [UnlearnTrainer, int, float], None
    ]  # at the trainer, after a step, the method's seconds so far


@dataclasses.dataclass(frozen=True)
class UnlearnTask:
    """All a method needs: the data, the original, and a way to train."""

    config: UnlearnConfig
    data: UnlearnData
    original: Trained | None  # None where nothing in the run needs the plain original
    initial: dict[str, torch.Tensor]  # parameters of a model that has seen nothing yet
    settings: Any  # an instance of the method's Settings
    train: Callable[..., Trained]  # takes a Job's parts
    label: str = "unlearned"
    repeat: int = 0  # how often this method ran before in the same run
    train_all: Callable[[Sequence[Job]], list[Trained]] = train_all
    stored: Path | None = None  # where the method's own original was saved, when the run starts from it
    watch: Watch | None = None


class Originated(NamedTuple):
    """A method's own original: the model, and the time its training took."""

    model: AbstractRecommender
    seconds: float | None
    from_cache: bool


class UnlearnTrainer(PhaseTrainer):
    r"""Base of all methods: a RecBole trainer over the retained data with an unlearning phase.

    ``self.model`` was built on D\S and holds the original's weights when :meth:`prepare` is called. A
    method overrides :meth:`unlearn`, which changes ``self.model``, and may override :meth:`prepare`.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    Settings: ClassVar[type]
    exact: ClassVar[bool] = False  # the result is a model retrained on D\S
    needs_original: ClassVar[bool] = True  # starts from the original's weights
    own_original: ClassVar[bool] = False  # trains in a way of its own from the start, see originate

    seconds: float | None = None
    from_cache: bool = False
    refits_orphan_items: bool = False  # the method itself set them back, and fitted them as negatives

    def __init__(self, config: UnlearnConfig, model: AbstractRecommender) -> None:
        super().__init__(config, model)
        self.certificates: dict[str, Any] = {}  # what the method can prove of its result
        self.curves: dict[str, list[tuple[int, float]]] = {}  # (step, value), for the report
        self._start = self._looked = 0.0

    @classmethod
    def check(cls, settings: Any) -> None:
        """Refuse ``settings`` that do not go together; limits of single keys are checked before."""

    @classmethod
    def steps(cls, settings: Any) -> int:
        """After how many steps the method ends, when it lets others watch them; 0 when it does not."""
        return 0

    @classmethod
    def settings_after(cls, settings: Any, step: int) -> dict[str, Any]:
        """What to change in ``settings`` so that the result is what :meth:`show` shows after ``step`` steps."""
        raise NotImplementedError(f"{cls.__name__} has no steps to watch.")

    def originate(self, task: UnlearnTask) -> Originated:
        """The model of D as this method trains it, for methods with an original of their own; comes before `run`."""
        raise NotImplementedError(f"{type(self).__name__} starts from the plain original.")

    def prepare(self, task: UnlearnTask) -> None:
        """Work that is done once before a request arrives and is not timed. By default nothing."""

    def unlearn(self, task: UnlearnTask) -> None:
        """Change ``self.model`` so that it behaves as if it had never seen ``task.data.forget``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement unlearn().")

    def reset_orphans(self, task: UnlearnTask) -> None:
        """Give users and items without a row left their initial values."""
        if not self.exact:
            data = task.data
            items = data.orphan_items[:0] if self.refits_orphan_items else data.orphan_items
            tables.reset_rows(self.model, task.initial, data.retain.train, data.orphan_users, items)

    def certify(self, task: UnlearnTask) -> None:
        """Fill in ``self.certificates`` once the model is final; not timed. By default nothing."""

    def save(self, directory: Path, data: UnlearnData) -> Path | None:
        """Write the result in a form of the method's own; None where RecBole's checkpoint does."""
        return None

    def run(self, task: UnlearnTask) -> None:
        """The phase: prepare, unlearn (timed), and leave a model that is clean and finite."""
        self.prepare(task)
        self._start = time.perf_counter()
        self.unlearn(task)
        self.reset_orphans(task)
        if self.seconds is None:
            self.seconds = time.perf_counter() - self._start - self._looked
        clear_caches(self.model)
        check_finite(self.model, task.label)
        self.certify(task)
        clear_caches(self.model)
        for name, points in self.curves.items():
            for step, value in points:
                self.tensorboard.add_scalar(f"Unlearn/{name}", value, step)

    def show(self, task: UnlearnTask, step: int) -> None:
        """Let ``task.watch`` see the model as if the method ended after ``step`` steps.

        A method with steps calls this. It takes none of the method's seconds, and leaves weights and random numbers
        as they were.
        """
        assert task.watch is not None
        now = time.perf_counter()
        before = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        with torch.random.fork_rng([self.device] if torch.device(self.device).type == "cuda" else []):
            self.reset_orphans(task)
            clear_caches(self.model)
            check_finite(self.model, task.label)
            task.watch.look(self, step, now - self._start - self._looked)
        with torch.no_grad():
            for name, value in self.model.named_parameters():
                value.copy_(before[name])
        clear_caches(self.model)
        self._looked += time.perf_counter() - now


class IndexedTrainer(UnlearnTrainer):
    """Base of methods that look rows up by user, item and pair."""

    def prepare(self, task: UnlearnTask) -> None:
        """Index the training rows; the index serves any number of requests."""
        self.index = TrainIndex(task.data.full.train).complete()

    def certify(self, task: UnlearnTask) -> None:
        """Drop the index, which holds deleted rows."""
        del self.index


def compose(cls: type[PhaseTrainer], config: UnlearnConfig, model: AbstractRecommender, label: str) -> Any:
    """An instance of ``cls`` mixed into the trainer RecBole uses for this model."""
    base = get_trainer(config["MODEL_TYPE"], config["model"])
    combined = type(f"{cls.__name__}{base.__name__}", (cls, base), {"label": label})
    return combined(config, model)
