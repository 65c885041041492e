"""The page of one run, `report.html`: the verdict, what it rests on, and how the run was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from recbole_unlearn.measures.base import measures
from recbole_unlearn.report import figures, page
from recbole_unlearn.report.entries import FigureOf, affected_ndcg
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import (
    MISSING,
    count,
    decimal,
    difference,
    duration,
    flat,
    percent,
    phase_title,
    plain,
    run_title,
    signed,
    times,
)
from recbole_unlearn.results.schema import (
    ORIGINAL,
    RETRAINED,
    SECOND,
    UNLEARNED,
    LeftOut,
    Metrics,
    PhaseResult,
    RunResult,
    Verdict,
    in_order,
)

NAME = "report.html"
_LEVELS = {
    "near": "Near the retrained model",
    "under": "Forgets too little",
    "over": "Forgets too much",
    "cannot_tell": "These figures cannot tell",
    "unknown": "No verdict",
}
_PROVISIONAL = "Provisional: no retrained model"
_ALL = "All users"
_GROUPS: dict[str, Callable[[PhaseResult], Metrics]] = {
    _ALL: lambda phase: phase.metrics,
    "Affected users (with a deleted interaction)": lambda phase: phase.affected,
    "Unaffected users": lambda phase: phase.unaffected,
    "All users, deleted items masked": lambda phase: phase.masked,
}
_CLAIMS = (
    "that the model behaves like one that never saw the deleted interactions",
    "how much of retraining's effect was recovered, and how much faster that was",
    "whether the demotion rate and the attack are where they should be: both have the retrained model's value as "
    "their goal, not 1 and not 0.5",
)
_DEMOTION = "demotion"
_CURVES = {  # titles of what our methods record by step; any other curve goes by its own name
    "loss": "objective",
    _DEMOTION: "demotion rate of deleted pairs",
    "retained_loss": "loss of retained interactions",
    "residual": "relative residual of the solver",
    "validation": "validation score",
}


class _Line(NamedTuple):
    """A row of the table of measures: one figure of a measure."""

    path: tuple[str, ...]  # under `forgetting`
    title: str
    below: tuple[str, ...]  # what the measure means, at its first figure
    is_distance: bool  # measured against the retrained model to begin with


def write_report(result: RunResult, directory: Path) -> Path:
    """Write the page of ``result`` into ``directory`` and return its path."""
    phases = in_order(result.phases)
    run = run_title(result.method, result.model, result.dataset, result.seed)
    return page.write(
        Path(directory) / NAME,
        f"Unlearning report: {run}",
        _verdict(result, run),
        page.cards(_key_figures(result)),
        Html("") if result.withheld is None else page.element("p", result.withheld.why, class_="note"),
        Html("") if result.left_out is None else page.element("p", _left_out(result.left_out), class_="note"),
        Html("") if RETRAINED in phases else _without_retraining(),
        _results(phases),
        _scores(phases),
        _utility(phases),
        _forgetting(phases),
        _placebo(result),
        _damage(phases),
        _curves(result),
        _certificates(result),
        _record(result),
    )


def _verdict(result: RunResult, run: str) -> Html:
    level, sentence, provisional = result.verdict or Verdict("unknown", _request(result))
    # A verdict may continue after its first clause; only that one is large.
    first, semicolon, rest = sentence.partition("; ")
    known = level in _LEVELS
    heading = _LEVELS.get(level, "") if provisional is None else _PROVISIONAL
    return page.element(
        "header",
        page.element("p", run, class_="quiet"),
        page.element("p", heading, class_="level") if known else "",
        page.element("h1", first + semicolon, page.element("small", rest) if rest else ""),
        class_=f"verdict {level}" if known else "verdict",
    )


def _left_out(found: LeftOut) -> str:
    """Which recovered shares are not on this page, and why."""
    names = ", ".join(map(figures.metric_title, found.metrics))
    return f"Recovered share, left out for {names}: {found.why}"


def _request(result: RunResult) -> str:
    """What can be said without a verdict."""
    asked = result.forget.interactions
    return (
        "A model was asked to forget."
        if asked is None
        else f"{count(asked)} interactions were to be forgotten."
    )


def _key_figures(result: RunResult) -> list[tuple[str, str, str]]:
    """What is known of: utility, demotion, attack, overlap, time, and interactions forgotten."""
    forget = result.forget
    entries = [
        _utility_figure(result),
        _rate_figure(result, "Demotion rate", lambda phase: phase.demotion_rate),
        _rate_figure(result, "Attack AUC", lambda phase: phase.figure("attack", "auc")),
        _overlap_figure(result),
        _time_figure(result),
        (
            "Interactions forgotten",
            count(forget.interactions),
            f"{count(forget.users)} users\n{count(forget.items)} items",
        ),
    ]
    return [entry for entry in entries if entry[1] != MISSING]


def _phase(result: RunResult, name: str) -> PhaseResult:
    """A phase, or one without figures."""
    return result.phases.get(name, PhaseResult())


def _utility_figure(result: RunResult) -> tuple[str, str, str]:
    share = (result.recovered or {}).get("ndcg@20")
    if share is None:
        return _rate_figure(result, "NDCG@20, affected users", affected_ndcg)
    before, after, goal = (
        decimal(affected_ndcg(_phase(result, name))) for name in (ORIGINAL, UNLEARNED, RETRAINED)
    )
    return "NDCG@20 recovered", percent(share), f"affected users\n{before} → {after}\nretrained {goal}"


def _rate_figure(result: RunResult, title: str, of: FigureOf) -> tuple[str, str, str]:
    """The unlearned model's value, beside those of the models it is between."""
    held = {name: of(_phase(result, name)) for name in (RETRAINED, ORIGINAL)}
    beside = "\n".join(f"{name} {decimal(value)}" for name, value in held.items() if value is not None)
    return title, decimal(of(result.unlearned)), beside


