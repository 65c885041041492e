"""Rebuild against retraining: utility, forgetting and seconds of both, on the same retained interactions.

    python benchmarks/rebuild.py --dataset=ml-1m --data_path=DIR --models=BPR,LightGCN --requests=genuine,random

Both are exact and read nothing of an original, so none is trained. Requests: `genuine` (20 % of the interactions of
20 % of the users), `random` and `informed` (noise that was injected into the clean data; informed noise is chosen by
a model of the clean data, which is trained for it). Each cell is a line of JSON in OUT, with test figures; a second
call goes on where the first one stopped. Retrained models may come from the cache, with the seconds of their
training.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from deletion_requests import draw
from tabulate import tabulate
from trainings import settings_of

from recbole_unlearn import UnlearnConfig, measures, settings
from recbole_unlearn.data import Fields, UnlearnData, carry_out, divide, inject, load, loaders, read_request
from recbole_unlearn.pipeline import begin, checked_settings
from recbole_unlearn.registry import METHODS
from recbole_unlearn.training import Trainings

GROUPS = {"all": "metrics", "affected": "affected", "unaffected": "unaffected"}


def deleted(config: UnlearnConfig, kind: str, seed: int, trainings: Trainings) -> UnlearnData:
    """The data, divided by a request or by noise."""
    source = load(config)
    if kind == "genuine":
        request = read_request(draw(kind, config["model"], config["dataset"], {}, seed, source), Fields.of(config))
        return carry_out(request, source, "python", "error", None)
    scorer, clean = None, source.splits
    if kind == "informed":
        trainer, _ = trainings.trainer(config, clean, "clean")
        scorer = lambda users: trainer.batch_scores(clean.batch(users), clean.train)  # noqa: E731
    options = settings.read(settings.ForgetSettings, config.replace(inject_mode=kind))
    full, located = inject(clean, options, seed, scorer)
    return divide(full, located, f"injected {kind}", source.clock)


def cell(args: argparse.Namespace, model: str, kind: str, seed: int) -> dict:
    """The figures of both methods."""
    values = {
        "seed": seed, "show_progress": False, "tensorboard": False, "unlearn": "rebuild", "compare": ["retrain"],
        **settings_of(model, args.like or args.dataset), **json.loads(args.settings),
    }  # fmt: skip
    config = UnlearnConfig(
        model, args.dataset, config_dict=values | ({"data_path": args.data_path} if args.data_path else {})
    )
    kept, none = (settings.CacheSettings(cache, args.cache_dir, 20.0) for cache in (not args.fresh, False))
    trainings, rebuilds = (Trainings(options, torch.get_num_threads()) for options in (kept, none))
    data = deleted(config, kind, seed, trainings)
    measurement = measures.Measurement(config, data, loaders(config, data.retain), config["demotion_negatives"])
    found = {"dataset": args.dataset, "model": model, "request": kind, "seed": seed, "load": os.getloadavg()[0]}
    for name, own in (("rebuild", rebuilds), ("retrain", trainings)):
        method = METHODS.get(name)
        trainer, task = begin(method, checked_settings(method, config), config, data, None, own, name)
        outcome = trainer.run(task)
        seen = measurement.measure(trainer)
        figures = {group: seen.utility[key].get("ndcg@20") for group, key in GROUPS.items()}
        figures["demotion"] = seen.forgetting.get("demotion_rate")
        figures["attack"] = (seen.forgetting.get("attack") or {}).get("auc")
        found[name] = figures | {"seconds": outcome.seconds, "cached": outcome.from_cache}
    return found


def row(cells: list[dict]) -> list:
    """Means over seeds: rebuilt over retrained, and differences."""

    def mean(key: str, of: str) -> float:
        return float(np.mean([np.nan if one[of][key] is None else one[of][key] for one in cells]))

    shares = [f"{mean(key, 'rebuild'):.4f} ({mean(key, 'rebuild') / mean(key, 'retrain'):.1%})" for key in GROUPS]
    gaps = [f"{mean(key, 'rebuild') - mean(key, 'retrain'):+.3f}" for key in ("demotion", "attack")]
    times = [one["retrain"]["seconds"] / one["rebuild"]["seconds"] for one in cells]
    return [*shares, *gaps, f"{mean('seconds', 'rebuild'):.2f}", f"{np.mean(times):.1f}x", len(cells)]


def main() -> None:
    """Measure what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--like", help="the dataset whose settings of trainings.py are taken, for a sample")
    parser.add_argument("--data_path")
    parser.add_argument("--models", default="BPR,LightGCN")
    parser.add_argument("--requests", default="genuine,random")
    parser.add_argument("--seeds", default="2020,2021,2022")
    parser.add_argument("--settings", default="{}", help="further settings, as JSON")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="train all, for seconds of one run")
    parser.add_argument("--cache_dir", default="saved/cache")
    parser.add_argument("--out", default="saved/rebuild.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    rows = []
    for model in args.models.split(","):
        for kind in args.requests.split(","):
            cells = []
            for seed in map(int, args.seeds.split(",")):
                key = {"dataset": args.dataset, "model": model, "request": kind, "seed": seed}
                found = next((one for one in done if key.items() <= one.items()), None)
                if found is None:
                    found = cell(args, model, kind, seed)
                    with out.open("a") as stream:
                        stream.write(json.dumps(found) + "\n")
                cells.append(found)
            rows.append([args.dataset, model, kind, *row(cells)])
    head = ["dataset", "model", "request", *GROUPS, "demotion", "attack", "seconds", "faster", "seeds"]
    print(tabulate(rows, head, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
