"""Settings: the declaration of every key, the sources of its value, and RecBole's config with ours in it."""

from recbole_unlearn.settings.config import (
    UnlearnConfig,
    about,
    default_config,
    is_plain,
    own_settings,
    plain_settings,
    preset_of,
    refuse_unmeasured,
)
from recbole_unlearn.settings.declare import Role, as_list, declared, names, read, setting
from recbole_unlearn.settings.groups import (
    GROUPS,
    RECBOLE,
    CacheSettings,
    EvaluationSettings,
    ForgetSettings,
    Known,
    RecordSettings,
    RunSettings,
    TuneSettings,
)
from recbole_unlearn.settings.inputs import LARGEST_FILE, packaged, parse_value, read_json, read_regular, read_yaml
from recbole_unlearn.settings.supported_models import (
    KNOWLEDGE,
    SEQUENTIAL,
    SUPPORTED_TYPES,
    has_users,
    model_names,
    only_retrained,
    pushes_all_items,
    scores_pairs,
    typed_class,
)
from recbole_unlearn.text import properties_dir
