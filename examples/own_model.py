"""A model class of your own, trained with RecBole: its checkpoint forgets, and is used again.

The class is given wherever a model is made, also with a checkpoint: a file may name a class, but nothing is ever
imported because a file names it. On the command line that is `--model=own_model:BiasedBPR`, from this directory.
"""

import sys
import tempfile
from pathlib import Path

import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.model.general_recommender import BPR
from recbole.trainer import Trainer

from recbole_unlearn import load_unlearned, patch_recbole, run_unlearn


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


def train(directory: Path) -> str:
    """What you have already: a checkpoint that RecBole's trainer wrote."""
    values = {"checkpoint_dir": str(directory), "epochs": 3, "embedding_size": 16, "show_progress": False}
    config = Config(BiasedBPR, "ml-100k", config_dict=values)
    train_data, valid_data, test_data = data_preparation(config, create_dataset(config))
    trainer = Trainer(config, BiasedBPR(config, train_data._dataset))
    trainer.fit(train_data, valid_data, verbose=False)
    print("RecBole's own test:", dict(trainer.evaluate(test_data)))
    return trainer.saved_model_file


def main(work: Path) -> None:
    """Train, forget two users, forget one more, and recommend."""
    with patch_recbole():  # RecBole's trainer cannot read its own checkpoint with torch >= 2.6
        checkpoint = train(work / "saved")
    quiet = {"cache_dir": str(work / "cache"), "show_progress": False}
    outcome = run_unlearn(
        BiasedBPR, checkpoint=checkpoint, forget={"user_id": ["196", "186"]}, unlearn="obliviate", compare="retrain",
        output_dir=work / "first", config_dict=quiet,
    )  # fmt: skip
    print(outcome)
    run_unlearn(
        BiasedBPR, checkpoint=work / "first" / "BiasedBPR-unlearned.pth", forget={"user_id": ["298"]},
        unlearn="obliviate", output_dir=work / "out", config_dict=quiet,
    )  # fmt: skip
    loaded = load_unlearned(work / "out", model=BiasedBPR)
    print(loaded.recommend(["22", "244"], k=3))


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    sys.argv = sys.argv[:1]
    main(target)
