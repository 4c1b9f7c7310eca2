"""The error file that a failing training process leaves for its parent: the error line, and a fingerprint that identifies the failure.

TRAINER_ERROR_FILE has lines for people; the fingerprint is in a file beside it, which a user's own program does not write.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

VARIABLE = "TRAINER_ERROR_FILE"
# The fingerprint of a final failure begins with this; the cause follows.
FINAL_PREFIX = "for good: "
# The fingerprint of an attempt that has lost a peer; the step from which it began follows.
START_STEP_PREFIX = "start step "
CODE_ENDED_PROCESS = f"{FINAL_PREFIX}the training process was ended from inside"
_MAX_LINE = 2000


def write(line: str, fingerprint: str = "") -> None:
    """Write the error line, and a fingerprint that is not empty, for the parent. Without a parent, write nothing.

    On a full disk they are lost: an exception here would replace the exit code, which the parent needs more.
    """
    if path := os.environ.get(VARIABLE):
        with contextlib.suppress(OSError):
            Path(path).write_text(line, encoding="utf-8", errors="backslashreplace")
            if fingerprint:
                _fingerprint_file(Path(path)).write_text(fingerprint, encoding="utf-8", errors="backslashreplace")


def start_step_fingerprint(step: int | None) -> str:
    """Return the fingerprint of an attempt that lost a peer, empty if it has not begun at a step yet."""
    return "" if step is None else f"{START_STEP_PREFIX}{step}"


def clear(path: Path) -> None:
    """Delete the files of an earlier attempt."""
    for file in (path, _fingerprint_file(path)):
        file.unlink(missing_ok=True)


def last_line(path: Path | None) -> str:
    """Return the last error line, empty if there is none."""
    return next((line.strip()[:_MAX_LINE] for line in reversed(_text(path).split("\n")) if line.strip()), "")


def fingerprint(path: Path | None) -> str:
    """Return the fingerprint, empty if there is none."""
    return _text(_fingerprint_file(path)) if path else ""


def _fingerprint_file(path: Path) -> Path:
    return path.with_name(path.name + ".fingerprint")


def _text(path: Path | None) -> str:
    with contextlib.suppress(OSError):
        if path:
            return path.read_text(encoding="utf-8", errors="replace")
    return ""
