"""One task of a local run: how long its process ran, which decides about the back-off."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.backend.local.lifelines import Lifelines
from launcher.backend.local.process_task import ProcessTask
from tests.launcher.backend.local.running import Runs
from tests.waiting import until


@pytest.fixture
def task(tmp_path: Path) -> Iterator[ProcessTask]:
    runs = Runs(tmp_path)
    (planned,) = runs.plan({"chief": "pass"}).tasks
    runs.paths().tasks.mkdir(parents=True)
    task = ProcessTask(planned, runs.paths(), Lifelines([frozenset({"chief"})]), lambda _task, _output: None)
    yield task
    task.log.close()


def test_the_time_that_it_ran_ends_with_its_process_and_does_not_count_for_a_failed_start(task: ProcessTask) -> None:
    task.start()
    until("the end of the process", lambda: task.poll() == 0, seen=task.poll)
    task.finish(0)
    ran_for = task.ran_for
    time.sleep(0.01)
    assert task.ran_for == ran_for > 0
    task.task = dataclasses.replace(task.task, command=("/nowhere/program",))
    with pytest.raises(OSError, match="/nowhere/program"):
        task.start()
    assert task.ran_for == 0
