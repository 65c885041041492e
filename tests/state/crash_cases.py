"""Commands on a state that are killed: at every boundary at which something reaches the disk, in the middle of a
write, and at random moments.

`python -m tests.state.crash_cases --kills 200` prints the counts. After every kill the state is one of those that an
uninterrupted command goes through, its ledger is whole, and the same command again ends as if nothing had happened.
Anything else is printed as it is, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.state import State, init_state, open_state, publish, worker

CALLS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")
STATEMENTS = ("BEGIN", "COMMIT", "VACUUM", "PRAGMA wal_checkpoint")
REQUESTS = {
    "a": {"user_id": ["u3", "u3", "u5"], "item_id": ["i20", "i25", None]},
    "b": {"user_id": "u8"},
    "c": {"item_id": "i7"},
    "d": {"user_id": ["u9", "u11"], "item_id": [None, None]},
}
Picture = dict[str, Any]


class Place(NamedTuple):
    """Where commands find what they need."""

    checkpoint: Path
    data: Path
    key: Path

    def open(self, folder: Path) -> State:
        """The state in ``folder``."""
        return open_state(folder, self.key)

    def init(self, folder: Path) -> None:
        """Make the state in ``folder``."""
        init_state(folder, self.checkpoint, hash_key=self.key, data_path=str(self.data)).close()

    def picture(self, folder: Path) -> Picture | None:
        """The content of the state in ``folder``; None where there is none."""
        if not folder.exists():
            return None
        with self.open(folder) as state:
            return picture(state)


def submit(state: State, ids: str) -> None:
    """Submit some of the requests."""
    for id in ids:
        state.submit(REQUESTS[id], id=id, on_missing="skip")


def _once(call: Callable[[State], Any]) -> Callable[[State], Iterator[Any]]:
    return lambda state: (call(state) for _ in range(1))


def _running(state: State) -> Iterator[Any]:
    yield from worker.run(state.core, None)


def _rolling_back(state: State) -> Iterator[Any]:
    yield worker.rollback(state.core, "b")
    yield from worker.run(state.core, None)


def _retraining(state: State) -> Iterator[Any]:
    yield from worker.run(state.core, None)
    yield publish.retrain(state.core)


class Step(NamedTuple):
    """A command, the requests that are done and pending before it, and the whole states it goes through."""

    do: Callable[[State], Any]
    done: str
    pending: str
    stages: Callable[[State], Iterator[Any]]  # the same command, with a stop at each whole state


STEPS = {
    "submit": Step(lambda state: submit(state, "b"), "a", "", _once(lambda state: submit(state, "b"))),
    "run": Step(State.run, "a", "bc", _running),
    "rollback": Step(lambda state: state.rollback("b"), "abc", "d", _rolling_back),
    "publish": Step(State.publish, "abc", "d", _once(lambda state: publish.publish(state.core))),
    "retrain": Step(State.retrain, "a", "b", _retraining),
}
ALL = ["init", *STEPS]


class Kill(NamedTuple):
    """When a command is killed."""

    at: int | None = None  # the boundary
    after: bool = False  # it, rather than before
    bytes: int | None = None  # a file that grows beyond them
    seconds: float | None = None

    @property
    def kind(self) -> str:
        """For the counts."""
        return "at a boundary" if self.at else "at a random moment" if self.seconds else "inside a write"


NEVER = Kill()


def _child(place: Place, folder: Path, step: str, kill: Kill, counted: Any) -> None:
    """Run a command in a process that is killed as ``kill`` says; exit code 0 when it succeeds."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    torch.set_num_threads(
        1
    )  # threads of the parent's pool are not in a forked process: torch would wait for them
    _count_boundaries(kill, counted)
    if kill.bytes is not None:
        signal.signal(
            signal.SIGXFSZ, signal.SIG_DFL
        )  # Python ignores it; so the process ends inside the write
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (kill.bytes, kill.bytes))
    try:
        if step == "init":
            place.init(folder)
        else:
            with place.open(folder) as state:
                STEPS[step].do(state)
    except UnlearnError as error:
        os._exit(3 if "exists already" in str(error) else 4)
    os._exit(0)


