"""How much faster a model trains here than in RecBole's own loop: seconds of an epoch, in one run, as a ratio.

usage: python benchmarks/epoch.py [--model=BPR] [--dataset=ml-100k] [--data_path=DIR] [--repeat=3] [--key=value ...]

RecBole's class in RecBole's loop, ours in RecBole's loop and ours in the lean loop (training/lean.py) take turns, so
that other load on the machine hits all. CPU seconds, the least of the repetitions, without validation.
"""

from __future__ import annotations

import sys
import tempfile
import time

import torch
from recbole.trainer import Trainer

from recbole_unlearn import recbole_compat
from recbole_unlearn.cli import parse
from recbole_unlearn.data import load, loaders
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import PhaseTrainer, build_model, compose


def main(arguments: list[str]) -> None:
    """Measure and print one line for each."""
    values = parse(arguments)
    repeat, model = int(values.pop("repeat", 3)), values.pop("model", "BPR")
    dataset = values.pop("dataset", "ml-100k")
    with tempfile.TemporaryDirectory() as work:
        config = UnlearnConfig(model, dataset, config_dict={"checkpoint_dir": work, "threads": 1, **values})
        torch.set_num_threads(config["threads"])
        splits = load(config).splits
        with recbole_compat.dok_update():
            theirs = Trainer(config.to_recbole(), config.model_class(config, splits.train).to(config["device"]))
        ours = [compose(PhaseTrainer, config, build_model(config, splits), "x") for _ in range(2)]
        ways = {
            "RecBole's model and loop": theirs._train_epoch,
            "our model, RecBole's loop": lambda *epoch: Trainer._train_epoch(ours[0], *epoch),
            "our model, lean loop": ours[1]._train_epoch,
        }
        data = {name: loaders(config, splits).train for name in ways}
        best = dict.fromkeys(ways, float("inf"))
        for epoch in range(repeat + 1):  # the first one builds what later ones use again
            for name, train in ways.items():
                start = time.process_time()
                train(data[name], epoch)
                if epoch:
                    best[name] = min(best[name], time.process_time() - start)
    print(f"{model}, {dataset}, d={config['embedding_size']}, {config['threads']} thread(s)")
    slowest, steps = max(best.values()), len(next(iter(data.values())))
    for name, seconds in best.items():
        print(
            f"{name:26} {seconds:6.2f} s an epoch, {1000 * seconds / steps:6.2f} ms a step, {slowest / seconds:.1f}x"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
