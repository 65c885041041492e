"""Runs that are killed: at every boundary at which something reaches the disk, and at random moments.

Counted are: the output directory was as before, held the whole new result, or held anything else (has to be 0).
"""

from __future__ import annotations

import collections
import json
import os
import random
import time
from pathlib import Path

from recbole_unlearn import cli, quick_start, read_checkpoint, report  # noqa: F401  # for the children of a fork
from recbole_unlearn.files import file_digest
from tests.state.crash_cases import NEVER, Kill, command


def _arguments(folder: Path, data_path: Path, seed: int) -> list[str]:
    (folder / "r.csv").write_text("user_id\nu3\n")
    return [
        "--model=BPR", "--dataset=tiny", f"--data_path={data_path}", "--unlearn=obliviate", "--embedding_size=4", "--epochs=1",
        f"--forget={folder / 'r.csv'}", f"--output_dir={folder / 'out'}", f"--cache_dir={folder / 'cache'}", "--replace",
        "--no_show_progress", "--lac_steps=2", "--demotion_negatives=5", f"--seed={seed}",
    ]  # fmt: skip


def _killed(arguments: list[str], kill: Kill = NEVER) -> tuple[int, int]:
    """The exit code of a run that may be killed, and how many boundaries it came to."""
    return command(lambda: os._exit(cli.main(arguments)), kill)


def state(out: Path) -> dict[str, str] | None:
    """What an output directory holds, by the names and content of its files; None when there is no result in it."""
    if not (out / "result.json").exists():
        return None
    return {path.name: file_digest(path) for path in sorted(out.glob("*.pth"))}


def whole(out: Path, seed: int) -> bool:
    """Whether a directory holds one whole result of ``seed``: a model, its own dataset, a report and figures."""
    result = json.loads((out / "result.json").read_text())
    read_checkpoint(out / "BPR-unlearned.pth")  # refuses the dataset of another run
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    return result["seed"] == seed and {"report.html", "tiny-Dataset.pth", "run.log", "mine.txt"} >= names - {
        "result.json", "BPR-unlearned.pth", "tensorboard",
    }  # fmt: skip


def campaign(number: int, data_path: Path, folder: Path, seed: int = 0) -> collections.Counter:
    """Kill ``number`` runs; what was left each time."""
    r = random.Random(seed)
    found: collections.Counter = collections.Counter()
    (folder / "first").mkdir(parents=True)
    start = time.monotonic()
    _, boundaries = _killed(_arguments(folder / "first", data_path, 1))
    seconds = time.monotonic() - start
    for k in range(number):
        home = folder / f"k{k}"
        home.mkdir()
        kind = k % 3  # a new directory, one with a file of the user's, one with an earlier result
        if kind == 1:
            (home / "out").mkdir()
            (home / "out" / "mine.txt").write_text("mine")
        elif kind == 2:
            _killed(_arguments(home, data_path, 1))
        before = state(home / "out")
        arguments = _arguments(home, data_path, 2)
        if k % 2:
            _killed(arguments, Kill(seconds=r.uniform(0.0, 1.1 * seconds)))
        else:
            _killed(arguments, Kill(at=1 + (k // 2) % boundaries, after=bool((k // 2) // boundaries % 2)))
        found[_verdict(home / "out", before, kind)] += 1
        if not _killed(_arguments(home, data_path, 3))[0] and whole(home / "out", 3):
            found["the next run succeeds"] += 1
        found["temporary files that stay"] += len([p for p in (*home.glob(".*"), *(home / "out").glob(".*"))])
    return found


def _verdict(out: Path, before: dict[str, str] | None, kind: int) -> str:
    if kind == 1 and (out / "mine.txt").read_text() != "mine":
        return "the user's file is damaged"
    now = state(out)
    if now is None:
        if before:
            return "without a result, which the next run says"
        left = [path.relative_to(out).parts for path in out.rglob("*.pth")]
        is_half = any(not any(part.startswith(".") for part in parts) for parts in left)
        return "half" if is_half else "as before"
    if now == before:
        return "as before"
    try:
        seed = json.loads((out / "result.json").read_text())["seed"]
        mixed = f"mixed: seed {seed}, {sorted(p.name for p in out.iterdir())}"
        return "the whole new result" if whole(out, 2) else mixed
    except Exception as error:
        return f"mixed: {error}"
