"""`recbole-unlearn evaluate`: all measures on three models that other code made, without our methods.

A model is a checkpoint of RecBole (all three then are), or what any engine can write:

    FILE.parquet                          columns of user, item (named as in the dataset) and score
    DIR/users.parquet, items.parquet      token and a list `vector`, whose dot product is the score
    DIR/users.npy, items.npy              vectors (n, d), (m, d); tokens, a line each, in users.txt, items.txt
    DIR/scores.npy                        scores (n, m), with the same two files of tokens
    DIR                                   an export of `recbole-unlearn requests export`

Such files become checkpoints of :class:`ScoreTable`, a model of RecBole that looks scores up. Users and items that
the retained data has must be in all files.
"""

import io
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import GeneralRecommender
from recbole.utils import InputType
from safetensors.torch import load as load_tensors
from torch import nn

from recbole_unlearn.data import Fields, Protocol, UnlearnData, carry_out, load, read_request, tokens
from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files import write_torch
from recbole_unlearn.log import without_warnings
from recbole_unlearn.pipeline import UnlearnResult, is_injected
from recbole_unlearn.quick_start import run_unlearn
from recbole_unlearn.recbole_compat import own_environment
from recbole_unlearn.settings import UnlearnConfig, read_regular

ROLES = ("original", "unlearned", "retrained")
_FORMS = "Give a checkpoint (.pth), a .parquet of scores, or a folder with vectors or scores (docs/judging.md)."


