"""What was done, in plain sentences: the model, the request, the method, what it is compared with, and how long.

Where the request is noise that the plugin made up itself, a paragraph of its own says so: figures about noise must
not be taken for those of somebody's request.
"""

from __future__ import annotations

from recbole_unlearn.data import INJECTED
from recbole_unlearn.methods import UnlearnTrainer
from recbole_unlearn.registry import METHODS
from recbole_unlearn.report.values import count, counted, duration, listed, percent
from recbole_unlearn.results import (
    ORIGINAL,
    RETRAINED,
    SECOND,
    UNLEARNED,
    PhaseResult,
    RunResult,
    in_order,
    number,
)

_GIVEN = {"file": "from a file of requests", "python": "from Python"}
_DRAWN = {
    "informed": "that a model of the clean data scores low for the user",
    "random": "that the user never met",
}


def trainer(method: str | None) -> type[UnlearnTrainer] | None:
    """The method of that name; None where no such method is installed."""
    return next((one for one in METHODS.all() if one.name == method), None)


def is_injected(result: RunResult) -> bool:
    """Whether the request is noise of the plugin's own."""
    return (result.forget.source or "").startswith(INJECTED)


def account(result: RunResult) -> str:
    """The model, the request, the method and its time, and what it is compared with."""
    model = f"{_article(result.model)} model" if result.model else "A model"
    data = f" of the dataset {result.dataset}" if result.dataset else ""
    given = _GIVEN.get(result.forget.source or "", "")
    asked = f"{model}{data} was to forget {_size(result)}{f', given {given}' if given else ''}."
    if result.forget.interactions == 0:
        asked = f"{model}{data} was to forget interactions that it was not trained on."
    parts = [asked, _start(result), _work(result), _beside(result)]
    return " ".join(part for part in parts if part)


def noise(result: RunResult) -> str | None:
    """What the request is, where nobody made it."""
    if not is_injected(result):
        return None
    kind = (result.forget.source or "").removeprefix(INJECTED).strip()
    items = f"items {_DRAWN[kind]}" if kind in _DRAWN else "items"
    share, amount = (number(result.settings.get(key)) for key in ("inject_users", "inject_amount"))
    whom = "users" if share is None else f"{percent(share)} of the users"
    many = "" if amount is None else f", to each {percent(amount)} of what they have in training"
    return (
        f"nobody asked for this. The interactions were made up: {items}, added to {whom}{many}, "
        "so that the original learns something that ought to be forgotten. Noise is easier to tell apart than what "
        "people really did, so a request of real interactions may come out otherwise."
    )


def _article(name: str) -> str:
    """A BPR, an NCF; by the first letter, or by its sound where the name is an abbreviation."""
    vowels = "AEFHILMNORSX" if name[:2].isupper() else "AEIO"
    return f"{'An' if name[:1].upper() in vowels else 'A'} {name}"


def _size(result: RunResult) -> str:
    """7,191 interactions of 188 users and 527 items, as exactly as they are known."""
    forget = result.forget
    if forget.interactions is None:
        return "a request"
    rough = roughly(result)
    sides = [] if forget.users is None else [counted(forget.users, "user")]
    sides += [] if forget.items is None else [f"{rough}{counted(forget.items, 'item')}"]
    return f"{rough}{counted(forget.interactions, 'interaction')}" + (f" of {listed(sides)}" if sides else "")


def roughly(result: RunResult) -> str:
    """What to say before the size of the request, where it is not given exactly."""
    return "" if result.withheld is None else "up to " if is_few(result) else "about "


def is_few(result: RunResult) -> bool:
    """Whether so few users are in the request that figures of them are left out."""
    users = result.forget.users
    return result.withheld is not None and users is not None and users < result.withheld.min_group


def _start(result: RunResult) -> str:
    original = result.phases.get(ORIGINAL)
    if original is None:
        return ""
    if original.seconds is None:
        return "The original came from a checkpoint."
    return f"The original was trained in {_time(original)}."


def _time(phase: PhaseResult) -> str:
    return duration(phase.seconds) + (", in an earlier run" if phase.seconds_from_cache else "")


def _work(result: RunResult) -> str:
    phase, method = result.phases.get(UNLEARNED), trainer(result.method)
    if phase is None or result.method is None:
        return ""
    if result.forget.interactions == 0:
        return f"So {result.method} had nothing to change."
    took = "" if phase.seconds is None else f" in {_time(phase)}"
    if method is not None and method.exact:
        return (
            f"The method {result.method} trained a new model without these interactions{took}. This is exact."
        )
    return f"The method {result.method} changed it{took}."


def _beside(result: RunResult) -> str:
    """What the unlearned model is compared with; an exact method is not set beside itself."""
    phases = in_order(result.phases)
    method = trainer(result.method)
    if method is not None and method.exact and SECOND not in phases:
        phases.pop(RETRAINED, None)
    names = []
    if RETRAINED in phases:
        again = phases.get(SECOND)
        seconds = [phase for phase in (phases[RETRAINED], again) if phase and phase.seconds is not None]
        took = f" ({' and '.join(map(_time, seconds))})" if seconds else ""
        if again is None:
            names.append(f"a model retrained from scratch without them{took}")
        else:
            names.append(f"two models retrained from scratch without them{took}")
    for name, phase in phases.items():
        if name not in (ORIGINAL, UNLEARNED, RETRAINED, SECOND):
            names.append(f"{name} ({_time(phase)})" if phase.seconds is not None else name)
    return f"The result is compared with {listed(names)}." if names else ""


def request_sentence(result: RunResult) -> str:
    """What can be said without a verdict."""
    asked = result.forget.interactions
    if asked is None:
        return "A model was asked to forget."
    return f"{counted(asked, 'interaction')} {'was' if count(asked) == '1' else 'were'} to be forgotten."
