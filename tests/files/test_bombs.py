"""Small files that would take all time or memory: each ends in one line, or is read as the little that it is.

Every case runs in a process of its own that may use two seconds of a processor and 500 MB more than before.
"""

import functools
import io
import os
import pickle
import re
import resource
import select
import signal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from recbole.utils import FeatureType

from recbole_unlearn import UnlearnConfig, UnlearnError, run_unlearn
from recbole_unlearn.data.requests import Fields, read_request
from recbole_unlearn.files import load_key, load_pickle, read_checkpoint, read_dataset, retained_data
from recbole_unlearn.methods.sharded import base
from recbole_unlearn.report import read_mapping, read_result
from recbole_unlearn.settings import read_yaml
from recbole_unlearn.state import load_suppression

SECONDS, BYTES = 2, 500 << 20
ZERO = 2**61 - 1  # its multiples hash to 0


def limited(read, path):
    """What ``read(path)`` ends in, within the limits: the text of a refusal, or "read"."""
    answer, given = os.pipe()
    if (child := os.fork()) == 0:
        with open("/proc/self/statm") as stream:
            size = int(stream.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + BYTES
        for limit, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, size), (resource.RLIMIT_CPU, SECONDS)):
            resource.setrlimit(limit, (most, most))
        try:
            read(path)
            said = "read"
        except BaseException as error:
            said = str(error) if isinstance(error, UnlearnError) else f"{type(error).__name__}: {error}"
        os.write(given, said.encode()[:10_000])
        os._exit(0)
    os.close(given)
    ready = select.select([answer], [], [], 60)[0]
    said = os.read(answer, 10_000).decode() if ready else "hangs"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(answer)
    return said or "killed"


def doubled(levels):
    """A list that holds 2 ** levels values, in some bytes a level."""
    return functools.reduce(lambda found, _: [found, found], range(levels), [0])


def checkpoint(**parts):
    config = {"final_config_dict": {"model": "BPR", "dataset": "tiny", **parts.pop("settings", {})}}
    out = io.BytesIO()
    torch.save({"state_dict": {"w": torch.zeros(2)}, "config": config, **parts}, out)
    return out.getvalue()


def many(number, value):
    """An array of objects that has one value in many places."""
    found = np.empty(number, dtype=object)
    found[:] = [value] * number
    return pickle.dumps(found, 4)


def items(values, more=b""):
    """Operations that put values on the stack of a pickle; a dict of 20,000 equal hashes would take seconds."""
    out, parts = io.BytesIO(), [b"("]
    pickler = pickle.Pickler(out, 2)  # with one memo for all of them
    for value in values:
        out.seek(out.truncate(0))
        pickler.dump(value)
        parts.append(out.getvalue()[2:-1] + more)
    return b"".join(parts)


def parquet(**columns):
    out = io.BytesIO()
    pd.DataFrame(columns).to_parquet(out, index=False, compression="zstd")
    return out.getvalue()


def repeated(text, number):
    """A column of one long text, as to_parquet writes it, without the text in memory as often."""
    column, out = pa.DictionaryArray.from_arrays(np.zeros(number, np.int32), [text]), io.BytesIO()
    pq.write_table(pa.table({"user_id": column}), out, compression="zstd", store_schema=False)
    return out.getvalue()


def laughs(start, step):
    """YAML in which each of thirty lines has the last one several times."""
    return "\n".join([start.format(), *(step.format(n=n, m=n - 1) for n in range(1, 30))]).encode()


