"""Writes files that may hold secrets: what the user put into `env` stands in them as it is."""

import os
from pathlib import Path


def write(path: Path, text: str, *, private: bool) -> None:
    """Write a text file; a `private` one nobody but its owner may read. Raises OSError."""
    if not private:
        path.write_text(text, encoding="utf-8")
        return
    with open(path, "w", encoding="utf-8", opener=_for_owner) as file:
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
