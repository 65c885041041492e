"""The result of a run: `result.json` for tools, and a table for people.

The layout of `result.json` is a contract; see docs/result-json.md. Times are the only values that differ between
two runs with the same seed on the same machine, and all of them have `seconds` or `speedup` in their name.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import recbole
import torch
from tabulate import tabulate

from recbole_unlearn import __version__, settings
from recbole_unlearn.config import UnlearnConfig
from recbole_unlearn.measures.verdict import verdict

SCHEMA = 1
_PATHS = {
    "data_path",
    "checkpoint_dir",
    "output_dir",
    "checkpoint",
    "forget",
    "cache_dir",
    "config_files",
    "space",
}
_NOT_SETTINGS = {"model", "dataset", "seed", "device", "single_spec", "local_rank", "compare", "unlearn"}


def recovered(phases: dict[str, Any]) -> dict[str, float]:
    """Share of retraining's effect on affected users: (unlearned − original) / (retrained − original).

    A metric that retraining does not move has no share and is left out.
    """
    before, after, target = (
        phases.get(name, {}).get("affected", {}) for name in ("original", "unlearned", "retrained")
    )
    shares = {}
    for metric in target:
        if metric in before and metric in after and target[metric] != before[metric]:
            share = (after[metric] - before[metric]) / (target[metric] - before[metric])
            shares[metric] = round(share, 4)
    return shares


def speedup(phases: dict[str, Any]) -> float | None:
    """Retraining's seconds over unlearning's, when both ran."""
    fast, slow = (phases.get(name, {}).get("seconds") for name in ("unlearned", "retrained"))
    return slow / fast if slow and fast else None


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
    """The run's settings for the record; paths are left out, they say nothing about the result."""
    method = config.method_values(config["unlearn"])
    values = {**config.final_config_dict, **method}
    return {
        key: value if isinstance(value, (bool, int, float, list, dict, type(None))) else str(value)
        for key, value in sorted(values.items())
        if key not in _PATHS | _NOT_SETTINGS
    }


def build(
    config: UnlearnConfig,
    forget: dict[str, Any],
    phases: dict[str, Any],
    *,
    difficulty: dict[str, Any],
    certificates: dict[str, Any],
    curves: dict[str, Any],
) -> dict[str, Any]:
    """The content of `result.json`."""
    run = settings.read(settings.RunSettings, config)
    result = {
        "schema": SCHEMA,
        "model": config["model"],
        "dataset": config["dataset"],
        "method": run.unlearn,
        "seed": config["seed"],
        "settings": plain_values(config),
        "forget": forget,
        "phases": phases,
        "difficulty": difficulty,
        "certificates": certificates,
        "curves": curves,
        "environment": environment(run.threads, config["device"]),
    }
    if "retrained" in phases:
        result["recovered"] = recovered(phases)
        ratio = speedup(phases)
        if ratio is not None:
            result["speedup"] = round(ratio, 2)
    result["verdict"] = verdict(result)
    return result


def table(result: dict[str, Any]) -> str:
    """The result as a table: a row per phase and group of users."""
    phases = result["phases"]
    metrics = [m for m in next(iter(phases.values()))["metrics"] if m.split("@")[0] in ("recall", "ndcg")]
    rows = []
    for name, phase in _with_befores(phases):
        for group, key in (("all", "metrics"), ("affected", "affected")):
            first = key == "metrics"
            rows.append(
                [
                    name if first else "",
                    group,
                    *(_number(phase[key].get(metric)) for metric in metrics),
                    _number(phase["forgetting"].get("demotion_rate"), 3) if first else "",
                    _seconds(phase) if first else "",
                ]
            )
    short = [m.replace("recall", "R").replace("ndcg", "N") for m in metrics]
    text = tabulate(
        rows,
        headers=["phase", "users", *short, "demotion", "seconds"],
        disable_numparse=True,
        colalign=("left", "left", *["right"] * (len(short) + 2)),
    )
    return text + "\n" + _closing_lines(result)


def _with_befores(phases: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All phases; one that has an original of its own comes after it."""
    shown: list[Any] = []
    for name, phase in phases.items():
        before = phase.get("before")
        if before is not None and before not in shown:
            shown.append(before)
            yield f"{name} before", before
        yield name, phase


def _number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _seconds(phase: dict[str, Any]) -> str:
    if phase["seconds"] is None:
        return "loaded"
    return f"{phase['seconds']:.1f}" + ("*" if phase.get("seconds_from_cache") else "")


def _closing_lines(result: dict[str, Any]) -> str:
    forget = result["forget"]
    lines = [
        *([result["verdict"]["text"]] if "verdict" in result else []),
        f"R recall, N NDCG. Forgotten: {forget['interactions']} interactions of {forget['users']} users "
        f"and {forget['items']} items ({forget['source']}).",
    ]
    share = result.get("recovered", {}).get("ndcg@20")
    if share is not None:
        lines.append(f"Share of retraining recovered (NDCG@20, affected users): {share:.0%}.")
    if "speedup" in result:
        lines.append(f"Speed-up over retraining: {result['speedup']:.1f}x.")
    if any(phase.get("seconds_from_cache") for phase in result["phases"].values()):
        lines.append("* trained in an earlier run; the time is that run's.")
    return "\n".join(lines)
