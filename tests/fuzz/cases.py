"""Hostile and damaged inputs, made from good ones by a seed: each case is a command line over files in one directory.

Four ways to make a bad file: damage its bytes, change one value deep inside it, splice operations into its pickle, and
swap files between runs. Every case that could run code would leave the file `ran`.
"""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

QUICK = [
    "--no_cache", "--no_tensorboard", "--report=none", "--no_show_progress", "--lac_steps=2", "--replace",
    "--demotion_negatives=5", "--epochs=1",
]  # fmt: skip
ODD: list[Callable[[random.Random], Any]] = [
    lambda r: None, lambda r: True, lambda r: -1, lambda r: 0, lambda r: r.choice([2**31, 2**63, 10**30]),
    lambda r: r.choice([1e38, 1e308, float("nan"), float("inf"), -0.5]), lambda r: "", lambda r: "x" * r.choice([1, 300, 20_000]),
    lambda r: r.choice(["../../etc/passwd", "/dev/zero", "\ud800", "a\nb", "__import__('os').system('touch ran')"]),
    lambda r: [], lambda r: {}, lambda r: [[[[[]]]]], lambda r: {"a": {"b": [1, None]}}, lambda r: b"bytes",
    lambda r: torch.zeros(r.choice([0, 1, 3])), lambda r: torch.full((2, 2), 1e38), lambda r: torch.zeros(2, 3, dtype=torch.int64),
    lambda r: np.arange(r.choice([0, 3])), lambda r: np.array([None, "x"], dtype=object), lambda r: np.float64("nan"),
    lambda r: np.array(["a", "b"]), lambda r: (1, 2), lambda r: {1, 2}, lambda r: torch.eye(3).to_sparse(),
]  # fmt: skip
PAYLOADS = [
    b"cos\nsystem\n(S'touch ran'\ntR", b"cbuiltins\neval\n(S\"open('ran','w')\"\ntR", b"cposix\nsystem\n(S'touch ran'\ntR",
    b"cnumpy\ndtype\n(S'O8'\nI00\nI01\ntR(I3\nS'|'\nNNNI-1\nI-1\nI63\ntb", b"cscipy.sparse\ncsr_matrix\n}S'dot'\nI1\nsb",
    b"(lp0\n0", b"I99999999999999999999\n", b"cbuiltins\ngetattr\n(S'a'\nS'b'\ntR", b"\x82\x01", b"P1\n", b"(((((((((((",
]  # fmt: skip


def leaves(tree: Any, path: tuple = ()) -> list[tuple]:
    """The paths of all values in nested dicts and lists."""
    found = [path] if path else []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        found += leaves(value, (*path, key))
    return found


def changed(tree: Any, r: random.Random) -> Any:
    """A copy with one value replaced, removed or renamed."""
    tree = copy.deepcopy(tree)
    *way, last = r.choice(leaves(tree))
    place = tree
    for key in way:
        place = place[key]
    what = r.random()
    if what < 0.75:
        place[last] = r.choice(ODD)(r)
    elif isinstance(place, dict) and what < 0.9:
        place[r.choice([3, "", "x" * 300, "unlearn", "output_dir", "threads"])] = place.pop(last)
    else:
        del place[last]
    return tree


def damaged(content: bytes, r: random.Random) -> bytes:
    """Bytes flipped, cut, doubled or mixed in."""
    data = bytearray(content)
    for _ in range(r.choice([1, 1, 2, 8, 64])):
        if not data:
            break
        at = r.randrange(len(data))
        kind = r.randrange(5)
        if kind == 0:
            data[at] ^= 1 << r.randrange(8)
        elif kind == 1:
            data[at : at + r.choice([1, 4, 100])] = r.randbytes(r.choice([0, 1, 4, 100]))
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            data[at:at] = data[: r.choice([4, 64, 1000])]
        else:
            data[at : at + 8] = struct.pack("<q", r.choice([0, -1, 2**31, 2**62]))
    return bytes(data)