class ScoreTable(GeneralRecommender):
    """Scores from tables: products of vectors, or where `score_columns` is True the rows of users themselves."""

    input_type = InputType.PAIRWISE

    def __init__(self, config: UnlearnConfig, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.users = nn.Embedding(self.n_users, config["embedding_size"])
        self.items = nn.Embedding(0 if config["score_columns"] else self.n_items, config["embedding_size"])
        for table in (self.users, self.items):
            nn.init.zeros_(table.weight)

    def full_sort_predict(self, interaction: Interaction) -> torch.Tensor:
        """Scores of all items."""
        rows = self.users(interaction[self.USER_ID])
        return rows @ self.items.weight.T if len(self.items.weight) else rows

    def predict(self, interaction: Interaction) -> torch.Tensor:
        """Scores of pairs."""
        return self.full_sort_predict(interaction).gather(1, interaction[self.ITEM_ID][:, None])[:, 0]


class Tables(NamedTuple):
    """Rows of users and of items by RecBole's ids; without ``items`` those of users are scores."""

    users: torch.Tensor  # (n, d)
    items: torch.Tensor | None  # (m, d)

    def scores(self) -> torch.Tensor:
        """All scores (n, m)."""
        return self.users if self.items is None else self.users @ self.items.T


def evaluate_models(
    model: str | type | None = None, dataset: str | None = None, *, forget: Any = None,
    config_dict: Mapping[str, Any] | None = None, **arguments: Any,
) -> UnlearnResult:  # fmt: skip
    """Measure models that exist: ``original``, ``unlearned`` and, as the reference, ``retrained`` in ``config_dict``.

    The other arguments are those of :func:`~recbole_unlearn.quick_start.run_unlearn`.
    """
    values = dict(config_dict or {})
    places = {role: Path(str(values.pop(role))) for role in ROLES if values.get(role)}
    forget = values.pop("forget", None) if forget is None else forget
    if missing := [role for role in ROLES[:2] if role not in places] + ["forget"] * (forget is None):
        raise UnlearnError(f"evaluate needs --{missing[0]}=…. {_FORMS}")
    if is_injected(forget):
        raise UnlearnError(
            "evaluate needs the request that was unlearned: --forget=FILE, not noise that is injected now."
        )
    values |= {"placebo": False, "save_unlearned": False, "unlearn": "given"}
    values["compare"] = ["given_retrained"] if "retrained" in places else []
    own = [place.suffix != ".pth" for place in places.values()]
    if not any(own):
        paths = {role: str(place) for role, place in places.items() if role != "original"}
        return run_unlearn(
            model, dataset, forget=forget, checkpoint=places["original"], config_dict=values | paths, **arguments
        )
    if not all(own) or model is not None:
        raise UnlearnError(
            "evaluate compares like with like: three checkpoints, or three files of scores or vectors."
        )
    with tempfile.TemporaryDirectory(prefix="recbole-unlearn-") as work:
        values["relearn_epochs"] = 0
        paths = _as_checkpoints(places, Path(work), dataset, forget, values, arguments.get("config_files") or [])
        return run_unlearn(
            ScoreTable,
            dataset,
            forget=forget,
            checkpoint=paths.pop("original"),
            config_dict=values | paths,
            **arguments,
        )


def _as_checkpoints(
    places: Mapping[str, Path], work: Path, dataset: str | None, forget: Any, values: Mapping[str, Any],
    config_files: Any,
) -> dict[str, str]:  # fmt: skip
    """The files of ``places`` as checkpoints in ``work``; refused where they lack what they have to score."""
    values = {**values, "unlearn": "retrain", "compare": [], "embedding_size": 1, "score_columns": False}
    config = UnlearnConfig(ScoreTable, dataset, config_files, values)
    if (protocol := Protocol.read(forget)) is not None:
        protocol.load_column(config)
    with own_environment(), without_warnings():
        source = load(config)
    if protocol is not None:
        data = protocol.divided(source.splits, config["seed"], source.clock, source.fitted)
    else:
        data = carry_out(read_request(forget, Fields.of(config)), source, "file", config["on_missing"], None)
    tables = {role: _read(place, data, role == "original") for role, place in places.items()}
    are_scores = any(one.items is None for one in tables.values())
    if are_scores:
        tables = {role: Tables(one.scores(), None) for role, one in tables.items()}
    width, paths = max(one.users.shape[1] for one in tables.values()), {}
    config = config.replace(embedding_size=width, score_columns=are_scores)
    for role, (users, items) in tables.items():
        items = users[:0] if items is None else items
        # A dimension of zeros changes no product.
        state = {
            f"{side}.weight": nn.functional.pad(rows, (0, width - rows.shape[1]))
            for side, rows in (("users", users), ("items", items))
        }
        paths[role] = str(work / f"{role}.pth")
        write_torch(Path(paths[role]), {"config": config.to_recbole(), "epoch": 0, "state_dict": state})
    return paths


def _read(place: Path, data: UnlearnData, is_original: bool) -> Tables:
    """The tables of a model, in the order of RecBole's ids; users and items that it lacks get zeros, or the least."""
    train = data.retain.train
    fields = (train.uid_field, train.iid_field)
    try:
        named, scores = _contents(place, fields)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UnlearnError(f"{shown(place)} cannot be read as a model: {type(error).__name__}. {_FORMS}") from error
    ids = []
    needed = (data.full if is_original else data.retain).train.inter_feat
    for field, (names, _) in zip(fields, named, strict=True):
        known = train.field2token_id[field]
        ids.append(torch.tensor([known.get(name, 0) for name in names]))
        lacking = len(set(needed[field].tolist()) - set(ids[-1].tolist()))
        if lacking or len(set(names)) < len(names):
            what = f"lacks {lacking} values" if lacking else "has the same value twice"
            raise UnlearnError(
                f"{shown(place)} {what} of {field} among the data that the model is of. Correct the file."
            )
    parts = [rows for _, rows in named] if scores is None else [scores]
    if not all(np.isfinite(part).all() for part in parts):
        raise UnlearnError(
            f"{shown(place)} has scores or vectors that are not finite, or lacks pairs. Correct the file."
        )
    sizes = train.user_num, train.item_num
    if scores is None:
        if parts[0].shape[1:] != parts[1].shape[1:]:
            raise UnlearnError(
                f"{shown(place)} has vectors of different lengths for users and items. Correct the file."
            )
        found = [torch.zeros(size, part.shape[1]) for size, part in zip(sizes, parts, strict=True)]
        for own, at, part in zip(found, ids, parts, strict=True):
            own[at] = torch.from_numpy(part).float()
            own[0] = 0
        return Tables(*found)
    table = torch.full(sizes, float(scores.min()))
    table[ids[0][:, None], ids[1][None, :]] = torch.from_numpy(scores).float()
    return Tables(table, None)


Named = tuple[list[str], Any]  # tokens, and a row of numbers for each; None where a matrix has them


def _contents(place: Path, fields: tuple[str, str]) -> tuple[list[Named], np.ndarray | None]:
    """Tokens of users and of items with their vectors, or the scores (n, m)."""
    if place.is_file():
        frame = pd.read_parquet(io.BytesIO(read_regular(place)))
        columns = [_tokens(frame[field]) for field in fields]
        wide = pd.DataFrame({"user": columns[0], "item": columns[1], "score": frame["score"].astype(float)})
        table = wide.pivot(index="user", columns="item", values="score")
        return [(table.index.tolist(), None), (table.columns.tolist(), None)], table.to_numpy()
    names = [f"{side}.parquet" for side in ("users", "items")]
    if all((place / name).is_file() for name in names):
        frames = [pd.read_parquet(io.BytesIO(read_regular(place / name))) for name in names]
        if "vector" in frames[0]:
            return [(_tokens(frame["token"]), np.stack(frame["vector"].to_list())) for frame in frames], None
        stored = load_tensors(read_regular(place / "embeddings.safetensors"))
        return [
            (_tokens(frame["token"]), stored[side][frame["row"].to_numpy()].double().numpy())
            for side, frame in zip(("users", "items"), frames, strict=True)
        ], None
    listed = [read_regular(place / f"{side}.txt").decode().splitlines() for side in ("users", "items")]
    if (place / "scores.npy").is_file():
        scores = _array(place / "scores.npy")
        if scores.shape != (len(listed[0]), len(listed[1])):
            raise _other_number(place)
        return [(names, None) for names in listed], scores
    vectors = [_array(place / f"{side}.npy") for side in ("users", "items")]
    if [len(rows) for rows in vectors] != [len(names) for names in listed]:
        raise _other_number(place)
    return list(zip(listed, vectors, strict=True)), None


def _other_number(place: Path) -> UnlearnError:
    return UnlearnError(
        f"{shown(place)} has other numbers of tokens than of rows. Write a token for each row, a line each."
    )


def _tokens(column: pd.Series) -> list[str]:
    return [str(token) for token in tokens(column.tolist())]


def _array(path: Path) -> np.ndarray:
    """A matrix of numbers, read as data."""
    found = np.load(io.BytesIO(read_regular(path)), allow_pickle=False)
    if found.ndim != 2 or found.dtype.kind not in "fiu":
        raise ValueError("not a matrix of numbers")
    return found.astype(np.float64)
