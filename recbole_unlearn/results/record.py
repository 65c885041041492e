"""Filling in a result: recovered shares, verdicts, settings, machine, and the date, id and keyed hashes of the run.

Between two runs with the same seed on the same machine, only times (all of them have `seconds` or `speedup` in their
name), `date`, `request` and, with another key, `hashes` differ.

The recovered share is the part of retraining's effect on affected users that unlearning has as well:

    share = (unlearned − original) / (retrained − original)

Two models with other seeds differ as well, and a share of such a difference says nothing: it was once −1414 %. So a
metric is left out where retraining moves it no further than two retrained models differ,

    |retrained − original| ≤ max(|retrained − retrained_2|, 2 · error)

where the error is the standard error of the paired differences retrained − original over affected users. It is used
together with the second retraining because two seeds may agree by luck. With one retraining there is the error alone.
"""

import contextlib
import os
import platform
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, Self

import pandas as pd
import recbole
import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn import __version__
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Done, load_key, model_digest, request_digest
from recbole_unlearn.measures.verdict import verdict
from recbole_unlearn.results.schema import (
    CONTROL,
    ORIGINAL,
    RETRAINED,
    SECOND,
    UNLEARNED,
    Forgotten,
    LeftOut,
    Metrics,
    PhaseResult,
    RunResult,
    Verdict,
    method_phases,
    seen_from,
)
from recbole_unlearn.settings import RecordSettings, Role, RunSettings, UnlearnConfig, about, read

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_WHY = (
    "Retraining moves affected users by no more in these metrics than two retrained models differ, so a share of it "
    "would be noise"
)
_ESTIMATED = "estimated from the users of this run; --compare=retrain,retrain also measures it"
_MEASURED = "measured with a second retrained model, and estimated from the users of this run"


def recovered(phases: Mapping[str, PhaseResult], errors: Mapping[str, float]) -> Metrics:
    """The shares of those metrics that retraining moves by more than noise; see the formulas of this file.

    ``errors`` are standard errors of retrained − original. A metric without one is no mean over users, and needs a
    second retraining.
    """
    held = (phases.get(name, PhaseResult()) for name in (ORIGINAL, UNLEARNED, RETRAINED, SECOND))
    before, after, target, again = (phase.affected for phase in held)
    shares = {}
    for metric in (key for key in target if key in before and key in after):
        noise = [abs(target[metric] - again[metric])] if metric in again else []
        noise += [2 * errors[metric]] if metric in errors else []
        moved = target[metric] - before[metric]
        if noise and abs(moved) > max(noise):
            shares[metric] = round((after[metric] - before[metric]) / moved, 4)
    return shares


def left_out(phases: Mapping[str, PhaseResult], shares: Mapping[str, float]) -> LeftOut | None:
    """The metrics without a share and why; None where all have one."""
    metrics = [metric for metric in phases.get(RETRAINED, PhaseResult()).affected if metric not in shares]
    why = f"{_WHY} ({_MEASURED if SECOND in phases else _ESTIMATED})."
    return LeftOut(metrics, why) if metrics else None


def speedup(phases: Mapping[str, PhaseResult]) -> float | None:
    """Retraining's seconds over unlearning's, when both ran: two decimals, two significant digits below 0.1."""
    fast, slow = (phases.get(name, PhaseResult()).seconds for name in (UNLEARNED, RETRAINED))
    if not slow or not fast:
        return None
    return round(slow / fast, 2) if slow / fast >= 0.1 else float(f"{slow / fast:.1e}")


def judged(
    phases: Mapping[str, PhaseResult],
    errors: Mapping[str, Metrics],
    forget: Forgotten,
    control: PhaseResult | None = None,
) -> dict[str, PhaseResult]:
    """The phases; those of methods with verdict, recovered share and speed-up, if there is a retrained model.

    A phase that is the retrained model itself is not compared with it. ``errors`` are by phase those of
    :func:`recovered`.
    """
    found = dict(phases)
    for name in method_phases(phases):
        if phases.get(RETRAINED) in (None, phases[name]):
            continue
        seen = seen_from(phases, name)
        shares = recovered(seen, errors.get(name, {}))
        said = _verdict(seen, shares, forget, control)
        found[name] = replace(phases[name], verdict=said, recovered=shares, speedup=speedup(seen))
    return found


