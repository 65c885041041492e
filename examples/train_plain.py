"""Train BPR on ml-100k with RecBole's own classes, as `run_recbole` does, and leave its checkpoint in a directory."""

import sys

from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.utils import get_model, get_trainer, init_seed

from recbole_unlearn import recbole_compat


def train(directory: str, **settings: object) -> tuple:
    """Returns config, model, loaders and trainer; the checkpoint is in ``directory``. ``settings`` are RecBole's."""
    recbole_compat.restore_numpy_names()  # RecBole 1.2 reads names that numpy 2 does not have
    values = {"checkpoint_dir": directory, "epochs": 3, "embedding_size": 16, "show_progress": False}
    config = Config("BPR", "ml-100k", config_dict=values | settings)
    init_seed(config["seed"], config["reproducibility"])
    train_data, valid_data, test_data = data_preparation(config, create_dataset(config))
    model = get_model("BPR")(config, train_data._dataset).to(config["device"])
    trainer = get_trainer(config["MODEL_TYPE"], "BPR")(config, model)
    trainer.fit(train_data, valid_data, verbose=False, show_progress=False)
    return config, model, (train_data, valid_data, test_data), trainer


if __name__ == "__main__":
    directory = sys.argv[1] if len(sys.argv) > 1 else "saved"
    sys.argv = sys.argv[:1]  # RecBole's Config reads the command line too
    train(directory)
