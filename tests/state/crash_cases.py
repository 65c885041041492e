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
import json
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
LEFTOVERS = "belong to nothing"
Picture = dict[str, Any]


class Place(NamedTuple):
    """Where commands find what they need."""

    checkpoint: Path
    data: Path
    key: Path

    def open(self, folder: Path) -> State:
        """The state in ``folder``."""
        return open_state(folder, self.key)


class Step(NamedTuple):
    """A command, the state it starts from, and the whole states it goes through."""

    do: Callable[[Place, Path], Any]
    prepare: Callable[[State], Any] | None  # None: there is no state yet
    stages: Callable[[State], Iterator[Any]]  # the same command, with a stop at each whole state


REQUESTS = {
    "a": {"user_id": ["u3", "u3", "u5"], "item_id": ["i20", "i25", None]},
    "b": {"user_id": "u8"},
    "c": {"item_id": "i7"},
    "d": {"user_id": ["u9", "u11"], "item_id": [None, None]},
}


def _submit(state: State, ids: str) -> None:
    for id in ids:
        state.submit(REQUESTS[id], id=id, on_missing="skip")


def _after(done: str, pending: str = "") -> Callable[[State], None]:
    """Brings a new state to where some requests are done, and others pending."""

    def prepare(state: State) -> None:
        _submit(state, done)
        state.run()
        _submit(state, pending)

    return prepare


def _with(call: Callable[[State], Any]) -> Callable[[Place, Path], None]:
    def do(place: Place, folder: Path) -> None:
        with place.open(folder) as state:
            call(state)

    return do


def _init(place: Place, folder: Path) -> None:
    init_state(folder, place.checkpoint, hash_key=place.key, data_path=str(place.data)).close()


def _submitting(state: State) -> Iterator[Any]:
    yield _submit(state, "b")


def _running(state: State) -> Iterator[Any]:
    with worker.alone(state.core):
        yield from worker.run(state.core, None)


def _rolling_back(state: State) -> Iterator[Any]:
    with worker.alone(state.core):
        yield worker.rollback(state.core, "b")
        yield from worker.run(state.core, None)


def _publishing(state: State) -> Iterator[Any]:
    yield state.publish()


def _retraining(state: State) -> Iterator[Any]:
    with worker.alone(state.core):
        yield from worker.run(state.core, None)
        yield publish.retrain(state.core)


STEPS = {
    "init": Step(_init, None, lambda state: iter(())),
    "submit": Step(_with(lambda state: _submit(state, "b")), _after("a"), _submitting),
    "run": Step(_with(State.run), _after("a", "bc"), _running),
    "rollback": Step(_with(lambda state: state.rollback("b")), _after("abc", "d"), _rolling_back),
    "publish": Step(_with(State.publish), _after("abc", "d"), _publishing),
    "retrain": Step(_with(State.retrain), _after("a", "b"), _retraining),
}


class Kill(NamedTuple):
    """When a command is killed."""

    at: int | None = None  # the boundary
    after: bool = False  # it, rather than before
    bytes: int | None = None  # a file that grows beyond them
    seconds: float | None = None


