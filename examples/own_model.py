"""A model class of your own: pass it in the place of a name. Nothing else has to know it."""

import sys
import tempfile
from pathlib import Path

import torch
from recbole.model.general_recommender import BPR

from recbole_unlearn import run_unlearn


class BiasedBPR(BPR):
    """BPR with a bias for each item: s(u, i) = p_u · q_i + b_i."""

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.item_bias = torch.nn.Embedding(self.n_items, 1)
        torch.nn.init.zeros_(self.item_bias.weight)

    def calculate_loss(self, interaction):
        """As BPR, with the biases."""
        users, items, others = (interaction[key] for key in (self.USER_ID, self.ITEM_ID, self.NEG_ITEM_ID))
        return self.loss(self._score(users, items), self._score(users, others))

    def _score(self, users, items):
        p, q = self.forward(users, items)
        return (p * q).sum(dim=1) + self.item_bias(items).squeeze(1)

    def predict(self, interaction):
        """Scores of pairs."""
        return self._score(interaction[self.USER_ID], interaction[self.ITEM_ID])

    def full_sort_predict(self, interaction):
        """Scores of all items for each user."""
        p = self.get_user_embedding(interaction[self.USER_ID])
        return (p @ self.item_embedding.weight.T + self.item_bias.weight.T).reshape(-1)


def main(work: Path) -> None:
    """Noise is injected into a twentieth of the users, and forgotten again."""
    values = {"epochs": 3, "embedding_size": 16, "inject_users": 0.05, "show_progress": False}
    outcome = run_unlearn(
        BiasedBPR, "ml-100k", unlearn="obliviate", compare="retrain", output_dir=work / "out",
        config_dict={**values, "cache_dir": str(work / "cache")},
    )  # fmt: skip
    print(outcome)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    sys.argv = sys.argv[:1]
    main(target)
