"""The command line, in RecBole's manner: `--key=value` for any setting of RecBole or of the plugin.

Values are read as YAML. `--flag` and `--no_flag` set a yes-or-no setting. `--help` lists all settings with
their defaults, `--unlearn=?` the methods.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from recbole_unlearn import __version__
from recbole_unlearn.errors import EXIT_CODE, UnlearnError
from recbole_unlearn.log import exit_code, saying, stopping
from recbole_unlearn.text import counted

# Names among RecBole's settings and ours that no class declares; taken as they are typed.
_NAMES = {"model", "dataset", "data_path", "config_files"}


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """`--key=value` arguments as a dict; `--key value` is accepted too, because people type it."""
    from recbole_unlearn.settings import GROUPS, declared, described, parse_value

    ours = {key for group in GROUPS.values() for key, about in declared(group).items() if about.is_name}
    of_methods = {key.name for method in described.methods() for key in method.keys if key.is_name}
    names = _NAMES | ours | of_methods
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

    0; 1 when a part of a grid failed; 2 when the input has to be corrected; 130 after Ctrl-C, 143 after SIGTERM.
    """
    with stopping():
        return _main(list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    try:
        if arguments[:1] == ["requests"]:
            from recbole_unlearn.state import main as requests

            return requests(arguments[1:], parse, _class)
        if "--version" in arguments:
            print(f"recbole-unlearn {__version__}")
            return 0
        if "--help" in arguments or "-h" in arguments or not arguments:
            from recbole_unlearn.usage import help_text

            values = parse([a for a in arguments if a not in ("--help", "-h")])
            if ":" in str(values.get("model")):
                values.pop("model")  # a class of somebody's own has no settings that are listed here
            print(help_text(values), flush=True)
            return 0
        values = parse(arguments)
        if values.get("unlearn") == "?":
            from recbole_unlearn.usage import method_list

            print(method_list(), flush=True)
            return 0
        if values.get("report") not in (None, "html", "none"):
            return _compare(values)
        if values.get("grid") is not None:
            return _grid(values)
        return _run(values)
    except UnlearnError as error:
        print(f"Error: {error}", file=sys.stderr)
        return EXIT_CODE
    except BrokenPipeError:  # whoever read what is printed has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt as stop:
        print(f"Stopped; {stop.args[0] if stop.args else 'no result was written.'}", file=sys.stderr)
        return exit_code(stop)


def _class(typed: str) -> type:
    """The class that package.module:Class names."""
    from recbole_unlearn.settings import typed_class

    return typed_class(typed)


def _model(typed: str | None) -> str | type | None:
    """A model by its name, or the class that package.module:Class names."""
    from recbole_unlearn.settings import is_typed_class

    return _class(str(typed)) if is_typed_class(typed) else typed


def _run(values: dict[str, Any]) -> int:
    """One run, or with `--tune` a sweep of them."""
    from recbole_unlearn.settings import as_list

    files = values.pop("config_files", None)
    files = files.split() if isinstance(files, str) and "," not in files else as_list(files)
    model, dataset = _model(values.pop("model", None)), values.pop("dataset", None)
    result: Any
    if values.get("tune"):
        from recbole_unlearn.tuning import tune_unlearn

        result, written = tune_unlearn(model, dataset, config_files=files, config_dict=values), "tune.json"
    else:
        from recbole_unlearn.quick_start import run_unlearn

        result, written = run_unlearn(model, dataset, config_files=files, config_dict=values), "result.json"
    with saying(f"the result was written before, to {result.output_dir}."):
        print(f"\n{result}\n{result.output_dir / written}")
    return 0


def _grid(values: dict[str, Any]) -> int:
    """`--grid=FILE`: the runs of a grid that have no result yet, and the tables of all of them."""
    from recbole_unlearn.grid import run_grid

    try:
        result = run_grid(values.pop("grid"), config_dict=values)
    except KeyboardInterrupt as stop:
        stop.args = ("finished cells are kept, and the same command continues.",)
        raise
    print("\n".join(["", str(result), *map(str, result.files)]))
    if result.failed:
        failed = f"{len(result.failed)} of {counted(len(result.cells), 'cell')}"
        print(f"{failed} failed; the same command tries them again.", file=sys.stderr)
        return 1
    return 0


def _compare(values: dict[str, Any]) -> int:
    """`--report=DIR1,DIR2,...`: one page over the results in those directories, or in directories below them."""
    from pathlib import Path

    from recbole_unlearn.report import results_in, write_comparison
    from recbole_unlearn.settings import as_list

    others = sorted(set(values) - {"report", "output_dir"})
    if others:
        raise UnlearnError(
            f"--report=DIRECTORIES runs nothing, so --{others[0]} has no meaning there. "
            "Use --report=html to run with a report."
        )
    names = [Path(name) for name in as_list(values["report"])]
    target = Path(values.get("output_dir") or ".") / "comparison.html"
    print(write_comparison([found for name in names for found in results_in(name)], target, grids=names))
    return 0