WHOLE = [n * ZERO for n in range(20_000)]
COMPLEX = [np.complex128(complex(-1000003 * n, n)) for n in range(20_000)]
RAW = b"B" + (20_000).to_bytes(4, "little") + bytes(20_000) + b"\x94"  # in the memo
ARRAY = b"cnumpy\n_frombuffer\n(h\x00cnumpy\ndtype\n(S'u1'\nI00\nI01\ntRI20000\n\x85S'C'\ntR"
TABLE = pickle.dumps(pd.DataFrame([[1.0, 2.0]]), 2)
PICKLES = {
    "whole numbers that hash to 0": lambda: b"\x80\x04}" + items(WHOLE, b"N") + b"u.",
    "a set of them": lambda: b"\x80\x04\x8f" + items(WHOLE) + b"\x90.",
    "columns with such names": lambda: pickle.dumps(
        pd.DataFrame(np.zeros((1, 5000)), columns=pd.Index(WHOLE[:5000], dtype=object)), 4
    ),
    "complex numbers that hash to 0": lambda: b"\x80\x04}" + items(COMPLEX, b"K\0") + b"u.",
    "a list in many places": lambda: pickle.dumps(doubled(26), 4),
    "a list in many places of an array": lambda: many(20_000, [0] * 4000),
    "an array in many places": lambda: many(100_000, np.zeros(100_000)),
    "arrays of the same bytes": lambda: b"\x80\x04" + RAW + b"(" + ARRAY * 2000 + b"l.",
    "a table of a range of columns": lambda: pickle.dumps(pd.DataFrame(np.zeros((1, 300_000), np.int8)), 4),
    "a table that says so": lambda: re.sub(rb"(?s)(?<=stopq.)K\x02", b"J\0\0\0\x10", TABLE, count=1),
    "a sparse matrix of many lines": lambda: pickle.dumps(sp.coo_matrix((2**27, 2**27)), 4),
    "a sparse matrix of wide lines": lambda: pickle.dumps(sp.csr_matrix((1, 2**27)), 4),
    "an object for each byte": lambda: b"\x80\x04(" + b"]" * 200_000 + b"l.",
    "a huge memo": lambda: b"\x80\x04]r\xff\xff\xff\xff.",
    "a memo of one value": lambda: b"\x80\x04N" + b"\x94" * 200_000 + b".",
    "a huge text": lambda: b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"x.",
    "a huge bytearray": lambda: b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b"x.",
    "a huge number": lambda: b"\x80\x04\x8b" + (2**31 - 1).to_bytes(4, "little") + b"\x01.",
    "marks": lambda: b"\x80\x04" + b"(" * 200_000 + b"l.",
    "nested tuples": lambda: b"\x80\x04N" + b"\x85" * 100_000 + b".",  # hashing them would overflow the stack
    "a key of them": lambda: b"\x80\x04}N" + b"\x85" * 100_000 + b"Ns.",
    "nested lists": lambda: b"\x80\x04" + b"(" * 50_000 + b"N" + b"l" * 50_000 + b".",
    "a number of an enum": lambda: b"crecbole.utils.enum_type\nFeatureType\n(N" + b"\x85" * 100_000 + b"tR.",
}
CHECKPOINTS = {
    "a setting with a list in many places": lambda: checkpoint(settings={"x": doubled(24)}),
    "views of one storage": lambda: checkpoint(state_dict={str(n): ONE.view(-1) for n in range(200)}),
    "one tensor with many names": lambda: checkpoint(state_dict=dict.fromkeys(map(str, range(5000)), ONE)),
    "an empty tensor and a large layer": lambda: checkpoint(
        state_dict={"w": torch.zeros(0, 10**9)}, settings={"embedding_size": 10**8}
    ),
    "endless histories": lambda: checkpoint(settings={"MAX_ITEM_LIST_LENGTH": 10**9}),
    "endless layers": lambda: checkpoint(settings={"n_layers": 10**4}),
    "negatives without end": lambda: checkpoint(settings={"train_neg_sample_args": {"sample_num": 10**9}}),
    "candidates without end": lambda: checkpoint(settings={"eval_args": {"mode": {"test": "uni1000000000"}}}),
    "lists without end": lambda: checkpoint(settings={"topk": [10**9]}),
}
ONE = torch.zeros(1_000_000)
REQUESTS = {
    "wide.csv": lambda: b"user_id" + b"," * 300_000,
    "padded.csv": lambda: b"user_id" + b",a" * 900 + b"\n" + b"u\n" * 300_000,
    "names.jsonl": lambda: b"".join(b'{"user_id": "u", "a%d": 1}\n' % n for n in range(20_000)),
    "same.parquet": lambda: parquet(user_id=np.zeros(20_000_000, np.int8)),
    "text.parquet": lambda: repeated("u" * 100_000, 20_000),
    "packed.parquet": lambda: parquet(user_id=["u" * 100_000_000]),
    "wide.parquet": lambda: parquet(**{f"c{n}": [0] for n in range(5000)}),
}
YAMLS = {
    "aliases": lambda: laughs("a0: &a0 [x]", "a{n}: &a{n} [*a{m}, *a{m}]"),
    "merged keys": lambda: laughs("a0: &a0 {{x: 1}}", "a{n}: &a{n} {{<<: [*a{m}, *a{m}, *a{m}], k{n}: 1}}"),
    "numbers as keys": lambda: b"".join(b"? %d\n: 1\n" % (n * ZERO) for n in range(5000)),
    "a long file": lambda: b"a: [" + b"x, " * 1_000_000 + b"]",
    "an endless number": lambda: b"a: " + b":".join([b"1"] + [b"59"] * 60_000),
}
JSON = {
    "lists": lambda: b"[" + b"[]," * 6_000_000 + b"[]]",
    "nesting": lambda: b"[" * 1_000_000,
    "a number": lambda: b"1" * 1_000_000,
}
FIELDS = Fields("user_id", "item_id", None)
DOORS = {
    **{("x.pkl", name): (load_pickle, make) for name, make in PICKLES.items()},
    **{("x.pth", name): (read_checkpoint, make) for name, make in CHECKPOINTS.items()},
    **{(name, ""): (lambda path: read_request(path, FIELDS), make) for name, make in REQUESTS.items()},
    **{("x.yaml", name): (read_yaml, make) for name, make in YAMLS.items()},
    **{("result.json", name): (read_result, make) for name, make in JSON.items()},
    **{("ensemble.json", name): (lambda path: read_checkpoint(path.parent), make) for name, make in JSON.items()},
}


