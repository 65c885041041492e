"""Reading files that may be hostile: nothing in them is ever run."""

import collections
import functools
import io
import operator
import os
import pickle
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recbole_unlearn import files as unpickle
from recbole_unlearn import read_checkpoint
from recbole_unlearn.errors import UnlearnError
from tests.files import Trap
from tests.parts import refused

RAN = []


def run_me(*args):
    RAN.append(args)


@pytest.fixture
def read(tmp_path):
    """``read(pickled)``: the content of a file with these bytes."""

    def load(pickled):
        (tmp_path / "x.pkl").write_bytes(pickled)
        return unpickle.load_pickle(tmp_path / "x.pkl")

    return load


PAYLOADS = {
    "system": Trap(os.system, "touch ran"), "popen": Trap(subprocess.Popen, ["touch", "ran"]),
    "eval": Trap(eval, "open('ran', 'w')"), "exec": Trap(exec, "open('ran', 'w')"), "open": Trap(open, "ran", "w"),
    "getattr": Trap(getattr, "a", "upper"), "own code": Trap(run_me, 1), "torch.load": Trap(torch.load, "x"),
    "bytes of a storage": Trap(torch.storage._load_from_bytes, b"x"), "numpy load": Trap(np.load, "x", None, True),
    "import": Trap(__import__, "os"), "a hub": Trap(torch.hub.load, "x"), "partial": Trap(functools.partial, len),
    "input": Trap(input, "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.parametrize("legacy", [False, True])
def test_payloads_are_refused(tmp_path, name, legacy):
    path = tmp_path / "evil.pth"
    torch.save({"state_dict": {"w": torch.zeros(2)}, "config": PAYLOADS[name]}, path,
               _use_new_zipfile_serialization=not legacy)  # fmt: skip
    refused(r"Refused to read .*evil\.pth.*Nothing in it was run", unpickle.load_torch, path)
    path.write_bytes(pickle.dumps(PAYLOADS[name]))
    refused("Refused", unpickle.load_pickle, path)
    assert not (tmp_path / "ran").exists()
    assert RAN == []


def test_a_recbole_name_is_a_stand_in_that_does_nothing(read, tmp_path):
    """A file may name any function of RecBole; calling it calls the stand-in."""
    made = read(b"crecbole.utils.utils\nensure_dir\n(S'made'\ntR.")
    assert isinstance(made, unpickle.StandIn)
    assert made.args == ("made",)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("module", "name"), [
    ("torch", "serialization.os.system"), ("numpy", "lib.os.system"), ("builtins", "set.x"),
    ("torch", "_inductor"), ("numpy", "f2py"), ("torch", "onnx"),
])  # fmt: skip
def test_names_are_not_looked_up(read, module, name):
    """STACK_GLOBAL resolves dots in names, and torch and numpy import submodules when they are asked for a name."""
    texts = [pickle.SHORT_BINUNICODE + bytes([len(text)]) + text.encode() for text in (module, name)]
    refused("Refused", read, b"\x80\x04" + b"".join(texts) + b"\x93.")


def test_what_checkpoints_hold_is_read(tmp_path):
    content = {
        "tensor": torch.arange(6.0).view(2, 3), "parameter": torch.nn.Parameter(torch.ones(2)),
        "half": torch.zeros(2, dtype=torch.float16), "dtype": torch.float32, "device": torch.device("cpu"),
        "array": np.arange(4), "strings": np.array(["a", "b"]), "scalar": np.float64(0.5),
        "sparse": sp.csr_matrix(np.eye(3)), "lil": sp.lil_matrix(np.eye(2)), "ordered": collections.OrderedDict(a=1),
        "plain": [1, 2.0, None, True, "x", {1, 2}],
    }  # fmt: skip
    torch.save(content, tmp_path / "c.pth", pickle_protocol=4)
    found = unpickle.load_torch(tmp_path / "c.pth")
    assert torch.equal(found["tensor"], content["tensor"])
    assert torch.equal(found["parameter"], content["parameter"])
    assert found["dtype"] is torch.float32
    assert (found["array"].tolist(), found["strings"].tolist()) == ([0, 1, 2, 3], ["a", "b"])
    assert found["scalar"] == 0.5
    assert all((found[key] != content[key]).nnz == 0 for key in ("sparse", "lil"))
    assert (found["ordered"], found["plain"]) == (content["ordered"], content["plain"])
    whole = torch.arange(1_000_000.0)  # a few views of a storage: many would take more memory than the file
    torch.save([whole, whole.view(10, -1)], tmp_path / "x.pth")
    assert all(torch.equal(found.flatten(), whole) for found in unpickle.load_torch(tmp_path / "x.pth"))


@given(cut=st.floats(0, 0.95), noise=st.binary(max_size=20))
def test_damaged_files_are_one_line(tmp_path_factory, cut, noise):
    folder = tmp_path_factory.mktemp("damaged")
    torch.save({"state_dict": {"w": torch.zeros(40)}}, folder / "good.pth")
    good = (folder / "good.pth").read_bytes()
    (folder / "bad.pth").write_bytes(good[: int(cut * len(good))] + noise)
    refused(r"bad\.pth", unpickle.load_torch, folder / "bad.pth")


WHOLE = st.integers(-(2**63), 2**64 - 1)
SCALARS = st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False) | st.text() | st.binary()
TREES = st.recursive(
    SCALARS | st.sets(WHOLE) | st.frozensets(st.text()),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@given(tree=TREES, protocol=st.integers(0, 5))
def test_plain_data_is_read_as_pickle_reads_it(tmp_path_factory, tree, protocol):
    path = tmp_path_factory.mktemp("plain") / "x.pkl"
    path.write_bytes(pickle.dumps(tree, protocol))
    assert unpickle.load_pickle(path) == tree


def test_a_missing_file_and_a_directory(tmp_path):
    for path in (tmp_path / "none.pth", tmp_path):
        refused("There is no file", unpickle.load_torch, path)


def test_a_file_with_two_central_directories_runs_nothing(tmp_path, monkeypatch):
    """Python's parser and torch's see different archives in it; only one of them is asked here."""
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "script.pt"))
    torch.save({"state_dict": {}}, tmp_path / "plain.pth")
    hidden, plain = (tmp_path / "script.pt").read_bytes(), (tmp_path / "plain.pth").read_bytes()
    for careless in ("torch.load", "torch.jit.load", "pickle.load", "pickle.loads", "pickle.Unpickler"):
        monkeypatch.setattr(careless, lambda *args, **kwargs: pytest.fail("a careless reader was called"))
    refused("TorchScript", unpickle.load_torch, tmp_path / "script.pt")
    for content in (hidden + plain, plain + hidden):
        (tmp_path / "both.pth").write_bytes(content)
        refused("", read_checkpoint, tmp_path / "both.pth")


