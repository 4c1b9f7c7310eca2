"""The lock of a run's supervisor."""

import os
import subprocess
import time
from pathlib import Path

from launcher.runs import locks, process_identity
from launcher.runs.process_identity import Identity


def test_one_holder_at_a_time_has_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not locks.held(path)
    fd = locks.acquire(path)
    assert fd is not None
    assert locks.held(path)
    assert locks.acquire(path) is None
    started = time.monotonic()
    assert not locks.wait_released(path, timeout=0.2)
    assert time.monotonic() - started >= 0.2
    assert not locks.wait_released(path, timeout=0, holder=process_identity.identify(os.getpid()))
    assert locks.wait_released(path, timeout=0, holder=Identity(os.getpid(), "a process that had this id before"))
    os.close(fd)
    assert locks.wait_released(path, timeout=0)
    assert not locks.held(path)


def test_a_process_that_inherits_the_lock_holds_it_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    fd = locks.acquire(path)
    assert fd is not None
    holder = subprocess.Popen(["sleep", "60"], pass_fds=(fd,))
    os.close(fd)
    try:
        assert locks.held(path)
    finally:
        holder.kill()
        holder.wait(5)
    assert not locks.held(path)
