"""Commands on a state that are killed: at every boundary at which something reaches the disk, in the middle of a
write, and at random moments.

`KILLS=200 pytest -s tests/state -k killed` prints the counts. After every kill the state is one of those that an
uninterrupted command goes through, its ledger is whole, and the same command again ends as if nothing had happened.
"""

import collections
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.state import State, learn, open_state, publish, worker
from recbole_unlearn.state.database import REBUILT, RETRAINED

CALLS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")
STATEMENTS = ("BEGIN IMMEDIATE", "COMMIT", "VACUUM", "PRAGMA wal_checkpoint")
REQUESTS = {
    "a": {"user_id": ["u3", "u3", "u5"], "item_id": ["i20", "i25", None]},
    "b": {"user_id": "u8"},
    "c": {"item_id": "i7"},
    "d": {"user_id": ["u9", "u11"], "item_id": [None, None]},
}


def submit(state, ids):
    """Submit some of the requests."""
    for id in ids:
        state.submit(REQUESTS[id], id=id)


def week():
    """New interactions, of which some are of users who asked."""
    Path("week.csv").write_text("user_id,item_id,rating,timestamp\nu8,i1,4,1e9\nnew,i1,4,1e9\nu1,i99,4,1e9\n")
    return "week.csv"


class Step(NamedTuple):
    """A command, the requests that are done and pending before it, and the whole states it goes through."""

    do: object
    done: str
    pending: str
    stages: object  # the same command, with a stop at each whole state


STEPS = {
    "submit": Step(lambda state: submit(state, "b"), "a", "", lambda state: [submit(state, "b")]),
    "run": Step(State.run, "a", "bc", lambda state: worker.run(state.core, None)),
    "rollback": Step(
        lambda state: state.rollback("b"), "abc", "d",
        lambda state: itertools.chain([worker.rollback(state.core, "b")], worker.run(state.core, None)),
    ),
    "publish": Step(State.publish, "abc", "d", lambda state: [publish.publish(state.core)]),
    "learn": Step(
        lambda state: state.learn(week()), "a", "b",
        lambda state: [learn.learn(state.core, week(), None, None)],
    ),
    **{
        name: Step(
            getattr(State, name), "a", "b",
            lambda state, what=what: itertools.chain(
                worker.run(state.core, None), map(publish.retrain, [state.core], [what])
            ),
        )
        for name, what in (("rebuild", REBUILT), ("retrain", RETRAINED))
    },
}  # fmt: skip
ALL = ["init", *STEPS]


class Kill(NamedTuple):
    """When a command is killed: before or after a boundary, as a file grows beyond some bytes, at a moment."""

    at: int | None = None
    after: bool = False
    bytes: int | None = None
    seconds: float | None = None


NEVER = Kill()


def forked(call, *args):
    """Start a call in a process of its own; its exit code is 0 when the call returns.

    Threads of the parent's pool are not in a forked process, and torch would wait for them: it has one thread. The
    lock of tqdm is shared by all processes of a fork, and one that was killed may hold it: it has its own.
    """

    def alone():
        torch.set_num_threads(1)
        tqdm.set_lock(threading.RLock())
        try:
            call(*args)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=alone)
    process.start()
    return process


def command(do, kill=NEVER):
    """The exit code of a command in a process that is killed as ``kill`` says, and the boundaries it came to."""
    counted = multiprocessing.get_context("fork").Value("i", 0, lock=False)

    def killed():
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        _count_boundaries(kill, counted)
        if kill.bytes is not None:  # Python ignores the signal; without that, the process ends inside the write
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (kill.bytes, kill.bytes))
        try:
            do()
        except UnlearnError as error:
            os._exit(3 if "exists already" in str(error) else 4)

    process = forked(killed)
    if kill.seconds is not None:
        time.sleep(kill.seconds)
        process.kill()
    process.join()
    return process.exitcode, counted.value


def _count_boundaries(kill, counted):
    def wrapped(original, counts=lambda *args: True):
        def call(*args, **kwargs):
            counted.value += (mine := counts(*args))
            is_now = mine and counted.value == kill.at
            if is_now and not kill.after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = original(*args, **kwargs)
            if is_now:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return call

    class Connection(sqlite3.Connection):
        execute = wrapped(sqlite3.Connection.execute, lambda self, text, *more: text.startswith(STATEMENTS))
        close = wrapped(sqlite3.Connection.close)

    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **kwargs: connect(*args, **kwargs, factory=Connection)
    for name in CALLS:
        setattr(os, name, wrapped(getattr(os, name)))


def picture(state):
    """The content of a state: model, data, queue and ledger, without times and names of files."""
    live, rows = state.core.live, state.core.database.rows
    train = live.base.splits.train
    entries = [(one["what"], one.get("id"), one.get("after")) for one in state.core.database.entries()]
    tensors = {"weights": live.state(), "moments": live.moments}
    return {
        **{kind: {k: v.numpy().tobytes() for k, v in values.items()} for kind, values in tensors.items()},
        "fitted": None if live.trainer.fitted is None else live.trainer.fitted.tolist(),
        "fingerprint": state.core.fingerprint(),
        "interactions": [
            sorted(zip(*(index.ids[side][~index.removed].tolist() for side in ("user", "item")), strict=True))
            for index in live.parts
        ],
        "tokens": [list(train.field2id_token[field]) for field in (train.uid_field, train.iid_field)],
        "requests": list(map(tuple, rows("SELECT id, status, asked, suppressed FROM requests"))),
        "deleted": state.core.deleted(),
        # A training that was killed at its very end is done again, to the same model, and entered again.
        "ledger": [b for a, b in itertools.pairwise([None, *entries]) if a != b or b[0] not in (REBUILT, RETRAINED)],
    }


