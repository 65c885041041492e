"""Files: written whole or not at all, and read without running code from them.

`atomic.py` writes, `unpickle.py` reads pickles as data, `trained.py` is a trained model as data,
`checkpoint.py` reads RecBole's checkpoints, `ensemble_head.py` the description of an ensemble,
`saved_dataset.py` writes and reads the retained data, `vocabulary.py` blanks what it does not use, `export.py`
writes the unlearned model for plain RecBole, `outputs.py` is the directory all of a run goes to, and `keyed.py` makes
hashes that tell nothing without their key.
"""

from recbole_unlearn.files.atomic import (
    make_directory,
    new_directory,
    write_bytes,
    write_json,
    write_torch,
)
from recbole_unlearn.files.checkpoint import Checkpoint, find_unlearned, read_checkpoint
from recbole_unlearn.files.ensemble_head import HEAD, SCHEMA, Stored, read_head
from recbole_unlearn.files.export import dataset_config, file_digest, refuse_overwriting, write_model
from recbole_unlearn.files.for_recbole import load_for_recbole
from recbole_unlearn.files.hash_keys import Done, keyed_hash, load_key, model_digest, request_digest
from recbole_unlearn.files.outputs import claimed, made, refuse_result, remove_stale, staged
from recbole_unlearn.files.saved_dataset import Clock, read_dataset, write_dataset
from recbole_unlearn.files.trained import Trained
from recbole_unlearn.files.unpickle import StandIn, load_torch, only
from recbole_unlearn.files.vocabulary import blank_unused, used_values
