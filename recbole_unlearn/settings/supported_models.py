"""Which models can be unlearned, and with which of RecBole's settings; others are refused before data is loaded."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import recbole
from recbole.config import Config
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType

from recbole_unlearn.errors import UnlearnError, nearest, one_line
from recbole_unlearn.settings.inputs import read_yaml
from recbole_unlearn.text import properties_dir

SUPPORTED_TYPES = (
    ModelType.GENERAL, ModelType.CONTEXT, ModelType.TRADITIONAL, ModelType.SEQUENTIAL, ModelType.KNOWLEDGE,
)  # fmt: skip
_WITH_USERS = ("Caser", "FPMC", "TransRec", "HGN", "SHAN", "HRM", "NPE")  # with a row for every user
SEQUENTIAL = (
    "SASRec", "GRU4Rec", "BERT4Rec", "NARM", "STAMP", "NextItNet", "SRGNN", "GCSAN", "LightSANs", "CORE", "FEARec",
    "SINE", "RepeatNet", "SASRecF", "GRU4RecF", "FDSA", *_WITH_USERS,
)  # fmt: skip
KNOWLEDGE = ("CKE", "CFKG", "KGCN", "KTUP")
_REASONS = read_yaml(properties_dir() / "refused_models.yaml")  # by what is refused, and by model
_USER_BY_USER = ("FISM", "NAIS")  # whose full sort repeats a user's history for every item
_TRANSFORMS = {"BERT4Rec": "mask_itemseq", "SHAN": "inverse_itemseq"}  # that models need for histories


def model_names() -> list[str]:
    """The models of the installed RecBole, from its property files."""
    folder = Path(recbole.__file__).parent / "properties" / "model"
    return sorted(path.stem for path in folder.glob("*.yaml"))


def is_recommender(found: Any) -> bool:
    """Whether ``found`` is a model class of RecBole, or derived from one."""
    return isinstance(found, type) and issubclass(found, AbstractRecommender)


def _derives(model: type, names: tuple[str, ...]) -> bool:
    """Whether a model is one of these of RecBole, or derived from one."""
    return any(base.__name__ in names and base.__module__.startswith("recbole.") for base in model.__mro__)


def refuse_model(name: str, model: Any) -> None:
    """Refuse a model of a type, or a sequential or knowledge-aware model, that cannot be unlearned."""
    reason = f": {_REASONS['all'][name]}" if name in _REASONS["all"] else ""
    if model.type not in SUPPORTED_TYPES:
        raise UnlearnError(
            f"{name} is a {model.type.name.lower()} model, which cannot be unlearned yet. General, context-aware, "
            "many sequential and some knowledge-aware models can."
        )
    if _derives(model, ("RaCT",)):
        raise UnlearnError(f"{name} cannot be unlearned{reason}. MultiVAE and RecVAE are of its kind, and can.")
    if model.type is ModelType.SEQUENTIAL and not _derives(model, SEQUENTIAL):
        raise UnlearnError(
            f"{name} is a sequential model that cannot be unlearned yet{reason}. These can: {', '.join(SEQUENTIAL)}."
        )
    if model.type is ModelType.KNOWLEDGE and not _derives(model, KNOWLEDGE):
        raise UnlearnError(
            f"{name} is a knowledge-aware model that cannot be unlearned{reason}. Use {', '.join(KNOWLEDGE[:-1])} or "
            f"{KNOWLEDGE[-1]}, or train {name} again with RecBole on data without the deleted interactions."
        )


def refuse_settings(config: Config) -> None:
    """Refuse RecBole's settings with which a sequential or knowledge-aware model cannot be unlearned."""
    columns = config["load_col"] if config.model_class.type is ModelType.KNOWLEDGE else None
    if missing := [suffix for suffix in ("kg", "link") if columns is not None and not columns.get(suffix)]:
        raise UnlearnError(
            f"load_col leaves out {' and '.join(missing)}, and {config['model']} reads a knowledge graph. Add for "
            "example kg: [head_id, relation_id, tail_id] and link: [item_id, entity_id]."
        )
    if config.model_class.type is not ModelType.SEQUENTIAL:
        return
    split, order = config["eval_args"].get("split"), config["eval_args"].get("order")
    if split != {"LS": "valid_and_test"} or order != "TO":
        raise UnlearnError(
            "Sequential models are unlearned with each user's last interaction as test and the one before as "
            "validation. Use --eval_args='{split: {LS: valid_and_test}, order: TO, mode: full}'."
        )
    given = config["transform"]
    needed = next((name for base, name in _TRANSFORMS.items() if _derives(config.model_class, (base,))), None)
    if given != needed:
        raise UnlearnError(
            f"transform={given} changes histories as they are loaded, and {config['model']} is not made for that: "
            f"{f'use transform={needed}' if needed else 'leave it out'}."
        )
    if needed == "mask_itemseq" and int(config["mask_ratio"] * config["MAX_ITEM_LIST_LENGTH"]) < 1:
        raise UnlearnError(
            f"mask_ratio={config['mask_ratio']} of MAX_ITEM_LIST_LENGTH={config['MAX_ITEM_LIST_LENGTH']} is not one "
            "item, and there would be nothing to learn: raise one of them."
        )


def pushes_all_items(config: Config) -> bool:
    """Whether a sequential model's loss is over all items, including items without interactions."""
    return config["MODEL_TYPE"] == ModelType.SEQUENTIAL and config["loss_type"] in ("CE", "NLL")


def has_users(model: type) -> bool:
    """Whether a sequential model has a row for every user."""
    return _derives(model, _WITH_USERS)


def only_retrained(model: type) -> str | None:
    """Why no method can work on the weights of a model; None where it can."""
    return next((reason for name, reason in _REASONS["all but retraining"].items() if _derives(model, (name,))), None)


def scores_pairs(model: type[AbstractRecommender]) -> bool:
    """Whether a model takes every pair of a user and an item through its layers, instead of multiplying matrices."""
    own = model.full_sort_predict is not AbstractRecommender.full_sort_predict
    return model.type in (ModelType.GENERAL, ModelType.CONTEXT) and (not own or _derives(model, _USER_BY_USER))


def typed_class(text: str) -> type:
    """The class of `package.module:Class`, of the command line or a grid: no checkpoint or data can name code."""
    module, _, name = text.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), name]):
        raise UnlearnError(f"--model={text:.200} is not package.module:Class; for example --model=my_models:MyBPR.")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # the user's own code may fail in any way
        where = f"The module {module}, looked for in {os.getcwd()} too,"
        raise UnlearnError(f"{where} cannot be imported: {one_line(error)}. Check --model.") from error
    found = getattr(imported, name, None)
    if found is None:
        classes = [key for key, value in vars(imported).items() if is_recommender(value)]
        raise UnlearnError(f"The module {module} has no class {name}.{nearest(name, classes)} Check --model.")
    if not is_recommender(found):
        raise UnlearnError(f"{text} is not a model of RecBole; derive the class from one of its recommenders.")
    return found
