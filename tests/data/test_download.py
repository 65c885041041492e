"""Tests of the dataset download against a small scripted web server on the loopback interface.

The server can cut transfers off, ignore Range or If-Range, and change its file between requests, so
that every way in which a download can go wrong is met without a real network.
"""

import http.server
import io
import json
import logging
import random
import socket
import stat
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from recbole_unlearn.data import archive, download, ensure_dataset
from recbole_unlearn.errors import UnlearnError

INTER = random.Random(0).randbytes(50_000)
FILES = ["tiny.inter"]


class Site:
    """One file on a web server, and how badly the server behaves."""

    def __init__(self, server: http.server.ThreadingHTTPServer):
        self.root = f"http://127.0.0.1:{server.server_address[1]}"
        self.data = b""
        self.headers: dict[str, str] = {"ETag": '"v1"'}
        self.status = 200
        self.cuts: list[int] = []
        """How many bytes of its body each next answer may send; then all are sent whole."""
        self.always_cut: int | None = None
        self.honours_range = True
        self.honours_if_range = True
        self.send_length = True
        self.send_chunked = False
        """Send the first bytes, up to the cut, as one chunk of a longer body without a length."""
        self.range_shift = 0
        """Answer a Range this many bytes away from where it was asked for."""
        self.stall: threading.Event | None = None
        """Wait for this where a cut would close the connection."""
        self.requests: list[dict[str, str]] = []

    def url(self, file: str = "tiny.zip") -> str:
        return f"{self.root}/{file}"

    @property
    def ranges(self) -> list[str | None]:
        return [request.get("Range") for request in self.requests]


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves ``server.site`` at every path."""

    timeout = 5

    def log_message(self, *args) -> None:
        """Keep the test output quiet."""

    def do_GET(self) -> None:
        site: Site = self.server.site
        site.requests.append(dict(self.headers.items()))
        start = self._start(site)
        if start is not None and start >= len(site.data):
            self._head(416, {"Content-Range": f"bytes */{len(site.data)}"})
            return
        body = site.data[start or 0 :]
        headers = dict(site.headers)
        chunked = site.send_chunked and start is None
        if chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif site.send_length:
            headers["Content-Length"] = str(len(body))
        if start is not None:
            headers["Content-Range"] = f"bytes {start}-{len(site.data) - 1}/{len(site.data)}"
        self._head(206 if start is not None else site.status, headers)
        cut = site.cuts.pop(0) if site.cuts else site.always_cut
        if chunked:
            self.wfile.write(f"{len(body):x}\r\n".encode())
        self.wfile.write(body[:cut])
        if cut is not None and site.stall is not None:
            self.wfile.flush()
            site.stall.wait(5)

    def _start(self, site: Site) -> int | None:
        asked = self.headers.get("Range")
        if asked is None or not site.honours_range:
            return None
        current = site.headers.get("ETag") or site.headers.get("Last-Modified")
        if site.honours_if_range and self.headers.get("If-Range") != current:
            return None
        return int(asked.removeprefix("bytes=").removesuffix("-")) + site.range_shift

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()


@pytest.fixture
def site(monkeypatch) -> Iterator[Site]:
    """A running server with ``tiny.zip`` and retries that do not wait."""
    monkeypatch.setattr(download, "RETRY_WAIT_SECONDS", 0)
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 5)
    monkeypatch.setenv("no_proxy", "*")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.site = Site(server)
        server.site.data = make_zip({"tiny.inter": INTER})
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.site
        server.shutdown()
        thread.join(5)


@pytest.fixture
def target(tmp_path) -> Path:
    """Where RecBole would look; neither it nor its parent exists yet."""
    return tmp_path / "dataset" / "tiny"


def make_zip(members: dict[str, bytes], **options) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def fetch(site: Site, target: Path, files: list[str] = FILES, url: str | None = None) -> None:
    ensure_dataset("tiny", target, files, url=url or site.url(), show_progress=False)


def refused(site: Site, target: Path, files: list[str] = FILES, url: str | None = None) -> str:
    """Fetch, expect an error of one line, and return it."""
    with pytest.raises(UnlearnError) as caught:
        fetch(site, target, files, url)
    message = str(caught.value)
    assert "\n" not in message
    return message


def left_in(folder: Path) -> list[str]:
    """Every path below ``folder``, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def part_of(target: Path) -> Path:
    return target.parent / ".tiny.zip.part"


# Finding the dataset


