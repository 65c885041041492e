"""Settings: types and limits, and that property files and dataclasses name the same keys."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn import settings
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.registry import METHODS
from recbole_unlearn.settings import SUPPORTED_TYPES, model_names, properties_dir, read_yaml, setting


@dataclasses.dataclass(frozen=True)
class Sample:
    share: float = setting("a share", low=0.0, high=1.0)
    count: int | None = setting("a count", low=1)
    mode: str = setting("a mode", choices=("fast", "slow"))
    names: list[str] = setting("names")
    on: bool = setting("a switch")


GOOD = {"share": 0.5, "count": None, "mode": "fast", "names": "a, b", "on": True}


def test_good_values_are_read():
    assert settings.read(Sample, GOOD) == Sample(0.5, None, "fast", ["a", "b"], True)


@given(st.floats(0, 1) | st.integers(0, 1))
def test_any_share_within_limits_is_read(share):
    assert settings.read(Sample, GOOD | {"share": share}).share == share


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("share", 1.01), ("share", -0.1), ("share", float("nan")), ("share", "much"), ("share", True),
        ("share", None), ("count", 0), ("count", 2.5), ("count", True), ("mode", "medium"), ("on", 1),
    ],
)  # fmt: skip
def test_bad_values_name_the_key(key, value):
    with pytest.raises(UnlearnError, match=f"^{key}="):
        settings.read(Sample, GOOD | {key: value})


def test_every_setting_has_one_default_in_overall_yaml():
    declared = [key for group in settings.GROUPS.values() for key in settings.names(group)]
    assert len(declared) == len(set(declared))
    assert set(declared) <= set(read_yaml(properties_dir() / "overall.yaml"))


@pytest.mark.parametrize("method", METHODS.all(), ids=lambda method: method.name)
def test_a_method_and_its_property_file_name_the_same_keys(method, make_config):
    values = make_config().method_values(method.name)  # presets together with what they are presets of
    assert set(values) == set(settings.names(method.Settings))
    settings.read(method.Settings, values)


def test_no_property_file_is_an_orphan():
    methods = {method.name: method for method in METHODS.all()}
    folder = properties_dir() / "method"
    stems = {path.stem for path in folder.glob("*.yaml")}
    assert set(methods) <= stems
    datasets = {path.stem for path in (properties_dir() / "dataset").glob("*.yaml")}
    places = {*model_names(), *datasets, *(f"{model}-{name}" for model in model_names() for name in datasets)}
    places |= {kind.name.lower() for kind in SUPPORTED_TYPES}
    for stem in stems - set(methods):  # METHOD-KIND, METHOD-MODEL, METHOD-DATASET, METHOD-MODEL-DATASET
        method, place = stem.split("-", 1)
        assert place in places
        assert set(read_yaml(folder / f"{stem}.yaml")) <= set(settings.names(methods[method].Settings))
    for name, method in methods.items():
        own = read_yaml(folder / f"{name}.yaml")
        assert own.pop("preset_of", name) in methods
        assert set(own) <= set(settings.names(method.Settings))
    assert {path.stem for path in (properties_dir() / "model").glob("*.yaml")} <= set(model_names())
