r"""An audit: N shadow models that learn and unlearn half of the deleted pairs each, and 2N that never saw any.

A *round* trains one shadow model, has every method unlearn it, and trains two models of D\S with other seeds: the
reference, and the floor (retraining, attacked as a method is). The ceiling is the shadow model with nothing done. A
round needs no other round, so rounds run side by side on Ray, and each that has ended is kept until the audit is.
"""

import dataclasses
import hashlib
import io
import json
import logging
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from recbole.data.dataset import Dataset
from recbole.utils import ModelType

from recbole_unlearn import settings
from recbole_unlearn.audit.likelihood import CURVE, epsilon, klom, spread, u_lira
from recbole_unlearn.cluster import Workers, free_cores
from recbole_unlearn.data import Located, UnlearnData, divide
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import make_directory, write_bytes, write_json
from recbole_unlearn.log import progress_bar, without_messages
from recbole_unlearn.pipeline import Pipeline, begin, checked_settings
from recbole_unlearn.progress import MethodPhase
from recbole_unlearn.quick_start import opened
from recbole_unlearn.registry import METHODS
from recbole_unlearn.report import COLUMNS, audit_rows, write_audit
from recbole_unlearn.results import ORIGINAL, RETRAINED, UNLEARNED
from recbole_unlearn.results.record import environment, plain_values
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.text import counted, drawn, duration, wrapped
from recbole_unlearn.training import PhaseTrainer, Trainings, loaded
from recbole_unlearn.training.threads import of_one_process

SCHEMA = 1
REFERENCE = "reference"  # models of D\S to which outputs are compared
SAMPLE = 2000  # retained and held-out pairs
LEAST = 50  # deleted pairs

logger = logging.getLogger(__name__)


