"""The command line of a state: `recbole-unlearn requests COMMAND STATE ...`.

Exit codes: 0; 1 when a request failed, `verify` found a fault, or `check` found a deleted pair; 2 when the input has
to be corrected; 3 when `submit` left lines out; 130 after Ctrl-C and 143 after SIGTERM. `run --watch` is meant to be
stopped: it finishes the current request and ends with 0 or 1.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.log import exit_code, saying, stopping, uninterrupted, without_warnings
from recbole_unlearn.state.database import REBUILT, RETRAINED, Database
from recbole_unlearn.state.status import lines_said, overview, status_json, status_text
from recbole_unlearn.text import counted, width, wrapped

if TYPE_CHECKING:  # imported by the commands that need the model
    from recbole_unlearn.state import Receipt, State

Parse = Callable[[Sequence[str]], dict[str, Any]]

ABOUT = "Deletion requests on a live model: a state directory keeps the model, its data, a queue and a ledger."
EXAMPLES = """\
examples:
  recbole-unlearn requests init S --checkpoint=saved/BPR-Nov-16-2026_02-03-04.pth
  recbole-unlearn requests submit S requests.csv --id=T-1041 --deadline=30d
  recbole-unlearn requests run S
  recbole-unlearn requests status S
  recbole-unlearn requests publish S

`recbole-unlearn requests COMMAND --help` says more; docs/requests.md has a complete example with its output.
"""
_POLL = 0.2  # seconds between two looks at the queue


class _Parser(argparse.ArgumentParser):
    """Errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UnlearnError(f"{message[:1].upper()}{message[1:]}. `{self.prog} --help` explains.")


def main(arguments: Sequence[str], parse: Parse, class_of: Callable[[str], Any]) -> int:
    """Run a command; returns the exit code.

    ``parse`` reads settings as `--key=value`, and ``class_of`` imports the class package.module:Class.
    """
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 0
    try:
        given, rest = parser.parse_known_args(arguments)
    except SystemExit as end:  # --help
        return int(end.code or 0)
    if given.command is None:
        parser.error("no command is given")
    if rest and given.command != "init":
        parser.error(f"{given.command} does not know {shown(rest[0])}")
    if given.model is not None:
        given.model = class_of(given.model)
    given.settings = parse(rest) if given.command == "init" else {}
    do = COMMANDS[given.command][0]
    with stopping(), saying("the state is as its last finished step left it."), without_warnings():
        if given.command == "init":
            return do(None, given) or 0
        if given.command in ("status", "receipt", "ledger"):  # which need no key
            with contextlib.closing(Database(Path(given.state))) as database:
                return do(database, given) or 0
        from recbole_unlearn.state.state import open_state

        with open_state(given.state, given.hash_key, model=given.model) as state:
            return do(state, given) or 0


def _parser() -> _Parser:
    style: Any = lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=width())  # noqa: E731
    parser = _Parser(
        prog="recbole-unlearn requests", description=ABOUT, epilog=EXAMPLES, formatter_class=style, allow_abbrev=False
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)
    for name, (_, help, more, own) in COMMANDS.items():
        text = wrapped(f"{help[:1].upper()}{help[1:]}. {more}".strip())
        command = commands.add_parser(name, help=help, description=text, formatter_class=style, allow_abbrev=False)
        for spec, about, options in (*_SHARED, *own):
            flag, _, value = spec.partition(" ")
            given: dict[str, Any] = {"metavar": value or flag} if value or flag.isupper() else {}
            plain = flag if flag.startswith("-") else flag.lower()
            command.add_argument(plain, help=about, **given, **options)
    return parser


def _init(_: None, given: Any) -> None:
    from recbole_unlearn.files import key_place
    from recbole_unlearn.state.state import init_state

    if given.data_path is not None:
        given.settings["data_path"] = given.data_path
    key, model = given.hash_key, given.model
    with init_state(given.state, given.checkpoint, model=model, hash_key=key, **given.settings) as state:
        seen = state.status()
    print(f"{shown(given.state)}: new state of {seen.model} on {seen.dataset}.")
    print(f"Ledger: 1 entry, head {seen.head}")
    print(f"Key: {key_place(key)}. Back it up, apart from the state: it cannot be made again, and without it the")
    print("state can be neither worked on nor verified, and what was deleted neither suppressed nor found.")


