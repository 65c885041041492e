"""The configuration: RecBole's `Config` with this plugin's `properties/` merged in.

Order, later wins: RecBole's own defaults, then `properties/overall.yaml`, `model_type/`, `model/`,
`dataset/` and `model_dataset/` of this plugin, then config files, then a dict or the command line.
A method's settings (`properties/method/NAME.yaml`) are kept apart, because one run may compare several
methods that share a key; see :meth:`UnlearnConfig.method_values`.

RecBole's `Config` reads `sys.argv` (also pytest's and Ray's), calls `eval` on strings and keeps unknown keys; this
one does not. RecBole also checks few values: a word instead of a number fails in the middle of a training, a batch
size of 0 never ends. All of these are refused here, before anything is loaded or trained.
"""

import ast
import contextlib
import copy
import dataclasses
import inspect
import math
import os
import re
import sys
import types
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import recbole
import torch
import yaml
from recbole.config import Config
from recbole.data.transform import construct_transform
from recbole.model.abstract_recommender import GeneralRecommender
from recbole.utils import EvaluatorType, InputType, ModelType, dataset_arguments

from recbole_unlearn import recbole_compat
from recbole_unlearn.errors import UnlearnError, nearest
from recbole_unlearn.log import on_terminal
from recbole_unlearn.registry import AUTO, METHODS, quickest_exact
from recbole_unlearn.settings import declare
from recbole_unlearn.settings import supported_models as supported
from recbole_unlearn.settings.groups import GROUPS, RECBOLE, Known
from recbole_unlearn.settings.inputs import YamlLoader, read_yaml
from recbole_unlearn.text import properties_dir

# How a run is carried out, without effect on its result: taken over from a config object, never from a file.
_OF_THIS_MACHINE = ("eval_batch_size", "show_progress", "state")
_UNLISTED = {"model", "dataset", "encoding", "config_files", "eval_type"}  # read, but in no property file
_TEACHERS = ("CrossNet", "CIN", "CINComp", "DAGFM")  # of KD_DAGFM, which calls `eval` on the name


def own_settings() -> Mapping[str, declare.Declared]:
    """The declarations of this plugin and of all methods, by key; RecBole reads none of them."""
    groups = [*GROUPS.values(), *(method.Settings for method in METHODS.all())]
    return {key: about for group in groups for key, about in declare.declared(group).items()}


def about(key: str) -> declare.Declared | Known:
    """The declaration of a key, ours or RecBole's."""
    return own_settings().get(key) or RECBOLE.get(key, Known())


class _Trusted(dict[str, Any]):
    """Settings of a config object: taken as they are, also keys that only the user's own classes read."""


