"""Unpacking a zip file as untrusted input.

No path leaves the folder, no link or special file is made, and an archive that would fill the disk is
refused before its first byte is written.
"""

import errno
import lzma
import posixpath
import shutil
import stat
import zipfile
import zlib
from pathlib import Path, PureWindowsPath

MAX_UNPACKED_BYTES = 64 << 30
"""No archive may unpack to more than this."""
MAX_EXPANSION = 200
"""An archive may not unpack to more than this many times its size ..."""
EXPANSION_FREE_BYTES = 1 << 30
"""... unless what it unpacks to is small anyway: a repetitive text file compresses very well."""
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,  # bz2, and a name that the file system does not take
    RuntimeError,  # encrypted, or an unknown way of compression
    ValueError,
)
"""What unpacking may raise because of the bytes in the archive."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Errors of the disk rather than of the archive."""


class BadArchiveError(Exception):
    """The archive is damaged or unsafe; the message completes "it was refused: ..."."""


def unpack(file: Path, folder: Path) -> None:
    """Unpack the zip ``file`` into ``folder``, dropping the one sub folder its files may share.

    Raises:
        BadArchiveError: it is not a zip, is damaged, or asks for something unsafe. What was unpacked by
            then is the caller's to remove.
        OSError: the disk is full.

    """
    try:
        with zipfile.ZipFile(file) as archive:
            _refuse_bomb(file.stat().st_size, archive)
            for info, path in _members(archive):
                destination = folder / path
                destination.parent.mkdir(parents=True, exist_ok=True)
                # zipfile stops at the declared size and checks the CRC at the end.
                with archive.open(info) as source, open(destination, "xb") as sink:
                    shutil.copyfileobj(source, sink)
    except _UNREADABLE as error:
        if getattr(error, "errno", None) in NO_ROOM:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadArchiveError(f"it is not a readable zip file ({reason})") from error


def _refuse_bomb(size: int, archive: zipfile.ZipFile) -> None:
    unpacked = sum(info.file_size for info in archive.infolist())
    # The size on disk, as overlapping members can claim the same compressed bytes many times.
    too_dense = unpacked > MAX_EXPANSION * size and unpacked > EXPANSION_FREE_BYTES
    if unpacked > MAX_UNPACKED_BYTES or too_dense:
        raise BadArchiveError(f"it would unpack to {unpacked} bytes, too many for its size")


def _members(archive: zipfile.ZipFile) -> list[tuple[zipfile.ZipInfo, str]]:
    """The files to unpack, each with its path below the dataset's directory.

    If files sit in a sub folder of the archive, the folder they have in common is dropped.
    """
    paths = {}
    for info in archive.infolist():
        path = _safe_path(info)
        if _is_folder(info) or _is_desktop_clutter(path):
            continue
        paths[info] = path
    folders = [folder for folder in map(posixpath.dirname, paths.values()) if folder]
    common = posixpath.commonpath(folders) if folders else ""
    members = [(info, _without(path, common)) for info, path in paths.items()]
    if len({path for _, path in members}) < len(members):
        raise BadArchiveError("it holds two files of the same name")
    return members


def _safe_path(info: zipfile.ZipInfo) -> str:
    """The member's path with forward slashes; an error if it could leave the directory."""
    # Windows rules are the stricter ones: both slashes separate, drives and shares are known.
    path = PureWindowsPath(info.filename)
    if path.anchor or ".." in path.parts or not (path.parts or _is_folder(info)):
        raise BadArchiveError(f"the path {info.filename!r} in it is not safe")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadArchiveError(f"{info.filename!r} in it is a link or special file")
    return "/".join(path.parts)


def _is_folder(info: zipfile.ZipInfo) -> bool:
    """``info.is_dir()``, but also for Windows slashes and the empty name (where that crashes)."""
    return info.filename.endswith(("/", "\\"))


def _is_desktop_clutter(path: str) -> bool:
    """True for what macOS adds to an archive; it would hide the one folder to drop."""
    return path.startswith("__MACOSX/") or posixpath.basename(path) == ".DS_Store"


def _without(path: str, folder: str) -> str:
    return path.removeprefix(f"{folder}/") if folder else path
