"""Attacks on what a file may do: each of them worked once, or would in a careless reader."""

import io
import os
import pickle
import tarfile
import threading
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from recbole_unlearn import UnlearnConfig, UnlearnError, cli, read_checkpoint, run_unlearn
from recbole_unlearn import files as unpickle
from recbole_unlearn.data import load
from recbole_unlearn.training import build_model

RUN = {
    "show_progress": False,
    "tensorboard": False,
    "report": "none",
    "cache": False,
    "demotion_negatives": 5,
}


@pytest.fixture
def forged(plain_checkpoint, tmp_path):
    """``forged(key=value)``: the plain checkpoint with other settings in its config."""

    def make(**values):
        content = torch.load(plain_checkpoint, weights_only=False)
        content["config"].final_config_dict.update(values)
        path = tmp_path / "forged.pth"
        torch.save(content, path, pickle_protocol=4)
        return path

    return make


class Trap:
    """Makes a file when a careless unpickler meets it."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


# Settings from files are data


@pytest.mark.parametrize("source", ["checkpoint", "file", "dict"])
def test_a_teacher_is_a_name_and_never_code(tmp_path, tiny_path, forged, source):
    """KD_DAGFM evaluates the name of its teacher."""
    code = f"open({str(tmp_path / 'ran')!r}, 'w')"
    values = {"data_path": str(tiny_path), "epochs": 1}
    (tmp_path / "c.yaml").write_text(f'teacher: "{code}"\n')
    given = {
        "checkpoint": {"checkpoint": forged(model="KD_DAGFM", teacher=code), "forget": {"user_id": ["u1"]}},
        "file": {"model": "KD_DAGFM", "dataset": "tiny", "config_files": [str(tmp_path / "c.yaml")]},
        "dict": {"model": "KD_DAGFM", "dataset": "tiny"},
    }[source]
    values |= {"teacher": code} if source == "dict" else {}
    with pytest.raises(UnlearnError, match="teacher="):
        run_unlearn(**given, output_dir=tmp_path / "o", config_dict=values)
    assert not (tmp_path / "ran").exists()


def test_a_pickled_array_in_a_datasets_folder_is_not_unpickled(tmp_path, tiny_path):
    """LDiffRec opens `item_emb.npy` of the dataset's folder with pickles allowed."""
    folder = tmp_path / "data" / "tiny"
    folder.mkdir(parents=True)
    (folder / "tiny.inter").write_bytes((tiny_path / "tiny" / "tiny.inter").read_bytes())
    np.save(folder / "item_emb.npy", np.array([Trap(tmp_path / "ran")], dtype=object), allow_pickle=True)
    config = UnlearnConfig(
        "LDiffRec", "tiny", config_dict={"data_path": str(tmp_path / "data"), "n_cate": 2, "epochs": 1}
    )
    with pytest.raises(UnlearnError, match="allow_pickle"):
        build_model(config, load(config).splits)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "path_key",
    ["pre_model_path", "pretrain_path", "mf_pretrain_path", "mlp_pretrain_path", "warm_up", "data_path"],
)
def test_no_path_comes_from_a_file(forged, tmp_path, path_key):
    assert path_key not in read_checkpoint(forged(**{path_key: str(tmp_path / "x")})).settings


def test_data_that_was_elsewhere_is_not_looked_for_there(forged, tmp_path, tiny_path):
    """The checkpoint may name any folder; people say where their data is."""
    with pytest.raises(UnlearnError, match=r"paths are not taken from files. Add --data_path="):
        run_unlearn(
            checkpoint=forged(), forget={"user_id": ["u1"]}, output_dir=tmp_path / "o", config_dict=RUN
        )
    outcome = run_unlearn(
        checkpoint=forged(), forget={"user_id": ["u1"]}, output_dir=tmp_path / "o",
        config_dict=RUN | {"data_path": str(tiny_path)},
    )  # fmt: skip
    assert outcome.result["forget"]["users"] == 1


