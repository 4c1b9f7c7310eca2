"""The files of a spec's `code`, and a digest of the Python files, which shows whether the code has changed."""

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

# Directories without code, or without the user's.
_SKIPPED = frozenset({"__pycache__", "node_modules"})
_SKIPPED_ENDINGS = (".pyc", ".pyo")
# A larger directory also holds data. Reading it at every command would take too long.
_MAX_FILES = 10_000
_DIGITS = 8
_SEPARATOR = "-"


def files(directory: Path, on_error: Callable[[OSError], object] | None = None) -> Iterator[Path]:
    """Yield the files of `code`, in order, also below links to directories, without hidden and compiled ones.

    `on_error` is called for a directory that cannot be read; without it, such a directory counts as empty.
    """
    yield from _files(directory, frozenset(), on_error)


def _files(directory: Path, parents: frozenset[str], on_error: Callable[[OSError], object] | None) -> Iterator[Path]:
    """Yield the files below a directory; `parents` are the real paths of those above it, which a link may lead back to."""
    parents |= {os.path.realpath(directory)}
    try:
        paths = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except OSError as error:
        if on_error is not None:
            on_error(error)
        return
    # A dangling link counts as a file, so that reading it is reported; a FIFO does not, since reading it would block.
    yield from (path for path in paths if _is_file(path) and not path.name.endswith(_SKIPPED_ENDINGS))
    for path in paths:
        if path.name not in _SKIPPED and os.path.isdir(path) and os.path.realpath(path) not in parents:  # noqa: PTH112  which may raise
            yield from _files(path, parents, on_error)


def _is_file(path: Path) -> bool:
    return os.path.isfile(path) or not os.path.exists(path)  # noqa: PTH110 PTH113


def digest_suffix(code: str | None) -> str:
    """Return the suffix of a spec's digest: a dash and 8 hexadecimal digits of the digest of the Python files of `code`.

    Only Python files count, because a run seldom writes them. Empty without code, or with too many files.
    """
    if code is None:
        return ""
    paths = list(itertools.islice(files(Path(code)), _MAX_FILES + 1))
    if len(paths) > _MAX_FILES:
        return ""
    digest = hashlib.sha256()
    for path in paths:
        if path.suffix == ".py":
            content = _content(path)
            digest.update(f"{path.relative_to(code).as_posix()} {len(content)}\n".encode() + content)
    return f"{_SEPARATOR}{digest.hexdigest()[:_DIGITS]}"


def without_code(spec_digest: str) -> str:
    """Return a spec's digest without the suffix of the code, which digests of earlier versions lack."""
    return spec_digest.partition(_SEPARATOR)[0]


def code_differs(old: str, new: str) -> bool:
    """Return whether two specs' digests have different code; False if one has no digest of code."""
    old_code, new_code = (digest.partition(_SEPARATOR)[2] for digest in (old, new))
    return bool(old_code and new_code) and old_code != new_code


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the task that needs it will report it
        return b""
