"""The probe of item vectors and the verdict for doing nothing, obliviate and a second retraining.

Two kinds of request on ml-100k: 90 whole users, and a fifth of the interactions of a fifth of the users. Prints a
line for each model, request and seed. Doing nothing is the control of the run.
"""

import sys

import numpy as np
import torch

from recbole_unlearn import UnlearnConfig, run_unlearn
from recbole_unlearn.data import load
from recbole_unlearn.measures.verdict import verdict

MODELS, SEEDS, EPOCHS, USERS, SHARE = ("BPR", "LightGCN"), (2020, 2021, 2022), 40, 90, 0.2


def request(model: str, values: dict, whole: bool, seed: int) -> dict:
    """Tokens of the users, or of the pairs, that are deleted."""
    train = load(UnlearnConfig(model, "ml-100k", config_dict=values)).splits.train
    rng = np.random.default_rng(seed)
    users, items = (train.inter_feat[field].numpy() for field in ("user_id", "item_id"))
    people = np.unique(users)
    chosen = rng.choice(people, USERS if whole else round(SHARE * len(people)), replace=False)
    if whole:
        return {"user_id": train.id2token("user_id", chosen).tolist()}
    mask = np.isin(users, chosen) & (rng.random(len(users)) < SHARE)
    columns = {"user_id": users[mask], "item_id": items[mask]}
    return {field: train.id2token(field, ids).tolist() for field, ids in columns.items()}


def main(folder: str) -> None:
    """All runs, with their files in ``folder``."""
    torch.set_num_threads(1)
    for model in MODELS:
        for whole in (True, False):
            for seed in SEEDS:
                values = {
                    "epochs": EPOCHS, "seed": seed, "min_group": 1, "cache": False, "placebo": False,
                    "report": "none", "tensorboard": False, "show_progress": False, "replace": True,
                    "output_dir": folder,
                }  # fmt: skip
                asked = request(model, values, whole, seed)
                compare = ["retrain", "retrain"]
                found = run_unlearn(
                    model, "ml-100k", forget=asked, unlearn="obliviate", compare=compare, config_dict=values
                ).record
                phases, control = found.phases, found.control
                assert control is not None
                floor = {"original": phases["original"], "retrained": phases["retrained"], "control": control}
                again = phases["retrained_2"]
                said = verdict({**floor, "unlearned": again}, {}, whole=whole)
                line = [model, "whole" if whole else "part", str(seed), f"{phases['retrained'].figure('probe'):.3f}"]
                for one, level in ((control, control.verdict), (found.unlearned, found.verdict), (again, said)):
                    assert level is not None
                    gap = [one.figure("probe_gap", part) for part in ("mean", "error")]
                    line.append(f"{gap[0]:+.3f} ± {gap[1]:.3f} {level.level}")
                print(" | ".join(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "saved/probe")
