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

import yaml

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.log import exit_code, saying, stopping, uninterrupted, without_warnings
from recbole_unlearn.state.database import REBUILT, RETRAINED, Database
from recbole_unlearn.state.status import lines_said, overview, status_json, status_text
from recbole_unlearn.text import counted, properties_dir, width, wrapped

if TYPE_CHECKING:  # imported by the commands that need the model
    from recbole_unlearn.state import Receipt, State

Parse = Callable[[Sequence[str]], dict[str, Any]]

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
    do = COMMANDS[given.command]
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
    said = yaml.safe_load((properties_dir() / "requests.yaml").read_text("utf-8"))
    parser = _Parser(
        prog="recbole-unlearn requests", description=said["about"], epilog=said["examples"], formatter_class=style,
        allow_abbrev=False,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)
    for name, own in said["commands"].items():
        help = own["help"]
        text = wrapped(f"{help[:1].upper()}{help[1:]}. {own.get('more', '')}".strip())
        command = commands.add_parser(name, help=help, description=text, formatter_class=style, allow_abbrev=False)
        for spec, about in {**said["shared"], **own.get("arguments", {})}.items():
            flag, _, value = spec.partition(" ")
            given = {"help": about} if isinstance(about, str) else about
            given |= {"metavar": value or flag} if value or flag.isupper() else {}
            given |= {"type": int} if isinstance(given.get("default"), int) else {}
            command.add_argument(flag if flag.startswith("-") else flag.lower(), **given)
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
    if not receipt.unknown_up_to and not receipt.deleted_before_up_to:
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
                _rebuild(state, given)
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


def _rebuild(state: State, given: Any) -> None:
    _say_final(state, given, "pending")
    _say_trained(state, REBUILT, "the retained data", state.rebuild(given.older_than))


def _retrain(state: State, given: Any) -> None:
    _say_final(state, given, "pending")
    _say_trained(state, RETRAINED, "the retained data", state.retrain(given.older_than))


def _say_final(state: State, given: Any, also: str = "", when: str = "Final by this training") -> None:
    """Say before a training what becomes final by it."""
    from recbole_unlearn.state import publish

    found = publish.final(state.core, given.older_than)
    if found.requests or (also and found.pending):
        more = f", and {found.pending} {also}" if also else ""
        print(f"{when}: {counted(found.requests, 'request')} that can still be undone{more}.", flush=True)


def _say_trained(state: State, what: str, data: str, seconds: float) -> None:
    how = "exact." if state.status().exact else "exact, before younger requests were carried out again."
    print(f"{what.capitalize()} on {data} in {seconds:.1f} s: {how}{_undoable(state)}", flush=True)


def _learn(state: State, given: Any) -> None:
    _say_final(state, given, when="Final if anything is new")
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


def _ledger(database: Database, given: Any) -> None:
    print(database.ledger(), end="")


def _recommend(state: State, given: Any) -> None:
    print(state.recommend(given.user, given.k).to_string(index=False))


# Each returns the exit code, or None for 0; their help and arguments are in properties/requests.yaml.
COMMANDS: dict[str, Callable[..., int | None]] = {
    "init": _init, "submit": _submit, "run": _run, "status": _status, "receipt": _receipt, "rollback": _rollback,
    "publish": _publish, "verify": _verify, "check": _check, "export": _export, "rebuild": _rebuild,
    "retrain": _retrain, "learn": _learn, "adopt": _adopt, "ledger": _ledger, "recommend": _recommend,
}  # fmt: skip