def looked_at(folder, key):
    """The content of the state in ``folder`` as another process sees it."""
    with open_state(folder, key) as state:
        return picture(state)


def _differences(first, second):
    one, other = first or {}, second or {}
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


class Campaign:
    """Kills of all commands, and the state that was left each time."""

    def __init__(self, init, key, folder):
        """``init`` makes a state in a folder."""
        self._init, self.key, self.folder, self.random = init, key, folder, random.Random(0)
        self.found, self.problems, self.killed = collections.Counter(), [], 0
        self._numbers = itertools.count()
        # By command: the whole states it goes through, its boundaries, its time, and the bytes of the largest file.
        self.stages, self.boundaries, self.seconds, self.largest = {}, {}, {}, {}
        self._command("init", folder / "new")
        for step in ALL:
            self._prepare(step)

    def run(self, kills):
        """Kill ``kills`` commands: half at boundaries, evenly over all of them, the others elsewhere."""
        everywhere = [
            (step, Kill(at, after))
            for step, number in self.boundaries.items()
            for at in range(1, number + 1)
            for after in (False, True)
        ]
        others = kills // 2 if kills < 2 * len(everywhere) else kills - len(everywhere)
        chosen = kills - others
        plan = [everywhere[k * len(everywhere) // chosen] for k in range(chosen)]
        for k, step in zip(range(others), itertools.cycle(ALL), strict=False):
            moment = self.random.uniform(1e-9, 1.05 * self.seconds[step])
            size = int(self.largest[step] * self.random.random() ** 2)
            plan.append((step, Kill(seconds=moment) if k // len(ALL) % 2 else Kill(bytes=size)))
        for step, kill in plan:
            self._kill(step, kill)
        while self.killed < kills:  # for those that were over before
            self._kill(*self.random.choice(everywhere))

    def _prepare(self, step):
        """The state before a command, the states it goes through, its boundaries and its time."""
        if step == "init":
            self.stages[step] = [None, looked_at(self.folder / "new", self.key)]
        else:
            shutil.copytree(self.folder / "new", self.folder / step)
            with open_state(self.folder / step, self.key) as state:
                submit(state, STEPS[step].done)
                state.run()
                submit(state, STEPS[step].pending)
            home = self._copy(step)
            self.stages[step] = [looked_at(home, self.key)]
            with open_state(home, self.key) as state, worker.alone(state.core):
                for _ in STEPS[step].stages(state):
                    self.stages[step].append(looked_at(home, self.key))
        home, start = self._copy(step), time.monotonic()
        code, self.boundaries[step] = self._command(step, home)
        self.seconds[step] = time.monotonic() - start
        assert code == 0, f"{step} fails without a kill"
        self.largest[step] = max(path.stat().st_size for path in home.rglob("*") if path.is_file())

    def _command(self, step, home, kill=NEVER):
        def do():
            if step == "init":
                return self._init(home)
            with open_state(home, self.key) as state:
                STEPS[step].do(state)

        return command(do, kill)

    def _copy(self, step):
        home = self.folder / f"k{next(self._numbers)}" / "S"
        home.parent.mkdir()
        if step != "init":
            shutil.copytree(self.folder / step, home)
        return home

    def _kill(self, step, kill):
        home, kills = self._copy(step), [kill]
        self.killed += self._command(step, home, kill)[0] < 0
        try:
            self._look(step, home)
            if self.random.random() < 0.25:
                kills.append(Kill(self.random.randint(1, self.boundaries[step]), self.random.random() < 0.5))
                self._command(step, home, kills[1])
                self._look(step, home)
            self._go_on(step, home)
        except Exception as error:  # all of them are findings
            self.problems.append(f"{step} {kills}: {type(error).__name__}: {error}")
        else:
            shutil.rmtree(home.parent)

    def _look(self, step, home):
        """At a copy: looking must not repair a state."""
        copy, stages = home.parent / "look", self.stages[step]
        now, problem = None, None
        if home.exists():
            shutil.copytree(home, copy)
            with open_state(copy, self.key) as state:
                now, problem = picture(state), state.fault()
            shutil.rmtree(copy)
        differ = min((_differences(now, stage) for stage in stages), key=len)
        assert now in stages, f"half a state; it differs from the nearest whole one in {differ}"
        assert problem is None or "belong to nothing" in problem, problem
        which = "before" if now == stages[0] else "after" if now == stages[-1] else "in between"
        self.found[f"{step}: left as {which}{', with leftovers' if problem else ''}"] += 1

    def _go_on(self, step, home):
        """The same command again ends as if nothing had happened, and leaves nothing behind."""
        code, _ = self._command(step, home)
        assert code == 0 or (code == 3 and step == "init"), f"the same command again fails ({code})"
        with open_state(home, self.key) as state:
            differ = _differences(picture(state), self.stages[step][-1])
            assert not differ, f"ends otherwise in {differ}"
            state.verify()
            allowed = {"state.sqlite", "state.sqlite-wal", "state.sqlite-shm", "files", "S"}
            left = {path.name for path in (*home.parent.iterdir(), *home.iterdir())} - allowed
            assert not left, f"leaves {sorted(left)}"