def _count_boundaries(kill: Kill, counted: Any) -> None:
    def wrapped(original: Any, counts: Callable[..., bool] = lambda *args: True) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            mine = counts(*args)
            counted.value += mine
            if mine and counted.value == kill.at and not kill.after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = original(*args, **kwargs)
            if mine and counted.value == kill.at:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return call

    class Connection(sqlite3.Connection):
        execute = wrapped(sqlite3.Connection.execute, lambda self, text, *more: text.startswith(STATEMENTS))
        close = wrapped(sqlite3.Connection.close)

    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **kwargs: connect(*args, **kwargs, factory=Connection)  # type: ignore[assignment]
    for name in CALLS:
        setattr(os, name, wrapped(getattr(os, name)))


def _command(place: Place, folder: Path, step: str, kill: Kill = NEVER) -> tuple[int, int]:
    """The exit code of a command that may be killed, and how many boundaries it came to."""
    context = multiprocessing.get_context("fork")
    counted = context.Value("i", 0, lock=False)
    process = context.Process(target=_child, args=(place, folder, step, kill, counted))
    process.start()
    if kill.seconds is not None:
        time.sleep(kill.seconds)
        process.kill()
    process.join()
    return int(process.exitcode or 0), int(counted.value)


def picture(state: State) -> Picture:
    """The content of a state: model, data, queue and ledger, without times and names of files."""
    live, rows = state.core.live, state.core.database.rows
    train = live.base.splits.train
    entries = [(one["what"], one.get("id"), one.get("after")) for one in state.core.database.entries()]
    tables = {
        "requests": "SELECT id, replace(status, 'running', 'pending') FROM requests",  # after a kill, pending again
        **{name: f"SELECT * FROM {name}" for name in ("asked", "suppressed", "deleted")},
    }
    return {
        "weights": _hash(live.state()),
        "moments": _hash(live.moments),
        "fitted": None if live.fitted is None else live.fitted.tolist(),
        "fingerprint": state.core.fingerprint(),
        "interactions": [
            sorted(zip(*(index.ids[side][~index.removed].tolist() for side in ("user", "item")), strict=True))
            for index in live.parts
        ],
        "tokens": [list(train.field2id_token[field]) for field in (train.uid_field, train.iid_field)],
        **{name: list(map(tuple, rows(query))) for name, query in tables.items()},
        # Retraining that was killed at its very end is done again, to the same model, and entered again.
        "ledger": [
            now
            for last, now in itertools.pairwise([None, *entries])
            if last != now or now[0] != "retrained"
        ],
    }  # fmt: skip


def _hash(tensors: Mapping[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].numpy().tobytes())
    return found.hexdigest()


def _differences(first: Picture | None, second: Picture | None) -> list[str]:
    one, other = first or {}, second or {}
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


