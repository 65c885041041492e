"""Commands that run beside the tests, one after the other: tests take one processor, and CI has two.

A module of tests lists its commands (:class:`Beside`). Those whose tests are to be run are started together with the
first test of the session, in one shell, and a test waits for the end of its own.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_ALL: list[Beside] = []


class Beside:
    """A command that a test waits for, in a directory of its own.

    Args:
        test: who waits for it: `test_examples.py::test_from_python`, without parameters, or a whole `test_site.py`.
        command: what is run; FOLDER in it becomes the directory.
        prepare: called with the directory before.
        environment: variables beside those of the tests, with FOLDER likewise.

    """

    def __init__(
        self, test: str, command: list[str], prepare: Callable[[Path], object] = lambda folder: None,
        **environment: str,
    ) -> None:  # fmt: skip
        self.test, self.command, self.prepare, self.environment = test, command, prepare, environment
        self.folder = Path()
        self.process: subprocess.Popen | None = None
        _ALL.append(self)

    def line(self) -> str:
        """What the shell has to do: the exit code is written when all else is."""
        words = ["env", *(f"{name}={value}" for name, value in self.environment.items()), *self.command]
        command = shlex.join(word.replace("FOLDER", str(self.folder)) for word in words)
        inside = f"cd {shlex.quote(str(self.folder))} && {command} > said 2> failed"
        return f"({inside}; echo $? > ended; mv ended code)"

    def wait(self) -> str:
        """What the command printed, once it has ended; a failure with what it said."""
        assert self.process is not None
        code = self.folder / "code"
        while not code.exists() and self.process.poll() is None:
            time.sleep(0.05)
        assert code.exists(), "the commands beside the tests were stopped"
        assert code.read_text().strip() == "0", (self.folder / "failed").read_text()[-3000:]
        return (self.folder / "said").read_text()


@contextlib.contextmanager
def running(items: list[pytest.Item], new_folder: Callable[[str], Path]) -> Iterator[None]:
    """Run the commands of the tests among ``items``."""
    tests = {item.nodeid.split("[")[0] for item in items}
    names = tests | {test.split("::")[0] for test in tests}
    wanted = [job for job in _ALL if any(name.endswith(job.test) for name in names)]
    if not wanted:
        yield
        return
    for job in wanted:
        job.folder = new_folder(job.test.rpartition("::")[2].removesuffix(".py"))
        job.prepare(job.folder)
    given = os.environ | {
        "OMP_NUM_THREADS": "1", "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    lines = "\n".join(job.line() for job in wanted)
    process = subprocess.Popen(["bash", "-c", lines], env=given, start_new_session=True)
    for job in wanted:
        job.process = process
    try:
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
