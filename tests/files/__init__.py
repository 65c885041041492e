"""Shared by the tests of files."""

import pickletools
import sys
import zipfile

import numpy as np

from tests.conftest import run_command

RUN = {
    "show_progress": False, "tensorboard": False, "report": "none", "cache": False, "demotion_negatives": 5,
    "min_group": 1,
}  # fmt: skip


class Trap:
    """Calls ``function`` when a careless unpickler meets it."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


def strings(path):
    """All text in a file that is a pickle, or a zip with one; of arrays of text all words."""
    raw = path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            raw = archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))
    found = [value for _, value, _ in pickletools.genops(raw)]
    words = {value for value in found if isinstance(value, str)}
    for value in found:
        if isinstance(value, bytes) and len(value) % 4 == 0:  # numpy's text has four bytes a character
            signs = (chr(code) if 0 < code < 128 else " " for code in np.frombuffer(value, "<u4"))
            words |= set("".join(signs).split())
    return words


PLAIN = """
import sys
files, sys.argv = sys.argv[1:], ["plain"]
class Blocked:
    def find_spec(self, name, *more):
        if name.split(".")[0] == "recbole_unlearn":
            raise ImportError("there is no plugin here")
sys.meta_path.insert(0, Blocked())
import numpy as np
import torch
for name, kind in (("float_", np.float64), ("complex_", np.complex128), ("unicode_", np.str_)):
    if name not in np.__dict__:  # numpy 2, on which RecBole itself does not start
        setattr(np, name, kind)
from recbole.config import Config
Config.compatibility_settings(None)  # an unpickled config does not restore the names RecBole reads
from recbole.quick_start import load_data_and_model
import scipy.sparse as sp
if not hasattr(sp.dok_matrix, "_update"):
    sp.dok_matrix._update = lambda self, entries: self._dict.update(entries)
from recbole.data.interaction import Interaction
from recbole.utils import get_trainer
for file in files:
    config, model, dataset, train, valid, test = load_data_and_model(file)
    trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
    trainer.eval_collector.data_collect(train)
    result = trainer.evaluate(test, load_best_model=False)
    print("RESULT", len(train._dataset), len(valid._dataset), len(test._dataset), result.get("ndcg@20", "nan"))
    if config["model"] == "LightGCN":
        scores = model.full_sort_predict(Interaction({"user_id": torch.tensor([5, 9, 20])})).reshape(3, -1)
        np.save("scores.npy", scores.detach().numpy())
assert not any(name.startswith("recbole_unlearn") for name in sys.modules)
"""


def plain_recbole(folder, *files):
    """Sizes of the splits and NDCG@20 of models, in a process that cannot import the plugin.

    Torch is told to trust the files, as RecBole needs. The scores of users 5, 9 and 20 by LightGCN are in scores.npy.
    """
    command = [sys.executable, "-W", "ignore", "-c", PLAIN, *map(str, files)]
    said = run_command(command, folder, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1")
    lines = [line.split()[1:] for line in said.splitlines() if line.startswith("RESULT")]
    return [([int(size) for size in sizes], float(figure)) for *sizes, figure in lines]