def test_tar_archives_are_refused_and_change_nothing(tmp_path):
    """The oldest format of torch: a hard link in it changed another file's mode, a pipe in it hung forever."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    victim.chmod(0o600)
    with tarfile.open(tmp_path / "old.pth", "w") as archive:
        for name, kind in (("pickle", tarfile.LNKTYPE), ("storages", tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, str(victim), 0o777
            archive.addfile(info)
    refused("a format that torch has not written", unpickle.load_torch, tmp_path / "old.pth")
    assert victim.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("change", ["compressed", "twice", "larger", "many"])
def test_odd_archives_are_refused(tmp_path, change):
    torch.save({"state_dict": {"w": torch.zeros(3)}}, tmp_path / "good.pth")
    out, method = io.BytesIO(), zipfile.ZIP_DEFLATED if change == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(tmp_path / "good.pth") as good, zipfile.ZipFile(out, "w", method) as bad:
        for info in good.infolist():
            bad.writestr(info.filename, good.read(info))
            if change == "twice" and info.filename.endswith("data.pkl"):
                with pytest.warns(UserWarning, match="Duplicate"):
                    bad.writestr(info.filename, good.read(info))
    content = out.getvalue()
    if change == "many":  # Python makes an object for each record
        content += b"PK\x01\x02" * 100_001
    if change == "larger":  # the directory says that a record is larger than the file
        content = content.replace((12).to_bytes(4, "little") * 2, (2**31).to_bytes(4, "little") * 2)
    (tmp_path / "bad.pth").write_bytes(content)
    refused("Refused", unpickle.load_torch, tmp_path / "bad.pth")


RECONSTRUCTED = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I1\ntcnumpy\ndtype\n"


@pytest.mark.parametrize("pickled", [
    # an array of objects whose bytes would be taken for pointers
    RECONSTRUCTED + b"(S'O8'\nI00\nI01\ntR(I3\nS'|'\nNNNI-1\nI-1\nI63\ntbI00\nS'AAAAAAAA'\ntb.",
    # a structured dtype with an object field
    RECONSTRUCTED
    + b"(S'V8'\nI00\nI01\ntR(I3\nS'|'\nN(S'a'\nt(dS'a'\n(S'O8'\nI0\ntsI8\nI1\nI16\ntbI00\nS'AAAAAAAA'\ntb.",
    # fewer bytes than the shape says
    RECONSTRUCTED.replace(b"(I1\nt", b"(I99\nt")
    + b"(S'f8'\nI00\nI01\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\nS'AAAAAAAA'\ntb.",
    # a state for a class: it changed a method for the whole process
    b"cscipy.sparse\ncsr_matrix\n(dS'dot'\nI1\nsb.",
    b"cnumpy\nndarray\n(dS'x'\nI1\nsb.",
    # a call of what a call returned
    b"cbuiltins\nset\n(tR(tR.",
])  # fmt: skip
def test_pickles_that_would_corrupt_memory_or_the_process_are_refused(read, pickled):
    dot = sp.csr_matrix.dot
    refused(r"Refused to read .*Nothing in it was run", read, pickled)
    assert sp.csr_matrix.dot is dot


@pytest.mark.parametrize(("size", "stride", "offset"), [
    ((10**9,), (0,), 0), ((3,), (-1,), 2), ((3,), (1,), -1), ((2**40,), (1,), 0), ((1,) * 17, (1,) * 17, 0),
    ((2**40, 0, 2**40), (1, 1, 1), 0), ((4,), (1,), 1), ((2, 2), (3, 1), 0),
])  # fmt: skip
def test_tensors_outside_their_storage_are_refused(tmp_path, size, stride, offset):
    made = (torch.zeros(4).storage(), offset, size, stride, False, {})
    torch.save({"w": Trap(torch._utils._rebuild_tensor_v2, *made)}, tmp_path / "x.pth")
    refused("Refused", unpickle.load_torch, tmp_path / "x.pth")


@pytest.mark.parametrize(("form", "change"), [
    ("csr", {"indices": [0, 1, 99]}), ("csr", {"indices": [0, 1, -1]}), ("csc", {"indptr": [0, 1, 99, 3]}),
    ("csr", {"indptr": [1, 1, 2, 3]}), ("csr", {"_shape": (2**40, 3)}), ("csc", {"_shape": (2**28, 3)}),
    ("csc", {"_shape": (3, 3, 3)}), ("csc", {"_shape": (2, 3)}), ("csr", {"data": [1.0]}),
    ("csr", {"indptr": np.array([0, 3, 1, 3], np.uint32)}),  # scipy wrote past a block of memory
    ("csr", {"indptr": np.array([0, 2**64 - 1, 2**64 - 2, 3], np.uint64)}), ("csr", {"data": ["a", "b", "c"]}),
])  # fmt: skip
def test_sparse_matrices_that_are_not_well_formed_are_refused(read, form, change):
    matrix = sp.eye(3).asformat(form)
    for key, value in change.items():
        matrix.__dict__[key] = value if key == "_shape" else np.array(value)
    refused(r"sparse matrix|larger than the file", read, pickle.dumps(matrix))


NUMBERS = st.lists(st.integers(-2, 5) | st.sampled_from([2**31, 2**63 - 1, -(2**63)]), max_size=5)
INDEX = st.builds(
    lambda values, dtype: np.array(values, np.int64).astype(dtype), NUMBERS,
    st.sampled_from(["i1", "i4", "i8", "u1", "u4", "u8", ">i8", "f8", "U3", "O"]),
)  # fmt: skip


@hypothesis_settings(max_examples=300, deadline=None)
@given(form=st.sampled_from(["csr", "csc", "lil"]), parts=st.lists(INDEX, min_size=3, max_size=3))
def test_index_arrays_are_checked_before_scipy_sees_them(tmp_path_factory, form, parts):
    """Any arrays in the place of indices: refused, or a matrix that scipy itself finds well formed."""
    matrix = sp.eye(3).asformat(form)
    names = {"lil": ("rows", "data")}.get(form, ("indices", "indptr", "data"))
    for name, part, number in zip(names, parts, range(3), strict=False):
        if len(part) % 2 or number == 1:
            matrix.__dict__[name] = part
    path = tmp_path_factory.mktemp("index") / "x.pkl"
    path.write_bytes(pickle.dumps(matrix))
    try:
        found = unpickle.load_pickle(path).tocsr()
    except UnlearnError:
        return
    found.check_format(full_check=True)
    assert found.toarray().shape == (3, 3)


@hypothesis_settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 13)), max_size=3), st.integers(0, 13))
def test_tensors_take_what_is_inside_their_storage(tmp_path_factory, axes, offset):
    size, stride = [tuple(axis) for axis in zip(*axes, strict=True)] or [(), ()]
    path, storage = tmp_path_factory.mktemp("index") / "x.pth", torch.arange(12.0)
    torch.save([Trap(torch._utils._rebuild_tensor_v2, storage.storage(), offset, size, stride, False, {})], path)
    places = [sum(map(operator.mul, place, stride)) + offset for place in np.ndindex(*size)]
    if len(places) <= 12 and all(place < 12 for place in places):
        (found,) = unpickle.load_torch(path)
        assert (found.flatten().tolist(), found.shape) == (places, size)
    else:
        refused("larger than its storage", unpickle.load_torch, path)


@pytest.mark.parametrize("content", [sp.coo_matrix(np.eye(2)), torch.eye(3).to_sparse()])
def test_forms_that_no_model_of_recbole_keeps_are_refused(tmp_path, content):
    torch.save({"w": content}, tmp_path / "x.pth")
    refused("Refused", unpickle.load_torch, tmp_path / "x.pth")
