"""Many small requests to one model against a single one for the same interactions, and against retraining.

    python benchmarks/request_stream.py --models=BPR,LightGCN --seeds=2020,2021,2022
    python benchmarks/request_stream.py --models=BPR --seeds=2020 --shares=0.01,0.02,0.05,0.1    # for the budget
    python benchmarks/request_stream.py --models=BPR,LightGCN --growth=200

Genuine requests: users in random order ask for a quarter of their training interactions, every tenth one for all of
them, until the share is reached. The stream is that list, cut into requests of 0.1 % of the training interactions.
Of those who ask for everything no figures are taken: a retrained model has nothing but initial values for them.
The spread is the difference between two retrained models with different seeds. *memory* is the placebo's
(docs/measuring.md): what is left between the results from the original and from the retrained model, both after the
same requests. All of it is done by what a state keeps in memory, without its files.

With `--growth=N`, N requests on a state with its files, and their seconds: does the last cost more than the first?
Every finished cell is a line of the file `--output`; a second call goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from states import Lines, new_state, tokens
from tabulate import tabulate
from trainings import settings_of

from recbole_unlearn.data import Located, Source, UnlearnData, divide, load, loaders
from recbole_unlearn.files import Trained
from recbole_unlearn.measures import Measured, Measurement, Pairs, Questions, compare, deleted_pairs
from recbole_unlearn.settings import CacheSettings, UnlearnConfig
from recbole_unlearn.state import LiveModel, read_moments, squared_norm
from recbole_unlearn.training import PhaseTrainer, Trainings, build_model, compose

SIZE = 0.001  # of a request, as a share of the training interactions
NEGATIVES = 100  # that deleted pairs are compared with
NOTHING = np.empty(0, dtype=np.int64)


def asked_for(source: Source, share: float, seed: int) -> np.ndarray:
    """Numbers of training interactions that are asked for, in the order in which they are."""
    train = source.splits.train
    users = train.inter_feat[train.uid_field].numpy()
    rng, found, left = np.random.default_rng(seed), [], round(share * len(users))
    for place, user in enumerate(rng.permutation(np.unique(users))):
        mine = rng.permutation(np.flatnonzero(users == user))
        found.append(mine[: len(mine) if place % 10 == 0 else max(1, len(mine) // 4)][:left])
        left -= len(found[-1])
        if left == 0:
            break
    return np.concatenate(found)


class Cell:
    """One model, seed and share: the original, two retrained models, and what requests make of them."""

    def __init__(self, args: argparse.Namespace, model: str, seed: int, share: float) -> None:
        values = {"seed": seed, "unlearn": "obliviate", "compare": [], **values_of(args, model)}
        self.config = UnlearnConfig(model, args.dataset, config_dict=values)
        torch.set_num_threads(self.config["threads"])
        self.source = load(self.config)
        self.asked = asked_for(self.source, share, seed)
        self.requests = max(1, round(share / SIZE))
        mask = np.zeros(len(self.source.splits.train), dtype=bool)
        mask[self.asked] = True
        located = Located(mask, *self._none()[1:])
        self.data: UnlearnData = divide(self.source.splits, located, "requests", self.source.clock)
        self.measurement = Measurement(self.config, self.data, loaders(self.config, self.data.retain), NEGATIVES)
        self.measurement.questions = self._questions()
        self.trainings = Trainings(CacheSettings(True, args.cache_dir, 20.0), self.config["threads"])

    def _none(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        train, valid, test = (np.zeros(len(part), dtype=bool) for part in self.source.splits)
        return train, valid, test

    def _questions(self) -> Questions:
        """Those of a run, about users who have interactions left."""
        found = deleted_pairs(self.data, NEGATIVES, self.config["seed"])
        known = ~torch.isin(found.users, self.data.orphan_users)
        left = Pairs(found.users[known], found.items[known], found.others[known])
        return Questions.of(self.data, left, self.config["seed"])

    def run(self) -> dict[str, Any]:
        """All figures."""
        original = self.trainings.train(self.config, self.source.splits, "original")
        retrained = [
            self.trainings.train(self.config.replace(seed=self.config["seed"] + more), self.data.retain, "retrained")
            for more in (100, 200)
        ]
        target, second = (self._measured_model(one) for one in retrained)
        phases = {
            "original": self._figures(self._measured_model(original), target),
            "retrained": self._figures(target, target),
            "retrained again": self._figures(second, target),
        }
        for name, number in (("one request", 1), (f"{self.requests} requests", self.requests)):
            live, more = self._forget(original, number)
            mine = self.measurement.measure(live.trainer)
            placebo = self.measurement.measure(self._forget(retrained[0], number)[0].trainer)
            memory = compare(mine, placebo, target).memory
            phases[name] = self._figures(mine, target) | more
            phases[name] |= {f"memory_{key}": value for key, value in memory.items()}
        gone = self.data.summary()
        return {"requests": self.requests, "phases": phases, "forgotten": gone}

    def _measured_model(self, trained: Trained) -> Measured:
        model = build_model(self.config, self.data.retain)
        trained.load_weights(model)
        return self.measurement.measure(compose(PhaseTrainer, self.config, model, "measured"))

    def _figures(self, mine: Measured, target: Measured) -> dict[str, float]:
        distances = self.measurement.distances(mine, target)
        return {
            "all": mine.utility["metrics"]["ndcg@20"],
            "affected": mine.utility["affected"]["ndcg@20"],
            "unaffected": mine.utility["unaffected"]["ndcg@20"],
            "demotion": mine.forgetting["demotion_rate"],
            "attack": mine.forgetting["attack"]["auc"],
            "ks": distances.get("ks", 0.0),
        }

    def _forget(self, trained: Trained, number: int) -> tuple[LiveModel, dict[str, Any]]:
        """A model after ``number`` requests for all that is asked for; it is taken as trained on all of D."""
        net = build_model(self.config, self.source.splits)
        trained.load_weights(net)
        moments = read_moments(self.config, net, trained, self.source.splits)
        live = LiveModel(self.config, self.source, trained.state_dict, moments, self._none())
        seconds, drift = [], 0.0
        for part in np.array_split(self.asked, number):
            start = time.perf_counter()
            drift += live.forget((np.sort(part), NOTHING, NOTHING)).drift
            seconds.append(round(time.perf_counter() - start, 4))
        return live, {"drift": drift / squared_norm(trained.state_dict), "seconds": seconds}


def growth(args: argparse.Namespace, model: str, seed: int) -> dict[str, Any]:
    """The seconds of each of many small requests to a state, from `submit` to `run` returned."""
    config = UnlearnConfig(model, args.dataset, config_dict={"seed": seed, **values_of(args, model)})
    torch.set_num_threads(config["threads"])
    source = load(config)
    asked = asked_for(source, 0.02, seed)
    with tempfile.TemporaryDirectory() as work:
        trained = Trainings(CacheSettings(True, args.cache_dir, 20.0), config["threads"]).train(
            config, source.splits, "original"
        )
        with new_state(Path(work), config, source, trained) as state:
            _ = state.model
            seconds = []
            for part in np.array_split(asked, args.growth):
                request = tokens(source, part)
                start = time.perf_counter()
                state.submit(request)
                state.run()
                seconds.append(round(time.perf_counter() - start, 4))
    return {"seconds": seconds}


def values_of(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """Settings of a training, and quiet."""
    quiet = {"show_progress": False, "tensorboard": False, "threads": 1}
    return quiet | settings_of(model, args.dataset) | ({"data_path": args.data_path} if args.data_path else {})


SHOWN = ("all", "affected", "unaffected", "demotion", "attack", "ks")
MEMORY = ("memory_demotion", "memory_attack", "memory_ks", "drift")


def show(lines: Sequence[dict[str, Any]]) -> None:
    """Print the mean figures of every model and share, and how far both ways end from retraining."""
    for key in sorted({(line["model"], line["share"]) for line in lines}):
        mine = [line for line in lines if (line["model"], line["share"]) == key]
        rows = []
        for phase in mine[0]["phases"]:
            cells = [line["phases"][phase] for line in mine]
            rows.append([phase, *(_mean(cell.get(name) for cell in cells) for name in (*SHOWN, *MEMORY))])
        seeds = ", ".join(str(line["seed"]) for line in mine)
        print(f"\n{key[0]}, {key[1]:.0%} of the training interactions, seeds {seeds}; means")
        print(tabulate(rows, ["", *SHOWN, *MEMORY], tablefmt="github", floatfmt=".4f"))
        rows = []
        for phase in list(mine[0]["phases"])[2:]:
            row = [phase]
            for name in SHOWN:
                gaps = [line["phases"][phase][name] - line["phases"]["retrained"][name] for line in mine]
                row.append(f"{statistics.mean(gaps):+.4f} ({max(gaps, key=abs):+.4f})")
            rows.append(row)
        print("\nminus retrained: mean (the largest)")
        print(tabulate(rows, ["", *SHOWN], tablefmt="github"))


def _mean(values: Any) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.mean(found) if found else None


def main() -> None:
    """Measure what is missing, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data_path")
    parser.add_argument("--models", default="BPR,LightGCN")
    parser.add_argument("--seeds", default="2020,2021,2022")
    parser.add_argument("--shares", default="0.02", help="of the training interactions, in all")
    parser.add_argument("--growth", type=int, help="instead: so many requests on a state, and their seconds")
    parser.add_argument("--cache_dir", default="saved/cache")
    parser.add_argument("--output", default="saved/request_stream.jsonl")
    args = parser.parse_args()
    lines = Lines(args.output)
    wanted = []
    for model in args.models.split(","):
        for seed in map(int, args.seeds.split(",")):
            if args.growth:
                key = {"dataset": args.dataset, "model": model, "seed": seed, "growth": args.growth}
                found = lines.find(key) or lines.add(key, growth(args, model, seed))
                tenth = max(1, args.growth // 10)
                first, last = (
                    statistics.median(part) for part in (found["seconds"][:tenth], found["seconds"][-tenth:])
                )
                print(
                    f"{model}, {args.dataset}, seed {seed}, {args.growth} requests, median ms: first tenth "
                    f"{1000 * first:.1f}, last tenth {1000 * last:.1f} ({last / first:.2f}x)",
                    flush=True,
                )
                continue
            for share in map(float, args.shares.split(",")):
                key = {"dataset": args.dataset, "model": model, "seed": seed, "share": share}
                wanted.append(lines.find(key) or lines.add(key, Cell(args, model, seed, share).run()))
    show(wanted)


if __name__ == "__main__":
    main()
