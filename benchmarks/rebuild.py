"""Rebuild against retraining: utility, forgetting and seconds of both, on the same retained interactions.

    python benchmarks/rebuild.py --dataset=ml-1m --data_path=DIR --models=BPR,LightGCN --requests=genuine,random

Both are exact and read nothing of an original, so none is trained. Requests: `genuine` (20 % of the interactions of
20 % of the users), `random` and `informed` (noise that was injected into the clean data; informed noise is chosen by
a model of the clean data, which is trained for it). Each cell is a line of JSON in OUT, with test figures; a second
call goes on where the first one stopped. Retrained models may come from the cache, with the seconds of their training
(marked * in the table).
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


HEAD = [
    "model, dataset", "request", "seeds", "NDCG@20: rebuilt · retrained",
    "of retrained: all · affected · unaffected (worst)", "demotion rate − retrained's (worst)",
    "attack AUC − retrained's (worst)", "seconds, rebuilt · retrained",
]  # fmt: skip


def row(cells: list[dict]) -> list:
    """Means over seeds and the worst run: rebuilt over retrained, and differences; seconds of the first seed."""

    def pairs(key: str) -> np.ndarray:
        return np.array(
            [[np.nan if one[of][key] is None else one[of][key] for of in ("rebuild", "retrain")] for one in cells]
        )

    def gap(key: str) -> str:
        apart = pairs(key) @ [1, -1]
        return f"{apart.mean():+.3f} ({apart[np.abs(apart).argmax()]:+.3f})"

    means = {group: pairs(group).mean(axis=0) for group in GROUPS}
    shares = " · ".join(f"{new / old:.0%}" for new, old in means.values())
    worst = min((pairs(group)[:, 0] / pairs(group)[:, 1]).min() for group in GROUPS)
    first = min(cells, key=lambda one: one["seed"])
    seconds = [f"{first[of]['seconds']:.3g}{'*' if first[of]['cached'] else ''}" for of in ("rebuild", "retrain")]
    return [
        f"{first['model']} {first['dataset']}", first["request"], len(cells), "{:.4f} · {:.4f}".format(*means["all"]),
        f"{shares} ({worst:.0%})", gap("demotion"), gap("attack"), " · ".join(seconds),
    ]  # fmt: skip


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
    parser.add_argument("--print", action="store_true", help="a table of all that OUT has, nothing is measured")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if args.print:
        keys = sorted({(one["model"], one["dataset"], one["request"]) for one in done})
        of = {key: [one for one in done if (one["model"], one["dataset"], one["request"]) == key] for key in keys}
        print(tabulate([row(cells) for cells in of.values()], HEAD, tablefmt="github", disable_numparse=True))
        return
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
            rows.append(row(cells))
    print(tabulate(rows, HEAD, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
