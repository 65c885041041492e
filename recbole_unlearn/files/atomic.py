"""Writing files so that a final name never holds half a file.

Everything the plugin saves goes through :func:`atomic`: the content is written to a temporary name in
the same directory, flushed to disk, and renamed. A killed process leaves a `.tmp` file at most, a full
disk leaves nothing, and what stood under the name before is kept until the very last step.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from recbole_unlearn.errors import UnlearnError


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path`` for writing; it takes the name when the block succeeds."""
    path = Path(path)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        with os.fdopen(descriptor, "wb") as stream:
            fcntl.flock(
                stream, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # held while it is written, see outputs.remove_stale
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~current_umask())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise _cannot_write(path, error) from error
        raise


def current_umask() -> int:
    """The process's umask, which only setting it tells."""
    current = os.umask(0)
    os.umask(current)
    return current


def _cannot_write(path: Path, error: OSError) -> UnlearnError:
    return UnlearnError(
        f"Cannot write {path}: {error.strerror or error}. Free some space or choose another directory."
    )


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as readable JSON; NaN is refused, since other tools cannot read it."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    with atomic(path) as stream:
        stream.write(text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` as it is."""
    with atomic(path) as stream:
        stream.write(content)


def write_torch(path: Path, content: Any) -> None:
    """Write ``content`` with `torch.save`, in the pickle protocol RecBole uses."""
    with atomic(path) as stream:
        try:
            torch.save(content, stream, pickle_protocol=4)
        except RuntimeError as error:
            # torch reports a failed write (a full disk) as a RuntimeError of its zip writer.
            raise OSError(str(error).splitlines()[0]) from error


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A temporary directory beside ``path`` to fill; it takes the name when the block succeeds."""
    path = Path(path)
    temporary, descriptor = None, None
    try:
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
        descriptor = os.open(temporary, os.O_RDONLY)
        fcntl.flock(
            descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB
        )  # held while it is filled, see outputs.remove_stale
        yield temporary
        os.chmod(temporary, 0o777 & ~current_umask())
        if path.exists():  # a directory cannot be renamed over another: the old one steps aside
            aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".old"))
            os.replace(path, aside / path.name)
            os.replace(temporary, path)
            shutil.rmtree(aside)
        else:
            os.replace(temporary, path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def make_directory(path: str | os.PathLike) -> Path:
    """Create ``path`` if needed and make sure that it can be written to, before any work is done."""
    directory = Path(path).resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except OSError as error:
        raise UnlearnError(
            f"Cannot write to the directory {directory}: {error.strerror or error}. "
            "Choose another with --output_dir (or --cache_dir)."
        ) from error
