"""Hostile and damaged inputs, made from good ones by a seed: each case is a command line over files in one directory.

Four ways to make a bad file: damage its bytes, change one value deep inside it, splice operations into its pickle, and
swap files between runs. Every case that could run code would leave the file `ran`.
"""

import copy
import functools
import io
import json
import operator
import os
import pickle
import random
import shutil
import struct
import zipfile

import numpy as np
import pandas as pd
import torch

QUICK = ["--no_cache", "--no_tensorboard", "--report=none", "--no_show_progress", "--demotion_negatives=5"]
PAYLOADS = [
    b"cos\nsystem\n(S'touch ran'\ntR", b"cbuiltins\neval\n(S\"open('ran','w')\"\ntR", b"cposix\nsystem\n(S'touch ran'\ntR",
    b"cnumpy\ndtype\n(S'O8'\nI00\nI01\ntR(I3\nS'|'\nNNNI-1\nI-1\nI63\ntb", b"cscipy.sparse\ncsr_matrix\n}S'dot'\nI1\nsb",
    b"(lp0\n0", b"I99999999999999999999\n", b"cbuiltins\ngetattr\n(S'a'\nS'b'\ntR", b"\x82\x01", b"P1\n", b"(((((((((((",
]  # fmt: skip
SETTINGS = [
    {"output_dir": "/elsewhere"}, {"threads": 10**6}, {"save_unlearned": False}, {"lac_steps": 0}, {"data_path": "/etc"},
    {"download_url": "http://127.0.0.1:9/x.zip"}, {"dataset": ".."}, {"model": "os"}, {"embedding_size": 10**9},
    {"n_layers": 10**9}, {"benchmark_filename": ["../x"]}, {"teacher": "print(1)"},
]  # fmt: skip
CONFIGS = [
    "epochs: {}", "? [a]\n: 1", "3: 4", "epochs: 1\nepochs: 2", "- a", "a: &x [*x]", "topk: [1, .nan]", "learning_rate: 1e400",
    "model: !!python/object/apply:os.system ['touch ran']", "eval_args: {split: {RS: [1]}}", "metrics: [Recall, eval]",
    "seed: -1", "embedding_size: 0", "x" * 5000, "{" * 3000, "\x00", "load_col: {inter: [x]}", "val_interval: {rating: 'os'}",
    "train_neg_sample_args: 3", "USER_ID_FIELD: [a]", "topk: 'a'", "valid_metric: 3", "output_dir: {}", "threads: 1000000000",
]  # fmt: skip
KEYS = [
    "epochs", "topk", "metrics", "eval_args", "load_col", "seed", "learner", "unlearn", "compare", "rank", "benchmark_filename",
]  # fmt: skip
REQUESTS = [
    "user_id\nu3\n", "u3\n", "user_id,item_id\nu3\n", "user_id,item_id\nu3,i1,2\n", "", "\n\n", "user_id\n\n", "user_id;item_id\nu3;i1\n",
    "user_id\nnobody\n", "item_id\ni3\n", "user_id,item_id,timestamp\nu3,i1,abc\n", "\ufeffuser_id\nu3\n", "user_id\n\x00\n",
    "user_id,user_id\nu3,u4\n", "user_id\n" + "u3\n" * 2000, 'user_id\n"u3\n', "user_id\nu3" + "x" * 70_000,
]  # fmt: skip
GRID = {
    "datasets": ["tiny"], "models": ["BPR"], "methods": ["finetune", "retrain"], "seeds": [1], "ratios": [0.1],
    "settings": {"epochs": 1, "inject_mode": "random"},
}  # fmt: skip
SPACE = {"rank": {"choice": [2, 4]}, "lac_steps": {"int": [2, 4]}, "lac_learning_rate": {"loguniform": [0.001, 0.1]}}


def odd(r):
    """A value that does not belong anywhere."""
    return r.choice([
        None, True, -1, 0, r.choice([2**31, 2**63, 10**30]), r.choice([1e38, 1e308, float("nan"), float("inf"), -0.5]),
        r.choice(["../../etc/passwd", "/dev/zero", "\ud800", "a\nb", "__import__('os').system('touch ran')"]), b"bytes",
        "", "x" * r.choice([1, 300, 20_000]), [], {}, [[[[[]]]]], {"a": {"b": [1, None]}}, (1, 2), {1, 2},
        torch.zeros(r.choice([0, 1, 3])), torch.full((2, 2), 1e38), torch.zeros(2, 3, dtype=torch.int64), torch.eye(3).to_sparse(),
        np.arange(r.choice([0, 3])), np.array([None, "x"], dtype=object), np.array(["a", "b"]), np.float64("nan"),
    ])  # fmt: skip


