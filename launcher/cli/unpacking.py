"""Unpacks a tar stream into a directory, which is there as a whole or not at all."""

import os
import posixpath
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from launcher.errors import LauncherError, UsageError

_END = 2 * tarfile.BLOCKSIZE  # bytes, zeros, after the last entry
_BUFFER = 1 << 20


@dataclass(frozen=True)
class Unpacked:
    """The unpacked files; `left_out` are the names of links that lead out of the directory, and of what is neither file, directory nor link."""

    files: int
    size: int  # bytes
    left_out: tuple[str, ...]


def check(destination: Path, runs: Path, *, replace: bool) -> None:
    """Raise UsageError where nothing can be put at `destination`; what is there is removed only with `replace`, and never if runs are in it."""
    if not destination.parent.is_dir():
        raise UsageError(f"there is no directory {destination.parent}", "make it, or give another destination")
    if not os.path.lexists(destination):
        return
    if not replace:
        raise _is_there(destination)
    resolved, home = destination.resolve(), runs.resolve()
    if Path.cwd().is_relative_to(resolved):
        raise UsageError(f"{destination} holds the working directory, and is not replaced", "give the name of a directory to make in it")
    if home.is_relative_to(resolved) or resolved.is_relative_to(home):
        raise UsageError(
            f"{destination} is in {runs}, or that in it, and is not replaced", "give a destination outside the directory of runs"
        )


def unpack(chunks: Iterator[bytes], destination: Path, *, replace: bool, seen: Callable[[int], None]) -> Unpacked:
    """Unpack a tar stream, of which the first entry is a directory, as `destination`. `seen` is called with numbers of bytes.

    It is unpacked beside it under another name, which is renamed at the end; nothing is left of it where that is not reached, and
    `destination` is then as it was.

    Raises:
        UsageError: something is at `destination` by then, and not to be replaced.
        LauncherError: the stream is not whole.
        OSError: it cannot be written.
    """
    work = destination.with_name(f".{destination.name}.{os.getpid()}")
    work.mkdir()
    try:
        unpacked = _unpack(_Reader(chunks, seen), work)
        if unpacked.files:
            _rename(work, destination, replace=replace)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return unpacked


def _unpack(reader: "_Reader", work: Path) -> Unpacked:
    files = size = 0
    left_out = []
    top: str | None = None
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", reader), mode="r|", bufsize=_BUFFER) as tar:
            for member in tar:
                if top is None:
                    top = posixpath.normpath(member.name)
                    continue
                name = _within(top, member.name)
                if not _put(tar, member, name, top, work):
                    left_out.append(name)
                    continue
                files += not member.isdir()
                size += member.size
            reader.finish(tar.offset + _END)
    except tarfile.TarError as error:
        raise LauncherError(f"the tar file is incomplete: {error}", "try again") from error
    return Unpacked(files, size, tuple(left_out))


def _put(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, top: str, work: Path) -> bool:
    """Write an entry as `name` below `work`; return False for what would be outside, links that lead there, and what is no file.

    Not by tarfile's `filter="data"`, which Python has from 3.11.4 on alone.
    """
    path = work / name
    if not _inside(work, path.parent) or (os.path.lexists(path) and not member.isdir()):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.isdir():
        path.mkdir(exist_ok=True)
    elif member.issym():
        if posixpath.isabs(member.linkname) or not _inside(work, path.parent / member.linkname):
            return False
        path.symlink_to(member.linkname)
    elif member.islnk():
        target = work / _within(top, member.linkname)
        if not _inside(work, target) or not target.is_file():
            return False
        path.hardlink_to(target)
    elif (content := tar.extractfile(member)) is not None:
        with path.open("xb") as file:
            shutil.copyfileobj(content, file, _BUFFER)
        path.chmod(member.mode & 0o755 | 0o600)
        os.utime(path, (member.mtime, member.mtime))
    else:
        return False
    return True


def _inside(work: Path, path: Path) -> bool:
    # Path.resolve raises for links in a circle.
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(work))


def _within(top: str, name: str) -> str:
    """Return a name of the stream without the directory that everything is in."""
    return posixpath.relpath(posixpath.normpath(name), top) if top != "." else posixpath.normpath(name)


def _rename(work: Path, destination: Path, *, replace: bool) -> None:
    before = work.with_name(f"{work.name}.before")
    try:
        if os.path.lexists(destination):
            if not replace:
                raise _is_there(destination)
            destination.rename(before)
        work.rename(destination)
    finally:  # an interrupt may come between the two
        if not work.exists():
            _remove(before)
        elif os.path.lexists(before) and not os.path.lexists(destination):
            before.rename(destination)


def _is_there(destination: Path) -> UsageError:
    return UsageError(f"{destination} is there already", "give another destination, or --force to replace it")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class _Reader:
    """Chunks as a file that tarfile reads."""

    def __init__(self, chunks: Iterator[bytes], seen: Callable[[int], None]) -> None:
        self._chunks, self._seen = chunks, seen
        self._waiting = b""
        self._came = 0

    def read(self, size: int) -> bytes:
        """Return as many bytes, fewer at the end alone."""
        while len(self._waiting) < size and (chunk := next(self._chunks, None)) is not None:
            self._take(chunk)
        data, self._waiting = self._waiting[:size], self._waiting[size:]
        return data

    def finish(self, least: int) -> None:
        """Read to the end. Raises TarError where fewer than `least` bytes came: tarfile takes the end of a file for that of the entries."""
        for chunk in self._chunks:
            self._take(chunk)
            self._waiting = b""
        if self._came < least:
            raise tarfile.ReadError("its end is missing")

    def _take(self, chunk: bytes) -> None:
        self._waiting += chunk
        self._came += len(chunk)
        self._seen(len(chunk))
