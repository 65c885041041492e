"""The command line, in RecBole's manner: `--key=value` for any setting of RecBole or of the plugin.

Values are read as YAML. `--flag` and `--no_flag` set a yes-or-no setting. `--help` prints all settings with the
defaults of a run; `--unlearn=?` lists the methods.
"""

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import recbole
import yaml
from tabulate import tabulate

import recbole_unlearn
from recbole_unlearn import __version__
from recbole_unlearn.errors import EXIT_CODE, UnlearnError
from recbole_unlearn.log import exit_code, saying, stopping
from recbole_unlearn.registry import METHODS
from recbole_unlearn.text import counted, width, wrapped

# Names among RecBole's settings; taken as typed, like ours of type str.
_NAMES = {"model", "dataset", "data_path", "config_files", "config_file_list"}
_RECBOLE = Path(recbole.__file__).parent / "properties"
_COLUMN = 34  # where help texts begin
# By command, the function of the package, and the file in which its result is.
_FUNCTIONS = {
    "run": ("run_unlearn", "result.json"), "tune": ("tune_unlearn", "tune.json"),
    "audit": ("audit_unlearn", "audit.json"), "evaluate": ("evaluate_models", "result.json"),
    "stream": ("run_stream", "comparison.html"),
}  # fmt: skip


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """`--key=value` arguments as a dict; `--key value` is accepted too."""
    from recbole_unlearn import settings

    names = _NAMES | {key for key, about in settings.own_settings().items() if about.is_name}
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
            value = text if key in names else settings.parse_value(text)
        elif key.startswith("no_"):
            key, value = key[3:], False
        else:
            value = True
        if key in values and values[key] != value:
            raise UnlearnError(f"--{key} is given twice, with different values; leave one out.")
        values[key] = value
    return values


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 if a part of a grid failed, 2 for wrong input, 130 after Ctrl-C, 143 after SIGTERM."""
    # Read when torch is imported: threads that wait for others sleep. Spinning, they take the cores that others need.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with stopping():
        try:
            return _main(list(sys.argv[1:] if arguments is None else arguments))
        except UnlearnError as error:
            print(f"Error: {error}", file=sys.stderr)
            return EXIT_CODE
        except BrokenPipeError:  # the reader has closed the pipe, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        except KeyboardInterrupt as stop:
            print(f"Stopped; {stop.args[0] if stop.args else 'no result was written.'}", file=sys.stderr)
            return exit_code(stop)


def _main(arguments: list[str]) -> int:
    if arguments[:1] == ["requests"]:
        from recbole_unlearn.state import commands

        return commands.main(arguments[1:], parse, _model)
    if arguments[:1] in (["audit"], ["evaluate"]):
        if {"--help", "-h"} & set(arguments) or len(arguments) == 1:
            from recbole_unlearn import settings

            print(settings.read_yaml(settings.properties_dir() / "help.yaml")[arguments[0]].rstrip(), flush=True)
            return 0
        return _run(parse(arguments[1:]), arguments[0])
    if "--version" in arguments:
        print(f"recbole-unlearn {__version__}")
        return 0
    if not arguments or {"--help", "-h"} & set(arguments):
        values = parse([a for a in arguments if a not in ("--help", "-h")])
        print(help_text(str(values.get("model") or ""), str(values.get("dataset") or "")), flush=True)
        return 0
    values = parse(arguments)
    if values.get("unlearn") == "?":
        print(method_list(), flush=True)
        return 0
    if values.get("report") not in (None, "html", "none"):
        return _compare(values)
    return _grid(values) if values.get("grid") is not None else _run(values)


def _model(typed: str | None) -> Any:
    """A model's name, or the class that package.module:Class names."""
    from recbole_unlearn import settings

    return settings.typed_class(typed) if isinstance(typed, str) and ":" in typed else typed


def _run(values: dict[str, Any], command: str = "") -> int:
    """One run, an audit, the evaluation of given models, a stream, or with `--tune` a sweep."""
    from recbole_unlearn import settings

    files = [values.pop(key, None) for key in ("config_files", "config_file_list")]  # RecBole has both names
    files = next(filter(None, files), [])
    if isinstance(files, str):
        files = settings.as_list(files) if "," in files else files.split()
    model, dataset = _model(values.pop("model", None)), values.pop("dataset", None)
    is_stream = str(values.get("forget")).startswith("stream:")
    function, written = _FUNCTIONS[command or ("tune" if values.get("tune") else "stream" if is_stream else "run")]
    run = getattr(recbole_unlearn, function)
    result = run(model, dataset, config_files=files, config_dict=values)
    with saying(f"the result was written before, to {result.output_dir}."):
        print(f"\n{result}\n{result.output_dir / written}")
    return 0


def _grid(values: dict[str, Any]) -> int:
    """`--grid=FILE`: the runs of a grid that have no result yet, and the tables of all of them."""
    from recbole_unlearn import grid

    with saying("finished cells are kept, and the same command continues."):
        result = grid.run_grid(values.pop("grid"), config_dict=values)
    print("\n".join(["", str(result), *map(str, result.files)]))
    if result.failed:
        failed = f"{len(result.failed)} of {counted(len(result.cells), 'cell')}"
        print(f"{failed} failed; the same command tries them again.", file=sys.stderr)
    return 1 if result.failed else 0


