"""A task that is stopped is waited for, but not forever: real processes, stopped and continued."""

import json
import os
import signal
import time
from typing import Any

import pytest

from tests.trainer.engine.drive_stopped import NAMES
from tests.trainer.engine.drivers import Task, driven
from trainer.engine.collectives import liveness

PAUSE = 20.0  # seconds that are waited out
GIVEN_UP = (30.0, 75.0)  # seconds until one that does not come back is given up: a minute, on a busy machine


def told(task: Task) -> dict[str, Any]:
    """Return what a task says next; None of them is silent for longer than this test may take."""
    said = json.loads(task.stdout.readline())
    assert isinstance(said, dict)
    return said


def test_only_looks_of_one_silence_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_answers", lambda _task: False)
    now = [1000.0]

    def looks(number: int) -> list[bool]:
        """Look so many times, two seconds after each other."""
        found = []
        for _ in range(number):
            now[0] += 2
            found.append(probe({0}))
        return found

    probe = liveness.HeartbeatProbe(["worker-0"], lambda: now[0])
    assert looks(29) == [True] * 29
    now[0] += 10  # steps went on
    assert looks(30) == [True] * 29 + [False]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_task_stopped_for_20_seconds_is_waited_for_and_one_stopped_for_good_given_up() -> None:
    with driven("drive_stopped.py", len(NAMES)) as tasks:
        chief, first, second = tasks
        assert [told(task) for task in tasks] == [{"mean": 1.0}] * len(tasks)

        os.kill(chief.pid, signal.SIGSTOP)
        time.sleep(PAUSE)
        os.kill(chief.pid, signal.SIGCONT)
        for task in (first, second):
            said = told(task)
            assert said["mean"] == 1.0, said
            assert PAUSE - 1 < said["after"] < PAUSE + 10
        told(chief)  # to itself, too, that step was long

        os.kill(second.pid, signal.SIGSTOP)
        gave_up, left = told(chief), told(first)
        assert "does not answer any more; this one waited for worker-1" in gave_up["lost"]
        assert GIVEN_UP[0] < gave_up["after"] < GIVEN_UP[1]
        # A task that waits for the chief's sum sees that it has left.
        assert "chief is gone" in left["lost"]
