"""Search spaces: what they accept, and what is drawn from them."""

import json
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recbole_unlearn.registry import METHODS
from recbole_unlearn.settings import properties_dir
from recbole_unlearn.tuning import Space, identity, space
from tests.parts import refused

OBLIVIATE = METHODS.get("obliviate")


def load(make_config, tmp_path, text, **changes):
    file = tmp_path / "space.yaml"
    file.write_text(text)
    return space.load(make_config(unlearn="obliviate", **changes), OBLIVIATE, str(file))


def test_every_kind_of_values(make_config, tmp_path):
    read = load(
        make_config, tmp_path,
        "rank: {choice: [4, 9, full]}\nlac_steps: {int: [20, 90, 20]}\n"
        "lac_learning_rate: {loguniform: [1e-3, 0.1]}\nlac_negatives: {uniform: [0, 2]}\n"
        "lua_target: {grid: [none, neighbours]}\nlua_rounds: {int: [1, 3]}\n",
    )  # fmt: skip
    assert {key: read.values(key) for key in read.lines} == {
        "rank": [4, 9, "full"], "lac_steps": [20, 40, 60, 80], "lac_learning_rate": None, "lac_negatives": None,
        "lua_target": ["none", "neighbours"], "lua_rounds": [1, 2, 3],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "empty"), ("- rank\n", "not a mapping"), ("rank: {choice: [4\n", "line 2"),
     ("rank: [4, 8]\n", "one kind of values"), ("rank: {}\n", "one kind of values"),
     ("rank: {choice: []}\n", "list of values"), ("rank: {choice: [4, 4]}\n", "is there twice"),
     ("rank: {choice: [[4]]}\n", "plain value"), ("rank: {choice: [0]}\n", "rank=0"),
     ("rank: {choice: [4], grid: [8]}\n", "one kind of values"),
     ("rank: {choice: [4]}\nlac_steps: {int: [1, 2]}\nrank: {choice: [8]}\n", "rank is there twice (line 3)"),
     ("rank: {chioce: [4]}\n", "Did you mean choice"), ("lac_step: {int: [1, 2]}\n", "Did you mean lac_steps"),
     ("learning_rate: {uniform: [0.1, 0.2]}\n", "not a setting of obliviate"),
     ("4: {int: [1, 2]}\n", "the key 4 is not a name"), ("lac_steps: {int: [20, 20]}\n", "upside down or empty"),
     ("lac_steps: {int: [1.5, 20]}\n", "whole numbers"), ("lac_steps: {int: [1, 20, 0]}\n", "step 0"),
     ("lac_steps: {int: [-5, 20]}\n", "lac_steps=-5"), ("lac_horizon: {choice: [8]}\n", "lac_horizon=8"),
     ("lac_steps: {uniform: [0.5, 20.5]}\n", "expected a whole number"),
     ("lac_learning_rate: {uniform: [0.2, 0.1]}\n", "upside down"),
     ("lac_learning_rate: {loguniform: [0, 0.1]}\n", "above 0"),
     ("lac_learning_rate: {uniform: [0, .inf]}\n", "finite number"),
     ("lac_learning_rate: {uniform: [0.1]}\n", "two numbers"), ("lac_learning_rate: {choice: [.nan]}\n", "finite"),
     ("lua_reach: {uniform: [0, 1.5]}\n", "lua_reach=1.5"),
     ("forget_kind: {choice: [noise, odd]}\n", "forget_kind='odd'"),
     ("rank: !!python/object/apply:os.mkdir [hacked]\n", "not valid YAML")],
)  # fmt: skip
def test_bad_spaces_are_told_in_one_line(make_config, tmp_path, text, said):
    assert said in refused("space.yaml", load, make_config, tmp_path, text)
    assert not (tmp_path / "hacked").exists()


