"""Runs that are killed: at every boundary at which something reaches the disk, and at random moments.

Counted are: the output directory was as before, held the whole new result, or held anything else (has to be 0).
"""

import collections
import json
import os
import random
import re
import time

from recbole_unlearn import cli, quick_start, read_checkpoint, report  # noqa: F401  # for the children of a fork
from recbole_unlearn.files import file_digest
from tests.state.crash_cases import NEVER, Kill, command


def _run(folder, data_path, seed, kill=NEVER):
    """The exit code of a run that may be killed, and how many boundaries it came to."""
    (folder / "r.csv").write_text("user_id\nu3\n")
    arguments = [
        "--model=BPR", "--dataset=tiny", f"--data_path={data_path}", "--unlearn=obliviate", "--embedding_size=4", "--epochs=1",
        f"--forget={folder / 'r.csv'}", f"--output_dir={folder / 'out'}", f"--cache_dir={folder / 'cache'}", "--replace",
        "--no_show_progress", "--lac_steps=2", "--demotion_negatives=5", f"--seed={seed}",
    ]  # fmt: skip
    return command(lambda: os._exit(cli.main(arguments)), kill)


def state(out):
    """What an output directory holds, by the names and content of its files; None when there is no result in it."""
    if not (out / "result.json").exists():
        return None
    return {path.name: file_digest(path) for path in sorted(out.glob("*.pth"))}


def whole(out, seed):
    """Whether a directory holds one whole result of ``seed``: a model, its own dataset, a report and figures."""
    read_checkpoint(out / "BPR-unlearned.pth")  # refuses the dataset of another run
    own = r"report.html|tiny-Dataset.pth|run.log|mine.txt|result.json|BPR-unlearned.pth|tensorboard|\..*"
    is_own = all(re.fullmatch(own, path.name) for path in out.iterdir())
    return json.loads((out / "result.json").read_text())["seed"] == seed and is_own


def campaign(number, data_path, folder, seed=0):
    """Kill ``number`` runs; what was left each time."""
    r, found = random.Random(seed), collections.Counter()
    (folder / "first").mkdir(parents=True)
    start = time.monotonic()
    _, boundaries = _run(folder / "first", data_path, 1)
    seconds = time.monotonic() - start
    for k in range(number):
        home = folder / f"k{k}"
        home.mkdir()
        kind = k % 3  # a new directory, one with a file of the user's, one with an earlier result
        if kind == 1:
            (home / "out").mkdir()
            (home / "out" / "mine.txt").write_text("mine")
        elif kind == 2:
            _run(home, data_path, 1)
        before, moment = state(home / "out"), Kill(seconds=r.uniform(0.0, 1.1 * seconds))
        boundary = Kill(at=1 + (k // 2) % boundaries, after=bool((k // 2) // boundaries % 2))
        _run(home, data_path, 2, moment if k % 2 else boundary)
        found[_verdict(home / "out", before, kind)] += 1
        if not _run(home, data_path, 3)[0] and whole(home / "out", 3):
            found["the next run succeeds"] += 1
        found["temporary files that stay"] += len([*home.glob(".*"), *(home / "out").glob(".*")])
    return found


def _verdict(out, before, kind):
    if kind == 1 and (out / "mine.txt").read_text() != "mine":
        return "the user's file is damaged"
    now = state(out)
    if now is None and before:
        return "without a result, which the next run says"
    if now is None:
        left = [path.relative_to(out).parts for path in out.rglob("*.pth")]
        is_half = any(not any(part.startswith(".") for part in parts) for parts in left)
        return "half" if is_half else "as before"
    try:
        return "as before" if now == before else "the whole new result" if whole(out, 2) else "mixed"
    except Exception as error:
        return f"mixed: {error}"
