"""What is never to be recommended again: by ids while a request can be undone, then by keyed hashes alone.

A pair is suppressed from its submission on, before the model has changed. Publication replaces it by

    HMAC(key, user token, item token)

from which nobody without the key can tell the pair, and with which anybody who has the key can tell whether a pair is
one: when recommending, and when data that is about to be trained on is checked for what was deleted.
"""

from __future__ import annotations

import json

from recbole_unlearn.files.keyed import keyed_hash


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