def test_a_setting_cannot_be_swept_over_and_fixed(make_config, tmp_path):
    text = "rank: {choice: [4]}\nlac_steps: {int: [1, 2]}\n"
    refused("rank is swept over, but this run sets it", load, make_config, tmp_path, text, rank=8)
    # The method's own space gives way instead: who sets a rank wants that rank.
    own = space.load(make_config(unlearn="obliviate"), OBLIVIATE, None)
    assert "rank" in own.lines
    assert "rank" not in space.load(make_config(unlearn="obliviate", rank=8), OBLIVIATE, None).lines
    fixed = make_config(unlearn="obliviate", **dict.fromkeys(own.lines, 1))
    refused("Every setting", space.load, fixed, OBLIVIATE, None)


@pytest.mark.parametrize("path", sorted((properties_dir() / "tune").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_spaces_that_are_shipped_fit_their_methods(path, make_config):
    pytest.importorskip("ray.tune")
    name, _, kind = path.stem.partition("-")
    config = make_config({"": "BPR", "sequential": "SASRec"}[kind], unlearn=name)
    own = space.load(config, METHODS.get(name), None)
    assert own == space.load(config, METHODS.get(name), path.stem)  # named without its path
    assert len(own.random(16, 0)) == 16


PLAIN = st.integers(-50, 50) | st.booleans() | st.text(max_size=3) | st.none()
LINES = st.one_of(
    st.builds(
        lambda kind, values: {kind: values},
        st.sampled_from(["choice", "grid"]),
        st.lists(PLAIN, min_size=1, max_size=4, unique_by=lambda v: (type(v), v)),
    ),
    st.builds(
        lambda low, size, step: {"int": [low, low + size, *step]},
        st.integers(-9, 9), st.integers(1, 9), st.lists(st.integers(1, 4), max_size=1),
    ),
    st.builds(
        lambda kind, low, factor: {kind: [low, low * factor]},
        st.sampled_from(["uniform", "loguniform"]), st.floats(1e-6, 1e3), st.floats(1.01, 1e3),
    ),
)  # fmt: skip
SPACES = st.dictionaries(st.sampled_from("abcde"), LINES, min_size=1, max_size=4).map(Space)


def assert_inside(drawn, values):
    """All values are of their settings' domains, and as a file has them."""
    assert values.keys() == drawn.lines.keys()
    assert json.loads(json.dumps(values)) == values
    for key, value in values.items():
        listed, (ends,) = drawn.values(key), drawn.lines[key].values()
        if listed is None:
            assert type(value) is float
            assert ends[0] <= value <= ends[1]
        else:
            assert any(type(own) is type(value) and own == value for own in listed)


@given(SPACES, st.integers(0, 2**31), st.integers(1, 12))
def test_draws_are_inside_distinct_repeatable_and_the_start_of_longer_sweeps(drawn, seed, trials):
    pytest.importorskip("ray.tune")
    found = drawn.random(trials, seed)
    for values in found:
        assert_inside(drawn, values)
    assert len({identity(values) for values in found}) == len(found)
    assert found == drawn.random(trials, seed)
    listed = [key for key, line in drawn.lines.items() if "grid" in line]
    assert 1 <= len(found) <= trials * len(drawn.grid(listed))
    longer = drawn.random(trials + 5, seed)
    assert longer[: len(found)] == found
    for key in listed:
        assert {identity(values[key]) for values in found} == set(map(identity, drawn.values(key)))


@given(SPACES)
@example(Space({"a": {"int": [1, 1000]}, "b": {"int": [1, 1000]}}))
def test_a_grid_has_every_combination_once(drawn):
    listed = [drawn.values(key) for key in drawn.lines]
    if None in listed:
        refused("Grid search cannot go through the range", drawn.grid)
        return
    if (size := math.prod(map(len, listed))) > space.LARGEST:
        refused("1000000 combinations", drawn.grid)
        return
    found = drawn.grid()
    assert len({identity(values) for values in found}) == len(found) == size
    for values in found:
        assert_inside(drawn, values)


def test_numbers_of_ranges_have_few_digits_and_stay_inside():
    drawn = Space({"a": {"loguniform": [0.12344, 0.2]}, "b": {"int": [1, 9]}})
    assert drawn.plain({"a": 0.12344, "b": np.int64(3)}) == {"a": 0.12344, "b": 3}
    assert drawn.plain({"a": 0.1567891, "b": 3})["a"] == 0.1568
