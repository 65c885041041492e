"""The command line, in RecBole's manner: `--key=value` for any setting of RecBole or of the plugin.

Values are read as YAML. `--flag` and `--no_flag` set a yes-or-no setting. `--help` lists all settings with
their defaults, `--unlearn=?` the methods.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from recbole_unlearn import __version__
from recbole_unlearn.errors import EXIT_CODE, UnlearnError

USAGE = """\
usage: python run_unlearn.py --model=NAME --dataset=NAME [--unlearn=METHOD] [--forget=FILE] [--key=value ...]
       python run_unlearn.py --checkpoint=FILE --forget=FILE [--unlearn=METHOD] [--key=value ...]
       python run_unlearn.py --model=NAME --dataset=NAME --unlearn=METHOD --tune [--space=FILE] [--key=value ...]
       python run_unlearn.py --grid=FILE [--output_dir=DIR] [--workers=N] [--key=value ...]
       python run_unlearn.py --report=DIR1,DIR2,... [--output_dir=DIR]

Make a trained RecBole model forget interactions, and measure how well it did.
"""

# Names among RecBole's settings and ours that no class declares; taken as they are typed.
_NAMES = {"model", "dataset", "data_path", "config_files"}


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """`--key=value` arguments as a dict; `--key value` is taken too, as people type it."""
    from recbole_unlearn.settings.config import own_settings
    from recbole_unlearn.settings.yaml_files import parse_value

    names = _NAMES | {key for key, declared in own_settings().items() if declared.is_name}
    values: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or argument == "--":
            raise UnlearnError(f"Cannot read the argument {argument!r}; expected --key=value.")
        key, equals, text = argument[2:].partition("=")
        if not equals and rest and not rest[0].startswith("--"):
            text, equals = rest.pop(0), "="
        if equals:
            value = text if key in names else parse_value(text)
        elif key.startswith("no_"):
            key, value = key[3:], False
        else:
            value = True
        if key in values and values[key] != value:
            raise UnlearnError(f"--{key} is given twice, with different values; leave one out.")
        values[key] = value
    return values


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code.

    0; 1 when a part of a grid failed; 2 when the input has to be corrected; 130 after Ctrl-C.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if "--version" in arguments:
            print(f"recbole-unlearn {__version__}")
            return 0
        if "--help" in arguments or "-h" in arguments or not arguments:
            print(help_text(parse([a for a in arguments if a not in ("--help", "-h")])))
            return 0
        values = parse(arguments)
        if values.get("unlearn") == "?":
            print(method_list())
            return 0
        if values.get("report") not in (None, "html", "none"):
            return _compare(values)
        if values.get("grid") is not None:
            return _grid(values)
        return _run(values)
    except UnlearnError as error:
        print(f"Error: {error}", file=sys.stderr)
        return EXIT_CODE
    except KeyboardInterrupt:
        print("Stopped; no result was written.", file=sys.stderr)
        return 130


def _run(values: dict[str, Any]) -> int:
    """One run, or with `--tune` a sweep of them."""
    from recbole_unlearn.settings import as_list

    if values.get("tune"):
        from recbole_unlearn.tuning.sweep import tune_unlearn as run

        written = "tune.json"
    else:
        from recbole_unlearn.quick_start import run_unlearn as run

        written = "result.json"
    files = values.pop("config_files", None)
    files = files.split() if isinstance(files, str) and "," not in files else as_list(files)
    model, dataset = values.pop("model", None), values.pop("dataset", None)
    result = run(model, dataset, config_files=files, config_dict=values)
    print(f"\n{result}\n{result.output_dir / written}")
    return 0


def _grid(values: dict[str, Any]) -> int:
    """`--grid=FILE`: the runs of a grid that have no result yet, and the tables of all of them."""
    from recbole_unlearn.grid.run import run_grid

    try:
        result = run_grid(values.pop("grid"), config_dict=values)
    except KeyboardInterrupt:
        print("Stopped; finished cells are kept, and the same command goes on.", file=sys.stderr)
        return 130
    print("\n".join(["", str(result), *map(str, result.files)]))
    if result.failed:
        counted = f"{len(result.failed)} of {len(result.cells)} cells"
        print(f"{counted} failed; the same command tries them again.", file=sys.stderr)
        return 1
    return 0


def _compare(values: dict[str, Any]) -> int:
    """`--report=DIR1,DIR2,...`: one page over the results in those directories, or in directories below them."""
    from pathlib import Path

    from recbole_unlearn.files.atomic import make_directory
    from recbole_unlearn.report import results_in, write_comparison
    from recbole_unlearn.settings import as_list

    others = sorted(set(values) - {"report", "output_dir"})
    if others:
        raise UnlearnError(
            f"--report=DIRECTORIES runs nothing, so --{others[0]} has no meaning there. "
            "Use --report=html to run with a report."
        )
    names = [Path(name) for name in as_list(values["report"])]
    target = make_directory(values.get("output_dir") or ".") / "comparison.html"
    print(write_comparison([found for name in names for found in results_in(name)], target, grids=names))
    return 0


def method_list() -> str:
    """The unlearning methods with their help texts."""
    from recbole_unlearn.methods import registry

    return "\n".join(f"{method.name:<18} {method.help}" for method in registry.methods())


def help_text(values: dict[str, Any]) -> str:
    """All settings in groups, with defaults; those of a model too when `--model` is given."""
    from recbole.utils import argument_list

    from recbole_unlearn.methods import registry
    from recbole_unlearn.settings import GROUPS
    from recbole_unlearn.settings.config import UnlearnConfig

    model, dataset = str(values.get("model") or "BPR"), str(values.get("dataset") or "ml-100k")
    config = UnlearnConfig(model, dataset)
    blocks = [USAGE, "Required, unless a checkpoint tells:", "  --model", "  --dataset"]
    for title, group in GROUPS.items():
        blocks += ["", f"{title}:", *_lines(group, config)]
    shown: dict[type, dict[str, Any]] = {}
    for method in sorted(registry.methods(), key=lambda method: len(method.mro())):  # a preset after its base
        own = shown[method] = config.method_values(method.name)
        blocks += ["", f"Method {method.name} ({method.help})"]
        base = next((cls for cls in method.mro()[1:] if cls in shown), None)
        if base is None:
            blocks += _lines(method.Settings, own)
        else:
            blocks.append(f"  As {base.name}, but for")
            blocks += [f"  --{key}={value}" for key, value in own.items() if value != shown[base][key]]
    comments = _recbole_comments()
    listed = set()
    for title in ("general", "training", "evaluation", "dataset"):
        keys = getattr(argument_list, f"{title}_arguments")
        listed |= set(keys)
        blocks += ["", f"RecBole, {title}:"]
        blocks += [_line(key, config[key], comments.get(key, "")) for key in keys]
    if values.get("model"):
        own = sorted(_model_keys(model) - listed)
        blocks += ["", f"RecBole, {model}:", *(_line(key, config[key], "") for key in own)]
    blocks += ["", "--config_files=a.yaml,b.yaml reads settings from files; the command line wins."]
    return "\n".join(blocks)


def _lines(group: type, values: Any) -> list[str]:
    from recbole_unlearn.settings import declared

    return [_line(key, values[key], about.help, about.choices) for key, about in declared(group).items()]


def _line(key: str, default: Any, help: str, choices: Sequence[str] | None = None) -> str:
    shown = "" if default is None else f"={default}"
    options = f" One of {', '.join(choices)}." if choices else ""
    return f"  --{key}{shown}".ljust(34) + f" {help}{options}".rstrip()


def _recbole_comments() -> dict[str, str]:
    """RecBole documents its settings in comments of its property files: `key: value  # (type) text`."""
    from pathlib import Path

    import recbole

    found = {}
    folder = Path(recbole.__file__).parent / "properties"
    for name in ("overall.yaml", "dataset/sample.yaml"):
        text = (folder / name).read_text(encoding="utf-8")
        for key, comment in re.findall(r"^(\w+):.*?#\s*\(\w[^)]*\)\s*(.+)$", text, re.M):
            found[key] = comment.strip()
    return found


def _model_keys(model: str) -> set[str]:
    from pathlib import Path

    import recbole

    from recbole_unlearn.settings.yaml_files import read_yaml

    file = Path(recbole.__file__).parent / "properties" / "model" / f"{model}.yaml"
    return set(read_yaml(file)) if file.is_file() else set()