def _overlap_figure(result: RunResult) -> tuple[str, str, str]:
    shared, again = (_phase(result, name).figure("overlap@20", "affected") for name in (UNLEARNED, SECOND))
    beside = "affected users\nwith retrained" + ("" if again is None else f"\nretrained 2: {percent(again)}")
    return "Top-20 overlap", percent(shared if result.retrained else None), beside


def _time_figure(result: RunResult) -> tuple[str, str, str]:
    fast, slow = (duration(_phase(result, name).seconds) for name in (UNLEARNED, RETRAINED))
    if result.speedup is None:
        return "Time to forget", fast, ""
    return "Speed-up", times(result.speedup), f"{fast}\nretrained {slow}"


def _without_retraining() -> Html:
    return page.element(
        "aside",
        page.element(
            "p", page.element("strong", "No retrained model in this run."), " So this page cannot say"
        ),
        page.element("ul", (page.element("li", claim) for claim in _CLAIMS)),
        page.element("p", "Run it again with --compare=retrain to have these measured."),
        class_="note",
    )


def _heading(name: str, phases: figures.Phases) -> Html:
    return page.chip(figures.looks(phases)[name].color, phase_title(name))


def _results(phases: figures.Phases) -> Html:
    """A row per phase for each group of users, then the originals that some have of their own."""
    shown = [(_heading(name, phases), phase) for name, phase in phases.items()]
    shown += [
        (page.lines(_heading(name, phases), "before: its own original"), phase.before)
        for name, phase in phases.items()
        if phase.before is not None
    ]
    metrics = list(dict.fromkeys(m for _, phase in shown for of in _GROUPS.values() for m in of(phase)))
    if not metrics:
        return Html("")
    bodies = {
        title: [
            [head, *(decimal(of(phase).get(m), 4) for m in metrics), _seconds(phase) if title == _ALL else ""]
            for head, phase in shown
            if of(phase)
        ]
        for title, of in _GROUPS.items()
    }
    caption = (
        "All phases on the same test interactions, with the same masks. "
        "Time is a phase's own work, without evaluation."
    )
    if SECOND in phases:
        caption += " Retrained 2 is a second retraining, with another seed."
    table = page.table(
        caption,
        ["Phase", *map(figures.metric_title, metrics), "Time"],
        {title: rows for title, rows in bodies.items() if rows},
    )
    cached = any(phase.seconds_from_cache for _, phase in shown)
    note = page.element("p", "* trained in an earlier run; the time is that run's.", class_="quiet")
    return page.section("Results", table, note if cached else "")


def _seconds(phase: PhaseResult) -> str:
    if phase.seconds is None:
        return "loaded"
    return duration(phase.seconds) + ("*" if phase.seconds_from_cache else "")


def _drawings(*entries: tuple[figures.Figure | None, str, str]) -> Html:
    drawn = [page.drawing(figure, title, caption) for figure, title, caption in entries if figure]
    return page.element("div", drawn, class_="figures") if drawn else Html("")


def _scores(phases: figures.Phases) -> Html:
    caption = "The unlearned curve should lie on the retrained one: scored as if never seen."
    if RETRAINED not in phases:
        caption = (
            "Forgetting moves them away from the original's; how far it should, only retraining can tell."
        )
    caption += " Scores are in standard deviations from the user's mean."
    return page.section(
        "Scores of the deleted pairs",
        _drawings((figures.distribution(phases), "Scores of deleted pairs by phase.", caption)),
    )


def _utility(phases: figures.Phases) -> Html:
    titles = {
        metric: f"{figures.metric_title(metric)}@K of affected users by phase."
        for metric in ("recall", "ndcg")
    }
    return page.section(
        "What affected users get", _drawings(*((figures.by_k(phases, m), t, "") for m, t in titles.items()))
    )


def _measures(phases: figures.Phases) -> Iterator[_Line]:
    """The figures of all measures that are there, in the order of the registry."""
    entries = dict.fromkeys(key for phase in phases.values() for key in phase.forgetting)
    for one in measures():
        if one.is_distance and RETRAINED not in phases:
            continue
        below: tuple[str, ...] = (one.meaning, f"Good: {one.good}")
        for path, title in one.figures(entries):
            if any(phase.figure(*path) is not None for phase in phases.values()):
                yield _Line(path, title, below, one.is_distance)
                below = ()


