"""Files of a state, named by the SHA-256 of their content: written once, checked when they are read."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.inputs import read_regular, shown
from recbole_unlearn.state.deltas import digest

LARGEST = 2**40  # bytes of a file
_TEMPORARY = ".new-"


class Store:
    """The folder of a state that holds its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """Where the file of this name is."""
        return self.folder / name

    def write(self, content: bytes, suffix: str = ".safetensors") -> str:
        """Write ``content``, to the disk itself; returns its name. What is there already is not written again."""
        name = digest(content) + suffix
        target = self.path(name)
        if target.is_file():
            return name
        try:
            descriptor, temporary = tempfile.mkstemp(dir=self.folder, prefix=_TEMPORARY)
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(temporary, target)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
            sync(self.folder)
        except OSError as error:
            raise self._cannot_write(error) from error
        return name

    @contextlib.contextmanager
    def workplace(self) -> Iterator[Path]:
        """A directory for files on their way; one whose process was killed is a leftover, as files are."""
        try:
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=_TEMPORARY) as folder:
                yield Path(folder)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> UnlearnError:
        return UnlearnError(
            f"Cannot write to {shown(self.folder)}: {error.strerror or error}. The state is as it was; free some "
            "space or mend its permissions, and run the same command again."
        )

    def read(self, name: str) -> bytes:
        """The content of a file; refused if it is not what its name says."""
        try:
            content = read_regular(self.path(name), LARGEST)
        except OSError as error:
            raise UnlearnError(f"Cannot read {shown(self.path(name))}: {error.strerror or error}.") from error
        if digest(content) != name.split(".")[0]:
            raise UnlearnError(
                f"{shown(self.path(name))} is not the file that was written: its content was changed or damaged. "
                "Restore the state from a backup."
            )
        return content

    def names(self) -> set[str]:
        """The files that are there."""
        return {entry.name for entry in self.folder.iterdir()}

    def destroy_others(self, kept: Iterable[str]) -> int:
        """Overwrite and remove every file but ``kept``, and every directory; returns how many."""
        others = self.names() - set(kept)
        try:
            for name in sorted(others):
                _destroy(self.path(name))
            if others:
                sync(self.folder)
        except OSError as error:
            raise UnlearnError(
                f"Cannot remove files from {shown(self.folder)}: {error.strerror or error}. The state is whole, but "
                "has files that belong to nothing; mend its permissions, and run `requests publish`."
            ) from error
        return len(others)


def _destroy(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for entry in path.iterdir():
            _destroy(entry)
        path.rmdir()
        return
    with contextlib.suppress(OSError):  # a link, or a disk that is full: removing it is all that can be done
        _overwrite(path)
    path.unlink(missing_ok=True)


def _overwrite(path: Path) -> None:
    """Zeros in the place of a file's content, where the file system writes in place."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode):
            left = about.st_size
            zeros = bytes(min(left, 2**20))
            while left > 0:
                left -= os.write(descriptor, zeros[: min(left, len(zeros))])
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
