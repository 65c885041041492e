"""The page of one run, `report.html`: verdict, account, advice, figures, certificates, and how to repeat the run.

`templates/report.html` has the order, headings and captions; this file computes what is shown. Nothing about users
fewer than `min_group` gets here: the result was cut by `results/disclosure.py` before.
"""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recbole_unlearn import settings
from recbole_unlearn.data import DRAWN
from recbole_unlearn.methods import UnlearnTrainer
from recbole_unlearn.registry import METHODS
from recbole_unlearn.report import figures, page
from recbole_unlearn.report.comparison import is_noise, levels_of
from recbole_unlearn.report.page import chip, lines
from recbole_unlearn.results import ORIGINAL, RETRAINED, SECOND, UNLEARNED, PhaseResult, RunResult, in_order
from recbole_unlearn.results.schema import flat, number
from recbole_unlearn.results.table import against_retraining, line_states, measured_figures

PROGRAM = ("python", "-m", "recbole_unlearn")
OWN = (ORIGINAL, UNLEARNED, RETRAINED, SECOND)  # all other phases are compared methods
GROUPS = ("metrics", "affected", "unaffected")  # of users, in a phase


def write_report(result: RunResult, directory: Path, given: Mapping[str, Any] | None = None) -> Path:
    """Write the page of ``result``, with the command that repeats it where the user's settings are ``given``."""
    phases = in_order(result.phases)
    original, own, goal, again = (phases.get(name, PhaseResult()) for name in OWN)
    looks, levels = figures.looks(phases), levels_of(result)
    # The unlearned model is next to its goal in tables, so that a phone shows both.
    order = dict.fromkeys(name for name in (UNLEARNED, RETRAINED, SECOND, ORIGINAL, *phases) if name in phases)
    heads = {name: chip(page.phase_title(name), looks[name].color) for name in order}
    shown = [(heads[name], phases[name]) for name in order]
    shown += [(lines(head, "before: its own original"), one.before) for head, one in shown if one.before]
    said, method = result.verdict, next((one for one in METHODS.all() if one.name == result.method), None)
    run = page.run_title(result.method, result.model, result.dataset, result.seed)
    return page.write_page(
        Path(directory) / "report.html",
        "report.html",
        title=f"Unlearning report: {run}",
        run=run,
        result=result,
        phases=phases,
        original=original,
        own=own,
        goal=goal,
        again=again,
        heads=heads,
        looks=looks,
        said=sentences(said.text) if said else [],
        method=method,
        is_noise=is_noise(result),
        noise=[number(result.settings.get(key)) for key in ("inject_users", "inject_amount")],
        advice=advised(result),
        near=[name for name, one in levels.items() if name not in OWN and one == "near"],
        against=against_retraining(result),
        ways=turned(method, result),
        can_tune=method is not None and (settings.properties_dir() / "tune" / f"{method.name}.yaml").is_file(),
        lines=line_states(result),
        shown=shown,
        metrics=list(dict.fromkeys(key for _, one in shown for group in GROUPS for key in getattr(one, group))),
        distribution=figures.distribution(phases),
        forgetting=[] if result.few else list(measured_figures(phases)),
        curves=_curves(result),
        command=None if given is None else command(result, given),
        asked={k: v for k, v in result.forget.to_json().items() if v is not None},
        settings=[(key, value) for key, value in flat(result.settings) if not page.names_a_path(value)],
    )  # fmt: skip


def sentences(text: str) -> list[str]:
    """The clauses of a verdict, which semicolons separate, as sentences with a capital and a full stop."""
    clauses = [part.strip() for part in re.split(r";\s+(?![^()]*\))", text)]
    whole = [f"{part[:1].upper()}{part[1:]}" for part in clauses if part] or [""]
    return [part if part.endswith((".", "!", "?")) else f"{part}." for part in whole]


def advised(result: RunResult) -> str | None:
    """The kind of advice: under, over, cannot_tell or unknown; None where nothing has to be done."""
    level = "unknown" if result.verdict is None else result.verdict.level
    if level == "unknown" and RETRAINED in result.phases:
        return "cannot_tell"
    return level if level in ("under", "over", "cannot_tell", "unknown") else None


def turned(method: type[UnlearnTrainer] | None, result: RunResult) -> dict[str, list[str]]:
    """By verdict, the settings to change; of a sequential model not those that it refuses."""
    if method is None:
        return {"under": [], "over": []}
    refused = set(method.of_pairs) if result.model in settings.SEQUENTIAL else set()
    ways = {"under": method.forgets_more, "over": method.forgets_less}
    return {side: [way for way in own if not refused & set(re.findall(r"\w+", way))] for side, own in ways.items()}


def _curves(result: RunResult) -> list[tuple[figures.Figure | None, str, str]]:
    drawn = []
    for kind in dict.fromkeys(kind for own in result.curves.values() for kind in own):
        title, is_share = kind.replace("_", " "), kind.endswith(("demotion", "attack"))
        goal = result.retrained.demotion_rate if kind == "demotion" and result.retrained else None
        unit = "epoch" if kind.startswith("relearned") else "step"
        figure = figures.curve(result.curves, kind, (unit, title), goal, 1.02 if is_share else None)
        drawn.append((figure, f"{title[:1].upper()}{title[1:]} by {unit}.", ""))
    return drawn


def command(result: RunResult, given: Mapping[str, Any]) -> str | None:
    """The bash command that repeats the run, with FILE for the user's files; None where the result lacks names."""
    if not (result.model and result.dataset and result.method):
        return None
    ours, original = settings.own_settings(), result.phases.get(ORIGINAL)
    is_loaded = original is not None and original.seconds is None
    model = result.model
    if model not in settings.model_names():  # a class, which has a name where it was imported by one
        module = getattr(given.get("model"), "__module__", "__main__")
        model = f"{'PACKAGE.MODULE' if module == '__main__' else module}:{model}"
    options: dict[str, Any] = {"model": model, "dataset": result.dataset, "seed": result.seed}
    options = ({"checkpoint": "FILE"} if is_loaded else options) | {"unlearn": result.method}
    if not is_noise(result):
        options["forget"] = "FILE"
    elif (result.forget.source or "").startswith(DRAWN):
        options["forget"] = str(result.forget.source).removeprefix(f"{DRAWN} ")
    if given.get("data_path") is not None:
        options["data_path"] = "FOLDER"
    for key, value in given.items():
        decides = key == "compare" or settings.about(key).role is settings.Role.RESULT
        if decides and key not in options and value is not None and not page.names_a_path(value):
            options[key] = value
    written = []
    for key, value in options.items():
        is_name = key in ("model", "dataset") or (key in ours and ours[key].is_name)
        if key == "compare" or (is_name and isinstance(value, list)):
            value, is_name = ",".join(settings.as_list(value)), True
        written.append(shlex.quote(f"--{key}={value if is_name and isinstance(value, str) else _written(value)}"))
    return " ".join([*PROGRAM, *written])


def _written(value: Any) -> str:
    """A value such that the command line reads the same again."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    try:
        return value if isinstance(value, str) and settings.parse_value(value) == value else text
    except (ValueError, RecursionError):  # text that looks like a date, for example, and is none
        return text
