"""Fetch a dataset that is not there yet, before RecBole looks for it.

RecBole downloads a missing dataset by itself, but the run that does so crashes right after. Here
the same archive is fetched first: it is downloaded to a partial file that later runs can resume,
checked as untrusted input, unpacked beside its final place and only then moved there. So RecBole
finds either the whole dataset or no directory at all.
"""

import difflib
import http.client
import importlib.util
import json
import logging
import os
import posixpath
import re
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, BinaryIO

import yaml
from tqdm import tqdm

from recbole_unlearn.data.archive import NO_ROOM, BadArchiveError, unpack
from recbole_unlearn.errors import UnlearnError

TIMEOUT_SECONDS = 30.0
"""How long one network operation (connect, or wait for more bytes) may take."""
RETRIES = 3
"""How often a transfer that was cut off is continued before giving up."""
RETRY_WAIT_SECONDS = 1.0
CHUNK_BYTES = 1 << 16

_ATOMIC_SUFFIXES = {".inter", ".user", ".item"}

_logger = logging.getLogger(__name__)


def ensure_dataset(
    name: str,
    directory: str | os.PathLike,
    files: Sequence[str],
    url: str | None = None,
    show_progress: bool = True,
) -> None:
    """Make sure that the files of a dataset are where RecBole will look for them.

    Nothing happens if they are there. A directory that has files but not all of these is the user's
    and is left alone.

    Args:
        name: the dataset's name, the first part of its file names.
        directory: where RecBole will look, such as ``dataset/ml-1m``.
        files: the names that must be in ``directory``, such as ``["ml-1m.inter"]``.
        url: a zip archive of the dataset; by default the one that RecBole lists for ``name``.
        show_progress: show a progress bar while downloading.

    Raises:
        UnlearnError: the dataset is not complete and could not be downloaded.

    """
    directory = Path(directory)
    try:
        if not _missing(directory, files):
            return
        known = {} if url else _recbole_urls()
        url = url or known.get(name)
        _refuse_occupied(name, directory, files, can_download=url is not None)
        if url is None:
            raise UnlearnError(_unknown_dataset(name, directory, files, list(known)))
        job = _Job(name, url, directory, tuple(files))
        _check_job(job)
        _logger.info(f"Downloading dataset [{name}] from [{url}].")
        _download(job, show_progress)
        _install(job)
        _logger.info(f"Dataset [{name}] is ready in [{directory}].")
    except OSError as error:
        # Network errors are named where they happen, so this is the local disk.
        raise UnlearnError(
            f"Cannot prepare dataset [{name}] in [{directory}]: {_one_line(error)}; make room or "
            f"set data_path to a directory that can be written."
        ) from error


@dataclass(frozen=True)
class _Job:
    """One dataset to download."""

    name: str
    url: str
    directory: Path
    files: tuple[str, ...]

    @property
    def target(self) -> Path:
        """``directory`` behind symbolic links: a link to an empty directory can be filled."""
        return Path(os.path.realpath(self.directory))

    @property
    def part(self) -> Path:
        """The archive as far as it has been received."""
        return self.target.parent / f".{self.name}.zip.part"

    @property
    def note(self) -> Path:
        """Says which version of which url ``part`` is a part of."""
        return self.target.parent / f".{self.name}.zip.part.json"

    @property
    def by_hand(self) -> str:
        """The way out if the download does not work."""
        return f"put the files in place by hand: {_places(self.directory, self.files)}"


def _missing(directory: Path, files: Sequence[str]) -> list[str]:
    return [file for file in files if not (directory / file).is_file()]


def _places(directory: Path, files: Sequence[str]) -> str:
    return ", ".join(str(directory / file) for file in files)


def _one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# Before the download


def _refuse_occupied(name: str, directory: Path, files: Sequence[str], can_download: bool) -> None:
    """Raise if something is at ``directory`` that a download would have to overwrite."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UnlearnError(
            f"Dataset [{name}] should be in the directory [{directory}], but that is a file; "
            f"move it away or set data_path to where the dataset is."
        )
    if not any(directory.iterdir()):
        return
    missing = ", ".join(_missing(directory, files))
    # To somebody's own data, which cannot be fetched again, removal would be bad advice.
    remove = "remove the directory so that it can be downloaded, " if can_download else ""
    raise UnlearnError(
        f"Dataset [{name}]: [{missing}] is missing in [{directory}]; put it there, {remove}"
        f"or set data_path to where the dataset is."
    )


def _recbole_urls() -> dict[str, str]:
    """RecBole's own list of datasets, found without importing RecBole (and torch with it)."""
    spec = importlib.util.find_spec("recbole")
    for location in (spec and spec.submodule_search_locations) or ():
        path = Path(location, "properties", "dataset", "url.yaml")
        if path.is_file():
            listed = yaml.safe_load(path.read_text(encoding="utf-8"))
            return {str(name): str(url) for name, url in listed.items()}
    return {}


