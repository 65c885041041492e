r"""Questions to a model, and its answers, from one pass over its scores.

The *questions* are made once a run and are the same for every phase: the users whose lists are ranked, the deleted
pairs, the items each is compared with, and held-out positives of the same users, from which a membership attack has
to distinguish the deleted pairs. An *observation* holds the answers of one model. Items of the retained history are
masked, deleted ones are not.

A sequential model ranks items after a history, so each question has a history too. By default it is the one of D\S,
in every phase: the original is measured with its weights on cleaned histories.

* A deleted interaction is asked for at its *cleaned prefix*, the retained interactions of its user before it. It must
  have been the target of a window, and its prefix must not be empty.
* A held-out interaction is asked for at the history of its own window.
* Lists are ranked after a user's last training and validation interactions, as at test. Only padding is masked, as in
  RecBole's evaluation of sequential models.

Figures at cleaned histories mix two effects: weights that forgot, and histories that no longer remind the model. So
there are more questions, at *uncleaned* histories, which still hold the deleted interactions:

* A deleted interaction at the history that the original was trained with, and the test items of affected users after
  their whole history. The original's figures at both kinds of histories show the effect of cleaning alone; those of
  the unlearned and the retrained model at uncleaned ones show the memory of the weights.
* A deleted interaction with an empty prefix (its history is *emptied*, as all histories of a whole user are) can only
  be asked for at the uncleaned one. Its user may have no held-out interaction either, so those of other users are the
  control: a model that merely got worse ranks both lower.

A deleted interaction is also asked for at its user's cleaned history at test. Uncleaned windows are made batch by
batch and never kept.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import numpy as np
import torch
from recbole.data.interaction import Interaction, cat_interactions

from recbole_unlearn.data import SCORES, TRAIN, Sequences, SequenceSplits, Splits, UnlearnData, append
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

    @classmethod
    def of(cls, data: UnlearnData, deleted: Pairs, seed: int) -> Questions:
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
        return cls(users, torch.isin(users, affected), deleted, members, held_out, TrainIndex(history))


def match(deleted: Pairs, data: UnlearnData, rng: np.random.Generator) -> tuple[torch.Tensor, Pairs]:
    """Match held-out positives with deleted pairs of the same user and nearly the same popularity, each used once.

    Without the match an attacker could recognise deleted pairs by their user or their item alone.
    """
    train = data.full.train
    popularity = np.bincount(train.inter_feat[train.iid_field].numpy(), minlength=train.item_num)
    parts = [data.retain.valid, data.retain.test]
    feats, fields = [part.inter_feat for part in parts], (train.uid_field, train.iid_field)
    users, items = (np.concatenate([feat[field].numpy() for feat in feats]) for field in fields)
    order = np.argsort(users, kind="stable")
    users, items = users[order], items[order]
    chosen, matches = [], []
    own_users, own_items = deleted.users.numpy(), deleted.items.numpy()
    for user in np.unique(own_users):
        mine = np.arange(*np.searchsorted(own_users, [user, user + 1]))
        free = np.ones(len(mine), dtype=bool)
        level = popularity[own_items[mine]].astype(float)
        for item in rng.permutation(items[slice(*np.searchsorted(users, [user, user + 1]))]):
            if not free.any():
                break
            nearest = int(np.argmin(np.where(free, np.abs(level - popularity[item]), np.inf)))
            free[nearest] = False
            chosen.append(mine[nearest])
            matches.append(item)
    places = np.array(chosen, dtype=np.int64)
    order = np.argsort(places, kind="stable")
    members = torch.from_numpy(places[order])
    found = torch.from_numpy(np.array(matches, dtype=np.int64)[order])
    return members, Pairs(deleted.users[members], found, deleted.others[members])


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


@dataclasses.dataclass(frozen=True)
class Observation:
    """A model's answers to the questions."""

    top: torch.Tensor  # (n, depth), best items of each user without the retained history
    top_masked: torch.Tensor  # the same without deleted items
    deleted: Standing
    held_out: Standing