def test_downloads_and_leaves_nothing_else(site, target, caplog):
    with caplog.at_level(logging.INFO):
        fetch(site, target)
    assert (target / "tiny.inter").read_bytes() == INTER
    assert left_in(target.parent) == ["tiny", "tiny/tiny.inter"]
    assert len(site.requests) == 1
    assert [site.url() in caplog.messages[0], str(target) in caplog.messages[1]] == [True, True]
    assert len(caplog.messages) == 2


def test_is_readable_like_any_other_new_directory(site, target):
    fetch(site, target)
    (target.parent / "plain").mkdir()
    assert target.stat().st_mode == (target.parent / "plain").stat().st_mode


@pytest.mark.parametrize("show_progress", [True, False])
def test_progress_bar_can_be_switched_off(site, target, capsys, show_progress):
    ensure_dataset("tiny", target, FILES, url=site.url(), show_progress=show_progress)
    assert ("Download tiny: 100%" in capsys.readouterr().err) == show_progress


def test_existing_files_need_no_network(site, target):
    target.mkdir(parents=True)
    (target / "tiny.inter").write_text("mine")
    fetch(site, target)
    assert site.requests == []
    assert (target / "tiny.inter").read_text() == "mine"


def test_incomplete_directory_is_left_alone(site, target):
    target.mkdir(parents=True)
    (target / "tiny.user").write_text("mine")
    message = refused(site, target)
    assert "[tiny.inter] is missing" in message
    assert str(target) in message
    assert "remove the directory" in message
    assert "data_path" in message
    assert site.requests == []
    assert left_in(target.parent) == ["tiny", "tiny/tiny.user"]


def test_own_dataset_is_not_advised_to_be_removed(target):
    target.mkdir(parents=True)
    (target / "tiny.user").write_text("mine")
    with pytest.raises(UnlearnError, match="put it there, or set data_path"):
        ensure_dataset("tiny", target, FILES)


def test_file_in_place_of_the_directory_is_left_alone(site, target):
    target.parent.mkdir()
    target.write_text("mine")
    assert "is a file" in refused(site, target)
    assert target.read_text() == "mine"


def test_empty_directory_is_filled(site, target):
    target.mkdir(parents=True)
    fetch(site, target)
    assert (target / "tiny.inter").read_bytes() == INTER


def test_link_to_an_empty_directory_is_filled(site, target, tmp_path):
    (tmp_path / "big_disk").mkdir()
    target.parent.mkdir()
    target.symlink_to(tmp_path / "big_disk")
    fetch(site, target)
    assert target.is_symlink()
    assert (tmp_path / "big_disk" / "tiny.inter").read_bytes() == INTER


def test_recbole_list_is_used_without_url(site, target, monkeypatch):
    listed = download._recbole_urls()
    assert listed["ml-1m"].endswith("/ml-1m.zip")
    monkeypatch.setattr(download, "_recbole_urls", lambda: {"tiny": site.url()})
    ensure_dataset("tiny", target, FILES, show_progress=False)
    assert (target / "tiny.inter").read_bytes() == INTER


def test_unknown_dataset_suggests_the_nearest(tmp_path):
    directory = tmp_path / "ml1m"
    with pytest.raises(UnlearnError) as caught:
        ensure_dataset("ml1m", directory, ["ml1m.inter"])
    assert "did you mean [ml-1m]?" in str(caught.value)
    assert str(directory / "ml1m.inter") in str(caught.value)
    assert left_in(tmp_path) == []


def test_unknown_dataset_without_a_near_one(tmp_path):
    with pytest.raises(UnlearnError) as caught:
        ensure_dataset("qqqqqqqqqq", tmp_path / "x", ["qqqqqqqqqq.inter"])
    assert "Unknown dataset [qqqqqqqqqq]: put its files" in str(caught.value)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/tiny.zip", "tiny.zip"])
def test_only_web_urls_are_accepted(site, target, url):
    message = refused(site, target, url=url)
    assert "only http and https" in message
    assert url in message
    assert not target.parent.exists()


@pytest.mark.parametrize("aim", ["file:///etc/passwd", "ftp://127.0.0.1:1/tiny.zip"])
def test_redirect_cannot_leave_the_web(site, target, aim):
    site.status, site.headers = 302, {"Location": aim}
    message = refused(site, target)
    assert "not allowed" in message or "unknown url type" in message
    assert not target.exists()


def test_name_cannot_be_a_path(site, target):
    with pytest.raises(UnlearnError, match="must not contain a path"):
        ensure_dataset("../tiny", target, ["x.inter"], url=site.url())


# Names in the archive


