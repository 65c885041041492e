"""Download a missing dataset before RecBole looks for it: the run in which RecBole does so itself crashes afterwards.

RecBole's own functions fetch and unpack it, into a new folder that appears under its name when it is complete. An
archive is not trusted further than that: zipfile writes nothing outside the folder, but how large the archive is and
how long it takes are not limited.
"""

import functools
import logging
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path, PureWindowsPath

import yaml
from recbole.utils import url as recbole_url
from tqdm import tqdm

from recbole_unlearn.errors import UnlearnError, nearest, shown
from recbole_unlearn.files import file_digest, new_directory, remove_stale
from recbole_unlearn.recbole_compat import replaced

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
    remove_stale(target.parent, f".{target.name}.*.tmp")
    with new_directory(target) as folder:
        try:
            _fill(folder, name, url, show_progress)
            if lacking := _missing(folder, files):
                raise ValueError(f"the archive lacks {lacking}")
        except Exception as error:  # a damaged archive can make zipfile and the decompressors raise anything
            reason, advice = " ".join(str(error).split()), f"Check the url. Try again later, or {by_hand}."
            raise UnlearnError(f"Cannot download dataset [{name}] from {url}: {reason}. {advice}") from error
    logger.info(f"Dataset [{name}] is ready in [{directory}].")


def _recbole_urls() -> dict[str, str]:
    return yaml.safe_load(resources.files("recbole").joinpath("properties/dataset/url.yaml").read_text())


def _missing(directory: Path, files: Sequence[str]) -> list[str]:
    return [file for file in files if not (directory / file).is_file()]


def _fill(folder: Path, name: str, url: str, show_progress: bool) -> None:
    """As RecBole's `Dataset._download`: the archive is unpacked, and its files get the name of the dataset."""
    address, _, checksum = url.partition("#sha256=")
    with replaced(recbole_url, "tqdm", functools.partial(tqdm, disable=not show_progress)):
        archive = Path(recbole_url.download_url(address, str(folder)))
    if checksum and file_digest(archive) != checksum:
        raise ValueError("its SHA-256 is not the one given")
    recbole_url.extract_zip(archive, folder)
    archive.unlink()
    recbole_url.rename_atomic_files(folder, archive.stem, name)
