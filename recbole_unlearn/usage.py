"""`--help` and `--unlearn=?`: all settings in groups with their defaults, and the methods."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import recbole
from recbole.utils import argument_list

from recbole_unlearn.methods import registry
from recbole_unlearn.settings import GROUPS, UnlearnConfig, declared
from recbole_unlearn.settings.yaml_files import read_yaml

USAGE = """\
usage: python run_unlearn.py --model=NAME --dataset=NAME [--unlearn=METHOD] [--forget=FILE] [--key=value ...]
       python run_unlearn.py --checkpoint=FILE --forget=FILE [--unlearn=METHOD] [--key=value ...]
       python run_unlearn.py --model=NAME --dataset=NAME --unlearn=METHOD --tune [--space=FILE] [--key=value ...]
       python run_unlearn.py --grid=FILE [--output_dir=DIR] [--workers=N] [--key=value ...]
       python run_unlearn.py --report=DIR1,DIR2,... [--output_dir=DIR]

Make a trained RecBole model forget interactions, and measure how well it did.
"""


def method_list() -> str:
    """The unlearning methods with their help texts."""
    return "\n".join(f"{method.name:<18} {method.help}" for method in registry.methods())


def help_text(values: dict[str, Any]) -> str:
    """All settings in groups, with defaults; those of a model too when `--model` is given."""
    model, dataset = str(values.get("model") or "BPR"), str(values.get("dataset") or "ml-100k")
    config = UnlearnConfig(model, dataset)
    blocks = [USAGE, "Required, unless a checkpoint gives them:", "  --model", "  --dataset"]
    for title, group in GROUPS.items():
        blocks += ["", f"{title}:", *_lines(group, config)]
    shown: dict[Any, dict[str, Any]] = {}
    for method in sorted(registry.methods(), key=lambda method: len(method.mro())):  # a preset after its base
        own = shown[method] = config.method_values(method.name)
        blocks += ["", f"Method {method.name} ({method.help})"]
        base: Any = next((cls for cls in method.mro()[1:] if cls in shown), None)
        if base is None:
            blocks += _lines(method.Settings, own)
        else:
            blocks.append(f"  As {base.name}, except for")
            blocks += [f"  --{key}={value}" for key, value in own.items() if value != shown[base][key]]
    comments = _recbole_comments()
    listed = set()
    for title in ("general", "training", "evaluation", "dataset"):
        keys = getattr(argument_list, f"{title}_arguments")
        listed |= set(keys)
        blocks += ["", f"RecBole, {title}:"]
        blocks += [_line(key, config[key], comments.get(key, "")) for key in keys]
    if values.get("model"):
        of_model = sorted(_model_keys(model) - listed)
        blocks += ["", f"RecBole, {model}:", *(_line(key, config[key], "") for key in of_model)]
    blocks += ["", "--config_files=a.yaml,b.yaml reads settings from files; the command line wins."]
    return "\n".join(blocks)


def _lines(group: type, values: Any) -> list[str]:
    return [_line(key, values[key], about.help, about.choices) for key, about in declared(group).items()]


def _line(key: str, default: Any, help: str, choices: Sequence[str] | None = None) -> str:
    shown = "" if default is None else f"={default}"
    options = f" One of {', '.join(choices)}." if choices else ""
    return f"  --{key}{shown}".ljust(34) + f" {help}{options}".rstrip()


def _recbole_comments() -> dict[str, str]:
    """RecBole documents its settings in comments of its property files: `key: value  # (type) text`."""
    found = {}
    folder = Path(recbole.__file__).parent / "properties"
    for name in ("overall.yaml", "dataset/sample.yaml"):
        text = (folder / name).read_text(encoding="utf-8")
        for key, comment in re.findall(r"^(\w+):.*?#\s*\(\w[^)]*\)\s*(.+)$", text, re.M):
            found[key] = comment.strip()
    return found


def _model_keys(model: str) -> set[str]:
    file = Path(recbole.__file__).parent / "properties" / "model" / f"{model}.yaml"
    return set(read_yaml(file)) if file.is_file() else set()
