r"""Questions to a model, and its answers, from one pass over its scores.

The *questions* are made once a run and are the same for every phase: the users whose lists are ranked, the deleted
pairs, the items each is compared with, and held-out positives of the same users, from which a membership attack has
to distinguish the deleted pairs. An *observation* holds a model's answers. Retained items are masked, deleted not.

A sequential model ranks items after a history, so each question has one: by default that of D\S, in every phase.

* A deleted interaction is asked for at its *cleaned prefix*, the retained interactions of its user before it. It must
  have been the target of a window, and its prefix must not be empty.
* A held-out interaction is asked for at the history of its own window.
* Lists are ranked after a user's last training and validation interactions, as at test; deleted interactions are
  asked for there too. Only padding is masked, as in RecBole's evaluation of sequential models.

Such figures mix two effects: weights that forgot, and histories that no longer remind the model. So deleted
interactions are also asked for at *uncleaned* histories, those that the original was trained with, and test items of
affected users after their whole history. A deleted interaction with an empty prefix (its history is *emptied*, as all
of a whole user are) has no other question; the control are held-out interactions of other users, since a model that
merely got worse ranks both lower. Uncleaned windows are made batch by batch and never kept.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Self, TypeAlias

import numpy as np
import torch
from recbole.data.interaction import Interaction, cat_interactions

from recbole_unlearn.data import INJECTED, SCORES, TRAIN, Sequences, SequenceSplits, Splits, UnlearnData, append
from recbole_unlearn.rows import RetainedIndex, TrainIndex
from recbole_unlearn.training import PhaseTrainer

DEPTH = 50  # of the ranked lists that are kept
OTHERS = 1000  # users without deleted interactions whose lists are ranked


class Pairs:
    """Pairs of users and items, sorted by user, with the items they are compared with."""

    def __init__(self, users: torch.Tensor, items: torch.Tensor, others: torch.Tensor) -> None:
        order = torch.argsort(users, stable=True)
        self.users, self.items, self.others = users[order], items[order], others[order]

    def __len__(self) -> int:
        return len(self.users)

    def of(self, users: torch.Tensor) -> slice:
        """The pairs of ``users``, who follow each other in the order of the questions, as a slice."""
        ends = torch.searchsorted(self.users, torch.stack([users[0], users[-1] + 1]))
        return slice(int(ends[0]), int(ends[1]))


@dataclasses.dataclass(frozen=True)
class Questions:
    """The users and pairs that every phase is asked about."""

    users: torch.Tensor  # (n,), sorted: the affected ones, and a sample of the others in the test split
    affected: torch.Tensor  # (n,), a mask
    deleted: Pairs
    members: torch.Tensor  # (m,), positions of deleted pairs that have a match
    held_out: Pairs  # (m pairs), the matches, in the order of ``members``
    history: TrainIndex  # of retained interactions before test, which evaluation masks
    of_noise: bool = dataclasses.field(default=False, kw_only=True)  # no one likes the deleted items
    exposed: torch.Tensor | None = dataclasses.field(default=None, kw_only=True)  # items, see the measure `exposure`

    @classmethod
    def of(cls, data: UnlearnData, deleted: Pairs, seed: int) -> Self:
        """All affected users and some others, and the deleted pairs with their held-out matches."""
        retain, affected = data.retain, data.affected_users
        history = append(retain.train, retain.valid.inter_feat)
        if isinstance(retain, SequenceSplits):  # no list without a history to rank it after
            everything = torch.cat([part.inter_feat[part.uid_field] for part in retain.everything()[:2]])
            affected = affected[torch.isin(affected, everything)]
        others = torch.unique(retain.test.inter_feat[retain.test.uid_field])
        others = others[~torch.isin(others, data.affected_users)]
        pick = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[:OTHERS]
        users = torch.cat([others[pick], affected]).sort().values
        members, held_out = match(deleted, data, np.random.default_rng(seed))
        asked = torch.isin(users, affected), deleted, members, held_out, TrainIndex(history)
        return cls(users, *asked, of_noise=data.source.startswith(INJECTED), exposed=data.exposed)


def match(deleted: Pairs, data: UnlearnData, rng: np.random.Generator) -> tuple[torch.Tensor, Pairs]:
    """Match deleted pairs with held-out ones of their user and popularity, so that neither gives them away."""
    fields = data.full.train.uid_field, data.full.train.iid_field
    popularity = data.popularity.double().numpy()
    held = [torch.cat([part.inter_feat[field] for part in data.retain[1:]]) for field in fields]
    users, items = (column[torch.argsort(held[0], stable=True)].numpy() for column in held)
    found: dict[int, int] = {}  # by positions of deleted pairs
    for user in torch.unique(deleted.users):
        mine = deleted.of(user[None])
        level = popularity[deleted.items[mine].numpy()]
        own = items[slice(*np.searchsorted(users, [user, user + 1]))]
        for item in rng.permutation(own)[: len(level)]:
            nearest = int(np.argmin(np.abs(level - popularity[item])))
            level[nearest] = np.inf  # taken
            found[mine.start + nearest] = int(item)
    members = torch.tensor(sorted(found), dtype=torch.long)
    matches = torch.tensor([found[place] for place in sorted(found)], dtype=torch.long)
    return members, Pairs(deleted.users[members], matches, deleted.others[members])


def deleted_pairs(data: UnlearnData, negatives: int, seed: int) -> Pairs:
    """The deleted pairs, each with ``negatives`` items that its user met in no split, uniform."""
    users, items = data.forget_pairs
    drawn, usable = never_touched(users, data.full, negatives, seed)
    return Pairs(users[usable], items[usable], drawn[usable])


def never_touched(users: torch.Tensor, splits: Splits, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Items (n, k) that each of ``users`` met in no split, and which users have any such item (n,)."""
    generator = torch.Generator().manual_seed(seed)
    index = TrainIndex(append(append(splits.train, splits.valid.inter_feat), splits.test.inter_feat))
    met = RetainedIndex.whole(index)
    drawn, left = met.draw(users[:, None].expand(-1, k).contiguous(), generator, tries=20)
    usable = torch.ones(len(users), dtype=torch.bool)
    # Users who met almost everything: choose among the few items they did not meet.
    everything = torch.arange(1, index.sizes["item"])
    for row in torch.unique(left // k).tolist():
        own = everything[~met.are_known(users[row].expand(len(everything)), everything)]
        usable[row] = len(own) > 0
        if len(own):
            drawn[row] = own[torch.randint(0, len(own), (k,), generator=generator)]
    return drawn, usable


@dataclasses.dataclass(frozen=True)
class Standing:
    """The rank of pairs for their users."""

    score: torch.Tensor  # (m,), (s − mean)/std over all items of the user
    demoted: torch.Tensor  # (m,), share of the compared items that score higher
    log_p: torch.Tensor  # (m,), log of the softmax probability of the item among all items of the user


@dataclasses.dataclass(frozen=True)
class Observation:
    """A model's answers to the questions."""

    top: torch.Tensor  # (n, depth), best items of each user without the retained history
    deleted: Standing
    held_out: Standing
    probe: torch.Tensor | None = dataclasses.field(default=None, kw_only=True)  # (k,), see probe.py
    ndcg: torch.Tensor | None = dataclasses.field(default=None, kw_only=True)  # (a,), NDCG@20 of each affected user
    relearned: tuple["Observation", ...] = dataclasses.field(default=(), kw_only=True)  # by epoch, see relearning.py


@torch.no_grad()
def observe(trainer: PhaseTrainer, questions: Questions, splits: Splits) -> Observation:
    """Score all users of the questions once; ``splits`` are those of the retained data."""
    if isinstance(questions, HistoryQuestions):
        return _observe_histories(trainer, questions, splits)
    size, history = questions.history.sizes["item"], questions.history
    parts = []
    for users in questions.users.split(max(1, trainer.test_batch_size // size)):
        scores = trainer.scores(users, splits.train)
        asked = torch.isin(users, questions.deleted.users).nonzero().flatten()
        # Torch warns about a mean over no user, where a request has no training interaction.
        known = scores[asked, 1:]
        spread, mean = torch.std_mean(known, dim=1) if len(asked) else scores.new_zeros(2, 0)
        total = known.logsumexp(dim=1)
        standings = []
        for pairs in (questions.deleted, questions.held_out):
            own, below = compared(scores, users, pairs)
            place = torch.searchsorted(users[asked], pairs.users[pairs.of(users)])
            standings += [(own - mean[place]) / spread[place].clamp(min=1e-12), below.float().mean(dim=1)]
            standings.append(own - total[place])
        kept = history.of("user", users)
        scores[torch.searchsorted(users, history.ids["user"][kept]), history.ids["item"][kept]] = -torch.inf
        parts.append([one.cpu() for one in (_best(scores), *standings)])
    top, *rest = (torch.cat(column) for column in zip(*parts, strict=True))
    return Observation(top, Standing(*rest[:3]), Standing(*rest[3:]))


def compared(scores: torch.Tensor, users: torch.Tensor, pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores of the pairs of ``users`` (m,), and whether they are below those of each compared item (m, k)."""
    mine = pairs.of(users)
    row = torch.searchsorted(users, pairs.users[mine])
    own = scores[row, pairs.items[mine]]
    places = row[:, None] * scores.shape[1] + pairs.others[mine]
    return own, own[:, None] < scores.take(places.to(scores.device))


def _best(scores: torch.Tensor) -> torch.Tensor:
    """The best items of each user (n, depth)."""
    return scores.topk(min(DEPTH, scores.shape[1] - 1), dim=1).indices


# Sequential models


Windows: TypeAlias = Callable[[torch.Tensor], Interaction]  # windows by their numbers; uncleaned ones are never kept


@dataclasses.dataclass(frozen=True)
class HistoryQuestions(Questions):
    """Questions with the windows at which pairs are asked for, in the order of the pairs."""

    emptied: Pairs  # deleted pairs with an empty prefix
    control: Pairs  # held-out pairs of users without a deleted interaction; none where nothing is emptied
    windows: dict[str, Windows]  # of all four kinds of pairs, and "uncleaned": those of the deleted ones

    @classmethod
    def ask(cls, data: UnlearnData, negatives: int, seed: int) -> Self:
        """All questions of a request."""
        full, train = sequences_of(data.full), data.retain.train
        asked_rows, emptied_rows = deleted_targets(data)
        deleted, rows = _compared(data, asked_rows, negatives, seed)
        asked = Questions.of(data, deleted, seed)
        emptied, emptied_rows = _compared(data, emptied_rows, negatives, seed)
        windows = cat_interactions([part.inter_feat for part in data.retain.for_model()[1:]])
        keys, first = np.unique(_keys(data.retain, windows).numpy(), return_index=True)
        wanted = (asked.held_out.users * train.item_num + asked.held_out.items).numpy()
        # Of several held-out windows with one target, the first.
        held_out_windows = windows[torch.from_numpy(first[np.searchsorted(keys, wanted)])]

        others = asked.users[~asked.affected] if len(emptied) else asked.users[:0]
        windows = windows[torch.isin(windows[train.uid_field], others)]
        windows = windows[torch.argsort(windows[train.uid_field], stable=True)]
        owners = windows[train.uid_field]
        drawn, usable = never_touched(owners, data.full, negatives, seed)
        windows = windows[usable]
        return cls(
            **vars(asked),
            emptied=emptied,
            control=Pairs(owners[usable], windows[train.iid_field], drawn[usable]),
            windows={
                "deleted": full.prefix(rows, _kept(data)).__getitem__,
                "held_out": held_out_windows.__getitem__,
                "uncleaned": lambda chosen: full.prefix(rows[chosen]),
                "emptied": lambda chosen: full.prefix(emptied_rows[chosen]),
                "control": windows.__getitem__,
            },
        )


def deleted_windows(data: UnlearnData, negatives: int, seed: int) -> tuple[Pairs, Windows]:
    """The deleted pairs with their cleaned windows; if no pair has one, those with emptied histories, uncleaned."""
    full, (asked, emptied) = sequences_of(data.full), deleted_targets(data)
    pairs, rows = _compared(data, asked if len(asked) else emptied, negatives, seed)
    if len(asked):
        return pairs, full.prefix(rows, _kept(data)).__getitem__
    return pairs, lambda chosen: full.prefix(rows[chosen])


def deleted_targets(data: UnlearnData) -> tuple[torch.Tensor, torch.Tensor]:
    """Deleted pairs that were targets of windows, as numbers in D: those with a cleaned prefix, those without one."""
    sequences, keep = sequences_of(data.full), _kept(data)
    rows = (sequences.role == TRAIN).nonzero().flatten()[data.deleted]
    rows = rows[sequences.lengths()[rows] > 0]
    keys = _keys(data.full, sequences.raw.inter_feat)
    rows = rows[~torch.isin(keys[rows], keys[keep & (sequences.role == TRAIN)])]
    has_prefix = sequences.lengths(keep)[rows] > 0

    def once(rows: torch.Tensor) -> torch.Tensor:
        """The first of ``rows`` with each key, by user, then item."""
        return rows[torch.from_numpy(np.unique(keys[rows].numpy(), return_index=True)[1])]

    asked, rest = once(rows[has_prefix]), rows[~has_prefix]
    return asked, once(rest[~torch.isin(keys[rest], keys[asked])])


def _compared(data: UnlearnData, rows: torch.Tensor, negatives: int, seed: int) -> tuple[Pairs, torch.Tensor]:
    """Deleted interactions ``rows`` as pairs with items to compare them with, and those of ``rows`` that have any."""
    size = data.full.train.item_num
    keys = _keys(data.full, sequences_of(data.full).raw.inter_feat)[rows]
    drawn, usable = never_touched(keys // size, data.full, negatives, seed)
    keys = keys[usable]
    return Pairs(keys // size, keys % size, drawn[usable]), rows[usable]


def sequences_of(splits: Splits) -> Sequences:
    """The interactions behind the windows of a sequential model."""
    assert isinstance(splits, SequenceSplits)
    return splits.sequences


def _kept(data: UnlearnData) -> torch.Tensor:
    """Which interactions of the sequences of D are retained (n,)."""
    keep = torch.zeros(len(sequences_of(data.full)), dtype=torch.bool)
    keep[sequences_of(data.retain).numbers] = True
    return keep


def _keys(splits: Splits, feat: Interaction) -> torch.Tensor:
    return feat[splits.train.uid_field] * splits.train.item_num + feat[splits.train.iid_field]


@dataclasses.dataclass(frozen=True)
class HistoryObservation(Observation):
    """A model's answers at these histories; for pairs, the share of the compared items that score higher."""

    uncleaned: torch.Tensor  # (m,), of the deleted pairs at the histories that they were trained with
    emptied: torch.Tensor  # (e,), of those with an empty prefix, likewise
    control: torch.Tensor  # (c,), of held-out pairs of other users at the histories of their windows


def _observe_histories(trainer: PhaseTrainer, questions: HistoryQuestions, splits: Splits) -> HistoryObservation:
    latest, deleted = sequences_of(splits).latest, questions.deleted
    top = torch.cat([_best(scores).cpu() for _, scores in _scored(trainer, latest, questions.users, splits)])
    asked = {
        "deleted": deleted, "held_out": questions.held_out, "uncleaned": deleted,
        "emptied": questions.emptied, "control": questions.control,
    }  # fmt: skip
    answers = {name: standing(trainer, pairs, questions.windows[name], splits) for name, pairs in asked.items()}
    uncleaned, emptied, control = (answers[name].demoted for name in ("uncleaned", "emptied", "control"))
    return HistoryObservation(top, answers["deleted"], answers["held_out"], uncleaned, emptied, control)


def _scored(
    trainer: PhaseTrainer, windows: Windows, asked: torch.Tensor, splits: Splits
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Parts of ``asked`` (n,), each with the scores of all items after its windows."""
    assert isinstance(splits, SequenceSplits)
    for part in asked.split(max(1, SCORES // splits.train.item_num)) if len(asked) else ():
        yield part, trainer.batch_scores(splits.read(windows(part)), splits.train)


@torch.no_grad()
def standing(trainer: PhaseTrainer, pairs: Pairs, windows: Windows, splits: Splits) -> Standing:
    """The rank of each pair at its window."""
    found = [torch.zeros(3, 0)]
    for rows, scores in _scored(trainer, windows, torch.arange(len(pairs)), splits):
        spread, mean = torch.std_mean(scores[:, 1:], dim=1)
        own = scores.gather(1, pairs.items[rows, None].to(scores.device))
        demoted = (own < scores.gather(1, pairs.others[rows].to(scores.device))).float().mean(dim=1)
        log_p = own[:, 0] - scores[:, 1:].logsumexp(dim=1)
        found.append(torch.stack([(own[:, 0] - mean) / spread.clamp(min=1e-12), demoted, log_p]).cpu())
    return Standing(*torch.cat(found, dim=1))