def spliced(content: bytes, r: random.Random) -> bytes:
    """A pickle with operations of ours at the start, the end or anywhere in it."""
    payload = r.choice(PAYLOADS)
    if r.random() < 0.3:
        return b"\x80\x02" + payload + b"."
    at = r.choice([2, len(content) - 1, r.randrange(len(content))])
    return content[:at] + payload + (b"0" if r.random() < 0.5 else b"") + content[at:]


def in_zip(content: bytes, r: random.Random, change: Callable[[bytes, random.Random], bytes]) -> bytes:
    """A zip archive of torch with one of its records changed; now and then twice in it, or compressed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        records = [(info.filename, archive.read(info)) for info in archive.infolist()]
    main = next(k for k, (name, _) in enumerate(records) if name.endswith("data.pkl"))
    which = main if r.random() < 0.7 else r.randrange(len(records))
    out = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if r.random() < 0.1 else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", kind) as archive:
        for k, (name, data) in enumerate(records):
            archive.writestr(name, change(data, r) if k == which and data else data)
        if r.random() < 0.1:
            archive.writestr(records[main][0].replace("data.pkl", "constants.pkl"), b"x")
    return out.getvalue()


class Maker:
    """Makes cases from the outputs of a good run (``good``): a checkpoint with its dataset, and an ensemble."""

    def __init__(self, good: Path, data_path: Path) -> None:
        self.good, self.data_path = good, data_path
        self.checkpoint = (good / "BPR-unlearned.pth").read_bytes()
        self.plain = (good / "plain.pth").read_bytes()
        self.dataset = (good / "tiny-Dataset.pth").read_bytes()
        self.trusted = torch.load(good / "plain.pth", weights_only=False)
        self.kinds = [
            self.checkpoint_bytes, self.checkpoint_value, self.checkpoint_value, self.checkpoint_pickle,
            self.dataset_bytes, self.dataset_value, self.dataset_pickle, self.ensemble,
            self.config_file, self.config_file, self.grid_file, self.request_file, self.request_file, self.report, self.space_file,
        ]  # fmt: skip

    def make(self, seed: int, folder: Path) -> list[str]:
        """Write the files of case ``seed`` into ``folder``; returns the command line's arguments."""
        r = random.Random(seed)
        folder.mkdir(parents=True, exist_ok=True)
        return self.kinds[seed % len(self.kinds)](r, folder)

    def _request(self, folder: Path, text: str = "user_id\nu3\n") -> str:
        (folder / "r.csv").write_text(text)
        return f"--forget={folder / 'r.csv'}"

    def _start(self, folder: Path, content: bytes, dataset: bytes | None = None) -> list[str]:
        (folder / "c.pth").write_bytes(content)
        data = [f"--data_path={self.data_path}"]
        if dataset is not None:
            (folder / "tiny-Dataset.pth").write_bytes(dataset)
            data = []
        return [
            f"--checkpoint={folder / 'c.pth'}", self._request(folder), "--unlearn=obliviate",
            f"--output_dir={folder / 'out'}", *data, *QUICK,
        ]  # fmt: skip

    def checkpoint_bytes(self, r: random.Random, folder: Path) -> list[str]:
        change = damaged if r.random() < 0.5 else lambda content, r: in_zip(content, r, damaged)
        return self._start(folder, change(self.plain, r))

    def checkpoint_pickle(self, r: random.Random, folder: Path) -> list[str]:
        return self._start(folder, in_zip(self.plain, r, spliced))

    def _saved(self, content: Any) -> bytes:
        out = io.BytesIO()
        try:
            torch.save(content, out, pickle_protocol=4)
        except Exception:
            return self.plain[:100]
        return out.getvalue()

    def checkpoint_value(self, r: random.Random, folder: Path) -> list[str]:
        content = dict(self.trusted)
        if r.random() < 0.6:
            config = copy.copy(content["config"])
            config.final_config_dict = changed(dict(config.final_config_dict), r)
            if r.random() < 0.3:
                config.final_config_dict |= r.choice([
                    {"output_dir": "/elsewhere"}, {"threads": 10**6}, {"save_adapters": True}, {"lac_steps": 0},
                    {"data_path": "/etc"}, {"download_url": "http://127.0.0.1:9/x.zip"}, {"dataset": ".."}, {"model": "os"},
                    {"embedding_size": 10**9}, {"n_layers": 10**9}, {"benchmark_filename": ["../x"]}, {"teacher": "print(1)"},
                ])  # fmt: skip
            content["config"] = config
        else:
            content = {**changed({k: v for k, v in content.items() if k != "config"}, r), "config": content["config"]}
        return self._start(folder, self._saved(content))

    def dataset_bytes(self, r: random.Random, folder: Path) -> list[str]:
        return self._start(folder, self._unsigned(), damaged(self.dataset, r))

    def dataset_pickle(self, r: random.Random, folder: Path) -> list[str]:
        return self._start(folder, self._unsigned(), spliced(self.dataset, r))

    def dataset_value(self, r: random.Random, folder: Path) -> list[str]:
        dataset = pickle.loads(self.dataset)
        state = {k: v for k, v in dataset.__dict__.items() if k not in ("config", "logger")}
        frames = {k: v.to_dict("list") for k, v in state.items() if hasattr(v, "to_dict")}
        if r.random() < 0.4:
            name = r.choice(list(frames))
            column = r.choice(list(frames[name]))
            frames[name][column][r.randrange(len(frames[name][column]))] = r.choice(ODD)(r)
            state[name] = pd.DataFrame({k: pd.Series(v) for k, v in frames[name].items()})
        else:
            state = changed(state, r)
        dataset.__dict__.clear()
        dataset.__dict__.update(state)
        try:
            content = pickle.dumps(dataset, protocol=4)
        except Exception:
            content = self.dataset[:50]
        return self._start(folder, self._unsigned(), content)

    def _unsigned(self) -> bytes:
        """The unlearned checkpoint without the digest of its dataset, as older versions wrote it."""
        content = torch.load(io.BytesIO(self.checkpoint), weights_only=False)
        content.pop("unlearn_dataset_sha256", None)
        return self._saved(content)

    def ensemble(self, r: random.Random, folder: Path) -> list[str]:
        target = folder / "BPR-unlearned"
        shutil.copytree(self.good / "ensemble", target)
        file = r.choice(sorted(target.iterdir()))
        if file.suffix == ".json" and r.random() < 0.8:
            file.write_text(json.dumps(changed(json.loads(file.read_text()), r), default=str))
        else:
            file.write_bytes(damaged(file.read_bytes(), r))
        return [
            f"--checkpoint={target}", self._request(folder), "--unlearn=sisa", f"--output_dir={folder / 'out'}", *QUICK[:-1],
        ]  # fmt: skip

    def _plain_run(self, folder: Path, *more: str) -> list[str]:
        return [
            "--model=BPR", "--dataset=tiny", f"--data_path={self.data_path}", "--unlearn=retrain", "--embedding_size=4",
            f"--output_dir={folder / 'out'}", "--no_cache", "--no_tensorboard", "--report=none", "--no_show_progress",
            "--epochs=1", "--inject_mode=random", *more,
        ]  # fmt: skip

    def config_file(self, r: random.Random, folder: Path) -> list[str]:
        texts = [
            "epochs: {}", "? [a]\n: 1", "3: 4", "epochs: 1\nepochs: 2", "- a", "a: &x [*x]", "topk: [1, .nan]", "learning_rate: 1e400",
            "model: !!python/object/apply:os.system ['touch ran']", "eval_args: {split: {RS: [1]}}", "metrics: [Recall, eval]",
            "seed: -1", "embedding_size: 0", "x" * 5000, "{" * 3000, "\x00", "load_col: {inter: [x]}", "val_interval: {rating: 'os'}",
            "train_neg_sample_args: 3", "USER_ID_FIELD: [a]", "topk: 'a'", "valid_metric: 3", "output_dir: {}", "threads: 1000000000",
        ]  # fmt: skip
        text = r.choice(texts)
        if r.random() < 0.4:
            keys = [
                "epochs", "topk", "metrics", "eval_args", "load_col", "seed", "learner", "unlearn", "compare", "rank",
                "benchmark_filename",
            ]  # fmt: skip
            text = json.dumps({r.choice(keys): r.choice(ODD)(r)}, default=str)
        file = folder / "c.yaml"
        if r.random() < 0.03:
            os.mkfifo(file)
        else:
            content = text.encode("utf-8", "replace")
            file.write_bytes(damaged(content, r) if r.random() < 0.3 else content)
        return self._plain_run(folder, f"--config_files={file}")

    def grid_file(self, r: random.Random, folder: Path) -> list[str]:
        good = {
            "datasets": ["tiny"], "models": ["BPR"], "methods": ["finetune", "retrain"], "seeds": [1], "ratios": [0.1],
            "settings": {"epochs": 1, "inject_mode": "random"},
        }  # fmt: skip
        bad = changed(good, r)
        if r.random() < 0.3:
            key = r.choice(["output_dir", "data_path", "cache_dir", "download_url", "x"])
            bad = good | {"settings": {key: "/elsewhere"}}
        (folder / "g.yaml").write_text(json.dumps(bad, default=str))
        places = [f"--grid={folder / 'g.yaml'}", f"--output_dir={folder / 'out'}", f"--data_path={self.data_path}"]
        return [*places, "--no_cache", "--report=none", "--workers=1", "--embedding_size=4"]

    def request_file(self, r: random.Random, folder: Path) -> list[str]:
        texts = [
            "user_id\nu3\n", "u3\n", "user_id,item_id\nu3\n", "user_id,item_id\nu3,i1,2\n", "", "\n\n", "user_id\n\n", "user_id;item_id\nu3;i1\n",
            "user_id\nnobody\n", "item_id\ni3\n", "user_id,item_id,timestamp\nu3,i1,abc\n", "\ufeffuser_id\nu3\n", "user_id\n\x00\n",
            "user_id,user_id\nu3,u4\n", "user_id\n" + "u3\n" * 2000, 'user_id\n"u3\n', "user_id\nu3" + "x" * 70_000,
        ]  # fmt: skip
        suffix = r.choice([".csv", ".csv", ".tsv", ".jsonl", ".parquet", ".txt", ".json"])
        file = folder / f"q{suffix}"
        content = r.choice(texts).encode("utf-8", "replace")
        file.write_bytes(damaged(content, r) if r.random() < 0.5 and content else content)
        run = [a for a in self._plain_run(folder) if not a.startswith("--inject")]
        return [*run, f"--forget={file}", f"--on_missing={r.choice(['error', 'skip'])}"]

    def report(self, r: random.Random, folder: Path) -> list[str]:
        (folder / "run").mkdir()
        content = json.loads((self.good / "result.json").read_text())
        for _ in range(r.choice([1, 3])):
            content = changed(content, r)
        text = json.dumps(content, default=str)
        text = text if r.random() < 0.8 else text[: r.randrange(len(text))]
        (folder / "run" / "result.json").write_text(text)
        return [f"--report={folder / 'run'}", f"--output_dir={folder / 'out'}"]

    def space_file(self, r: random.Random, folder: Path) -> list[str]:
        rates = {"loguniform": [0.001, 0.1]}
        bad = changed({"rank": {"choice": [2, 4]}, "lac_steps": {"int": [2, 4]}, "lac_learning_rate": rates}, r)
        bad["lac_nothing"] = 1  # never runs: a sweep starts Ray
        (folder / "s.yaml").write_text(json.dumps(bad, default=str))
        run = [a for a in self._plain_run(folder) if not a.startswith("--unlearn")]
        return [*run, "--unlearn=obliviate", "--tune", f"--space={folder / 's.yaml'}"]
