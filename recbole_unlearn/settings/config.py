"""The configuration: RecBole's `Config` with this plugin's `properties/` merged in.

Order, later wins: RecBole's own defaults, then `properties/overall.yaml`, `model_type/`, `model/`,
`dataset/` and `model_dataset/` of this plugin, then config files, then a dict or the command line.
A method's settings (`properties/method/NAME.yaml`) are kept apart, because one run may compare several
methods that share a key; see :meth:`UnlearnConfig.method_values`.

Three habits of RecBole's `Config` are left out on purpose: it reads `sys.argv` (also pytest's and
Ray's), it calls `eval` on strings, and it silently keeps a key that nobody knows.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import recbole
import yaml
from recbole.config import Config
from recbole.utils import EvaluatorType, ModelType, dataset_arguments

from recbole_unlearn import recbole_compat
from recbole_unlearn.errors import UnlearnError, nearest
from recbole_unlearn.log import on_terminal
from recbole_unlearn.settings import catalogue, declare, knowledge, sequential
from recbole_unlearn.settings.groups import GROUPS
from recbole_unlearn.settings.recbole_values import (
    RECBOLE,
    UNLISTED,
    Known,
    refuse_code,
    refuse_impossible,
    refuse_paths,
    refuse_unmeasured,
)
from recbole_unlearn.settings.yaml_files import YamlLoader, properties_dir, read_yaml

# How a run goes, not what comes out of it: taken over from a config that somebody holds, never from a file.
_OF_THIS_MACHINE = ("eval_batch_size", "show_progress", "state")
SUPPORTED_TYPES = (
    ModelType.GENERAL, ModelType.CONTEXT, ModelType.TRADITIONAL, ModelType.SEQUENTIAL, ModelType.KNOWLEDGE,
)  # fmt: skip


def model_names() -> list[str]:
    """The models this RecBole ships, from its property files."""
    folder = Path(recbole.__file__).parent / "properties" / "model"
    return sorted(path.stem for path in folder.glob("*.yaml"))


def is_recommender(found: Any) -> bool:
    """Whether something is a model class of RecBole, or derived from one."""
    # Here, because it brings all layers of RecBole's models along, which most commands do not need.
    from recbole.model.abstract_recommender import AbstractRecommender

    return isinstance(found, type) and issubclass(found, AbstractRecommender)


def own_settings() -> Mapping[str, declare.Declared]:
    """The declarations of this plugin and of all methods, by key; RecBole reads none of them."""
    return _declarations((*GROUPS.values(), *(method.settings for method in catalogue.methods())))


@functools.lru_cache(maxsize=4)
def _declarations(groups: tuple[type, ...]) -> Mapping[str, declare.Declared]:
    return {key: about for group in groups for key, about in declare.declared(group).items()}


def about(key: str) -> declare.Declared | Known:
    """What is known of a key, ours or RecBole's."""
    return own_settings().get(key) or RECBOLE.get(key, Known())


class _Trusted(dict[str, Any]):
    """Settings of a config that the user holds: taken as they are, also what only the user's own classes read."""