def _submit(state: State, given: Any) -> int:
    if given.per is None:
        return _submit_one(state, given, given.file, given.id)
    if given.id is not None:
        raise UnlearnError("--per takes the ids from the file; leave --id out.")
    codes = set()
    for id, request in state.requests_in(given.file, given.per).items():
        try:
            codes.add(_submit_one(state, given, request, id))
        except UnlearnError as error:  # the others are submitted all the same
            print(f"{id} refused: {error}", file=sys.stderr)
            codes.add(2)
    return 2 if 2 in codes else max(codes)


def _submit_one(state: State, given: Any, request: Any, id: str | None) -> int:
    receipt = state.submit(request, id, given.deadline, given.dry_run)
    how = f"; {_how(receipt)} since {receipt.since[:16].replace('T', ' ')}" if receipt.since else ""
    print(f"{receipt.id} {receipt.status}: {_asks(receipt)}{how}")
    if receipt.same_as is not None:
        print(f"The same request was submitted before, as {receipt.same_as}; nothing is queued a second time.")
    if receipt.whole:
        return 0
    if receipt.lines is None:
        print(f"Of its lines, {lines_said(receipt._asdict())}.")
    else:
        queued, unknown, before = receipt.lines.counts()
        print(f"{counted(queued, receipt.lines.unit)} queued, {unknown} unknown, {before} deleted before.")
        print(*receipt.lines.others(), sep="\n")
    return 3


def _asks(receipt: Receipt) -> str:
    if receipt.interactions is None or receipt.users is None or receipt.items is None:
        return "how much it asked for is not kept"
    held_out = f", and {receipt.held_out} held out" if receipt.held_out else ""
    people = f"{counted(receipt.users, 'user')} and {counted(receipt.items, 'item')}"
    return f"{counted(receipt.interactions, 'training interaction')}{held_out}, of {people}"


def _how(receipt: Receipt) -> str:
    return "exact" if receipt.exact else "approximate"


def _run(state: State, given: Any) -> int:
    """Carry out requests; a signal waits until those that are carried out together are finished and printed."""
    from recbole_unlearn.state import worker
    from recbole_unlearn.state.context import span

    look = given.rebuild  # at the budget: at first, and whenever requests were carried out
    core, window = state.core, None if given.window is None else span(given.window)
    seen: list[Receipt] = []
    try:
        if given.watch or core.database.value("SELECT 1 FROM requests WHERE status = 'pending'"):
            _ = core.live  # takes longest, and may be interrupted
        if given.watch:
            print("Waiting for requests; Ctrl-C stops.", file=sys.stderr)
        while True:
            # Others can publish and undo between two requests.
            with worker.alone(core, math.inf if given.watch else None), uninterrupted():
                done = worker.step(core, window)
                _print(done)
                seen += done
            if done:
                look = given.rebuild
                time.sleep(worker.PAUSE)
            elif look and state.status().retraining_is_due:
                look = False
                print("The budget is spent.")
                _train(state, given)
            elif given.watch:
                look = False
                time.sleep(_POLL)
            else:
                break
    except KeyboardInterrupt as stop:
        print(f"Stopped; {_summary(seen)}", file=sys.stderr)
        return _failed(seen) if given.watch else exit_code(stop)
    print(_summary(seen))
    return _failed(seen)


def _print(receipts: Iterable[Receipt]) -> None:
    for receipt in receipts:
        how = f"in {receipt.seconds:.2g} s, {_how(receipt)}" if receipt.status == "done" else receipt.why
        print(f"{receipt.id} {receipt.status}: {_asks(receipt)}; {how}", flush=True)


def _summary(receipts: Sequence[Receipt]) -> str:
    failed = sum(receipt.status == "failed" for receipt in receipts)
    return f"{counted(len(receipts) - failed, 'request')} done, {failed} failed."


def _failed(receipts: Iterable[Receipt]) -> int:
    return int(any(receipt.status == "failed" for receipt in receipts))


def _status(database: Database, given: Any) -> int:
    seen = overview(database, given.id)
    print(status_json(seen) if given.json else status_text(seen, shown(given.state)))
    return int(seen.overdue > 0)


def _receipt(database: Database, given: Any) -> None:
    from recbole_unlearn.state import write_receipt

    print(*map(shown, write_receipt(database, given.id, Path(given.out))), sep="\n")


