"""Tasks wait for a peer that is stopped, but not forever: real processes, stopped and continued."""

import json
import os
import signal
import time
from typing import Any

import pytest

from tests.trainer.engine.drive_stopped import NAMES
from tests.trainer.engine.drivers import Task, driven
from trainer.engine.collectives import liveness

PAUSE = 20.0  # seconds of a stop that the others wait out
GIVEN_UP = (30.0, 75.0)  # seconds until a task that stays stopped is given up: a minute, on a busy machine


def next_report(task: Task) -> dict[str, Any]:
    """Wait for the next report of a task, at most until the test times out; return it."""
    report = json.loads(task.stdout.readline())
    assert isinstance(report, dict)
    return report


def test_only_checks_of_one_silence_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_answers", lambda _task: False)
    now = [1000.0]

    def check(number: int) -> list[bool]:
        """Check so many times, at intervals of two seconds."""
        results = []
        for _ in range(number):
            now[0] += 2
            results.append(probe({0}))
        return results

    probe = liveness.HeartbeatProbe(["worker-0"], lambda: now[0])
    assert check(29) == [True] * 29
    now[0] += 10  # steps continued
    assert check(30) == [True] * 29 + [False]


@pytest.mark.slow
def test_tasks_wait_for_a_peer_stopped_for_20_seconds_and_give_up_one_that_stays_stopped() -> None:
    with driven("drive_stopped.py", len(NAMES)) as tasks:
        chief, first, second = tasks
        assert [next_report(task) for task in tasks] == [{"mean": 1.0}] * len(tasks)

        os.kill(chief.pid, signal.SIGSTOP)
        time.sleep(PAUSE)
        os.kill(chief.pid, signal.SIGCONT)
        for task in (first, second):
            report = next_report(task)
            assert report["mean"] == 1.0, report
            assert PAUSE - 1 < report["after"] < PAUSE + 10
        next_report(chief)  # the step was long for the chief, too

        os.kill(second.pid, signal.SIGSTOP)
        gave_up, left = next_report(chief), next_report(first)
        assert "does not answer any more; this one waited for worker-1" in gave_up["lost"]
        assert GIVEN_UP[0] < gave_up["after"] < GIVEN_UP[1]
        # A task that waits for the chief's sum sees that it has left.
        assert "chief is gone" in left["lost"]
