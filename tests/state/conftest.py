"""A state of a small model, and requests to it."""

import contextlib
import functools
import json
import shutil

import pytest

from recbole_unlearn.state import init_state, open_state
from tests.conftest import PLAIN, tiny_rows, train_plain

# Context-aware models are trained on sampled negatives and ranked, as properties/model_type/context.yaml has it.
CONTEXT = {
    "load_col": PLAIN["load_col"] | {"user": ["user_id", "city"], "item": ["item_id", "kind"]},
    "eval_args": {"split": {"RS": [0.8, 0.1, 0.1]}, "order": "RO", "group_by": "user", "mode": "full"},
    "train_neg_sample_args": {
        "distribution": "uniform", "sample_num": 1, "alpha": 1.0, "dynamic": False, "candidate_num": 0,
    },
    "metrics": ["Recall", "NDCG"], "valid_metric": "NDCG@10", "topk": [10],
}  # fmt: skip


@pytest.fixture(scope="session")
def key_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "key"
    path.write_text("0123456789abcdef" * 4)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="session")
def checkpoints(tiny_path, tmp_path_factory):
    """``checkpoints("BPR")``: a checkpoint of RecBole's own trainer, trained once."""

    @functools.cache
    def make(model):
        values = {**PLAIN, **(CONTEXT if model in ("FM", "NFM") else {}), "data_path": str(tiny_path)}
        return train_plain(model, tmp_path_factory.mktemp(model), **values)

    return make


@pytest.fixture(scope="session")
def fresh(checkpoints, tiny_path, key_file, tmp_path_factory):
    """``fresh("BPR")``: a new state, to copy."""

    @functools.cache
    def make(model):
        folder = tmp_path_factory.mktemp(f"state-{model}") / "S"
        init_state(folder, checkpoints(model), hash_key=key_file, data_path=str(tiny_path)).close()
        return folder

    return make


@pytest.fixture(scope="session")
def busy_folder(fresh, key_file, tmp_path_factory):
    """A state with one request done and one pending, to copy."""
    folder = tmp_path_factory.mktemp("busy") / "S"
    shutil.copytree(fresh("BPR"), folder)
    with open_state(folder, key_file) as state:
        done(state, a=some("u3", 4))
        state.submit({"user_id": "u8"}, id="b")
    return folder


@pytest.fixture
def copied(key_file, tmp_path):
    """``copied(folder)``: a copy of a state, open until the test ends."""
    with contextlib.ExitStack() as opened:

        def copy(folder, name="S"):
            shutil.copytree(folder, tmp_path / name)
            return opened.enter_context(open_state(tmp_path / name, key_file))

        yield copy


@pytest.fixture
def make_state(fresh, copied):
    """``make_state("BPR")``: a new state of its own."""
    return lambda model="BPR", name="S": copied(fresh(model), name)


@pytest.fixture
def busy(copied, busy_folder):
    return copied(busy_folder)


def done(state, *requests, **by_id):
    """Submit requests and carry each out before the next; keywords are ids."""
    for id, request in [*((None, one) for one in requests), *by_id.items()]:
        state.submit(request, id=id)
        assert state.run()[0].status == "done"


def about(folder):
    """export.json of an export."""
    return json.loads((folder / "export.json").read_text())


def items_of(user):
    """The items of a user of `tiny`, sorted."""
    return sorted(item for one, item, _, _ in tiny_rows() if one == user)


def some(user, number):
    """A request for the first interactions of a user."""
    items = items_of(user)[:number]
    return {"user_id": [user] * len(items), "item_id": items}


def pairs_of(state, parts=slice(None)):
    """All pairs of tokens that the data of a state has, by its own index; ``parts`` may be some of it."""
    names, found = state.core.live.base.splits.train, set()
    for index in state.core.live.parts[parts]:
        sides = (names.id2token(f"{side}_id", index.ids[side][~index.removed]) for side in ("user", "item"))
        found |= {(str(user), str(item)) for user, item in zip(*sides, strict=True)}
    return found
