"""How a report opens: the verdict, what was done, and what to do about it."""

from __future__ import annotations

import re

from recbole_unlearn.report import figures, page
from recbole_unlearn.report.account import account, is_few, noise, request_sentence
from recbole_unlearn.report.advice import advice
from recbole_unlearn.report.columns import OWN
from recbole_unlearn.report.entries import levels_of
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import day
from recbole_unlearn.results import LeftOut, RunResult, Verdict

HEADINGS = {
    "near": "Near the retrained model",
    "under": "Forgets too little",
    "over": "Forgets too much",
    "cannot_tell": "These figures cannot tell",
    "unknown": "No verdict",
}
_PROVISIONAL = "Provisional: no retrained model"


def verdict(result: RunResult, run: str) -> Html:
    """The level, the verdict's first sentence as the headline, and its others below."""
    said = result.verdict or Verdict("unknown", request_sentence(result))
    level, text, provisional = said.level, said.text, said.provisional
    first, *rest = sentences(text)
    known = level in HEADINGS
    heading = HEADINGS.get(level, "") if provisional is None else _PROVISIONAL
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


def account_of(result: RunResult) -> Html:
    """What was done; noise is named before anything else is read."""
    made_up = noise(result)
    said = page.element("p", account(result))
    if made_up is None:
        return page.element("div", said, class_="account")
    strong = page.element("strong", "Artificial noise:")
    return page.element("div", said, page.element("p", strong, f" {made_up}"), class_="account")


def advice_of(result: RunResult) -> Html:
    """What to do where the verdict is not near."""
    others = {name: level for name, level in levels_of(result).items() if name not in OWN}
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


def note(text: str | None) -> Html:
    """A remark; nothing for None."""
    return Html("") if text is None else page.element("p", page.prose(text), class_="note")


def withheld(result: RunResult) -> str | None:
    """What is not on this page because of whom it is about."""
    if result.withheld is None:
        return None
    rough = " The verdict is from the figures themselves." if is_few(result) else ""
    return f"{result.withheld.why}{rough}"


def left_out(found: LeftOut | None) -> str | None:
    """Which recovered shares are not on this page, and why."""
    if found is None:
        return None
    names = ", ".join(map(figures.metric_title, found.metrics))
    return f"Recovered share, left out for {names}: {found.why}"
