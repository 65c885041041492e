"""Which sequential models can be unlearned, and which of RecBole's splits of their data; refused before any data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recbole_unlearn.errors import UnlearnError

_WITH_USERS = ("Caser", "FPMC", "TransRec", "HGN", "HRM", "NPE")  # with a row for every user
# Rows of users, items or values of features that methods do not find in these models yet: what is deleted would stay.
_RETRAINED_ONLY = ("RepeatNet", "FEARec", "SASRecF", "GRU4RecF", "FDSA", *_WITH_USERS)
MODELS = (
    "SASRec", "GRU4Rec", "NARM", "STAMP", "NextItNet", "SRGNN", "GCSAN", "LightSANs", "CORE", "SINE",
    *_RETRAINED_ONLY,
)  # fmt: skip
_REASONS = {
    "DIEN": "it makes windows of its own",
    "DIN": "it is trained and measured on labelled interactions",
    "S3Rec": "it is trained in two stages, of which the first leaves a file",
    "BERT4Rec": "it masks items of a history at random, also when it is measured",
    "SHAN": "it reads histories that are turned round when they are loaded",
}
ONE_NEGATIVE = {
    "distribution": "uniform", "sample_num": 1, "alpha": 1.0, "dynamic": False, "candidate_num": 0,
}  # fmt: skip


def refuse_model(name: str, model: type) -> None:
    """Refuse a sequential model that is none of those above, nor derived from one."""
    if _is_one_of(model, MODELS):
        return
    reason = f": {_REASONS[name]}" if name in _REASONS else ""
    raise UnlearnError(
        f"{name} is a sequential model that cannot be unlearned yet{reason}. These can: {', '.join(MODELS)}."
    )


def refuse_all_but_retraining(name: str, model: type) -> None:
    """Refuse a model whose rows of what is gone cannot be found, for methods that keep the other rows."""
    if _is_one_of(model, _RETRAINED_ONLY):
        raise UnlearnError(
            f"{name} keeps what it knows of users, items or features where only retraining reaches it. Use retrain."
        )


def has_users(model: type) -> bool:
    """Whether a model has a row for every user."""
    return _is_one_of(model, _WITH_USERS)


def _is_one_of(model: type, names: tuple[str, ...]) -> bool:
    """Whether a model is one of these of RecBole, or derived from one."""
    return any(base.__name__ in names and base.__module__.startswith("recbole.") for base in model.__mro__)


def refuse_transform(transform: str | None) -> None:
    """Refuse histories that RecBole's loaders change: measures ask at histories as they are."""
    if transform is not None:
        raise UnlearnError(
            f"transform={transform} changes histories as they are loaded, which does not work yet: leave it out."
        )


def refuse_split(eval_args: Mapping[str, Any]) -> None:
    """Refuse all but one window a user for validation and one for test, in the order of time."""
    if eval_args.get("split") != {"LS": "valid_and_test"} or eval_args.get("order") != "TO":
        raise UnlearnError(
            "Sequential models are unlearned with each user's last interaction as test and the one before as "
            "validation. Use --eval_args='{split: {LS: valid_and_test}, order: TO, mode: full}'."
        )
