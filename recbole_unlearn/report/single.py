"""The page of one run, `report.html`: the verdict, what it rests on, and how the run was made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from recbole_unlearn.files import atomic as files
from recbole_unlearn.report import figures, page
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import (
    MISSING,
    RETRAINED,
    SECOND,
    count,
    decimal,
    difference,
    duration,
    flat,
    mapping,
    number,
    percent,
    phase_title,
    phases_of,
    plain,
    signed,
    text,
    times,
)

NAME = "report.html"
_LEVELS = {
    "near": "Near the retrained model",
    "under": "Forgets too little",
    "over": "Forgets too much",
    "unknown": "No verdict",
}
_GROUPS = {
    "metrics": "All users",
    "affected": "Affected users (with a deleted row)",
    "unaffected": "Unaffected users",
    "masked": "All users, deleted items masked",
}
_CLAIMS = (
    "that the model behaves like one that never saw the deleted rows",
    "how much of retraining's effect was recovered, and how much faster that was",
    "whether the demotion rate and the attack are where they should be: both have the retrained model's value as "
    "their goal, not 1 and not 0.5",
)


class _Measure(NamedTuple):
    """A measure of forgetting: where it stands under `forgetting`, and what it says."""

    path: tuple[str, ...]
    title: str
    meaning: str
    is_distance: bool = False  # measured against the retrained model to begin with


def write_report(result: dict[str, Any], directory: Path) -> Path:
    """Write the page of ``result`` (the content of `result.json`) into ``directory`` and return its path."""
    phases = phases_of(result)
    run = _run(result)
    content = page.document(
        f"Unlearning report: {run}",
        _verdict(result, run),
        page.cards(_key_figures(result, phases)),
        Html("") if RETRAINED in phases else _without_retraining(),
        _results(phases),
        _scores(phases),
        _utility(phases),
        _forgetting(phases),
        _damage(phases),
        _curves(result, phases),
        _certificates(result),
        _record(result),
    )
    target = Path(directory) / NAME
    files.write_bytes(target, content)
    return target


def _run(result: Mapping[str, Any]) -> str:
    parts = [text(result, key) for key in ("method", "model", "dataset")]
    seed = text(result, "seed")
    return " · ".join(part for part in [*parts, f"seed {seed}" if seed else None] if part)


def _verdict(result: Mapping[str, Any], run: str) -> Html:
    level, sentence = (text(result.get("verdict"), key) for key in ("level", "text"))
    if not sentence:
        level = "unknown"
        sentence = f"{count(number(result, 'forget', 'interactions'))} interactions were to be forgotten."
        if number(result, "forget", "interactions") is None:
            sentence = "A model was asked to forget."
    # A verdict may go on after its first clause; only that one is large.
    first, semicolon, rest = sentence.partition("; ")
    known = level in _LEVELS
    return page.element(
        "header",
        page.element("p", run, class_="quiet"),
        page.element("p", _LEVELS[level], class_="level") if known else "",
        page.element("h1", first + semicolon, page.element("small", rest) if rest else ""),
        class_=f"verdict {level}" if known else "verdict",
    )


def _key_figures(result: Mapping[str, Any], phases: figures.Phases) -> list[tuple[str, str, str]]:
    """What is known of: utility, demotion, attack, overlap, time, and rows forgotten."""
    overlap = ("forgetting", "overlap@20", "affected")
    shared = number(phases, "unlearned", *overlap) if RETRAINED in phases else None
    again = number(phases, SECOND, *overlap)
    forget = mapping(result, "forget")
    entries = [
        _utility_figure(result, phases),
        _rate_figure(phases, "Demotion rate", "forgetting", "demotion_rate"),
        _rate_figure(phases, "Attack AUC", "forgetting", "attack", "auc"),
        (
            "Top-20 overlap",
            percent(shared),
            "affected users\nwith retrained"
            + (f"\nretrained 2: {percent(again)}" if again is not None else ""),
        ),
        _time_figure(result, phases),
        (
            "Rows forgotten",
            count(number(forget, "interactions")),
            f"{count(number(forget, 'users'))} users\n{count(number(forget, 'items'))} items",
        ),
    ]
    return [entry for entry in entries if entry[1] != MISSING]


def _utility_figure(result: Mapping[str, Any], phases: figures.Phases) -> tuple[str, str, str]:
    path = ("affected", "ndcg@20")
    share = number(result, "recovered", "ndcg@20")
    if share is None:
        return _rate_figure(phases, "NDCG@20, affected users", *path)
    before, after, goal = (
        decimal(number(phases, name, *path)) for name in ("original", "unlearned", RETRAINED)
    )
    return "NDCG@20 recovered", percent(share), f"affected users\n{before} → {after}\nretrained {goal}"


def _rate_figure(phases: figures.Phases, title: str, *path: str) -> tuple[str, str, str]:
    """The unlearned model's value, beside those of the models it stands between."""
    held = {name: number(phases, name, *path) for name in (RETRAINED, "original")}
    beside = "\n".join(f"{name} {decimal(value)}" for name, value in held.items() if value is not None)
    return title, decimal(number(phases, "unlearned", *path)), beside