def _child(place: Place, folder: Path, step: str, kill: Kill, counted: Any) -> None:
    """Run a command in a process that is killed as ``kill`` says; exit code 0 when it succeeds."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    _count_boundaries(kill, counted)
    if kill.bytes is not None:
        signal.signal(
            signal.SIGXFSZ, signal.SIG_DFL
        )  # Python ignores it; this way the process ends inside the write
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (kill.bytes, kill.bytes))
    try:
        STEPS[step].do(place, folder)
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


def _command(place: Place, folder: Path, step: str, kill: Kill | None = None) -> tuple[int, int]:
    """The exit code of a command that may be killed, and how many boundaries it came to."""
    context = multiprocessing.get_context("fork")
    counted = context.Value("i", 0, lock=False)
    process = context.Process(target=_child, args=(place, folder, step, kill or Kill(), counted))
    process.start()
    if kill is not None and kill.seconds is not None:
        time.sleep(kill.seconds)
        process.kill()
    process.join()
    return int(process.exitcode or 0), int(counted.value)


def picture(state: State) -> Picture:
    """All of a state that has a meaning: model, data, queue and ledger, without times and without names of files."""
    live, rows = state.core.live, state.core.database.rows
    train = live.base.splits.train
    entries = [
        (entry["what"], entry.get("id"), entry.get("after"))
        for entry in map(json.loads, state.ledger().splitlines())
    ]
    return {
        "weights": _hash(live.state()),
        "moments": _hash(live.moments),
        "fitted": None if live.fitted is None else live.fitted.tolist(),
        "fingerprint": state.core.fingerprint(),
        "interactions": [
            sorted(zip(*(index.ids[side][~index.removed].tolist() for side in ("user", "item")), strict=True))
            for index in state.core.live.parts
        ],
        "tokens": [list(train.field2id_token[field]) for field in (train.uid_field, train.iid_field)],
        # A request that a worker who was killed had begun is pending for the next.
        "requests": [
            (row["id"], row["status"].replace("running", "pending")) for row in rows("SELECT * FROM requests")
        ],
        **{
            name: list(map(tuple, rows(f"SELECT * FROM {name}")))
            for name in ("asked", "suppressed", "deleted")
        },
        # Retraining that was killed at its very end is done again, to the same model, and entered again.
        "ledger": [
            now
            for last, now in zip([None, *entries], entries, strict=False)
            if last != now or now[0] != "retrained"
        ],
    }


def _hash(tensors: Mapping[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].numpy().tobytes())
    return found.hexdigest()


def _differences(first: Picture | None, second: Picture | None) -> list[str]:
    one, other = first or {}, second or {}
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def _picture(place: Place, folder: Path) -> Picture | None:
    if not folder.exists():
        return None
    with place.open(folder) as state:
        return picture(state)


class Campaign:
    """Kills of all commands, and what was left each time."""

    def __init__(self, place: Place, folder: Path, seed: int = 0) -> None:
        self.place, self.folder, self.random = place, folder, random.Random(seed)
        self.found: collections.Counter[str] = collections.Counter()
        self.problems: list[str] = []
        self.killed = 0
        self._numbers = itertools.count()
        self.ready: dict[str, Path] = {}
        self.stages: dict[str, list[Picture | None]] = {}
        self.boundaries: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.largest: dict[str, int] = {}
        _init(place, folder / "new")
        for step in STEPS:
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
        for k, step in zip(range(others), itertools.cycle(STEPS), strict=False):
            if k // len(STEPS) % 2:
                plan.append((step, Kill(seconds=self.random.uniform(0.0, 1.05 * self.seconds[step]))))
            else:
                plan.append((step, Kill(bytes=int(self.largest[step] * self.random.random() ** 2))))
        for step, kill in plan:
            self._kill(step, kill)
        while self.killed < kills:  # in the place of those that were over before
            self._kill(*self.random.choice(everywhere))

    def _prepare(self, step: str) -> None:
        """The state that a command starts from, the states it goes through, and how long its way is."""
        about, first = STEPS[step], self.folder / f"{step}-before"
        self.ready[step] = first
        if about.prepare is None:
            self.stages[step] = [None, _picture(self.place, self.folder / "new")]
        else:
            shutil.copytree(self.folder / "new", first)
            with self.place.open(first) as state:
                about.prepare(state)
            home = self._copy(step)
            self.stages[step] = [_picture(self.place, home)]
            with self.place.open(home) as state:
                for _ in about.stages(state):
                    self.stages[step].append(_picture(self.place, home))
        home, start = self._copy(step), time.monotonic()
        code, self.boundaries[step] = _command(self.place, home, step)
        self.seconds[step] = time.monotonic() - start
        assert code == 0, f"{step} fails when nobody kills it"
        self.largest[step] = max(path.stat().st_size for path in home.rglob("*") if path.is_file())

    def _copy(self, step: str) -> Path:
        home = self.folder / f"k{next(self._numbers)}" / "S"
        home.parent.mkdir()
        if self.ready[step].exists():
            shutil.copytree(self.ready[step], home)
        return home

    def _kill(self, step: str, kill: Kill) -> None:
        home = self._copy(step)
        code, _ = _command(self.place, home, step, kill)
        kind = (
            "at a boundary"
            if kill.at
            else "inside a write"
            if kill.bytes is not None
            else "at a random moment"
        )
        self.found[f"killed {kind}" if code < 0 else f"to be killed {kind}, but over before"] += 1
        self.found[f"{step}: killed"] += code < 0
        self.killed += code < 0
        where = f"{step} {kill}"
        try:
            self._look(step, home, where)
            if self.random.random() < 0.25:
                again = Kill(self.random.randint(1, self.boundaries[step]), self.random.random() < 0.5)
                self.found["killed again"] += _command(self.place, home, step, again)[0] < 0
                self._look(step, home, f"{where}, then {again}")
            self._go_on(step, home, where)
        except Exception as error:  # all of them are findings
            self._problem(f"{where}: {type(error).__name__}: {error}")
        else:
            shutil.rmtree(home.parent)

    def _look(self, step: str, home: Path, where: str) -> None:
        """At a copy: looking must not be what mends a state."""
        copy = home.parent / "look"
        if home.exists():
            shutil.copytree(home, copy)
        now, stages = _picture(self.place, copy), self.stages[step]
        if now not in stages:
            differ = min((_differences(now, stage) for stage in stages), key=len)
            self._problem(f"{where}: half a state; it differs from the nearest whole one in {differ}")
            return
        which = "before" if now == stages[0] else "after" if now == stages[-1] else "in between"
        self.found[f"{step}: left as {which}"] += 1
        if now is None:
            return
        with self.place.open(copy) as state:
            try:
                state.verify()
                self.found["verify passes"] += 1
            except UnlearnError as error:
                self.found["verify names leftovers"] += LEFTOVERS in str(error)
                if LEFTOVERS not in str(error):
                    self._problem(f"{where}: {error}")
        shutil.rmtree(copy)

    def _go_on(self, step: str, home: Path, where: str) -> None:
        """The same command again ends as if nothing had happened, and leaves nothing behind."""
        code, _ = _command(self.place, home, step)
        if code != 0 and not (code == 3 and step == "init"):
            self._problem(f"{where}: the same command again fails ({code})")
            return
        now, expected = _picture(self.place, home), self.stages[step][-1]
        if now != expected:
            self._problem(f"{where}: ends otherwise in {_differences(now, expected)}")
            return
        with self.place.open(home) as state:
            state.verify()
            allowed = {"state.sqlite", "state.sqlite-wal", "state.sqlite-shm", "worker.sqlite", "files"}
            left = {path.name for path in (*home.parent.iterdir(), *home.iterdir())} - allowed - {"S"}
            if left:
                self._problem(f"{where}: leaves {sorted(left)}")
                return
        self.found["the same command again ends as an uninterrupted one"] += 1

    def _problem(self, text: str) -> None:
        self.found["problems"] += 1
        self.problems.append(text)


def main(arguments: list[str]) -> int:
    """Kill commands on a state of BPR (or another model) on `tiny`, and print what was left."""
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