def _compare(values: dict[str, Any]) -> int:
    """`--report=DIR1,DIR2,...`: one page over the results in those directories, or in directories below them."""
    from recbole_unlearn import report, settings

    if others := sorted(set(values) - {"report", "output_dir"}):
        raise UnlearnError(
            f"--report=DIRECTORIES runs nothing, so --{others[0]} has no meaning there. "
            "Use --report=html to run with a report."
        )
    names = [Path(name) for name in settings.as_list(values["report"])]
    target = Path(values.get("output_dir") or ".") / "comparison.html"
    found = [one for name in names for one in report.results_in(name)]
    print(report.write_comparison(found, target, grids=names))
    return 0


def method_list() -> str:
    """The unlearning methods: result, models, one sentence on each, and which to choose."""
    ordered = sorted(METHODS.all(), key=lambda one: (one.auto_order is None, not one.recommended))
    rows = [[_marked(one), one.result, one.models, one.help] for one in ordered]
    room = width() - max(len(row[0]) for row in rows) - 15 - 6
    head, widths = ["method", "result", "models", "what it does"], [None, 15, room // 2, room - room // 2]
    return f"{tabulate(rows, headers=head, maxcolwidths=widths)}\n\n{wrapped(_choice())}"


def _marked(method: Any) -> str:
    return f"{method.name} (recommended)" if method.recommended else method.name


def _choice() -> str:
    others = [f"{one.name} is recommended {one.recommended}" for one in METHODS.all() if one.recommended]
    first = "The default, --unlearn=auto, is the quickest exact method for the model"
    return "; ".join([first, *others]) + ". --compare=retrain measures how near any method comes."


def help_text(model: str = "", dataset: str = "") -> str:
    """Examples, and all settings in groups with the defaults of a run of this model and dataset."""
    from recbole_unlearn import settings

    # The settings of a user's own class are not listed.
    config = settings.default_config("" if ":" in model else model, dataset)
    defaults = config.internal_config_dict
    said = settings.read_yaml(settings.properties_dir() / "help.yaml")
    lines = [said["opening"], wrapped(said["requests"]), wrapped(_choice()), wrapped(said["below"]), ""]
    lines += ["Required, unless a checkpoint gives them:", "  --model", "  --dataset"]
    for title, group in settings.GROUPS.items():
        lines += ["", f"{title}:", *_lines(settings.declared(group), defaults)]
    lines += _method_lines(config)
    # RecBole documents its settings in comments of its property files: `key: value  # (type) text`.
    text = "\n".join((_RECBOLE / f"{name}.yaml").read_text("utf-8") for name in ("overall", "dataset/sample"))
    comments = dict(re.findall(r"^(\w+):.*?#\s*\(\w[^)]*\)\s*(.*\S)", text, re.M))
    groups = {title.lower(): keys for title, keys in config.parameters.items()}
    if (own := _RECBOLE / "model" / f"{model}.yaml").is_file():
        groups[model] = sorted(set(settings.read_yaml(own)).difference(*groups.values()))
    for title, keys in groups.items():
        lines += ["", f"RecBole, {title}:"] if keys else []
        lines += [_line(key, defaults.get(key), comments.get(key, "")) for key in keys]
    lines += ["", "--config_files=a.yaml,b.yaml reads settings from files; the command line wins."]
    return "\n".join(lines)


def _method_lines(config: Any) -> Iterator[str]:
    """The settings of each method; of a preset those that differ from the method that it starts from."""
    from recbole_unlearn import settings

    for one in sorted(METHODS.all(), key=lambda one: (settings.preset_of(one.name) is not None, one.name)):
        yield from ("", wrapped(f"Method {_marked(one)}: {one.help}", indent="  "))
        base, values = settings.preset_of(one.name), config.usual_values(one.name)
        if base is None:
            yield from _lines(settings.declared(one.Settings), values)
        else:
            other = config.usual_values(base)
            yield f"  As {base}, except for"
            yield from (f"  --{key}={typed(v)}" for key, v in values.items() if v != other.get(key))


def _lines(keys: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    return [_line(key, values.get(key), about.help, about.choices) for key, about in keys.items()]


def _line(key: str, default: Any, help: str, choices: Sequence[str] | None = None) -> str:
    shown = "" if default is None or default == [] else f"={typed(default)}"
    options = f" One of {', '.join(choices)}." if choices else ""
    start = f"  --{key}{shown}".ljust(_COLUMN)
    text = f"{help}{options}".strip()
    if len(start) > _COLUMN and text:
        return f"{start}\n" + wrapped(" " * (_COLUMN + 1) + text, indent=" " * (_COLUMN + 1))
    return wrapped(f"{start} {text}", indent=" " * (_COLUMN + 1)).rstrip()


def typed(value: Any) -> str:
    """A value as it can be typed in a shell; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6).strip()
    else:
        text = str(value).encode("unicode_escape").decode()
    return f'"{text}"' if "'" in text and not re.search(r'["$`\\]', text) else shlex.quote(text)
