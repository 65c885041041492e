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
import difflib
import inspect
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import recbole
import yaml
from recbole.config import Config
from recbole.utils import EvaluatorType, ModelType, dataset_arguments

from recbole_unlearn import compat, models, settings
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.methods import registry
from recbole_unlearn.recbole_values import refuse_impossible, refuse_unmeasured

SUPPORTED_TYPES = (ModelType.GENERAL, ModelType.CONTEXT, ModelType.TRADITIONAL)

# RecBole reads these keys although none of its property files names them.
_UNLISTED_KEYS = {"model", "dataset", "encoding", "config_files", "eval_type"}


def properties_dir() -> Path:
    """`properties/`: inside the package when installed from a wheel, at the top of a checkout otherwise."""
    package = Path(__file__).resolve().parent
    installed = package / "properties"
    return installed if installed.is_dir() else package.parent / "properties"


class _YamlLoader(yaml.SafeLoader):
    """YAML without Python objects, and with `1e-4` read as a number, as RecBole's own files expect."""


_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:(?:\d[\d_]*\.[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+"
        r"|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def parse_value(text: str) -> Any:
    """Read a command-line value as YAML (`0.1`, `[10,20]`, `{'RS':[8,1,1]}`), Python's None included."""
    if text == "None":
        return None
    try:
        value = yaml.load(text, Loader=_YamlLoader)
    except yaml.YAMLError:
        return text
    # Only what is written in brackets is a collection: "?" and "a: b" are YAML mappings, but not meant so.
    return text if isinstance(value, (dict, list)) and text.lstrip()[0] not in "[{" else value


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping of settings; an empty one is an empty mapping."""
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_YamlLoader)
    except OSError as error:
        raise UnlearnError(
            f"Cannot read the config file {path}: {error.strerror or error}. Check the path."
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        place = getattr(error, "problem_mark", None)
        row = f", line {place.line + 1}" if place else ""
        raise UnlearnError(f"{path}{row} is not valid YAML; expected lines of 'key: value'.") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UnlearnError(f"{path} is not a mapping; expected lines of 'key: value'.")
    return content


class _StrictLoader(_YamlLoader):
    """YAML that refuses a key that stands twice; by itself the second silently wins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """As the base class."""
        seen = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, Hashable) and name in seen:
                raise UnlearnError(f"{name} stands twice (line {key.start_mark.line + 1}); leave one out.")
            seen.add(name if isinstance(name, Hashable) else str(name))
        return super().construct_mapping(node, deep)


def read_strictly(path: Path, what: str, option: str, expected: str) -> dict[Any, Any]:
    """As :func:`read_yaml` for a file that is ``what``, named by ``option``; no key may stand twice in it."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except OSError as error:
        raise UnlearnError(
            f"Cannot read the {what} {path}: {error.strerror or error}. Check {option}."
        ) from error
    except UnlearnError as error:
        raise UnlearnError(f"{path}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        place = getattr(error, "problem_mark", None)
        row = f", line {place.line + 1}," if place else ""
        raise UnlearnError(f"{path}{row} is not valid YAML; expected '{expected}'.") from error
    if content is not None and not isinstance(content, dict):
        raise UnlearnError(f"{path} is not a mapping; expected lines of '{expected}'.")
    return content or {}


def model_names() -> list[str]:
    """The models this RecBole ships, from its property files."""
    folder = Path(recbole.__file__).parent / "properties" / "model"
    return sorted(path.stem for path in folder.glob("*.yaml"))


def nearest(word: str, known: Iterable[str]) -> str:
    """' Did you mean X?', or nothing when nothing is near."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean {by_lower[found[0]]}?" if found else ""


def own_keys() -> set[str]:
    """The settings of this plugin and of its methods; RecBole reads none of them."""
    groups = [*settings.GROUPS.values(), *(method.Settings for method in registry.methods())]
    return {key for group in groups for key in settings.names(group)}


class UnlearnConfig(Config):
    """RecBole's configuration with the settings of an unlearning run.

    Args:
        model: name of a RecBole model, or a model class.
        dataset: name of the dataset.
        config_file_list: YAML files in RecBole's manner.
        config_dict: settings that win over the files.
        inherited: settings of an existing checkpoint or config. They stand above all property files and
            below what the user sets; keys in it that nobody knows are kept, not refused.

    """

    def __init__(
        self,
        model: str | type | None = None,
        dataset: str | None = None,
        config_file_list: list[str] | None = None,
        config_dict: Mapping[str, Any] | None = None,
        inherited: Mapping[str, Any] | None = None,
    ) -> None:
        self.inherited = dict(inherited or {})
        try:
            super().__init__(model, dataset, config_file_list, config_dict)
        except (ValueError, TypeError, KeyError, NotImplementedError, RuntimeError) as error:
            reason = error.args[0] if error.args else error
            raise UnlearnError(f"RecBole does not accept these settings: {reason}") from error
        if self["eval_type"] != EvaluatorType.RANKING:
            raise UnlearnError(
                f"metrics={self['metrics']} are not ranking metrics; unlearning is measured by ranking. "
                "Use for example --metrics=[Recall,NDCG] --valid_metric=NDCG@20 --eval_args={mode: full}."
            )
        if not self.inherited:  # with a model that exists, there may be nothing to train
            refuse_unmeasured(self)

    def compatibility_settings(self) -> None:
        """Restore the numpy names RecBole reads, then let it set its own."""
        compat.restore_numpy_names()
        super().compatibility_settings()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A config that comes to another process brings the names along that RecBole needs there."""
        self.__dict__.update(state)
        self.compatibility_settings()

    def _build_yaml_loader(self) -> type:
        return _YamlLoader

    def _load_config_files(self, file_list: list[str] | None) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for file in file_list or []:
            merged.update(read_yaml(Path(file)))
        return merged

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
                f"RecBole {recbole.__version__} has {len(model_names())} models; see its model list."
            )
        if not re.fullmatch(r"[\w.+-]+", str(dataset)):
            raise UnlearnError(f"dataset={dataset!r} is not a name; give the folder with --data_path.")
        with compat.anomaly_mode_kept():
            name, model_class, dataset = super()._get_model_and_dataset(model, str(dataset))
        return name, models.fast_class(model_class), dataset

    def _load_internal_config_dict(self, model: str, model_class: type, dataset: str) -> None:
        super()._load_internal_config_dict(model, model_class, dataset)
        if model_class.type not in SUPPORTED_TYPES:
            raise UnlearnError(
                f"{model} is a {model_class.type.name.lower()} model, which cannot be unlearned yet: "
                "a deleted row there is part of other rows' sequences or graph. "
                "General and context-aware models can."
            )
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
        self.internal_config_dict.update(self.inherited)
        self._refuse_unknown_keys(model_class)
        refuse_impossible(self.external_config_dict, self.internal_config_dict, own_keys())
        self._refuse_other_data()

    def _refuse_unknown_keys(self, model_class: type) -> None:
        known = set(self.internal_config_dict) | _UNLISTED_KEYS | _keys_read_by(model_class)
        for group in self.parameters.values():
            known |= set(group)
        chosen = self.method_names()
        for name in chosen:
            known |= set(settings.names(registry.get(name).Settings))
        for key in self.external_config_dict:
            if key in known:
                continue
            owners = [m.name for m in registry.methods() if key in settings.names(m.Settings)]
            if owners:
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

    def _set_default_parameters(self) -> None:
        data_path = self.external_config_dict.get("data_path", self.inherited.get("data_path"))
        super()._set_default_parameters()
        if self.dataset == "ml-100k" and data_path:
            # RecBole always takes its own copy of ml-100k; a folder the user names comes first.
            folder = Path(data_path) / self.dataset
            if folder.is_dir():
                self.final_config_dict["data_path"] = str(folder)

    def method_names(self) -> list[str]:
        """The methods of this run: the one asked for and those it is compared with."""
        values = {**self.internal_config_dict, **self.external_config_dict}
        return [str(values["unlearn"]), *settings.as_list(values["compare"])]

    def method_values(self, name: str) -> dict[str, Any]:
        """Settings of method ``name``: its property files, then what a saved ensemble or the user set."""
        values = self._property_values(name)
        chosen = {**self.inherited, **self.external_config_dict}
        return {key: chosen.get(key, default) for key, default in values.items()}

    def _property_values(self, name: str) -> dict[str, Any]:
        """What the property files of a method say for this model and dataset, the most special last.

        A file that begins with `preset_of: OTHER` holds only what differs from that method.
        """
        folder = properties_dir() / "method"
        values = read_yaml(folder / f"{name}.yaml")
        if base := values.pop("preset_of", None):
            values = {**self._property_values(base), **values}
        for special in (self.model, self.dataset, f"{self.model}-{self.dataset}"):
            if (own := folder / f"{name}-{special}.yaml").is_file():
                values.update(read_yaml(own))
        return values

    def replace(self, **changes: Any) -> UnlearnConfig:
        """A copy with some keys changed; the original is left as it is."""
        other = copy.copy(self)
        other.final_config_dict = {**self.final_config_dict, **changes}
        return other

    def given(self, **changes: Any) -> UnlearnConfig:
        """As :meth:`replace`, with None for a key that stays as it is."""
        return self.replace(**{key: value for key, value in changes.items() if value is not None})

    @classmethod
    def from_recbole(cls, config: Config, **overrides: Any) -> UnlearnConfig:
        """Wrap the config of an existing RecBole setup: its settings stay, ours are added."""
        inherited = plain_settings(config.final_config_dict)
        return cls(config.model_class, config["dataset"], config_dict=overrides, inherited=inherited)

    def to_recbole(self, **changes: Any) -> Config:
        """The same settings as a plain RecBole `Config` that pickles without this plugin."""
        plain = Config.__new__(Config)
        ours = own_keys()
        state = copy.copy(self.__dict__)
        state["final_config_dict"] = {
            key: value for key, value in self.final_config_dict.items() if key not in ours
        } | changes
        state["internal_config_dict"] = {}
        del state["inherited"]
        state["external_config_dict"] = {}
        state["file_config_dict"] = state["variable_config_dict"] = state["cmd_config_dict"] = {}
        state["yaml_loader"] = yaml.FullLoader
        state["model_class"] = models.plain_class(self.model_class)
        plain.__dict__.update(state)
        return plain


# What RecBole works out for itself, for one process on one machine: never carried to another config.
_DERIVED_KEYS = {
    "model", "dataset", "device", "single_spec", "local_rank", "MODEL_TYPE", "MODEL_INPUT_TYPE",
    "eval_type", "valid_metric_bigger", "valid_neg_sample_args", "test_neg_sample_args", "nproc",
    "world_size", "offset", "ip", "port", "gpu_id", "checkpoint_dir", "dataset_save_path",
    "dataloaders_save_path", "save_dataset", "save_dataloaders", "show_progress", "state",
    "config_files", "log_wandb", "eval_batch_size",
}  # fmt: skip


def plain_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a finished RecBole config that may be given to a new one.

    Left out are keys RecBole derives anew, paths to pickled data, and values that are not plain data
    (a checkpoint read safely holds inert stand-ins there).
    """
    kept = {key: value for key, value in values.items() if key not in _DERIVED_KEYS and _is_plain(value)}
    if isinstance(kept.get("data_path"), str):  # RecBole has added the dataset's name to it
        folder = Path(kept["data_path"])
        kept["data_path"] = str(folder.parent if folder.name == values.get("dataset") else folder)
    sampling = kept.get("train_neg_sample_args")
    if isinstance(sampling, dict) and sampling.get("distribution") == "none":
        kept["train_neg_sample_args"] = None
    return kept


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(v) for v in value)
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
    """Keys the model's own source reads, since not all of them stand in its property file."""
    keys: set[str] = set()
    for base in inspect.getmro(model_class):
        module = inspect.getmodule(base)
        if module is None or base is object or module.__name__.startswith("torch"):
            continue
        try:
            source = inspect.getsource(module)
        except (OSError, TypeError):
            continue
        keys.update(re.findall(r"""config\[\s*["'](\w+)["']\s*\]""", source))
    return keys
