"""Requests as the literature draws them, by `--forget=NAME:VALUE`, instead of a file of requests.

    core:5%, edge:5%, random:5%   users with the most, the fewest, any number of interactions, as a whole
    sensitive:FIELD=VALUE         all interactions of a twentieth of the users with items of a category; FIELD is a
                                  column of the dataset's .item file (ERASE)
    spam:N                        fake users, a twentieth as many as there are users, who each promote one of N
                                  unpopular items; they are added before the original is trained (ERASE)
    stream:K:REQUEST              K requests, which together are REQUEST (`stream.py`)

The exposure of the category, or of the promoted items, is measured. A request is drawn with the run's seed; it asks
for no one, so nothing of it is withheld.
"""

import dataclasses
import re
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction
from recbole.utils import FeatureType

from recbole_unlearn.data.sequences import SequenceSplits
from recbole_unlearn.data.source import Source
from recbole_unlearn.data.splits import DRAWN, Located, Splits, UnlearnData, append, divide
from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.settings import UnlearnConfig

SHARE = 0.05  # of the users who delete a category, and of fake users
FORMS = "core:5%, edge:5%, random:5%, sensitive:FIELD=VALUE, spam:N or stream:K:REQUEST"
_EXPECTED = {
    "core": r"(\d*\.?\d+)%", "edge": r"(\d*\.?\d+)%", "random": r"(\d*\.?\d+)%", "sensitive": r"([^=]+)=(.+)",
    "spam": r"([1-9]\d{0,5})", "stream": r"([1-9]\d{0,2}):((?!stream|spam).+)",
}  # fmt: skip


class Protocol(NamedTuple):
    """A request to draw."""

    kind: str
    values: tuple[str, ...]
    part: tuple[int, int] = (1, 1)  # of a stream: this one of so many

    @classmethod
    def read(cls, forget: Any) -> Self | None:
        """The protocol that ``forget`` names; None for a file, Python data and injected noise."""
        if isinstance(forget, cls) or not isinstance(forget, str):
            return forget if isinstance(forget, cls) else None
        kind, colon, rest = forget.partition(":")
        if not colon or kind not in _EXPECTED:
            return None
        found = re.fullmatch(_EXPECTED[kind], rest)
        none_or_all = found is not None and kind in ("core", "edge", "random") and not 0 < float(found[1]) < 100
        if found is None or none_or_all or (kind == "stream" and cls.read(found[2]) is None):
            raise UnlearnError(f"forget={shown(forget)} is not valid: expected {FORMS}.")
        return cls(kind, found.groups())

    @property
    def name(self) -> str:
        """As it is typed."""
        part = "" if self.part[1] == 1 else f", part {self.part[0]} of {self.part[1]}"
        return f"{self.kind}:{'='.join(self.values)}{'%' * (self.kind in ('core', 'edge', 'random'))}{part}"

    def load_column(self, config: UnlearnConfig) -> None:
        """Let the dataset have the column of a sensitive category; without `load_col` it has all."""
        if self.kind == "sensitive" and config["load_col"]:
            columns = config["load_col"].get("item") or [config["ITEM_ID_FIELD"]]
            config["load_col"] = {**config["load_col"], "item": list(dict.fromkeys([*columns, self.values[0]]))}

    def divided(self, source: Source, seed: int) -> UnlearnData:
        """The data with this request drawn, and divided by it."""
        if self.kind == "stream":
            raise UnlearnError("A stream makes many runs: give it on the command line, or use run_stream().")
        rng, splits = np.random.default_rng(seed), source.splits
        targets: torch.Tensor | None
        if self.kind == "spam":
            splits, located, targets = _with_spam(splits, int(self.values[0]), rng)
        else:
            located, targets = self._drawn(splits, rng)
        if not located.train.any() or located.train.all():
            raise UnlearnError(f"{self.name} deletes no interaction of this dataset, or all; ask for another share.")
        data = divide(splits, located, f"{DRAWN} {self.name}", source.clock, source.fitted)
        return dataclasses.replace(data, done=source.done, exposed=targets)

    def _drawn(self, splits: Splits, rng: np.random.Generator) -> tuple[Located, torch.Tensor | None]:
        train, targets = splits.train, None
        owners, hits = train.inter_feat[train.uid_field].numpy(), [np.ones(len(part), dtype=bool) for part in splits]
        users, counts = np.unique(owners, return_counts=True)
        order = rng.permutation(len(users))  # also of users with as many interactions
        if self.kind == "sensitive":
            targets = _of_category(train, *self.values)
            hits = [torch.isin(part.inter_feat[part.iid_field], targets).numpy() for part in splits]
            chosen, share = rng.permutation(np.unique(owners[hits[0]])), SHARE
        else:
            if self.kind != "random":
                order = order[np.argsort(counts[order] * (-1 if self.kind == "core" else 1), kind="stable")]
            chosen, share = users[order], float(self.values[0]) / 100
        # Of all users that have an id, which earlier parts of a stream do not change.
        chosen = chosen[: max(1, round(share * (train.user_num - 1) / self.part[1]))]
        owned = [np.isin(part.inter_feat[part.uid_field].numpy(), chosen) for part in splits]
        train_mask, valid, test = (own & hit for own, hit in zip(owned, hits, strict=True))
        return Located(train_mask, valid, test), targets


