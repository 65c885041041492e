"""The download of a dataset, against a small web server on the loopback interface."""

import hashlib
import http.server
import io
import random
import threading
import zipfile

import pytest

from recbole_unlearn.data import download, ensure_dataset
from tests import parts

INTER = random.Random(0).randbytes(50_000)


@pytest.fixture
def target(tmp_path):
    """Where RecBole would look; neither it nor its parent exists yet."""
    return tmp_path / "dataset" / "tiny"


def make_zip(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves ``data`` at every path; ``claimed`` is the length that it says, ``aim`` where it redirects to."""

    data, status, claimed, aim, requests = b"", 200, None, None, 0

    def log_message(self, *args):
        """Keep the test output quiet."""

    def do_GET(self):
        type(self).requests += 1
        self.send_response(302 if self.aim else self.status)
        if self.claimed != "nothing":
            self.send_header("Content-Length", str(self.claimed or len(self.data)))
        self.send_header("Location", self.aim or "")
        self.end_headers()
        self.wfile.write(self.data)


@pytest.fixture
def site(monkeypatch):
    """A running server with ``tiny.zip``."""
    monkeypatch.setenv("no_proxy", "*")
    handler = type("Site", (Handler,), {"data": make_zip({"tiny.inter": INTER})})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.url = f"http://127.0.0.1:{server.server_address[1]}/tiny.zip"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield handler
        server.shutdown()


def refused(target, url, *words):
    """An error of one line with all ``words``; nothing is left in the file system."""
    said = parts.refused("", ensure_dataset, "tiny", target, ["tiny.inter"], url, show_progress=False)
    assert [word for word in words if word not in said] == []
    assert not target.parent.exists() or list(target.parent.iterdir()) == []


@pytest.mark.parametrize("there", ["nothing", "an empty directory", "a link"])
def test_downloads_and_leaves_nothing_else(site, target, capsys, there):
    target.parent.mkdir()
    if there == "a link":
        (target.parent.parent / "big_disk").mkdir()
        target.symlink_to(target.parent.parent / "big_disk")
    elif there != "nothing":
        target.mkdir()
    checksum = hashlib.sha256(site.data).hexdigest()
    ensure_dataset("tiny", target, ["tiny.inter"], f"{site.url}#sha256={checksum}")
    ensure_dataset("tiny", target, ["tiny.inter"], site.url)  # needs no network
    assert (site.requests, (target / "tiny.inter").read_bytes()) == (1, INTER)
    assert [path.name for path in target.parent.rglob("*") if path.is_file()] in (["tiny.inter"], [])
    assert "100%" in capsys.readouterr().err


def test_files_get_the_name_of_the_dataset_and_stay_in_the_folder(site, target, monkeypatch, capsys):
    assert download._recbole_urls()["ml-1m"].endswith("/ml-1m.zip")
    url = site.url.replace("tiny.zip", "Tiny_Set.zip?download=1")
    monkeypatch.setattr(download, "_recbole_urls", lambda: {"tiny": url})
    site.data = make_zip(
        dict.fromkeys(["Tiny_Set.train.inter", "Tiny_Set.item", "README.md", "../up", "/root"], b"x")
    )
    ensure_dataset("tiny", target, ["tiny.train.inter", "tiny.item"], show_progress=False)
    found = [path for path in target.parent.parent.rglob("*") if path.name not in ("dataset", "tiny")]
    assert sorted(path.name for path in found) == ["README.md", "root", "tiny.item", "tiny.train.inter", "up"]
    assert {path.parent for path in found} == {target}
    assert capsys.readouterr().err == ""


def test_files_of_the_user_are_left_alone(site, target):
    target.mkdir(parents=True)
    (target / "tiny.user").write_text("mine")
    said = r"'tiny.inter'\] is missing .* or set data_path"
    parts.refused(said, ensure_dataset, "tiny", target, ["tiny.inter"], site.url)
    assert (site.requests, [path.name for path in target.iterdir()]) == (0, ["tiny.user"])


def test_unknown_datasets_and_odd_urls(site, target):
    refused(target, None, "Unknown dataset [tiny]", str(target / "tiny.inter"))
    parts.refused("Did you mean ml-1m", ensure_dataset, "ml1m", target, ["ml1m.inter"])
    parts.refused("must not be a path", ensure_dataset, "../tiny", target, ["x.inter"], site.url)
    for url in ("file:///etc/passwd", "ftp://127.0.0.1/tiny.zip", "tiny.zip"):
        refused(target, url, "has to start with https://", url)
    for url in ("http://", "http://[", "http://127.0.0.1:x/", "http://127.0.0.1:9/tiny.zip"):
        refused(target, url, "Cannot download dataset [tiny]", "Try again later", str(target / "tiny.inter"))
    refused(target, f"{site.url}#sha256={'0' * 64}", "SHA-256")


@pytest.mark.parametrize(("key", "value"), [
    ("status", 404), ("status", 500), ("aim", "file:///etc/passwd"), ("claimed", "nothing"),
    ("data", b"<html>please log in</html>"), ("data", b""), ("data", make_zip({"tiny.inter": INTER})[:-100]),
    ("data", make_zip({"other.inter": INTER})),
    ("data", make_zip({"tiny.inter": INTER}).replace(INTER, INTER[:-1] + b"x")),
])  # fmt: skip
def test_transfers_and_archives_that_fail(site, target, key, value):
    setattr(site, key, value)
    refused(target, site.url, "Cannot download dataset [tiny]", site.url, str(target / "tiny.inter"))
