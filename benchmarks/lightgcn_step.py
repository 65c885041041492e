"""How much faster our LightGCN trains than RecBole's: time of one training step, in one run, as a ratio.

usage: python benchmarks/lightgcn_step.py [--dataset=ml-100k] [--data_path=DIR] [--steps=30] [--key=value ...]

Both models start from the same weights and see the same batches; a step is forward, backward and Adam.
They take turns, so that other load on the machine hits both. The loader's time is left out for both.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time

import torch
from recbole.model.general_recommender.lightgcn import LightGCN as RecBoleLightGCN

from recbole_unlearn import recbole_compat
from recbole_unlearn.cli import parse
from recbole_unlearn.data import load, loaders
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import build_model


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: object) -> float:
    """One training step; returns its seconds."""
    start = time.perf_counter()
    optimizer.zero_grad()
    model.calculate_loss(batch).backward()
    optimizer.step()
    return time.perf_counter() - start


def main(arguments: list[str]) -> None:
    """Measure and print one line."""
    values = parse(arguments)
    steps = int(values.pop("steps", 30))
    dataset = values.pop("dataset", "ml-100k")
    with tempfile.TemporaryDirectory() as work:
        config = UnlearnConfig("LightGCN", dataset, config_dict={"checkpoint_dir": work, **values})
        torch.set_num_threads(config["threads"])
        splits = load(config).splits
        ours = build_model(config, splits)
        with recbole_compat.dok_update():
            theirs = RecBoleLightGCN(config, splits.train)
        theirs.load_state_dict(ours.state_dict())
        batches = list(itertools.islice(itertools.cycle(loaders(config, splits).train), steps + 3))
    times: dict[str, list[float]] = {"RecBole": [], "ours": []}
    models = {"RecBole": theirs, "ours": ours}
    optimizers = {name: torch.optim.Adam(model.parameters()) for name, model in models.items()}
    for batch in batches:
        for name, model in models.items():
            times[name].append(step(model, optimizers[name], batch))
    medians = {name: statistics.median(values[3:]) for name, values in times.items()}
    gap = max(float((a - b).abs().max()) for a, b in zip(theirs.parameters(), ours.parameters(), strict=True))
    slow, fast = medians["RecBole"], medians["ours"]
    print(
        f"{dataset}, d={config['embedding_size']}, {config['n_layers']} layers, "
        f"{config['threads']} thread(s): RecBole {1000 * slow:.1f} ms, ours {1000 * fast:.1f} ms, "
        f"{slow / fast:.1f}x; largest difference of weights after {len(batches)} steps {gap:.1e}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
