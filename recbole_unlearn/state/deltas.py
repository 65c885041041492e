"""The files of a state: the base, and what each request changed in it.

A base is four files: weights, second moments, the dataset, and keyed hashes of published pairs. A change is one
safetensors file with `weights.NAME.rows` and `weights.NAME.values` for every parameter with rows that moved, the same
for second moments, and `fitted`. It holds new values, not differences, so that applying it gives the same bits.

All files are written by :class:`Store`: whole, for their owner alone, named by a keyed hash of their content, checked
when they are read. Without the key no file can be made that fits a name, and no guess of its content be tested.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import safetensors
import torch
from safetensors.torch import load, save

from recbole_unlearn.data import Source
from recbole_unlearn.errors import UnlearnError, reason, shown
from recbole_unlearn.files import dataset_config, keyed_hash, sync, write_dataset
from recbole_unlearn.files.atomic import atomic
from recbole_unlearn.rows import Earlier, as_rows
from recbole_unlearn.settings import UnlearnConfig, read_regular

Tensors = dict[str, torch.Tensor]


def digest(content: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


class Store:
    """The folder of a state that holds its files; the only place that writes or removes them."""

    def __init__(self, folder: Path, key: bytes) -> None:
        self.folder, self._key = folder, key

    def write(self, content: bytes, suffix: str = ".safetensors") -> str:
        """Write ``content`` and flush it to the disk, unless it is there already; returns the file's name."""
        name = keyed_hash(self._key, "file", content) + suffix
        if not (self.folder / name).is_file():
            try:
                with atomic(self.folder / name, 0o600) as stream:
                    stream.write(content)
                sync(self.folder)
            except (OSError, UnlearnError) as error:
                raise self._cannot_write(error) from error
        return name

    @contextlib.contextmanager
    def workplace(self) -> Iterator[Path]:
        """A temporary directory; after a kill it is a leftover, which the next worker destroys."""
        try:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                yield Path(folder)
        except (OSError, UnlearnError) as error:
            if isinstance(error, UnlearnError) and not isinstance(error.__cause__, OSError):
                raise
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: Exception) -> UnlearnError:
        why = reason(error.__cause__ or error)  # behind a message that advises another directory
        return UnlearnError(
            f"Cannot write to {shown(self.folder)}: {why}. The state is unchanged; free disk space or fix the "
            "permissions, and run the same command again."
        )

    def read(self, name: str) -> bytes:
        """The content of a file; refused if its name is not its keyed hash."""
        content = read_regular(self.folder / name)
        if keyed_hash(self._key, "file", content) != name.split(".")[0]:
            raise UnlearnError(
                f"{shown(self.folder / name)} is not the file that was written: its content was changed or damaged. "
                "Restore the state from a backup."
            )
        return content

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """A path to the content that :meth:`read` has checked: a copy in memory, which cannot be swapped."""
        content = self.read(name)
        if not hasattr(os, "memfd_create"):  # not on Linux
            yield self.folder / name
            return
        with os.fdopen(os.memfd_create(name), "wb") as stream:
            stream.write(content)
            stream.flush()
            yield Path(f"/proc/self/fd/{stream.fileno()}")

    def names(self) -> set[str]:
        """The files that are there."""
        return {entry.name for entry in self.folder.iterdir()}

    def destroy_others(self, kept: Iterable[str]) -> None:
        """Overwrite and remove every file but ``kept``, and every directory."""
        others = self.names() - set(kept)
        try:
            for name in sorted(others):
                _destroy(self.folder / name)
            if others:
                sync(self.folder)
        except OSError as error:
            raise UnlearnError(
                f"Cannot remove files from {shown(self.folder)}: {error.strerror or error}. The state is complete, "
                "but has files that belong to nothing; fix the permissions, and run `requests publish`."
            ) from error


def _destroy(path: Path) -> None:
    """Replace a file's content by zeros, where the file system writes in place, and remove it; or a directory."""
    if path.is_dir() and not path.is_symlink():
        for entry in path.iterdir():
            _destroy(entry)
        path.rmdir()
        return
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:  # a link or a full disk: only removed
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        stack.callback(os.close, descriptor)
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode):
            left, zeros = about.st_size, bytes(min(about.st_size, 2**20))
            while left > 0:
                left -= os.write(descriptor, zeros[: min(left, len(zeros))])
            os.fsync(descriptor)
    path.unlink(missing_ok=True)


