"""Sequential models that this package builds in the place of RecBole's: the same numbers where RecBole has any."""

import numpy as np
import pytest
import torch
from recbole.data.interaction import Interaction

from recbole_unlearn.data import load, loaders
from recbole_unlearn.recbole_compat import anomaly_mode_kept, clear_caches
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import build_model

with anomaly_mode_kept():
    from recbole.model.sequential_recommender import bert4rec, fearec


@pytest.fixture
def built(settings):
    """A model on `tiny` and a batch for it."""

    def build(model):
        values = {key: value for key, value in settings.items() if key != "embedding_size"}
        config = UnlearnConfig(model, "tiny", config_dict=values | {"MAX_ITEM_LIST_LENGTH": 6})
        splits = load(config).splits
        return build_model(config, splits), next(iter(loaders(config, splits).train))

    return build


def test_fearec_has_recboles_index(built):
    model, _ = built("FEARec")
    expected = fearec.FEARec.get_same_item_index(model, model.dataset)
    assert type(model) is not fearec.FEARec
    assert set(model.same_item_index) == set(expected)
    assert all(np.array_equal(model.same_item_index[item], rows) for item, rows in expected.items())


def test_bert4rec_has_no_loss_where_nothing_is_masked(built):
    model, batch = built("BERT4Rec")
    model.eval()
    assert model.calculate_loss(batch) == bert4rec.BERT4Rec.calculate_loss(model, batch)
    nothing = Interaction({**batch.interaction, "MASK_INDEX": torch.zeros_like(batch["MASK_INDEX"])})
    assert bert4rec.BERT4Rec.calculate_loss(model, nothing).isnan()
    loss = model.calculate_loss(nothing)
    loss.backward()
    assert loss == 0


def test_repeatnet_keeps_nothing_of_a_batch(built):
    model, batch = built("RepeatNet")
    model.calculate_loss(batch)
    assert "repeat_explore" in vars(model)
    clear_caches(model)
    assert "repeat_explore" not in vars(model)