def _verdict(
    phases: Mapping[str, PhaseResult], shares: Metrics, forget: Forgotten, control: PhaseResult | None,
    is_done: bool = False,
) -> Verdict:  # fmt: skip
    """The verdict on `unlearned`; the control started from the original of the run, so it serves no other one."""
    whole = bool(forget.users) and forget.counts.get("orphan_users") == forget.users
    if control is not None and phases[UNLEARNED].before is None:
        phases = {**phases, CONTROL: control}
    return verdict(phases, shares, forget.interactions, is_done, whole)


def environment(threads: int, device: Any) -> dict[str, Any]:
    """The machine and the versions a result was made with."""
    versions = {}
    for package in ("numpy", "scipy", "pandas", "ray"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "recbole_unlearn": __version__, "python": platform.python_version(), "torch": torch.__version__,
        "recbole": recbole.__version__, **versions, "platform": platform.platform(), "processor": _processor(),
        "cores": os.cpu_count(), "threads": threads, "device": str(device),
    }  # fmt: skip


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            names = (line.split(":", 1)[1].strip() for line in stream if line.startswith("model name"))
            return next(names, platform.processor())
    except OSError:
        return platform.processor()


def plain_values(config: UnlearnConfig) -> dict[str, Any]:
    """The run's settings for the record, without paths and without the request."""
    values = {**config.final_config_dict, **config.method_values(config["unlearn"])}
    return {
        key: value if isinstance(value, (bool, int, float, list, dict, type(None))) else str(value)
        for key, value in sorted(values.items())
        if about(key).role not in (Role.PLACE, Role.SUBJECT)
    }


@dataclass
class Evidence:
    """Id and keyed hashes of a run, gathered while it goes on; without a key there are no hashes."""

    request: str
    key_file: str | None = None
    key: bytes | None = None
    hashes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: RecordSettings) -> Self:
        """For one run; refuses an id that is not valid."""
        given = options.request_id
        if given is not None and not _ID.fullmatch(given):
            raise UnlearnError(
                "request_id is not valid: expected up to 64 letters, digits, dots, hyphens and underscores."
            )
        # Random: an id that follows from the content would tell of it.
        return cls(given or str(uuid.uuid4()), options.hash_key)

    def open(self) -> None:
        """Read the key, or make one."""
        self.key = load_key(self.key_file)

    def add_request(self, frame: pd.DataFrame) -> None:
        """``frame`` as a :class:`~recbole_unlearn.data.ForgetRequest` has it."""
        if self.key is not None:
            self.hashes["request"] = request_digest(self.key, frame)

    def add_model(self, name: str, model: AbstractRecommender, config: UnlearnConfig) -> None:
        """``name`` is original or result; the result of one request is the original of the next, with one hash."""
        if self.key is not None:
            self.hashes[name] = model_digest(self.key, model, config.model_values())

    def stamp(self) -> dict[str, Any]:
        """Date, id and hashes, for :class:`~recbole_unlearn.results.schema.RunResult`."""
        date = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {"date": date, "request": self.request, "hashes": dict(self.hashes)}

    def done(self) -> tuple[Done, ...]:
        """The request, for the list in the saved dataset."""
        digest = self.hashes.get("request")
        return () if digest is None else (Done(digest, self.stamp()["date"][:10]),)


def build(
    config: UnlearnConfig, forget: Forgotten, phases: dict[str, PhaseResult], *, errors: Mapping[str, Metrics],
    control: PhaseResult | None = None, **more: Any,
) -> RunResult:  # fmt: skip
    """The result of a finished run, with the fields of ``more`` as they are.

    ``errors`` are those of :func:`judged`. The ``control`` is the original with nothing but its orphan rows reset; it
    is judged as a method is.
    """
    run, is_done = read(RunSettings, config), more.get("done_earlier") is not None
    shares = recovered(phases, errors.get(UNLEARNED, {})) if RETRAINED in phases else None
    if control is not None:
        control = replace(control, verdict=_verdict({**phases, UNLEARNED: control}, {}, forget, None))
    return RunResult(
        model=config["model"],
        dataset=config["dataset"],
        method=run.unlearn,
        seed=config["seed"],
        settings=plain_values(config),
        forget=forget,
        phases=judged(phases, errors, forget, control),
        control=control,
        environment=environment(torch.get_num_threads(), config["device"]),
        recovered=shares,
        left_out=None if shares is None else left_out(phases, shares),
        speedup=speedup(phases),
        verdict=_verdict(phases, shares or {}, forget, control, is_done),
        **more,
    )