def _time_figure(result: Mapping[str, Any], phases: figures.Phases) -> tuple[str, str, str]:
    fast, slow = (duration(number(phases, name, "seconds")) for name in ("unlearned", RETRAINED))
    ratio = number(result, "speedup")
    return (
        ("Time to forget", fast, "")
        if ratio is None
        else ("Speed-up", times(ratio), f"{fast}\nretrained {slow}")
    )


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
    metrics = list(dict.fromkeys(m for p in phases.values() for g in _GROUPS for m in mapping(p, g)))
    if not metrics:
        return Html("")
    bodies = {}
    for group, title in _GROUPS.items():
        rows = [
            [
                _heading(name, phases),
                *(decimal(number(phase, group, metric), 4) for metric in metrics),
                _seconds(phase) if group == "metrics" else "",
            ]
            for name, phase in phases.items()
            if mapping(phase, group)
        ]
        rows += [
            [
                page.lines(_heading(name, phases), "before: its own original"),
                *(decimal(number(phase, "before", group, metric), 4) for metric in metrics),
                _seconds(mapping(phase, "before")) if group == "metrics" else "",
            ]
            for name, phase in phases.items()
            if mapping(mapping(phase, "before"), group)
        ]
        if rows:
            bodies[title] = rows
    caption = "All phases on the same test rows, with the same masks. Time is a phase's own work, without evaluation."
    if SECOND in phases:
        caption += " Retrained 2 is a second retraining, with another seed."
    cached = any(phase.get("seconds_from_cache") for phase in phases.values())
    return page.section(
        "Results",
        page.table(caption, ["Phase", *map(figures.metric_title, metrics), "Time"], bodies),
        page.element("p", "* trained in an earlier run; the time is that run's.", class_="quiet")
        if cached
        else "",
    )


def _seconds(phase: Mapping[str, Any]) -> str:
    if "seconds" in phase and phase["seconds"] is None:
        return "loaded"
    return duration(number(phase, "seconds")) + ("*" if phase.get("seconds_from_cache") else "")


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


def _measures(phases: figures.Phases) -> list[_Measure]:
    """The measures of the table; those at several K as often as they were taken."""
    keys = dict.fromkeys(key for phase in phases.values() for key in mapping(phase, "forgetting"))
    found = [
        _Measure(("demotion_rate",), "Demotion rate", "deleted item scores below one its user never met")
    ]
    for key in keys:
        name, _, cut = key.partition("@")
        if name == "resurfacing":
            found.append(_Measure((key,), f"Resurfacing@{cut}", f"deleted items back in the top {cut}"))
    for key, title in (("attack", "Attack"), ("attack_before_after", "Attack, before and after")):
        meaning = "with the models of before and after" if key != "attack" else "with this model alone"
        found.append(_Measure((key, "auc"), f"{title}: AUC", f"{meaning}; 0.5 is a guess"))
        found.append(_Measure((key, "tpr@1%fpr"), f"{title}: TPR at 1% FPR", f"{meaning}; 0.01 is a guess"))
    found.append(
        _Measure(("ks",), "Kolmogorov–Smirnov", "scores of deleted pairs to retrained's; 0 is equal", True)
    )
    found.append(
        _Measure(("wasserstein",), "Wasserstein", "scores of deleted pairs to retrained's; 0 is equal", True)
    )
    for key in keys:
        name, _, cut = key.partition("@")
        title = {"overlap": f"Top-{cut} overlap", "rbo": "Rank-biased overlap"}.get(name)
        if title:
            found.extend(
                _Measure(
                    (key, users), f"{title}, {users} users", "lists shared with retrained's; 1 is equal", True
                )
                for users in ("all", "affected", "unaffected")
            )
    return found