def leaves(tree, path=()):
    """The paths of all values in nested dicts and lists."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return ([path] if path else []) + [leaf for key, value in items for leaf in leaves(value, (*path, key))]


def changed(tree, r):
    """A copy with one value replaced, removed or renamed."""
    tree = copy.deepcopy(tree)
    *way, last = r.choice(leaves(tree))
    place, what = functools.reduce(operator.getitem, way, tree), r.random()
    if what < 0.75:
        place[last] = odd(r)
    elif isinstance(place, dict) and what < 0.9:
        place[r.choice([3, "", "x" * 300, "unlearn", "output_dir", "threads"])] = place.pop(last)
    else:
        del place[last]
    return tree


def damaged(content, r):
    """Bytes flipped, cut, doubled or mixed in."""
    data = bytearray(content)
    for _ in range(r.choice([1, 1, 2, 8, 64])):
        if not data:
            break  # an empty file is a case too
        at = r.randrange(len(data))
        end, new = r.choice([
            (at + 1, bytes([data[at] ^ 1 << r.randrange(8)])),
            (at + r.choice([1, 4, 100]), r.randbytes(r.choice([0, 1, 4, 100]))), (len(data), b""),
            (at, data[: r.choice([4, 64, 1000])]), (at + 8, struct.pack("<q", r.choice([0, -1, 2**31, 2**62]))),
        ])  # fmt: skip
        data[at:end] = new
    return bytes(data)


def spliced(content, r):
    """A pickle with operations of ours at the start, the end or anywhere in it."""
    payload = r.choice(PAYLOADS)
    if r.random() < 0.3:
        return b"\x80\x02" + payload + b"."
    at = r.choice([2, len(content) - 1, r.randrange(len(content))])
    return content[:at] + payload + (b"0" if r.random() < 0.5 else b"") + content[at:]


def in_zip(content, r, change):
    """A zip archive of torch with one of its records changed; now and then twice in it, or compressed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        records = [(info.filename, archive.read(info)) for info in archive.infolist()]
    main = next(k for k, (name, _) in enumerate(records) if name.endswith("data.pkl"))
    which = main if r.random() < 0.7 else r.randrange(len(records))
    out, kind = io.BytesIO(), zipfile.ZIP_DEFLATED if r.random() < 0.1 else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", kind) as archive:
        for k, (name, data) in enumerate(records):
            archive.writestr(name, change(data, r) if k == which and data else data)
        if r.random() < 0.1:
            archive.writestr(records[main][0].replace("data.pkl", "constants.pkl"), b"x")
    return out.getvalue()


def saved(content, half=b"", save=torch.save, **more):
    """The bytes of a file; ``half`` a file if it cannot be written."""
    out = io.BytesIO()
    try:
        save(content, out, **more or {"pickle_protocol": 4})
    except Exception:
        return half
    return out.getvalue()