def test_files_get_the_name_of_the_dataset(site, target):
    site.data = make_zip({"Tiny_Set.inter": INTER, "Tiny_Set.item": b"i", "README.md": b"r"})
    fetch(site, target, ["tiny.inter", "tiny.item"], url=site.url("Tiny_Set.zip?download=1"))
    assert left_in(target) == ["README.md", "tiny.inter", "tiny.item"]


def test_benchmark_files_get_the_name_of_the_dataset(site, target):
    site.data = make_zip({"Tiny.train.inter": b"1", "Tiny.test.inter": b"2"})
    fetch(site, target, ["tiny.train.inter", "tiny.test.inter"], url=site.url("Tiny.zip"))
    assert (target / "tiny.test.inter").read_bytes() == b"2"


def test_right_name_is_not_changed(site, target):
    site.data = make_zip({"tiny.inter": INTER, "ti.inter": b"other"})
    fetch(site, target, url=site.url("ti.zip"))
    assert (target / "tiny.inter").read_bytes() == INTER
    assert (target / "ti.inter").read_bytes() == b"other"


def test_windows_slashes_and_dot_folders(site, target):
    site.data = make_zip({"./": b"", "a\\": b"", "a\\tiny.inter": INTER})
    fetch(site, target)
    assert left_in(target) == ["tiny.inter"]


@pytest.mark.parametrize(
    "extra",
    [{}, {"README.md": b"r"}, {"a/more/notes": b"n"}, {"__MACOSX/a/._x": b"", ".DS_Store": b""}],
)
def test_sub_folder_is_dropped(site, target, extra):
    site.data = make_zip({"a/": b"", "a/tiny.inter": INTER, **extra})
    fetch(site, target)
    assert (target / "tiny.inter").read_bytes() == INTER
    assert not (target / "a").exists()


def test_archive_without_the_files_is_refused(site, target):
    site.data = make_zip({"other.inter": INTER})
    message = refused(site, target)
    assert "lacks ['tiny.inter'], but holds ['other.inter']" in message
    assert left_in(target.parent) == []


# Transfers that go wrong


def test_cut_off_transfer_is_resumed(site, target):
    site.cuts = [20_000, 10_000]
    fetch(site, target)
    assert (target / "tiny.inter").read_bytes() == INTER
    assert site.ranges == [None, "bytes=20000-", "bytes=30000-"]
    assert site.requests[1]["If-Range"] == '"v1"'
    assert left_in(target.parent) == ["tiny", "tiny/tiny.inter"]


def test_date_serves_where_the_etag_is_weak(site, target):
    site.headers = {"Last-Modified": "Thu, 01 Jan 2015 00:00:00 GMT"}
    site.cuts = [20_000]
    fetch(site, target)
    assert site.ranges == [None, "bytes=20000-"]
    assert site.requests[1]["If-Range"] == site.headers["Last-Modified"]


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"v1"'}])
def test_without_a_version_the_transfer_starts_again(site, target, headers):
    site.headers = headers
    site.cuts = [20_000]
    fetch(site, target)
    assert site.ranges == [None, None]
    assert (target / "tiny.inter").read_bytes() == INTER


def test_server_that_ignores_range(site, target):
    site.honours_range = False
    site.cuts = [20_000]
    fetch(site, target)
    assert site.ranges == [None, "bytes=20000-"]
    assert (target / "tiny.inter").read_bytes() == INTER


def test_server_without_a_length(site, target):
    site.send_length = False
    fetch(site, target)
    assert (target / "tiny.inter").read_bytes() == INTER


def test_server_whose_length_is_only_known_on_resuming(site, target):
    site.send_chunked = True
    site.cuts = [20_000, 10_000]
    fetch(site, target)
    assert site.ranges == [None, "bytes=20000-", "bytes=30000-"]
    assert (target / "tiny.inter").read_bytes() == INTER


def test_server_that_answers_another_range(site, target):
    site.range_shift = -10
    site.cuts = [20_000]
    fetch(site, target)
    assert site.ranges == [None, "bytes=20000-", None]
    assert (target / "tiny.inter").read_bytes() == INTER


def test_endless_cuts_keep_the_part_for_the_next_run(site, target):
    site.always_cut = 1000
    message = refused(site, target)
    assert "cut off 4 times" in message
    assert f"[{part_of(target)}] is kept and the next run resumes" in message
    assert site.ranges == [None, "bytes=1000-", "bytes=2000-", "bytes=3000-"]
    assert part_of(target).read_bytes() == site.data[:4000]
    assert not target.exists()

    site.always_cut = None
    fetch(site, target)
    assert site.ranges[4:] == ["bytes=4000-"]
    assert (target / "tiny.inter").read_bytes() == INTER
    assert left_in(target.parent) == ["tiny", "tiny/tiny.inter"]