def _of_category(train: Dataset, field: str, value: str) -> torch.Tensor:
    """The items whose feature ``field`` is ``value``, or has it among its values."""
    feat: Any = train.item_feat
    is_there = feat is not None and field in feat.columns and field != train.iid_field
    if not is_there or train.field2type[field] not in (FeatureType.TOKEN, FeatureType.TOKEN_SEQ):
        raise UnlearnError(f"forget=sensitive:{shown(field)}=…: the .item file has no such column of words.")
    number = train.field2token_id[field].get(value)
    if number is None:
        some = ", ".join(map(str, train.field2id_token[field][1:11]))
        raise UnlearnError(f"No item has {shown(field)}={shown(value)}; the dataset has for example {some}.")
    column = feat[field]
    hits = (column == number).any(dim=1) if column.dim() > 1 else column == number
    return feat[train.iid_field][hits]


def _with_spam(splits: Splits, number: int, rng: np.random.Generator) -> tuple[Splits, Located, torch.Tensor]:
    """The splits with fake users, where their interactions are, and the items that they promote.

    A fake user has as many interactions as a real one drawn at random, with items by their popularity, and one with a
    target at 20 to 80 % of them, in the times of that real user. Targets are of the less popular half.
    """
    train = splits.train
    owners, items = (train.inter_feat[field].numpy() for field in (train.uid_field, train.iid_field))
    if getattr(train, "user_feat", None) is not None or isinstance(splits, SequenceSplits):
        raise UnlearnError("forget=spam:N adds users: it needs a general model, and no features of users.")
    counts = np.bincount(items, minlength=train.item_num)
    known = np.flatnonzero(counts)
    if number > len(known) // 2:
        raise UnlearnError(f"forget=spam:{number}: this dataset has only {len(known) // 2} unpopular items.")
    targets = rng.choice(known[np.argsort(counts[known], kind="stable")][: len(known) // 2], number, replace=False)
    rest = np.setdiff1d(known, targets)
    rows_of = np.split(np.argsort(owners, kind="stable"), np.cumsum(np.bincount(owners))[:-1])
    models = rng.choice(np.unique(owners), max(number, round(SHARE * (train.user_num - 1))))
    templates, fakes, picked = [], [], []
    for fake, model in enumerate(models):
        rows = rows_of[model]
        if train.time_field in train.inter_feat:
            rows = rows[np.argsort(train.inter_feat[train.time_field].numpy()[rows], kind="stable")]
        size = min(len(rows), len(rest))
        own = rng.choice(rest, size, replace=False, p=counts[rest] / counts[rest].sum())
        own[int(rng.uniform(0.2, 0.8) * size)] = targets[fake % number]
        templates.append(rows[:size])
        fakes.append(np.full(size, train.user_num + fake))
        picked.append(own)
    columns = dict(train.inter_feat[torch.from_numpy(np.concatenate(templates))].interaction)
    for field, ids in ((train.uid_field, fakes), (train.iid_field, picked)):
        columns[field] = torch.from_numpy(np.concatenate(ids)).to(columns[field].dtype)
    grown = Splits(append(train, Interaction(columns)), *(part.copy(part.inter_feat) for part in splits[1:]))
    names = np.concatenate([train.field2id_token[train.uid_field], [f"[spam-{n}]" for n in range(len(models))]])
    for part in grown:
        part.field2id_token = {**part.field2id_token, train.uid_field: names}
        part.field2token_id = {**part.field2token_id, train.uid_field: {name: at for at, name in enumerate(names)}}
    mask = np.arange(len(grown.train)) >= len(train)
    valid, test = (np.zeros(len(part), dtype=bool) for part in grown[1:])
    return grown, Located(mask, valid, test), torch.from_numpy(np.sort(targets))