def _rollback(state: State, given: Any) -> int:
    again = state.rollback(given.id)
    print(f"{given.id} rolled back; {counted(len(again), 'other request')} carried out again.")
    _print(again)
    return _failed(again)


def _publish(state: State, given: Any) -> None:
    number = state.publish(given.older_than)
    print(f"{counted(number, 'request')} published; the data to undo them is destroyed.{_undoable(state)}")
    print(f"Ledger: head {state.status().head}; note it apart from the state, for `verify --head`.")


def _verify(state: State, given: Any) -> int:
    if problem := state.fault(given.head):
        print(f"The state does not fit its ledger: {problem}.", file=sys.stderr)
        return 1
    seen = state.status()
    print(f"No fault in {seen.entries} ledger entries, tables and files; no deleted pair in the data.")
    print(f"Ledger: head {seen.head}")
    return 0


def _check(state: State, given: Any) -> int:
    found = state.check(given.dataset)
    for name, number in found.items():
        print(f"{shown(name)}: {counted(number, 'deleted pair')}")
    return int(any(found.values()))


def _export(state: State, given: Any) -> None:
    done = state.export(given.out, since=given.since)
    print(f"{shown(done.folder)}: the model with the fingerprint {done.fingerprint}.")
    if done.delta is not None:
        print(f"The delta has {done.delta['bytes']:,} bytes; all vectors have {done.delta['whole_bytes']:,}.")


def _undoable(state: State) -> str:
    number = state.core.database.value("SELECT count(*) FROM requests WHERE status = 'done'")
    return f" {counted(number, 'younger request')} can still be undone." if number else ""


def _train(state: State, given: Any, what: str = REBUILT) -> None:
    """Train the model; what becomes final by that is said before."""
    _say_final(state, given, "pending")
    seconds = (state.rebuild if what == REBUILT else state.retrain)(given.older_than)
    _say_trained(state, what, "the retained data", seconds)


def _say_final(state: State, given: Any, also: str = "") -> None:
    from recbole_unlearn.state import publish

    found = publish.final(state.core, given.older_than)
    if found.requests or (also and found.pending):
        more = f", and {found.pending} {also}" if also else ""
        print(
            f"Final by this training: {counted(found.requests, 'request')} that can still be undone{more}.",
            flush=True,
        )


def _say_trained(state: State, what: str, data: str, seconds: float) -> None:
    how = "exact." if state.status().exact else "exact, before younger requests were carried out again."
    print(f"{what.capitalize()} on {data} in {seconds:.1f} s: {how}{_undoable(state)}", flush=True)


def _learn(state: State, given: Any) -> None:
    _say_final(state, given)
    done = state.learn(given.data, given.by, given.older_than)
    print(
        f"{counted(done.new, 'new interaction')}, {counted(done.users, 'new user')}, "
        f"{counted(done.items, 'new item')}; {done.known} known before, {done.deleted} left out as deleted or asked "
        f"for, {done.filtered} filtered by RecBole."
    )
    if done.seconds is None:
        print("The model stays as it is.")
    else:
        _say_trained(state, done.by, "all data", done.seconds)


def _adopt(state: State, given: Any) -> None:
    number = state.adopt(given.checkpoint, given.data_path)
    print(
        f"No deleted pair is in its data. It is the model of the state now; {counted(number, 'request')} published."
    )


