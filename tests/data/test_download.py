"""The download of a dataset, against a small web server on the loopback interface."""

import hashlib
import http.server
import io
import random
import shutil
import stat
import threading
import zipfile
from unittest import mock

import pytest

from recbole_unlearn.data import download, ensure_dataset
from recbole_unlearn.errors import UnlearnError
from tests import parts

INTER = random.Random(0).randbytes(50_000)


@pytest.fixture
def target(tmp_path):
    """Where RecBole would look; neither it nor its parent exists yet."""
    return tmp_path / "dataset" / "tiny"


def make_zip(members, **options):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
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
    monkeypatch.setattr(download, "RETRIES", 0)
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
    (target.parent / "plain").mkdir()
    assert target.stat().st_mode == (target.parent / "plain").stat().st_mode


def test_files_get_the_name_of_the_dataset(site, target, monkeypatch):
    assert download._recbole_urls()["ml-1m"].endswith("/ml-1m.zip")
    url = site.url.replace("tiny.zip", "Tiny_Set.zip?download=1")
    monkeypatch.setattr(download, "_recbole_urls", lambda: {"tiny": url})
    names = ["a/Tiny_Set.train.inter", "a\\Tiny_Set.item", "README.md", "__MACOSX/a/._x", ".DS_Store", "a/"]
    site.data = make_zip(dict.fromkeys([*names, "tiny.Tiny_Set"], b"x"))
    ensure_dataset("tiny", target, ["tiny.train.inter", "tiny.item"], show_progress=False)
    assert sorted(path.name for path in target.iterdir()) == [
        "README.md", "tiny.Tiny_Set", "tiny.item", "tiny.train.inter",
    ]  # fmt: skip


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


@pytest.mark.parametrize(("key", "value"), [
    ("status", 404), ("status", 500), ("aim", "file:///etc/passwd"), ("aim", "ftp://127.0.0.1:1/tiny.zip"),
    ("claimed", 10**6),
])  # fmt: skip
def test_transfers_that_fail(site, target, key, value):
    setattr(site, key, value)
    refused(target, site.url, "[tiny]", site.url, str(target / "tiny.inter"))


def test_a_download_is_limited(site, target, monkeypatch):
    """The attack: a server that sends without end, or an archive that unpacks to more than the disk holds."""
    usage = mock.Mock(return_value=mock.Mock(free=2 * 40_000))
    monkeypatch.setattr(shutil, "disk_usage", usage)
    for site.claimed in (None, "nothing"):
        refused(target, site.url, "more bytes than half of what is free")
    site.data = make_zip({"tiny.inter": bytes(1 << 20)}, compression=zipfile.ZIP_DEFLATED)
    refused(target, site.url, "unpacked it has more bytes")
    usage.return_value.free = 2 << 20
    ensure_dataset("tiny", target, ["tiny.inter"], site.url, show_progress=False)


def test_a_wrong_checksum_and_a_full_disk(site, target, monkeypatch):
    refused(target, f"{site.url}#sha256={'0' * 64}", "does not match")
    monkeypatch.setattr(shutil, "copyfileobj", mock.Mock(side_effect=OSError(28, "No space left on device")))
    refused(target, site.url, "No space left on device")


ARCHIVES = {
    "no zip": (b"<html>please log in</html>", "not a zip file"), "empty": (b"", "not a zip file"),
    "other": (make_zip({"other.inter": INTER}), "lacks ['tiny.inter']"),
    "no name": (make_zip({"tiny.inter": INTER, "QQQQ": b""}).replace(b"QQQQ", b"\0QQQ"), "Cannot download"),
    "bad checksum": (make_zip({"tiny.inter": INTER}).replace(INTER, INTER[:-1] + b"x"), "CRC"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARCHIVES)
def test_damaged_archives_are_refused(site, target, case):
    site.data, word = ARCHIVES[case]
    refused(target, site.url, word)


def test_nothing_leaves_the_folder_and_no_link_is_made(site, target):
    link = zipfile.ZipInfo("link")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    names = ["../up", "a/../../up", "..\\up", "/root", "\\back", "C:drive", "//host/share/net", "..", link]
    site.data = make_zip({"tiny.inter": INTER, **dict.fromkeys(names, b"/etc/passwd")})
    ensure_dataset("tiny", target, ["tiny.inter"], site.url, show_progress=False)
    found = [path for path in target.parent.parent.rglob("*") if path.name not in ("dataset", "tiny")]
    assert sorted(path.name for path in found) == ["back", "drive", "link", "net", "root", "tiny.inter", "up"]
    assert all(path.parent == target and path.is_file() and not path.is_symlink() for path in found)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_random_damage_never_gets_through(site, target, method):
    text = b"1\t2\t3.0\n" * 300
    good, chance = make_zip({"tiny.inter": text}, compression=method), random.Random(int(method))
    for _ in range(20):
        site.data = bytearray(good)
        site.data[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
        try:
            ensure_dataset("tiny", target, ["tiny.inter"], site.url, show_progress=False)
        except UnlearnError as error:
            assert "Cannot download" in str(error)
        else:  # the flipped bit meant nothing, such as a bit of the date of the file
            assert (target / "tiny.inter").read_bytes() == text
            shutil.rmtree(target)
        assert list(target.parent.iterdir()) == []
