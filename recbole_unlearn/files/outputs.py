"""The output directory of a run: claimed by one run at a time, and filled as one unit.

A run writes into a temporary directory that nobody else sees. When it has succeeded, that directory takes the name of
the output directory in one step, or, where other files are there already, its files are moved in under the lock,
`result.json` last. A killed run leaves the output directory as it was, and its temporary directory goes with the next
run. A run that fails or is stopped leaves its log at most, one that was refused nothing, and no directory is left
empty.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files.atomic import current_umask, make_directory
from recbole_unlearn.inputs import shown
from recbole_unlearn.log import uninterrupted

RESULT, LOG = "result.json", "run.log"
_OURS = (
    RESULT, "report.html", "*-unlearned.pth", "*-unlearned", "*-Dataset.pth", "tensorboard", "adapters", LOG,
)  # fmt: skip
_TRIES = 5  # to remove what a thread may be writing to
_TELLING = (RESULT, "*-unlearned.pth", "*-unlearned")  # what a finished run leaves at least


def refuse_result(directory: Path, replace: bool) -> None:
    """Refuse a directory that holds the result of an earlier run, unless it is to be replaced."""
    if not replace and directory.is_dir() and any(next(directory.glob(name), None) for name in _TELLING):
        raise UnlearnError(
            f"{shown(directory)} holds the result of an earlier run. Choose another --output_dir, or add --replace: "
            "the earlier result and unlearned model are then removed, and with them the deletions they made."
        )


@contextlib.contextmanager
def made(path: str | os.PathLike) -> Iterator[Path]:
    """A directory that is there and can be written to; it goes again, with its new parents, if it stays empty."""
    directory = Path(path).resolve()
    new = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        yield make_directory(directory)
    finally:
        for folder in new:
            with contextlib.suppress(OSError):  # something is in it
                folder.rmdir()


@contextlib.contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Hold a directory for this process; another that holds it is not disturbed."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UnlearnError(
                f"Another run is writing to {shown(directory)}. Wait for it, or choose another --output_dir."
            ) from error
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def staged(path: str | os.PathLike, replace: bool = False) -> Iterator[tuple[Path, Path]]:
    """A temporary directory to fill, and the directory its files are in once the block has succeeded.

    When the block fails, only the log is kept.
    """
    with made(path) as directory, claimed(directory):
        alone = not any(directory.iterdir()) and _can_hold(directory)
        home, prefix = (directory.parent, f".{directory.name}.") if alone else (directory, ".run-")
        remove_stale(home, f"{prefix}*.run")
        remove_stale(directory, ".replaced-*")  # of a run that was killed while it replaced another's result
        staging, published = Path(tempfile.mkdtemp(dir=home, prefix=prefix, suffix=".run")), False
        try:
            with claimed(staging):
                yield staging, directory
            os.chmod(staging, 0o777 & ~current_umask())
            with uninterrupted():
                _publish(staging, directory, alone)
                published = True
        except BaseException as error:
            if published:  # it was stopped while that had to wait
                error.args = (f"the result was written before, to {shown(directory)}.",)
            with contextlib.suppress(OSError):
                os.replace(staging / LOG, directory / LOG)
            raise
        finally:
            with uninterrupted():
                _remove(staging)


def _remove(folder: Path) -> None:
    """Remove a directory; again where another thread (TensorBoard's) still wrote into it."""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def _can_hold(directory: Path) -> bool:
    """Whether a temporary directory beside ``directory`` can take its place."""
    parent = directory.parent
    return os.access(parent, os.W_OK | os.X_OK) and parent.stat().st_dev == directory.stat().st_dev


def _publish(staging: Path, directory: Path, alone: bool) -> None:
    if alone:
        os.rename(staging, directory)  # over an empty directory, in one step
        _sync(directory.parent)
        return
    with _aside(directory):
        for entry in sorted(staging.iterdir(), key=lambda entry: entry.name == RESULT):
            os.replace(entry, directory / entry.name)
    _sync(directory)


@contextlib.contextmanager
def _aside(directory: Path) -> Iterator[None]:
    """Move what earlier runs left into a folder that goes at the end; nothing that is not ours is touched."""
    old = Path(tempfile.mkdtemp(dir=directory, prefix=".replaced-"))
    try:
        found = {entry for name in _OURS for entry in directory.glob(name)}
        for entry in sorted(found, key=lambda entry: entry.name != RESULT):  # the result goes first
            os.replace(entry, old / entry.name)
        yield
    finally:
        shutil.rmtree(old, ignore_errors=True)


def remove_stale(directory: Path, pattern: str) -> int:
    """Remove temporary files and directories that no process holds any more; returns how many."""
    removed = 0
    for entry in directory.glob(pattern):
        try:
            descriptor = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # somebody works on it
        else:
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
            removed += 1
        finally:
            os.close(descriptor)
    return removed


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
