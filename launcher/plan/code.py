"""The files of a spec's `code`: which they are, and a digest of the Python ones, by which other code is known."""

import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

# Names that are no code, or not the user's.
_SKIPPED = frozenset({"__pycache__", "node_modules"})
_SKIPPED_ENDINGS = (".pyc", ".pyo")
# A directory with more than that holds data as well, and is not looked through at every command.
_MAX_FILES = 10_000
_LENGTH = 8
_BEFORE = "-"


def files(directory: Path) -> Iterator[Path]:
    """Yield the files of `code`, in order: hidden ones and what Python compiled are none of it."""
    for base, directories, names in os.walk(directory):
        directories[:] = sorted(name for name in directories if not name.startswith(".") and name not in _SKIPPED)
        yield from (Path(base, name) for name in sorted(names) if not name.startswith(".") and not name.endswith(_SKIPPED_ENDINGS))


def suffix(code: str | None) -> str:
    """Return what a spec's digest ends with: a dash and 8 hexadecimal digits of the Python files of `code`, which a run itself seldom writes.

    Empty where there is no code, or too much of it to be looked through.
    """
    if code is None:
        return ""
    found = list(itertools.islice(files(Path(code)), _MAX_FILES + 1))
    if len(found) > _MAX_FILES:
        return ""
    digest = hashlib.sha256()
    for path in found:
        if path.suffix == ".py":
            content = _content(path)
            digest.update(f"{path.relative_to(code).as_posix()} {len(content)}\n".encode() + content)
    return f"{_BEFORE}{digest.hexdigest()[:_LENGTH]}"


def without_code(spec_digest: str) -> str:
    """Return the part of a spec's digest that is of the spec itself: the whole digest of earlier versions."""
    return spec_digest.partition(_BEFORE)[0]


def is_other(old: str, new: str) -> bool:
    """Return whether two digests of specs are of different code; False where one has no digest of code."""
    before, after = (one.partition(_BEFORE)[2] for one in (old, new))
    return bool(before and after) and before != after


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # anyone who needs it says so
        return b""
