"""Seconds and peak memory of every phase on synthetic data, by the number of interactions.

    python benchmarks/scale.py --interactions=2000000,20000000
    python benchmarks/scale.py --interactions=100000000 --phases=start

Users and items are drawn from power laws, a pair at most once; the files are written before anything is measured.
Phases, in this order: `load` (RecBole's files, their split), `loaders`, `epoch` (BPR, without validation), `rebuild`,
`evaluate` (1000 users), `state` (a state of the model, loaded), `request` (one user, the median of five), `export`.
`start` is the spectral start alone, on interactions in memory. Each size runs in a process of its own. A peak is that
of its phase, with what earlier phases hold: the data itself is 16 bytes for each interaction, as RecBole holds it.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from states import new_state
from tabulate import tabulate

from recbole_unlearn.data import load, loaders
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.state import State
from recbole_unlearn.training import SPECTRAL, PhaseTrainer, build_model, compose, train_here
from recbole_unlearn.training.spectral import VALIDATED, by_interactions

REQUESTS = 5
PHASES = "load,loaders,epoch,rebuild,evaluate,state,request,export"
Row = tuple[str, float, float, float]  # a phase, its seconds in all and of the processor, and its peak in GiB


class Synthetic:
    """Interactions by power laws, and as much of a RecBole dataset as the spectral start reads."""

    uid_field, iid_field = "user_id", "item_id"

    def __init__(self, users: int, items: int, number: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.user_num, self.item_num = users, items
        first, second = (
            (size * torch.rand(number, generator=generator) ** 2).long().clamp_(1, size - 1)
            for size in (users, items)
        )
        keys = first.mul_(items).add_(second).unique()
        self.inter_feat = {self.uid_field: keys // items, self.iid_field: keys.remainder_(items)}

    def write(self, folder: Path) -> None:
        """Write them as RecBole's files, a part at a time."""
        columns = [self.inter_feat[field].numpy() for field in (self.uid_field, self.iid_field)]
        head = ["user_id:token", "item_id:token"]
        with (folder / f"{folder.name}.inter").open("w") as stream:
            for part in np.array_split(np.arange(len(columns[0])), len(columns[0]) // 10**6 + 1):
                frame = pd.DataFrame({name: column[part] for name, column in zip(head, columns, strict=True)})
                frame.to_csv(stream, sep="\t", index=False, header=part[0] == 0)


def peak() -> float:
    """The most memory that this process has held since :func:`forget_peak`, in GiB."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 2**20


@contextlib.contextmanager
def phase(name: str, rows: list[Row]) -> Iterator[None]:
    """Measure what happens here."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    start, work = time.perf_counter(), time.process_time()
    yield
    rows.append((name, time.perf_counter() - start, time.process_time() - work, peak()))
    print(
        "    {}: {:.1f} s, {:.1f} s of the processor, peak {:.1f} GiB".format(*rows[-1]), file=sys.stderr, flush=True
    )


def request(state: State, user: str) -> tuple[float, float]:
    """The seconds of forgetting one user, in all and of the processor."""
    start, work = time.perf_counter(), time.process_time()
    state.submit({"user_id": [user]})
    (receipt,) = state.run()
    assert receipt.status == "done", receipt.why
    return time.perf_counter() - start, time.process_time() - work


def measure(args: argparse.Namespace, folder: Path, place: Path) -> list[Row]:
    """All phases on the files in ``folder``, up to the last one that is asked for."""
    config = UnlearnConfig(
        "BPR", folder.name,
        config_dict={
            "data_path": str(folder.parent), "checkpoint_dir": str(place), "embedding_size": args.width, "epochs": 1,
            "eval_step": 1000, "show_progress": False, "tensorboard": False, "threads": args.threads,
            "output_dir": None, "load_col": {"inter": ["user_id", "item_id"]}, "val_interval": None, "seed": 2020,
        },
    )  # fmt: skip
    rows: list[Row] = []
    with phase("load", rows):
        source = load(config)
    if "epoch" not in args.phases:
        return rows
    with phase("loaders", rows):
        data = loaders(config, source.splits, VALIDATED)
    with phase("epoch", rows):
        trainer = compose(PhaseTrainer, config, build_model(config, source.splits), "original")
        trained = trainer.train(data._replace(valid=None))
    if "rebuild" in args.phases:
        with phase("rebuild", rows):
            train_here(config.replace(start=SPECTRAL), source.splits, "rebuilt")
    if "evaluate" in args.phases:
        with phase("evaluate", rows):
            trainer.evaluate(data.valid, load_best_model=False)
    del trainer, data
    if "state" not in args.phases:
        return rows
    train = source.splits.train
    some = np.random.default_rng(0).choice(train.inter_feat["user_id"].numpy(), REQUESTS + 1)
    users = dict.fromkeys(train.id2token("user_id", some).tolist())
    with phase("state", rows):
        state = new_state(place, config, source, trained)
        del source, train, trained
        request(state, users.popitem()[0])  # loads the model
    with state:
        if "request" in args.phases:
            with phase("request", rows):
                taken = [request(state, user) for user in users]
            seconds, work = (statistics.median(column) for column in zip(*taken, strict=True))
            rows[-1] = ("request", seconds, work, rows[-1][3])
        if "export" in args.phases:
            with phase("export", rows):
                state.export(place / "export")
    return rows


def main() -> None:
    """A table of all phases for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=10**6)
    parser.add_argument("--items", type=int, default=10**5)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--interactions", default="2000000,20000000,100000000")
    parser.add_argument("--phases", default=PHASES, help="the first of these, or `start`")
    parser.add_argument("--work", help="a directory for the files; on the disk that you want to know about")
    parser.add_argument("--data", help=argparse.SUPPRESS)  # of a process that measures one size
    args = parser.parse_args()
    args.phases = args.phases.split(",")
    torch.set_num_threads(args.threads)
    for size in map(int, args.interactions.split(",")):
        if args.data:
            sys.argv[1:] = []  # RecBole reads it
            with tempfile.TemporaryDirectory(dir=args.work) as work:
                rows = measure(args, Path(args.data), Path(work))
        elif args.phases == ["start"]:
            rows, made = [], Synthetic(args.users, args.items, size)
            with phase("start", rows):
                by_interactions(made, args.width, torch.Generator().manual_seed(0))
        else:
            with tempfile.TemporaryDirectory(dir=args.work) as folder:
                data = Path(folder) / "synthetic"
                data.mkdir()
                Synthetic(args.users, args.items, size).write(data)
                command = [sys.executable, __file__, *sys.argv[1:], f"--interactions={size}", f"--data={data}"]
                subprocess.run(command, check=True)
            continue
        head = ["interactions", "phase", "seconds", "of the processor", "peak GiB"]
        print(tabulate([[f"{size:,}", *row] for row in rows], head, tablefmt="github", floatfmt=".2f"), flush=True)


if __name__ == "__main__":
    main()
