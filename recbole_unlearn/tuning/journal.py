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
        "run": [config["seed"], shared.looks, shared.negatives, shared.threads, str(config["device"])],
        "objective": [goal.metric, goal.affected, goal.weight, goal.original, goal.target],
        "data": [shared.data.full.digest(), shared.data.retain.digest()],
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    for name, value in sorted(shared.original.state_dict.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


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
    """Follows trials: collects their reports, and keeps ended trials in memory and on disk."""

    def __init__(self, directory: Path, sweep: str, resume: bool) -> None:
        """Start a journal in ``directory``, or continue the one there; ``sweep`` is its digest."""
        refuse_other(directory, resume)
        self.path, self.sweep = directory / NAME, sweep
        self.records: dict[str, Record] = {}  # by the identity of their settings
        self.bar: tqdm | None = None
        self._reports: dict[int, dict[int, Report]] = {}
        self._nodes: dict[int, str] = {}
        self._failed, self._top = 0, -float("inf")
        if self.path.exists():
            self._read()
        else:
            self._write()
        # Trials that need not be done again; a failed trial is tried again.
        self.known = {name: record for name, record in self.records.items() if record["state"] != FAILED}

    def _read(self) -> None:
        try:
            text = self.path.read_text(encoding="utf-8")
            lines = [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]
            head = lines[0]["sweep"] if lines else self.sweep
            self.records = {identity(record["settings"]): record for record in lines[1:]}
        except (OSError, ValueError, LookupError, TypeError) as error:
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

    def reported(self, number: int, index: int, report: Report, node: str) -> None:
        """Note a report of a trial; ``index`` gives their order, and one that comes again counts once."""
        self._reports.setdefault(number, {})[index] = report
        self._nodes[number] = node
        self._top = max(self._top, report["score"])

    def ended(self, number: int, values: Settings, error: str | None) -> None:
        """Keep a trial that has ended; one that was known before is on disk already."""
        reports = [report for _, report in sorted(self._reports.pop(number, {}).items())]
        if (name := identity(values)) not in self.known:
            is_last = bool(reports) and reports[-1]["last"]
            state = FAILED if error is not None or not reports else FINISHED if is_last else STOPPED
            self._failed += state == FAILED
            record = {"number": number, "settings": values, "state": state, "error": error}
            self.records[name] = {**record, "node": self._nodes.get(number), "reports": reports}
            self._write()
        if self.bar is not None:
            top = f"best {self._top:.4f}" if self._top > -float("inf") else ""
            self.bar.set_postfix_str(top + (f", {self._failed} failed" if self._failed else ""))
            self.bar.update()
