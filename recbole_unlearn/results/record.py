"""Filling in a result: what follows from the phases, the settings for the record, and the machine.

Between two runs with the same seed on the same machine, only times (all of them have `seconds` or `speedup` in their
name), `date`, `request` and, with another key, `hashes` differ.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import recbole
import torch

from recbole_unlearn import __version__
from recbole_unlearn.measures.verdict import verdict
from recbole_unlearn.results.recovered import left_out, recovered
from recbole_unlearn.results.schema import (
    RETRAINED,
    UNLEARNED,
    Curve,
    Forgotten,
    Metrics,
    PhaseResult,
    Placebo,
    Provisional,
    RunResult,
    method_phases,
    seen_from,
)
from recbole_unlearn.settings import Role, RunSettings, UnlearnConfig, about, read


def speedup(phases: Mapping[str, PhaseResult]) -> float | None:
    """Retraining's seconds over unlearning's, when both ran: two decimals, and two digits that count below 0.1."""
    fast, slow = (phases.get(name, PhaseResult()).seconds for name in (UNLEARNED, RETRAINED))
    if not slow or not fast:
        return None
    return round(slow / fast, 2) if slow / fast >= 0.1 else float(f"{slow / fast:.1e}")


def judged(
    phases: Mapping[str, PhaseResult], errors: Mapping[str, Metrics], deleted: int | None
) -> dict[str, PhaseResult]:
    """The phases, those of methods with how near they come to the retrained model; as they are without one.

    A phase that is the retrained model itself has nothing to come near to.
    ``errors``, by phase, are those of how far retraining moves affected users from what the method started from.
    """
    found = dict(phases)
    for name in method_phases(phases):
        if phases.get(RETRAINED) in (None, phases[name]):
            continue
        seen = seen_from(phases, name)
        shares = recovered(seen, errors.get(name, {}))
        found[name] = dataclasses.replace(
            phases[name],
            verdict=verdict(seen, shares, deleted),
            recovered=shares,
            speedup=speedup(seen),
        )
    return found


def environment(threads: int, device: Any) -> dict[str, Any]:
    """The machine and the versions a result was made with."""
    packages = ("numpy", "scipy", "pandas", "ray")
    versions = {name: _version(name) for name in packages}
    return {
        "recbole_unlearn": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "recbole": recbole.__version__,
        **{name: version for name, version in versions.items() if version},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "device": str(device),
    }


@functools.cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            for line in stream:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        return platform.processor()
    return platform.processor()


def plain_values(config: UnlearnConfig) -> dict[str, Any]:
    """The run's settings for the record; what a run is about and where things are is left out."""
    values = {**config.final_config_dict, **config.method_values(config["unlearn"])}
    return {
        key: value if isinstance(value, (bool, int, float, list, dict, type(None))) else str(value)
        for key, value in sorted(values.items())
        if about(key).role not in (Role.PLACE, Role.SUBJECT)
    }


def build(
    config: UnlearnConfig,
    forget: Forgotten,
    phases: dict[str, PhaseResult],
    *,
    difficulty: dict[str, Any],
    certificates: dict[str, Any],
    curves: dict[str, dict[str, Curve]],
    errors: Mapping[str, Metrics] | None = None,
    placebo: Placebo | None = None,
    provisional: Provisional | None = None,
    done_earlier: str | None = None,
    stamp: Mapping[str, Any] | None = None,
) -> RunResult:
    """The result of a finished run.

    ``errors`` are those of :func:`judged`, ``provisional`` is what the run looks like without retraining,
    ``done_earlier`` the day on which the same request was done, and ``stamp`` what
    :class:`~recbole_unlearn.results.provenance.Evidence` has.
    """
    run = read(RunSettings, config)
    errors = errors or {}
    shares = recovered(phases, errors.get(UNLEARNED, {})) if RETRAINED in phases else None
    return RunResult(
        model=config["model"],
        dataset=config["dataset"],
        method=run.unlearn,
        seed=config["seed"],
        settings=plain_values(config),
        forget=forget,
        phases=judged(phases, errors, forget.interactions),
        difficulty=difficulty,
        certificates=certificates,
        curves=curves,
        environment=environment(run.threads, config["device"]),
        recovered=shares,
        left_out=None if shares is None else left_out(phases, shares),
        speedup=speedup(phases),
        placebo=placebo,
        verdict=verdict(phases, shares or {}, forget.interactions, provisional, done_earlier is not None),
        done_earlier=done_earlier,
        **(stamp or {}),
    )
