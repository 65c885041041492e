"""The command line of a state: `recbole-unlearn requests COMMAND STATE ...`.

Exit codes: 0; 1 when a request failed, `verify` found something that does not fit, or `check` found something
deleted; 2 when the input has to be corrected; 130 after Ctrl-C and 143 after SIGTERM. `run --watch` is meant to be
stopped: it finishes the request at hand and ends with 0 or 1.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.inputs import shown
from recbole_unlearn.log import exit_code, saying, stopping, uninterrupted
from recbole_unlearn.state.database import Database
from recbole_unlearn.text import counted, width, wrapped

if TYPE_CHECKING:
    from recbole_unlearn.state import Receipt, State

Parse = Callable[[Sequence[str]], dict[str, Any]]

ABOUT = (
    "Deletion requests on a live model: a state directory keeps the model, its data, a queue and a ledger."
)
EXAMPLES = """\
examples:
  recbole-unlearn requests init S --checkpoint=saved/BPR-Nov-16-2026_02-03-04.pth
  recbole-unlearn requests submit S requests.csv --id=T-1041 --deadline=30d
  recbole-unlearn requests run S
  recbole-unlearn requests status S
  recbole-unlearn requests publish S

`recbole-unlearn requests COMMAND --help` says more; docs/requests.md has it all, with the output of an example.
"""
_POLL = 0.2  # seconds between two looks at the queue


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise UnlearnError(f"{message[:1].upper()}{message[1:]}. `{self.prog} --help` explains.")


def main(arguments: Sequence[str], parse: Parse, class_of: Callable[[str], Any]) -> int:
    """Run a command; returns the exit code.

    ``parse`` reads settings as `--key=value`, and ``class_of`` imports the class that package.module:Class names.
    """
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 0
    try:
        given, rest = parser.parse_known_args(arguments)
    except SystemExit as end:  # --help
        return int(end.code or 0)
    if not hasattr(given, "do"):
        parser.error("no command is given")
    if rest and given.command != "init":
        parser.error(f"{given.command} does not know {shown(rest[0])}")
    if given.model is not None:
        given.model = class_of(given.model)
    given.settings = rest
    given.parse = parse
    with stopping(), saying("the state is as its last finished step left it."):
        code: int = given.do(given)
    return code


def _parser() -> _Parser:
    prog = "recbole-unlearn requests"
    style: Any = lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=width())  # noqa: E731
    parser = _Parser(prog=prog, description=ABOUT, epilog=EXAMPLES, formatter_class=style, allow_abbrev=False)
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", parser_class=_Parser
    )

    def command(name: str, do: Callable[[Any], int], help: str, more: str = "") -> argparse.ArgumentParser:
        added = commands.add_parser(
            name, help=help, description=wrapped(f"{help[:1].upper()}{help[1:]}. {more}".strip()),
            formatter_class=style, allow_abbrev=False,
        )  # fmt: skip
        added.add_argument("state", metavar="STATE", help="the state directory")
        added.add_argument(
            "--hash_key", metavar="FILE",
            help="the key of the hashes; RECBOLE_UNLEARN_KEY or ~/.config/recbole_unlearn/key when not given",
        )  # fmt: skip
        added.add_argument(
            "--model", metavar="package.module:Class", help="the class of the model, where it is your own"
        )
        added.set_defaults(do=do)
        return added

    one = command(
        "init", _init, "take a trained model and its data under care",
        "Further settings of the method are given as --key=value; `recbole-unlearn --help` lists those of obliviate.",
    )  # fmt: skip
    one.add_argument(
        "--checkpoint", required=True, metavar="FILE", help="of RecBole, or of an earlier run's output"
    )
    one.add_argument("--data_path", metavar="DIR", help="where the data is, if not where RecBole looks")

    one = command(
        "submit", _submit, "check a request and put it into the queue",
        "From now on what it asks for is not recommended any more. The first word that is printed is its id. The "
        "same request a second time is recognised.",
    )  # fmt: skip
    one.add_argument(
        "file", metavar="FILE", help="a CSV, TSV, JSON Lines or parquet file; docs/deletion-requests.md"
    )
    one.add_argument("--id", help="its name in the ledger, such as a ticket's number; never a person's name")
    one.add_argument("--deadline", metavar="SPAN", help="from now, such as 30d or 12h")
    one.add_argument(
        "--on_missing", choices=("error", "skip"), default="error",
        help="a row that names nothing in the data: refuse the request (error), or leave the row out (skip)",
    )  # fmt: skip

    one = command("run", _run, "carry out what is pending, in order")
    one.add_argument("--watch", action="store_true", help="stay, keep the model in memory, and do what comes")
    one.add_argument(
        "--window", metavar="SPAN", help="do what was submitted within this span, such as 1h, as one"
    )

    one = command("status", _status, "show requests, deadlines, drift, and whether retraining is due")
    one.add_argument("id", nargs="?", metavar="ID", help="of one request alone")
    one.add_argument("--html", metavar="FILE", help="write a page instead")

    one = command(
        "rollback", _rollback, "undo a request that is not published",
        "The model is exactly the one before it; later requests are done again on top.",
    )  # fmt: skip
    one.add_argument("id", metavar="ID")

    command("publish", _publish, "make what is done final, and destroy what could bring it back")
    one = command("verify", _verify, "check ledger, files, fingerprints and data")
    one.add_argument(
        "--head", metavar="LINK", help="a link of the ledger that you noted; finds one that was cut"
    )
    one = command(
        "check", _check, "tell whether data about to be trained on holds something that was deleted"
    )
    one.add_argument("dataset", metavar="DATASET", help="a folder, or a .inter, .csv, .tsv or .parquet file")
    one = command("export", _export, "write checkpoint, data and vectors for serving")
    one.add_argument("out", metavar="OUT", help="a new directory")
    one.add_argument(
        "--since", metavar="EXPORT", help="an earlier export: also write the vectors that moved since"
    )
    command("retrain", _retrain, "train the model again on what is retained, and publish that")
    command("ledger", _ledger, "print the ledger as JSON Lines")
    one = command("recommend", _recommend, "recommend items to a user, without anything that was deleted")
    one.add_argument("user", metavar="USER", help="the user's name in the data")
    one.add_argument("--k", type=int, default=10, metavar="N", help="how many (10)")
    return parser


@contextlib.contextmanager
def _opened(given: Any) -> Iterator[State]:
    from recbole_unlearn.log import without_warnings
    from recbole_unlearn.state import open_state

    with without_warnings(), open_state(given.state, given.hash_key, model=given.model) as state:
        yield state


def _init(given: Any) -> int:
    from recbole_unlearn.log import without_warnings
    from recbole_unlearn.state import init_state

    values = given.parse(given.settings)
    if given.data_path is not None:
        values["data_path"] = given.data_path
    with (
        without_warnings(),
        init_state(
            given.state, given.checkpoint, model=given.model, hash_key=given.hash_key, **values
        ) as state,
    ):
        seen = state.status()
    print(f"{shown(given.state)}: {seen.model} on {seen.dataset} is under care.")
    print(f"Ledger: 1 entry, head {seen.head}")
    return 0


def _submit(given: Any) -> int:
    with _opened(given) as state:
        newest = "SELECT max(number) FROM requests"
        before = state.core.database.value(newest)
        receipt = state.submit(given.file, given.id, given.deadline, given.on_missing)
        known = state.core.database.value(newest) == before
    print(f"{receipt.id} {receipt.status}: {_asks(receipt)}")
    if known:
        print("The same request was submitted before; nothing is queued a second time.")
    return 0


def _asks(receipt: Receipt) -> str:
    held_out = f", and {receipt.held_out} held out" if receipt.held_out else ""
    people = f"{counted(receipt.users, 'user')} and {counted(receipt.items, 'item')}"
    return f"{counted(receipt.interactions, 'training interaction')}{held_out}, of {people}"


def _run(given: Any) -> int:
    from recbole_unlearn.state import worker

    window = None if given.window is None else worker.span(given.window)
    seen: list[Receipt] = []
    with _opened(given) as state, worker.alone(state.core):
        try:
            for receipts in _batches(state, window, given.watch):
                seen += receipts
        except KeyboardInterrupt as stop:
            print(f"Stopped; {_summary(seen)}", file=sys.stderr)
            return _failed(seen) if given.watch else exit_code(stop)
    print(_summary(seen))
    return _failed(seen)


def _batches(state: State, window: Any, watch: bool) -> Iterator[list[Receipt]]:
    """Requests that were done together; each batch is finished and said before a signal stops the command."""
    from recbole_unlearn.state import worker

    core = state.core
    if watch or core.database.value("SELECT 1 FROM requests WHERE status = 'pending'"):
        _ = core.live  # takes longest, and may be stopped
    if watch:
        print("Waiting for requests; Ctrl-C stops.", file=sys.stderr)
    while True:
        with uninterrupted():
            done = worker.step(core, window)
            _say(done)
            yield done
        if not done:
            if not watch:
                return
            time.sleep(_POLL)


def _say(receipts: Iterable[Receipt]) -> None:
    for receipt in receipts:
        how = f"in {receipt.seconds:.2g} s" if receipt.status == "done" else receipt.why
        print(f"{receipt.id} {receipt.status}: {_asks(receipt)}; {how}", flush=True)


def _summary(receipts: Sequence[Receipt]) -> str:
    failed = _count_failed(receipts)
    return f"{counted(len(receipts) - failed, 'request')} done, {failed} failed."


def _count_failed(receipts: Iterable[Receipt]) -> int:
    return sum(receipt.status == "failed" for receipt in receipts)


def _failed(receipts: Iterable[Receipt]) -> int:
    return int(_count_failed(receipts) > 0)


def _status(given: Any) -> int:
    with contextlib.closing(Database(Path(given.state))) as database:
        if given.html is not None:
            from recbole_unlearn.state.page import write_status

            if given.id is not None:
                raise UnlearnError("--html is a page about all requests; leave the id out.")
            print(shown(write_status(database, Path(given.html))))
            return 0
        from recbole_unlearn.state.status import status_of

        print(status_of(database, shown(given.state), given.id))
    return 0


def _rollback(given: Any) -> int:
    with _opened(given) as state:
        again = state.rollback(given.id)
    print(f"{given.id} rolled back; {counted(len(again), 'other request')} done again on top.")
    _say(again)
    return _failed(again)


def _publish(given: Any) -> int:
    with _opened(given) as state:
        number = state.publish()
        head = state.status().head
    print(f"{counted(number, 'request')} published; what could bring them back is destroyed.")
    print(f"Ledger: head {head}; note it apart from the state, for `verify --head`.")
    return 0


def _verify(given: Any) -> int:
    with _opened(given) as state:
        problem = state.fault(given.head)
        seen = state.status()
    if problem:
        print(f"The state does not fit its ledger: {problem}.", file=sys.stderr)
        return 1
    print(
        f"All fits: {seen.entries} entries of the ledger, files, fingerprints, and no deleted pair in the data."
    )
    print(f"Ledger: head {seen.head}")
    return 0


def _check(given: Any) -> int:
    with _opened(given) as state:
        found = state.check(given.dataset)
    for name, number in found.items():
        print(f"{shown(name)}: {counted(number, 'deleted pair')}")
    return int(any(found.values()))


def _export(given: Any) -> int:
    with _opened(given) as state:
        done = state.export(given.out, since=given.since)
    print(f"{shown(done.folder)}: the model with the fingerprint {done.fingerprint}.")
    if done.delta_bytes is not None:
        print(f"The delta has {done.delta_bytes:,} bytes; all vectors have {done.whole_bytes or 0:,}.")
    return 0


def _retrain(given: Any) -> int:
    with _opened(given) as state:
        seconds = state.retrain()
    print(f"Trained again on what is retained, in {seconds:.1f} s; all that was done is published.")
    return 0


def _ledger(given: Any) -> int:
    from recbole_unlearn.state.status import ledger_lines

    with contextlib.closing(Database(Path(given.state))) as database:
        sys.stdout.writelines(ledger_lines(database))
    return 0


def _recommend(given: Any) -> int:
    with _opened(given) as state:
        found = state.recommend(given.user, given.k)
    print(found.to_string(index=False))
    return 0
