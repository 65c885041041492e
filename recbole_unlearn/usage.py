"""`--help` and `--unlearn=?`: examples, all settings in groups with their defaults, and the methods.

Nothing here imports RecBole or torch, which takes seconds. Defaults are read from the property files that a run reads
too, in the same order (`settings/config.py`), and methods from their source; tests compare both with a run's.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tabulate import tabulate

from recbole_unlearn.errors import UnlearnError, nearest
from recbole_unlearn.settings import (
    GROUPS,
    catalogue,
    declared,
    described,
    knowledge,
    properties_dir,
    read_yaml,
    sequential,
)
from recbole_unlearn.text import width, wrapped

_RUN = "python run_unlearn.py"
EXAMPLES = {
    "A checkpoint of RecBole and a CSV of deletion requests, with the names that your data has for user and item": [
        "--checkpoint=saved/BPR-Nov-16-2026_02-03-04.pth --forget=requests.csv"
    ],
    "The paper's experiment: train with noise, forget it, and compare with a model that never saw it": [
        "--model=LightGCN --dataset=ml-100k --unlearn=obliviate --compare=retrain"
    ],
    "Several methods on the same request": [
        "--model=BPR --dataset=ml-100k --forget=requests.csv --unlearn=obliviate --compare=finetune,scif,retrain"
    ],
    "Find good settings of a method for your data": [
        "--model=BPR --dataset=ml-100k --unlearn=obliviate --tune --trials=16"
    ],
    "Many models, methods and seeds, and one page about all results": [
        "--grid=smoke --output_dir=saved/smoke",
        "--report=saved/smoke --output_dir=saved/page",
    ],
}
_COLUMN = 34  # where help texts begin
_KINDS = {
    "general_recommender": "general", "context_aware_recommender": "context",
    "sequential_recommender": "sequential", "knowledge_aware_recommender": "knowledge",
}  # fmt: skip
_CHOSEN = {"sequential": sequential, "knowledge": knowledge}  # types of which some models can be unlearned


def method_list() -> str:
    """The unlearning methods: what they do and give, on which models, and which one to take."""
    ordered = sorted(described.methods(), key=lambda one: (one.name != _default(), not one.recommended))
    rows = [[_marked(one), one.result, one.models, one.help] for one in ordered]
    room = width() - max(len(row[0]) for row in rows) - 15 - 6
    text = tabulate(
        rows,
        headers=["method", "result", "models", "what it does"],
        maxcolwidths=[None, 15, room // 2, room - room // 2],
    )
    return f"{text}\n\n{wrapped(_choice())}"


def _default() -> str:
    return str(read_yaml(properties_dir() / "overall.yaml")["unlearn"])


def _marked(method: described.Description) -> str:
    if method.name == _default():
        return f"{method.name} (default)"
    return f"{method.name} (recommended)" if method.recommended else method.name


def _choice() -> str:
    """Which method to take, in a sentence."""
    known = {one.name: one for one in described.methods()}
    others = [f"{one.name} is recommended {one.recommended}" for one in known.values() if one.recommended]
    first = f"{_default()} is the default, because its result is {known[_default()].result}"
    return "; ".join([first, *others]) + ". --compare=retrain measures how near any method comes."


def help_text(values: Mapping[str, Any]) -> str:
    """All settings in groups, with defaults; those of a model too when `--model` is given."""
    model, dataset = (str(values.get(key) or "") for key in ("model", "dataset"))
    defaults = default_values(model, dataset)
    blocks = [_opening(), "Required, unless a checkpoint gives them:", "  --model", "  --dataset"]
    for title, group in GROUPS.items():
        blocks += ["", f"{title}:", *_lines(declared(group).values(), defaults)]
    blocks += _method_blocks(model, dataset, _kind(model) if model else "")
    comments, listed = _recbole_comments(), set()
    for title, keys in recbole_keys().items():
        listed |= set(keys)
        blocks += ["", f"RecBole, {title}:"]
        blocks += [_line(key, defaults.get(key), comments.get(key, "")) for key in keys]
    if own := sorted(set(_model_values(model)) - listed):
        blocks += ["", f"RecBole, {model}:", *(_line(key, defaults[key], "") for key in own)]
    blocks += ["", "--config_files=a.yaml,b.yaml reads settings from files; the command line wins."]
    return "\n".join(blocks)


def _opening() -> str:
    lines = ["Make a trained RecBole model forget interactions, and measure how well it did.", ""]
    lines += [f"usage: {_RUN} [--key=value ...]", "", "Examples:"]
    for what, commands in EXAMPLES.items():
        lines += [f"  {what}:", *(f"    {_RUN} {command}" for command in commands)]
    about = (
        "Below are all settings with the defaults of a run; --model=NAME and --dataset=NAME beside --help show those "
        "for that model and dataset. A setting without a value has none."
    )
    requests = (
        "Many requests, one after the other, on a model that serves: `recbole-unlearn requests --help`."
    )
    return "\n".join([*lines, "", wrapped(requests), wrapped(_choice()), wrapped(about), ""])


def default_values(model: str = "", dataset: str = "") -> dict[str, Any]:
    """What a run has for every key of RecBole and of ours that is not a method's; "" is any model or dataset."""
    kind = _kind(model) if model else ""
    theirs, ours = recbole_folder() / "properties", properties_dir()
    files = [
        theirs / "overall.yaml",
        theirs / "model" / f"{model}.yaml",
        theirs / "dataset" / "sample.yaml",
        theirs / "dataset" / f"{dataset}.yaml",
    ]
    files += [theirs / "quick_start_config" / f"{name}.yaml" for name in _quick_start(kind, model, dataset)]
    files += [
        ours / f"{name}.yaml"
        for name in (
            "overall",
            f"model_type/{kind}",
            f"model/{model}",
            f"dataset/{dataset}",
            f"model_dataset/{model}-{dataset}",
        )
    ]
    found: dict[str, Any] = {}
    for file in files:
        if file.is_file():
            found |= read_yaml(file)
    if kind == "sequential":
        found["train_neg_sample_args"] = sequential.negatives(found.get("loss_type"))
    return found


