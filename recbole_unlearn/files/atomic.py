"""Writing files and output directories so that a final name never holds half of them.

A file (:func:`atomic`) or a directory (:func:`new_directory`) is written under a temporary name next to its place,
flushed to disk and renamed. A killed process leaves temporary names at most, which :func:`remove_stale` finds: they
are locked while they are written. The outputs of a run (:func:`staged`) are filled in a temporary directory that
takes the name of the output directory in one step, or, where other files are in it, are moved in under a lock,
`result.json` last. A killed run leaves the directory as it was, a failed one its log at most; no new one stays empty.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.log import uninterrupted

RESULT, LOG = "result.json", "run.log"
_FINISHED = (RESULT, "*-unlearned.pth", "*-unlearned")  # each shows that a run has finished here
_OURS = (*_FINISHED, "report.html", "*-Dataset.pth", "tensorboard", "adapters", LOG)
_TRIES = 5  # to remove a directory that a thread may still be writing to


@contextlib.contextmanager
def atomic(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a temporary file next to ``path`` for writing; it takes the name when the block succeeds.

    ``mode`` is what the umask leaves of it.
    """
    path = Path(path)
    temporary = _unused(path.parent, f".{path.name}.", ".tmp")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise _cannot_write(path, error) from error
        raise


def _unused(folder: Path, prefix: str, suffix: str) -> Path:
    """A name in ``folder`` that no other process takes; unlike those of `tempfile`, its mode follows the umask."""
    return folder / f"{prefix}{secrets.token_hex(4)}{suffix}"


def _cannot_write(path: Path, error: OSError) -> UnlearnError:
    return UnlearnError(
        f"Cannot write {path}: {error.strerror or error}. Check the disk and its space, or choose another directory."
    )


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as readable JSON; NaN is refused, since other tools cannot read it."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` as it is."""
    with atomic(path) as stream:
        stream.write(content)


def write_torch(path: Path, content: Any) -> None:
    """Write ``content`` with `torch.save`, in the pickle protocol RecBole uses."""
    import torch

    with atomic(path) as stream:
        try:
            torch.save(content, stream, pickle_protocol=4)
        except RuntimeError as error:
            # torch reports a failed write (a full disk) as a RuntimeError of its zip writer.
            raise OSError(str(error).splitlines()[0]) from error


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A temporary directory next to ``path`` to fill; it takes the name when the block succeeds."""
    path = Path(path)
    temporary = _unused(path.parent, f".{path.name}.", ".tmp")
    try:
        temporary.mkdir(parents=True)
        with claimed(temporary):
            yield temporary
            if path.exists():  # a directory cannot be renamed over another: the old one is moved aside
                aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".old"))
                os.replace(path, aside / path.name)
                os.replace(temporary, path)
                shutil.rmtree(aside)
            else:
                os.replace(temporary, path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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


def remove_stale(directory: Path, pattern: str) -> None:
    """Remove temporary files and directories that no process has locked."""
    for entry in directory.glob(pattern):
        try:
            descriptor = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue
        if _locked(descriptor):  # else a process is writing to it
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
        os.close(descriptor)


def refuse_result(directory: Path, replace: bool) -> None:
    """Refuse a directory that holds the result of an earlier run, unless it is to be replaced."""
    if not replace and directory.is_dir() and any(next(directory.glob(name), None) for name in _FINISHED):
        raise UnlearnError(
            f"{shown(directory)} holds the result of an earlier run. Choose another --output_dir, or add --replace: "
            "the earlier result and unlearned model are then removed, and with them the deletions they made."
        )


@contextlib.contextmanager
def made(path: str | os.PathLike) -> Iterator[Path]:
    """A directory that exists and can be written to; it is removed, with its new parents, if it stays empty."""
    directory = Path(path).resolve()
    new = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        yield make_directory(directory)
    finally:
        for folder in new:
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()


@contextlib.contextmanager
def claimed(directory: Path, busy: str = "", patience: float = 0.0) -> Iterator[None]:
    """Lock a directory for this process; refused with ``busy`` when another one holds it for ``patience`` seconds."""
    until = time.monotonic() + patience
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            while not _locked(descriptor):
                if time.monotonic() >= until:
                    advice = "Wait for it, or choose another --output_dir."
                    raise UnlearnError(busy or f"Another run is writing to {shown(directory)}. {advice}")
                time.sleep(0.005)
        except OSError as error:
            raise _cannot_write(directory, error) from error
        yield


def _locked(descriptor: int) -> bool:
    """Lock a file, unless another process has; the system releases it when it is closed, or the process ends."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@contextlib.contextmanager
def staged(path: str | os.PathLike) -> Iterator[tuple[Path, Path]]:
    """A temporary directory to fill, and the one its files are in at the end; a block that fails leaves its log."""
    with made(path) as directory, claimed(directory):
        parent = directory.parent
        # A directory next to it can take its place if it is empty, on the same disk and we may write there.
        whole = not any(directory.iterdir()) and os.access(parent, os.W_OK | os.X_OK)
        whole = whole and parent.stat().st_dev == directory.stat().st_dev
        home, prefix = (parent, f".{directory.name}.") if whole else (directory, ".run-")
        remove_stale(home, f"{prefix}*.run")
        remove_stale(directory, ".replaced-*")  # of a run that was killed while it replaced an earlier result
        staging, published = _unused(home, prefix, ".run"), False
        try:
            staging.mkdir()
            with claimed(staging):
                yield staging, directory
            with uninterrupted():
                _publish(staging, directory, whole)
                published = True
        except BaseException as error:
            if published:  # the signal arrived while the directory was being renamed
                error.args = (f"the result was written before, to {shown(directory)}.",)
            with contextlib.suppress(OSError):
                os.replace(staging / LOG, directory / LOG)
            raise
        finally:
            with uninterrupted():
                for _ in range(_TRIES):  # TensorBoard's thread may still write into it
                    shutil.rmtree(staging, ignore_errors=True)
                    if not staging.exists():
                        break


def _publish(staging: Path, directory: Path, whole: bool) -> None:
    """Rename ``staging`` to ``directory``, or move its files in and those of earlier runs out; never other files."""
    if whole:
        os.rename(staging, directory)  # over an empty directory, in one step
        return sync(directory.parent)
    old = Path(tempfile.mkdtemp(dir=directory, prefix=".replaced-"))
    try:
        found = {entry for name in _OURS for entry in directory.glob(name)}
        for entry in sorted(found, key=lambda entry: entry.name != RESULT):  # the result first
            os.replace(entry, old / entry.name)
        for entry in sorted(staging.iterdir(), key=lambda entry: entry.name == RESULT):  # the result last
            os.replace(entry, directory / entry.name)
    finally:
        shutil.rmtree(old, ignore_errors=True)
    return sync(directory)


def sync(directory: Path) -> None:
    """Flush the names in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
