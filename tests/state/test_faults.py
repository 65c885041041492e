"""Full disks, disks that cannot be written to, several processes at once: one line, and the state is as it was."""

import contextlib
import errno
import multiprocessing
import os
import resource
import sqlite3

import pytest
import torch

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.state import deltas, init_state, open_state, worker
from tests.state.conftest import items_of, some
from tests.state.crash_cases import Campaign, Place, picture


def looked_at(folder, key_file):
    """A state as another process sees it."""
    with open_state(folder, key_file) as state:
        return picture(state)


def refused(call, what):
    """Refused, in one line."""
    with pytest.raises(UnlearnError, match=what) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.fixture
def busy_state(make_state):
    """One request done, one pending."""
    state = make_state()
    state.submit(some("u3", 4), id="a")
    state.run()
    state.submit({"user_id": "u8"}, id="b")
    return state


COMMANDS = {
    "run": lambda state: state.run(),
    "rollback": lambda state: state.rollback("a"),
    "publish": lambda state: state.publish(),
    "retrain": lambda state: state.retrain(),
}


@contextlib.contextmanager
def no_space_from(monkeypatch, call, number):
    """The ``number``-th call of a function of `os` and all after it fail as on a full disk."""
    original, seen = getattr(os, call), []

    def fails(*args, **kwargs):
        seen.append(1)
        if len(seen) >= number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        yield


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_leaves_a_whole_state_in_memory_and_on_the_disk(
    busy_state, make_state, key_file, monkeypatch, command
):
    """Each write in turn fails; the same process goes on, and ends as one that never had a full disk."""
    folder, expected = busy_state.core.folder, make_state(name="expected")
    expected.submit(some("u3", 4), id="a")
    expected.run()
    expected.submit({"user_id": "u8"}, id="b")
    COMMANDS[command](expected)
    before = looked_at(folder, key_file)
    assert picture(busy_state) == before  # loaded
    for number in (1, 2):
        with no_space_from(monkeypatch, "fsync", number):
            refused(lambda: COMMANDS[command](busy_state), "No space left on device")
        assert picture(busy_state) == looked_at(folder, key_file)
        statuses = set(busy_state.status().requests["status"])
        assert "running" not in statuses
        assert "failed" not in statuses
    COMMANDS[command](busy_state)
    assert picture(busy_state) == picture(expected) == looked_at(folder, key_file)
    busy_state.verify()