_SHARED: list[tuple[str, str, dict[str, Any]]] = [
    ("STATE", "the state directory", {}),
    ("--hash_key FILE", "the key of the hashes; default RECBOLE_UNLEARN_KEY, or ~/.config/recbole_unlearn/key", {}),
    ("--model package.module:Class", "the class of the model, if it is your own", {}),
]  # fmt: skip
_AGE: tuple[str, str, dict[str, Any]] = (
    "--older_than SPAN", "make final what was submitted longer ago, such as 1d; what is younger can be undone", {}
)  # fmt: skip
# By command: its function, which returns the exit code or None for 0, help, more help, and arguments.
COMMANDS: dict[str, tuple[Callable[..., int | None], str, str, list[tuple[str, str, dict[str, Any]]]]] = {
    "init": (
        _init, "make a state of a trained model and its data",
        "Further settings of the method are given as --key=value; `recbole-unlearn --help` lists those of obliviate.",
        [
            ("--checkpoint FILE", "of RecBole, or of an earlier run's output", {"required": True}),
            ("--data_path DIR", "the folder of the data, if not RecBole's default", {}),
        ],
    ),
    "submit": (
        _submit, "check a request and put it into the queue",
        "From now on its pairs are not recommended any more. The first word printed is its id. Lines that are "
        "unknown, or were deleted before, are left out: their numbers are printed, and the exit code is 3. The same "
        "request a second time is recognized.",
        [
            ("FILE", "CSV, TSV, JSON Lines or parquet; docs/deletion-requests.md", {}),
            ("--id ID", "its name in the ledger, such as a ticket's number; never a person's name", {}),
            ("--per COLUMN", "a column of the file, such as ticket: one request for each of its values, its id", {}),
            ("--deadline WHEN", "from now, such as 30d or 12h, or a day such as 2026-12-01", {}),
            ("--dry-run", "only say what would be queued", {"action": "store_true"}),
        ],
    ),
    "run": (
        _run, "carry out pending requests, in order", "",
        [
            ("--watch", "keep the model in memory, and wait for requests", {"action": "store_true"}),
            ("--window SPAN", "carry out requests submitted within this span, such as 1h, as one", {}),
            ("--rebuild", "rebuild the model whenever the budget is spent", {"action": "store_true"}), _AGE,
        ],
    ),
    "status": (
        _status, "show requests, deadlines, drift, and whether the model is exact and retraining due", "",
        [
            ("ID", "of one request alone", {"nargs": "?"}),
            ("--json", "print JSON instead", {"action": "store_true"}),
        ],
    ),
    "receipt": (
        _receipt, "write a page and a JSON file about one request, for a data protection officer",
        "It names no user and no item.",
        [("ID", "of the request", {}), ("--out DIR", "where to, by default the current directory", {"default": "."})],
    ),
    "rollback": (
        _rollback, "undo a request that is not published",
        "The model before it is restored exactly; later requests are carried out again on top.",
        [("ID", "of the request", {})],
    ),
    "publish": (_publish, "make requests that are done final, and destroy the data to undo them", "", [_AGE]),
    "verify": (
        _verify, "check ledger, files, fingerprints and data", "",
        [("--head LINK", "a link of the ledger that you noted; finds a cut-off ledger", {})],
    ),
    "check": (
        _check, "count deleted pairs in data that a model is about to be trained on", "",
        [("DATASET", "a folder, or a .inter, .csv, .tsv or .parquet file", {})],
    ),
    "export": (
        _export, "write checkpoint, data and vectors for serving", "",
        [
            ("OUT", "a new directory", {}),
            ("--since EXPORT", "an earlier export: also write the vectors that moved since", {}),
        ],
    ),
    "rebuild": (
        _train, "make the model exact in seconds: train it on the retained data from their SVD, and publish it",
        "Carries out pending requests first. As exact as `retrain`, and much faster.", [_AGE],
    ),
    "retrain": (
        lambda state, given: _train(state, given, RETRAINED),
        "train the model again on the retained data, and publish it", "", [_AGE],
    ),
    "learn": (
        _learn, "add new interactions, users and items, train a model on all data, and publish it",
        "What was deleted or is asked for stays out. Without new interactions nothing happens.",
        [
            ("DATA", "a folder, or a .inter, .csv, .tsv or .parquet file, with the dataset's columns", {}),
            ("--by", "how to train; rebuild for models that it was measured to suit, else retrain",
             {"choices": ("rebuild", "retrain")}),
            _AGE,
        ],
    ),
    "adopt": (
        _adopt, "take a model that was trained elsewhere on new data, without what was deleted", "",
        [
            ("--checkpoint FILE", "of the same model class", {"required": True}),
            ("--data_path DIR", "the folder of its data, if not RecBole's default", {}),
        ],
    ),
    "ledger": (
        lambda database, given: print(database.ledger(), end=""),
        "print the ledger as JSON Lines", "", [],
    ),
    "recommend": (
        lambda state, given: print(state.recommend(given.user, given.k).to_string(index=False)),
        "recommend items to a user, without deleted pairs", "",
        [("USER", "the user's name in the data", {}), ("--k N", "how many (10)", {"type": int, "default": 10})],
    ),
}  # fmt: skip