def _unknown_dataset(name: str, directory: Path, files: Sequence[str], known: list[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean [{close[0]}]? If it is your own, put" if close else "put"
    return f"Unknown dataset [{name}]: {hint} its files in place: {_places(directory, files)}."


def _check_job(job: _Job) -> None:
    """Refuse urls that are not on the web and names that would leave the directory."""
    try:
        scheme = urllib.parse.urlsplit(job.url).scheme
    except ValueError:
        scheme = None
    if scheme not in ("http", "https"):
        raise UnlearnError(
            f"Cannot download dataset [{job.name}] from [{job.url}]: only http and https urls are "
            f"accepted; {job.by_hand}."
        )
    if PureWindowsPath(job.name).name != job.name:
        raise UnlearnError(
            f"Dataset name [{job.name}] must not contain a path; {job.by_hand}, "
            f"or set data_path to the path and dataset to the name."
        )


# The download


@dataclass(frozen=True)
class _Note:
    """What the partial file is a part of."""

    url: str
    validator: str | None
    """The ETag or else Last-Modified of that version; without it nothing can be resumed."""
    size: int | None


def _download(job: _Job, show_progress: bool) -> None:
    """Receive the archive into ``job.part``, continuing what an earlier run left."""
    job.part.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1 + RETRIES):
        if attempt:
            time.sleep(RETRY_WAIT_SECONDS)
        if _is_whole(job) or _receive(job, show_progress):
            return
    note = _read_note(job)
    resumes = note is not None and note.validator is not None
    raise UnlearnError(
        f"The download of dataset [{job.name}] from [{job.url}] was cut off {1 + RETRIES} times; "
        f"the partial file [{job.part}] is kept and the next run "
        f"{'resumes' if resumes else 'starts again, as the server gives no version'}; "
        f"or {job.by_hand}."
    )


def _receive(job: _Job, show_progress: bool) -> bool:
    """Make one request and add its body to the part. True if the archive is now complete."""
    response, offset = _open_where_part_ends(job)
    with response:
        note = _read_note(job) if offset else _start_part(job, response)
        assert note is not None, "a part that was begun has a note beside it"
        with (
            open(job.part, "ab") as sink,
            tqdm(
                total=note.size,
                initial=offset,
                unit="B",
                unit_scale=True,
                ncols=100,
                desc=f"Download {job.name}",
                disable=not show_progress,
            ) as bar,
        ):
            ended = _copy_body(response, sink, bar)
    # A server may also answer with less than the range that was asked for.
    return ended and (note.size is None or _size(job.part) == note.size)


def _copy_body(response: http.client.HTTPResponse, sink: BinaryIO, bar: tqdm) -> bool:
    """Copy the body to ``sink``; False if it ended before its declared length."""
    left = response.length
    while left is None or left > 0:
        try:
            # Not read(): it would wait for a full chunk and lose it if the connection breaks.
            chunk = response.read1(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
        except (OSError, http.client.HTTPException) as error:
            _logger.warning(f"The download was cut off: {_one_line(error)}")
            return False
        if not chunk:
            # http.client says nothing when the server closes too early.
            return left is None
        sink.write(chunk)
        bar.update(len(chunk))
        left = None if left is None else left - len(chunk)
    return True


def _open_where_part_ends(job: _Job) -> tuple[http.client.HTTPResponse, int]:
    """Open the url at the end of the part, or at its start if the part cannot be continued."""
    offset, note = _size(job.part), _read_note(job)
    if offset and note is not None and note.validator:
        # With If-Range a server whose file has changed answers 200 and sends all of the new one.
        response = _request(job, {"Range": f"bytes={offset}-", "If-Range": note.validator})
        if response.status == 200:
            return response, 0
        if response.status == 206 and _continues(response, offset, note):
            return response, offset
        response.close()
    response = _request(job, {})
    if response.status != 200:
        response.close()
        raise _request_failed(job, f"unexpected answer HTTP {response.status}")
    return response, 0


def _continues(response: http.client.HTTPResponse, offset: int, note: _Note) -> bool:
    """True if a 206 answer is what follows in the same file (some servers ignore If-Range)."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip())
    if found is None or int(found[1]) != offset:
        return False
    same_size = found[2] == "*" or note.size is None or int(found[2]) == note.size
    return same_size and _validator(response) in (None, note.validator)


def _request(job: _Job, headers: dict[str, str]) -> Any:
    """Open the url; 416 (nothing at this range) is returned, every other failure raised."""
    try:
        request = urllib.request.Request(job.url, headers={"User-Agent": "recbole-unlearn", **headers})
        return _web_opener().open(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416 and headers:
            return error
        error.close()
        raise _request_failed(job, f"HTTP {error.code} {_one_line(error.reason)}") from error
    except urllib.error.URLError as error:
        raise _request_failed(job, _one_line(error.reason)) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _request_failed(job, _one_line(error)) from error


def _request_failed(job: _Job, reason: str) -> UnlearnError:
    return UnlearnError(
        f"Cannot download dataset [{job.name}] from [{job.url}]: {reason}; try again later or {job.by_hand}."
    )


def _web_opener() -> urllib.request.OpenerDirector:
    """Urllib's opener without its file, data and ftp handlers, which a redirect could reach."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


# The part and its note


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _is_whole(job: _Job) -> bool:
    """True if an earlier run received everything, but could not unpack it (a full disk)."""
    note = _read_note(job)
    return note is not None and note.size is not None and _size(job.part) == note.size > 0


def _read_note(job: _Job) -> _Note | None:
    """The note of the part, or None if it is absent, unreadable or of another url."""
    try:
        note = _Note(**json.loads(job.note.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return note if note.url == job.url else None


def _start_part(job: _Job, response: http.client.HTTPResponse) -> _Note:
    """Begin a new part for this response.

    The part is emptied before the note changes: if the process dies in between, an empty part is
    never resumed, while old bytes under a new note would be.
    """
    job.part.write_bytes(b"")
    note = _Note(job.url, _validator(response), response.length)
    job.note.write_text(json.dumps(asdict(note)), encoding="utf-8")
    return note


def _validator(response: http.client.HTTPResponse) -> str | None:
    """What If-Range may carry for this version: a strong ETag, or else the date."""
    etag = response.headers.get("ETag", "")
    return etag if etag.startswith('"') else response.headers.get("Last-Modified")


def _discard(job: _Job) -> None:
    job.part.unlink(missing_ok=True)
    job.note.unlink(missing_ok=True)


# Unpacking


def _install(job: _Job) -> None:
    """Unpack the archive beside its final place and move it there once it is complete."""
    try:
        with tempfile.TemporaryDirectory(dir=job.target.parent, prefix=f".{job.name}.") as holder:
            # A plain mkdir inside: the holder itself is readable for its owner only.
            unpacked = Path(holder, "unpacked")
            unpacked.mkdir()
            _unpack(job, unpacked)
            _rename_atomic_files(unpacked, _archive_name(job.url), job.name)
            _check_complete(job, unpacked)
            _put_in_place(job, unpacked)
    except (UnlearnError, OSError) as error:
        # A bad archive would only fail again, but a good one can wait for room on the disk.
        if getattr(error, "errno", None) not in NO_ROOM:
            _discard(job)
        raise
    _discard(job)


def _unpack(job: _Job, folder: Path) -> None:
    """Unpack the archive into ``folder``, all of it or (with an error) none that is kept."""
    try:
        unpack(job.part, folder)
    except BadArchiveError as error:
        raise _bad_archive(job, str(error)) from error


def _bad_archive(job: _Job, reason: str) -> UnlearnError:
    return UnlearnError(
        f"The archive of dataset [{job.name}] from [{job.url}] was refused and removed: {reason}; "
        f"check the url or {job.by_hand}."
    )


def _archive_name(url: str) -> str:
    """``Amazon_Beauty`` for ``https://.../Amazon_Beauty.zip?download=1``."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(url).path)
    return posixpath.splitext(posixpath.basename(path))[0]


def _rename_atomic_files(folder: Path, old: str, new: str) -> None:
    """Give the files the dataset's name, as RecBole's ``rename_atomic_files`` does.

    Unlike there, files that bear the name already stay (``ml.zip`` may hold ``ml-1m.inter``, which
    must not become ``ml-1m-1m.inter``), and no file is renamed over another.
    """
    for path in sorted(folder.iterdir()):
        renamed = folder / (path.stem.replace(old, new) + path.suffix) if old else path
        if renamed == path or path.name.startswith(f"{new}.") or renamed.exists():
            continue
        if path.suffix not in _ATOMIC_SUFFIXES:
            _logger.warning(f"Moving downloaded file with suffix [{path.suffix}].")
        path.rename(renamed)


def _check_complete(job: _Job, unpacked: Path) -> None:
    missing = _missing(unpacked, job.files)
    if missing:
        held = sorted(path.name for path in unpacked.iterdir())
        raise _bad_archive(job, f"it lacks {missing}, but holds {held[:10]}")


def _put_in_place(job: _Job, unpacked: Path) -> None:
    try:
        if job.target.exists():
            # Windows does not replace a directory; rmdir spares one that is not empty.
            job.target.rmdir()
        os.replace(unpacked, job.target)
    except OSError:
        # Two runs started together: the other one was first, and its files are as good.
        if _missing(job.directory, job.files):
            raise
