"""A task's scratch directory if the temporary directory takes no locks or no files."""

import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from trainer import scratch


@pytest.mark.parametrize("refused", ["open", "flock"])
def test_a_directory_that_cannot_be_locked_is_removed(refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def refuse(path: Any, *rest: Any, **named: Any) -> int:
        if refused == "flock" or rest[0] & os.O_CREAT:  # the lock file, not a directory that is removed
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        return real_open(path, *rest, **named)

    before = len(os.listdir("/dev/fd"))  # noqa: PTH208 - of descriptors
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr({"open": os, "flock": fcntl}[refused], refused, refuse)  # like a file system that has no locks, or is full
    with scratch.directory() as path:
        assert path is None
    monkeypatch.undo()
    assert (list(tmp_path.iterdir()), len(os.listdir("/dev/fd"))) == ([], before)  # noqa: PTH208
