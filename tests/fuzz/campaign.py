"""A fuzz through the whole command: cases from a seed, in processes that may crash or hang without harm.

Counted are: refused (one line and exit code 2), ran, traceback, crash, hang, code. The last four have to be 0.
"""

from __future__ import annotations

import collections
import contextlib
import io
import multiprocessing
import os
import shutil
import time
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.cases import Maker

SECONDS, BATCH = 60, 100  # for one case; in one process
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


def _cases(maker: Maker, seeds: list[int], home: Path, answer: Connection) -> None:
    """Make cases, run and report them, in a process of its own."""
    torch.set_num_threads(1)
    home.mkdir()
    os.chdir(home)
    for seed in seeds:
        found = outcome(maker.make(seed, home / str(seed)))
        ran_code = any((place / "ran").exists() for place in (home, home / str(seed)))
        answer.send("code" if ran_code else found)
    shutil.rmtree(home)
    os._exit(0)


def run(seeds: range, data_path: Path, folder: Path, workers: int = 1) -> dict[int, str]:
    """The outcome of every seed; a case that crashes or hangs ends its process, and another one does the rest."""
    good = folder / "good"
    good.mkdir(parents=True)
    prepare(good, data_path)
    maker, context = Maker(good, data_path), multiprocessing.get_context("fork")
    waiting = [list(seeds)[k : k + BATCH] for k in range(0, len(seeds), BATCH)]
    running: dict[Any, tuple[list[int], Any, float]] = {}
    found: dict[int, str] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            batch, (answer, given) = waiting.pop(), context.Pipe(duplex=False)
            process = context.Process(target=_cases, args=(maker, batch, folder / f"from-{batch[0]}", given))
            process.start()
            given.close()
            running[answer] = batch, process, time.monotonic()
        ready = wait(list(running), timeout=1)
        for answer, (batch, process, since) in list(running.items()):
            try:
                if answer in ready:
                    found[batch[0]] = answer.recv()
                    running[answer] = batch[1:], process, time.monotonic()
                    continue
                if time.monotonic() - since < SECONDS:
                    continue
                found[batch[0]] = "hang"
            except EOFError:
                if batch:
                    found[batch[0]] = "crash of the process"
            process.kill()
            process.join()
            del running[answer]
            waiting += [batch[1:]] if batch[1:] else []
    return found


def counts(found: dict[int, str]) -> dict[str, int]:
    """How many cases ended in each way."""
    kinds = collections.Counter(what.split(":")[0].split(" ")[0] for what in found.values())
    return {kind: kinds[kind] for kind in (*GOOD, "traceback", "crash", "hang", "code")}
