"""Download a missing dataset before RecBole looks for it: the run in which RecBole does so itself crashes afterwards.

`pooch` fetches the archive, which is untrusted: only the last part of a name in it counts, so nothing leaves the
folder, and what it unpacks to is checked before the first byte is written. The folder appears when it is complete.
"""

import fcntl
import logging
import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pooch
import yaml

from recbole_unlearn.errors import UnlearnError, nearest, shown
from recbole_unlearn.files import new_directory, remove_stale

TIMEOUT_SECONDS, RETRIES = 30.0, 3
SHARE = 2  # of the free disk, a half may be filled
_ARCHIVE, _TOO_MUCH = ".archive.zip", "more bytes than half of what is free; set data_path"

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
    known = _recbole_urls()
    url = url or known.get(name)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UnlearnError(
            f"Dataset [{name}]: {_missing(target, files)} is missing in {shown(directory)}; put it there, move the "
            "directory away so that it can be downloaded, or set data_path to where the dataset is."
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
                try:
                    _fill(folder, name, url, show_progress)
                    if lacking := _missing(folder, files):
                        raise ValueError(f"the archive lacks {lacking}")
                except Exception as error:  # a damaged archive can make zipfile and the decompressors raise anything
                    if isinstance(error, UnlearnError) or getattr(error, "errno", None):
                        raise  # the disk is full
                    reason = " ".join(str(error).split())
                    advice = f"Check the url. Try again later, or {by_hand}."
                    raise UnlearnError(f"Cannot download dataset [{name}] from {url}: {reason}. {advice}") from error
    finally:
        os.close(lock)
    logger.info(f"Dataset [{name}] is ready in [{directory}].")


def _recbole_urls() -> dict[str, str]:
    return yaml.safe_load(resources.files("recbole").joinpath("properties/dataset/url.yaml").read_text())


def _missing(directory: Path, files: Sequence[str]) -> list[str]:
    return [file for file in files if not (directory / file).is_file()]


def _fill(folder: Path, name: str, url: str, show_progress: bool) -> None:
    """Download and unpack the archive into ``folder``: all files into one, with the name of the dataset in theirs."""
    address, _, checksum = url.partition("#sha256=")
    room = shutil.disk_usage(folder).free // SHARE

    def limit(response: Any, **_: Any) -> None:
        """Let no more arrive than there is room for, whatever the server says."""
        chunks = response.iter_content

        def limited(**options: Any) -> Iterator[bytes]:
            left = room
            for chunk in chunks(**options):
                left -= len(chunk)
                if left < 0:
                    raise UnlearnError(f"Dataset [{name}] from {address} has {_TOO_MUCH}.")
                yield chunk

        response.iter_content = limited

    pooch.get_logger().setLevel(logging.WARNING)
    source = pooch.create(
        folder, "", registry={_ARCHIVE: checksum or None}, urls={_ARCHIVE: address}, retry_if_failed=RETRIES
    )
    fetch = pooch.HTTPDownloader(show_progress, timeout=TIMEOUT_SECONDS, hooks={"response": limit})
    file = Path(source.fetch(_ARCHIVE, downloader=fetch))
    old = PurePosixPath(unquote(urlsplit(address).path)).stem
    with zipfile.ZipFile(file) as archive:
        members = [info for info in archive.infolist() if not info.is_dir()]
        if sum(info.file_size for info in members) > room:  # zipfile stops at the size that is declared
            raise ValueError(f"unpacked it has {_TOO_MUCH}")
        for info in members:
            own = PureWindowsPath(info.filename).name  # by the stricter rules: both slashes separate
            own = own if own.startswith(f"{name}.") else own.replace(old or name, name, 1)
            if not own.startswith("."):  # what desktops add
                with archive.open(info) as source, open(folder / own, "wb") as sink:
                    shutil.copyfileobj(source, sink)
    file.unlink()
