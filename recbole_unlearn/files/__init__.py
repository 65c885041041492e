"""Files: written whole or not at all, and read without running code from them.

`atomic.py` writes files and the output directory of a run; `safe_pickle.py` and `safe_load.py` read pickles as data;
`checkpoint.py` reads and writes models, `retained_data.py` their data; `hash_keys.py` makes keyed hashes.
"""

import importlib
from typing import TYPE_CHECKING, Any

# isort: off
if TYPE_CHECKING:
    from recbole_unlearn.files.atomic import (
        claimed, made, make_directory, new_directory, refuse_result, remove_stale, staged, sync, write_bytes,
        write_json, write_torch,
    )  # fmt: skip
    from recbole_unlearn.files.checkpoint import (
        HEAD, SCHEMA, Checkpoint, Trained, dataset_config, file_digest, find_unlearned, load_for_recbole,
        read_checkpoint, read_head, write_model,
    )  # fmt: skip
    from recbole_unlearn.files.hash_keys import Done, key_place, keyed_hash, load_key, model_digest, request_digest
    from recbole_unlearn.files.retained_data import Clock, blank_unused, read_dataset, used_values, write_dataset
    from recbole_unlearn.files.safe_load import load_pickle, load_torch, only
    from recbole_unlearn.files.safe_pickle import StandIn
else:

    def __getattr__(name: str) -> Any:
        """Import a name on first use, from the first of these that has it: a receipt is written without torch."""
        for home in ("atomic", "hash_keys", "retained_data", "safe_load", "safe_pickle", "checkpoint"):
            module = importlib.import_module(f"{__name__}.{home}")
            if name in (home, *vars(module)):
                return getattr(module, name, module)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
