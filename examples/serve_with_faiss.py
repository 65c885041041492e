"""Serve recommendations with FAISS, and follow deletions: whole once, then by deltas and a suppression list.

Needs `pip install faiss-cpu`. docs/serving.md explains what an export has in it.
"""

import json
import secrets
import sys
import tempfile
from pathlib import Path

import faiss
import numpy as np
import pandas as pd
from recbole.data.dataset import Dataset
from safetensors.numpy import load_file
from train_plain import train

from recbole_unlearn.state import init_state, load_suppression


class Serving:
    """What a serving process holds: vectors of users, three indexes of items, and what is not to be recommended."""

    def __init__(self, export: Path, key: Path) -> None:
        self.key = key
        tables = load_file(export / "embeddings.safetensors")
        self.users, dimension = tables["users"].copy(), tables["users"].shape[1]
        self._read_names(export)
        rows = np.array(sorted(self.items), dtype=np.int64)
        vectors = tables["items"][rows]

        self.flat = faiss.IndexIDMap2(faiss.IndexFlatIP(dimension))
        self.flat.add_with_ids(vectors, rows)

        cells = max(1, int(len(rows) ** 0.5))
        self.coarse = faiss.IndexFlatIP(dimension)  # the IVF index only refers to it
        self.ivf = faiss.IndexIVFFlat(self.coarse, dimension, cells, faiss.METRIC_INNER_PRODUCT)
        self.ivf.train(vectors)
        self.ivf.add_with_ids(vectors, rows)
        self.ivf.nprobe = max(1, cells // 4)

        self.hnsw = self._new_hnsw(tables["items"])

    def _read_names(self, export: Path) -> None:
        """Whose rows they are, and what is suppressed: small files, read again with every export."""
        users, items = (pd.read_parquet(export / f"{side}.parquet") for side in ("users", "items"))
        self.rows_of_users = dict(zip(users["token"], users["row"], strict=True))
        self.items = dict(zip(items["row"], items["token"], strict=True))
        self.hidden = load_suppression(export / "suppression.json", self.key)

    def _new_hnsw(self, items: np.ndarray) -> faiss.Index:
        """HNSW cannot remove, so it is built again."""
        rows = np.array(sorted(self.items), dtype=np.int64)
        index = faiss.IndexIDMap2(faiss.IndexHNSWFlat(items.shape[1], 32, faiss.METRIC_INNER_PRODUCT))
        index.add_with_ids(items[rows], rows)
        return index

    def follow(self, export: Path) -> None:
        """Go on to the next export, one that has a delta `since` the last."""
        delta = load_file(export / "delta.safetensors")
        self.users[delta["users.removed"]] = 0.0
        self.users[delta["users.rows"]] = delta["users.vectors"]
        gone = np.concatenate([delta["items.rows"], delta["items.removed"]])
        for index in (self.flat, self.ivf):  # in place
            index.remove_ids(gone)
            index.add_with_ids(delta["items.vectors"], delta["items.rows"])
        self._read_names(export)
        if len(gone):
            self.hnsw = self._new_hnsw(load_file(export / "embeddings.safetensors")["items"])

    def recommend(self, user: str, k: int, index: faiss.Index) -> list[str]:
        """The first ``k`` items for a user that are not suppressed. Histories are the caller's to leave out."""
        vector = self.users[self.rows_of_users[user]][None]
        asked = k
        while True:
            rows = index.search(vector, min(asked, index.ntotal))[1][0]
            found = [self.items[row] for row in rows.tolist() if row >= 0]  # -1: there was no more to find
            left = [item for item in found if (user, item) not in self.hidden]
            if len(left) >= k or asked >= index.ntotal:
                return left[:k]
            asked *= 2


def find_pair(serving: Serving, data: Dataset) -> tuple[str, str]:
    """A user, and an item of theirs that is among the first ten recommended to them."""
    users, items = (data.id2token(field, data.inter_feat[field]) for field in ("user_id", "item_id"))
    seen = set(zip(users, items, strict=True))
    pairs = ((user, item) for user in serving.rows_of_users for item in serving.recommend(user, 10, serving.flat))
    return next(pair for pair in pairs if pair in seen)


def standing(serving: Serving, user: str, item: str) -> str:
    """Where an item is for a user: as recommended by each index, and by the model alone."""
    row = next(row for row, token in serving.items.items() if token == item)
    vector = serving.users[serving.rows_of_users[user]][None]
    alone = serving.flat.search(vector, serving.flat.ntotal)[1][0].tolist().index(row) + 1
    indexes = {"flat": serving.flat, "IVF": serving.ivf, "HNSW": serving.hnsw}
    shown = [name for name, index in indexes.items() if item in serving.recommend(user, 10, index)]
    return f"recommended by {', '.join(shown) or 'none'}; number {alone} by the model alone"


def main(work: Path) -> None:
    """Delete one interaction, and see what is recommended at every step."""
    config, _, loaders, trainer = train(str(work / "saved"))
    key = work / "key"  # in real life: in your vault, apart from models and states
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    state = init_state(work / "state", trainer.saved_model_file, hash_key=key, data_path=config["data_path"])
    last = work / "0-first"
    state.export(last)
    serving = Serving(last, key)
    user, item = find_pair(serving, loaders[0]._dataset)
    print(f"{'before':10} {standing(serving, user, item)}")

    state.submit({"user_id": user, "item_id": item})
    nothing = list  # the request is pending: only the list of what is suppressed is new
    steps = {"submitted": nothing, "done": state.run, "published": state.publish, "rebuilt": state.rebuild}
    for step, act in steps.items():
        act()
        state.export(work / step, since=last)
        last = work / step
        delta = json.loads((last / "export.json").read_text())["delta"]
        if delta is not None and delta["bytes"] < delta["whole_bytes"]:
            serving.follow(last)
        else:  # trained again, so all vectors are others: new indexes, and new cells of the IVF one
            serving = Serving(last, key)
        size = "all vectors" if delta is None else f"delta {delta['bytes']} of {delta['whole_bytes']} bytes"
        print(f"{step:10} {standing(serving, user, item)}; {size}")
    state.close()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    sys.argv = sys.argv[:1]
    main(target)