def _forgetting(phases: figures.Phases) -> Html:
    """A row per measure; with retraining, each value has value − retrained's value below it.

    The floor is what a second retraining with another seed gets: |its value − retrained's|, or its value where
    the measure is a distance already. No method can be asked to come nearer than that.
    """
    columns = [name for name in phases if name != SECOND]
    rows: list[list[str]] = []
    for line in _measures(phases):
        values = {name: phase.figure(*line.path) for name, phase in phases.items()}
        goal = None if line.is_distance else values.get(RETRAINED)
        cells = [_cell(phases[name], line, goal if name != RETRAINED else None) for name in columns]
        if SECOND in phases:
            floor = values[SECOND] if line.is_distance else difference(values[SECOND], goal)
            cells.append(decimal(None if floor is None else abs(floor)))
        rows.append([page.lines(line.title, *line.below), *cells])
    if not rows:
        return Html("")
    caption = "Every value is to be held against the retrained model's"
    caption += "; below it, the distance." if RETRAINED in phases else ", which this run does not have."
    if SECOND in phases:
        caption += " The floor is how far a second retraining, with another seed, is from the first."
    head = [
        "Measure",
        *(_heading(name, phases) for name in columns),
        *(["floor"] if SECOND in phases else []),
    ]
    return page.section("Forgetting", page.table(caption, head, {"": rows}))


def _cell(phase: PhaseResult, line: _Line, goal: float | None) -> str:
    value = phase.figure(*line.path)
    away = difference(value, goal)
    below = [] if away is None else [signed(away)]
    if line.path[-1] == "auc":  # it comes with its confidence interval
        low, high = (phase.figure(*line.path[:-1], end) for end in ("low", "high"))
        if low is not None and high is not None:
            below.insert(0, f"{decimal(low)} to {decimal(high)}")
    return page.lines(decimal(value), *below)


def _damage(phases: figures.Phases) -> Html:
    caption = "Below zero is worse than the original. Where retraining moves as well, so should the unlearned model."
    titles = {
        grouping: f"Change of recall@20 by {grouping.replace('_', ' ')}." for grouping in figures.GROUPINGS
    }
    drawn = ((figures.damage(phases, grouping), title, caption) for grouping, title in titles.items())
    return page.section("Where the damage fell", _drawings(*drawn))


def _curves(result: RunResult) -> Html:
    """A figure for each kind of curve that any method recorded."""
    drawn = []
    for kind in dict.fromkeys(kind for own in result.curves.values() for kind in own):
        title = _CURVES.get(kind, kind.replace("_", " "))
        goal = _phase(result, RETRAINED).demotion_rate if kind == _DEMOTION else None
        figure = figures.curve(result.curves, kind, title, goal)
        drawn.append((figure, f"{title[:1].upper()}{title[1:]} by step.", ""))
    return page.section("How it went, step by step", _drawings(*drawn))


def _placebo(result: RunResult) -> Html:
    """What of the distance is memory, and what the method does to any model."""
    if result.placebo is None or not result.placebo.memory:
        return Html("")
    titles = {"demotion": "Demotion rate", "attack": "Attack: AUC", "ks": "Kolmogorov–Smirnov"}
    rows = [
        [titles.get(key, key), signed(value), signed(result.placebo.mark.get(key))]
        for key, value in result.placebo.memory.items()
    ]
    caption = (
        "The method also ran on the retrained model, which never saw what is deleted. What that changes is the "
        "method's own mark; what still differs between both results is memory, and should be 0."
    )
    return page.section(
        "Memory", page.table(caption, ["Figure", "Memory", "The method's own mark"], {"": rows})
    )


def _certificates(result: RunResult) -> Html:
    entries = [(name, plain(value)) for name, value in flat(result.certificates)]
    caption = "What the method can say of its result without retraining."
    return page.section("Certificates", page.pairs(caption, entries) if entries else "")


def _record(result: RunResult) -> Html:
    asked = {key: value for key, value in result.forget.to_json().items() if value is not None}
    request, environment = (
        page.pairs(title, [(key, plain(value)) for key, value in flat(part)]) if part else ""
        for title, part in (("The request", asked | result.difficulty), ("Environment", result.environment))
    )
    settings = [(key, plain(value)) for key, value in flat(result.settings) if not _names_a_path(value)]
    folded = page.element(
        "details",
        page.element("summary", f"All {len(settings)} settings"),
        page.pairs("Paths are left out.", settings),
    )
    return page.section("How it was made", request, folded if settings else "", environment)


def _names_a_path(value: Any) -> bool:
    """Whether a setting says where somebody keeps their files."""
    texts = [entry for entry in (value if isinstance(value, list) else [value]) if isinstance(entry, str)]
    return any(
        t.startswith("~") or PurePosixPath(t).is_absolute() or PureWindowsPath(t).is_absolute() for t in texts
    )