class UnlearnConfig(Config):
    """RecBole's configuration with the settings of an unlearning run.

    Args:
        model: name of a RecBole model, or a model class.
        dataset: name of the dataset.
        config_file_list: YAML files in RecBole's manner.
        config_dict: settings that win over the files.
        inherited: settings of an existing checkpoint. They win over all property files, and what the user sets wins
            over them; keys that neither RecBole nor the model knows are left out.

    """

    leaves_curves: bool = True  # see without_curves

    def __init__(
        self,
        model: str | type | None = None,
        dataset: str | None = None,
        config_file_list: list[str] | None = None,
        config_dict: Mapping[str, Any] | None = None,
        inherited: Mapping[str, Any] | None = None,
    ) -> None:
        self.inherited = inherited if isinstance(inherited, _Trusted) else dict(inherited or {})
        try:
            super().__init__(model, dataset, config_file_list, config_dict)
        except (
            ValueError,
            TypeError,
            LookupError,
            NotImplementedError,
            RuntimeError,
            AttributeError,
        ) as error:
            reason = str(error.args[0] if error.args else error).split("\n")[0]
            raise UnlearnError(f"RecBole does not accept these settings: {reason}") from error
        if self["eval_type"] != EvaluatorType.RANKING:
            raise UnlearnError(
                f"metrics={self['metrics']} are not ranking metrics; unlearning is measured by ranking. "
                "Use for example --metrics='[Recall,NDCG]' --valid_metric=NDCG@20 --eval_args='{mode: full}'."
            )
        if self.model_class.type is ModelType.SEQUENTIAL:
            sequential.refuse_split(self["eval_args"])
            sequential.refuse_transform(self)
            self._name_transformed_fields()
        if self.model_class.type is ModelType.KNOWLEDGE:
            knowledge.refuse_columns(self.model, self["load_col"])
        refuse_code(self)
        refuse_paths(self)
        if not self.inherited:  # with a model that exists, there may be nothing to train
            refuse_unmeasured(self)

    def compatibility_settings(self) -> None:
        """Restore the numpy names RecBole reads, then let it set its own."""
        recbole_compat.restore_numpy_names()
        super().compatibility_settings()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A config that comes to another process brings the names along that RecBole needs there."""
        self.__dict__.update(state)
        self.compatibility_settings()

    def _build_yaml_loader(self) -> type:
        return YamlLoader

    def _load_config_files(self, file_list: list[str] | None) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for file in file_list or []:
            merged.update(read_yaml(Path(file)))
        return merged

    def _update_internal_config_dict(self, file: str) -> dict[str, Any]:
        """As RecBole, for one of its property files."""
        found = read_yaml(Path(file))
        self.internal_config_dict.update(found)
        return found

    def _load_cmd_line(self) -> dict[str, Any]:
        return {}

    def _convert_config_dict(self, config_dict: Mapping[str, Any]) -> dict[str, Any]:
        return {key: _literal(value) for key, value in config_dict.items()}

    def _get_model_and_dataset(self, model: Any, dataset: str | None) -> tuple[str, type, str]:
        model = model or self.external_config_dict.get("model")
        dataset = dataset or self.external_config_dict.get("dataset")
        if not model:
            raise UnlearnError("No model given: add --model=LightGCN, or --checkpoint=FILE to read it from.")
        if not dataset:
            raise UnlearnError("No dataset given: add --dataset=ml-100k, or --checkpoint=FILE.")
        if isinstance(model, str) and model not in model_names():
            raise UnlearnError(
                f"Unknown model {model!r}.{nearest(model, model_names())} "
                f"RecBole {recbole.__version__} has {len(model_names())} models; a model of your own is given as "
                "--model=package.module:Class, or as the class in Python."
            )
        if not isinstance(model, str) and not is_recommender(model):
            raise UnlearnError(
                f"{model!r:.200} is not a model class of RecBole; derive it from one of its recommenders."
            )
        if not re.fullmatch(r"\w[\w.+-]{0,199}", str(dataset)):
            raise UnlearnError(f"dataset={dataset!r} is not a name; give the folder with --data_path.")
        with recbole_compat.anomaly_mode_kept():
            return super()._get_model_and_dataset(model, str(dataset))

    def _load_internal_config_dict(self, model: str, model_class: Any, dataset: str) -> None:
        super()._load_internal_config_dict(model, model_class, dataset)
        if model_class.type not in SUPPORTED_TYPES:
            raise UnlearnError(
                f"{model} is a {model_class.type.name.lower()} model, which cannot be unlearned yet. General, "
                "context-aware, many sequential and some knowledge-aware models can."
            )
        if model_class.type is ModelType.SEQUENTIAL:
            sequential.refuse_model(model, model_class)
        if model_class.type is ModelType.KNOWLEDGE:
            knowledge.refuse_model(model, model_class)
        kind = model_class.type.name.lower()
        for name in (
            "overall",
            f"model_type/{kind}",
            f"model/{model}",
            f"dataset/{dataset}",
            f"model_dataset/{model}-{dataset}",
        ):
            file = properties_dir() / f"{name}.yaml"
            if file.is_file():
                self.internal_config_dict.update(read_yaml(file))
        self._inherit(model_class)
        self._refuse_unknown_keys(model_class)
        refuse_impossible(self.external_config_dict, self.internal_config_dict, own_settings())
        self._refuse_other_data()

    def _known_keys(self, model_class: type) -> set[str]:
        """What RecBole's files, ours, and the model's own source name."""
        listed = {key for group in self.parameters.values() for key in group}
        return set(self.internal_config_dict) | UNLISTED | _keys_read_by(model_class) | listed

    def _inherit(self, model_class: type) -> None:
        """Take over the settings of an existing checkpoint or config."""
        if not isinstance(self.inherited, _Trusted):
            methods = {
                key for name in self.method_names() for key in declare.names(catalogue.get(name).settings)
            }
            known = self._known_keys(model_class) | methods
            self.inherited = {key: value for key, value in self.inherited.items() if key in known}
            refuse_impossible(self.inherited, self.internal_config_dict, own_settings())
        self.internal_config_dict.update(self.inherited)

    def _refuse_unknown_keys(self, model_class: type) -> None:
        known = self._known_keys(model_class)
        chosen = self.method_names()
        for name in chosen:
            known |= set(declare.names(catalogue.get(name).settings))
        for key in self.external_config_dict:
            if key in known:
                continue
            if owners := catalogue.owners(key):
                raise UnlearnError(
                    f"{key} is a setting of {', '.join(owners)}, but this run uses {', '.join(chosen)}."
                )
            raise UnlearnError(f"Unknown setting {key!r}.{nearest(key, known)} --help lists all settings.")

    def _refuse_other_data(self) -> None:
        """A model that exists was trained on one split of one dataset; no setting may draw another."""
        for key in [*dataset_arguments, "seed", "eval_args", "repeatable"]:
            if key in self.inherited and key in self.external_config_dict:
                old, new = self.inherited[key], self.external_config_dict[key]
                if old != new:
                    raise UnlearnError(
                        f"{key}={new!r} differs from the checkpoint's {old!r}, so the data would be split "
                        f"in another way than the model was trained on. Leave {key} out."
                    )

    def _init_device(self) -> None:
        """As RecBole, which writes ``gpu_id`` to CUDA_VISIBLE_DEVICES; where only the latter is set, it stays."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None and "gpu_id" not in {**self.inherited, **self.external_config_dict}:
            self.final_config_dict["gpu_id"] = visible
        super()._init_device()

    def _set_default_parameters(self) -> None:
        if self.model_class.type is ModelType.SEQUENTIAL:
            self._sample_as_the_loss_needs()
        data_path = self.external_config_dict.get("data_path", self.inherited.get("data_path"))
        super()._set_default_parameters()
        if self.dataset == "ml-100k" and data_path:
            # RecBole always takes its own copy of ml-100k; a folder the user names comes first.
            folder = Path(data_path) / self.dataset
            if folder.is_dir():
                self.final_config_dict["data_path"] = str(folder)
        if "show_progress" not in {**self.inherited, **self.external_config_dict} and not on_terminal():
            self.final_config_dict["show_progress"] = False

    def _sample_as_the_loss_needs(self) -> None:
        """No negatives for a loss over all items, RecBole's one for others, unless somebody chose."""
        if "train_neg_sample_args" not in {**self.inherited, **self.external_config_dict}:
            loss = self.final_config_dict.get("loss_type")
            self.final_config_dict["train_neg_sample_args"] = sequential.negatives(loss)

    def _name_transformed_fields(self) -> None:
        """Let RecBole's transform write the names of the fields it adds, which models read when they are built."""
        from recbole.data.transform import construct_transform  # brings all of RecBole's data along

        construct_transform(self)

    def method_names(self) -> list[str]:
        """The methods of this run: the one asked for and those it is compared with."""
        values = {**self.internal_config_dict, **self.external_config_dict}
        return [str(values["unlearn"]), *declare.as_list(values["compare"])]

    def usual_values(self, name: str) -> dict[str, Any]:
        """Settings of method ``name`` as its property files have them for this model and dataset."""
        return catalogue.values(name, self.model, self.dataset, self.model_class.type.name.lower())

    def method_values(self, name: str) -> dict[str, Any]:
        """Settings of method ``name``: its property files, then what a saved ensemble or the user set."""
        values = self.usual_values(name)
        chosen = {**self.inherited, **self.external_config_dict}
        return {key: chosen.get(key, default) for key, default in values.items()}

    def model_values(self) -> dict[str, Any]:
        """What kind of model it is: its name, its dataset's, and the settings that its own source reads."""
        values = {"model": self["model"], "dataset": self["dataset"]}
        for key in _keys_read_by(self.model_class) & set(self.final_config_dict):
            known = RECBOLE.get(key, Known())
            if known.trains and not known.derived and known.role is not declare.Role.PLACE:
                values[key] = self.final_config_dict[key]
        return values

    def replace(self, **changes: Any) -> UnlearnConfig:
        """A copy with some keys changed, for RecBole and for the methods of this run; this one is left as it is."""
        chosen = self.method_names()  # a worker is sent the method itself, and need not know one of its name
        known = [method for method in catalogue.methods() if method.name in chosen]
        of_methods = {key for method in known for key in declare.names(method.settings)}
        unknown = [key for key in changes if key not in self.final_config_dict and key not in of_methods]
        for key in unknown:
            owners = catalogue.owners(key)
            why = (
                f"it is a setting of {', '.join(owners)}, which this run does not use"
                if owners
                else "unknown"
            )
            raise UnlearnError(f"{key} cannot be changed: {why}.")
        other = copy.copy(self)
        other.final_config_dict = {**self.final_config_dict, **changes}
        own = {key: value for key, value in changes.items() if key in of_methods}
        other.external_config_dict = {**self.external_config_dict, **own}
        return other

    def without_curves(self) -> UnlearnConfig:
        """A copy whose trainings leave no losses and scores anywhere: in no log, TensorBoard or tracker."""
        other = self.replace(tensorboard=False, log_wandb=False)
        other.leaves_curves = False
        return other

    def given(self, **changes: Any) -> UnlearnConfig:
        """As :meth:`replace`, with None for a key that stays as it is."""
        return self.replace(**{key: value for key, value in changes.items() if value is not None})

    @classmethod
    def from_recbole(cls, config: Config, **overrides: Any) -> UnlearnConfig:
        """Wrap the config of an existing RecBole setup: its settings stay, ours are added.

        The device stays too, and the environment is left as it is: RecBole's own config chose both already.
        """
        inherited = _Trusted(plain_settings(config.final_config_dict) | _chosen_for_this_machine(config))
        with recbole_compat.own_environment():
            ours = cls(config.model_class, config["dataset"], config_dict=overrides, inherited=inherited)
        if "gpu_id" not in overrides:
            ours.final_config_dict["device"] = config["device"]
        return ours

    def to_recbole(self, **changes: Any) -> Config:
        """The same settings as a plain RecBole `Config` that pickles without this plugin."""
        plain = Config.__new__(Config)
        ours = own_settings()
        state = copy.copy(self.__dict__)
        state["final_config_dict"] = {
            key: value for key, value in self.final_config_dict.items() if key not in ours
        } | changes
        state["internal_config_dict"] = {}
        del state["inherited"]
        state.pop("leaves_curves", None)
        state["external_config_dict"] = {}
        state["file_config_dict"] = state["variable_config_dict"] = state["cmd_config_dict"] = {}
        state["yaml_loader"] = yaml.FullLoader
        plain.__dict__.update(state)
        return plain


