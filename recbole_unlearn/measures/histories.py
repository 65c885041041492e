r"""What cleaning histories does to a sequential model, and what its weights still know: more histories to ask at.

All other figures are about cleaned histories, so they mix two things: weights that forgot, and histories that no
longer remind the model. The same questions are therefore asked at *uncleaned* histories too, which still have what
was deleted:

* A deleted interaction at the history that the original was trained with it, and the test items of affected users
  after all that was before them. The original's figures at both kinds of histories say what cleaning alone does; the
  unlearned model's at uncleaned ones, beside the retrained model's, say what the weights still know.
* A deleted interaction with nothing retained before it (its history is *emptied*, as all histories of a whole user
  are) has no cleaned history to be asked at, and the uncleaned one is the only one. Its user may have no held-out
  interaction either, so those of other users are the control: a model that merely got worse ranks both lower.

A deleted interaction is also asked for at its user's cleaned history at test. Histories of users without a deleted
interaction are the same, and are not asked at again. Uncleaned windows are made batch by batch and never kept.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from recbole.data.interaction import Interaction, cat_interactions

from recbole_unlearn.data import Sequences, SequenceSplits, Splits, UnlearnData
from recbole_unlearn.measures.base import View, measure, rounded
from recbole_unlearn.measures.demotion import TOPK, clustered
from recbole_unlearn.measures.scores import DEPTH, Observation, Pairs, never_touched
from recbole_unlearn.measures.windows import (
    WindowQuestions,
    Windows,
    compared,
    deleted_targets,
    kept,
    observe_windows,
    sequences_of,
    standing,
    step,
)
from recbole_unlearn.results.schema import Figure, Metrics
from recbole_unlearn.training import PhaseTrainer


class Uncleaned:
    """The windows (m) of deleted interactions as the original was trained with them, made when they are asked for."""

    def __init__(self, sequences: Sequences, rows: torch.Tensor) -> None:
        self.sequences, self.rows = sequences, rows

    def __getitem__(self, chosen: torch.Tensor) -> Interaction:
        return self.sequences.prefix(self.rows[chosen])


@dataclasses.dataclass(frozen=True)
class HistoryQuestions(WindowQuestions):
    """Questions with those at other histories than cleaned prefixes."""

    uncleaned: Uncleaned  # windows of the deleted pairs
    emptied: Pairs  # deleted pairs with nothing retained before them
    emptied_windows: Uncleaned
    control: Pairs  # held-out pairs of users without a deleted interaction; none where nothing is emptied
    control_windows: Interaction
    tested: torch.Tensor  # (t,), sorted: affected users with a test window
    targets: torch.Tensor  # (t,), their test items

    @classmethod
    def ask(cls, data: UnlearnData, negatives: int, seed: int) -> HistoryQuestions:
        """The questions of :class:`WindowQuestions`, and the others."""
        asked = WindowQuestions.ask(data, negatives, seed)
        own = {field.name: getattr(asked, field.name) for field in dataclasses.fields(asked)}
        full = sequences_of(data.full)
        emptied, rows = compared(data, deleted_targets(data).emptied, negatives, seed)
        others = asked.users[~asked.affected] if len(emptied) else asked.users[:0]
        control, windows = _held_out(data, others, negatives, seed)
        tested, targets = _tests(data)
        uncleaned = Uncleaned(full, asked.deleted_rows)
        return cls(**own, uncleaned=uncleaned, emptied=emptied, emptied_windows=Uncleaned(full, rows),
            control=control,
            control_windows=windows,
                   tested=tested, targets=targets)  # fmt: skip


def deleted_windows(data: UnlearnData, negatives: int, seed: int) -> tuple[Pairs, Windows]:
    """The deleted pairs with their cleaned windows; where none has one, those of emptied histories, uncleaned."""
    full, (asked, emptied) = sequences_of(data.full), deleted_targets(data)
    pairs, rows = compared(data, asked if len(asked) else emptied, negatives, seed)
    return pairs, full.prefix(rows, kept(data)) if len(asked) else Uncleaned(full, rows)


def _held_out(data: UnlearnData, users: torch.Tensor, negatives: int, seed: int) -> tuple[Pairs, Interaction]:
    """The validation and test pairs of ``users`` with items to compare them with, and their windows."""
    train = data.retain.train
    windows = cat_interactions([part.inter_feat for part in data.retain.for_model()[1:]])
    windows = windows[torch.isin(windows[train.uid_field], users)]
    windows = windows[torch.argsort(windows[train.uid_field], stable=True)]
    owners = windows[train.uid_field]
    drawn, usable = never_touched(owners, data.full, negatives, torch.Generator().manual_seed(seed))
    windows = windows[usable]
    return Pairs(owners[usable], windows[train.iid_field], drawn[usable]), windows


def _tests(data: UnlearnData) -> tuple[torch.Tensor, torch.Tensor]:
    """The affected users with a test window (t,), sorted, and its target (t,)."""
    test = data.retain.for_model().test
    users, items = test.inter_feat[test.uid_field], test.inter_feat[test.iid_field]
    mine = torch.isin(users, data.affected_users)
    users, order = users[mine].sort(stable=True)
    return users, items[mine][order]


@dataclasses.dataclass(frozen=True)
class HistoryObservation(Observation):
    """What a model answers at these histories; of pairs, the share of the compared items that score higher."""

    at_test: torch.Tensor  # (m,), of the deleted pairs at their users' cleaned test histories
    uncleaned: torch.Tensor  # (m,), of the deleted pairs at the histories that they were trained with
    emptied: torch.Tensor  # (e,), of those with nothing retained before them, likewise
    control: torch.Tensor  # (c,), of held-out pairs of other users at the histories of their windows
    hits: (
        torch.Tensor
    )  # (t, depth), which of the first items after an uncleaned test history is the test item


@torch.no_grad()
def observe_histories(
    trainer: PhaseTrainer, questions: HistoryQuestions, splits: Splits
) -> HistoryObservation:
    """Score the windows of all questions; ``splits`` are those of the retained data."""
    seen = observe_windows(trainer, questions, splits)
    own = {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen)}
    return HistoryObservation(
        **own,
        at_test=_at_test(trainer, questions.deleted, splits),
        uncleaned=standing(trainer, questions.deleted, questions.uncleaned, splits).demoted,
        emptied=standing(trainer, questions.emptied, questions.emptied_windows, splits).demoted,
        control=standing(trainer, questions.control, questions.control_windows, splits).demoted,
        hits=_hits(trainer, questions, splits),
    )


def _at_test(trainer: PhaseTrainer, pairs: Pairs, splits: Splits) -> torch.Tensor:
    """The share of the compared items that score higher than each pair (m,) after its user's test history."""
    found = [torch.zeros(0)]
    for users in torch.unique(pairs.users).split(step(splits)) if len(pairs) else ():
        scores = trainer.batch_scores(splits.batch(users), splits.train)
        mine = pairs.of(users)
        row = torch.searchsorted(users, pairs.users[mine])
        own = scores[row, pairs.items[mine]]
        others = scores.take(row[:, None] * scores.shape[1] + pairs.others[mine])
        found.append((own[:, None] < others).float().mean(dim=1))
    return torch.cat(found)


