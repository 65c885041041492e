"""Download a missing dataset before RecBole looks for it: the run in which RecBole does so itself crashes afterwards.

`pooch` fetches the archive. It is untrusted: no path leaves its folder, no link is made, and its unpacked size is
checked before the first byte is written. The folder appears under its name when it is complete.
"""

import fcntl
import io
import logging
import os
import shutil
import stat
import urllib.parse
import zipfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pooch
import requests
import yaml

from recbole_unlearn.errors import UnlearnError, nearest, shown
from recbole_unlearn.files import new_directory, remove_stale

TIMEOUT_SECONDS, RETRIES = 30.0, 3
LARGEST = 64 << 30  # bytes that an archive may unpack to
DENSEST, FREE = 200, 1 << 30  # at most 200 times its size, unless it unpacks to less than a gigabyte
_ARCHIVE = ".archive.zip"
_PLAIN = {"Accept-Encoding": "identity"}  # so that the length is that of the archive
_KINDS = (0, stat.S_IFREG, stat.S_IFDIR)  # of entries in a zip file

logger = logging.getLogger(__name__)


def ensure_dataset(
    name: str, directory: str | os.PathLike, files: Sequence[str], url: str | None = None, show_progress: bool = True
) -> None:
    """Make sure that ``files`` of the dataset ``name`` are in ``directory``, where RecBole looks for them.

    If not, the zip at ``url`` (`#sha256=...` at its end) or RecBole's is downloaded; other files there stay.
    """
    target = Path(os.path.realpath(directory))  # a link to an empty directory can be filled
    if not _missing(target, files):
        return
    by_hand = "put the files in place by hand: " + ", ".join(str(Path(directory, file)) for file in files)
    known = {} if url else _recbole_urls()
    url = url or known.get(name)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        remove = "move the directory away so that it can be downloaded, " if url else ""
        raise UnlearnError(
            f"Dataset [{name}]: {_missing(target, files)} is missing in {shown(directory)}; put it there, {remove}"
            "or set data_path to where the dataset is."
        )
    if url is None:
        raise UnlearnError(f"Unknown dataset [{name}].{nearest(name, known)} If it is your own, {by_hand}.")
    if not url.startswith(("http://", "https://")) or PureWindowsPath(name).name != name:
        raise UnlearnError(
            f"Cannot download dataset [{name}] from {url}: the url has to start with https:// or http://, and the "
            f"name must not be a path; {by_hand}."
        )
    logger.info(f"Downloading dataset [{name}] from [{url}].")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(target.parent, os.O_RDONLY)
    except OSError as error:
        raise UnlearnError(f"Cannot write to {shown(target.parent)}: {error.strerror}. Set data_path.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two runs that start together, the second finds the files of the first
        remove_stale(target.parent, f".{target.name}.*.tmp")
        if _missing(target, files):
            with new_directory(target) as folder:
                _fill(folder, name, url, files, show_progress, by_hand)
    finally:
        os.close(lock)
    logger.info(f"Dataset [{name}] is ready in [{directory}].")


def _recbole_urls() -> dict[str, str]:
    return yaml.safe_load(resources.files("recbole").joinpath("properties/dataset/url.yaml").read_text())


def _missing(directory: Path, files: Sequence[str]) -> list[str]:
    return [file for file in files if not (directory / file).is_file()]


def _fill(folder: Path, name: str, url: str, files: Sequence[str], show_progress: bool, by_hand: str) -> None:
    """Download and unpack the archive into ``folder``, and give its files the name of the dataset."""
    address, _, checksum = url.partition("#sha256=")
    pooch.get_logger().setLevel(logging.WARNING)
    source = pooch.create(
        folder, "", registry={_ARCHIVE: checksum or None}, urls={_ARCHIVE: address}, retry_if_failed=RETRIES
    )

    def download(address: str, file: str, source: pooch.Pooch) -> None:
        with _Limited(file, "wb") as sink:
            hooks = {"response": lambda response, **_: sink.allow(response.headers.get("content-length"))}
            fetch = pooch.HTTPDownloader(show_progress, timeout=TIMEOUT_SECONDS, headers=_PLAIN, hooks=hooks)
            fetch(address, sink, source)

    try:
        source.fetch(_ARCHIVE, downloader=download)
    except (requests.RequestException, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UnlearnError(
            f"Cannot download dataset [{name}] from {address}: {reason}. Try again later, or {by_hand}."
        ) from error
    stem = PurePosixPath(urllib.parse.unquote(urllib.parse.urlsplit(address).path)).stem
    try:
        _unpack(folder, stem, name)
        if _missing(folder, files):
            raise ValueError(f"it lacks {_missing(folder, files)}")
    except Exception as error:  # a damaged archive can make zipfile and the decompressors raise anything
        if getattr(error, "errno", None):
            raise  # the disk is full
        raise UnlearnError(
            f"The archive of dataset [{name}] from {address} was refused: {' '.join(str(error).split())}. "
            f"Check the url, or {by_hand}."
        ) from error


class _Limited(io.FileIO):
    """A file that takes as many bytes as the server said, or up to a gigabyte if it said nothing."""

    left = 0

    def allow(self, length: str | None) -> None:
        """Take this many bytes, if there is room for them and for what they unpack to."""
        room = min(LARGEST, shutil.disk_usage(os.path.dirname(str(self.name))).free // 2)
        self.left = int(length) if length else min(FREE, room)
        if self.left > room:
            raise UnlearnError(f"The download has {self.left} bytes, more than half of what is free. Set data_path.")

    def write(self, data: Any) -> int:
        """As the base class."""
        self.left -= len(data)
        if self.left < 0:
            raise UnlearnError("The download has more bytes than it says, or than one without a length may have.")
        return super().write(data)


def _unpack(folder: Path, old: str, new: str) -> None:
    """Unpack all files into one folder, ``old`` in their names as ``new``, as in RecBole; ValueError if unsafe."""
    file = folder / _ARCHIVE
    with zipfile.ZipFile(file) as archive:
        members: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist():
            path = PureWindowsPath(info.filename)  # the stricter rules: both slashes separate, drives are known
            if path.anchor or ".." in path.parts or stat.S_IFMT(info.external_attr >> 16) not in _KINDS:
                raise ValueError(
                    f"{info.filename!r} in it is a link, a special file or a path that leaves its folder"
                )
            if info.filename.endswith(("/", "\\")) or path.name.startswith("."):
                continue  # folders, and what desktops add
            name = path.name if path.name.startswith(f"{new}.") else path.name.replace(old or new, new, 1)
            if not name or name in members:
                raise ValueError("it holds two files of one name, or one without a name")
            members[name] = info
        size = sum(info.file_size for info in members.values())
        if size > LARGEST or size > max(FREE, DENSEST * file.stat().st_size):
            raise ValueError(f"it would unpack to {size} bytes, too many for its size")
        for name, info in members.items():  # zipfile stops at the declared size and checks the CRC at the end
            with archive.open(info) as source, open(folder / name, "xb") as sink:
                shutil.copyfileobj(source, sink)
    file.unlink()
