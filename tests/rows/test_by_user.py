"""Models that learn and score by user: no user is worked on once for each of their interactions."""

import pytest
import torch

from recbole_unlearn.methods.obliviate.fast_gradients import RowGradients
from recbole_unlearn.rows import pair_scores, pairs_batch, predicted
from recbole_unlearn.training import build_model
from tests.parts import divided, make_adapters, make_witness

BY_USER = ["MultiVAE", "MultiDAE", "CDAE", "RecVAE", "MacridVAE", "ENMF"]


@pytest.fixture
def sizes(monkeypatch):
    """``sizes(model, "predict")``: how many users each call of a method of the model gets, as a list that grows."""

    def watch(model, name):
        found, original = [], getattr(model, name)

        def call(batch, **options):
            found.append(len(batch["user_id"]))
            return original(batch, **options)

        monkeypatch.setattr(model, name, call)
        return found

    return watch


@pytest.mark.parametrize("model", BY_USER)
def test_a_loss_has_every_user_of_its_interactions_once(make_config, sizes, model):
    config = make_config(model)
    data = divided(config)
    witness = make_witness(config, data)
    adapters = make_adapters(config, data, witness)
    gradients = RowGradients(adapters, adapters.trained, witness)
    triples = witness.triples(witness.interactions())
    seen = sizes(adapters.model, "calculate_loss")
    gradients.own(triples)
    assert seen == [len(torch.unique(triples.users))]
    assert seen[0] < len(triples.users)


def test_a_loss_by_interaction_has_all_of_them(make_config):
    config = make_config("NeuMF")
    data = divided(config)
    witness = make_witness(config, data)
    triples = witness.triples(witness.interactions())
    assert all(
        torch.equal(*pair) for pair in zip(triples.part(witness.units(triples.users)), triples, strict=True)
    )


@pytest.mark.parametrize("model", ["MultiVAE", "MultiDAE", "CDAE", "RecVAE", "MacridVAE"])
def test_an_autoencoder_scores_every_user_once_and_as_it_does_by_pair(make_config, sizes, model):
    config = make_config(model)
    data = divided(config)
    train = data.full.train
    net = build_model(config, data.retain).eval()
    users, items = (train.inter_feat[field] for field in ("user_id", "item_id"))
    with torch.no_grad():
        expected = net.predict(pairs_batch(train, users, items))
    seen = sizes(net, "full_sort_predict")
    found = predicted(net, train, users, items)
    assert found.requires_grad
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(pair_scores(net, train, users, items), expected, atol=1e-6)
    assert set(seen) == {len(torch.unique(users))}
