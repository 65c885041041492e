"""How long a request takes on a model in memory, as a share of one training epoch, and where the time goes.

    python benchmarks/request_latency.py --dataset=ml-1m --data_path=DIR --models=BPR,LightGCN

Whole users are deleted from a state whose model is loaded, as with `requests run --watch`: from `submit` to `run`
returned, which is when the new model is in place, the file of the change is on the disk and the ledger is committed.
Nothing is evaluated. An epoch is one of this project's own training, in the same process right before, without
validation. One request that is not counted comes first. Parts are timed by wrapping the functions that do them; a
part has its own time, without that of parts inside it.

Every finished cell is a line of the file `--output`; a second call goes on where the first one stopped, and
`--round=2` measures again. Times mean something on an idle machine only, so every line has the load.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from states import Lines, new_state
from tabulate import tabulate
from trainings import settings_of

from recbole_unlearn.data import load
from recbole_unlearn.methods.obliviate import obliviate
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.state import Change, State, Store, database, live, submit, worker
from recbole_unlearn.training import train_here

EPOCHS = {"BPR": 5, "LightGCN": 2}  # how large a request's region is depends on the data alone
REQUESTS = {1: 20, 10: 10, 100: 5}  # by users in a request
# What is timed: the part of the table, where the function is, and its name there.
PARTS: list[tuple[str, Any, str]] = [
    ("find", submit, "find"),
    ("find", worker, "refuse_emptying"),
    ("graph", live.LiveModel, "_take_out"),
    ("new start", obliviate.Request, "start_again"),
    ("downdate", obliviate.Request, "downdate"),
    ("LAC", obliviate, "calibrate"),
    ("moments", live, "refresh"),
    ("index, rest of the model", live.LiveModel, "forget"),
    ("file", Change, "pack"),
    ("file", Store, "write"),
    ("database", database.Database, "rows"),
    ("database", database.Database, "transaction"),
    ("database", worker, "claimed"),
]
CONTEXTS = ("transaction", "claimed")  # those that are used by `with`


class Clock:
    """Seconds by part; a part that runs inside another one is taken off that one's."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._inside = [0.0]

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what happens here for ``name``."""
        self._inside.append(0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            whole = time.perf_counter() - start
            self.spent[name] += whole - self._inside.pop()
            self._inside[-1] += whole

    def wrap(self, name: str, function: Callable[..., Any], context: bool) -> Callable[..., Any]:
        """The same function, timed."""

        @contextlib.contextmanager
        def used_by_with(*args: Any, **more: Any) -> Iterator[Any]:
            with self.part(name), function(*args, **more) as value:
                yield value

        def called(*args: Any, **more: Any) -> Any:
            with self.part(name):
                return function(*args, **more)

        return used_by_with if context else called


@contextlib.contextmanager
def timed() -> Iterator[Clock]:
    """Time all parts of a request."""
    clock = Clock()
    held = [(where, name, getattr(where, name)) for _, where, name in PARTS]
    for part, where, name in PARTS:
        setattr(where, name, clock.wrap(part, getattr(where, name), name in CONTEXTS))
    try:
        yield clock
    finally:
        for where, name, function in held:
            setattr(where, name, function)


def measure(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """Train, make a state, and time requests to it."""
    values = {"show_progress": False, "tensorboard": False, "threads": 1, **settings_of(model, args.dataset)}
    values |= {"seed": args.seed, "epochs": EPOCHS.get(model, 2), "eval_step": 1000}
    if args.data_path:
        values["data_path"] = args.data_path
    with tempfile.TemporaryDirectory(dir=args.work) as work_dir:
        config = UnlearnConfig(model, args.dataset, config_dict={"checkpoint_dir": work_dir, **values})
        torch.set_num_threads(config["threads"])
        source = load(config)
        before = os.getloadavg()[0]
        _, trained = train_here(config, source.splits, "original")
        assert trained.seconds is not None
        with new_state(Path(work_dir), config, source, trained) as state:
            train = source.splits.train
            users = np.unique(train.inter_feat[train.uid_field].numpy())
            drawn = np.random.default_rng(args.seed).permutation(users)
            queue = iter(train.id2token(train.uid_field, drawn).tolist())
            request(state, [next(queue)])  # loads the model
            found = {}
            for number, repeats in REQUESTS.items():
                chosen = [[next(queue) for _ in range(number)] for _ in range(repeats)]
                found[str(number)] = [request(state, tokens) for tokens in chosen]
            drift = state.status().drift
    return {
        "epoch": trained.seconds / config["epochs"], "interactions": len(train), "users": len(users),
        "requests": found, "drift": drift, "load": [before, os.getloadavg()[0]], "threads": config["threads"],
    }  # fmt: skip


def request(state: State, users: list[str]) -> dict[str, Any]:
    """Delete users; the seconds in all and by part, and how many training interactions they had."""
    with timed() as clock:
        start = time.perf_counter()
        state.submit({"user_id": users})
        (receipt,) = state.run()
        seconds = time.perf_counter() - start
    assert receipt.status == "done", receipt.why
    parts = dict(clock.spent) | {"rest": seconds - sum(clock.spent.values())}
    return {"seconds": seconds, "interactions": receipt.interactions, "parts": parts}


def show(lines: list[dict[str, Any]]) -> None:
    """Print a row for every size of a request, and one with its parts; medians."""
    rows, parts = [], []
    for line in lines:
        where = [line["model"], line["dataset"], line["round"]]
        for users, found in line["requests"].items():
            seconds = [one["seconds"] for one in found]
            middle = statistics.median(seconds)
            rows.append(
                [*where, users, round(statistics.median(one["interactions"] for one in found)),
                 f"{1000 * middle:.1f}", f"{1000 * max(seconds):.1f}", f"{line['epoch']:.2f}",
                 f"{middle / line['epoch']:.2%}", " to ".join(f"{value:.1f}" for value in line["load"])]
            )  # fmt: skip
            names = [*dict.fromkeys(name for name, *_ in PARTS), "rest"]
            spent = [statistics.median(one["parts"].get(name, 0.0) for one in found) for name in names]
            parts.append([*where, users, *(f"{1000 * value:.1f}" for value in spent)])
    heads = ["model", "data", "round", "users"]
    print(
        tabulate(
            rows,
            [*heads, "interactions", "median ms", "most ms", "an epoch (s)", "of an epoch", "load"],
            tablefmt="github",
        )
    )
    print("\nmedian ms by part")
    print(tabulate(parts, [*heads, *names], tablefmt="github"), flush=True)


def main() -> None:
    """Measure what is missing, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data_path")
    parser.add_argument("--models", default="BPR,LightGCN")
    parser.add_argument("--seed", type=int, default=2020)
    parser.add_argument("--round", type=int, default=1)
    parser.add_argument("--work", help="a directory for the state; on the disk that you want to know about")
    parser.add_argument("--output", default="saved/request_latency.jsonl")
    args = parser.parse_args()
    lines, found = Lines(args.output), []
    for model in args.models.split(","):
        key = {"dataset": args.dataset, "model": model, "seed": args.seed, "round": args.round}
        found.append(lines.find(key) or lines.add(key, measure(args, model)))
    show(found)


if __name__ == "__main__":
    main()