def test_a_saved_dataset_does_not_say_where_it_is(settings, tmp_path, plain_checkpoint):
    run_unlearn("BPR", "tiny", unlearn="obliviate", forget={"user_id": ["u1"]}, config_dict=settings)
    dataset = pickle.loads((tmp_path / "out" / "tiny-Dataset.pth").read_bytes())
    dataset.dataset_path = "/etc"
    (tmp_path / "out" / "tiny-Dataset.pth").write_bytes(pickle.dumps(dataset, protocol=4))
    config = UnlearnConfig("BPR", "tiny", config_dict=settings)
    found = load(config, tmp_path / "out" / "tiny-Dataset.pth").splits.train
    assert found.dataset_path == config["data_path"] != "/etc"


@pytest.mark.parametrize(
    "values",
    [
        {"output_dir": "/elsewhere"}, {"cache_dir": "/elsewhere"}, {"save_adapters": True}, {"threads": 10**6},
        {"lac_steps": 0, "lua_target": "none"}, {"download_url": "http://127.0.0.1:9/x.zip"}, {"unlearn": "finetune"},
        {"replace": True}, {"ray_address": "auto"}, {"min_group": 1},
    ],
)  # fmt: skip
def test_a_checkpoint_sets_nothing_of_ours(forged, tmp_path, tiny_path, values):
    given = RUN | {"data_path": str(tiny_path)}
    path = forged(**values)
    assert not set(values) & set(read_checkpoint(path).settings)
    outcome = run_unlearn(
        checkpoint=path,
        forget={"user_id": ["u1"]},
        unlearn="obliviate",
        output_dir=tmp_path / "o",
        config_dict=given,
    )
    assert outcome.output_dir == tmp_path / "o"
    assert not (tmp_path / "o" / "adapters").exists()
    plain = UnlearnConfig("BPR", "tiny", config_dict=given | {"unlearn": "obliviate"})
    ours = {key: outcome.config.method_values("obliviate")[key] for key in ("lac_steps", "lua_target")}
    assert ours == {key: plain.method_values("obliviate")[key] for key in ours}


@pytest.mark.parametrize("name", ["os", "BPR; import os", "..", "recbole.utils"])
def test_a_model_is_a_class_of_recbole(forged, tmp_path, name):
    with pytest.raises(UnlearnError, match="Unknown model"):
        run_unlearn(checkpoint=forged(model=name), forget={"user_id": ["u1"]}, output_dir=tmp_path / "o")


@pytest.mark.parametrize(
    "values", [{"embedding_size": 10**9}, {"mlp_hidden_size": [8, 10**8]}, {"n_layers": 10**7}]
)
def test_no_layer_is_larger_than_the_weights(forged, values):
    with pytest.raises(UnlearnError, match="larger than anything in its weights"):
        read_checkpoint(forged(**values))


@pytest.mark.parametrize(
    "values",
    [
        {"benchmark_filename": 3}, {"benchmark_filename": ["../../x"]}, {"additional_feat_suffix": ["../x"]},
        {"unused_col": 3}, {"unused_col": [1]}, {"load_col": "x"}, {"train_neg_sample_args": 5}, {"learner": 5},
        {"eval_args": {"split": {"RS": [8, 1, 1]}, "order": ["RO"], "group_by": "user", "mode": "full"}},
        {"eval_args": {"split": 3, "order": "RO", "group_by": "user", "mode": "full"}}, {"train_batch_size": 0},
    ],
)  # fmt: skip
def test_settings_of_another_kind_end_in_one_line(forged, tmp_path, tiny_path, values):
    """RecBole fails on them in the middle of loading or training."""
    with pytest.raises(UnlearnError) as error:
        run_unlearn(
            checkpoint=forged(**values), forget={"user_id": ["u1"]}, unlearn="obliviate", output_dir=tmp_path / "o",
            config_dict=RUN | {"data_path": str(tiny_path)},
        )  # fmt: skip
    assert "\n" not in str(error.value)


