"""The journal of a sweep, `trials.jsonl`: a line for every trial that has ended, on disk before the next is counted.

`--resume` continues from it, so it has to survive a kill at any moment: each time, the whole file is replaced in one
step. Its first line has a digest of all that the trials have in common; a sweep with another original, other data,
another space or another objective is refused, because its scores would not compare.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import recbole
import torch
from tqdm import tqdm

from recbole_unlearn import __version__
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import write_bytes
from recbole_unlearn.settings import read_regular
from recbole_unlearn.text import decimal
from recbole_unlearn.training import state_digest
from recbole_unlearn.tuning.space import Settings, Space, identity
from recbole_unlearn.tuning.trial import Report, Shared

NAME = "trials.jsonl"
STATES = FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"

Record = dict[str, Any]  # number, settings, state, error, node, reports


def sweep_digest(shared: Shared, space: Space) -> str:
    """A digest of everything that a trial's figures depend on, other than its own settings."""
    config, goal = shared.config, shared.goal
    parts = {
        "versions": [__version__, recbole.__version__, torch.__version__],
        "method": shared.method.name,
        "settings": shared.values,
        "space": space.lines,
        "run": [config[key] for key in ("seed", "tune_looks", "demotion_negatives", "threads", "device")],
        "objective": [goal.metric, goal.affected, goal.weight, goal.original, goal.target],
        "data": [shared.data.full.digest(), shared.data.retain.digest()],
        "original": state_digest(shared.original.state_dict),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def refuse_other(directory: Path, resume: bool) -> None:
    """Refuse to mix a new sweep with the one in ``directory``, and to resume where there is none."""
    is_there = (directory / NAME).exists()
    if is_there and not resume:
        raise UnlearnError(
            f"{directory} holds a sweep already: continue with --resume, or choose another --output_dir."
        )
    if resume and not is_there:
        raise UnlearnError(f"There is no sweep in {directory} to resume; give the --output_dir of one.")


class Journal:
    """Keeps ended trials in memory and on disk."""

    def __init__(self, directory: Path, sweep: str) -> None:
        """Start a journal in ``directory``, or continue the one there; ``sweep`` is its digest."""
        self.path, self.sweep = directory / NAME, sweep
        self.records: dict[str, Record] = {}  # by the identity of their settings
        self.bar: tqdm | None = None
        if self.path.exists():
            self._read()
        else:
            self._write()
        # Trials that need not be done again; a failed trial is tried again.
        self.known = {name: record for name, record in self.records.items() if record["state"] != FAILED}

    def _read(self) -> None:
        try:
            text = read_regular(self.path).decode()
            lines = [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]
            head = lines[0]["sweep"] if lines else self.sweep
            self.records = {identity(record["settings"]): record for record in lines[1:]}
        except (OSError, ValueError, LookupError, TypeError, UnlearnError) as error:
            raise UnlearnError(f"{self.path} is damaged; choose another --output_dir.") from error
        if head != self.sweep:
            raise UnlearnError(
                f"The sweep in {self.path.parent} was made with another original, data, space or objective, so "
                "its figures do not compare. Repeat its command, or choose another --output_dir."
            )

    def _write(self) -> None:
        lines = [{"sweep": self.sweep}, *self.records.values()]
        content = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        try:
            write_bytes(self.path, content.encode())
        except UnlearnError as error:
            raise UnlearnError(f"{error} Finished trials are kept; continue with --resume.") from error

    def ended(
        self, number: int | None, values: Settings, reports: list[Report], node: str | None, error: str | None
    ) -> None:
        """Keep a trial that has ended, by default under the next number; one that was known is on disk already."""
        if (name := identity(values)) not in self.known:
            if number is None:
                number = self.records[name]["number"] if name in self.records else len(self.records)
            state = FAILED if error is not None or not reports else FINISHED if reports[-1]["last"] else STOPPED
            record = {"number": number, "settings": values, "state": state, "error": error}
            self.records[name] = {**record, "node": node, "reports": reports}
            self._write()
        if self.bar is not None:
            records = self.records.values()
            best = max((report["score"] for record in records for report in record["reports"]), default=None)
            failed = sum(record["state"] == FAILED for record in records)
            self.bar.set_postfix_str(f"best {decimal(best)}" + (f", {failed} failed" if failed else ""))
            self.bar.update()
