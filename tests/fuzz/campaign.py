"""A fuzz through the whole command: cases from a seed, in processes that may crash or hang without harm.

Counted are: refused (one line and exit code 2), ran, traceback, crash, hang, code. The last four have to be 0.
"""

import collections
import contextlib
import io
import multiprocessing
import os
import resource
import shutil
import traceback

import torch

from recbole_unlearn import cli, run_unlearn
from tests.conftest import PLAIN, train_plain
from tests.fuzz.cases import Maker

SECONDS, BATCH = 60, 100  # for one case; in one process
GOOD = ("refused", "ran", "partly")


def prepare(folder, data_path):
    """A good run of each kind, which the cases are made from."""
    own = PLAIN | {"data_path": str(data_path), "epochs": 1, "embedding_size": 4}
    values = own | {"show_progress": False, "tensorboard": False, "cache": False, "demotion_negatives": 5}
    shutil.copy(train_plain("BPR", folder / "plain", **own), folder / "plain.pth")
    for method in ("obliviate", "sisa"):
        request = {"forget": {"user_id": ["u1"]}, "unlearn": method, "output_dir": folder / method}
        run_unlearn("BPR", "tiny", config_dict=values, **request)
    for name in ("BPR-unlearned.pth", "tiny-Dataset.pth", "result.json"):
        shutil.copy(folder / "obliviate" / name, folder / name)
    shutil.copytree(folder / "sisa" / "BPR-unlearned", folder / "ensemble")
    return Maker(folder, data_path)


def outcome(arguments):
    """What one command did."""
    failed = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(failed):
            code = cli.main(arguments)
    except BaseException:
        return "traceback: " + traceback.format_exc()
    lines = [line for line in failed.getvalue().splitlines() if line.startswith("Error:")]
    if code in (0, 1):
        return ("ran", "partly")[code]  # partly: some cells of a grid failed, each with a line
    return "refused" if code == 2 and len(lines) == 1 else f"traceback: code {code}, {failed.getvalue()[-500:]}"


def _cases(maker, seeds, home, answer):
    """Make cases, run and report them, in a process of its own."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))  # a case that starts processes without end stops here
    home.mkdir()
    os.chdir(home)
    for seed in seeds:
        found = outcome(maker.make(seed, home / str(seed)))
        ran_code = any((place / "ran").exists() for place in (home, home / str(seed)))
        answer.send("code" if ran_code else found)
    shutil.rmtree(home)
    os._exit(0)


def run(seeds, data_path, folder):
    """The outcome of every seed; a case that crashes or hangs ends its process, and another one does the rest."""
    (folder / "good").mkdir(parents=True)
    maker, context = prepare(folder / "good", data_path), multiprocessing.get_context("fork")
    left, found = list(seeds), {}
    while left:
        batch, (answer, given) = left[:BATCH], context.Pipe(duplex=False)
        process = context.Process(target=_cases, args=(maker, batch, folder / f"from-{batch[0]}", given))
        process.start()
        given.close()
        for seed in batch:
            left.remove(seed)
            try:
                found[seed] = answer.recv() if answer.poll(SECONDS) else "hang"
            except EOFError:
                found[seed] = "crash of the process"
            if found[seed].startswith(("hang", "crash")):
                break
        process.kill()
        process.join()
    return found


def counts(found):
    """How many cases ended in each way."""
    kinds = collections.Counter(what.split(":")[0].split(" ")[0] for what in found.values())
    return {kind: kinds[kind] for kind in (*GOOD, "traceback", "crash", "hang", "code")}
