"""Full disks, disks that cannot be written to, several processes, kills: one line, and the state is as it was."""

import ctypes
import errno
import fcntl
import itertools
import os
import resource
import shutil
import sqlite3
import sys
from unittest import mock

import pytest
import torch

from recbole_unlearn.cli import main
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.state import State, deltas, init_state, open_state, submit, worker
from tests.conftest import tiny_rows
from tests.parts import refused
from tests.state.conftest import done, items_of, some
from tests.state.crash_cases import Campaign, forked, looked_at, picture

WORK = {
    "run": State.run, "rollback": lambda state: state.rollback("a"), "publish": State.publish,
    "rebuild": State.rebuild, "retrain": State.retrain,
}  # fmt: skip
COMMANDS = {**WORK, "submit": lambda state: state.submit({"item_id": "i7"}, id="c")}


@pytest.mark.parametrize("command", WORK)
def test_a_full_disk_leaves_a_whole_state(copied, busy_folder, key_file, monkeypatch, command):
    state, expected = copied(busy_folder), copied(busy_folder, "expected")
    folder = state.core.folder
    WORK[command](expected)
    assert picture(state) == looked_at(folder, key_file)  # loaded
    for number in (1, 2, 5):  # of the first call that fails, as all after it
        fsync, full = os.fsync, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        effects = itertools.chain([mock.DEFAULT] * (number - 1), itertools.repeat(full))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", mock.Mock(wraps=fsync, side_effect=effects))
            try:
                refused("No space left on device", WORK[command], state)
            except pytest.fail.Exception:  # it needs fewer
                break
        assert picture(state) == looked_at(folder, key_file)
        state.verify()  # nothing that was half written is left
        assert "failed" not in set(state.status().requests["status"])
    WORK[command](state)
    assert picture(state) == picture(expected) == looked_at(folder, key_file)
    state.verify()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_cannot_grow(busy, key_file, command):
    """The kernel itself refuses writes, also those of SQLite: at every size, nothing is half done."""
    before, failed, old = picture(busy), 0, resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (0, 3000, 9000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
        try:
            COMMANDS[command](busy)
        except UnlearnError as error:
            failed += 1
            assert "\n" not in str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        now = looked_at(busy.core.folder, key_file)
        assert picture(busy) == now
        assert failed == 0 or size or now == before
    assert failed
    COMMANDS[command](busy)
    busy.run()
    busy.publish()
    busy.verify()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_that_cannot_be_written_to(busy, key_file, command):
    before = picture(busy)
    busy.core.database.connection.execute("PRAGMA query_only=ON")
    refused("readonly database. Check the disk and its permissions", COMMANDS[command], busy)
    assert picture(busy) == before == looked_at(busy.core.folder, key_file)
    busy.verify()


NO_DATABASE = mock.Mock(side_effect=sqlite3.OperationalError("unable to open database file"))


def test_a_disk_that_cannot_be_written_to(busy, key_file, checkpoints, tiny_path, monkeypatch, tmp_path):
    before, given = picture(busy), {"hash_key": key_file, "data_path": str(tiny_path)}
    read_only = mock.Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS)))
    with monkeypatch.context() as patch:
        for module, name in ((os, "unlink"), (os, "replace"), (os, "mkdir"), (deltas.tempfile, "mkdtemp")):
            patch.setattr(module, name, read_only)
        refused("Read-only file system", busy.run)
        assert picture(busy) == before
        refused("Read-only file system", busy.publish)
        refused("Read-only file system", init_state, tmp_path / "n" / "S", checkpoints("BPR"), **given)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", mock.Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
        refused("No locks available. Check the disk", busy.run)
    assert picture(busy) == before == looked_at(busy.core.folder, key_file)
    busy.run()
    busy.verify()


def test_a_folder_without_permission_to_write(busy_folder, key_file, tmp_path):
    folder = shutil.copytree(busy_folder, tmp_path / "S")

    def work():  # as a user who, unlike root, may not write everywhere
        without = (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), without) == 0
        assert not os.access(folder, os.W_OK, effective_ids=True)
        refused("Check the disk and its permissions", lambda: open_state(folder, key_file).run())

    for path in (folder, *folder.iterdir()):
        path.chmod(path.stat().st_mode & ~0o222)
    process = forked(work)
    process.join()
    for path in (folder, *folder.iterdir()):
        path.chmod(path.stat().st_mode | 0o200)
    assert process.exitcode == 0
    with open_state(folder, key_file) as state:
        assert state.run()[0].status == "done"


