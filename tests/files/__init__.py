"""Shared by the tests of files."""

import pickletools
import zipfile

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
    """All text in a file that is a pickle, or a zip with one."""
    raw = path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            raw = archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))
    return {arg for _, arg, _ in pickletools.genops(raw) if isinstance(arg, str)}
