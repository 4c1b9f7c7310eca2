"""Holds back what TensorFlow writes to stderr while it is imported; the parent finds it if the import kills the process. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from trainer import error_file

# absl's warning about its log, and the line about oneDNN. Both are written before any log level is read; no setting silences them while oneDNN is on.
_ANNOUNCEMENTS = (b"WARNING: All log messages before absl::InitializeLog()", b"I0000 ")


@contextlib.contextmanager
def capture_import() -> Iterator[None]:
    """Hold back output to stderr inside, then write it without TensorFlow's announcements. The garbage collector is off meanwhile."""
    sys.stderr.flush()
    gc.disable()  # objects of an import stay; scanning them again and again takes a sixth of TensorFlow's import time
    real = os.dup(2)
    with _held_output() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            for line in _without_announcements(held):
                os.write(2, line)
            if isinstance(held.name, str):
                with contextlib.suppress(OSError):
                    Path(held.name).unlink()
            gc.freeze()
            gc.enable()


def take_captured_output(error_path: Path) -> str:
    """Return and delete what a process had held back when it died during the import, e.g. by an abort in C; empty if it did not."""
    path = _path(error_path)
    try:
        with path.open("rb") as held:
            return b"".join(_without_announcements(held)).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        path.unlink(missing_ok=True)


def _held_output() -> IO[bytes]:
    """Return a file beside the error file; a nameless one without a parent, or if that cannot be created."""
    if error_path := os.environ.get(error_file.VARIABLE):
        with contextlib.suppress(OSError):
            return _path(Path(error_path)).open("w+b")
    return tempfile.TemporaryFile()


def _path(error_path: Path) -> Path:
    return error_path.with_name(f"{error_path.name}.import")


def _without_announcements(held: IO[bytes]) -> Iterator[bytes]:
    return (line for line in held if not line.startswith(_ANNOUNCEMENTS))