def test_two_processes_submit_while_a_worker_works_and_publishes(fresh, key_file, tmp_path):
    folder = shutil.copytree(fresh("BPR"), tmp_path / "S")  # not open here: a fork must not inherit it
    users = range(20)

    def submitter(which):
        with open_state(folder, key_file) as state:
            for n in users:
                state.submit({"user_id": f"u{n}", "item_id": items_of(f"u{n}")[which]}, id=f"{which}-{n}")

    def work():
        with open_state(folder, key_file) as state:
            for _ in range(4):
                state.run()
                state.publish()

    processes = [forked(submitter, 0), forked(submitter, 1), forked(work)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with open_state(folder, key_file) as state:
        state.verify()
        state.run()
        state.publish()
        state.verify()
        requests = state.status().requests
        assert sorted(requests["id"]) == sorted(f"{which}-{n}" for which in range(2) for n in users)
        assert set(requests["status"]) == {"published"}
        assert sum(len(part) for part in picture(state)["interactions"]) == len(tiny_rows()) - 2 * len(users)


def test_others_publish_and_undo_between_two_requests_of_a_worker_that_watches(busy_folder, key_file, tmp_path):
    folder = shutil.copytree(busy_folder, tmp_path / "S")
    reading, writing = os.pipe()

    def work():
        with os.fdopen(writing, "w") as sys.stdout:
            main(["requests", "run", str(folder), "--watch", f"--hash_key={key_file}"])

    process, lines = forked(work), os.fdopen(reading)
    with open_state(folder, key_file) as state:
        for id, request in (("c", {"item_id": "i7"}), ("d", some("u9", 2))):
            state.submit(request, id=id)
        assert [lines.readline().split()[:2] for _ in "bcd"] == [[id, "done:"] for id in "bcd"]
        assert [receipt.id for receipt in state.rollback("c")] == ["d"]
        assert state.publish() == 3
        state.submit(some("u10", 2), id="e")
        assert lines.readline().startswith("e done: ")
        process.kill()
        process.join()
        state.verify()


def test_a_second_worker_is_refused_and_a_submission_is_not(busy_folder, key_file, tmp_path, monkeypatch):
    folder = shutil.copytree(busy_folder, tmp_path / "S")
    reading, writing = os.pipe()

    def work():
        with open_state(folder, key_file) as state, worker.alone(state.core):
            while True:
                for receipt in worker.run(state.core, None):
                    os.write(writing, receipt.id.encode())

    process = forked(work)
    os.close(writing)  # so that reading ends with the process
    monkeypatch.setattr(worker, "PATIENCE", 0.05)
    with open_state(folder, key_file) as state:
        assert os.read(reading, 1) == b"b"
        for command in WORK.values():
            refused("Another process is working on the state", command, state)
        state.submit({"item_id": "i7"}, id="c")
        assert os.read(reading, 1) == b"c"
        process.kill()  # and its lock is free again
        process.join()
        state.run()
        assert set(state.status().requests["status"]) == {"done"}
        state.verify()


@pytest.mark.parametrize("command", WORK)
def test_a_model_in_memory_is_loaded_again_after_another_process_changed_it(busy, key_file, command):
    _ = picture(busy)  # loaded
    with open_state(busy.core.folder, key_file) as other:
        WORK[command](other)
        assert picture(busy) == picture(other)
        other.submit({"item_id": "i9"}, id="n")
        other.run()
    busy.publish()
    assert picture(busy) == looked_at(busy.core.folder, key_file)
    assert not {"pending", "done"} & set(busy.status().requests["status"])
    busy.verify()


def test_files_that_are_published_while_they_are_read(busy, key_file, monkeypatch):
    read = deltas.Store.read
    with open_state(busy.core.folder, key_file) as reader:

        def slow(self, name):
            if self is reader.core.store:
                busy.publish()
            return read(self, name)

        with monkeypatch.context() as patch:
            patch.setattr(deltas.Store, "read", slow)
            assert [row[:2] for row in picture(reader)["requests"]] == [("a", "published"), ("b", "pending")]
        assert picture(reader) == looked_at(busy.core.folder, key_file)


def test_publication_waits_for_a_reader_of_the_database(busy):
    """The log cannot be emptied under a reader: it is said, and any later worker does it."""
    folder = busy.core.folder
    reader = sqlite3.connect(folder / "state.sqlite", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM requests").fetchall()
    busy.core.database.connection.execute("PRAGMA busy_timeout=50")
    refused("another process is using it", busy.publish)
    refused("belong to nothing", busy.verify)
    reader.close()
    busy.run()
    busy.verify()
    assert (busy.publish(), (folder / "state.sqlite-wal").stat().st_size) == (1, 0)


def test_requests_that_would_empty_the_data_together(make_state, monkeypatch):
    """Each alone leaves something, both do not; if two get into the queue at once, the second fails."""
    users, state = [f"u{n}" for n in range(40)], make_state()
    state.submit({"user_id": users[:20]}, id="half")
    refused("no training interaction would be left", state.submit, {"user_id": users[20:]})
    assert state.submit({"user_id": users[20:39]}, id="less").status == "pending"
    assert [receipt.status for receipt in state.run()] == ["done", "done"]
    state.verify()
    state = make_state(name="at-once")
    monkeypatch.setattr(submit, "_with_pending", lambda core, found: found.numbers)
    for half in (users[:20], users[20:]):
        state.submit({"user_id": half})
    assert [receipt.status for receipt in state.run()] == ["done", "failed"]
    assert "interaction would be left" in state.status().requests["why"].iloc[-1]
    state.verify()


def test_a_pending_pair_whose_user_is_published_stays_deleted(make_state, tmp_path):
    state = make_state()
    live = state.core.live
    names, held = live.base.splits.train, live.parts[2]
    user = int(held.ids["user"][0])
    token, item = names.id2token("user_id", user), names.id2token("item_id", int(held.ids["item"][0]))
    trained = names.id2token("item_id", live.index.ends("user", torch.tensor([user])))
    done(state, a={"user_id": [token] * len(trained), "item_id": list(trained)})
    state.submit({"user_id": token, "item_id": item}, id="b")
    for step in (state.publish, state.run, state.publish):
        step()
    (tmp_path / "x.csv").write_text(f"user_id,item_id\n{token},{item}\n")
    assert state.check(tmp_path / "x.csv") == {"x.csv": 1}


def test_an_interrupted_publication_is_finished_by_the_next_worker(busy, monkeypatch):
    database, wiped = type(busy.core.database), []
    with monkeypatch.context() as patch:
        patch.setattr(database, "wipe", NO_DATABASE)
        with pytest.raises(sqlite3.OperationalError):
            busy.publish()
    assert (busy.core.folder / "state.sqlite-wal").stat().st_size > 0
    refused("belong to nothing", busy.verify)
    wipe = database.wipe
    monkeypatch.setattr(database, "wipe", lambda self: wiped.append(wipe(self)))
    busy.run()
    assert wiped == [None]
    busy.verify()


def test_rolling_back_leaves_nothing_of_the_request(busy):
    rows, names = busy.core.database.rows, busy.core.store.names()
    for id in ("a", "b"):
        assert all(rows("SELECT asked, suppressed FROM requests WHERE id = ?", id)[0])
        busy.rollback(id)
        assert [tuple(row) for row in rows("SELECT asked, suppressed FROM requests WHERE id = ?", id)] == [(b"", b"")]
    assert busy.core.store.names() == set(busy.core.version().base) < names
    assert not rows("SELECT * FROM changes")
    assert busy.rollback("a") == []  # again: there is nothing left to do
    busy.verify()
    assert busy.submit(some("u3", 4), id="again").status == "pending"


@pytest.mark.slow
def test_commands_that_are_killed(checkpoints, tiny_path, key_file, tmp_path):
    """A sample; `KILLS=200 pytest -s tests/state -k killed` kills more and prints what was left."""
    kills, checkpoint = int(os.environ.get("KILLS", "28")), checkpoints("BPR")

    def init(folder):
        init_state(folder, checkpoint, hash_key=key_file, data_path=str(tiny_path)).close()

    campaign = Campaign(init, key_file, tmp_path)
    campaign.run(kills)
    print("boundaries:", campaign.boundaries, *sorted(campaign.found.items()), sep="\n")
    assert (campaign.problems, campaign.killed) == ([], kills)


def test_a_full_database_takes_no_request_and_goes_on(busy, key_file):
    connection, before = busy.core.database.connection, picture(busy)
    connection.execute(f"PRAGMA max_page_count={connection.execute('PRAGMA page_count').fetchone()[0]}")
    wish = {"user_id": [f"u{n}" for n in range(10, 40)]}
    refused("database or disk is full. Check the disk", busy.submit, wish, id="large")
    assert picture(busy) == before == looked_at(busy.core.folder, key_file)
    connection.execute("PRAGMA max_page_count=1000000")
    assert busy.submit(wish, id="large").status == "pending"
    busy.verify()
