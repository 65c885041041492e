"""Keyed hashes: which request was carried out, on which model, with which result, for holders of the key.

A plain hash of a request hides nothing: hashing every user in turn finds the one who asked. A keyed hash
(HMAC-SHA256) is a random number without the key. The key is never stored with the hashes: it is in a file that
``hash_key`` names, in an environment variable, or in a file of the user's configuration, made when first needed.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.recbole_compat import other_parameters
from recbole_unlearn.settings import read_regular

VARIABLE = "RECBOLE_UNLEARN_KEY"
SHORTEST, LONGEST = 32, 4096  # characters of a key

logger = logging.getLogger(__name__)


class Done(NamedTuple):
    """A request that was carried out: its keyed hash, and the day."""

    digest: str
    date: str  # 2026-01-31

    @classmethod
    def of(cls, content: Any) -> tuple[Self, ...] | None:
        """The requests in a file; None if it holds something else."""
        if content is None:  # files of earlier versions
            return ()
        fits = isinstance(content, list) and all(
            isinstance(entry, tuple)
            and [type(part) for part in entry] == [str, str]
            and re.fullmatch(r"[0-9a-f]{64} \d{4}-\d\d-\d\d", " ".join(entry))
            for entry in content
        )
        return tuple(cls(*entry) for entry in content) if fits else None


def key_place(path: str | os.PathLike | None = None) -> str:
    """Where the key is: in a file, or in a variable of the environment."""
    return shown(path) if path is not None else VARIABLE if VARIABLE in os.environ else shown(_own_place())


def _own_place() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.join(Path.home(), ".config"), "recbole_unlearn", "key")


def load_key(path: str | os.PathLike | None = None, make: bool = True) -> bytes | None:
    """The key in ``path``, the environment, or the user's configuration, made if needed; None: no place for one.

    Without ``make`` it has to be there: another key does not fit hashes that were made before.
    """
    if path is not None:
        return _read(Path(path))
    if VARIABLE in os.environ:
        return _checked(os.environ[VARIABLE].encode(), f"The key in {VARIABLE}")
    try:
        place = _own_place()
        if not place.exists():
            if not make:
                raise UnlearnError(
                    f"There is no key {shown(place)}. Restore the state's own from its backup, or give it with "
                    "--hash_key=FILE."
                )
            _make(place)
    except (OSError, RuntimeError) as error:  # no home, or not writable
        logger.warning(
            "No key for hashes could be kept (%s), so the result has none. Give one with --hash_key=FILE.",
            getattr(error, "strerror", None) or error,
        )
        return None
    return _read(place)


def _read(path: Path) -> bytes:
    content = read_regular(path, LONGEST)
    if path.stat().st_mode & stat.S_IROTH:
        logger.warning("Every user of this machine can read the key %s; chmod 600 it.", shown(path))
    return _checked(content, f"The key {shown(path)}")


def _checked(content: bytes, name: str) -> bytes:
    key = content.strip()
    if not SHORTEST <= len(key) <= LONGEST:
        raise UnlearnError(
            f"{name} has {len(key)} characters; it needs {SHORTEST} to {LONGEST}. Make one with: python -c "
            "'import secrets; print(secrets.token_hex(32))'"
        )
    return key


def _make(place: Path) -> None:
    """Write a new key, whole and for its owner alone; of two processes that do so, the first wins."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=place.parent, prefix=".key.")  # mode 600
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_hex(32) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, place)
    finally:
        os.unlink(temporary)
    logger.info("A key for the hashes in results was made: %s. Keep a copy of it, apart from models.", place)


def keyed_hash(key: bytes, purpose: str, payload: bytes | Iterable[bytes]) -> str:
    """HMAC-SHA256 of ``payload`` in hex; the same bytes for another ``purpose`` have another hash."""
    inner, outer = (begun.copy() for begun in _begun(key))
    inner.update(purpose.encode() + b"\0")
    for part in (payload,) if isinstance(payload, bytes) else payload:
        inner.update(part)
    outer.update(inner.digest())
    return outer.hexdigest()


@functools.lru_cache(maxsize=4)
def _begun(key: bytes) -> list[Any]:
    """The inner and the outer hash of HMAC (RFC 2104), which have read the key: a fifth of the time of `hmac`."""
    block = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
    return [hashlib.sha256(bytes(byte ^ pad for byte in block)) for pad in (0x36, 0x5C)]


def request_digest(key: bytes, frame: pd.DataFrame) -> str:
    """The hash of a request, by what it asks for: not by its order, its repetitions or the kind of its file.

    Columns of ``frame`` are user, item (None: all) and time (NaN: any). A row that another one covers does not count.
    """
    rows = {
        (user, item, None if np.isnan(time) else float(time))
        for user, item, time in zip(frame["user"], frame["item"], frame["time"], strict=True)
    }
    lines = []
    for user, item, time in rows:
        covers = {(user, None, None), (None, item, None), (user, item, None)} - {(user, item, time)}
        if user is None or item is None or not covers & rows:
            lines.append(json.dumps((user, item, time), ensure_ascii=True))
    return keyed_hash(key, "request", "\n".join(sorted(lines)).encode())


def model_digest(key: bytes, model: AbstractRecommender, settings: Mapping[str, Any]) -> str:
    """The hash of a model: its weights, its other parameters, and ``settings`` (plain values)."""

    def parts() -> Iterator[bytes]:
        yield json.dumps(settings, sort_keys=True, default=str).encode()
        for name, value in [*sorted(model.state_dict().items()), *sorted(other_parameters(model).items())]:
            yield f"\0{name}\0".encode()
            yield from _content(value)

    return keyed_hash(key, "model", parts())


def _content(value: Any) -> Iterator[bytes]:
    if sp.issparse(value):
        table = value.tocsr()
        value = np.concatenate([part.astype(np.float64) for part in (table.data, table.indices, table.indptr)])
    if isinstance(value, np.ndarray) and value.dtype != object:
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        yield f"{value.dtype} {list(value.shape)}".encode()
        yield flat.view(torch.uint8).numpy().tobytes()
    else:
        plain = value if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__
        yield repr(plain).encode()