class UnlearnConfig(Config):
    """RecBole's configuration with the settings of an unlearning run; the first four arguments are RecBole's.

    ``inherited`` are settings of an existing checkpoint. They win over all property files, and the user's settings
    win over them; keys that neither RecBole nor the model knows are left out.
    """

    leaves_curves: bool = True  # see without_curves

    def __init__(
        self, model: str | type | None = None, dataset: str | None = None, config_file_list: list[str] | None = None,
        config_dict: Mapping[str, Any] | None = None, inherited: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.inherited = inherited if isinstance(inherited, _Trusted) else dict(inherited or {})
        try:
            super().__init__(model, dataset, config_file_list, config_dict)
        except (ValueError, TypeError, LookupError, NotImplementedError, RuntimeError, AttributeError) as error:
            reason = str(error.args[0] if error.args else error).split("\n")[0]
            raise UnlearnError(f"RecBole does not accept these settings: {reason}") from error
        self._refuse_other_data()
        if self["eval_type"] != EvaluatorType.RANKING:
            raise UnlearnError(
                f"metrics={self['metrics']} are not ranking metrics; unlearning is measured by ranking. "
                "Use for example --metrics='[Recall,NDCG]' --valid_metric=NDCG@20 --eval_args='{mode: full}'."
            )
        supported.refuse_settings(self)
        if self.model_class.type is ModelType.SEQUENTIAL:
            construct_transform(self)  # writes the names of the fields it adds, which models read when built
        _refuse_code_and_paths(self)
        if self["log_wandb"]:  # it would send test figures, in which a small request could be recognised, and paths
            raise UnlearnError(
                "log_wandb sends every figure of a training, and some could name people. Leave it out, and send "
                "result.json when the run has ended (docs/deletion-requests.md)."
            )
        if not self.inherited:  # with an existing model there may be no training
            refuse_unmeasured(self)

    def compatibility_settings(self) -> None:
        """Restore the numpy names RecBole reads, then let it set its own."""
        recbole_compat.restore_numpy_names()
        super().compatibility_settings()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A config that is sent to another process takes its device, and restores the names that RecBole needs."""
        self.__dict__.update(state)
        if self["device"].type == "cuda" and not torch.cuda.is_available():
            self.final_config_dict["device"] = torch.device("cpu")
        self.compatibility_settings()

    def _build_yaml_loader(self) -> type:
        return YamlLoader

    def _load_config_files(self, file_list: list[str] | None) -> dict[str, Any]:
        return {key: value for file in file_list or [] for key, value in read_yaml(Path(file)).items()}

    def _update_internal_config_dict(self, file: str) -> dict[str, Any]:
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
        known = supported.model_names()
        if isinstance(model, str) and model not in known:
            raise UnlearnError(
                f"Unknown model {model!r}.{nearest(model, known)} RecBole {recbole.__version__} has {len(known)} "
                "models; a model of your own is given as --model=package.module:Class, or as the class in Python."
            )
        if not isinstance(model, str) and not supported.is_recommender(model):
            raise UnlearnError(f"{model!r:.200} is not a model class of RecBole; derive it from a recommender of it.")
        if not re.fullmatch(r"\w[\w.+-]{0,199}", str(dataset)):
            raise UnlearnError(f"dataset={dataset!r} is not a name; give the folder with --data_path.")
        try:
            with recbole_compat.anomaly_mode_kept():
                return super()._get_model_and_dataset(model, str(dataset))
        except ImportError as error:  # of a library that only this model needs
            raise UnlearnError(f"RecBole cannot import {model}: {error}.") from error

    def _load_internal_config_dict(self, model: str, model_class: Any, dataset: str) -> None:
        super()._load_internal_config_dict(model, model_class, dataset)
        supported.refuse_model(model, model_class)
        special = (f"model/{model}", f"dataset/{dataset}", f"model_dataset/{model}-{dataset}")
        form = ("model_type/pairs",) if supported.scores_pairs(model_class) else ()
        for name in ("overall", f"model_type/{model_class.type.name.lower()}", *form, *special):
            file = properties_dir() / f"{name}.yaml"
            if file.is_file():
                self.internal_config_dict.update(read_yaml(file))
        self._take_inherited_and_refuse(model_class)
        if model_class.type is ModelType.SEQUENTIAL and "train_neg_sample_args" not in self.inherited:
            # A loss over all items draws no negatives; the others draw one, as in RecBole.
            loss = {**self.internal_config_dict, **self.external_config_dict}.get("loss_type")
            one = {"distribution": "uniform", "sample_num": 1, "alpha": 1.0, "dynamic": False, "candidate_num": 0}
            self.internal_config_dict["train_neg_sample_args"] = None if loss == "CE" else one

    def _take_inherited_and_refuse(self, model_class: type) -> None:
        """Add the settings of an existing checkpoint or config; refuse unknown keys and values that cannot work."""
        listed = {key for group in self.parameters.values() for key in group}
        read = set(self.internal_config_dict) | _UNLISTED | _keys_read_by(model_class) | listed
        if not isinstance(self.inherited, _Trusted):
            known = read | _keys_of(self.method_names())
            self.inherited = {key: value for key, value in self.inherited.items() if key in known}
            _refuse_impossible(self.inherited, self.internal_config_dict)
        self.internal_config_dict.update(self.inherited)
        chosen = self.method_names()
        known = read | set(self.inherited) | _keys_of(chosen)
        for key in [key for key in self.external_config_dict if key not in known]:
            owners = ", ".join(one.name for one in METHODS.all() if key in _keys_of([one.name]))
            if owners:
                raise UnlearnError(f"{key} is a setting of {owners}, but this run uses {', '.join(chosen)}.")
            raise UnlearnError(f"Unknown setting {key!r}.{nearest(key, known)} --help lists all settings.")
        _refuse_impossible(self.external_config_dict, self.internal_config_dict)

    def _refuse_other_data(self) -> None:
        """A model that exists was trained on one split of one dataset; no setting may draw another."""
        decides = {*dataset_arguments, "seed", "eval_args", "repeatable"}
        for key in sorted(self.inherited.keys() & self.external_config_dict.keys() & decides):
            old, new = self.inherited[key], self.final_config_dict[key]  # with RecBole's short forms written out
            if _compared(old) != _compared(new):
                raise UnlearnError(
                    f"{key}={new!r} differs from the checkpoint's {old!r}, so the data would be split in another way "
                    f"than the model was trained on. Leave {key} out."
                )

    def _init_device(self) -> None:
        """As RecBole, which writes ``gpu_id`` to CUDA_VISIBLE_DEVICES; where only the latter is set, it stays."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None and "gpu_id" not in {**self.inherited, **self.external_config_dict}:
            self.final_config_dict["gpu_id"] = visible
        super()._init_device()

    def _set_default_parameters(self) -> None:
        chosen = {**self.inherited, **self.external_config_dict}
        super()._set_default_parameters()
        if self.dataset == "ml-100k" and chosen.get("data_path"):
            # RecBole always takes its own copy of ml-100k; a folder the user names comes first.
            folder = Path(chosen["data_path"]) / self.dataset
            if folder.is_dir():
                self.final_config_dict["data_path"] = str(folder)
        if "show_progress" not in chosen and not on_terminal():
            self.final_config_dict["show_progress"] = False
        self.final_config_dict["unlearn"] = self.method_names()[0]

    def method_names(self) -> list[str]:
        """The methods of this run: the main one and those it is compared with."""
        values = {**self.internal_config_dict, **self.external_config_dict}
        first = quickest_exact(self.model_class).name if values["unlearn"] == AUTO else str(values["unlearn"])
        return [first, *declare.as_list(values["compare"])]

    def usual_values(self, name: str) -> dict[str, Any]:
        """Settings of method ``name`` as its property files have them for this model and dataset.

        NAME.yaml comes first, then NAME-TYPE (of the model, in lower case), NAME-MODEL, NAME-DATASET and
        NAME-MODEL-DATASET; later wins. `preset_of: OTHER` in NAME.yaml starts from the values of that method.
        """
        fields = dataclasses.fields(METHODS.get(name).Settings)
        keys = {field.name for field in fields}
        found = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
        if base := preset_of(name):
            found |= {key: value for key, value in self.usual_values(base).items() if key in keys}
        folder, kind = _method_folder(name), self.model_class.type.name.lower()
        special = (kind, self.model, self.dataset, f"{self.model}-{self.dataset}")
        for stem in (name, *(f"{name}-{place}" for place in special)):
            if (file := folder / f"{stem}.yaml").is_file():
                found |= read_yaml(file)
        found.pop("preset_of", None)
        if missing := keys - set(found):
            raise UnlearnError(
                f"The method {name} has no value for {', '.join(sorted(missing))}: add it to "
                f"{folder / f'{name}.yaml'}, or give the declaration a default."
            )
        return found

    def method_values(self, name: str) -> dict[str, Any]:
        """Settings of method ``name``: its property files, then the settings of a saved ensemble or of the user."""
        chosen = {**self.inherited, **self.external_config_dict}
        return {key: chosen.get(key, default) for key, default in self.usual_values(name).items()}

    def model_values(self) -> dict[str, Any]:
        """The model's name, its dataset's, and the settings that its own source reads."""
        values = {"model": self["model"], "dataset": self["dataset"]}
        for key in _keys_read_by(self.model_class) & set(self.final_config_dict):
            known = RECBOLE.get(key, Known())
            if known.trains and not known.derived and known.role is not declare.Role.PLACE:
                values[key] = self.final_config_dict[key]
        return values

    def replace(self, **changes: Any) -> Self:
        """A copy with some keys changed, for RecBole and for the methods of this run; this one is left as it is."""
        chosen = self.method_names()  # a worker is sent the method itself, and may not know one of its name
        of_methods = _keys_of(method.name for method in METHODS.all() if method.name in chosen)
        if unknown := changes.keys() - self.final_config_dict.keys() - of_methods:
            which = ", ".join(sorted(unknown))
            raise UnlearnError(f"{which} cannot be changed: unknown, or of a method that this run does not use.")
        other = copy.copy(self)
        other.final_config_dict = {**self.final_config_dict, **changes}
        own = {key: value for key, value in changes.items() if key in of_methods}
        other.external_config_dict = {**self.external_config_dict, **own}
        return other

    def without_curves(self) -> Self:
        """A copy with which trainings leave no losses or scores anywhere, and methods no sizes of a request."""
        other = self.replace(tensorboard=False)
        other.leaves_curves = False
        return other

    @classmethod
    def from_recbole(cls, config: Config, **overrides: Any) -> Self:
        """Wrap an existing RecBole config: its settings and its device stay, ours are added."""
        final, defaults = config.final_config_dict, config.internal_config_dict
        chosen = {  # for this machine; a default of RecBole is not a choice
            key: final[key]
            for key in _OF_THIS_MACHINE
            if key in final and (key in config.external_config_dict or final[key] != defaults.get(key))
        }
        inherited = _Trusted(plain_settings(final) | chosen | {"gpu_id": final.get("gpu_id")})
        with recbole_compat.own_environment():
            ours = cls(config.model_class, config["dataset"], config_dict=overrides, inherited=inherited)
        if "gpu_id" not in overrides:
            ours.final_config_dict["device"] = config["device"]
        return ours

    def to_recbole(self, **changes: Any) -> Config:
        """The same settings as a plain RecBole `Config` that pickles without this plugin."""
        ours = own_settings()
        final = {key: value for key, value in self.final_config_dict.items() if key not in ours} | changes
        plain = Config.__new__(Config)
        plain.__dict__.update(self.__dict__, final_config_dict=final, yaml_loader=yaml.FullLoader)
        for source in ("internal", "external", "file", "variable", "cmd"):
            setattr(plain, f"{source}_config_dict", {})
        del plain.inherited
        plain.__dict__.pop("leaves_curves", None)
        return plain


class _AnyModel(GeneralRecommender):
    input_type = InputType.PAIRWISE


def default_config(model: str = "", dataset: str = "") -> UnlearnConfig:
    """The config of a run without settings, for `--help`; "" is any model or dataset."""
    with recbole_compat.own_environment():
        return UnlearnConfig(model or _AnyModel, dataset or "any")


def _keys_of(methods: Iterable[str]) -> set[str]:
    return {key for name in methods for key in declare.names(METHODS.get(name).Settings)}


def _method_folder(name: str) -> Path:
    """`properties/method`, the folder of a method's module in another package, or for a notebook the working one."""
    module = METHODS.get(name).__module__
    if module.startswith(f"{METHODS.package}."):
        return properties_dir() / "method"
    return Path(getattr(sys.modules.get(module), "__file__", None) or "notebook").parent


def preset_of(name: str) -> str | None:
    """The method whose settings ``name`` starts from, as its YAML file says."""
    file = _method_folder(name) / f"{name}.yaml"
    return read_yaml(file).get("preset_of") if file.is_file() else None


def plain_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a finished RecBole config for a new one: plain data, without keys that RecBole derives."""
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


def _compared(value: Any) -> Any:
    """A value such that two which mean the same are equal: shares of a split in any unit, columns in any order."""
    if isinstance(value, dict):
        made = {key: _compared(one) for key, one in value.items()}
        shares = value.get("RS")
        if isinstance(shares, list) and all(isinstance(one, Real) for one in shares) and sum(shares):
            made["RS"] = [round(one / sum(shares), 9) for one in shares]
        return made
    return sorted(value) if isinstance(value, list) and all(isinstance(one, str) for one in value) else value


def _literal(value: Any) -> Any:
    """Strings that spell a Python literal become it, as in RecBole, but without `eval`."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(value.title() if value.lower() in ("true", "false") else value)
    return value


def _keys_read_by(model_class: type) -> set[str]:
    """Keys that the model's own source reads; of a user's class (perhaps of a notebook) any word in its code."""
    keys: set[str] = set()
    for base in inspect.getmro(model_class):
        module = inspect.getmodule(base)
        if module is None or base is object or module.__name__.startswith("torch"):
            continue
        if not base.__module__.startswith("recbole."):
            keys.update(*(_words_in(value.__code__) for value in vars(base).values() if inspect.isfunction(value)))
        with contextlib.suppress(OSError, TypeError):  # a class without source
            keys.update(re.findall(r"""config\[\s*["'](\w+)["']\s*\]""", inspect.getsource(module)))
    return keys


def _words_in(code: types.CodeType) -> set[str]:
    """The words among the names and constants of a function, and of those inside it."""
    words = {one for one in code.co_consts if isinstance(one, str) and re.fullmatch(r"\w{1,100}", one)}
    return words.union(code.co_names, *(_words_in(one) for one in code.co_consts if inspect.iscode(one)))


def _refuse_impossible(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse a value of a RecBole key of another type than its default, or below its least."""
    ours = own_settings()
    for key, value in given.items():
        expected, fits = _expected(key, value, defaults.get(key))
        if key not in ours and not fits:
            raise UnlearnError(f"{key}={value!r} is not valid: expected {expected}.")


def _expected(key: str, value: Any, default: Any) -> tuple[str, bool]:
    """The values that ``key`` accepts, in words, and whether ``value`` is one of them."""
    known = RECBOLE.get(key, Known())
    least = "" if known.low is None else f", {known.low:g} or more"
    is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    enough = is_number and (known.low is None or value >= known.low)
    if isinstance(default, bool):
        return "True or False", value is None or value in (True, False)  # also 1 and 0, as in RecBole
    if isinstance(default, str) and key != "gpu_id":  # RecBole takes 0 for it as well
        return "a word", isinstance(value, str | None)
    if isinstance(default, dict):
        return "a mapping", isinstance(value, dict | None)
    if isinstance(default, list):
        return "a list", isinstance(value, list | tuple | str | Integral | None) and not isinstance(value, bool)
    if known.whole:
        return f"a whole number{least}", enough and isinstance(value, Integral)
    return f"a number{least}", enough or not isinstance(default, Real)


def _refuse_code_and_paths(config: Config) -> None:
    """Refuse values that RecBole would evaluate as code, or put into the names of files that it opens."""
    if config["model"] == "KD_DAGFM" and config["teacher"] not in _TEACHERS:
        raise UnlearnError(f"teacher={config['teacher']!r} is not valid: choose from {', '.join(_TEACHERS)}.")
    names = config["benchmark_filename"] or []
    is_list = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if not is_list or not all(re.fullmatch(r"\w[\w.+-]{0,99}", name) for name in names):
        raise UnlearnError(f"benchmark_filename={names!r} is not valid: expected a list of names, without paths.")
    for key in ("additional_feat_suffix", "preload_weight", "alias_of_user_id", "alias_of_item_id"):
        if config[key]:
            raise UnlearnError(
                f"{key}={config[key]!r}: tables and names besides those of interactions, users and items are not "
                "unlearned. Leave it out."
            )


def refuse_unmeasured(config: Config) -> None:
    """Refuse a validation metric that is not measured."""
    metrics, topk = config["metrics"], config["topk"]
    if not metrics or not topk:
        raise UnlearnError("metrics or topk is empty, so nothing is measured. Use for example --metrics=NDCG.")
    name, at, cut = str(config["valid_metric"]).lower().partition("@")
    if name not in [metric.lower() for metric in metrics] or (at and cut not in map(str, topk)):
        raise UnlearnError(
            f"valid_metric={config['valid_metric']} is not measured, with metrics={metrics} and topk={topk}. "
            f"Use for example --valid_metric={metrics[0]}@{topk[-1]}, or add to --metrics and --topk."
        )
