"""Unpacks a tar stream into a directory atomically: it is complete, or does not exist."""

import os
import posixpath
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from launcher.errors import LauncherError, UsageError

_END_SIZE = 2 * tarfile.BLOCKSIZE  # bytes of zeros after the last entry
_BUFFER = 1 << 20


@dataclass(frozen=True)
class Unpacked:
    """The unpacked files; `left_out` are the names of links that lead out of the directory, and of special files."""

    files: int
    size: int  # bytes
    left_out: tuple[str, ...]


def check(destination: Path, runs: Path, *, replace: bool) -> None:
    """Raise UsageError if nothing can be put at `destination`. An existing one needs `replace`, and must not contain runs or be among them."""
    if not destination.parent.is_dir():
        raise UsageError(f"there is no directory {destination.parent}", "create it, or give another destination")
    if not os.path.lexists(destination):
        return
    if not replace:
        raise _exists_error(destination)
    resolved, runs_root = destination.resolve(), runs.resolve()
    if Path.cwd().is_relative_to(resolved):
        raise UsageError(f"{destination} holds the working directory, and is not replaced", "give the name of a new directory in it")
    if runs_root.is_relative_to(resolved) or resolved.is_relative_to(runs_root):
        raise UsageError(
            f"{destination} contains {runs} or is in it, and is not replaced", "give a destination outside the directory of runs"
        )


def unpack(chunks: Iterator[bytes], destination: Path, *, replace: bool, on_bytes: Callable[[int], None]) -> Unpacked:
    """Unpack a tar stream, whose first entry is a directory, as `destination`. `on_bytes` is called with the size of each chunk.

    The files are unpacked into a temporary directory beside `destination`, which is renamed at the end. After an error it is removed, and
    `destination` is unchanged.

    Raises:
        UsageError: `destination` exists by then, without `replace`.
        LauncherError: the stream is incomplete.
        OSError: a file cannot be written.
    """
    work = destination.with_name(f".{destination.name}.{os.getpid()}")
    work.mkdir()
    try:
        unpacked = _unpack(_Reader(chunks, on_bytes), work)
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
                name = _without_top(top, member.name)
                if not _put(tar, member, name, top, work):
                    left_out.append(name)
                    continue
                files += not member.isdir()
                size += member.size
            reader.finish(tar.offset + _END_SIZE)
    except tarfile.TarError as error:
        raise LauncherError(f"the tar file is incomplete: {error}", "try again") from error
    removed = _remove_links_that_lead_outside(work)
    return Unpacked(files - len(removed), size, (*left_out, *removed))


def _remove_links_that_lead_outside(work: Path) -> list[str]:
    """Remove the links that lead outside only since later entries were written, or as a hard link to a link elsewhere; return their names."""
    removed = []
    while links := [path for path in _links(work) if not _inside(work, path)]:
        for path in links:
            path.unlink()
            removed.append(str(path.relative_to(work)))
    return removed


def _links(work: Path) -> Iterator[Path]:
    for directory, directories, files in os.walk(work):
        yield from (path for name in sorted([*directories, *files]) if (path := Path(directory, name)).is_symlink())


def _put(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, top: str, work: Path) -> bool:
    """Write an entry as `name` below `work`; return False for an entry or link that leads outside, and for a special file.

    Without tarfile's `filter="data"`, which needs Python 3.11.4.
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
        target = work / _without_top(top, member.linkname)
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
    # Path.resolve would raise for circular links.
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(work))


def _without_top(top: str, name: str) -> str:
    """Return an entry's name without the top directory."""
    return posixpath.relpath(posixpath.normpath(name), top) if top != "." else posixpath.normpath(name)


def _rename(work: Path, destination: Path, *, replace: bool) -> None:
    backup = work.with_name(f"{work.name}.before")
    try:
        if os.path.lexists(destination):
            if not replace:
                raise _exists_error(destination)
            destination.rename(backup)
        work.rename(destination)
    finally:  # an interrupt may come between the two renames
        if not work.exists():
            _remove(backup)
        elif os.path.lexists(backup) and not os.path.lexists(destination):
            backup.rename(destination)


def _exists_error(destination: Path) -> UsageError:
    return UsageError(f"{destination} already exists", "give another destination, or --force to replace it")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class _Reader:
    """A file object over chunks, for tarfile."""

    def __init__(self, chunks: Iterator[bytes], on_bytes: Callable[[int], None]) -> None:
        self._chunks, self._on_bytes = chunks, on_bytes
        self._buffer = b""
        self._received = 0

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end."""
        while len(self._buffer) < size and (chunk := next(self._chunks, None)) is not None:
            self._take(chunk)
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def finish(self, min_size: int) -> None:
        """Read to the end. Raises TarError if fewer than `min_size` bytes came: tarfile itself takes a truncated stream for a complete one."""
        for chunk in self._chunks:
            self._take(chunk)
            self._buffer = b""
        if self._received < min_size:
            raise tarfile.ReadError("its end is missing")

    def _take(self, chunk: bytes) -> None:
        self._buffer += chunk
        self._received += len(chunk)
        self._on_bytes(len(chunk))