HARMLESS = {("x.pkl", "a huge memo")}  # read as what it is


@pytest.mark.parametrize("case", DOORS, ids=" ".join)
def test_small_files_take_little_time_and_memory(tmp_path, case):
    read, make = DOORS[case]
    path = tmp_path / case[0]
    path.write_bytes(make())
    said = limited(read, path)
    refused = re.match(r"Refused to read|Forget request|Cannot (read|compare)|/", said)
    assert refused or (said == "read" and case in HARMLESS), said
    assert "memory" not in said


FILES = {
    "x.pth": read_checkpoint, "x.yaml": read_yaml, "key": load_key, "r.csv": DOORS["padded.csv", ""][0],
    "result.json": read_result, "failed.json": read_mapping,
    "ensemble.json": lambda path: read_checkpoint(path.parent),
    "suppression.json": lambda path: load_suppression(path, b"k" * 32),
    "shard-0.safetensors": base._load,
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_no_file(tmp_path, name, kind):
    """The attack: a process that opens it waits for ever, or reads without end."""
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    said = limited(FILES[name], tmp_path / name)
    assert str(tmp_path) in said or (name, said) == ("failed.json", "read"), said


def long_token(dataset):
    tokens = dataset.field2id_token["user_id"].tolist()
    tokens[-1] = "x" * 10_000
    dataset.field2id_token["user_id"] = tokens
    dataset.field2token_id["user_id"] = {token: number for number, token in enumerate(tokens)}


def long_history(dataset):
    lists = [np.zeros(0, np.int64)] * len(dataset.item_feat)
    dataset.item_feat["kind"] = pd.Series([*lists[1:], np.zeros(10_000, np.int64)])
    dataset.field2type["kind"] = FeatureType.TOKEN_SEQ


ODD = {
    "a long token": (long_token, "user_id has an entry that is much longer"),
    "a long list": (long_history, "kind has an entry that is much longer"),
    "many buckets": (lambda dataset: dataset.field2bucketnum.update(x=10**7), "field2bucketnum is odd"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_dataset_does_not_grow_when_it_is_used(settings, tmp_path, monkeypatch, name):
    """One long token or list among many short ones: as an array, every one would take as much."""
    monkeypatch.setattr(retained_data, "FREE", 0)
    monkeypatch.setattr(retained_data, "PADDED", 20)
    values = settings | {"report": "none", "load_col": None, "epochs": 1}
    run_unlearn("BPR", "tiny", unlearn="finetune", forget={"user_id": ["u1"]}, config_dict=values)
    path = tmp_path / "out" / "tiny-Dataset.pth"
    dataset = pickle.loads(path.read_bytes())
    change, message = ODD[name]
    change(dataset)
    path.write_bytes(pickle.dumps(dataset, 4))
    config = UnlearnConfig("BPR", "tiny", config_dict=values)
    assert message in limited(lambda path: read_dataset(path, config), path)
