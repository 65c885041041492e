"""RecBole's trainers with safe evaluation, and the training of one model.

:class:`PhaseTrainer` is mixed into the trainer that RecBole picks for a model (:func:`compose`), so models with their
own trainer keep it. It keeps the best epoch in memory instead of in a file (nothing that was trained on deleted
interactions is left on disk), shows one progress bar for a whole training, logs each epoch, and stops at a loss that
is not a number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType, get_trainer, init_seed
from tqdm import tqdm

from recbole_unlearn import recbole_compat
from recbole_unlearn.data import Loaders, Splits, loaders
from recbole_unlearn.errors import BAD_SETTING, UnlearnError, reason
from recbole_unlearn.files import Trained
from recbole_unlearn.log import progress_bar
from recbole_unlearn.recbole_compat import on_cpu
from recbole_unlearn.settings import UnlearnConfig, refuse_unmeasured, scores_pairs
from recbole_unlearn.training.downdate import is_fitted, unfitted
from recbole_unlearn.training.fast_models import fast_class
from recbole_unlearn.training.lean import LeanLoop
from recbole_unlearn.training.spectral import SPECTRAL, VALIDATED, SpectralStart

logger = logging.getLogger(__name__)
KEPT_SCORES = 2**26  # users × items that are kept at most, see PhaseTrainer.scored_once
Weights: TypeAlias = dict[str, torch.Tensor]
Watcher: TypeAlias = Callable[[str, int, int], None]  # takes a training's label, its epochs, and how many are done


def build_model(config: UnlearnConfig, splits: Splits, held: Mapping[str, Any] | None = None) -> AbstractRecommender:
    """A new model on the training interactions of ``splits``, initialised from the config's seed as RecBole does.

    ``held`` are other parameters that the caller has for it: with them EASE and ItemKNN are built without a fit.
    """
    init_seed(config["seed"], config["reproducibility"])
    try:
        with recbole_compat.dok_update(), recbole_compat.arrays_without_objects():
            if is_fitted(config.model_class, held):
                return unfitted(config.model_class, config, splits.train).to(config["device"])
            return fast_class(config.model_class)(config, splits.for_model().train).to(config["device"])
    except ImportError as error:
        raise _missing_package(config, error) from error
    except BAD_SETTING as error:
        raise _not_built(config["model"], error) from error


def _not_built(what: str, error: Exception) -> UnlearnError:
    why = f"RecBole cannot build {what} with these settings: {reason(error)}"
    return UnlearnError(f"{why}. Check the model's own settings.")


def _missing_package(config: UnlearnConfig, error: ImportError) -> UnlearnError:
    """Some of RecBole's models import packages that RecBole does not install, when built or during training."""
    return UnlearnError(f"{config['model']} needs a package that is not installed: {error.name or error}.")


if TYPE_CHECKING:  # mixed into the trainer that RecBole picks, see compose()
    from recbole.trainer import Trainer as _Trainer
else:
    _Trainer = object


def _tensorboard_in(folder: Path | None) -> contextlib.AbstractContextManager[None]:
    """Send RecBole's TensorBoard files to ``folder`` (None: nowhere) instead of the working directory."""
    from recbole.trainer import trainer as module
    from torch.utils.tensorboard import SummaryWriter

    def writer(logger: Any) -> Any:
        nowhere = dict.fromkeys(("add_scalar", "add_hparams"), lambda *args, **kwargs: None)
        return types.SimpleNamespace(**nowhere) if folder is None else SummaryWriter(str(folder))

    return recbole_compat.replaced(module, "get_tensorboard", writer)