def _chosen_for_this_machine(config: Config) -> dict[str, Any]:
    """What somebody set in a config about how it runs here, and its GPU; other defaults of RecBole are no choice."""
    final, defaults = config.final_config_dict, config.internal_config_dict
    chosen = {
        key: final[key]
        for key in _OF_THIS_MACHINE
        if key in final and (key in config.external_config_dict or final[key] != defaults.get(key))
    }
    return chosen | {"gpu_id": final.get("gpu_id")}


def plain_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a finished RecBole config that may be given to a new one.

    Left out are keys RecBole derives again, paths to pickled data, and values that are not plain data
    (a checkpoint read safely holds inert stand-ins there).
    """
    derived = {key for key, known in RECBOLE.items() if known.derived}
    kept = {key: value for key, value in values.items() if key not in derived and is_plain(value)}
    if isinstance(kept.get("data_path"), str):  # RecBole has added the dataset's name to it
        folder = Path(kept["data_path"])
        kept["data_path"] = str(folder.parent if folder.name == values.get("dataset") else folder)
    sampling = kept.get("train_neg_sample_args")
    if isinstance(sampling, dict) and sampling.get("distribution") == "none":
        kept["train_neg_sample_args"] = None
    return kept


def is_plain(value: Any) -> bool:
    """Whether a value is text, a number, a flag, nothing, or lists and mappings of such."""
    if isinstance(value, dict):
        return all(isinstance(k, str) and is_plain(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(is_plain(v) for v in value)
    return value is None or type(value) in (bool, int, float, str)


def _literal(value: Any) -> Any:
    """Strings that spell a Python literal become it, as in RecBole, but without `eval`."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def _keys_read_by(model_class: type) -> set[str]:
    """Keys the model's own source reads, since not all of them stand in its property file.

    Of a class that is not RecBole's any word in its code may be one: a notebook has no source to look at, and people
    write config.key as well.
    """
    keys: set[str] = set()
    for base in inspect.getmro(model_class):
        module = inspect.getmodule(base)
        if module is None or base is object or module.__name__.startswith("torch"):
            continue
        try:
            source = inspect.getsource(module)
        except (OSError, TypeError):
            source = ""
        if not base.__module__.startswith("recbole."):
            keys.update(_words_in(base))
        keys.update(re.findall(r"""config\[\s*["'](\w+)["']\s*\]""", source))
    return keys


def _words_in(cls: type) -> set[str]:
    """The words among the constants and names of a class's functions."""
    waiting: list[Any] = [value.__code__ for value in vars(cls).values() if inspect.isfunction(value)]
    found: set[str] = set()
    while waiting:
        code = waiting.pop()
        found.update(code.co_names)
        for constant in code.co_consts:
            if inspect.iscode(constant):
                waiting.append(constant)
            elif isinstance(constant, str) and re.fullmatch(r"\w{1,100}", constant):
                found.add(constant)
    return found
