"""A fuzz through the whole command: cases from a seed, each in a worker process that may crash or hang without harm.

Counted are: refused (one line and exit code 2), ran, traceback, crash, hang, code. The last four have to be 0.
"""

from __future__ import annotations

import collections
import contextlib
import io
import multiprocessing
import os
import queue
import shutil
import time
import traceback
from pathlib import Path

from tests.fuzz.cases import Maker

SECONDS = 60  # for one case
GOOD = ("refused", "ran", "partly")


def prepare(folder: Path, data_path: Path) -> None:
    """A good run of each kind, which the cases are made from."""
    from recbole_unlearn import run_unlearn
    from tests.conftest import train_plain

    values = {"show_progress": False, "tensorboard": False, "cache": False, "demotion_negatives": 5}
    columns = {"load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"]}}
    own = {"data_path": str(data_path), "epochs": 1, "embedding_size": 4, **columns}
    shutil.copy(train_plain("BPR", folder / "plain", **own), folder / "plain.pth")
    for method, target in (("obliviate", "first"), ("sisa", "second")):
        request = {"forget": {"user_id": ["u1"]}, "unlearn": method, "output_dir": folder / target}
        run_unlearn("BPR", "tiny", config_dict={**values, **own}, **request)
    for name in ("BPR-unlearned.pth", "tiny-Dataset.pth", "result.json"):
        shutil.copy(folder / "first" / name, folder / name)
    shutil.copytree(folder / "second" / "BPR-unlearned", folder / "ensemble")


def outcome(arguments: list[str]) -> str:
    """What one command did."""
    from recbole_unlearn import cli

    said, failed = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(failed):
            code = cli.main(arguments)
    except BaseException:
        return "traceback: " + traceback.format_exc()
    lines = [line for line in failed.getvalue().splitlines() if line.startswith("Error:")]
    if code in (0, 1):
        return ("ran", "partly")[code]  # partly: some cells of a grid failed, each with a line
    if code == 2 and len(lines) == 1:
        return "refused"
    return f"traceback: code {code}, {failed.getvalue()[-500:]}"


def work(inbox: multiprocessing.Queue, outbox: multiprocessing.Queue, good: str, data_path: str, home: str) -> None:
    """A worker: makes a case, runs it, reports it."""
    import torch

    os.chdir(home)
    torch.set_num_threads(1)
    maker = Maker(Path(good), Path(data_path))
    while (seed := inbox.get()) is not None:
        folder = Path(home) / f"case-{seed}"
        outbox.put((seed, "started"))
        arguments = maker.make(seed, folder)
        found = outcome(arguments)
        ran_code = any((place / "ran").exists() for place in (folder, Path(home), Path.cwd()))
        outbox.put((seed, "code" if ran_code else found))
        shutil.rmtree(folder, ignore_errors=True)


def run(seeds: range, data_path: Path, folder: Path, workers: int = 1) -> dict[int, str]:
    """The outcome of every seed."""
    good = folder / "good"
    good.mkdir(parents=True)
    prepare(good, data_path)
    context = multiprocessing.get_context("fork")
    found: dict[int, str] = {}
    shares = [list(seeds)[k::workers] for k in range(workers)]
    lanes = [_Lane(context, good, data_path, folder / f"w{k}", share) for k, share in enumerate(shares)]
    while lanes:
        for lane in list(lanes):
            found |= lane.step()
            if lane.done:
                lanes.remove(lane)
    return found


class _Lane:
    """One worker and the seeds it has left; a worker that died or hangs is replaced."""

    def __init__(self, context, good: Path, data_path: Path, home: Path, seeds: list[int]) -> None:
        self.context, self.good, self.data_path, self.home, self.left = context, good, data_path, home, seeds
        home.mkdir()
        self.process = None
        self.done = not seeds

    def _start(self) -> None:
        self.inbox, self.outbox = self.context.Queue(), self.context.Queue()
        given = (self.inbox, self.outbox, str(self.good), str(self.data_path), str(self.home))
        self.process = self.context.Process(target=work, args=given, daemon=True)
        self.process.start()
        for seed in self.left:
            self.inbox.put(seed)
        self.inbox.put(None)

    def step(self) -> dict[int, str]:
        if self.process is None:
            self._start()
            self.current, self.since = None, time.monotonic()
        try:
            seed, what = self.outbox.get(timeout=0.5)
        except queue.Empty:
            dead = not self.process.is_alive()
            hangs = time.monotonic() - self.since > SECONDS
            if not dead and not hangs:
                return {}
            self.process.kill()
            self.process.join()
            seed = self.current if self.current is not None else self.left[0]
            self.left = [s for s in self.left if s != seed]
            self.process, self.done = None, not self.left
            return {seed: "hang" if hangs else "crash of the worker"}
        self.since = time.monotonic()
        if what == "started":
            self.current = seed
            return {}
        self.current = None
        self.left = [s for s in self.left if s != seed]
        self.done = not self.left
        return {seed: what}


def counts(found: dict[int, str]) -> dict[str, int]:
    """How many cases ended in each way."""
    kinds = collections.Counter(what.split(":")[0].split(" ")[0] for what in found.values())
    return {kind: kinds[kind] for kind in (*GOOD, "traceback", "crash", "hang", "code")}
