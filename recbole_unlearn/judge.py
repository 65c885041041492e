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
from typing import Any

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
SIDES = ("users", "items")
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
    if any(own) and (not all(own) or model is not None):
        raise UnlearnError(
            "evaluate compares like with like: three checkpoints, or three files of scores or vectors."
        )
    with tempfile.TemporaryDirectory(prefix="recbole-unlearn-") as work:
        if any(own):
            model, values["relearn_epochs"] = ScoreTable, 0
            files = arguments.get("config_files") or []
            places = _as_checkpoints(places, Path(work), dataset, forget, values, files)
        paths = {role: str(place) for role, place in places.items()}
        start, values = paths.pop("original"), values | paths
        return run_unlearn(model, dataset, forget=forget, checkpoint=start, config_dict=values, **arguments)


def _as_checkpoints(
    places: Mapping[str, Path], work: Path, dataset: str | None, forget: Any, values: Mapping[str, Any],
    config_files: Any,
) -> dict[str, Path]:  # fmt: skip
    """The files of ``places`` as checkpoints in ``work``; refused where they lack what they have to score."""
    values = {**values, "unlearn": "retrain", "compare": [], "embedding_size": 1, "score_columns": False}
    config = UnlearnConfig(ScoreTable, dataset, config_files, values)
    if (protocol := Protocol.read(forget)) is not None:
        protocol.load_column(config)
    with own_environment(), without_warnings():
        source = load(config)
    if protocol is not None:
        data = protocol.divided(source, config["seed"])
    else:
        data = carry_out(read_request(forget, Fields.of(config)), source, "file", config["on_missing"], None)
    tables = {role: _read(place, data, role == "original") for role, place in places.items()}
    are_scores = not all(len(items) for _, items in tables.values())
    if are_scores:  # then all of them have scores
        tables = {k: (users @ items.T if len(items) else users, items[:0]) for k, (users, items) in tables.items()}
    width, paths = max(users.shape[1] for users, _ in tables.values()), {}
    config = config.replace(embedding_size=width, score_columns=are_scores)
    for role, (users, items) in tables.items():
        # A dimension of zeros changes no product.
        state = {
            f"{side}.weight": nn.functional.pad(rows, (0, width - rows.shape[1]))
            for side, rows in (("users", users), ("items", items))
        }
        paths[role] = work / f"{role}.pth"
        write_torch(paths[role], {"config": config.to_recbole(), "epoch": 0, "state_dict": state})
    return paths


def _read(place: Path, data: UnlearnData, is_original: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors of users and of items by RecBole's ids; or scores (n, m), and no items.

    Users and items that the model lacks get zeros, or the least score.
    """
    train = data.retain.train
    fields, sizes = (train.uid_field, train.iid_field), (train.user_num, train.item_num)
    try:
        named, parts = _contents(place, fields)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UnlearnError(f"{shown(place)} cannot be read as a model: {type(error).__name__}. {_FORMS}") from error
    problem, ids = "", []
    needed = (data.full if is_original else data.retain).train.inter_feat
    for field, names in zip(fields, named, strict=True):
        known = train.field2token_id[field]
        ids.append(torch.tensor([known.get(name, 0) for name in names]))
        lacking = len(set(needed[field].tolist()) - set(ids[-1].tolist()))
        if lacking or len(set(names)) < len(names):
            what = f"lacks {lacking} values" if lacking else "has the same value twice"
            problem = problem or f"{what} of {field} among the data that the model is of"
    are_vectors = len(parts) == 2
    if [len(names) for names in named] != ([len(rows) for rows in parts] if are_vectors else [*parts[0].shape]):
        problem = "has other numbers of tokens than of rows"
    elif not problem and not all(np.isfinite(part).all() for part in parts):
        problem = "has scores or vectors that are not finite, or lacks pairs"
    elif not problem and are_vectors and parts[0].shape[1:] != parts[1].shape[1:]:
        problem = "has vectors of different lengths for users and items"
    if problem:
        raise UnlearnError(f"{shown(place)} {problem}. Correct the file.")
    if not are_vectors:
        table = torch.full(sizes, float(parts[0].min()))
        table[ids[0][:, None], ids[1][None, :]] = torch.from_numpy(parts[0]).float()
        return table, table[:0]
    users, items = (torch.zeros(size, part.shape[1]) for size, part in zip(sizes, parts, strict=True))
    for own, at, part in zip((users, items), ids, parts, strict=True):
        own[at] = torch.from_numpy(part).float()
        own[0] = 0
    return users, items


def _contents(place: Path, fields: tuple[str, str]) -> tuple[list[list[str]], list[np.ndarray]]:
    """Tokens of users and of items; and the vectors of both, or one matrix of scores (n, m)."""
    if place.is_file():
        frame = pd.read_parquet(io.BytesIO(read_regular(place)))
        users, items = (_tokens(frame[field]) for field in fields)
        wide = pd.DataFrame({"user": users, "item": items, "score": frame["score"].astype(float)})
        table = wide.pivot(index="user", columns="item", values="score")
        return [table.index.tolist(), table.columns.tolist()], [table.to_numpy()]
    files = [place / f"{side}.parquet" for side in SIDES]
    if all(file.is_file() for file in files):
        frames = [pd.read_parquet(io.BytesIO(read_regular(file))) for file in files]
        names = [_tokens(frame["token"]) for frame in frames]
        if "vector" in frames[0]:
            return names, [np.stack(frame["vector"].to_list()) for frame in frames]
        stored = load_tensors(read_regular(place / "embeddings.safetensors"))
        rows = (stored[side][frame["row"].to_numpy()] for side, frame in zip(SIDES, frames, strict=True))
        return names, [part.double().numpy() for part in rows]
    names = [read_regular(place / f"{side}.txt").decode().splitlines() for side in SIDES]
    arrays = ("scores",) if (place / "scores.npy").is_file() else SIDES
    return names, [_array(place / f"{name}.npy") for name in arrays]


def _tokens(column: pd.Series) -> list[str]:
    return [str(token) for token in tokens(column.tolist())]


def _array(path: Path) -> np.ndarray:
    """A matrix of numbers, read as data."""
    found = np.load(io.BytesIO(read_regular(path)), allow_pickle=False)
    if found.ndim != 2 or found.dtype.kind not in "fiu":
        raise ValueError("not a matrix of numbers")
    return found.astype(np.float64)
