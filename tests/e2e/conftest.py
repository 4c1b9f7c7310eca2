"""Runs one module at a time on this machine of those in which TensorFlow trains on an engine or a cluster (mark `trains`).

Each of them starts up to eight processes that import TensorFlow, which takes 4 seconds of a core and twice that on a slow day. `.ci/run` shares these
tests among nine processes. Without this rule twenty such tasks might start at once on two cores, all of them too late.
"""

import fcntl
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import TextIO

import pytest

_LOCK = Path(tempfile.gettempdir()) / "tf-launcher-tests-that-train.lock"
_MAX_WAIT = 3600.0  # seconds that a module waits for its turn
_turn = pytest.StashKey[TextIO]()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of pytest-timeout's hook, so that a test's time begins with its turn
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Take the lock before the first test of a module that trains, and release it after the last one."""
    if _trains(item) and _turn not in item.config.stash:
        item.config.stash[_turn] = _take_turn()
    try:
        return (yield)
    finally:
        if _turn in item.config.stash and (nextitem is None or nextitem.path != item.path):
            item.config.stash[_turn].close()
            del item.config.stash[_turn]


def _trains(item: pytest.Item) -> bool:
    return item.get_closest_marker("trains") is not None


def _take_turn() -> TextIO:
    file = _LOCK.open("a")
    deadline = time.monotonic() + _MAX_WAIT
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            assert time.monotonic() < deadline, f"waited {_MAX_WAIT:g} s for {_LOCK}, which another test process holds"
            time.sleep(0.5)
        else:
            return file