def test_a_grid_file_names_no_place(tmp_path, capsys):
    for key in ("data_path", "cache_dir", "download_url", "pretrain_path", "output_dir", "checkpoint"):
        lists = "datasets: [tiny]\nmodels: [BPR]\nmethods: [finetune, retrain]\nseeds: [1]\nratios: [0.1]\n"
        (tmp_path / "g.yaml").write_text(f"{lists}settings: {{{key}: /x}}\n")
        assert cli.main([f"--grid={tmp_path / 'g.yaml'}"]) == 2
        assert key in capsys.readouterr().err


# One parser decides what a file is


def test_a_file_with_two_central_directories_runs_nothing(tmp_path, monkeypatch):
    """Python's parser and torch's see different archives in it; only one of them is asked here."""
    script = torch.jit.script(torch.nn.Linear(2, 2))
    script.save(str(tmp_path / "script.pt"))
    torch.save({"state_dict": {}}, tmp_path / "plain.pth")
    hidden, plain = (tmp_path / "script.pt").read_bytes(), (tmp_path / "plain.pth").read_bytes()
    for content in (hidden + plain, plain + hidden):
        (tmp_path / "both.pth").write_bytes(content)
        for careless in ("torch.load", "torch.jit.load", "pickle.load", "pickle.loads", "pickle.Unpickler"):
            monkeypatch.setattr(careless, lambda *args, **kwargs: pytest.fail("a careless reader was called"))
        with pytest.raises(UnlearnError):
            read_checkpoint(tmp_path / "both.pth")


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
    with pytest.raises(UnlearnError, match="neither torch's zip nor its plain pickle"):
        unpickle.load_torch(tmp_path / "old.pth")
    assert victim.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("given", ["--checkpoint={}", "--config_files={}", "--forget={}", "--space={}"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, flags, given):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    arguments = ["--model=BPR", "--dataset=tiny", "--unlearn=obliviate", given.format(pipe), *flags()]
    arguments += ["--tune"] if "space" in given else []
    codes = []
    thread = threading.Thread(target=lambda: codes.append(cli.main(arguments)), daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert codes == [2]


@pytest.mark.parametrize("change", ["compressed", "twice", "larger"])
def test_odd_archives_are_refused(tmp_path, change):
    torch.save({"state_dict": {"w": torch.zeros(3)}}, tmp_path / "good.pth")
    out = io.BytesIO()
    with (
        zipfile.ZipFile(tmp_path / "good.pth") as good,
        zipfile.ZipFile(
            out, "w", zipfile.ZIP_DEFLATED if change == "compressed" else zipfile.ZIP_STORED
        ) as bad,
    ):
        for info in good.infolist():
            bad.writestr(info.filename, good.read(info))
            if change == "twice" and info.filename.endswith("data.pkl"):
                with pytest.warns(UserWarning, match="Duplicate"):
                    bad.writestr(info.filename, good.read(info))
    content = out.getvalue()
    if change == "larger":  # the directory says that a record is larger than the file
        content = content.replace((12).to_bytes(4, "little") * 2, (2**31).to_bytes(4, "little") * 2)
    (tmp_path / "bad.pth").write_bytes(content)
    with pytest.raises(UnlearnError, match="Refused"):
        unpickle.load_torch(tmp_path / "bad.pth")


# No memory-unsafe pickles

ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I1\ntcnumpy\ndtype\n"


@pytest.mark.parametrize(
    "pickled",
    [
        # an array of objects whose bytes would be taken for pointers
        ARRAY + b"(S'O8'\nI00\nI01\ntR(I3\nS'|'\nNNNI-1\nI-1\nI63\ntbI00\nS'AAAAAAAA'\ntb.",
        # a structured dtype with an object field
        ARRAY
        + b"(S'V8'\nI00\nI01\ntR(I3\nS'|'\nN(S'a'\nt(dS'a'\n(S'O8'\nI0\ntsI8\nI1\nI16\ntbI00\nS'AAAAAAAA'\ntb.",
        # fewer bytes than the shape says
        ARRAY.replace(b"(I1\nt", b"(I99\nt")
        + b"(S'f8'\nI00\nI01\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\nS'AAAAAAAA'\ntb.",
        # a state for a class: it changed a method for the whole process
        b"cscipy.sparse\ncsr_matrix\n(dS'dot'\nI1\nsb.",
        b"cnumpy\nndarray\n(dS'x'\nI1\nsb.",
        # a call of what a call returned
        b"cbuiltins\nset\n(tR(tR.",
    ],
)
def test_pickles_that_would_corrupt_memory_or_the_process_are_refused(tmp_path, pickled):
    dot = sp.csr_matrix.dot
    (tmp_path / "x.pkl").write_bytes(pickled)
    with pytest.raises(UnlearnError, match=r"Refused to read .*Nothing in it was run"):
        unpickle.load_pickle(tmp_path / "x.pkl")
    assert sp.csr_matrix.dot is dot


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((4,), (1,), 1),
        ((10**9,), (0,), 0),
        ((2, 2), (3, 1), 0),
        ((3,), (-1,), 2),
        ((3,), (1,), -1),
        ((2**40,), (1,), 0),
    ],
)
def test_tensors_outside_their_storage_are_refused(tmp_path, size, stride, offset):
    class Forged:
        def __reduce__(self):
            storage = torch.zeros(4).storage()
            return torch._utils._rebuild_tensor_v2, (storage, offset, size, stride, False, {})

    torch.save({"w": Forged()}, tmp_path / "x.pth")
    with pytest.raises(UnlearnError, match="Refused"):
        unpickle.load_torch(tmp_path / "x.pth")


