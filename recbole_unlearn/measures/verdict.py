r"""The verdict on a result: exact, near retraining, short of it, beyond it, inconclusive or unknown, and a sentence.

An exact model is a function of D\S alone. Where it differs from the retrained model, seeds or recipes of training
differ; no figure is asked whether it remembers.

Without a retrained model nothing tells how near to it another one is, and the level is unknown.
"""

from collections.abc import Mapping
from typing import NamedTuple, cast

from recbole_unlearn.results.schema import CONTROL, ORIGINAL, RETRAINED, SECOND, UNLEARNED, PhaseResult, Verdict
from recbole_unlearn.settings import properties_dir, read_yaml
from recbole_unlearn.text import MISSING, decimal, percent

Phases = Mapping[str, PhaseResult]
SHARE = 0.1  # of the way from the original to the retrained model that may be left
DAMAGE = 0.25  # of the retrained model's NDCG@20 of affected users that may be lost: two seeds differed by a tenth
BEYOND = 0.05  # of that way that a model may go too far: an item below its place can be recognised
LEAST = 0.01  # demotion rates and AUCs that differ by less are the same
_BESIDE = "; for information: "  # before figures of an exact model
_SAID = read_yaml(properties_dir() / "verdict.yaml")
_WORDS, SHORT, UNCHANGED, DONE = (_SAID[key] for key in ("words", "short", "unchanged", "done"))
NOTHING, EMPTIED, WHOLE = (_SAID[key] for key in ("nothing", "emptied", "whole"))


def verdict(
    phases: Phases,
    recovered: Mapping[str, float],
    deleted: int | None = None,
    done_earlier: bool = False,
    whole: bool = False,
) -> Verdict:
    """The level and a sentence for people; docs/measuring.md has the rules.

    Three figures are compared with the retrained model's, and all have to agree: the demotion rate of the deleted
    pairs, how well an attacker recognises them, and what item vectors tell of them. Where the original, or a control
    that did nothing but reset rows, cannot be told from the retrained model, the level is *cannot_tell*.

    Where deleted pairs of a sequential model have no cleaned history at all, as those of whole users, the demotion
    rate is that at uncleaned ones. They have no attack, which would notice a model that is merely worse, so their gap
    is that beyond the gap of held-out pairs of other users, and the original has to be twice as far away.

    With no ``deleted`` training interaction the original never saw the request; ``done_earlier``: it is its result.
    ``whole``: its users lose all their interactions.
    """
    if done_earlier:
        return Verdict("near", DONE)
    if deleted == 0:
        return Verdict("near", UNCHANGED)
    if phases.get(UNLEARNED, PhaseResult()).exact:
        return _said("exact", {} if whole else phases, recovered, "")  # rates of whole users say nothing
    probed = whole and _probe(phases) is not None  # rows of whole users start again in every model
    reason = _reason(phases, probed)
    if reason == "unknown" and RETRAINED in phases:
        return Verdict("cannot_tell", NOTHING)
    if reason == "near" and CONTROL in phases and _reason({**phases, UNLEARNED: phases[CONTROL]}, probed) == "near":
        reason = "control"
    note = WHOLE if probed else EMPTIED if _rate(phases) is _EMPTIED_RATE else ""
    return _said(reason, phases, recovered, note)


def restated(found: Verdict, phases: Phases, recovered: Mapping[str, float]) -> Verdict:
    """The same verdict with the figures of ``phases``, which may be rounded or left out."""
    if found.text in (UNCHANGED, DONE, NOTHING):
        return found
    if found.level == "exact" and _BESIDE not in found.text:
        phases = {}
    own = (key for key in ("control", "damage", "returns") if found.text.startswith(_WORDS[key]))
    note = next((one for one in (EMPTIED, WHOLE) if found.text.endswith(one)), "")
    return _said(next(own, found.level), phases, recovered, note)


class _Way(NamedTuple):
    """One figure on the way from the original to the retrained model, both as distances from the latter."""

    start: float  # of the original
    end: float  # of the unlearned model
    slack: float  # distances up to this are within the error
    telling: bool  # whether the original can be told from the retrained model

    @property
    def is_near(self) -> bool:
        share = SHARE if self.side == "under" else BEYOND
        return abs(self.end) <= max(share * abs(self.start), self.slack)

    @property
    def side(self) -> str:
        """Under when it ends on the original's side."""
        return "under" if self.end * self.start >= 0 else "over"