class Base(NamedTuple):
    """The names of the files of a base."""

    weights: str
    moments: str
    dataset: str
    deleted: str

    @property
    def fingerprint(self) -> str:
        """Identifies the model, for holders of the key: it follows from keyed names."""
        return digest(self.weights.encode())


class NewBase(NamedTuple):
    """A model and its data, to become the base."""

    config: UnlearnConfig
    weights: Tensors
    moments: Tensors
    data: Source


def write_base(store: Store, new: NewBase, deleted: Iterable[str] = ()) -> Base:
    """Write a base; it becomes current when the database names it."""
    weights, moments, fitted = store.write(pack(new.weights)), store.write(pack(new.moments)), new.data.fitted
    with store.workplace() as work:
        path, home = work / "dataset", store.folder.parent
        plain = dataset_config(new.config, home, home / "dataset")
        write_dataset(path, plain, new.data.splits, new.data.clock, None if fitted is None else fitted.numpy())
        dataset = store.write(path.read_bytes(), ".pth")
    return Base(weights, moments, dataset, store.write("\n".join(sorted(deleted)).encode(), ".txt"))


class Rows(NamedTuple):
    """New values of some rows of a parameter."""

    ids: torch.Tensor  # (n,)
    values: torch.Tensor  # (n, ...)

    def write(self, target: torch.Tensor) -> None:
        """Set the rows of ``target``."""
        torch.atleast_1d(target)[self.ids.to(target.device)] = self.values.to(target)


def changed(
    kind: str, now: Mapping[str, torch.Tensor], earlier: Sequence[Earlier], others: Tensors | None = None
) -> tuple[dict[str, Rows], float]:  # fmt: skip
    """The rows of tensors of a kind that differ from what they were, and the sum of ‖now − before‖² over them.

    ``earlier`` has all rows that were written, in that order: no other is copied or compared. Of ``others``, given
    as they were, any row may be new. Integers are counters, and have no distance.
    """
    found, drift = dict[str, Rows](), 0.0
    for name, value in now.items():
        value, written = torch.atleast_1d(value.detach()), [one for one in earlier if one.parameter == name]
        ids = torch.arange(len(value))
        if others and name in others:
            before = torch.atleast_1d(others[name])
        elif any(one.axis for one in written):  # columns: all rows have a part of them
            before = value.clone()
        elif written:
            ids = torch.unique(torch.cat([one.rows.cpu() for one in written]))
            before = value[ids]
        else:
            continue
        for one in reversed(written):
            place = torch.searchsorted(ids, one.rows.cpu()) if len(ids) < len(value) else one.rows
            as_rows(before, one.axis)[place] = one.values
        differs = (before != value[ids]).reshape(len(before), -1).any(dim=1).nonzero().flatten().cpu()
        if len(differs):
            rows = found[f"{kind}.{name}"] = Rows(ids[differs], value[ids[differs]])
            if value.is_floating_point():
                drift += float((rows.values - before[differs]).square().sum())
    return found, drift


class Change(NamedTuple):
    """The effect of a request on a model: new rows of its weights and second moments, and new item counts."""

    rows: dict[str, Rows]  # by weights.NAME and moments.NAME
    fitted: torch.Tensor | None  # (items,), see data/item_counts.py
    drift: float  # ‖θ' − θ‖²

    def pack(self) -> bytes:
        """As safetensors."""
        tensors = {} if self.fitted is None else {"fitted": self.fitted}
        for name, rows in self.rows.items():
            tensors |= {f"{name}.rows": rows.ids, f"{name}.values": rows.values}
        return pack(tensors)

    @classmethod
    def unpack(cls, content: bytes, drift: float) -> Change:
        """Read it; ``drift`` is in the database."""
        tensors = unpack(content)
        names = [name.removesuffix(".rows") for name in tensors if name.endswith(".rows")]
        rows = {name: Rows(tensors[f"{name}.rows"], tensors[f"{name}.values"]) for name in names}
        return cls(rows, tensors.get("fitted"), drift)


def pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file."""
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return bytes(save(plain))


def unpack(content: bytes) -> Tensors:
    """The tensors in the bytes of a safetensors file."""
    try:
        found: Tensors = load(content)
    except safetensors.SafetensorError as error:
        raise UnlearnError(f"A file of tensors cannot be read: {error}. Run `requests verify`.") from error
    return found
