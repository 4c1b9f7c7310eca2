"""Directories as tar streams, and their server as a pod runs it: from the module's text, in another Python process."""

import contextlib
import hashlib
import http.client
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.backend.kubernetes import download
from launcher.runs import archive
from launcher.runs.artifacts import ARTIFACT_DIRECTORIES

TOKEN = "secret of the reader"  # noqa: S105 - of this test


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    (path / "export" / "best-3-abc" / "saved_model").mkdir(parents=True)
    (path / "export" / "best").symlink_to("best-3-abc")
    (path / "export" / "best" / "model.keras").write_bytes(b"weights" * 1000)
    (path / "export" / "best" / "saved_model" / "part").write_text("part")
    (path / "checkpoints").mkdir()
    return path


def members(stream: bytes) -> dict[str, bytes | None]:
    with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
        return {one.name: file.read() if (file := tar.extractfile(one)) else None for one in tar}


def test_the_target_of_a_link_is_streamed_even_if_a_file_is_deleted_meanwhile(run_dir: Path) -> None:
    files = archive.OpenFiles(run_dir / "export" / "best")
    (run_dir / "export" / "best" / "model.keras").unlink()
    stream = b"".join(files.stream())
    files.close()
    assert members(stream) == {".": None, "model.keras": b"weights" * 1000, "saved_model": None, "saved_model/part": b"part"}
    assert files.size == 7004


def test_links_inside_stay_links_and_special_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "inside").write_text("x")
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    files = archive.OpenFiles(tmp_path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(files.stream()))) as tar:
        assert [(one.name, one.linkname) for one in tar] == [(".", ""), ("inside", ""), ("link", "/etc/passwd")]
    files.close()


def test_a_directory_with_hundreds_of_files_is_streamed(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}").write_text(f"{number}")
    files = archive.OpenFiles(tmp_path)
    assert len(members(b"".join(files.stream()))) == 301
    files.close()


def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(5000))
    files = archive.OpenFiles(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file became shorter while it was read"):
        list(files.stream())
    files.close()


def test_an_empty_directory_is_left_out(run_dir: Path) -> None:
    assert archive.existing_paths(run_dir, ARTIFACT_DIRECTORIES) == {"model": "export/best"}
    (run_dir / "export" / "best").unlink()
    (run_dir / "export" / "last").symlink_to("best-3-abc")
    assert archive.existing_paths(run_dir, ARTIFACT_DIRECTORIES) == {"model": "export/last"}
    (run_dir / "run.json").write_text("{}")
    assert archive.existing_paths(run_dir, {"run": ("run.json",)}) == {"run": "run.json"}
    with (
        contextlib.closing(archive.OpenFiles(run_dir / "run.json")) as files,
        tarfile.open(fileobj=io.BytesIO(b"".join(files.stream()))) as tar,
    ):
        assert [(one.size, one.isreg()) for one in tar] == [(2, True)]


def server(run_dir: Path, port: int, idle: float) -> subprocess.Popen[bytes]:
    text = Path(archive.__file__).read_text(encoding="utf-8")
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    return subprocess.Popen(
        [sys.executable, "-I", "-c", text, str(run_dir), json.dumps(ARTIFACT_DIRECTORIES), digest, str(port), str(idle)]
    )


@pytest.fixture
def port(run_dir: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = int(free.getsockname()[1])
    with server(run_dir, number, idle=60) as process:
        yield number
        process.terminate()


Response = tuple[int, http.client.HTTPMessage, bytes]


def get(port: int, path: str, token: str) -> Response:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            try:
                connection.request("GET", path, headers={archive.TOKEN_HEADER: token})
                response = connection.getresponse()
                return response.status, response.headers, response.read()
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.05)


def test_the_server_gives_a_directory_only_to_the_holder_of_the_token(port: int) -> None:
    assert get(port, "/model", "")[0] == 403
    assert get(port, "/model", "another")[0] == 403
    status, _, body = get(port, "/checkpoints", TOKEN)
    assert (status, json.loads(body)) == (404, ["model"])
    assert get(port, "/../checkpoints", TOKEN)[0] == 404
    status, headers, body = get(port, "/model", TOKEN)
    assert (status, headers[archive.SIZE_HEADER], headers[archive.PATH_HEADER]) == (200, "7004", "export/best")
    assert members(body)["model.keras"] == b"weights" * 1000


def test_the_server_ends_after_a_while_without_requests(run_dir: Path) -> None:
    with server(run_dir, 0, idle=0.5) as process:
        assert process.wait(timeout=60) == 0


def test_a_stream_is_at_most_one_window_ahead_of_its_reader() -> None:
    half = bytes(archive.WINDOW // 2)
    reader = io.BytesIO(b"..")  # two windows are read, a third is not
    pieces = archive._flow_controlled(iter([half, b"", *[half] * 6]), reader)
    assert [len(next(pieces)) for _ in range(6)] == [len(half)] * 6
    with pytest.raises(ConnectionError, match="the reader is gone"):
        next(pieces)


def test_the_server_waits_until_the_reader_confirms_what_it_has_read(port: int, run_dir: Path) -> None:
    content = os.urandom(3 * archive.WINDOW + 5)
    (run_dir / "checkpoints" / "large").write_bytes(content)
    get(port, "/model", TOKEN)  # returns once the server answers
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.connect()
    with contextlib.closing(connection), connection.sock.makefile("wb", buffering=0) as reads:
        connection.request("GET", "/checkpoints", headers={archive.TOKEN_HEADER: TOKEN, "Connection": "close"})
        stream = b"".join(download._chunks(connection.getresponse(), reads, "pod"))
    assert members(stream)["large"] == content