def _reason(phases: Phases, probed: bool) -> str:
    """A level; "returns" where training brings deleted items back; "damage" to recommendations of affected users."""
    ways = [_probe(phases)] if probed else [_demotion(phases), _attack(phases), _probe(phases)]
    known = [way for way in ways if way is not None]
    if not known:
        return "unknown"
    for way in known:
        if not way.is_near:
            return way.side
    if not probed and any(way is not None and not way.is_near and way.side == "under" for way in _relearned(phases)):
        return "returns"
    utility, target = _by_gap(phases, "utility_gap"), phases.get(RETRAINED, PhaseResult())
    if utility.end < -max(utility.slack, DAMAGE * target.affected.get("ndcg@20", 0.0)):
        return "damage"
    return "near" if any(way.telling for way in known) else "cannot_tell"


class _Rate(NamedTuple):
    """The path of the demotion rate that decides, and of its distance from the retrained model's."""

    path: tuple[str, ...]
    gap: str
    clear: int = 1  # the original can be told apart if it is this many times the error away


_RATE = _Rate(("demotion_rate",), "demotion_gap")
# There is no attack with it, so a model that went half of the way must not pass.
_EMPTIED_RATE = _Rate(("emptied", "demotion_rate"), "emptied_gap", clear=2)


def _rate(phases: Phases) -> _Rate | None:
    """The demotion rate that both models have; the one of emptied histories only where there is no other."""
    both = [phases.get(name, PhaseResult()) for name in (UNLEARNED, RETRAINED)]
    has = (one for one in (_RATE, _EMPTIED_RATE) if None not in [phase.figure(*one.path) for phase in both])
    return next(has, None)


def _demotion(phases: Phases) -> _Way | None:
    """The demotion rate; its error is that of paired differences over users."""
    rate = _rate(phases)
    return None if rate is None else _by_gap(phases, rate.gap, rate.clear)


def _probe(phases: Phases) -> _Way | None:
    """The AUC of the probe of item vectors, if both models have one."""
    both = [phases.get(name, PhaseResult()).figure("probe") for name in (UNLEARNED, RETRAINED)]
    return None if None in both else _by_gap(phases, "probe_gap")


def _relearned(phases: Phases) -> tuple[_Way | None, _Way | None]:
    """Demotion rate and attack after a few more epochs, on the way from the original, which is not trained on."""
    if phases.get(UNLEARNED, PhaseResult()).figure("relearning_gap", "mean") is None:
        return None, None
    return _by_gap(phases, "relearning_gap", of_original="demotion_gap"), _attack(phases, "relearning")


def _by_gap(phases: Phases, gap: str, clear: int = 1, of_original: str | None = None) -> _Way:
    """By mean and error of the distance from the retrained model, which has none from itself."""
    named = [phases.get(name, PhaseResult()) for name in (ORIGINAL, UNLEARNED, SECOND)]
    gaps = (of_original or gap, gap, gap)
    start, end, again = (phase.figure(key, "mean") or 0.0 for key, phase in zip(gaps, named, strict=True))
    unsure, own = (2 * (phase.figure(key, "error") or 0.0) for key, phase in zip(gaps[:2], named, strict=False))
    spread = max(LEAST, 2 * abs(again))
    return _Way(start, end, max(spread, own), abs(start) > clear * max(spread, unsure))


def _attack(phases: Phases, key: str = "attack") -> _Way | None:
    """The attacker's AUC with its confidence intervals, under ``key`` for the unlearned and the retrained model."""
    keys = {ORIGINAL: "attack", UNLEARNED: key, RETRAINED: key}
    found = [phases.get(name, PhaseResult()).forgetting.get(own) for name, own in keys.items()]
    if not all(isinstance(one, Mapping) and {"auc", "low", "high"} <= one.keys() for one in found):
        return None
    before, after, target = cast("list[Mapping[str, float]]", found)
    start, end = before["auc"] - target["auc"], after["auc"] - target["auc"]
    half = [(one["high"] - one["low"]) / 2 for one in (before, after, target)]
    slack = max(LEAST, half[1] + half[2])  # near 1 the intervals are too narrow to be of use
    return _Way(start, end, slack, abs(start) > max(LEAST, half[0] + half[2]))