@pytest.mark.parametrize("command", [*COMMANDS, "submit"])
def test_a_file_that_cannot_grow(busy_state, key_file, command):
    """The kernel itself refuses writes, also SQLite's own: at every size, nothing is half and the state goes on."""
    call = COMMANDS.get(command, lambda state: state.submit({"item_id": "i7"}, id="c"))
    folder = busy_state.core.folder
    before, failed = picture(busy_state), 0
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (0, 3000, 9000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
        try:
            call(busy_state)
        except UnlearnError as error:
            failed += 1
            assert "\n" not in str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        now = looked_at(folder, key_file)
        assert picture(busy_state) == now
        assert failed == 0 or size or now == before
    assert failed
    call(busy_state)
    busy_state.run()
    busy_state.publish()
    busy_state.verify()


def test_a_full_database_takes_no_request_and_goes_on(busy_state, key_file):
    connection = busy_state.core.database.connection
    before = picture(busy_state)
    connection.execute(f"PRAGMA max_page_count={connection.execute('PRAGMA page_count').fetchone()[0]}")
    wish = {"user_id": [f"u{n}" for n in range(10, 40)]}
    refused(lambda: busy_state.submit(wish, id="large"), "database or disk is full. Check the disk")
    assert picture(busy_state) == before == looked_at(busy_state.core.folder, key_file)
    connection.execute("PRAGMA max_page_count=1000000")
    assert busy_state.submit(wish, id="large").status == "pending"
    busy_state.verify()


@pytest.mark.parametrize("command", [*COMMANDS, "submit"])
def test_a_database_that_cannot_be_written_to(busy_state, key_file, command):
    call = COMMANDS.get(command, lambda state: state.submit({"item_id": "i7"}))
    before = picture(busy_state)
    busy_state.core.database.connection.execute("PRAGMA query_only=ON")
    refused(lambda: call(busy_state), "readonly database. Check the disk and its permissions")
    assert picture(busy_state) == before == looked_at(busy_state.core.folder, key_file)


def test_a_disk_that_cannot_be_written_to(
    busy_state, key_file, checkpoints, tiny_path, monkeypatch, tmp_path
):
    folder = busy_state.core.folder
    before = picture(busy_state)

    def read_only(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        for module, name in ((os, "unlink"), (os, "replace"), (os, "mkdir"), (deltas.tempfile, "mkstemp")):
            patch.setattr(module, name, read_only)
        refused(busy_state.run, "Read-only file system")
        assert picture(busy_state) == before
        refused(busy_state.publish, "Read-only file system")
        refused(
            lambda: init_state(
                tmp_path / "n" / "S", checkpoints("BPR"), hash_key=key_file, data_path=str(tiny_path)
            ),
            "Read-only file system",
        )
    with monkeypatch.context() as patch:  # also of the worker's lock
        patch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect_refused())
        refused(busy_state.run, "unable to open database file. Check the disk")
    assert picture(busy_state) == before == looked_at(folder, key_file)
    busy_state.run()
    busy_state.verify()


def connect_refused():
    raise sqlite3.OperationalError("unable to open database file")


def test_a_folder_without_permission_to_write(busy_state, key_file):
    folder = busy_state.core.folder
    busy_state.close()
    for path in (folder, *folder.iterdir()):
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        if os.access(folder, os.W_OK):
            pytest.skip("root may write everywhere")
        refused(lambda: open_state(folder, key_file).run(), "Check the disk and its permissions")
    finally:
        for path in (folder, *folder.iterdir()):
            path.chmod(path.stat().st_mode | 0o200)
    with open_state(folder, key_file) as state:
        assert state.run()[0].status == "done"


def in_another_process(call):
    """Start ``call`` in a process of its own; returns it."""
    process = multiprocessing.get_context("fork").Process(target=_alone, args=(call,))
    process.start()
    return process


def _alone(call):
    try:
        call()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def test_two_who_submit_while_a_worker_works_and_publishes(make_state, key_file):
    """Forty requests of two processes, each for one interaction, while a third takes them from the queue."""
    folder = make_state().core.folder
    everything = sum(len(part) for part in looked_at(folder, key_file)["interactions"])

    def submitter(which):
        with open_state(folder, key_file) as state:
            for n in range(20):
                state.submit({"user_id": f"u{n}", "item_id": items_of(f"u{n}")[which]}, id=f"{which}-{n}")

    def worker():
        with open_state(folder, key_file) as state:
            for _ in range(4):
                state.run()
                state.publish()

    processes = [in_another_process(call) for call in (lambda: submitter(0), lambda: submitter(1), worker)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with open_state(folder, key_file) as state:
        state.verify()
        state.run()
        state.publish()
        state.verify()
        requests = state.status().requests
        assert sorted(requests["id"]) == sorted(f"{which}-{n}" for which in range(2) for n in range(20))
        assert set(requests["status"]) == {"published"}
        assert sum(len(part) for part in picture(state)["interactions"]) == everything - 40


def test_a_second_worker_in_another_process_is_refused(busy_state, key_file):
    folder = busy_state.core.folder
    reading, writing = os.pipe()

    def worker():
        with open_state(folder, key_file) as state:
            for receipt in state.watch(every=0.01):
                os.write(writing, receipt.id.encode())

    process = in_another_process(worker)
    assert os.read(reading, 1) == b"b"
    for command in COMMANDS.values():
        refused(lambda command=command: command(busy_state), "Another process is working on the state")
    busy_state.submit({"item_id": "i7"}, id="c")
    assert os.read(reading, 1) == b"c"
    process.kill()  # and its lock is free again
    process.join()
    busy_state.run()
    assert set(busy_state.status().requests["status"]) == {"done"}
    busy_state.verify()


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_in_memory_is_loaded_again_when_another_process_changed_it(busy_state, key_file, command):
    _ = picture(busy_state)  # loaded
    with open_state(busy_state.core.folder, key_file) as other:
        COMMANDS[command](other)
        assert picture(busy_state) == picture(other)
        other.submit({"item_id": "i9"}, id="n")
        other.run()
    busy_state.publish()
    assert picture(busy_state) == looked_at(busy_state.core.folder, key_file)
    assert not {"pending", "done"} & set(busy_state.status().requests["status"])
    busy_state.verify()


def test_files_that_are_published_while_they_are_read(busy_state, key_file, monkeypatch):
    """Another process destroys the files of a base while this one loads it: it loads the new ones."""
    folder, read = busy_state.core.folder, deltas.Store.read
    with open_state(folder, key_file) as reader:

        def slow(self, name):
            if self is reader.core.store and not busy_state.publish():
                return read(self, name)
            return read(self, name)

        monkeypatch.setattr(deltas.Store, "read", slow)
        assert picture(reader)["requests"] == [("a", "published"), ("b", "pending")]
        monkeypatch.undo()
        assert picture(reader) == looked_at(folder, key_file)


def test_publication_waits_for_whoever_reads_the_database(busy_state, key_file):
    """The log cannot be emptied under a reader: it is said, and publishing again does it."""
    folder = busy_state.core.folder
    reader = sqlite3.connect(folder / "state.sqlite", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM asked").fetchall()
    busy_state.core.database.connection.execute("PRAGMA busy_timeout=50")
    refused(busy_state.publish, "another process is using it")
    refused(busy_state.verify, "belong to nothing")
    reader.close()
    busy_state.run()  # any worker does it
    busy_state.verify()
    assert busy_state.publish() == 1
    assert (folder / "state.sqlite-wal").stat().st_size == 0


def test_requests_that_would_empty_the_data_together(make_state, monkeypatch):
    """Each alone leaves something, both do not; if two get into the queue at once, the second fails."""
    state = make_state()
    state.submit({"user_id": [f"u{n}" for n in range(20)]}, id="half")
    with pytest.raises(UnlearnError, match="no training interaction would be left"):
        state.submit({"user_id": [f"u{n}" for n in range(20, 40)]}, id="other")
    assert state.submit({"user_id": [f"u{n}" for n in range(20, 39)]}, id="less").status == "pending"
    assert [receipt.status for receipt in state.run()] == ["done", "done"]
    state.verify()
    state = make_state(name="at-once")
    monkeypatch.setattr(worker, "_with_pending", lambda core, found: found.numbers)
    for users in (range(20), range(20, 40)):
        state.submit({"user_id": [f"u{n}" for n in users]})
    assert [receipt.status for receipt in state.run()] == ["done", "failed"]
    assert "interaction would be left" in state.status().requests["why"].iloc[-1]
    state.verify()


def test_what_a_publication_drops_with_its_user_stays_deleted(make_state, tmp_path):
    """A pending request for a user whose last training interaction another request deletes."""
    state = make_state()
    live = state.core.live
    names, held = live.base.splits.train, live.parts[2]
    user = int(held.ids["user"][0])
    token, item = names.id2token("user_id", user), names.id2token("item_id", int(held.ids["item"][0]))
    trained = live.index.ends("user", torch.tensor([user]))
    state.submit(
        {"user_id": [token] * len(trained), "item_id": list(names.id2token("item_id", trained))}, id="a"
    )
    state.run()
    state.submit({"user_id": token, "item_id": item}, id="b")
    state.publish()
    state.run()
    state.publish()
    (tmp_path / "x.csv").write_text(f"user_id,item_id\n{token},{item}\n")
    assert state.check(tmp_path / "x.csv") == {"x.csv": 1}


def test_an_interrupted_publication_is_finished_by_the_next_worker(busy_state, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(type(busy_state.core.database), "wipe", lambda self: connect_refused())
        with pytest.raises(sqlite3.OperationalError):
            busy_state.publish()
    assert (busy_state.core.folder / "state.sqlite-wal").stat().st_size > 0
    refused(busy_state.verify, "belong to nothing")
    wiped = []
    wipe = type(busy_state.core.database).wipe
    monkeypatch.setattr(type(busy_state.core.database), "wipe", lambda self: wiped.append(wipe(self)))
    busy_state.run()
    assert wiped == [None]
    busy_state.verify()


def test_rolling_back_leaves_nothing_of_what_was_asked(busy_state):
    state, rows = busy_state, busy_state.core.database.rows
    numbers = {row["id"]: row["number"] for row in rows("SELECT id, number FROM requests")}
    names = state.core.store.names()
    for id in ("a", "b"):
        for table in ("asked", "suppressed"):
            assert rows(f"SELECT * FROM {table} WHERE request = ?", numbers[id])
        state.rollback(id)
        for table in ("asked", "suppressed"):
            assert not rows(f"SELECT * FROM {table} WHERE request = ?", numbers[id])
    assert state.core.store.names() == set(state.core.version().base) < names
    assert not rows("SELECT * FROM changes")
    assert state.rollback("a") == []  # again: there is nothing left to do
    state.verify()
    assert state.submit(some("u3", 4), id="again").status == "pending"


def test_a_status_that_the_ledger_does_not_tell_is_found(busy_state):
    state = busy_state
    state.run()
    state.rollback("a")
    state.verify()
    state.core.database.connection.execute("UPDATE requests SET status = 'pending' WHERE id = 'b'")
    refused(state.verify, "the request b is pending in the queue, and done in the ledger")


@pytest.mark.slow
def test_commands_that_are_killed(checkpoints, tiny_path, key_file, tmp_path):
    """A sample; `python -m tests.state.crash_cases --kills 200` is the whole of it."""
    campaign = Campaign(Place(checkpoints("BPR"), tiny_path, key_file), tmp_path)
    campaign.run(24)
    assert campaign.problems == []
    assert campaign.killed == 24
