"""How a report ends: curves, the placebo, certificates, settings, and how to repeat the run."""

from __future__ import annotations

from recbole_unlearn.report import certificates, figures, page
from recbole_unlearn.report.columns import OWN, phase_of
from recbole_unlearn.report.command import command
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import day, flat, names_a_path, plain, signed
from recbole_unlearn.results import RETRAINED, RunResult

_DEMOTION = "demotion"
_CURVES = {  # titles of what our methods record by step; any other curve goes by its own name
    "loss": "objective",
    _DEMOTION: "demotion rate of deleted pairs",
    "retained_loss": "loss of retained interactions",
    "residual": "relative residual of the solver",
    "validation": "validation score",
}


def curves(result: RunResult) -> Html:
    """A figure for each kind of curve that any method recorded."""
    drawn = []
    for kind in dict.fromkeys(kind for own in result.curves.values() for kind in own):
        title = _CURVES.get(kind, kind.replace("_", " "))
        goal = phase_of(result, RETRAINED).demotion_rate if kind == _DEMOTION else None
        figure = figures.curve(result.curves, kind, title, goal, is_share=kind == _DEMOTION)
        drawn.append((figure, f"{title[:1].upper()}{title[1:]} by step.", ""))
    return page.section("How it went, step by step", page.drawings(*drawn))


def placebo(result: RunResult) -> Html:
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


def certificates_of(result: RunResult) -> Html:
    """What can be proved, in words."""
    said, left = certificates.in_words(result.certificates)
    if not said and not left:
        return Html("")
    caption = page.element("p", "What the method can say of its result without retraining.", class_="quiet")
    points = page.element("ul", (page.element("li", sentence) for sentence in said)) if said else Html("")
    others = [(name, plain(value)) for name, value in flat(left)]
    return page.section("Certificates", caption, points, page.pairs("Others.", others) if others else "")


def record(result: RunResult) -> Html:
    """Settings, environment, and how to repeat the run."""
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
        if any(name not in OWN for name in result.phases):
            said.append("Settings of compared methods are not kept; they are taken to be the usual ones.")
    words = " ".join(part for part in said if part)
    return page.join(page.element("p", words) if words else "", "" if line is None else page.shell(line))
