"""What is shown of a state without its key: the status, and the receipt of a request."""

import json
import re
import shutil

import pytest

from recbole_unlearn import cli
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.state import open_state, status
from recbole_unlearn.state.receipt import write_receipt
from recbole_unlearn.state.status import overview
from tests.conftest import tiny_rows
from tests.report.test_report import Reader
from tests.state.conftest import some


def set_by_hand(state, statement):
    """What no command does, with an entry about it."""
    with state.core.database.transaction():
        state.core.database.write(statement)
        state.core.database.enter("failed")


@pytest.fixture(scope="module")
def every_kind(fresh, key_file, tmp_path_factory):
    """A state with requests of every kind, to copy."""
    folder = shutil.copytree(fresh("BPR"), tmp_path_factory.mktemp("every") / "S")
    with open_state(folder, key_file) as state:
        for user in ("u3", "u8"):
            state.submit(some(user, 3), id=f"first-{user}")
        state.run(window="1h")
        state.publish()
        for user, days in (("u5", 3), ("u6", 30), ("u7", 9)):
            state.submit(some(user, 2), id=f"T-{user}", deadline=f"{days}d")
            state.run()
        state.rollback("T-u6")
        for user, days in (("u9", 1), ("u10", 12), ("u11", 40)):
            state.submit(some(user, 2), id=f"late-{user}", deadline=f"{days}d")
        why = "status = 'failed', why = 'The weights are not finite.'"
        set_by_hand(state, f"UPDATE requests SET {why} WHERE id = 'late-u10'")
        set_by_hand(state, "UPDATE requests SET due = '2020-01-01T00:00:00+00:00' WHERE id = 'late-u9'")
    return folder


@pytest.fixture
def busy(copied, every_kind):
    return copied(every_kind)


def test_the_ledger_gives_the_budget_that_the_database_has(busy):
    database = busy.core.database
    base = database.rows("SELECT * FROM base")[0]
    drift = (base["drift"] + database.value("SELECT total(drift) FROM changes")) / base["norm"]
    spent = database.spent()
    assert spent.drift == pytest.approx(drift)
    assert spent.deleted == pytest.approx((base["trained_on"] - len(busy.core.live.index)) / base["trained_on"])
    shown = [entry["spent"] for entry in database.entries()]
    assert (shown[0], shown[-1]) == ({"deleted": 0.0, "drift": 0.0}, spent.rounded()._asdict())
    assert (overview(database).deleted_share, overview(database).drift) == spent
    busy.retrain()
    assert database.spent() == (0.0, 0.0)


def test_the_table_has_every_request_and_says_when_retraining_is_due(busy, capsys):
    text = status.status_text(busy.status(), "S")
    assert max(map(len, text.splitlines())) <= 110
    assert text.startswith("BPR on tiny: 8 requests, 1 overdue.")
    for id in busy.status().requests["id"]:
        assert len(re.findall(rf"^{id} ", text, re.M)) == 1 + (id == "late-u10")
    assert "late-u10 failed: The weights are not finite." in text
    assert busy.status().head in text
    for id, code in (("late-u9", 1), ("first-u3", 0)):  # the first is overdue
        assert cli.main(["requests", "status", str(busy.core.folder), id, "--json"]) == code
        (row,) = json.loads(capsys.readouterr().out)["requests"]
        assert (row["id"], {"submitted", "due", "finished", "published", "since"} <= row.keys()) == (id, True)
    set_by_hand(busy, "UPDATE base SET norm = norm / 1e9")  # so the budget is spent
    seen = busy.status()
    text = status.status_text(seen, "S")
    assert (seen.retraining_is_due, seen.drift > status.MOST_DRIFT) == (True, True)
    assert "Retraining is due: `recbole-unlearn requests rebuild S`" in text


def test_a_receipt_says_what_was_done_and_names_no_one(busy, tmp_path):
    """Of each kind of request; the JSON says the same, and an other file is not replaced."""
    database, tokens = busy.core.database, {name for row in tiny_rows() for name in row[:2]}
    busy.submit({"user_id": ["u30", "nowhere"]}, id="new", deadline="30d")
    busy.run()
    busy.publish()
    head = busy.status().head
    busy.rebuild()
    links = {one["link"] for one in database.entries()}
    for id in busy.status().requests["id"]:
        page, data = write_receipt(database, id, tmp_path / "out")
        text, found = " ".join(Reader(page).text.split()), json.loads(data.read_text())
        assert not tokens & set(re.findall(r"\w+", (text + data.read_text()).replace(id, "")))
        assert (found["request"], found["hashes"]["ledger head"]) == (id, busy.status().head)
        assert all(one["link"] in text for one in found["ledger"])
        assert {one["link"] for one in found["ledger"]} <= links
        assert "<script" not in page.read_text()
        assert all(f"{one['number']}: {one['link']}" in text for one in found["ledger"])
        sizes = [{len(re.findall("<t[hd]", row)) for row in re.findall(r"<tr>.*?</tr>", page.read_text(), re.S)}]
        assert sizes == [{2}]  # every row is as wide as its head
    found = json.loads((tmp_path / "out" / "receipt-new.json").read_text())
    assert (found["status"], found["exact"], found["methods"]) == ("published", True, ["obliviate", "rebuilt"])
    assert [one["what"] for one in found["ledger"]] == ["submitted", "done", "published", "rebuilt"]
    assert [found["asked"][f"{name}_up_to"] for name in ("users", "queued", "unknown")] == [1, 1, 1]
    dates = [found["dates"][name] for name in ("submitted", "done", "published", "exact since")]
    assert dates == sorted(dates)
    busy.verify(head=head)
    page = tmp_path / "receipt-new.html"
    for make in (lambda: page.write_text("mine"), page.mkdir, lambda: page.symlink_to(tmp_path / "nowhere")):
        make()
        with pytest.raises(UnlearnError, match="is not a receipt"):
            write_receipt(database, "new", tmp_path)
        page.rmdir() if page.is_dir() else page.unlink()
    with pytest.raises(UnlearnError, match="There is no request other"):
        write_receipt(database, "other", tmp_path)