class Maker:
    """Makes cases from the outputs of a good run (``good``): a checkpoint with its dataset, and an ensemble."""

    def __init__(self, good, data_path):
        self.good, self.data = good, f"--data_path={data_path}"
        self.plain, self.dataset = ((good / name).read_bytes() for name in ("plain.pth", "tiny-Dataset.pth"))
        self.trusted = torch.load(good / "plain.pth", weights_only=False)
        old = torch.load(good / "BPR-unlearned.pth", weights_only=False)
        old.pop("unlearn_dataset_sha256", None)  # as older versions wrote it: without the digest of its dataset
        self.unsigned = saved(old)
        self.legacy = saved(self.trusted, pickle_protocol=4, _use_new_zipfile_serialization=False)
        self.kinds = [
            lambda r: self.start(damaged(self.plain, r) if r.random() < 0.5 else in_zip(self.plain, r, damaged)),
            self.checkpoint, self.checkpoint, lambda r: self.start(in_zip(self.plain, r, spliced)),
            lambda r: self.start(r.choice([spliced, damaged, damaged, lambda whole, r: whole])(self.legacy, r)),
            lambda r: self.start(self.unsigned, damaged(self.dataset, r)), self.saved_dataset,
            lambda r: self.start(self.unsigned, spliced(self.dataset, r)), self.ensemble, self.config_file, self.config_file,
            self.grid_file, self.request_file, self.request_file, self.report, self.space_file,
        ]  # fmt: skip

    def make(self, seed, folder):
        """Write the files of case ``seed`` into ``folder``; returns the command line's arguments."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        return [*self.kinds[seed % len(self.kinds)](random.Random(seed)), f"--output_dir={folder / 'out'}"]

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
        return path

    def start(self, content, dataset=None):
        """A request that starts from a checkpoint, with a dataset beside it or the data of the others."""
        data = [self.data] if dataset is None else self.write("tiny-Dataset.pth", dataset) and []
        asked = self.write("r.csv", REQUESTS[0])
        own = ["--unlearn=obliviate", "--lac_steps=2", "--epochs=1", "--replace"]
        return [f"--checkpoint={self.write('c.pth', content)}", f"--forget={asked}", *own, *data, *QUICK]

    def run(self, *more, method="retrain"):
        own = ["--model=BPR", "--dataset=tiny", self.data, f"--unlearn={method}", "--embedding_size=4", "--epochs=1"]
        return [*own, *QUICK, *more]

    def checkpoint(self, r):
        content = dict(self.trusted)
        if r.random() < 0.6:
            config = content["config"] = copy.copy(content["config"])
            config.final_config_dict = changed(dict(config.final_config_dict), r)
            if r.random() < 0.3:
                config.final_config_dict |= r.choice(SETTINGS)
        else:
            content = {**changed({k: v for k, v in content.items() if k != "config"}, r), "config": content["config"]}
        return self.start(saved(content, self.plain[:100]))

    def saved_dataset(self, r):
        dataset = pickle.loads(self.dataset)
        state = {k: v for k, v in dataset.__dict__.items() if k not in ("config", "logger")}
        if r.random() < 0.4:
            name = r.choice([name for name, value in state.items() if hasattr(value, "to_dict")])
            columns = state[name].to_dict("list")
            column = r.choice(list(columns.values()))
            column[r.randrange(len(column))] = odd(r)
            state[name] = pd.DataFrame({k: pd.Series(v) for k, v in columns.items()})
        else:
            state = changed(state, r)
        dataset.__dict__.clear()
        dataset.__dict__.update(state)
        return self.start(self.unsigned, saved(dataset, self.dataset[:50], pickle.dump, protocol=4))

    def ensemble(self, r):
        target = shutil.copytree(self.good / "ensemble", self.folder / "BPR-unlearned")
        file = r.choice(sorted(target.iterdir()))
        if file.suffix == ".json" and r.random() < 0.8:
            file.write_text(json.dumps(changed(json.loads(file.read_text()), r), default=str))
        else:
            file.write_bytes(damaged(file.read_bytes(), r))
        given = [f"--checkpoint={target}", f"--forget={self.write('r.csv', REQUESTS[0])}", "--unlearn=sisa"]
        return [*given, "--replace", *QUICK]

    def config_file(self, r):
        text = json.dumps({r.choice(KEYS): odd(r)}, default=str) if r.random() < 0.4 else r.choice(CONFIGS)
        content = text.encode("utf-8", "replace")
        path = self.write("c.yaml", damaged(content, r) if r.random() < 0.3 else content)
        if r.random() < 0.03:
            path.unlink()
            os.mkfifo(path)
        return self.run("--inject_mode=random", f"--config_files={path}")

    def grid_file(self, r):
        key = r.choice(["output_dir", "data_path", "cache_dir", "download_url", "x"])
        bad = GRID | {"settings": {key: "/elsewhere"}} if r.random() < 0.3 else changed(GRID, r)
        grid = self.write("g.yaml", json.dumps(bad, default=str))
        return [f"--grid={grid}", self.data, "--no_cache", "--report=none", "--workers=1", "--embedding_size=4"]

    def request_file(self, r):
        content = r.choice(REQUESTS).encode("utf-8", "replace")
        name = "q" + r.choice([".csv", ".csv", ".tsv", ".jsonl", ".parquet", ".txt", ".json"])
        path = self.write(name, damaged(content, r) if r.random() < 0.5 else content)
        return self.run(f"--forget={path}", f"--on_missing={r.choice(['error', 'skip'])}")

    def report(self, r):
        content = json.loads((self.good / "result.json").read_text())
        for _ in range(r.choice([1, 3])):
            content = changed(content, r)
        text = json.dumps(content, default=str)
        self.write("result.json", text if r.random() < 0.8 else text[: r.randrange(len(text))])
        return [f"--report={self.folder}"]

    def space_file(self, r):
        bad = changed(SPACE, r) | {"lac_nothing": 1}  # never runs: a sweep starts Ray
        path = self.write("s.yaml", json.dumps(bad, default=str))
        return self.run("--inject_mode=random", "--tune", f"--space={path}", method="obliviate")
