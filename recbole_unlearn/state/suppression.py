"""What is never to be recommended again: by ids while a request can be undone, then by keyed hashes alone.

A pair is suppressed from its submission on, before the model has changed. Publication replaces it by

    HMAC(key, user token, item token)

from which nobody without the key can tell the pair, and with which anybody who has the key can tell whether a pair is
one: when recommending, and when data that is about to be trained on is checked for what was deleted.

A process that serves recommendations gets them as a file of hashes, with a keyed hash of the whole list: with another
key, or with an entry taken out, nothing would be suppressed and nobody would notice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import keyed_hash, load_key, write_json
from recbole_unlearn.inputs import read_regular, shown

SCHEMA = 1
LARGEST = 2**32  # bytes of a list


def pair_hash(key: bytes, user: str | None, item: str | None) -> str:
    """The keyed hash of a pair of tokens; None for everybody, or for everything."""
    return keyed_hash(key, "pair", json.dumps([user, item], ensure_ascii=True).encode())


class Suppression:
    """Pairs that are suppressed, by their tokens or by their hashes."""

    def __init__(self, key: bytes, pairs: set[tuple[str | None, str | None]], hashes: set[str]) -> None:
        self._key, self._pairs, self._hashes = key, pairs, hashes
        self._items = {item for user, item in pairs if user is None}

    def __contains__(self, pair: tuple[str, str]) -> bool:
        """Whether a pair (user token, item token) is suppressed, itself or with all of its item."""
        user, item = pair
        if pair in self._pairs or item in self._items:
            return True
        return bool(self._hashes) and any(
            pair_hash(self._key, *one) in self._hashes for one in ((user, item), (None, item))
        )

    def hashes(self) -> set[str]:
        """All of them as keyed hashes."""
        return self._hashes | {pair_hash(self._key, *pair) for pair in self._pairs}

    def __len__(self) -> int:
        return len(self._pairs) + len(self._hashes)


def write_suppression(path: Path, key: bytes, hashes: Iterable[str]) -> None:
    """Write keyed hashes as a file that :func:`load_suppression` reads."""
    ordered = sorted(hashes)
    write_json(path, {"schema": SCHEMA, "check": _check(key, ordered), "hashes": ordered})


def load_suppression(path: str | os.PathLike, key: str | os.PathLike | bytes | None = None) -> Suppression:
    """What an export says is never to be recommended; ask it for pairs: ``(user token, item token) in hidden``.

    Args:
        path: the `suppression.json` of an export.
        key: the file with the key of the state, or the key itself as bytes; the user's own when None.

    """
    known = key if isinstance(key, bytes) else load_key(key)
    try:
        content = json.loads(read_regular(path, LARGEST))
    except OSError as error:
        raise UnlearnError(f"Cannot read {shown(path)}: {error.strerror or error}.") from error
    except ValueError as error:
        raise UnlearnError(f"{shown(path)} is damaged: it is not JSON. Export the state again.") from error
    hashes = content.get("hashes") if isinstance(content, dict) else None
    if not isinstance(hashes, list) or not all(isinstance(one, str) for one in hashes):
        raise UnlearnError(f"{shown(path)} has no suppressed pairs. Give the suppression.json of an export.")
    if content.get("schema") != SCHEMA:
        raise UnlearnError(f"{shown(path)} is of a newer version of recbole-unlearn. Update recbole-unlearn.")
    if known is None or content.get("check") != _check(known, hashes):
        raise UnlearnError(
            f"{shown(path)} does not fit the key: it was made with another one, or it was changed. Give the state's "
            "own key, or export the state again."
        )
    return Suppression(known, set(), set(hashes))


def _check(key: bytes, hashes: list[str]) -> str:
    """The keyed hash of a whole list."""
    return keyed_hash(key, "suppression", "\n".join(hashes).encode())