@torch.no_grad()
def observe(trainer: PhaseTrainer, questions: Questions, splits: Splits) -> Observation:
    """Score all users of the questions once; ``splits`` are those of the retained data."""
    if isinstance(questions, HistoryQuestions):
        return _observe_histories(trainer, questions, splits)
    size, history = questions.history.sizes["item"], questions.history
    lists: list[tuple[torch.Tensor, torch.Tensor]] = []
    standings: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {"deleted": [], "held_out": []}
    for users in questions.users.split(max(1, trainer.test_batch_size // size)):
        scores = trainer.scores(users, splits.train)
        asked = torch.isin(users, questions.deleted.users).nonzero().flatten()
        # Torch warns about a mean over no user, where a request has no training interaction.
        spread, mean = torch.std_mean(scores[asked, 1:], dim=1) if len(asked) else scores.new_zeros(2, 0)
        for name, pairs in (("deleted", questions.deleted), ("held_out", questions.held_out)):
            own, demoted = _compare(scores, users, pairs)
            place = torch.searchsorted(users[asked], pairs.users[pairs.of(users)])
            standings[name].append(((own - mean[place]) / spread[place].clamp(min=1e-12), demoted))
        known = history.of("user", users)
        scores[torch.searchsorted(users, history.ids["user"][known]), history.ids["item"][known]] = -torch.inf
        lists.append(_lists(scores, users, questions.deleted))
    deleted, held_out = (_joined(standings[name]) for name in ("deleted", "held_out"))
    return Observation(*_joined(lists), Standing(*deleted), Standing(*held_out))


def _compare(scores: torch.Tensor, users: torch.Tensor, pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores of the pairs of ``users`` (m,), and the share of their compared items that score higher (m,)."""
    mine = pairs.of(users)
    row = torch.searchsorted(users, pairs.users[mine])
    own = scores[row, pairs.items[mine]]
    others = scores.take(row[:, None] * scores.shape[1] + pairs.others[mine])
    return own, (own[:, None] < others).float().mean(dim=1)


def _lists(scores: torch.Tensor, users: torch.Tensor, deleted: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """The best items of each user (n, depth), with and without deleted ones; ``scores`` is changed."""
    depth = min(DEPTH, scores.shape[1] - 1)
    top = scores.topk(depth, dim=1).indices
    gone = deleted.of(users)
    rows = torch.searchsorted(users, deleted.users[gone])
    scores[rows, deleted.items[gone]] = -torch.inf
    masked, asked = top.clone(), torch.unique(rows)
    masked[asked] = scores[asked].topk(depth, dim=1).indices
    return top, masked


def _joined(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = zip(*parts, strict=True)
    return torch.cat(first), torch.cat(second)


# Sequential models


class Uncleaned:
    """The windows (m) of deleted interactions as the original was trained with them, made when they are read."""

    def __init__(self, sequences: Sequences, rows: torch.Tensor) -> None:
        self.sequences, self.rows = sequences, rows

    def __getitem__(self, chosen: torch.Tensor) -> Interaction:
        return self.sequences.prefix(self.rows[chosen])


Windows: TypeAlias = Interaction | Uncleaned  # both are read by the numbers of windows


@dataclasses.dataclass(frozen=True)
class HistoryQuestions(Questions):
    """Questions with the windows at which pairs are asked for, in the order of the pairs."""

    deleted_windows: Interaction  # cleaned
    held_out_windows: Interaction
    uncleaned: Uncleaned  # windows of the deleted pairs
    emptied: Pairs  # deleted pairs with an empty prefix
    emptied_windows: Uncleaned
    control: Pairs  # held-out pairs of users without a deleted interaction; none where nothing is emptied
    control_windows: Interaction
    tested: torch.Tensor  # (t,), sorted: affected users with a test window
    targets: torch.Tensor  # (t,), their test items

    @classmethod
    def ask(cls, data: UnlearnData, negatives: int, seed: int) -> HistoryQuestions:
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

        test = data.retain.for_model().test.inter_feat
        mine = torch.isin(test[train.uid_field], data.affected_users)
        tested, order = test[train.uid_field][mine].sort(stable=True)
        return cls(
            **vars(asked),
            deleted_windows=full.prefix(rows, _kept(data)),
            held_out_windows=held_out_windows,
            uncleaned=Uncleaned(full, rows),
            emptied=emptied,
            emptied_windows=Uncleaned(full, emptied_rows),
            control=Pairs(owners[usable], windows[train.iid_field], drawn[usable]),
            control_windows=windows,
            tested=tested,
            targets=test[train.iid_field][mine][order],
        )


def deleted_windows(data: UnlearnData, negatives: int, seed: int) -> tuple[Pairs, Windows]:
    """The deleted pairs with their cleaned windows; if no pair has one, those with emptied histories, uncleaned."""
    full, (asked, emptied) = sequences_of(data.full), deleted_targets(data)
    pairs, rows = _compared(data, asked if len(asked) else emptied, negatives, seed)
    return pairs, full.prefix(rows, _kept(data)) if len(asked) else Uncleaned(full, rows)


def deleted_targets(data: UnlearnData) -> tuple[torch.Tensor, torch.Tensor]:
    """Deleted pairs that were targets of windows, each once, by their numbers in the sequences of D.

    First those with a cleaned prefix, then those whose prefix is empty; none that a retained interaction has too.
    """
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
    """One number for each pair of a user and an item (n,)."""
    return feat[splits.train.uid_field] * splits.train.item_num + feat[splits.train.iid_field]


@dataclasses.dataclass(frozen=True)
class HistoryObservation(Observation):
    """A model's answers at these histories; for pairs, the share of the compared items that score higher."""

    at_test: torch.Tensor  # (m,), of the deleted pairs at their users' cleaned test histories
    uncleaned: torch.Tensor  # (m,), of the deleted pairs at the histories that they were trained with
    emptied: torch.Tensor  # (e,), of those with an empty prefix, likewise
    control: torch.Tensor  # (c,), of held-out pairs of other users at the histories of their windows
    hits: torch.Tensor  # (t, depth), where the test item is in the list after an uncleaned test history


def _observe_histories(trainer: PhaseTrainer, questions: HistoryQuestions, splits: Splits) -> HistoryObservation:
    def scored(users: torch.Tensor) -> torch.Tensor:
        return trainer.batch_scores(splits.batch(users), splits.train)

    deleted, step = questions.deleted, window_step(splits)
    lists = [_lists(scored(users), users, deleted) for users in questions.users.split(step)]
    at_test = [torch.zeros(0)]
    for users in torch.unique(deleted.users).split(step) if len(deleted) else ():
        at_test.append(_compare(scored(users), users, deleted)[1])
    return HistoryObservation(
        *_joined(lists),
        standing(trainer, deleted, questions.deleted_windows, splits),
        standing(trainer, questions.held_out, questions.held_out_windows, splits),
        at_test=torch.cat(at_test),
        uncleaned=standing(trainer, deleted, questions.uncleaned, splits).demoted,
        emptied=standing(trainer, questions.emptied, questions.emptied_windows, splits).demoted,
        control=standing(trainer, questions.control, questions.control_windows, splits).demoted,
        hits=hits_at_test(trainer, questions, splits),
    )


def window_step(splits: Splits) -> int:
    """How many windows are scored at a time."""
    return max(1, SCORES // splits.train.item_num)


@torch.no_grad()
def standing(trainer: PhaseTrainer, pairs: Pairs, windows: Windows, splits: Splits) -> Standing:
    """The rank of each pair at its window."""
    found = [torch.zeros(2, 0)]
    assert isinstance(splits, SequenceSplits)
    for rows in torch.arange(len(pairs)).split(window_step(splits)) if len(pairs) else ():
        scores = trainer.batch_scores(splits.read(windows[rows]), splits.train)
        spread, mean = torch.std_mean(scores[:, 1:], dim=1)
        own = scores.gather(1, pairs.items[rows, None])
        demoted = (own < scores.gather(1, pairs.others[rows])).float().mean(dim=1)
        found.append(torch.stack([(own[:, 0] - mean) / spread.clamp(min=1e-12), demoted]))
    return Standing(*torch.cat(found, dim=1))


def hits_at_test(trainer: PhaseTrainer, questions: HistoryQuestions, splits: Splits) -> torch.Tensor:
    """Where the test items (t,) are in the lists after uncleaned test histories (t, depth)."""
    assert isinstance(splits, SequenceSplits)
    depth, tested = min(DEPTH, splits.train.item_num - 1), questions.tested
    found = [torch.zeros(0, depth, dtype=torch.bool)]
    for rows in torch.arange(len(tested)).split(window_step(splits)) if len(tested) else ():
        batch = splits.read(questions.uncleaned.sequences.latest(tested[rows]))
        scores = trainer.batch_scores(batch, splits.train)
        found.append(scores.topk(depth, dim=1).indices == questions.targets[rows, None])
    return torch.cat(found)