def _quick_start(kind: str, model: str, dataset: str) -> list[str]:
    """RecBole's files for a type of model, and for some models of it on one dataset."""
    if kind == "context":
        return ["context-aware", f"context-aware_{dataset}"]
    if kind == "sequential":
        of_features = [f"special_sequential_on_{dataset}"] if model in sequential.WITH_FEATURES else []
        return ["sequential", *of_features]
    return ["knowledge_base"] if kind == "knowledge" else []


def recbole_folder() -> Path:
    """Where RecBole is, without importing it."""
    spec = importlib.util.find_spec("recbole")
    if spec is None or not spec.submodule_search_locations:
        raise UnlearnError("RecBole is not installed: pip install recbole.")
    return Path(spec.submodule_search_locations[0])


def recbole_keys() -> dict[str, list[str]]:
    """RecBole's own list of its settings, by what they are about; the file has nothing else in it."""
    names = runpy.run_path(str(recbole_folder() / "utils" / "argument_list.py"))
    return {title: names[f"{title}_arguments"] for title in ("general", "training", "evaluation", "dataset")}


def _kind(model: str) -> str:
    """The type of a RecBole model, by the folder that it is in."""
    if ":" in model:  # a class of the user's own
        return ""
    for folder, kind in _KINDS.items():
        source = recbole_folder() / "model" / folder / f"{model.lower()}.py"
        if source.is_file() and _model_file(model).is_file():
            if kind in _CHOSEN and model not in _CHOSEN[kind].MODELS:
                raise _CHOSEN[kind].refusal(model)
            return kind
    known = sorted(path.stem for path in (recbole_folder() / "properties" / "model").glob("*.yaml"))
    if model in known:
        raise UnlearnError(
            f"{model} cannot be unlearned yet: general, context-aware, many sequential and some knowledge-aware "
            "models can."
        )
    raise UnlearnError(f"Unknown model {model!r}.{nearest(model, known)} See RecBole's model list.")


def _model_file(model: str) -> Path:
    return recbole_folder() / "properties" / "model" / f"{model}.yaml"


def _model_values(model: str) -> dict[str, Any]:
    return read_yaml(_model_file(model)) if _model_file(model).is_file() else {}


def _method_blocks(model: str, dataset: str, kind: str) -> Iterator[str]:
    """The settings of each method; of a preset those that differ from what it is a preset of."""
    known = {one.name: one for one in described.methods()}
    values = {
        name: one.defaults
        | catalogue.file_values(name, model, dataset, kind, lambda other: known[other].folder)
        for name, one in known.items()
    }
    for name, one in sorted(known.items(), key=lambda pair: (pair[1].base is not None, pair[0])):
        yield from ("", wrapped(f"Method {_marked(one)}: {one.help}", indent="  "))
        if one.base is None:
            yield from _lines(one.keys, values[name])
        else:
            yield f"  As {one.base}, except for"
            other = values[one.base]
            yield from (f"  --{key}={typed(v)}" for key, v in values[name].items() if v != other[key])


def _lines(keys: Any, values: Mapping[str, Any]) -> list[str]:
    """A line for each declared key."""
    return [_line(key.name, values.get(key.name), key.help, key.choices) for key in keys]


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


def _recbole_comments() -> dict[str, str]:
    """RecBole documents its settings in comments of its property files: `key: value  # (type) text`."""
    found = {}
    for name in ("overall.yaml", "dataset/sample.yaml"):
        text = (recbole_folder() / "properties" / name).read_text(encoding="utf-8")
        for key, comment in re.findall(r"^(\w+):.*?#\s*\(\w[^)]*\)\s*(.+)$", text, re.M):
            found[key] = comment.strip()
    return found