def _forgetting(phases: figures.Phases) -> Html:
    """A row per measure; with retraining, each value has value − retrained's value below it.

    The floor is what a second retraining with another seed gets: |its value − retrained's|, or its value where
    the measure is a distance already. No method can be asked to come nearer than that.
    """
    columns = [name for name in phases if name != SECOND]
    rows = []
    for measure in _measures(phases):
        values = {name: number(phase, "forgetting", *measure.path) for name, phase in phases.items()}
        if all(value is None for value in values.values()) or (
            measure.is_distance and RETRAINED not in phases
        ):
            continue
        goal = None if measure.is_distance else values.get(RETRAINED)
        cells = [_cell(phases[name], measure, goal if name != RETRAINED else None) for name in columns]
        if SECOND in phases:
            floor = values[SECOND] if measure.is_distance else difference(values[SECOND], goal)
            cells.append(decimal(None if floor is None else abs(floor)))
        rows.append([page.lines(measure.title, measure.meaning), *cells])
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


def _cell(phase: Mapping[str, Any], measure: _Measure, goal: float | None) -> Html:
    value = number(phase, "forgetting", *measure.path)
    away = difference(value, goal)
    # An attack's AUC comes with its confidence interval.
    ends = [number(phase, "forgetting", *measure.path[:-1], end) for end in ("low", "high")]
    interval = (
        None if measure.path[-1] != "auc" or None in ends else f"{decimal(ends[0])} to {decimal(ends[1])}"
    )
    below = [line for line in (interval, None if away is None else signed(away)) if line]
    return page.lines(decimal(value), *below)


def _damage(phases: figures.Phases) -> Html:
    caption = "Below zero is worse than the original. Where retraining moves as well, so should the unlearned model."
    groups = (
        ("user_activity", "users", "by user activity"),
        ("item_popularity", "rows", "by item popularity"),
    )
    return page.section(
        "Where the damage fell",
        _drawings(
            *(
                (figures.damage(phases, key, size), f"Change of recall@20 {by}.", caption)
                for key, size, by in groups
            )
        ),
    )


def _curves(result: Mapping[str, Any], phases: figures.Phases) -> Html:
    curves = mapping(result, "curves")
    goal = number(phases, RETRAINED, "forgetting", "demotion_rate")
    return page.section(
        "How it went, step by step",
        _drawings(
            (figures.curve(curves, "loss", "objective"), "The method's objective by step.", ""),
            (
                figures.curve(curves, "demotion", "demotion rate", goal),
                "Demotion rate of deleted pairs by step.",
                "",
            ),
        ),
    )


def _certificates(result: Mapping[str, Any]) -> Html:
    entries = [(name, plain(value)) for name, value in flat(mapping(result, "certificates"))]
    caption = "What the method can say of its result without retraining."
    return page.section("Certificates", page.pairs(caption, entries) if entries else "")


def _record(result: Mapping[str, Any]) -> Html:
    parts = {
        "The request": {**mapping(result, "forget"), **mapping(result, "difficulty")},
        "Environment": mapping(result, "environment"),
    }
    tables = [
        page.pairs(title, [(k, plain(v)) for k, v in flat(part)]) for title, part in parts.items() if part
    ]
    settings = [(k, plain(v)) for k, v in flat(mapping(result, "settings")) if not _names_a_path(v)]
    folded = page.element(
        "details",
        page.element("summary", f"All {len(settings)} settings"),
        page.pairs("Paths are left out.", settings),
    )
    return page.section("How it was made", tables[:1], folded if settings else "", tables[1:])


def _names_a_path(value: Any) -> bool:
    """Whether a setting tells where somebody keeps their files."""
    texts = [entry for entry in (value if isinstance(value, list) else [value]) if isinstance(entry, str)]
    return any(
        t.startswith("~") or PurePosixPath(t).is_absolute() or PureWindowsPath(t).is_absolute() for t in texts
    )
