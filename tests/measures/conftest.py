"""Data, questions and a stand-in for a trainer that tests of measures share."""

import pytest

from recbole_unlearn.data import loaders
from recbole_unlearn.measures import Measurement, Questions, deleted_pairs
from recbole_unlearn.training import PhaseTrainer, build_model, compose
from tests.parts import divided

NOTHING = {"lua_target": "none", "lua_scale": 0, "lac_steps": 0}  # obliviate with both stages off


class FixedScores:
    """Replaces a trainer: scores are those of a table."""

    test_batch_size = 200

    def __init__(self, table):
        self.table = table

    def scores(self, users, dataset):
        return self.table[users]


def untrained(config, data, model=None):
    """A trainer of a model that was not trained, or of ``model``, and all measures of the request."""
    trainer = compose(PhaseTrainer, config, model or build_model(config, data.retain), "x")
    return trainer, Measurement(config, data, loaders(config, data.retain), 10)


@pytest.fixture
def data(make_config):
    return divided(make_config())


@pytest.fixture
def plan(data):
    return Questions.of(data, deleted_pairs(data, 10, 0), 0)
