"""Directories as tar streams, and a small HTTP server of such streams.

A pod runs the text of this file (launcher/backend/kubernetes/download.py), so it imports only the standard library, and runs on an image's Python, 3.7 or newer.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO

TOKEN_HEADER, SIZE_HEADER, PATH_HEADER = "X-Token", "X-Size", "X-Place"
LISTENING = "listening"  # the line that the server prints once it listens
_CHUNK = 1 << 20
WINDOW = 1 << 20  # bytes; the reader acknowledges each window of a stream by one byte, so no more is in transit
_MAX_OPEN_FILES = 100  # files of a directory; a system may allow a process only 256
_MAX_ATTEMPTS = 5  # to list and open files while a running run deletes some, such as old checkpoints


def existing_paths(run_dir: Path, paths: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Map each name in `paths` to its first candidate that is a file or a non-empty directory; omit names that have none."""
    existing: dict[str, str] = {}
    for name, candidates in paths.items():
        for candidate in candidates:
            path = run_dir / candidate
            if path.is_file() or (path.is_dir() and any(path.iterdir())):
                existing.setdefault(name, candidate)
    return existing


class OpenFiles:
    """A snapshot of the files below a directory, or of one file. The first 100 are held open, so the stream has them even if they are deleted meanwhile.

    A link at the top is followed; links below stay links. Sockets, pipes and devices are left out. Close it at the end.

    Raises:
        OSError: a file cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._open, self._open_count = ExitStack(), 0
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            top = directory.resolve(strict=True)  # resolved on each try: the link's target may have changed
            try:
                self._entries = [(path, *self._entry(path, top)) for path in _walk(top)]
                break
            except FileNotFoundError:
                self._open.close()
                self._open_count = 0
                if attempt == _MAX_ATTEMPTS:
                    raise
        self.size = sum(info.size for _, info, _ in self._entries)  # bytes of all files

    def close(self) -> None:
        """Close the files."""
        self._open.close()

    def stream(self) -> Iterator[bytes]:
        """Yield the tar file; the first entry is the directory, or the file, itself. Raises OSError if a file was deleted or has become shorter."""
        for path, info, file in self._entries:
            if not info.isreg():
                yield info.tobuf()
                continue
            with ExitStack() as opened:
                yield from _file_entry(path, info, file or opened.enter_context(_open(path)))
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _entry(self, path: Path, top: Path) -> tuple[tarfile.TarInfo, BinaryIO | None]:
        status = path.lstat()
        info = tarfile.TarInfo(str(path.relative_to(top)))
        info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
        elif self._open_count < _MAX_OPEN_FILES:
            file = self._open.enter_context(_open(path))
            self._open_count += 1
            info.size = os.fstat(file.fileno()).st_size
            return info, file
        else:
            info.size = status.st_size
        return info, None


def _walk(top: Path) -> Iterator[Path]:
    yield top
    for directory, directories, files in os.walk(top, onerror=_raise) if top.is_dir() else ():
        directories.sort()
        for name in sorted([*directories, *files]):
            path = Path(directory, name)
            if stat.S_IFMT(path.lstat().st_mode) in {stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK}:
                yield path


def _raise(error: OSError) -> None:
    raise error


def _open(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb")


def _file_entry(path: Path, info: tarfile.TarInfo, file: BinaryIO) -> Iterator[bytes]:
    yield info.tobuf()
    remaining = info.size
    while remaining:
        data = file.read(min(remaining, _CHUNK))
        if not data:
            raise OSError(f"{path} became shorter while it was read")
        remaining -= len(data)
        yield data
    yield bytes(-info.size % tarfile.BLOCKSIZE)


def _flow_controlled(chunks: Iterator[bytes], reader: BinaryIO | BufferedIOBase) -> Iterator[bytes]:
    """Yield the chunks that are not empty; after each WINDOW wait until the reader has written a byte. Raises ConnectionError if the reader is gone."""
    sent = 0
    for data in filter(None, chunks):
        yield data
        before, sent = sent, sent + len(data)
        windows = sent // WINDOW - before // WINDOW
        if windows and len(reader.read(windows)) < windows:
            raise ConnectionError("the reader is gone")


def serve(run_dir: Path, paths: Mapping[str, Sequence[str]], digest: str, port: int, idle_timeout: float) -> None:
    """Serve `GET /<name of one of the paths>` on loopback, as a tar stream in chunks, until no request has come for `idle_timeout` seconds.

    The server waits for its reader after each WINDOW, because a port forwarder buffers all data that is not read yet, and copies the buffer
    for each chunk. Requests need the token whose SHA-256 is `digest`. If the run has no such path, the answer is 404 with a JSON list of
    the names that it has.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # for chunked encoding, which shows a missing end
        timeout = idle_timeout  # the client may be gone without closing the connection

        def do_GET(self) -> None:
            token_digest = hashlib.sha256(self.headers.get(TOKEN_HEADER, "").encode()).hexdigest()
            if not hmac.compare_digest(token_digest, digest):
                self._answer(403, b"")
                return
            existing = existing_paths(run_dir, paths)
            name = self.path.strip("/")
            if name not in existing:
                self._answer(404, json.dumps(sorted(existing)).encode())
                return
            with closing(OpenFiles(run_dir / existing[name])) as files:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.send_header(SIZE_HEADER, str(files.size))
                self.send_header(PATH_HEADER, existing[name])
                self.end_headers()
                for data in _flow_controlled(files.stream(), self.rfile):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                self.wfile.write(b"0\r\n\r\n")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    class Server(HTTPServer):
        timeout = idle_timeout
        is_idle = False

        def handle_timeout(self) -> None:
            self.is_idle = True

    with Server(("127.0.0.1", port), Handler) as server:
        print(LISTENING, flush=True)
        while not server.is_idle:
            server.handle_request()


if __name__ == "__main__":
    _run_dir, _paths, _digest, _port, _idle = sys.argv[1:]
    serve(Path(_run_dir), json.loads(_paths), _digest, int(_port), float(_idle))
