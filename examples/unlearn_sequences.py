"""A sequential model: interactions of two users leave GRU4Rec, its training data, and the histories that it reads.

RecBole trains the model in its own way (each user's last interaction for test, the one before for validation), and
its checkpoint is the start. Afterwards lists are made from cleaned histories.
"""

import sys
import tempfile
from pathlib import Path

import pandas as pd
import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.model.sequential_recommender import GRU4Rec
from recbole.trainer import Trainer

from recbole_unlearn import load_unlearned, patch_recbole, run_unlearn

USERS = ["196", "186"]
OWN = {  # settings of RecBole; the model is small, so that it takes seconds
    "load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"]}, "val_interval": {"rating": "[5,inf)"},
    "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full"},
    "loss_type": "CE", "train_neg_sample_args": None,  # a loss over all items has no drawn negatives
    "epochs": 2, "MAX_ITEM_LIST_LENGTH": 8, "embedding_size": 16, "hidden_size": 16, "eval_step": 2,
}  # fmt: skip


def train(directory: Path) -> tuple[str, pd.DataFrame]:
    """What you have already: RecBole's checkpoint. And a request: every third training interaction of two users."""
    values = OWN | {"checkpoint_dir": str(directory), "show_progress": False}
    config = Config("GRU4Rec", "ml-100k", config_dict=values)
    train_data, valid_data, _ = data_preparation(config, create_dataset(config))
    windows = train_data._dataset
    torch.autograd.set_detect_anomaly(False)  # importing these models turned it on; it slows training down
    trainer = Trainer(config, GRU4Rec(config, windows))
    trainer.fit(train_data, valid_data, verbose=False)
    tokens = {field: windows.id2token(field, windows.inter_feat[field]) for field in ("user_id", "item_id")}
    table = pd.DataFrame(tokens)
    return trainer.saved_model_file, table[table["user_id"].isin(USERS)][::3]


def main(work: Path) -> None:
    """Train, forget, load the result and recommend."""
    with patch_recbole():  # RecBole's trainer cannot read its own checkpoint with torch >= 2.6
        checkpoint, request = train(work / "saved")
    outcome = run_unlearn(
        checkpoint=checkpoint, forget=request, unlearn="obliviate", output_dir=work / "out",
        config_dict={"show_progress": False},
    )  # fmt: skip
    before, after = (len(splits.for_model().train) for splits in (outcome.data.full, outcome.data.retain))
    print(f"{len(outcome.data.forget)} interactions of {len(USERS)} users forgotten.")
    print(f"Training windows: {before} before, {after} now.")

    served = load_unlearned(work / "out")
    shown = served.recommend(USERS, k=10, mask=request)  # after what is left of their histories
    again = shown.merge(request, left_on=["user", "item"], right_on=["user_id", "item_id"])
    print(f"{len(shown)} items recommended to {shown['user'].nunique()} users, {len(again)} of them deleted ones.")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    sys.argv = sys.argv[:1]  # RecBole's Config reads the command line too
    main(target)
