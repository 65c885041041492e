"""The page of one run, `report.html`: the verdict, what it rests on, and how the run was made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from recbole_unlearn.measures.base import measures
from recbole_unlearn.report import certificates, figures, page
from recbole_unlearn.report.account import account, is_few, noise, request_sentence, roughly
from recbole_unlearn.report.advice import advice
from recbole_unlearn.report.command import command
from recbole_unlearn.report.entries import FigureOf, affected_ndcg, levels_of
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import (
    MISSING,
    SHORT,
    count,
    counted,
    day,
    decimal,
    difference,
    duration,
    flat,
    listed,
    names_a_path,
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
_HEADINGS = {
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
_GOAL = "Goal: the retrained model's value. Closer to it is better; smaller or larger by itself is not."
_OWN = (ORIGINAL, UNLEARNED, RETRAINED, SECOND)  # all other phases are compared methods
_SEEN = 0.0005  # a change that is not 0.000 where it is written
_HARM = 0.02  # recall@20 that a group may lose beside retraining before a small request is looked at
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
        _account(result),
        _advice(result),
        page.cards(_key_figures(result)),
        page.element("p", _GOAL, class_="quiet") if RETRAINED in phases else Html(""),
        _note(_withheld(result)),
        _note(_left_out(result.left_out)),
        _methods(result, phases),
        _results(phases, 1 if is_few(result) else 4),
        _scores(phases),
        _utility(phases),
        Html("") if is_few(result) else _forgetting(phases),
        _placebo(result),
        _damage(result, phases),
        _curves(result),
        _certificates(result),
        _record(result),
    )


def _verdict(result: RunResult, run: str) -> Html:
    """The level, the verdict's first sentence as the headline, and its others below."""
    level, text, provisional = result.verdict or Verdict("unknown", request_sentence(result))
    first, *rest = sentences(text)
    known = level in _HEADINGS
    heading = _HEADINGS.get(level, "") if provisional is None else _PROVISIONAL
    date = day(result.date)
    return page.element(
        "header",
        page.element("p", run + (f" · {date}" if date else ""), class_="quiet"),
        page.element("p", heading, class_="level") if known else "",
        page.element("h1", first, page.element("small", page.prose(" ".join(rest))) if rest else ""),
        class_=f"verdict {level}" if known else "verdict",
    )


def sentences(text: str) -> list[str]:
    """A verdict's clauses, which semicolons part, as sentences: each begins large and ends with a stop."""
    clauses = [part.strip() for part in re.split(r";\s+(?![^()]*\))", text)]
    whole = [f"{part[:1].upper()}{part[1:]}" for part in clauses if part] or [""]
    return [part if part.endswith((".", "!", "?")) else f"{part}." for part in whole]


def _account(result: RunResult) -> Html:
    """What was done; noise is named before anything else is read."""
    made_up = noise(result)
    said = page.element("p", account(result))
    if made_up is None:
        return page.element("div", said, class_="account")
    strong = page.element("strong", "Artificial noise:")
    return page.element("div", said, page.element("p", strong, f" {made_up}"), class_="account")


def _advice(result: RunResult) -> Html:
    others = {name: level for name, level in levels_of(result).items() if name not in _OWN}
    found = advice(result, others)
    if found is None:
        return Html("")
    return page.element(
        "aside",
        page.element("p", page.element("strong", found.title), ":"),
        page.element("ul", (page.element("li", page.prose(point)) for point in found.points)),
        (page.element("p", page.prose(point)) for point in found.after),
        class_="note",
    )


def _note(text: str | None) -> Html:
    return Html("") if text is None else page.element("p", page.prose(text), class_="note")


def _withheld(result: RunResult) -> str | None:
    """What is not on this page because of whom it is about."""
    if result.withheld is None:
        return None
    rough = " The verdict is from the figures themselves." if is_few(result) else ""
    return f"{result.withheld.why}{rough}"


def _left_out(found: LeftOut | None) -> str | None:
    """Which recovered shares are not on this page, and why."""
    if found is None:
        return None
    names = ", ".join(map(figures.metric_title, found.metrics))
    return f"Recovered share, left out for {names}: {found.why}"


