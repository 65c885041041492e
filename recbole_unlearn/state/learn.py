"""New interactions for a state: they are appended to its data, and a model is trained on all of it.

Users and items keep their numbers, and new ones follow. RecBole reads the new interactions with the state's settings:
it filters by value, makes labels and divides them into training, validation and test data. It does not count how many
a user has.

What was deleted stays out, and what is asked for: a row whose user, item or pair is in the suppression list.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction, cat_interactions
from recbole.utils import FeatureType, ModelType, init_seed

from recbole_unlearn.data import Candidates, ForgetRequest, Splits, ids_of, match, tokens
from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.recbole_compat import own_randomness
from recbole_unlearn.registry import quickest_exact
from recbole_unlearn.results.disclosure import coarse
from recbole_unlearn.state.context import Core, Span
from recbole_unlearn.state.database import LEARNED, REBUILT, RETRAINED
from recbole_unlearn.state.publish import final, replace_base, trained
from recbole_unlearn.state.verify import tables

WAYS = {"rebuild": REBUILT, "retrain": RETRAINED}


class Learned(NamedTuple):
    """The rows of new data by what became of them, the users and items that are new, and the training."""

    new: int
    users: int
    items: int
    known: int  # in the data already, or twice in the file
    deleted: int  # or asked for, and left out
    filtered: int  # by RecBole
    by: str = ""
    seconds: float | None = None  # None when nothing was new


def learn(core: Core, path: str | Path, by: str | None, older_than: Span | None) -> Learned:
    """Append new interactions to the data, and train a model on it; see :meth:`State.learn`."""
    by = by or ("rebuild" if quickest_exact(core.config.model_class).name == "rebuild" else "retrain")
    if by not in WAYS:
        raise UnlearnError(f"by={shown(by)} is not known; give {' or '.join(WAYS)}.")
    last, change = core.database.newest(), final(core, older_than).change
    live = core.at(change)
    retain = live.retained().retain
    scaled = _scaled(core, retain.train)
    rows = _read(core, path, retain.train)
    out = _left_out(core, rows)
    again = _known(core, rows, retain) & ~out
    left = rows[~out & ~again]
    counts = int(again.sum()), int(out.sum())
    if left.empty:
        return Learned(0, 0, 0, *counts, 0)
    parts = _divided(core, left, scaled)
    grown = _grown(retain, parts)
    new, before, after = sum(map(len, parts)), retain.train, grown.train
    users, items = after.user_num - before.user_num, after.item_num - before.item_num
    found = Learned(new, users, items, *counts, len(left) - new, WAYS[by])
    made, seconds = trained(core, grown, WAYS[by])

    def outdated() -> bool:
        return core.database.newest() != last and bool(_left_out(core, left).any())

    steps = {f"{name}_up_to": coarse(number) for name, number in found._asdict().items() if isinstance(number, int)}
    replace_base(core, LEARNED, live, change, made, outdated=outdated, by=WAYS[by], data=steps)
    return found._replace(seconds=seconds)


def _scaled(core: Core, train: Dataset) -> list[str]:
    """The columns besides the time that RecBole scaled to [0, 1]; refused are data of which a model reads more.

    New interactions are scaled by their own range, since that of the old ones is not known. Of RecBole's models for
    which a state can learn only DMF reads such a column.
    """
    config, columns = core.config, set(train.inter_feat.columns)
    floats = {field for field in columns if train.field2type[field] is FeatureType.FLOAT}
    scaled = floats & (columns if config["normalize_all"] else {*(config["normalize_field"] or ())})
    is_read = config["inter_matrix_type"] == "rating" or not config.model_class.__module__.startswith("recbole.")
    plain = train.feat_name_list == ["inter_feat"] and columns - floats == {train.uid_field, train.iid_field}
    general = config["MODEL_TYPE"] in (ModelType.GENERAL, ModelType.TRADITIONAL)
    if not general or not plain or (is_read and scaled - {train.time_field}):
        raise UnlearnError(
            f"{config['model']} has data with features, or reads columns that RecBole scaled as a whole, to which "
            "nothing can be appended. Train it on the new data with RecBole, then `requests adopt` the checkpoint."
        )
    return sorted(scaled - {train.time_field})


def _read(core: Core, path: str | Path, train: Dataset) -> pd.DataFrame:
    """The columns that RecBole needs, of all rows: tokens as text, and the others as numbers."""
    config, owners = core.config, [train.uid_field, train.iid_field]
    sources = [*(config["val_interval"] or ()), *(config["threshold"] or ())]
    made = {config["LABEL_FIELD"]} if config["threshold"] else set()
    fields = [*owners, *sorted({*train.inter_feat.columns, *sources} - {*owners} - made)]
    kept = []
    for name, table in tables(path):
        if missing := [field for field in fields if field not in table]:
            raise UnlearnError(f"{shown(name)} has no column {', '.join(missing)}, which the data of the state has.")
        columns = {}
        for field in fields:
            if field in owners:
                cells = pd.Series(tokens(table[field].tolist()), dtype=object)
                if not any(str(token).endswith(".0") for token in train.field2id_token[field]):
                    cells = cells.str.replace(r"^(\d+)\.0$", r"\1", regex=True)  # of a table with gaps
                odd = cells.isna() | cells.str.fullmatch(r"\[PAD\]|\[removed-\d+\]")
            else:
                cells = pd.to_numeric(table[field], errors="coerce").reset_index(drop=True)
                odd = ~np.isfinite(cells)
            if odd.any():
                what = "empty, or a reserved name" if field in owners else "not a number"
                raise UnlearnError(f"{shown(name)}: {field} is {what} in {int(odd.sum())} rows. Correct the file.")
            columns[field] = cells
        kept.append(pd.DataFrame(columns))
    return pd.concat(kept, ignore_index=True)


def _left_out(core: Core, rows: pd.DataFrame) -> np.ndarray:
    """Which rows (n,) were deleted, or are asked for."""
    return core.suppression().of(*(rows[core.config[field]] for field in ("USER_ID_FIELD", "ITEM_ID_FIELD")))


def _known(core: Core, rows: pd.DataFrame, retain: Splits) -> np.ndarray:
    """Which rows (n,) the data has already, or an earlier row."""
    train = retain.train
    times = rows[train.time_field] if train.time_field in train.inter_feat else np.nan
    frame = pd.DataFrame({"user": rows[train.uid_field], "item": rows[train.iid_field], "time": times})
    request = ForgetRequest(frame, "the new data", np.arange(len(rows)), "row")
    ids = ids_of(request, train)
    found = [match(request, *ids, Candidates(part), core.live.base.clock)[1] for part in retain]
    return np.any([*found, frame.duplicated()], axis=0)


def _divided(core: Core, rows: pd.DataFrame, scaled: list[str]) -> list[Dataset]:
    """The rows as training, validation and test data of RecBole, with ids of their own."""
    name, clock = core.config["dataset"], core.live.base.clock
    kinds = ["token", "token", *["float"] * (rows.shape[1] - 2)]
    with core.store.workplace() as work, own_randomness():
        header = [f"{field}:{kind}" for field, kind in zip(rows, kinds, strict=True)]
        rows.to_csv(work / f"{name}.inter", sep="\t", header=header, index=False)
        config = core.config.replace(
            data_path=str(work), load_col={"inter": list(rows)}, unload_col=None, benchmark_filename=None,
            user_inter_num_interval=None, item_inter_num_interval=None, normalize_all=None, field_separator="\t",
            normalize_field=[field for field in scaled if field in rows],
        )  # fmt: skip
        init_seed(config["seed"], config["reproducibility"])
        try:
            dataset = Dataset(config)
            if clock is not None:  # before RecBole rounds to float32
                times = dataset.inter_feat[dataset.time_field].to_numpy(dtype=np.float64)
                dataset.inter_feat[dataset.time_field] = clock(times)
            return list(dataset.build())
        except (ValueError, LookupError, NotImplementedError) as error:
            raise UnlearnError(f"RecBole cannot take the new interactions: {error}") from error


def _grown(retain: Splits, parts: list[Dataset]) -> Splits:
    """``retain`` with the interactions of ``parts`` at the end of each part, and new tokens after those it has."""
    train = retain.train
    names, numbers, ids = {**train.field2id_token}, {**train.field2token_id}, dict[str, torch.Tensor]()
    for field in (train.uid_field, train.iid_field):
        used = torch.cat([part.inter_feat[field] for part in parts]).unique().numpy()
        own, known = parts[0].field2id_token[field].astype(str), train.field2id_token[field].astype(str)
        names[field] = np.concatenate([known, own[used][~np.isin(own[used], known)]])
        numbers[field] = {token: number for number, token in enumerate(names[field])}
        ids[field] = torch.tensor([numbers[field].get(token, 0) for token in own])
    grown = []
    for part, more in zip(retain, parts, strict=True):
        columns = {field: more.inter_feat[field] for field in part.inter_feat.columns}
        columns |= {field: own[columns[field]] for field, own in ids.items()}
        made = part.copy(cat_interactions([part.inter_feat, Interaction(columns)]))
        made.field2id_token, made.field2token_id = names, numbers
        grown.append(made)
    return Splits(*grown)