class Pairs(NamedTuple):
    """The pairs that all models are asked for: deleted ones first, then retained ones, then held-out ones."""

    users: torch.Tensor
    items: torch.Tensor
    ends: tuple[int, int]  # of the deleted and of the retained ones

    @classmethod
    def of(cls, data: UnlearnData, seed: int) -> "Pairs":
        """All deleted pairs that no retained interaction has, and a sample of the others."""
        generator, parts = torch.Generator().manual_seed(seed), [data.forget_pairs]
        for part in (data.retain.train, data.retain.test):
            chosen = torch.randperm(len(part), generator=generator)[:SAMPLE]
            parts.append((part.inter_feat[part.uid_field][chosen], part.inter_feat[part.iid_field][chosen]))
        users, items = (torch.cat(column) for column in zip(*parts, strict=True))
        return cls(users, items, (len(parts[0][0]), len(parts[0][0]) + len(parts[1][0])))

    @torch.no_grad()
    def margins(self, trainer: PhaseTrainer, train: Dataset) -> np.ndarray:
        """Log p / (1 − p) of each pair (n,) among all items of its user."""
        found, order = torch.zeros(len(self.users), dtype=torch.double), torch.argsort(self.users, stable=True)
        names, counts = torch.unique(self.users, return_counts=True)
        size, done = max(1, trainer.test_batch_size // train.item_num), 0
        for users, number in zip(names.split(size), counts.split(size), strict=True):
            mine = order[done : done + int(number.sum())]
            done += len(mine)
            scores = trainer.scores(users, train).cpu().double()
            row = torch.searchsorted(users, self.users[mine])
            log_p = scores[row, self.items[mine]] - scores[:, 1:].logsumexp(dim=1)[row]
            found[mine] = log_p - (-torch.expm1(log_p)).clamp(min=1e-12).log()
        return found.numpy()


class Work(NamedTuple):
    """What every round needs; it is sent to where the round is done."""

    config: UnlearnConfig
    data: UnlearnData
    pairs: Pairs
    phases: list[MethodPhase]
    cache: settings.CacheSettings
    number: int  # of shadow models

    def saw(self) -> np.ndarray:
        """Which shadow models are trained on which deleted pairs (N, n): of a couple, each on one half."""
        rng, pairs = np.random.default_rng(self.config["seed"]), self.pairs.ends[0]
        halves = [rng.permutation(pairs) < pairs // 2 for _ in range(self.number // 2)]
        return np.array([one for half in halves for one in (half, ~half)])

    def half(self, saw: np.ndarray) -> UnlearnData:
        r"""D\S with the deleted pairs marked in ``saw`` (n,), and the request to delete these."""
        full, retain = self.data.full.train, self.data.retain
        keys = full.inter_feat[full.uid_field] * full.item_num + full.inter_feat[full.iid_field]
        out = ~torch.from_numpy(saw)
        left = torch.isin(keys, (self.pairs.users[: len(out)] * full.item_num + self.pairs.items[: len(out)])[out])
        known = retain.with_train(full.copy(full.inter_feat[~left]))
        valid, test = (np.zeros(len(part), dtype=bool) for part in retain[1:])
        located = Located(self.data.deleted[~left].numpy(), valid, test)
        return divide(known, located, self.data.source, self.data.clock)


def run_round(work: Work, place: int) -> dict[str, np.ndarray]:
    """The margins (n,) of all pairs under each model of a round."""
    threads, base = of_one_process(work.config["threads"]), work.config["seed"] + 1
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder, without_messages():
        quiet = {"checkpoint_dir": folder, "output_dir": None, "show_progress": False}
        trainings = Trainings(work.cache, work.config["threads"])
        if not work.data.is_made_up:
            trainings.protect(work.data)
        # Retraining adds one to the seed of its run.
        config = work.config.replace(**quiet, seed=base + 2 * place).without_curves()
        data, train = work.half(work.saw()[place]), work.data.retain.train
        original = trainings.train(config, data.full, "shadow")
        found = {ORIGINAL: work.pairs.margins(loaded(config, data.full, "shadow", original), data.full.train)}
        for phase in work.phases:
            trainer, task = begin(phase.method, phase.settings, config, data, original, trainings, phase.name)
            if phase.method.own_original:
                trainer.originate(task)
                found[f"{ORIGINAL} of {phase.name}"] = work.pairs.margins(trainer, data.full.train)
            trainer.run(task)
            found[phase.name] = work.pairs.margins(trainer, train)
        other = config.replace(seed=base + 2 * work.number + place)
        reference = trainings.trainer(other, work.data.retain, REFERENCE)[0]
        return found | {REFERENCE: work.pairs.margins(reference, train)}


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """The content of `audit.json`, and its directory."""

    result: dict[str, Any]
    output_dir: Path

    def __str__(self) -> str:
        """A line for each method, and what its first one means."""
        said = (
            f"{counted(self.result['shadows'], 'shadow model')}. original: nothing done, the ceiling; retrained: the "
            f"floor. U-LiRA tells pairs that were unlearned from pairs that were never seen; guessing has .5."
        )
        return f"{drawn(['', *COLUMNS], audit_rows(self.result['phases']))}\n{wrapped(said)}"


def audit_unlearn(model: str | type | None = None, dataset: str | None = None, **arguments: Any) -> AuditResult:
    """Audit methods; the arguments are those of :func:`~recbole_unlearn.quick_start.run_unlearn`."""
    with opened(model, dataset, **arguments, as_one=False) as (pipeline, wanted):
        return _audit(pipeline, wanted)


def _audit(pipeline: Pipeline, forget: Any) -> AuditResult:
    config, number = pipeline.config, pipeline.evaluation.shadows
    if config["MODEL_TYPE"] == ModelType.SEQUENTIAL:
        raise UnlearnError(
            f"{config['model']} ranks after histories, and shadow models are asked for pairs: audit general models, "
            "or use --compare=retrain, which measures rmia for sequential ones too."
        )
    if number % 2:
        raise UnlearnError(f"shadows={number} is odd, but shadow models come in couples.")
    if pipeline.checkpoint is not None:
        raise UnlearnError("An audit trains all its models: give --model and --dataset instead of --checkpoint.")
    start = time.perf_counter()
    pipeline.prepare(forget)
    data, seen = pipeline.data, pipeline.discretion
    pairs = Pairs.of(data, config["seed"])
    if seen.few or pairs.ends[0] < LEAST:
        raise UnlearnError(
            f"An audit needs at least {LEAST} deleted pairs of {seen.min_group} users, and the request has fewer. "
            "Audit --forget=random:5%, or a larger request."
        )
    phases = [phase for phase in pipeline.methods if not phase.method.reference or phase.name == UNLEARNED]
    if not any(phase.method.reference for phase in phases):
        retrain = METHODS.get("retrain")
        phases.append(MethodPhase(RETRAINED, retrain, checked_settings(retrain, config)))
    run, cache = pipeline.run_settings, settings.read(settings.CacheSettings, config)
    cache = dataclasses.replace(cache, cache=cache.cache and run.ray_address is None)
    work = Work(config, data, pairs, phases, cache, number)
    parts = [pipeline.trainings.key(config, part) for part in (data.full, data.retain)]
    parts += [f"{phase.name} {phase.settings}" for phase in phases] + [str(number)]
    # Another audit in this directory has another folder.
    folder = pipeline.directory / f"rounds-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}"
    margins = _rounds(work, pipeline.trainings.workers, folder)
    content = {
        "schema": SCHEMA, "model": config["model"], "dataset": config["dataset"], "method": config["unlearn"],
        "seed": config["seed"], "shadows": number, "settings": plain_values(config),
        "forget": pipeline.forgotten.to_json(), "phases": _judged(margins, work, seen.shows_all),
        "seconds": round(time.perf_counter() - start, 1),
        "environment": environment(of_one_process(run.threads), config["device"]),
    }  # fmt: skip
    write_json(pipeline.directory / "audit.json", content)
    if run.report != "none":
        logger.info("Report: %s", write_audit(content, pipeline.directory))
    shutil.rmtree(folder)
    return AuditResult(content, pipeline.directory)


def _rounds(work: Work, workers: Workers, folder: Path) -> dict[str, np.ndarray]:
    """The margins (N, n) by phase; rounds that an earlier call has kept in ``folder`` are not done again."""
    make_directory(folder)
    files = [folder / f"{place:03}.npz" for place in range(work.number)]
    missing = [place for place, file in enumerate(files) if not file.is_file()]
    if missing:
        _announce(work, len(missing))
    shown = bool(work.config["show_progress"])
    start, done = time.perf_counter(), 0
    with progress_bar("Audit", work.number, shown and bool(missing), "round") as bar:
        for position, found in workers.do(run_round, [(work, place) for place in missing]):
            packed = io.BytesIO()
            np.savez(packed, **found)
            write_bytes(files[missing[position]], packed.getvalue())
            done += 1
            bar.update(1)
            left = duration((time.perf_counter() - start) / done * (len(missing) - done))
            logger.info("Round %d of %d: about %s left.", len(files) - len(missing) + done, len(files), left)
    kept = [dict(np.load(file, allow_pickle=False)) for file in files]
    return {name: np.array([one[name] for one in kept]) for name in kept[0]}


def _announce(work: Work, missing: int) -> None:
    """Log what an audit trains, and about how long that takes, by one epoch of one model."""
    methods, epochs = ", ".join(phase.method.name for phase in work.phases), int(work.config["epochs"])
    trainings = missing * (2 + sum(phase.method.exact for phase in work.phases))
    short = work.config.replace(epochs=1, output_dir=None, show_progress=False).without_curves()
    with without_messages():
        apart = Trainings(dataclasses.replace(work.cache, cache=False), 1)
        epoch = apart.train(short, work.data.retain, "first epoch").seconds or 0.0
    left = duration(epoch * epochs * trainings / min(free_cores(), missing))
    text = "Audit of %s with %d shadow models: %s, %s of at most %s each: about %s of training."
    counts = counted(missing, "round"), counted(trainings, "training"), counted(epochs, "epoch")
    logger.info(text, methods, work.number, *counts, left)


def _judged(margins: dict[str, np.ndarray], work: Work, shows_all: bool) -> dict[str, Any]:
    """The figures of each phase; those of a request of people are rough, and without a curve."""
    saw, (deleted, retained) = work.saw(), work.pairs.ends
    # For each pair the N/2 models that unlearned it; of references, which never saw one, the same numbers.
    own = np.argsort(~saw, axis=0, kind="stable")[: work.number // 2]
    reference = margins.pop(REFERENCE)
    found = {}
    other_recipes = {phase.name for phase in work.phases if phase.method.exact and not phase.method.reference}
    for name, values in margins.items():
        figures: dict[str, Any] = {"u_lira": u_lira(values[:, :deleted], saw)}
        if name not in other_recipes:  # outputs of these differ from retrained ones whatever was deleted
            mine, theirs = (np.take_along_axis(one[:, :deleted], own, axis=0) for one in (values, reference))
            apart = klom(mine, theirs)
            figures["epsilon"] = spread(epsilon(mine, theirs))
            figures["klom"] = {
                "deleted": spread(apart),
                "retained": spread(klom(values[:, deleted:retained], reference[:, deleted:retained])),
                "held_out": spread(klom(values[:, retained:], reference[:, retained:])),
                "curve": [(round(float(np.quantile(apart, at)), 4), round(float(at), 2)) for at in CURVE],
            }
        found[name] = figures if shows_all else _rough(figures)
    return found


def _rough(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures with two decimals, without curves."""
    rounded: Any = lambda value: _rough(value) if isinstance(value, dict) else round(value, 2)  # noqa: E731
    return {key: rounded(value) for key, value in figures.items() if key != "curve"}
