"""Reads JSON objects, and writes files that may hold secrets: values of `env` are in them as plain text."""

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object in a text, None if it has none."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if it cannot be read or has none."""
    try:
        return json_object(path.read_bytes())
    except OSError:
        return None


def is_directory(path: Path) -> bool:
    """Return whether `path` is a directory; False also without the permission to look."""
    try:
        return path.is_dir()
    except OSError:
        return False


def write(path: Path, text: str, *, private: bool) -> None:
    """Write a text file. If `private` and a regular file, only its owner may read it. Raises OSError."""
    if not private:
        path.write_text(text, encoding="utf-8")
        return
    with open(path, "w", encoding="utf-8", opener=_open_for_owner) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # others use /dev/null and pipes, too
            os.fchmod(file.fileno(), 0o600)  # an existing file keeps its mode when it is opened
        file.write(text)


def write_json(path: Path, document: Any, *, indent: int | None = 2, private: bool = False) -> None:
    """Replace a file atomically by a JSON document. Raises OSError.

    Only its owner may read the file if it is `private`, or if the file that it replaces was.
    """
    text = json.dumps(document, indent=indent, separators=None if indent else (",", ":"))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary, text + "\n", private=private or is_private(path))
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def is_private(path: Path) -> bool:
    """Return whether the file exists and only its owner may read it."""
    try:
        return not path.stat().st_mode & 0o077
    except OSError:
        return False


def _open_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
