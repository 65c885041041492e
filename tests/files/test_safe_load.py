"""Reading files that may be hostile: nothing in them is ever run."""

import collections
import functools
import io
import os
import pickle
import subprocess
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recbole_unlearn import files as unpickle
from recbole_unlearn.errors import UnlearnError

RAN = []


def run_me(*args):
    RAN.append(args)


class Payload:
    """Calls ``function`` when a careless unpickler meets it."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


PAYLOADS = {
    "system": Payload(os.system, "touch ran"),
    "popen": Payload(subprocess.Popen, ["touch", "ran"]),
    "eval": Payload(eval, "open('ran', 'w')"),
    "exec": Payload(exec, "open('ran', 'w')"),
    "getattr": Payload(getattr, "a", "upper"),
    "own code": Payload(run_me, 1),
    "torch.load": Payload(torch.load, "x"),
    "bytes of a storage": Payload(torch.storage._load_from_bytes, b"x"),
    "numpy load": Payload(np.load, "x", None, True),
    "import": Payload(__import__, "os"),
    "a hub": Payload(torch.hub.load, "x"),
    "partial": Payload(functools.partial, len),
    "open": Payload(open, "ran", "w"),
    "input": Payload(input, "x"),
}


@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.parametrize("legacy", [False, True])
def test_payloads_are_refused(tmp_path, name, legacy):
    path = tmp_path / "evil.pth"
    torch.save({"state_dict": {"w": torch.zeros(2)}, "config": PAYLOADS[name]}, path,
               _use_new_zipfile_serialization=not legacy)  # fmt: skip
    with pytest.raises(UnlearnError, match=r"Refused to read .*evil\.pth.*Nothing in it was run") as error:
        unpickle.load_torch(path)
    assert "\n" not in str(error.value)
    path.write_bytes(pickle.dumps(PAYLOADS[name]))
    with pytest.raises(UnlearnError, match="Refused"):
        unpickle.load_pickle(path)
    assert not (tmp_path / "ran").exists()
    assert RAN == []


def test_a_recbole_name_is_a_stand_in_that_does_nothing(tmp_path):
    """A file may name any function of RecBole; calling it calls the stand-in."""
    pickled = b"crecbole.utils.utils\nensure_dir\n(S'made'\ntR."
    (tmp_path / "x.pkl").write_bytes(pickled)
    made = unpickle.load_pickle(tmp_path / "x.pkl")
    assert isinstance(made, unpickle.StandIn)
    assert made.args == ("made",)
    assert not (tmp_path / "made").exists()


def test_dotted_names_do_not_reach_through(tmp_path):
    """STACK_GLOBAL resolves dots in names: torch's `serialization.os.system` must not be found."""
    for module, name in (
        ("torch", "serialization.os.system"),
        ("numpy", "lib.os.system"),
        ("builtins", "set.x"),
    ):
        stream = io.BytesIO()
        stream.write(b"\x80\x04" + pickle.SHORT_BINUNICODE + bytes([len(module)]) + module.encode())
        stream.write(pickle.SHORT_BINUNICODE + bytes([len(name)]) + name.encode() + b"\x93.")
        (tmp_path / "x.pkl").write_bytes(stream.getvalue())
        with pytest.raises(UnlearnError, match="Refused"):
            unpickle.load_pickle(tmp_path / "x.pkl")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused(tmp_path):
    module = torch.jit.script(torch.nn.Linear(2, 2))
    module.save(str(tmp_path / "m.pth"))
    with pytest.raises(UnlearnError, match="TorchScript"):
        unpickle.load_torch(tmp_path / "m.pth")


