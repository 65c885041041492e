"""Settings: what a key means and accepts, where its value comes from, and RecBole's config with ours in it.

`declare.py` is how a setting is declared and read, `groups.py` declares those of a run, `catalogue.py` knows
which methods there are and what they declare, `recbole_values.py` says the same of RecBole's own keys,
`yaml_files.py` reads YAML, `typed_model.py` imports a class that is given with `--model`, and `config.py` puts all
of it together as
:class:`~recbole_unlearn.settings.config.UnlearnConfig`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recbole_unlearn.settings.declare import Role, as_list, declared, names, read, setting
from recbole_unlearn.settings.groups import (
    GROUPS,
    CacheSettings,
    EvaluationSettings,
    ForgetSettings,
    GridSettings,
    RecordSettings,
    RunSettings,
    TuneSettings,
)
from recbole_unlearn.settings.typed_model import is_typed_class, typed_class
from recbole_unlearn.settings.yaml_files import parse_value

if TYPE_CHECKING:
    from recbole_unlearn.settings.config import UnlearnConfig, about, model_names

__all__ = [
    "GROUPS",
    "CacheSettings",
    "EvaluationSettings",
    "ForgetSettings",
    "GridSettings",
    "RecordSettings",
    "Role",
    "RunSettings",
    "TuneSettings",
    "UnlearnConfig",
    "about",
    "as_list",
    "declared",
    "is_typed_class",
    "model_names",
    "names",
    "parse_value",
    "read",
    "setting",
    "typed_class",
]


def __getattr__(name: str) -> Any:
    """Import the config on first use: it needs RecBole and torch, and `--help` does not."""
    if name not in ("UnlearnConfig", "about", "model_names"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from recbole_unlearn.settings import config

    return getattr(config, name)
