"""Settings: what a key means and accepts, where its value comes from, and RecBole's config with ours in it.

`declare.py` is how a setting is declared and read, `groups.py` declares those of a run, `catalogue.py` knows
which methods there are and what they declare, `recbole_values.py` says the same of RecBole's own keys,
`yaml_files.py` reads YAML, `typed_model.py` imports a class that is given with `--model`, and `config.py` puts all
of it together as
:class:`~recbole_unlearn.settings.config.UnlearnConfig`.
"""

from __future__ import annotations

from recbole_unlearn.settings.catalogue import get
from recbole_unlearn.settings.config import (
    SUPPORTED_TYPES,
    UnlearnConfig,
    about,
    is_plain,
    model_names,
    own_settings,
    plain_settings,
)
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
from recbole_unlearn.settings.recbole_values import RECBOLE, Known, refuse_unmeasured
from recbole_unlearn.settings.sequential import MODELS, has_users, pushes_all_items
from recbole_unlearn.settings.typed_model import is_typed_class, typed_class
from recbole_unlearn.settings.yaml_files import (
    packaged,
    parse_value,
    properties_dir,
    read_strictly,
    read_yaml,
)