def _hits(trainer: PhaseTrainer, questions: HistoryQuestions, splits: Splits) -> torch.Tensor:
    """Where the test items (t,) are in the lists after uncleaned test histories (t, depth)."""
    depth = min(DEPTH, splits.train.item_num - 1)
    full = questions.uncleaned.sequences
    assert isinstance(splits, SequenceSplits)
    found = [torch.zeros(0, depth, dtype=torch.bool)]
    for rows in torch.arange(len(questions.tested)).split(step(splits)) if len(questions.tested) else ():
        scores = trainer.batch_scores(splits.read(full.latest(questions.tested[rows])), splits.train)
        found.append(scores.topk(depth, dim=1).indices == questions.targets[rows, None])
    return torch.cat(found)


def _asked(view: View) -> tuple[HistoryQuestions, HistoryObservation]:
    """The questions and answers of a sequential model, which are the only ones these measures get."""
    assert isinstance(view.questions, HistoryQuestions)
    assert isinstance(view.seen, HistoryObservation)
    return view.questions, view.seen


def _utility(hits: torch.Tensor) -> Metrics:
    """RecBole's Recall and NDCG at K of windows with one target each: it is found or not, and 1/log₂(1 + place)."""
    places = torch.arange(1, hits.shape[1] + 1, dtype=torch.double)
    gains = hits.double() / torch.log2(1 + places)
    cuts = [k for k in TOPK if k <= hits.shape[1]] if len(hits) else []
    recall = {f"recall@{k}": rounded(hits[:, :k].any(dim=1).double().mean()) for k in cuts}
    return recall | {f"ndcg@{k}": rounded(gains[:, :k].sum(dim=1).mean()) for k in cuts}


