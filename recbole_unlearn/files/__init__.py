"""Files: written whole or not at all, and read without running code from them.

`atomic.py` writes files and the output directory of a run; `safe_pickle.py` and `safe_load.py` read pickles as data;
`checkpoint.py` reads and writes models, `retained_data.py` their data; `hash_keys.py` makes keyed hashes.
"""

from recbole_unlearn.files.atomic import (
    claimed,
    made,
    make_directory,
    new_directory,
    refuse_result,
    remove_stale,
    staged,
    sync,
    write_bytes,
    write_json,
    write_torch,
)
from recbole_unlearn.files.checkpoint import (
    HEAD,
    SCHEMA,
    Checkpoint,
    Trained,
    dataset_config,
    file_digest,
    find_unlearned,
    load_for_recbole,
    read_checkpoint,
    read_head,
    write_model,
)
from recbole_unlearn.files.hash_keys import Done, key_place, keyed_hash, load_key, model_digest, request_digest
from recbole_unlearn.files.retained_data import Clock, blank_unused, read_dataset, used_values, write_dataset
from recbole_unlearn.files.safe_load import load_pickle, load_torch, only
from recbole_unlearn.files.safe_pickle import StandIn
