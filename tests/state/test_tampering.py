"""A state against writers without its key, and against readers of what it prints.

Whatever a writer changes, `verify` finds it and no command signs an entry on top of it. What `status` and `ledger`
print, which need no key, does not single out a user.
"""

import contextlib
import json
import os
import re
import shutil
import sqlite3
import stat

import pandas as pd
import pytest

from recbole_unlearn import cli
from recbole_unlearn.state import LiveModel, database, deltas, init_state, open_state
from tests.conftest import tiny_rows, train_plain
from tests.parts import refused
from tests.state.conftest import PLAIN, done, items_of, some
from tests.state.crash_cases import looked_at, picture

TABLES = [*database.SEALED, "ledger"]
COMMANDS = {
    "run": lambda state: state.run(),
    "submit": lambda state: state.submit(some("u20", 1)),
    "rollback": lambda state: state.rollback("a"),
    "publish": lambda state: state.publish(),
    "retrain": lambda state: state.retrain(),
    "recommend": lambda state: state.recommend("u20"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(fresh, key_file, tmp_path_factory):
    """A state with requests of every status, and older copies of it."""
    home = tmp_path_factory.mktemp("rich")
    with open_state(shutil.copytree(fresh("BPR"), home / "S"), key_file) as state:
        done(state, p={"user_id": "u3"}, r=some("u8", 2))
        shutil.copytree(home / "S", home / "unpublished")
        state.rollback("r")
        state.publish()
        done(state, a=some("u9", 3), c=some("u10", 2))
        shutil.copytree(home / "S", home / "older")
        done(state, d=some("u11", 2))
        state.submit({"user_id": "u12"}, id="b")
        state.verify()
    return home


@contextlib.contextmanager
def writer(folder):
    """A connection of someone who has the file and not the key, to whom no constraint applies."""
    with contextlib.closing(sqlite3.connect(folder / "state.sqlite", isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        yield connection.execute
        for _, text in triggers:  # as they were, so that the schema does not give the change away
            connection.execute(text)


def other(value):
    """Another value of the same kind."""
    if isinstance(value, bytes):
        return value[16:] if value else bytes(16)
    return f"{value}x" if isinstance(value, str) else (value or 0) + 100


def row_changes(execute, table, older):
    """By name, statements that change a table: every cell, and rows that go, come, and are old ones."""
    columns = [row[1] for row in execute(f"PRAGMA table_info({table})")]
    rows = execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
    marks, key = ", ".join("?" * len(columns)), columns[0]
    for place, column in enumerate(columns):
        for row in rows:
            change = f"UPDATE {table} SET {column} = ? WHERE {key} = ?"
            yield f"{column} of {row[0]}", [(change, (other(row[place]), row[0]))]
    for row in rows:
        yield f"without {row[0]}", [(f"DELETE FROM {table} WHERE {key} = ?", (row[0],))]
    unique = {"number": 99, "id": "new", "key": "new", "only_one": 2, "name": "new"}
    added = [unique.get(column, cell) for column, cell in zip(columns, rows[-1], strict=True)]
    yield "one more", [(f"INSERT INTO {table} VALUES ({marks})", added)]
    with contextlib.closing(sqlite3.connect(older / "state.sqlite")) as old:
        before = old.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
    if before != rows:
        insert = f"INSERT INTO {table} VALUES ({marks})"
        yield "an old copy", [(f"DELETE FROM {table}", ()), *((insert, row) for row in before)]


def _verified_and(command, folder, key_file):
    with open_state(folder, key_file) as state:
        assert state.fault()
        command(state)


def is_stopped(folder, key_file, commands=("run",)):
    """Whether the state is not opened, or `verify` finds a fault and commands are refused before they sign."""

    def entries():
        with contextlib.closing(sqlite3.connect(folder / "state.sqlite")) as reader:
            return reader.execute("SELECT count(*) FROM ledger").fetchone()

    before = entries()
    for name in commands:
        refused("", _verified_and, COMMANDS[name], folder, key_file)
    return entries() == before


@pytest.mark.parametrize("table", TABLES)
def test_every_change_of_a_table_is_found_and_stops_the_worker(folders, key_file, tmp_path, table):
    with writer(folders / "S") as execute:
        changes = dict(row_changes(execute, table, folders / "older"))
    assert len(changes) >= 2 + 2 * (table != "base")
    for name, statements in changes.items():
        folder = shutil.copytree(folders / "S", tmp_path / "S")
        with writer(folder) as execute:
            for statement, values in statements:
                execute(statement, values)
        assert is_stopped(folder, key_file), name
        shutil.rmtree(folder)


@pytest.mark.parametrize("statement", [
    "CREATE TRIGGER t AFTER INSERT ON changes BEGIN DELETE FROM changes; END",
    "CREATE TRIGGER t AFTER UPDATE ON requests BEGIN UPDATE requests SET asked = x''; END",
    "CREATE VIEW v AS SELECT * FROM requests",
    "ALTER TABLE requests RENAME TO hidden; CREATE VIEW requests AS SELECT * FROM hidden WHERE id != 'b'",
    "CREATE TABLE more (x)",
    "ALTER TABLE requests ADD COLUMN more TEXT",
    "DROP INDEX requests_by_digest",
    "DROP TRIGGER ledger_is_whole",
    "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE name = 'base'",
])  # fmt: skip
def test_another_schema_is_found(folders, key_file, tmp_path, statement):
    folder = shutil.copytree(folders / "S", tmp_path / "S")
    with contextlib.closing(sqlite3.connect(folder / "state.sqlite", isolation_level=None)) as connection:
        connection.executescript(statement)
    assert is_stopped(folder, key_file, COMMANDS)


def test_every_change_of_a_file_is_found(folders, key_file, tmp_path):
    with open_state(folders / "S", key_file) as state:
        names = sorted(state.core.named_files())
    old = [path.read_bytes() for path in sorted((folders / "unpublished" / "files").iterdir())]
    for place, name in enumerate(names):
        content = (folders / "S" / "files" / name).read_bytes()
        swapped = (folders / "S" / "files" / names[place - 1]).read_bytes()
        for new in {content + b"x", content[:-1] or b"x", swapped, None, *old} - {content}:
            folder = shutil.copytree(folders / "S", tmp_path / "S")
            path = folder / "files" / name
            path.unlink() if new is None else path.write_bytes(new)
            with open_state(folder, key_file) as state:
                assert name in state.fault()
            assert is_stopped(folder, key_file, ["run"] if not name.endswith(".txt") else ["publish"]), name
            shutil.rmtree(folder)
    folder = shutil.copytree(folders / "S", tmp_path / "S")
    (folder / "files" / "more").write_bytes(b"x")
    with open_state(folder, key_file) as state:
        refused("belong to nothing", state.verify)


def test_a_deletion_is_neither_forged_nor_undone(folders, key_file, tiny_path, tmp_path):
    """Nothing is asked for, so that all would stay; and the data and the model of before a publication."""
    forged, undone = (shutil.copytree(folders / "S", tmp_path / name) for name in ("forged", "undone"))
    with writer(forged) as execute:
        execute("UPDATE requests SET asked = x'', suppressed = x'' WHERE status = 'pending'")
    for path in (folders / "unpublished" / "files").iterdir():
        shutil.copy(path, undone / "files")
    with writer(undone) as execute:
        execute("ATTACH ? AS old", (str(folders / "unpublished" / "state.sqlite"),))
        for table in ("base", "changes", "requests"):
            execute(f"DELETE FROM main.{table}")
            execute(f"INSERT INTO main.{table} SELECT * FROM old.{table}")
    for folder in (forged, undone):
        assert is_stopped(folder, key_file, COMMANDS)
        with open_state(folder, key_file) as state:
            refused("does not fit its ledger", state.check, tiny_path / "tiny")
            refused("does not fit its ledger", state.export, tmp_path / "out")


def test_a_change_while_the_worker_works_is_found_before_it_signs(folders, key_file, tmp_path, monkeypatch):
    """Before a request is read, and while it is carried out; when all is as it was, the same process goes on."""
    folder, forget = shutil.copytree(folders / "S", tmp_path / "S"), LiveModel.forget
    asked = "UPDATE requests SET asked = ? WHERE id = 'b'"
    with open_state(folder, key_file) as state:
        _, before = state.model, state.ledger()
        content = state.core.database.value("SELECT asked FROM requests WHERE id = 'b'")

        def attacked(self, numbers):
            with writer(folder) as execute:
                execute(asked, (bytes(16),))
            return forget(self, numbers)

        with writer(folder) as execute:
            execute(asked, (b"",))
        refused("the request b is not as the ledger left it", state.run)
        with writer(folder) as execute:
            execute(asked, (content,))
        with monkeypatch.context() as patch:
            patch.setattr(LiveModel, "forget", attacked)
            refused("the request b is not as the ledger left it", state.run)
        with writer(folder) as execute:
            execute(asked, (content,))
        assert (state.ledger(), [receipt.status for receipt in state.run()]) == (before, ["done"])
        state.verify()


def test_a_file_that_is_swapped_after_it_was_checked_is_not_read(folders, key_file, tmp_path, monkeypatch):
    folder, read = shutil.copytree(folders / "S", tmp_path / "S"), deltas.Store.read

    def swapped(self, name):
        content = read(self, name)
        (self.folder / name).write_bytes(b"x")
        return content

    expected = looked_at(folders / "S", key_file)
    with open_state(folder, key_file) as state, monkeypatch.context() as patch:
        patch.setattr(deltas.Store, "read", swapped)
        assert len(state.core.live.index) > 0
        patch.undo()
        refused("not the file that was written", state.verify)
        shutil.rmtree(folder / "files")
        shutil.copytree(folders / "S" / "files", folder / "files")
        assert picture(state) == expected


def test_a_ledger_without_its_end_is_found_and_an_old_copy_of_all_by_its_head(folders, key_file, tmp_path):
    with open_state(folders / "S", key_file) as state, open_state(folders / "older", key_file) as old:
        head = state.status().head
        state.verify(head)
        old.verify(old.status().head)
        refused("cut off", old.verify, head)
    folder = shutil.copytree(folders / "S", tmp_path / "S")
    with writer(folder) as execute:
        execute("DELETE FROM ledger WHERE number = (SELECT max(number) FROM ledger)")
    assert is_stopped(folder, key_file, COMMANDS)


def test_digests_that_are_printed_need_the_key(checkpoints, tiny_path, key_file, tmp_path):
    """Two states of the same model with the same request, and other keys: no digest is the same."""
    other_key = tmp_path / "key"
    other_key.write_text("f" * 64)
    seen = []
    for name, key in (("a", key_file), ("b", other_key)):
        with init_state(tmp_path / name, checkpoints("BPR"), hash_key=key, data_path=str(tiny_path)) as state:
            done(state, one=some("u3", 2))
            state.publish()
            entries = [json.loads(line) for line in state.ledger().splitlines()]
            texts = [path.name for path in (tmp_path / name / "files").iterdir()]
            texts += [state.export(tmp_path / f"{name}-out").fingerprint]
            for entry in entries:
                texts += [entry["link"], *entry["seals"].values()]
                texts += [entry[key] for key in ("request", "before", "after") if key in entry]
        seen.append(set(texts))
    assert len(seen[0]) > 15
    assert not seen[0] & seen[1]


def test_printed_sizes_fit_ten_users_and_figures_have_steps(make_state, key_file, capsys):
    state = make_state()
    train, counts = state.core.live.index, {f"u{n}": 0 for n in range(40)}
    for user in state.core.live.base.splits.train.field2id_token["user_id"][train.ids["user"]]:
        counts[user] += 1
    for user in ("u3", "u8", "u9"):
        done(state, **{user: {"user_id": user}})
    state.submit(some("u10", 3), id="few")
    shown = set(map(tuple, state.status().requests[["interactions_up_to", "users_up_to"]].to_numpy().tolist()))
    steps = [0, 1, 2, 5, 10, 20, 50, 100]
    for size, users in shown:
        least = steps[steps.index(size) - 1] + 1
        assert sum(least <= count for count in counts.values()) >= 10
        assert users == 1
    state.publish()
    folder, exact = state.core.folder, {"interactions", "held_out", "users", "items"}
    rows = state.core.database.rows("SELECT * FROM requests WHERE status = 'published'")
    assert {row[name] for row in rows for name in exact} == {None}
    for line in state.ledger().splitlines():
        entry = json.loads(line)
        assert entry["what"] == "taken under care" or not exact & entry.keys()
        drift = entry["spent"]["drift"]
        assert drift in (round(drift, 2), float(f"{drift:.0e}"))
        assert (1000 * entry["spent"]["deleted"]) % 5 == pytest.approx(0.0)
        assert set(entry.get("measures", {})) <= {"seconds"}
    assert cli.main(["requests", "status", str(folder)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"few +pending +\d{4}-\d\d-\d\d( +–){4}\n", text)
    assert f"Deleted since the model was trained: {100 * state.core.database.spent().rounded().deleted:.1f}%" in text


def test_a_state_is_private(checkpoints, tiny_path, key_file, tmp_path, monkeypatch):
    """Also the log of its database; wider permissions are taken away, or the state is refused."""

    def wide():
        found = [folder, *folder.rglob("*")]
        return {path.name: oct(path.stat().st_mode) for path in found if path.stat().st_mode & 0o077}

    folder, before = tmp_path / "S", os.umask(0)
    try:
        with init_state(folder, checkpoints("BPR"), hash_key=key_file, data_path=str(tiny_path)) as state:
            done(state, some("u3", 2))
            assert (folder / "state.sqlite-wal").exists()
            assert wide() == {}
            state.publish()
            assert wide() == {}
    finally:
        os.umask(before)
    for path in (folder, *folder.rglob("*")):
        path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o044)
    with open_state(folder, key_file) as state:
        assert wide() == {}
        state.verify()
    folder.chmod(0o755)
    monkeypatch.setattr(type(folder), "chmod", lambda *args: (_ for _ in ()).throw(PermissionError(1, "not yours")))
    refused("must be private, and its mode cannot be changed: not yours", open_state, folder, key_file)


@pytest.fixture(scope="module")
def by_number(checkpoints, key_file, tmp_path_factory):
    """A state whose users and items are numbers, as in ml-100k."""
    home = tmp_path_factory.mktemp("numbers")
    (home / "data" / "n").mkdir(parents=True)
    lines = [f"{user[1:]}\t{item[1:]}\t{rating}\t{time}" for user, item, rating, time in tiny_rows()]
    head = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
    (home / "data" / "n" / "n.inter").write_text("\n".join([head, *lines]) + "\n")
    values = {**PLAIN, "epochs": 1, "data_path": str(home / "data")}
    checkpoint = train_plain("BPR", home / "plain", dataset="n", **values)
    init_state(home / "S", checkpoint, hash_key=key_file, data_path=values["data_path"]).close()
    return home / "S"


@pytest.mark.parametrize("published", [False, True])
def test_check_reads_tokens_as_requests_do_and_knows_whole_persons(copied, by_number, tmp_path, published):
    state, user, item = copied(by_number), 3, int(items_of("u3")[0][1:])
    state.submit(pd.DataFrame({"user_id": [float(user), 8.0], "item_id": [float(item), None]}))
    if published:
        state.run()
        state.publish()
    frame = pd.DataFrame({"user_id": [user, 5], "item_id": [item, item]})
    gaps = pd.DataFrame({"user_id": [user, None, 5], "item_id": [item, item, item]})
    frame.astype(float).to_parquet(tmp_path / "floats.parquet")
    gaps.to_parquet(tmp_path / "gaps.parquet")
    gaps.to_csv(tmp_path / "gaps.csv", index=False)
    (tmp_path / "spaces.csv").write_text(f"user_id,item_id\n {user} ,\t{item} \n5,{item}\n")
    (tmp_path / "person.tsv").write_text("user_id\titem_id\n8\tnever-there-before\n5\t8\n")
    names = ["floats.parquet", "gaps.csv", "gaps.parquet", "person.tsv", "spaces.csv"]
    assert state.check(tmp_path) == dict.fromkeys(names, 1)
    if not published:
        assert state.recommend("8").empty  # from the submission on