class PhaseTrainer(_Trainer):
    """Mixed into a RecBole trainer: trains and evaluates one phase."""

    label: str = "model"
    model: AbstractRecommender
    eval_step: int
    item_tensor: Any
    test_batch_size: int
    _most: int | None = None  # users or windows at a time, for which memory sufficed
    _kept: dict[int, torch.Tensor] | None = None  # scores by user, see scored_once

    def __init__(self, config: UnlearnConfig, model: AbstractRecommender) -> None:
        folder = None
        if config["tensorboard"] and config["output_dir"]:
            folder = Path(config["output_dir"]) / "tensorboard" / self.label
        try:
            with _tensorboard_in(folder):
                super().__init__(config, model)
        except BAD_SETTING as error:
            raise _not_built("a trainer", error) from error
        # RecBole's trainer of closed-form models sets one epoch after this was read, and would never evaluate.
        self.eval_step = min(self.eval_step, self.epochs)
        self.eval_collector = recbole_compat.TensorCollector(config)
        self.best: Trained | None = None
        self.validation_seconds = 0.0
        self._bar: tqdm | None = None
        self._watcher: Watcher | None = None
        self._lean: LeanLoop | None = None

    def train(self, data: Loaders, watcher: Watcher | None = None) -> Trained:
        """Train to the best validation epoch and return it; the model holds its weights afterwards."""
        refuse_unmeasured(self.config)
        self._watcher = watcher
        if watcher is not None:
            watcher(self.label, self.epochs, 0)
        start = time.perf_counter()
        shown = bool(self.config["show_progress"])
        with progress_bar(f"Train {self.label}", self.epochs, shown, "epoch") as self._bar:
            try:
                verbose = self.config.leaves_curves
                self.fit(data.train, data.valid, verbose=verbose, saved=True, show_progress=False)
            except ImportError as error:
                raise _missing_package(self.config, error) from error
        self._bar = self._watcher = self._lean = None
        seconds = time.perf_counter() - start - self.validation_seconds
        assert self.best is not None, "fit() saves at least one epoch"
        # Free the gradients and moments: those of the best epoch are in its copy.
        self.optimizer.zero_grad()
        self.optimizer.state.clear()
        self.best.load_into(self.model)
        check_finite(self.model, self.label)
        return dataclasses.replace(self.best, seconds=seconds)

    def _train_epoch(self, train_data: Any, epoch_idx: int, *args: Any, **kwargs: Any) -> Any:
        if self._lean is None or self._lean.loader is not train_data:
            self._lean = LeanLoop.of(self, train_data)
        if self._lean is None or any((*args, *kwargs.values())):  # another loss, or a bar of steps
            result = super()._train_epoch(train_data, epoch_idx, *args, **kwargs)
        else:
            result = self._lean.epoch()
        if self._bar is not None:
            self._bar.update(epoch_idx + 1 - self._bar.n)
        if self._watcher is not None:
            self._watcher(self.label, self.epochs, epoch_idx + 1)
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
        """A copy of the model and its optimizer as they are now, on the CPU: in a file it fits every machine."""
        state, optimizer = on_cpu(self.model.state_dict()), on_cpu(self.optimizer.state_dict())
        return Trained(state, optimizer, on_cpu(recbole_compat.other_parameters(self.model)), epoch)

    def lower_rate(self, steps: int) -> None:
        """Let the learning rate fall to zero over ``steps`` steps."""
        done = itertools.count(1)

        def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            left = max(0.0, 1 - next(done) / steps)
            for group in optimizer.param_groups:
                group["lr"] = left * self.learning_rate

        self.optimizer.register_step_post_hook(after)

    def evaluate(
        self, eval_data: Any, load_best_model: bool = True, model_file: str | None = None, show_progress: bool = False
    ) -> Any:
        """RecBole's evaluation; the best model comes from memory, never from a pickle."""
        if load_best_model and self.best is not None:
            self.best.load_into(self.model)
        return super().evaluate(eval_data, load_best_model=False, show_progress=show_progress)

    def validation_score(self, model: AbstractRecommender, valid_data: Any) -> float:
        """RecBole's validation score of ``model``, with the sign such that higher is better; self.model stays."""
        own, self.model = self.model, model
        recbole_compat.clear_caches(model)
        try:
            score = float(self._valid_epoch(valid_data)[0])
        finally:
            self.model = own
        return score if self.valid_metric_bigger else -score

    def scores(self, users: torch.Tensor, dataset: Any) -> torch.Tensor:
        """Scores of all items for ``users`` (n,), shape (n, items), on the model's device; padding is -inf."""
        return self.batch_scores(dataset.join(Interaction({dataset.uid_field: users})), dataset)

    @torch.no_grad()
    def batch_scores(self, batch: Interaction, dataset: Any) -> torch.Tensor:
        """Scores of all items for a batch of users or windows (n), shape (n, items), as :meth:`scores`."""
        self.model.eval()
        if self.item_tensor is None:
            self.item_tensor = dataset.get_item_feature().to(self.device)
        self.tot_item_num = dataset.item_num
        return self._full_sort_batch_eval((batch, None, None, None))[1]

    @contextlib.contextmanager
    def scored_once(self, dataset: Any) -> Iterator[None]:
        """In the block, a model that scores pair by pair scores a user once for all who ask, if they can be kept."""
        few = dataset.user_num * dataset.item_num <= KEPT_SCORES
        self._kept = {} if few and scores_pairs(type(self.model)) else None
        try:
            yield
        finally:
            self._kept = None

    def _full_sort_batch_eval(self, batched_data: Any) -> Any:
        """RecBole's scores of all items for a batch of users or windows, without those of the history."""
        batch, history, *positive = batched_data
        if (kept := self._kept) is None:
            scores = self._scored(batch)
        else:
            users = batch[self.config["USER_ID_FIELD"]].tolist()
            if new := [place for place, user in enumerate(users) if user not in kept]:
                kept.update(zip([users[place] for place in new], self._scored(batch[new]), strict=True))
            scores = torch.stack([kept[user] for user in users])
        if history is not None:
            scores[history] = -torch.inf
        return batch, scores, *positive

    def _scored(self, batch: Interaction) -> torch.Tensor:
        """The scores of a batch, which is halved, from then on, where memory does not suffice."""
        score, size = super()._full_sort_batch_eval, len(batch)
        try:
            parts = [batch[place : place + (self._most or size)] for place in range(0, size, self._most or size)]
            found = [score((part, None, None, None))[1] for part in parts]
            return found[0] if len(found) == 1 else torch.cat(found)
        except RuntimeError as error:  # torch has no type of its own for memory of the CPU
            at_once = min(self._most or size, size)
            if "memory" not in str(error):
                raise
            if at_once > 1:
                self._most = at_once // 2
            elif scores_pairs(type(self.model)) and self.test_batch_size > 1:
                self.test_batch_size //= 2  # RecBole takes the pairs of a user apart as well
            else:
                raise
            logger.warning("Memory does not suffice for a batch of scores (%s): half of it at a time.", reason(error))
        return self._scored(batch)