def test_what_is_nested_without_end_is_refused(tmp_path):
    """Hashing or walking it would overflow the interpreter's own stack."""
    for pickled in (
        b"N" + b"\x85" * 100_000 + b".",
        b"(" * 50_000 + b"N" + b"l" * 50_000 + b".",
        b"}N" + b"\x85" * 100_000 + b"Ns.",
    ):
        (tmp_path / "x.pkl").write_bytes(b"\x80\x04" + pickled)
        with pytest.raises(UnlearnError):
            unpickle.load_pickle(tmp_path / "x.pkl")


def test_sparse_matrices_that_point_outside_are_refused(tmp_path):
    bad = sp.csr_matrix(np.eye(3))
    bad.indices = np.array([0, 1, 99], dtype=np.int32)
    ends = sp.csr_matrix(np.eye(3))
    ends.indptr = np.array([0, 1, 99, 3], dtype=np.int32)
    for matrix in (bad, ends):
        (tmp_path / "x.pkl").write_bytes(pickle.dumps(matrix))
        with pytest.raises(UnlearnError, match="sparse matrix"):
            unpickle.load_pickle(tmp_path / "x.pkl")


# Figures are checked before anything is written


def test_weights_that_overflow_write_nothing(plain_checkpoint, tmp_path, tiny_path):
    content = torch.load(plain_checkpoint, weights_only=False)
    content["state_dict"]["user_embedding.weight"].fill_(1e38)
    torch.save(content, tmp_path / "huge.pth", pickle_protocol=4)
    with pytest.raises(UnlearnError):
        run_unlearn(
            checkpoint=tmp_path / "huge.pth", forget={"user_id": ["u1"]}, unlearn="obliviate",
            output_dir=tmp_path / "o", config_dict=RUN | {"data_path": str(tiny_path)},
        )  # fmt: skip
    assert {path.name for path in (tmp_path / "o").iterdir()} <= {"run.log"}