def test_stalled_transfer_is_resumed(site, target, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.2)
    site.stall, site.cuts = threading.Event(), [20_000]
    fetch(site, target)
    site.stall.set()
    assert site.ranges == [None, "bytes=20000-"]
    assert (target / "tiny.inter").read_bytes() == INTER


@pytest.mark.parametrize("new_size", [40_000, 50_000, 60_000, 100])
@pytest.mark.parametrize("honours_if_range", [True, False])
def test_changed_file_is_not_mixed_with_the_old_part(site, target, honours_if_range, new_size):
    site.always_cut = 5_000
    refused(site, target)
    assert part_of(target).stat().st_size == 20_000

    changed = random.Random(1).randbytes(new_size)
    site.data = make_zip({"tiny.inter": changed})
    site.headers = {"ETag": '"v2"'}
    site.always_cut, site.honours_if_range = None, honours_if_range
    fetch(site, target)
    assert (target / "tiny.inter").read_bytes() == changed
    assert site.ranges[-1] == ("bytes=20000-" if honours_if_range else None)


def test_change_is_seen_by_the_size_alone(site, target):
    site.always_cut = 5_000
    refused(site, target)
    changed = random.Random(1).randbytes(60_000)
    site.data, site.headers = make_zip({"tiny.inter": changed}), {}
    site.always_cut, site.honours_if_range = None, False
    fetch(site, target)
    assert (target / "tiny.inter").read_bytes() == changed
    assert site.ranges[4:] == ["bytes=20000-", None]


@pytest.mark.parametrize("note", [None, "not json", "[]", '{"url": "x"}'])
def test_part_of_unknown_origin_is_not_resumed(site, target, note):
    target.parent.mkdir()
    part_of(target).write_bytes(b"something else")
    if note is not None:
        Path(f"{part_of(target)}.json").write_text(note)
    fetch(site, target)
    assert site.ranges == [None]
    assert (target / "tiny.inter").read_bytes() == INTER


def test_part_of_another_url_is_not_resumed(site, target):
    site.always_cut = 1000
    refused(site, target, url=site.url("other.zip"))
    site.always_cut = None
    fetch(site, target)
    assert site.ranges[4:] == [None]
    assert (target / "tiny.inter").read_bytes() == INTER


