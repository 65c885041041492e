"""The journal of a sweep, `trials.jsonl`: a line for every trial that has ended, written when it ends.

It is what `--resume` continues from, so it survives a kill at any moment: a line is on disk before the next trial is
counted, and half a line at the end is left out when it is read. Its first line says what the trials have in common; a
sweep with another original, other data or another objective is refused, because its scores would not compare.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import recbole
import torch
from tqdm import tqdm

from recbole_unlearn import __version__
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.tuning.space import Settings, identity
from recbole_unlearn.tuning.trial import Report, Shared

NAME = "trials.jsonl"
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"

Record = dict[str, Any]  # number, settings, state, error, node, reports


def sweep_digest(shared: Shared) -> str:
    """A digest of everything but a trial's own settings that its figures depend on."""
    config, objective = shared.config, shared.goal
    parts = {
        "versions": [__version__, recbole.__version__, torch.__version__],
        "method": shared.method.name,
        "settings": shared.values,
        "run": [config["seed"], shared.looks, shared.negatives, shared.threads, str(config["device"])],
        "objective": [
            objective.metric,
            objective.affected,
            objective.weight,
            objective.original,
            objective.target,
        ],
        "data": [shared.data.full.digest(), shared.data.retain.digest()],
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    for name, value in sorted(shared.original.state_dict.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


class Journal:
    """The trials that have ended, in memory and on disk."""

    def __init__(self, directory: Path, sweep: str, resume: bool) -> None:
        """Start a journal in ``directory``, or continue the one there; ``sweep`` is its digest."""
        self.path = directory / NAME
        self.records: dict[str, Record] = {}  # by the identity of their settings
        refuse_other(directory, resume)
        if self.path.exists():
            self._read(sweep)
        else:
            self._append({"sweep": sweep})

    def _read(self, sweep: str) -> None:
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UnlearnError(f"Cannot read {self.path}: {error}. Choose another --output_dir.") from error
        whole, _, rest = text.rpartition("\n")
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            head = lines[0]["sweep"] if lines else None
            records = {identity(record["settings"]): record for record in lines[1:]}
        except (ValueError, LookupError, TypeError) as error:
            raise UnlearnError(f"{self.path} is damaged; choose another --output_dir.") from error
        if head is not None and head != sweep:
            raise UnlearnError(
                f"The sweep in {self.path.parent} was made with another original, data or objective, so "
                "its figures do not compare. Repeat its command, or choose another --output_dir."
            )
        self.records = records
        if rest or head is None:  # killed while it wrote
            self._cut(len(whole.encode()) + 1 if whole else 0)
            if head is None:
                self._append({"sweep": sweep})

    def _cut(self, size: int) -> None:
        with self.path.open("r+b") as stream:
            stream.truncate(size)

    def finished(self) -> dict[str, Record]:
        """Trials that need not be done again; one that failed is tried again."""
        return {name: record for name, record in self.records.items() if record["state"] != FAILED}

    def add(self, record: Record) -> None:
        """Keep the record of a trial that has ended."""
        self.records[identity(record["settings"])] = record
        self._append(record)

    def _append(self, content: dict[str, Any]) -> None:
        line = json.dumps(content, allow_nan=False) + "\n"
        try:
            before = self.path.stat().st_size if self.path.exists() else 0
            with self.path.open("ab") as stream:
                try:
                    stream.write(line.encode())
                    stream.flush()
                    os.fsync(stream.fileno())
                except OSError:
                    os.truncate(self.path, before)  # a full disk may have taken half the line
                    raise
        except OSError as error:
            raise UnlearnError(
                f"Cannot write {self.path}: {error.strerror or error}. Finished trials are kept; free some space and "
                "continue with --resume."
            ) from error


def refuse_other(directory: Path, resume: bool) -> None:
    """Refuse to mix a new sweep with one that is there, and to resume where there is none."""
    there = (directory / NAME).exists()
    if there and not resume:
        raise UnlearnError(
            f"{directory} holds a sweep already: continue with --resume, or choose another --output_dir."
        )
    if resume and not there:
        raise UnlearnError(f"There is no sweep in {directory} to resume; give the --output_dir of one.")


class Keeper:
    """Follows trials: collects their reports, keeps them in the journal when they end, and shows progress."""

    def __init__(self, kept: Journal, known: dict[str, Record], bar: tqdm) -> None:
        self.journal, self.known, self.progress = kept, known, bar
        self.reports: dict[int, dict[int, Report]] = {}
        self.nodes: dict[int, str] = {}
        self.failed = 0
        self.top: float | None = None

    def reported(self, number: int, values: Settings, index: int, report: Report, node: str) -> None:
        """A trial has been measured."""
        self.reports.setdefault(number, {})[index] = report
        self.nodes[number] = node
        if self.top is None or report["score"] > self.top:
            self.top = report["score"]

    def ended(self, number: int, values: Settings, error: str | None) -> None:
        """A trial has ended; one that was known before is on disk already."""
        reports = [report for _, report in sorted(self.reports.pop(number, {}).items())]
        if identity(values) not in self.known:
            last = bool(reports) and reports[-1]["last"]
            state = FAILED if error is not None or not reports else FINISHED if last else STOPPED
            self.failed += state == FAILED
            self.journal.add(
                {
                    "number": number,
                    "settings": values,
                    "state": state,
                    "error": error,
                    "node": self.nodes.get(number),
                    "reports": reports,
                }
            )
        self.progress.set_postfix_str(
            ("" if self.top is None else f"best {self.top:.4f}")
            + (f", {self.failed} failed" if self.failed else "")
        )
        self.progress.update()
