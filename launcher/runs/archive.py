"""Directories as tar streams, and a small HTTP server of such streams.

A pod is given the text of this file to run (launcher/backend/kubernetes/download.py), so it imports only Python's own library, of any version.
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
LISTENING = "listening"  # the line that the server writes once it does
_CHUNK = 1 << 20
WINDOW = 1 << 20  # bytes of a stream after each of which its reader writes one byte: not more than that is on its way
_MAX_OPEN_FILES = 100  # files of a directory; a system may allow a process 256
_TRIES = 5  # to list and open files of which a run deletes some meanwhile, as it does old checkpoints


def existing_paths(run_dir: Path, paths: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return for each of `paths`, names with directories or files of the run's, the first that is there and, a directory, not empty."""
    there: dict[str, str] = {}
    for name, candidates in paths.items():
        for candidate in candidates:
            path = run_dir / candidate
            if path.is_file() or (path.is_dir() and any(path.iterdir())):
                there.setdefault(name, candidate)
    return there


class Tree:
    """The files below a directory, or one file, as they are when it is made: they are held open, so one that is deleted meanwhile is in the stream too.

    A link at the top is followed, those below are kept as links; sockets, pipes and devices are left out. Close it at the end.

    Raises:
        OSError: a file cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._open, self._held = ExitStack(), 0
        for attempt in range(1, _TRIES + 1):
            top = directory.resolve(strict=True)  # each time: where a link leads may have changed, and been removed
            try:
                self._entries = [(path, *self._entry(path, top)) for path in _below(top)]
                break
            except FileNotFoundError:
                self._open.close()
                self._held = 0
                if attempt == _TRIES:
                    raise
        self.size = sum(info.size for _, info, _ in self._entries)  # bytes of all files

    def close(self) -> None:
        """Let the files go."""
        self._open.close()

    def stream(self) -> Iterator[bytes]:
        """Yield the tar file; the first entry is the directory, or the file, itself. Raises OSError where a file is shorter than it was."""
        for path, info, file in self._entries:
            if not info.isreg():
                yield info.tobuf()
                continue
            with ExitStack() as later:
                yield from _file(path, info, file or later.enter_context(_opened(path)))
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _entry(self, path: Path, top: Path) -> tuple[tarfile.TarInfo, BinaryIO | None]:
        found = path.lstat()
        info = tarfile.TarInfo(str(path.relative_to(top)))
        info.mode, info.mtime = stat.S_IMODE(found.st_mode), int(found.st_mtime)
        if stat.S_ISDIR(found.st_mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(found.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
        elif self._held < _MAX_OPEN_FILES:
            file = self._open.enter_context(_opened(path))
            self._held += 1
            info.size = os.fstat(file.fileno()).st_size
            return info, file
        else:
            info.size = found.st_size
        return info, None


def _below(top: Path) -> Iterator[Path]:
    yield top
    for directory, directories, files in os.walk(top, onerror=_raise) if top.is_dir() else ():
        directories.sort()
        for name in sorted([*directories, *files]):
            path = Path(directory, name)
            if stat.S_IFMT(path.lstat().st_mode) in {stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK}:
                yield path


def _raise(error: OSError) -> None:
    raise error


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb")


def _file(path: Path, info: tarfile.TarInfo, file: BinaryIO) -> Iterator[bytes]:
    yield info.tobuf()
    left = info.size
    while left:
        data = file.read(min(left, _CHUNK))
        if not data:
            raise OSError(f"{path} became shorter while it was read")
        left -= len(data)
        yield data
    yield bytes(-info.size % tarfile.BLOCKSIZE)


def _paced(pieces: Iterator[bytes], reader: BinaryIO | BufferedIOBase) -> Iterator[bytes]:
    """Yield the pieces that are not empty, and wait after each WINDOW until their reader has written a byte. Raises ConnectionError where it is gone."""
    sent = 0
    for data in filter(None, pieces):
        yield data
        before, sent = sent, sent + len(data)
        windows = sent // WINDOW - before // WINDOW
        if windows and len(reader.read(windows)) < windows:
            raise ConnectionError("the reader is gone")


def serve(run_dir: Path, paths: Mapping[str, Sequence[str]], digest: str, port: int, idle: float) -> None:
    """Serve `GET /<name of one of the paths>` on loopback, as a tar stream in chunks, until no request has come for `idle` seconds.

    It waits for its reader after each WINDOW: a port forwarder holds all that it has no reader for, and copies it for each piece that comes.
    The caller has to know the text of which `digest` is the SHA-256. The answer is 404 with the JSON list of what there is where that is nothing.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # with chunks: one that is missing is noticed
        timeout = idle  # the client may be gone without a word

        def do_GET(self) -> None:
            token_digest = hashlib.sha256(self.headers.get(TOKEN_HEADER, "").encode()).hexdigest()
            if not hmac.compare_digest(token_digest, digest):
                self._answer(403, b"")
                return
            there = existing_paths(run_dir, paths)
            name = self.path.strip("/")
            if name not in there:
                self._answer(404, json.dumps(sorted(there)).encode())
                return
            with closing(Tree(run_dir / there[name])) as tree:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.send_header(SIZE_HEADER, str(tree.size))
                self.send_header(PATH_HEADER, there[name])
                self.end_headers()
                for data in _paced(tree.stream(), self.rfile):
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
        timeout = idle
        over = False

        def handle_timeout(self) -> None:
            self.over = True

    with Server(("127.0.0.1", port), Handler) as server:
        print(LISTENING, flush=True)
        while not server.over:
            server.handle_request()


if __name__ == "__main__":
    _run_dir, _paths, _digest, _port, _idle = sys.argv[1:]
    serve(Path(_run_dir), json.loads(_paths), _digest, int(_port), float(_idle))
