"""Which sequential models can be unlearned, and which of RecBole's splits of their data; refused before any data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from recbole_unlearn.errors import UnlearnError

if TYPE_CHECKING:
    from recbole.config import Config  # `--help` reads the names of models, and does not wait for RecBole

_WITH_USERS = ("Caser", "FPMC", "TransRec", "HGN", "SHAN", "HRM", "NPE")  # with a row for every user
WITH_FEATURES = ("SASRecF", "GRU4RecF", "FDSA")  # they read features of items
MODELS = (
    "SASRec", "GRU4Rec", "BERT4Rec", "NARM", "STAMP", "NextItNet", "SRGNN", "GCSAN", "LightSANs", "CORE", "FEARec",
    "SINE", "RepeatNet", *WITH_FEATURES, *_WITH_USERS,
)  # fmt: skip
_REASONS = {
    "DIEN": "it makes windows of its own",
    "DIN": "it is trained and measured on labelled interactions",
    "S3Rec": "it is trained in two stages, of which the first leaves a file",
    "GRU4RecKG": "it needs vectors of entities from files that RecBole does not ship",
    "KSR": "it needs vectors of entities from files that RecBole does not ship",
}
_TRANSFORMS = {"BERT4Rec": "mask_itemseq", "SHAN": "inverse_itemseq"}  # what models need done to histories
_ONE_NEGATIVE = {
    "distribution": "uniform", "sample_num": 1, "alpha": 1.0, "dynamic": False, "candidate_num": 0,
}  # fmt: skip


def refuse_model(name: str, model: type) -> None:
    """Refuse a sequential model that is none of those above, nor derived from one."""
    if not _is_one_of(model, MODELS):
        raise refusal(name)


def refusal(name: str) -> UnlearnError:
    """What is said of a sequential model that is refused."""
    reason = f": {_REASONS[name]}" if name in _REASONS else ""
    return UnlearnError(
        f"{name} is a sequential model that cannot be unlearned yet{reason}. These can: {', '.join(MODELS)}."
    )


def negatives(loss: str | None) -> dict[str, Any] | None:
    """How training draws negatives: not at all for a loss over all items, otherwise RecBole's one."""
    return None if loss == "CE" else dict(_ONE_NEGATIVE)


def pushes_all_items(config: Config) -> bool:
    """Whether a sequential model's loss is over all items, so that it reads also those that nobody has."""
    return config["MODEL_TYPE"].name == "SEQUENTIAL" and config["loss_type"] in ("CE", "NLL")


def has_users(model: type) -> bool:
    """Whether a model has a row for every user."""
    return _is_one_of(model, _WITH_USERS)


def _is_one_of(model: type, names: tuple[str, ...]) -> bool:
    """Whether a model is one of these of RecBole, or derived from one."""
    return any(base.__name__ in names and base.__module__.startswith("recbole.") for base in model.__mro__)


def refuse_transform(config: Config) -> None:
    """Refuse a transform of histories that is not the model's own: others draw what nobody reads."""
    model, given = config.model_class, config["transform"]
    needed = next((name for base, name in _TRANSFORMS.items() if _is_one_of(model, (base,))), None)
    if given != needed:
        way_out = f"use transform={needed}" if needed else "leave it out"
        raise UnlearnError(
            f"transform={given} changes histories as they are loaded, and {config['model']} is not made for that: "
            f"{way_out}."
        )
    if needed == "mask_itemseq" and int(config["mask_ratio"] * config["MAX_ITEM_LIST_LENGTH"]) < 1:
        raise UnlearnError(
            f"mask_ratio={config['mask_ratio']} of MAX_ITEM_LIST_LENGTH={config['MAX_ITEM_LIST_LENGTH']} is not one "
            "item, and there would be nothing to learn: raise one of them."
        )


def refuse_split(eval_args: Mapping[str, Any]) -> None:
    """Refuse all but one window a user for validation and one for test, in the order of time."""
    if eval_args.get("split") != {"LS": "valid_and_test"} or eval_args.get("order") != "TO":
        raise UnlearnError(
            "Sequential models are unlearned with each user's last interaction as test and the one before as "
            "validation. Use --eval_args='{split: {LS: valid_and_test}, order: TO, mode: full}'."
        )