def loaded(config: UnlearnConfig, splits: Splits, label: str, trained: Trained) -> PhaseTrainer:
    """A trainer that holds a trained model of ``splits``."""
    model = build_model(config, splits, trained.other_parameter)
    trained.load_into(model)
    return compose(PhaseTrainer, config, model, label)


def compose(cls: type[PhaseTrainer], config: UnlearnConfig, model: AbstractRecommender, label: str) -> Any:
    """An instance of ``cls`` mixed into the trainer RecBole uses for this model."""
    base = get_trainer(config["MODEL_TYPE"], config["model"])
    combined = type(f"{cls.__name__}{base.__name__}", (cls, base), {"label": label})
    return combined(config, model)


def check_finite(
    model: AbstractRecommender, label: str, new: Iterable[tuple[str, torch.Tensor]] | None = None
) -> None:
    """Refuse a model with NaN or infinite weights, or ``new`` parts of them: it is neither evaluated nor saved."""
    for name, value in model.named_parameters() if new is None else new:
        # A value that is not finite shows in the sum, which is quicker; a sum alone may overflow.
        if not torch.isfinite(value.sum()) and not torch.isfinite(value).all():
            raise UnlearnError(
                f"The {label} model has weights that are not finite ({name}); nothing was saved. "
                "Lower the learning rate or the step size."
            )


class Job(NamedTuple):
    """One training: a model of ``splits`` from the config's seed, or from the weights ``start``."""

    config: UnlearnConfig
    splits: Splits
    label: str
    start: Weights | None = None


def train_here(
    config: UnlearnConfig, splits: Splits, label: str, start: Weights | None = None, watcher: Watcher | None = None
) -> tuple[PhaseTrainer, Trained]:
    """Train a new model on ``splits``, see :class:`Job`; also returns the trainer that holds it."""
    begin = time.perf_counter()
    model = build_model(config, splits)
    fitting = time.perf_counter() - begin if config["MODEL_TYPE"] == ModelType.TRADITIONAL else 0.0  # a closed form
    if start is not None:
        model.load_state_dict(start)
    if config["start"] == SPECTRAL and config["MODEL_TYPE"] != ModelType.TRADITIONAL:
        began = time.perf_counter()
        if rows := SpectralStart(model, splits, config["seed"], config["ray_address"]):
            return _train_from(rows, began, config, splits, label, model, watcher)
        text = "%s has no rows of users and items for a spectral start: it is trained in full."
        logger.info(text, config["model"])
    trainer = compose(PhaseTrainer, config, model, label)
    trained = trainer.train(loaders(config, splits), watcher)
    return trainer, dataclasses.replace(trained, seconds=(trained.seconds or 0.0) + fitting)


def _train_from(
    rows: SpectralStart, began: float, config: UnlearnConfig, splits: Splits, label: str, model: AbstractRecommender,
    watcher: Watcher | None,
) -> tuple[PhaseTrainer, Trained]:  # fmt: skip
    """The short training after a spectral start; its seconds have start and validation in them, not loading."""
    config = rows.training(config)
    trainer = compose(PhaseTrainer, config, model, label)
    loading = time.perf_counter()
    data = loaders(config, splits, VALIDATED)
    began += time.perf_counter() - loading
    if rows.is_bilinear:  # it ranks already, so training may end with what it began with
        score = trainer.validation_score(model, data.valid)
        trainer.best_valid_score = score if trainer.valid_metric_bigger else -score
        trainer.best = trainer.snapshot()
    else:
        data = data._replace(valid=None)
    trainer.lower_rate(trainer.epochs * len(data.train))
    trained = trainer.train(data, watcher)
    return trainer, dataclasses.replace(trained, seconds=time.perf_counter() - began)


def train(*job: Any, **more: Any) -> Trained:
    """As :func:`train_here`, without the trainer."""
    return train_here(*job, **more)[1]


def train_all(jobs: Sequence[Job]) -> list[Trained]:
    """Independent trainings, one after the other."""
    return [train(*job) for job in jobs]
