"""Every method, the live state and files on a simulated GPU (simulated_device.py); what is kept there, and sent."""

import contextlib
import os
import pickle
import re
from unittest import mock

import pytest
import torch

from recbole_unlearn import load_unlearned, run_unlearn, tune_unlearn
from recbole_unlearn.cluster import Workers, gpu_share
from recbole_unlearn.data import load
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import load_for_recbole
from recbole_unlearn.measures import evaluation, scores
from recbole_unlearn.recbole_compat import own_environment
from recbole_unlearn.registry import METHODS
from recbole_unlearn.settings import KNOWLEDGE
from recbole_unlearn.state import init_state, open_state
from recbole_unlearn.training import train_here
from recbole_unlearn.tuning import backend
from tests.conftest import ROOT
from tests.parts import same
from tests.simulated_device import simulated_gpu
from tests.state.conftest import checkpoints, key_file
from tests.tuning.test_sweep import here, in_this_process, space

__all__ = ["checkpoints", "here", "key_file"]
MODELS = ["BPR", "LightGCN", "NGCF", "NeuMF", "MultiVAE", "EASE", "FM", "SASRec", "BERT4Rec", "CKE", "KGCN"]
QUICK = {
    "downdate": ["EASE"], "finetune": ["KGCN"], "rebuild": ["NeuMF"], "rrl": ["NGCF"],
    "obliviate": ["BPR", "LightGCN", "MultiVAE", "FM", "SASRec", "BERT4Rec"],
}  # fmt: skip
STEPS = dict.fromkeys(("no_lua", "no_distill", "obliviate_paper"), "lac_steps")
STEPS |= {name: f"{name}_steps" for name in ("gradient_ascent", "rrl")}
# Models that are given are loaded as a saved one is.
NAMES = [method.name for method in METHODS.all() if not method.name.startswith("given")]
CASES = [(name, model) for name in NAMES for model in MODELS]
is_quick = lambda name, model: model in QUICK.get(name, ["BPR"])  # noqa: E731


@pytest.fixture
def gpu():
    with simulated_gpu() as answers:
        yield answers


@pytest.fixture
def forget(settings, quick, trained):
    """``forget("BPR", key=value)``: a very short run."""

    def run(model, function=run_unlearn, **changes):
        special = model in KNOWLEDGE or model in ("SASRec", "BERT4Rec")
        values = quick(model) if special else settings | {"report": "none", "cache_dir": trained}
        values |= {"epochs": 1, "eval_step": 1, "unlearn": "finetune"} | changes
        values |= {STEPS[name]: 2 for name in [values["unlearn"]] if name in STEPS}
        return function(model, "tiny", forget={"user_id": ["u3", "u8"]}, config_dict=values)

    return run


@pytest.mark.parametrize(
    ("name", "model"), [pytest.param(*case, marks=[] if is_quick(*case) else pytest.mark.slow) for case in CASES]
)
def test_every_method(gpu, forget, name, model):
    try:
        result = forget(model, unlearn=name)
    except UnlearnError as error:  # a model that the method refuses
        assert not is_quick(name, model), error
        pytest.skip(str(error))
    assert all(value.is_cuda for value in result.model.parameters())


@pytest.mark.parametrize("model", ["BPR", "LightGCN", pytest.param("FM", marks=pytest.mark.slow)])
def test_the_live_state(model, checkpoints, key_file, tiny_path, tmp_path):
    """To the bit as on the CPU; of weights and moments, changed rows alone come to the host: here nearly all."""
    found, original = [], checkpoints(model)
    for name, device in (("gpu", simulated_gpu), ("cpu", lambda: contextlib.nullcontext(mock.Mock(to_host=[])))):
        with device() as answers:
            init_state(tmp_path / name, original, hash_key=key_file, data_path=str(tiny_path)).close()
            with open_state(tmp_path / name, key_file) as state:
                for request in ({"user_id": "u8"}, {"item_id": "i7"}):
                    state.submit(request)
                    answers.to_host.clear()
                    assert [receipt.status for receipt in state.run()] == ["done"]
                    held = [*state.model.state_dict().values(), *state.core.live.moments.values()]
                    assert sum(answers.to_host) < 2 * sum(value.numel() for value in held)
                assert len(state.recommend("u3", 5)) == 5
                state.export(tmp_path / f"{name}-export")
                state.verify()
        with open_state(tmp_path / name, key_file) as state:  # on a machine without a GPU
            found.append(state.core.live.state())
    assert same(*found)