def test_what_checkpoints_hold_is_read(tmp_path):
    content = {
        "tensor": torch.arange(6.0).view(2, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "half": torch.zeros(2, dtype=torch.float16),
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "array": np.arange(4),
        "strings": np.array(["a", "b"]),
        "scalar": np.float64(0.5),
        "sparse": sp.csr_matrix(np.eye(3)),
        "coo": sp.coo_matrix(np.eye(2)),
        "ordered": collections.OrderedDict(a=1),
        "plain": [1, 2.0, None, True, "x", {1, 2}],
    }
    for legacy in (False, True):
        torch.save(content, tmp_path / "c.pth", pickle_protocol=4, _use_new_zipfile_serialization=not legacy)
        found = unpickle.load_torch(tmp_path / "c.pth")
        assert torch.equal(found["tensor"], content["tensor"])
        assert torch.equal(found["parameter"], content["parameter"])
        assert found["dtype"] is torch.float32
        assert found["array"].tolist() == [0, 1, 2, 3]
        assert found["strings"].tolist() == ["a", "b"]
        assert found["scalar"] == 0.5
        assert (found["sparse"] != content["sparse"]).nnz == 0
        assert found["ordered"] == content["ordered"]
        assert found["plain"] == content["plain"]


@hypothesis_settings(max_examples=60, deadline=None)
@given(cut=st.floats(0, 0.95), noise=st.binary(max_size=20))
def test_damaged_files_are_one_line(tmp_path_factory, cut, noise):
    folder = tmp_path_factory.mktemp("damaged")
    torch.save({"state_dict": {"w": torch.zeros(40)}}, folder / "good.pth")
    good = (folder / "good.pth").read_bytes()
    bad = folder / "bad.pth"
    bad.write_bytes(good[: int(cut * len(good))] + noise)
    with pytest.raises(UnlearnError, match=r"bad\.pth") as error:
        unpickle.load_torch(bad)
    assert "\n" not in str(error.value)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
TREES = st.recursive(
    SCALARS | st.sets(st.integers()) | st.frozensets(st.text()),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@hypothesis_settings(max_examples=60, deadline=None)
@given(tree=TREES, protocol=st.integers(0, 5))
def test_plain_data_is_read_as_pickle_reads_it(tmp_path_factory, tree, protocol):
    path = tmp_path_factory.mktemp("plain") / "x.pkl"
    path.write_bytes(pickle.dumps(tree, protocol))
    assert unpickle.load_pickle(path) == tree


def test_a_missing_file_and_a_directory(tmp_path):
    for path in (tmp_path / "none.pth", tmp_path):
        with pytest.raises(UnlearnError, match="There is no file"):
            unpickle.load_torch(path)


def _laughs(copies, levels):
    """A list of a list of a list ..., each with the next one ``copies`` times."""
    found = [0]
    for _ in range(levels):
        found = [found] * copies
    return found


RAW = b"B" + (20_000).to_bytes(4, "little") + bytes(20_000) + b"\x94"  # in the memo
ARRAY = b"cnumpy\n_frombuffer\n(h\x00cnumpy\ndtype\n(S'u1'\nI00\nI01\ntRI20000\n\x85S'C'\ntR"
GREEDY = {
    "a list in too many places": pickle.dumps(_laughs(10, 12)),
    "arrays of the same bytes": b"\x80\x04" + RAW + b"(" + ARRAY * 200 + b"l.",
    "an object for each byte": b"\x80\x04(" + b"]" * 200_000 + b"l.",
    "a huge memo": b"\x80\x04]r\xff\xff\xff\xff.",
    "a huge text": b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"x.",
    "a huge bytearray": b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b"x.",
    "a huge number": b"\x80\x04\x8b" + (2**31 - 1).to_bytes(4, "little") + b"\x01.",
}


@pytest.mark.parametrize("name", GREEDY)
def test_small_files_take_little_memory(tmp_path, name):
    """Python's own unpickler would take gigabytes for some of them, or walking the result would never end."""
    (tmp_path / "x.pkl").write_bytes(GREEDY[name])
    tracemalloc.start()
    if name == "a huge memo":
        assert unpickle.load_pickle(tmp_path / "x.pkl") == []
    else:
        with pytest.raises(UnlearnError):
            unpickle.load_pickle(tmp_path / "x.pkl")
    assert tracemalloc.get_traced_memory()[1] < 100_000_000
    tracemalloc.stop()


def test_tensors_that_share_a_storage_are_bounded_by_the_file(tmp_path):
    whole = torch.zeros(100_000)
    torch.save([whole, whole.view(10, -1)], tmp_path / "x.pth")
    assert [tuple(tensor.shape) for tensor in unpickle.load_torch(tmp_path / "x.pth")] == [
        (100_000,),
        (10, 10_000),
    ]
    torch.save([whole.view(-1) for _ in range(5)], tmp_path / "x.pth")
    with pytest.raises(UnlearnError, match="larger than the file"):
        unpickle.load_torch(tmp_path / "x.pth")


def test_a_name_is_not_looked_up_in_torch_or_numpy(tmp_path):
    """Both import submodules when they are asked for a name."""
    for module, name in (("torch", "_inductor"), ("numpy", "f2py"), ("torch", "onnx")):
        (tmp_path / "x.pkl").write_bytes(f"c{module}\n{name}\n.".encode())
        with pytest.raises(UnlearnError, match="Refused"):
            unpickle.load_pickle(tmp_path / "x.pkl")