def _said(reason: str, phases: Phases, recovered: Mapping[str, float], note: str) -> Verdict:
    """A level (or "control", "damage") in words, with as many figures as ``phases`` and ``recovered`` have."""
    if reason == "unknown":
        return Verdict(reason, f"{_WORDS[reason]}.")
    if reason == "exact":
        return Verdict(reason, f"{_WORDS[reason]}{_beside(phases)}.")
    probed = note == WHOLE  # it rests on the probe alone
    mine, target = (phases.get(name, PhaseResult()) for name in (UNLEARNED, RETRAINED))
    demotion, attack, probe = _demotion(phases), _attack(phases), _probe(phases)
    text = _WORDS[reason]
    if reason == "damage" and "ndcg@20" in mine.affected and "ndcg@20" in target.affected:
        both = [decimal(one.affected["ndcg@20"], 3) for one in (mine, target)]
        text += f" (NDCG@20 {both[0]}, retrained {both[1]})"
    if reason == "returns":
        paths = {"demotion rate": "demotion_rate", "attack AUC": "auc"}
        pairs = {k: [decimal(one.figure("relearning", key), 3) for one in (mine, target)] for k, key in paths.items()}
        told = "; ".join(f"{title} {own}, retrained {other}" for title, (own, other) in pairs.items())
        text += f" (after more epochs: {told}); before that they look forgotten"
    aucs = [decimal(one.figure("attack", "auc"), 2) for one in (mine, target)]
    differs = attack is not None and not attack.is_near and aucs[0] != aucs[1]
    leaks = probe is not None and not probe.is_near
    but = "; "
    if probed and reason in ("near", "under", "over"):
        text, but = text.split(": ")[0], ": "
    elif reason in ("under", "over") and (differs or leaks) and demotion is not None and demotion.is_near:
        # The attack or the probe decided; the rank of deleted items is near.
        text, but = f"{_WORDS[reason].split(': ')[0]}: {_WORDS['near'].split(': ')[1]}", ", but "
    rate = _rate(phases)
    if rate is not None and not probed:
        rates = [decimal(one.figure(*rate.path), 3) for one in (mine, target)]
        text += f" (demotion rate {rates[0]}, retrained {rates[1]})"
    if attack is not None and not probed:
        does = "about as well as" if not differs else "better than" if attack.end > 0 else "worse than"
        but, joint = ("; ", but) if differs else (but, "; ")
        text += f"{joint}an attacker does {does} on the retrained model (AUC {aucs[0]}, retrained {aucs[1]})"
    if probe is not None:
        does = "about as much as" if not leaks else "more than" if probe.end > 0 else "less than"
        both = [decimal(one.figure("probe"), 3) for one in (mine, target)]
        text += f"{but if leaks or probed else '; '}item vectors tell {does} the retrained model's of deleted items"
        text += f" (probe AUC {both[0]}, retrained {both[1]})"
    share = recovered.get("ndcg@20")
    if share is not None:
        text += f"; {percent(share)} of what retraining does for affected users is recovered"
    level = {"control": "cannot_tell", "damage": "over", "returns": "under"}.get(reason, reason)
    return Verdict(level, f"{text}. {note}".rstrip())


def _beside(phases: Phases) -> str:
    """How an exact model differs from the original and from the retrained one, which says nothing against it."""
    others, told = {"retrained": RETRAINED, "original": ORIGINAL}, []
    for title, path in {"demotion rate": ("demotion_rate",), "attack AUC": ("attack", "auc")}.items():
        found = (phases.get(name, PhaseResult()).figure(*path) for name in (UNLEARNED, *others.values()))
        own, *rest = (decimal(one, 3) for one in found)
        beside = [f"{name} {value}" for name, value in zip(others, rest, strict=True) if value not in (own, MISSING)]
        told += [f"{title} {', '.join([own, *beside])}"] if own != MISSING and beside else []
    return f"{_BESIDE}{'; '.join(told)}" if told else ""