@measure(
    "demotion_at_test",
    title="Demotion rate, at test",
    meaning="the same after the user's cleaned history at test, instead of what was before the deleted item",
    good="the retrained model's",
    of_sequences=True,
    place=1,
)
def _demotion_at_test(view: View) -> dict[str, Figure]:
    questions, seen = _asked(view)
    return {"demotion_at_test": rounded(seen.at_test.double().mean())} if len(questions.deleted) else {}


@measure(
    "uncleaned",
    title="Uncleaned histories",
    meaning="the same figures with histories that still have what was deleted: what the weights still know",
    good="the retrained model's",
    parts={"demotion_rate": ": demotion rate", "ndcg@20": ": NDCG@20 of affected users"},
    of_sequences=True,
    discloses={"demotion_rate": "compared", "*": "measured"},
    place=2,
)
def _uncleaned(view: View) -> dict[str, Figure]:
    questions, seen = _asked(view)
    found = _utility(seen.hits)
    if len(questions.deleted):
        found = {"demotion_rate": rounded(seen.uncleaned.double().mean())} | found
    return {"uncleaned": found} if found else {}


@measure(
    "emptied",
    title="Emptied histories",
    meaning="deleted items with nothing retained before them, as of whole users, after their uncleaned histories",
    good="the retrained model's",
    parts={"demotion_rate": ": demotion rate", "held_out": ": held-out items of others"},
    of_sequences=True,
    discloses="emptied",
    place=2,
)
def _emptied(view: View) -> dict[str, Figure]:
    questions, seen = _asked(view)
    if not len(questions.emptied) or not len(questions.control):  # without a control it would say nothing
        return {}
    rates = {"demotion_rate": seen.emptied, "held_out": seen.control}
    return {"emptied": {key: rounded(values.double().mean()) for key, values in rates.items()}}


@measure(
    "emptied_gap",
    title="Emptied histories: demotion gap",
    meaning="how much more that rate differs from the retrained model's than that of held-out items of others does",
    good="0, within twice its error",
    parts={"mean": "", "error": ": standard error"},
    is_distance=True,
    of_sequences=True,
    discloses="emptied",
    place=5,
)
def _emptied_gap(view: View) -> dict[str, Figure]:
    questions, seen = _asked(view)
    target = view.retrained
    if not isinstance(target, HistoryObservation) or not len(questions.emptied) or not len(questions.control):
        return {}
    gap = clustered(seen.emptied.double() - target.emptied.double(), questions.emptied.users)
    other = clustered(seen.control.double() - target.control.double(), questions.control.users)
    error = math.hypot(gap[1], other[1])  # they are of different users
    return {"emptied_gap": {"mean": rounded(gap[0] - other[0]), "error": rounded(error)}}