def _key_figures(result: RunResult) -> list[tuple[str, str, str]]:
    """What is known of: utility, demotion, attack, overlap, time, and interactions forgotten."""
    forget = result.forget
    entries = [
        _utility_figure(result),
        _rate_figure(result, "Demotion rate", lambda phase: phase.demotion_rate, 1 if is_few(result) else 3),
        _attack_figure(result),
        _overlap_figure(result),
        _time_figure(result),
        (
            f"Interactions{', ' + roughly(result).strip() if roughly(result) else ' forgotten'}",
            count(forget.interactions),
            "\n".join(
                f"{rough}{counted(amount, noun)}"
                for amount, noun, rough in (
                    (forget.users, "user", ""),
                    (forget.items, "item", roughly(result)),
                )
                if amount is not None
            ),
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


def _rate_figure(result: RunResult, title: str, of: FigureOf, digits: int = 3) -> tuple[str, str, str]:
    """The unlearned model's value, beside those of the models it is between."""
    held = {name: of(_phase(result, name)) for name in (RETRAINED, ORIGINAL)}
    beside = "\n".join(
        f"{'goal' if name == RETRAINED else name} {decimal(value, digits)}"
        for name, value in held.items()
        if value is not None
    )
    return title, decimal(of(result.unlearned), digits), beside


def _attack_figure(result: RunResult) -> tuple[str, str, str]:
    """How far the attacker's AUC is from where it should be; without a goal it would only mislead."""
    own, goal = (_phase(result, name).figure("attack", "auc") for name in (UNLEARNED, RETRAINED))
    return "Attack AUC off by", signed(difference(own, goal)), f"is {decimal(own)}\ngoal {decimal(goal)}"


def _overlap_figure(result: RunResult) -> tuple[str, str, str]:
    shared, again = (_phase(result, name).figure("overlap@20", "affected") for name in (UNLEARNED, SECOND))
    beside = "affected users\nwith retrained" + ("" if again is None else f"\nretrained 2: {percent(again)}")
    return "Top-20 overlap", percent(shared if result.retrained else None), beside


def _time_figure(result: RunResult) -> tuple[str, str, str]:
    fast, slow = (duration(_phase(result, name).seconds) for name in (UNLEARNED, RETRAINED))
    if result.speedup is None:
        return "Time to forget", fast, ""
    return "Speed-up", times(result.speedup), f"{fast}\nretrained {slow}"


def _heading(name: str, phases: figures.Phases) -> Html:
    return page.chip(figures.looks(phases)[name].color, phase_title(name))


def _side_by_side(phases: figures.Phases) -> list[str]:
    """The names of phases as tables have them: what the run is about beside its goal, which a phone then shows."""
    return [
        name for name in dict.fromkeys([UNLEARNED, RETRAINED, SECOND, ORIGINAL, *phases]) if name in phases
    ]


def _methods(result: RunResult, phases: figures.Phases) -> Html:
    """A row per method: its verdict, what it recovers, how far it is from the retrained model, and its time."""
    names = [name for name in _side_by_side(phases) if name not in (ORIGINAL, RETRAINED, SECOND)]
    if len(names) < 2 or RETRAINED not in phases:
        return Html("")
    levels = levels_of(result)
    goal = phases[RETRAINED]
    rows = []
    for name in names:
        phase = phases[name]
        shares = result.recovered if name == UNLEARNED else phase.recovered
        faster = result.speedup if name == UNLEARNED else phase.speedup
        title = f"{result.method} (unlearned)" if name == UNLEARNED and result.method else phase_title(name)
        rows.append(
            [
                page.chip(figures.looks(phases)[name].color, title),
                SHORT[levels[name]] if name in levels else MISSING,
                percent((shares or {}).get("ndcg@20")),
                signed(difference(phase.demotion_rate, goal.demotion_rate)),
                signed(difference(phase.figure("attack", "auc"), goal.figure("attack", "auc"))),
                _seconds(phase),
                times(faster),
            ]
        )
    head = ["Method", "Forgets", "Recovered", "Demotion rate", "Attack AUC", "Time", "Speed-up"]
    kept = [place for place in range(len(head)) if any(row[place] != MISSING for row in rows)]
    caption = (
        "Demotion rate and attack AUC are shown as the distance from the retrained model's: 0 is the goal, and "
        "closer to it is better, whichever the sign. Recovered is the share of what retraining does to "
        "NDCG@20 of affected users."
    )
    table = page.table(caption, [head[k] for k in kept], {"": [[row[k] for k in kept] for row in rows]})
    return page.section("The methods beside retraining", table)


def _results(phases: figures.Phases, digits: int) -> Html:
    """A row per phase for each group of users, then the originals that some have of their own."""
    order = _side_by_side(phases)
    shown = [(_heading(name, phases), phases[name]) for name in order]
    shown += [
        (page.lines(_heading(name, phases), "before: its own original"), before)
        for name in order
        if (before := phases[name].before) is not None
    ]
    metrics = list(dict.fromkeys(m for _, phase in shown for of in _GROUPS.values() for m in of(phase)))
    if not metrics:
        return Html("")
    bodies = {
        title: [
            [
                head,
                *(decimal(of(phase).get(m), digits) for m in metrics),
                _seconds(phase) if title == _ALL else "",
            ]
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


def _is_attack(line: _Line) -> bool:
    """Whether a figure has no better side at all, and only a goal."""
    return line.path[0].startswith("attack")


def _forgetting(phases: figures.Phases) -> Html:
    """A row per measure; with retraining, each value has value − retrained's value below it.

    An attack's figures are the other way round, because people take a small AUC for a good one: the distance comes
    first, and the value is below it.

    The floor is what a second retraining with another seed gets: |its value − retrained's|, or its value where
    the measure is a distance already. No method can be asked to come nearer than that.
    """
    columns = [name for name in _side_by_side(phases) if name != SECOND]
    rows: list[list[str]] = []
    for line in _measures(phases):
        values = {name: phase.figure(*line.path) for name, phase in phases.items()}
        goal = None if line.is_distance else values.get(RETRAINED)
        cells = [_cell(phases[name], line, goal if name != RETRAINED else None) for name in columns]
        if SECOND in phases:
            floor = values[SECOND] if line.is_distance else difference(values[SECOND], goal)
            cells.append(decimal(None if floor is None else abs(floor)))
        rows.append([line.title, *cells])
        if line.below:
            rows.append([page.lines("", *line.below, *_goal_of(line, goal))])
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


def _goal_of(line: _Line, goal: float | None) -> list[str]:
    """What to hold an attack's figure against."""
    if goal is None or not _is_attack(line) or not line.below:
        return []
    return [
        f"Goal here: {decimal(goal)}, which an attacker gets from a model that never saw the pairs. Closer to it is "
        "better; smaller or larger is not."
    ]


def _cell(phase: PhaseResult, line: _Line, goal: float | None) -> str:
    value = phase.figure(*line.path)
    away = difference(value, goal)
    between = []
    if line.path[-1] == "auc":  # it comes with its confidence interval
        low, high = (phase.figure(*line.path[:-1], end) for end in ("low", "high"))
        if low is not None and high is not None:
            between = [f"{decimal(low)} to {decimal(high)}"]
    if away is None:
        return page.lines(decimal(value), *between)
    if _is_attack(line):
        return page.lines(signed(away), f"is {decimal(value)}", *between)
    return page.lines(decimal(value), *between, signed(away))


_NAMED = {
    "user_activity": {
        "low": "the least active users",
        "middle": "users of middling activity",
        "high": "the most active users",
    },
    "item_popularity": {
        "tail": "the least popular items",
        "middle": "items of middling popularity",
        "head": "the most popular items",
    },
}


def _damage(result: RunResult, phases: figures.Phases) -> Html:
    if _is_small(result, phases):
        return Html("")
    caption = "Below zero is worse than the original. Where retraining moves as well, so should the unlearned model."
    drawn = (
        (
            figures.damage(phases, grouping),
            f"Change of recall@20 by {grouping.replace('_', ' ')}.",
            f"{_gains_and_losses(phases, grouping)} {caption}",
        )
        for grouping in figures.GROUPINGS
    )
    return page.section("Who gains and who loses", _drawings(*drawn))


def _is_small(result: RunResult, phases: figures.Phases) -> bool:
    """Whether the request is too small for changes in thirds of all users to be its doing.

    With a tenth of a third, or fewer, they are what two trainings differ by; unless the method harms where retraining
    does not.
    """
    users = result.forget.users
    sizes = [
        part["users"]
        for part in _phase(result, ORIGINAL).groups.get("user_activity", {}).values()
        if "users" in part
    ]
    if users is None or not sizes or 10 * users > min(sizes):
        return False
    worst = {name: _worst(phases, name) for name in (UNLEARNED, RETRAINED)}
    return worst[UNLEARNED] >= min(worst[RETRAINED], 0.0) - _HARM


def _worst(phases: figures.Phases, name: str) -> float:
    changes = [figures.changes(phases, name, grouping).values() for grouping in figures.GROUPINGS]
    return min((change for group in changes for change in group), default=0.0)


def _gains_and_losses(phases: figures.Phases, grouping: str) -> str:
    """Who is better and who is worse off than with the original, and for whom retraining would be another matter."""
    names = _NAMED[grouping]
    own = figures.changes(phases, UNLEARNED, grouping)
    parts = []
    for words, chosen in (
        ("Better than with the original", {g: c for g, c in own.items() if c >= _SEEN}),
        ("Worse", {g: c for g, c in own.items() if c <= -_SEEN}),
    ):
        if chosen:
            who = [f"{names.get(group, group)} ({signed(change)})" for group, change in chosen.items()]
            parts.append(f"{words}: {listed(who)}.")
    if not parts:
        return "No group gains or loses." if own else ""
    goal = figures.changes(phases, RETRAINED, grouping)
    away = {group: own[group] - goal[group] for group in own if group in goal}
    if away:
        group = max(away, key=lambda key: abs(away[key]))
        parts.append(f"Farthest from the retrained model: {names.get(group, group)} ({signed(away[group])}).")
    return " ".join(parts)


def _curves(result: RunResult) -> Html:
    """A figure for each kind of curve that any method recorded."""
    drawn = []
    for kind in dict.fromkeys(kind for own in result.curves.values() for kind in own):
        title = _CURVES.get(kind, kind.replace("_", " "))
        goal = _phase(result, RETRAINED).demotion_rate if kind == _DEMOTION else None
        figure = figures.curve(result.curves, kind, title, goal, is_share=kind == _DEMOTION)
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
    said, left = certificates.in_words(result.certificates)
    if not said and not left:
        return Html("")
    caption = page.element("p", "What the method can say of its result without retraining.", class_="quiet")
    points = page.element("ul", (page.element("li", sentence) for sentence in said)) if said else Html("")
    others = [(name, plain(value)) for name, value in flat(left)]
    return page.section("Certificates", caption, points, page.pairs("Others.", others) if others else "")


def _record(result: RunResult) -> Html:
    asked = {key: value for key, value in result.forget.to_json().items() if value is not None}
    request, environment = (
        page.pairs(title, [(key, plain(value)) for key, value in flat(part)]) if part else ""
        for title, part in (("The request", asked | result.difficulty), ("Environment", result.environment))
    )
    settings = [(key, plain(value)) for key, value in flat(result.settings) if not names_a_path(value)]
    folded = page.element(
        "details",
        page.element("summary", f"All {len(settings)} settings"),
        page.pairs("Paths are left out.", settings),
    )
    return page.section("How it was made", _repeat(result), request, folded if settings else "", environment)


def _repeat(result: RunResult) -> Html:
    """When it ran, and the command that runs it again."""
    line, date = command(result), day(result.date)
    said = [f"Run on {date}." if date else ""]
    if line is not None:
        said.append("The command that repeats it; settings that are not in it are the usual ones.")
        if "=FILE" in line:
            said.append("FILE stands for a file of yours: a result does not keep where files are.")
        if result.forget.source == "python":
            said.append("The request was given from Python; for the command it has to be in a file.")
        if any(name not in _OWN for name in result.phases):
            said.append("Settings of compared methods are not kept; they are taken to be the usual ones.")
    words = " ".join(part for part in said if part)
    return page.join(page.element("p", words) if words else "", "" if line is None else page.shell(line))