def test_a_saved_model_opens_on_any_machine(forget):
    with simulated_gpu():
        result = forget("BPR", unlearn="retrain")
        path = result.output_dir / "BPR-unlearned.pth"
        assert next(load_unlearned(path).model.parameters()).is_cuda
        assert load_for_recbole(path)["config"]["device"].type == "cuda"
        weights = {name: value.cpu() for name, value in result.model.state_dict().items()}
    assert load_for_recbole(path)["config"]["device"].type == "cpu"
    (code,) = re.findall(r"```python\n(import torch\n.*?)```", (ROOT / "docs" / "serving.md").read_text(), re.DOTALL)
    names = {}
    with own_environment():
        exec(code.replace("elsewhere", str(result.output_dir)).replace("ml-100k", "tiny"), names)
    assert same(names["model"].state_dict(), weights)


@pytest.fixture
def no_gpu_elsewhere(here, gpu, monkeypatch):
    """Ray's processes have no GPU: what is sent to and from them is pickled."""

    def elsewhere(work, *piece):
        sent = pickle.dumps(piece)
        with mock.patch.object(torch.cuda, "is_available", return_value=False):
            return pickle.loads(pickle.dumps(work(*pickle.loads(sent))))

    def on_ray(self, work, pieces, left):
        assert self.device == "cuda"
        yield from ((k, elsewhere(work, *pieces[k])) for k in left)

    def on_tune(ray, shared, *more):
        in_this_process(ray, elsewhere(lambda *parts: shared._make(parts), *shared), *more)

    monkeypatch.setattr(Workers, "_on_ray", on_ray)
    monkeypatch.setattr(backend, "run_trials", on_tune)


@pytest.mark.parametrize("name", ["sisa", "receraser"])
def test_shards_are_trained_by_processes_without_a_gpu(no_gpu_elsewhere, forget, name):
    result = forget("BPR", unlearn=name, cache=False, workers=2, **{f"{name}_shards": 2})
    assert all(value.is_cuda for value in result.model.parameters())


def test_a_sweep_has_trials_without_a_gpu(no_gpu_elsewhere, forget):
    lines = space("finetune_epochs: {choice: [1]}\n")
    assert (
        forget("BPR", tune_unlearn, tune=True, space=lines, trials=1, compare="retrain").result["best"]["trial"] == 0
    )


@pytest.mark.parametrize(("device", "gpus", "at_once", "share"), [
    ("cuda", 1, 4, 0.25), ("cuda", 4, 6, 0.5), ("cuda", 8, 2, 1.0), ("cuda", 0, 4, 0.0), ("cpu", 1, 4, 0.0),
    ("cuda", 1, 100, 0.125),  # no more at a time than there are CPUs
])  # fmt: skip
def test_shares_of_a_gpu(device, gpus, at_once, share):
    ray = mock.Mock(cluster_resources=lambda: {"CPU": 8.0} | ({"GPU": float(gpus)} if gpus else {}))
    assert gpu_share(ray, device, at_once) == share


def test_cuda_is_not_started_before_it_is_known_which_gpu_to_use(forget):
    """It reads CUDA_VISIBLE_DEVICES once; a GPU that a run started has the caller's seed afterwards."""
    seen, seeds = [], []
    asked = lambda answer: seen.append(os.environ.get("CUDA_VISIBLE_DEVICES")) or answer  # noqa: E731
    torch.manual_seed(17)
    with simulated_gpu(), mock.patch.multiple(
        torch.cuda, is_initialized=lambda: bool(seeds), manual_seed_all=seeds.append,
        is_available=lambda: asked(True), get_rng_state_all=lambda: asked([]),
    ):  # fmt: skip
        forget("BPR", gpu_id="1")
    assert set(seen) == {"1"}
    assert seeds[-1] == 17


def test_use_gpu_is_no_way_off_the_gpu(gpu, forget, caplog):
    for given, device, said in (({"use_gpu": False}, "cuda", True), ({"gpu_id": ""}, "cpu", False)):
        caplog.clear()
        assert forget("BPR", **given).config["device"].type == device
        assert ("give --gpu_id= to work on the CPU" in caplog.text) == said


@pytest.mark.parametrize("model", ["BPR", "SASRec"])
def test_measuring_brings_lists_to_the_host_and_no_scores(gpu, forget, model):
    sizes, observe = [], scores.observe

    def observed(*given):
        gpu.to_host.clear()
        found = observe(*given)
        sizes.append(max(gpu.to_host))
        return found

    with mock.patch.object(evaluation, "observe", observed), mock.patch.object(scores, "DEPTH", 5):
        forget(model, demotion_negatives=2)
    assert 0 < max(sizes) <= 40 * 61 / 10  # the scores of all users are 40 · 61


@pytest.mark.parametrize(("model", "dropout"), [("LightGCN", {}), ("NGCF", {}), ("NGCF", {"node_dropout": 0.2})])
def test_graph_models_in_mixed_precision(make_config, model, dropout):
    config = make_config(model, enable_amp=True, epochs=1, **dropout)
    assert train_here(config, load(config).splits, "original")[1].epoch == 0