def test_full_disk_while_unpacking_keeps_the_archive(site, target, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(archive.shutil, "copyfileobj", full)
        assert "No space left on device" in refused(site, target)
    assert not target.exists()
    assert left_in(target.parent) == [".tiny.zip.part", ".tiny.zip.part.json"]
    fetch(site, target)
    assert len(site.requests) == 1
    assert (target / "tiny.inter").read_bytes() == INTER


def test_run_that_was_second_accepts_the_first(site, target, monkeypatch):
    check = download._check_complete

    def other_run_finishes(job, unpacked):
        check(job, unpacked)
        target.mkdir()
        (target / "tiny.inter").write_text("first")

    monkeypatch.setattr(download, "_check_complete", other_run_finishes)
    fetch(site, target)
    assert left_in(target.parent) == ["tiny", "tiny/tiny.inter"]
    assert (target / "tiny.inter").read_text() == "first"


@pytest.mark.parametrize("status", [403, 404, 500])
def test_http_error(site, target, status):
    site.status = status
    message = refused(site, target)
    assert f"HTTP {status}" in message
    assert site.url() in message
    assert str(target / "tiny.inter") in message
    assert not target.exists()


def test_refused_connection(site, target):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    message = refused(site, target, url=f"http://127.0.0.1:{port}/tiny.zip")
    assert "refused" in message
    assert f"127.0.0.1:{port}" in message
    assert str(target / "tiny.inter") in message


def test_silent_server(site, target, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert "timed out" in refused(site, target, url=f"http://127.0.0.1:{port}/tiny.zip")


def test_server_that_does_not_speak_http(site, target):
    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"SSH-2.0-hello\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        thread = threading.Thread(target=answer, args=(server,), daemon=True)
        thread.start()
        port = server.getsockname()[1]
        message = refused(site, target, url=f"http://127.0.0.1:{port}/tiny.zip")
        thread.join(5)
    assert "SSH-2.0-hello" in message


@pytest.mark.parametrize("url", ["http://", "http://[", "http://127.0.0.1:x/", "http://a b/c"])
def test_malformed_url(site, target, url):
    assert url in refused(site, target, url=url)


def test_failed_name_lookup(site, target, monkeypatch):
    def fail(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    message = refused(site, target, url="http://nowhere.invalid/tiny.zip")
    assert "Name or service not known" in message


# Archives that must not be trusted


def link_zip() -> bytes:
    link = zipfile.ZipInfo("tiny.inter")
    link.create_system = 3
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "../../evil",
        "a/../../evil",
        "..\\evil",
        "/evil",
        "\\evil",
        "C:evil",
        "c:\\evil",
        "//host/share/evil",
        ".",
    ],
)
def test_paths_that_leave_the_directory_are_refused(site, target, tmp_path, name):
    site.data = make_zip({"tiny.inter": INTER, name: b"evil"})
    assert f"{name!r} in it is not safe" in refused(site, target)
    assert left_in(tmp_path) == ["dataset"]
    assert not Path("/evil").exists()


def test_empty_name_is_refused(site, target, tmp_path):
    site.data = make_zip({"tiny.inter": INTER, "QQQQ": b""}).replace(b"QQQQ", b"\0QQQ")
    assert "'' in it is not safe" in refused(site, target)
    assert left_in(tmp_path) == ["dataset"]


def test_links_are_refused(site, target, tmp_path):
    site.data = link_zip()
    assert "link or special file" in refused(site, target)
    assert left_in(tmp_path) == ["dataset"]


def test_two_files_of_one_name_are_refused(site, target, tmp_path):
    site.data = make_zip({"a/tiny.inter": INTER, "tiny.inter": b"other"})
    assert "two files of the same name" in refused(site, target)
    assert left_in(tmp_path) == ["dataset"]


def test_file_that_is_also_a_folder_is_refused(site, target, tmp_path):
    site.data = make_zip({"tiny.inter": INTER, "b/c": b"1", "a/x": b"2", "a/x/y": b"3"})
    assert "not a readable zip file" in refused(site, target)
    assert left_in(tmp_path) == ["dataset"]


def test_archive_that_is_too_large_is_refused(site, target, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", len(INTER) - 1)
    assert f"unpack to {len(INTER)} bytes" in refused(site, target)
    assert left_in(tmp_path) == ["dataset"]


def test_archive_that_is_too_dense_is_refused(site, target, tmp_path, monkeypatch):
    site.data = make_zip({"tiny.inter": bytes(1 << 20)}, compression=zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(archive, "EXPANSION_FREE_BYTES", (1 << 20) - 1)
    assert "too many for its size" in refused(site, target)
    assert left_in(tmp_path) == ["dataset"]


def test_small_dense_archive_is_accepted(site, target, monkeypatch):
    site.data = make_zip({"tiny.inter": bytes(1 << 20)}, compression=zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(archive, "EXPANSION_FREE_BYTES", 1 << 20)
    fetch(site, target)
    assert (target / "tiny.inter").stat().st_size == 1 << 20


def test_page_instead_of_an_archive(site, target, tmp_path):
    site.data = b"<html>please log in</html>"
    assert "not a readable zip file" in refused(site, target)
    assert left_in(tmp_path) == ["dataset"]


def test_empty_answer(site, target, tmp_path):
    site.data = b""
    assert "not a readable zip file" in refused(site, target)
    assert left_in(tmp_path) == ["dataset"]


def test_bad_checksum(site, target, tmp_path):
    damaged = bytearray(site.data)
    damaged[1000] ^= 1
    site.data = bytes(damaged)
    message = refused(site, target)
    assert "not a readable zip file" in message
    assert "CRC" in message
    assert left_in(tmp_path) == ["dataset"]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_random_damage_never_gets_through(site, target, tmp_path, method):
    text = b"1\t2\t3.0\n" * 300
    good = make_zip({"tiny.inter": text}, compression=method)
    chance = random.Random(int(method))
    for _ in range(40):
        damaged = bytearray(good)
        damaged[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
        site.data = bytes(damaged)
        try:
            fetch(site, target)
        except UnlearnError as error:
            assert "was refused and removed" in str(error)
            assert left_in(tmp_path) == ["dataset"]
        else:
            # The flipped bit meant nothing, such as a bit of the file's date.
            assert (target / "tiny.inter").read_bytes() == text
            (target / "tiny.inter").unlink()
            target.rmdir()


def test_note_records_the_version(site, target):
    site.always_cut = 1000
    refused(site, target)
    note = json.loads(Path(f"{part_of(target)}.json").read_text())
    assert note == {"url": site.url(), "validator": '"v1"', "size": len(site.data)}
