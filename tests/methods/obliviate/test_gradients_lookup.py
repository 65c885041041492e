"""Which gradients a model gets: written out where its scores and loss are RecBole's, by autograd elsewhere."""

import pytest
from recbole.model.general_recommender import BPR, LightGCN

from recbole_unlearn.methods.obliviate import BPRGradients, LightGCNGradients, RowGradients, written_out
from recbole_unlearn.training import fast_class, fast_models


class OwnLoss(BPR):
    """BPR with a loss of its own."""

    def calculate_loss(self, interaction):
        return 2.0 * super().calculate_loss(interaction)


class OwnName(BPR):
    """BPR under another name: scores and loss are RecBole's."""


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (BPR, BPRGradients), (OwnName, BPRGradients), (OwnLoss, RowGradients), (LightGCN, LightGCNGradients),
        (fast_class(LightGCN), LightGCNGradients),
    ],
)  # fmt: skip
def test_gradients_by_model(model, expected):
    assert written_out(model) is expected


def test_a_faster_version_keeps_the_written_out_gradients(monkeypatch):
    """A faster BPR with a forward pass of its own gives the same numbers, so its gradients stay written out."""
    for name in ("entries", "_sources"):
        monkeypatch.setattr(fast_models.FAST, name, dict(getattr(fast_models.FAST, name)))

    @fast_models.faster(BPR)
    class FasterBPR(BPR):
        def forward(self, user, item):
            return super().forward(user, item)

    assert fast_class(BPR) is FasterBPR
    assert written_out(FasterBPR) is BPRGradients
    with pytest.raises(ValueError, match="already"):
        fast_models.faster(BPR)(type("Another", (BPR,), {}))
