"""`--forget=stream:K:REQUEST`: K requests, one after the other, each to the model that the one before left.

Every request is a run with its own folder, `OUTPUT_DIR/1` to K; with `--compare=retrain` each is measured against a
model that was retrained without it and all earlier ones.
"""

import dataclasses
from pathlib import Path
from typing import Any

from recbole.utils import get_local_time

from recbole_unlearn.data import Protocol
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import find_unlearned
from recbole_unlearn.quick_start import run_unlearn
from recbole_unlearn.report import write_comparison
from recbole_unlearn.results import RETRAINED, UNLEARNED, PhaseResult, RunResult
from recbole_unlearn.text import decimal, drawn


@dataclasses.dataclass(frozen=True)
class StreamResult:
    """The records of the runs, and the folder in which theirs are."""

    records: list[RunResult]
    output_dir: Path

    def __str__(self) -> str:
        """A line for each request: figures of the unlearned model and, in brackets, of the retrained one."""
        titles = {
            "NDCG@20": lambda one: one.metrics.get("ndcg@20"), "demotion": lambda one: one.demotion_rate,
            "attack": lambda one: one.figure("attack", "auc"), "RMIA": lambda one: one.figure("rmia", "auc"),
            "exposure@20": lambda one: one.figure("exposure@20"),
        }  # fmt: skip
        pairs = [[one.phases.get(name, PhaseResult()) for name in (UNLEARNED, RETRAINED)] for one in self.records]
        shown = {name: find for name, find in titles.items() if any(find(one) is not None for one, _ in pairs)}
        rows, gone = [], 0
        for place, (record, pair) in enumerate(zip(self.records, pairs, strict=True), 1):
            gone += record.forget.interactions or 0
            cells = [f"{decimal(find(pair[0]))} ({decimal(find(pair[1]))})" for find in shown.values()]
            rows.append([str(place), str(gone), *cells])
        return drawn(["request", "deleted in all", *shown], rows)


def run_stream(model: str | type | None = None, dataset: str | None = None, **arguments: Any) -> StreamResult:
    """Run a stream of requests; the arguments are those of :func:`~recbole_unlearn.quick_start.run_unlearn`."""
    values = {**(arguments.pop("config_dict", None) or {}), "save_unlearned": True}
    given = [(arguments.pop(key, None), values.pop(key, None)) for key in ("forget", "output_dir", "checkpoint")]
    forget, place, checkpoint = (one or other for one, other in given)
    protocol = Protocol.read(forget)
    if not protocol or protocol.kind != "stream" or not (request := Protocol.read(protocol.values[1])):
        raise UnlearnError("A stream is forget=stream:K:REQUEST, for example stream:4:random:5%.")
    number, records = int(protocol.values[0]), []
    directory = Path(place or Path("saved") / f"stream-{get_local_time()}")
    for place in range(1, number + 1):
        part, folder = request._replace(part=(place, number)), directory / str(place)
        outcome = run_unlearn(
            model, dataset, forget=part, output_dir=folder, checkpoint=checkpoint, config_dict=values, **arguments
        )
        records.append(outcome.record)
        checkpoint = find_unlearned(folder)
    write_comparison([directory / str(place) for place in range(1, number + 1)], directory / "comparison.html")
    return StreamResult(records, directory)
