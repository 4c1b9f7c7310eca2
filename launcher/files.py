"""Reads JSON objects, and writes files that may hold secrets: what the user put into `env` stands in them as it is."""

import json
import os
import stat
from pathlib import Path
from typing import Any


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object that a text is, None where it is none."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None when the file is missing or has no such thing."""
    try:
        return json_object(path.read_bytes())
    except OSError:
        return None


def is_directory(path: Path) -> bool:
    """Return whether there is such a directory; False also where this user may not look."""
    try:
        return path.is_dir()
    except OSError:
        return False


def write(path: Path, text: str, *, private: bool) -> None:
    """Write a text file; a `private` one nobody but its owner may read, where it is a regular file. Raises OSError."""
    if not private:
        path.write_text(text, encoding="utf-8")
        return
    with open(path, "w", encoding="utf-8", opener=_for_owner) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # /dev/null and pipes are not ours alone
            os.fchmod(file.fileno(), 0o600)  # one that was there keeps the mode that it had
        file.write(text)


def is_private(path: Path) -> bool:
    """Return whether there is a file that nobody but its owner may read."""
    try:
        return not path.stat().st_mode & 0o077
    except OSError:
        return False


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