class Campaign:
    """Kills of all commands, and the state that was left each time."""

    def __init__(self, place: Place, folder: Path, seed: int = 0) -> None:
        self.place, self.folder, self.random = place, folder, random.Random(seed)
        self.found: collections.Counter[str] = collections.Counter()
        self.problems: list[str] = []
        self.killed = 0
        self._numbers = itertools.count()
        self.stages: dict[str, list[Picture | None]] = {}
        self.boundaries: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.largest: dict[str, int] = {}
        place.init(folder / "new")
        for step in ALL:
            self._prepare(step)

    def run(self, kills: int) -> None:
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
            if k // len(ALL) % 2:
                plan.append((step, Kill(seconds=self.random.uniform(1e-9, 1.05 * self.seconds[step]))))
            else:
                plan.append((step, Kill(bytes=int(self.largest[step] * self.random.random() ** 2))))
        for step, kill in plan:
            self._kill(step, kill)
        while self.killed < kills:  # for those that were over before
            self._kill(*self.random.choice(everywhere))

    def _prepare(self, step: str) -> None:
        """The state before a command, the states it goes through, its boundaries and its time."""
        if step == "init":
            self.stages[step] = [None, self.place.picture(self.folder / "new")]
        else:
            shutil.copytree(self.folder / "new", self.folder / step)
            with self.place.open(self.folder / step) as state:
                submit(state, STEPS[step].done)
                state.run()
                submit(state, STEPS[step].pending)
            home = self._copy(step)
            self.stages[step] = [self.place.picture(home)]
            with self.place.open(home) as state, worker.alone(state.core):
                for _ in STEPS[step].stages(state):
                    self.stages[step].append(self.place.picture(home))
        home, start = self._copy(step), time.monotonic()
        code, self.boundaries[step] = _command(self.place, home, step)
        self.seconds[step] = time.monotonic() - start
        assert code == 0, f"{step} fails without a kill"
        self.largest[step] = max(path.stat().st_size for path in home.rglob("*") if path.is_file())

    def _copy(self, step: str) -> Path:
        home = self.folder / f"k{next(self._numbers)}" / "S"
        home.parent.mkdir()
        if step != "init":
            shutil.copytree(self.folder / step, home)
        return home

    def _kill(self, step: str, kill: Kill) -> None:
        home = self._copy(step)
        code, _ = _command(self.place, home, step, kill)
        self.found[f"killed {kill.kind}" if code < 0 else f"to be killed {kill.kind}, but over before"] += 1
        self.killed += code < 0
        where = f"{step} {kill}"
        try:
            self._look(step, home)
            if self.random.random() < 0.25:
                again = Kill(self.random.randint(1, self.boundaries[step]), self.random.random() < 0.5)
                where += f", then {again}"
                self.found["killed again"] += _command(self.place, home, step, again)[0] < 0
                self._look(step, home)
            self._go_on(step, home)
        except Exception as error:  # all of them are findings
            self.found["problems"] += 1
            self.problems.append(f"{where}: {type(error).__name__}: {error}")
        else:
            shutil.rmtree(home.parent)

    def _look(self, step: str, home: Path) -> None:
        """At a copy: looking must not repair a state."""
        copy = home.parent / "look"
        if home.exists():
            shutil.copytree(home, copy)
        now, stages = self.place.picture(copy), self.stages[step]
        differ = min((_differences(now, stage) for stage in stages), key=len)
        assert now in stages, f"half a state; it differs from the nearest whole one in {differ}"
        which = "before" if now == stages[0] else "after" if now == stages[-1] else "in between"
        self.found[f"{step}: left as {which}"] += 1
        if now is None:
            return
        with self.place.open(copy) as state:
            problem = state.fault()
            self.found["verify names leftovers" if problem else "verify passes"] += 1
            assert problem is None or "belong to nothing" in problem, problem
        shutil.rmtree(copy)

    def _go_on(self, step: str, home: Path) -> None:
        """The same command again ends as if nothing had happened, and leaves nothing behind."""
        code, _ = _command(self.place, home, step)
        assert code == 0 or (code == 3 and step == "init"), f"the same command again fails ({code})"
        differ = _differences(self.place.picture(home), self.stages[step][-1])
        assert not differ, f"ends otherwise in {differ}"
        with self.place.open(home) as state:
            state.verify()
            allowed = {"state.sqlite", "state.sqlite-wal", "state.sqlite-shm", "worker.sqlite", "files", "S"}
            left = {path.name for path in (*home.parent.iterdir(), *home.iterdir())} - allowed
            assert not left, f"leaves {sorted(left)}"
        self.found["the same command again ends as an uninterrupted one"] += 1


def main(arguments: list[str]) -> int:
    """Kill commands on a state of BPR (or another model) on `tiny`, and print the counts."""
    from tests.conftest import train_plain, write_tiny
    from tests.state.conftest import PLAIN

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--model", default="BPR")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    sys.argv = sys.argv[:1]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        root = Path(folder)
        write_tiny(root / "data")
        (root / "key").write_text("0123456789abcdef" * 4)
        (root / "key").chmod(0o600)
        (root / "kills").mkdir()
        checkpoint = train_plain(options.model, root / "model", data_path=str(root / "data"), **PLAIN)
        campaign = Campaign(Place(checkpoint, root / "data", root / "key"), root / "kills", options.seed)
        print("boundaries:", campaign.boundaries)
        campaign.run(options.kills)
    for what, number in sorted(campaign.found.items()):
        print(f"{number:5d}  {what}")
    for problem in campaign.problems:
        print(problem)
    return 1 if campaign.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
