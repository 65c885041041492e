"""Shared: `tiny` as it is loaded, and the pairs of a dataset."""

import pytest

from recbole_unlearn.data import load
from recbole_unlearn.settings import UnlearnConfig
from tests.conftest import quick_settings


def pairs(dataset):
    """The pairs (user, item) of a dataset in its order."""
    columns = (dataset.inter_feat[field].tolist() for field in ("user_id", "item_id"))
    return list(zip(*columns, strict=True))


@pytest.fixture(scope="package")
def tiny_config(tiny_path, tmp_path_factory):
    values = quick_settings(tiny_path, tmp_path_factory.mktemp("w")) | {"normalize_all": True}
    return UnlearnConfig("BPR", "tiny", config_dict=values)


@pytest.fixture(scope="package")
def source(tiny_config):
    return load(tiny_config)


@pytest.fixture(scope="package")
def splits(source):
    return source.splits
