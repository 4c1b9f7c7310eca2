"""A run whose directory is removed while it runs: its tasks end, nothing comes back, and no second run starts beside it."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from launcher.backend.local import backend, processes
from launcher.backend.model import State
from launcher.errors import UsageError
from tests.launcher.backend.local.running import FOREVER, Runs

TASKS = {"chief": FOREVER, "ps-0": FOREVER}


def up(runs: Runs, *, detach: bool = True) -> None:
    runs.start(TASKS, detach=detach)
    runs.until_line("up")
    runs.until_line("up", task="ps-0")
    assert len(runs.processes()) == 2


def gone(runs: Runs) -> bool:
    return not runs.processes()


@contextmanager
def unheard(pid: int) -> Iterator[None]:
    """Stop a process for a `with` block, so that it notices nothing; it is killed at the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


def test_its_tasks_end_and_nothing_comes_back(runs: Runs) -> None:
    up(runs)
    supervisor = runs.supervisor()
    shutil.rmtree(runs.layout().run_dir)
    runs.until("the tasks to end", lambda: gone(runs))
    runs.until("the supervisor to end", lambda: processes.identify(supervisor) is None)
    assert not runs.layout().run_dir.exists()
    assert runs.backend.runs() == []
    with pytest.raises(UsageError, match="there is no run run"):
        runs.backend.status("run")


def test_a_run_that_is_started_in_its_place_waits_for_the_end_and_is_let_alone(runs: Runs) -> None:
    up(runs)
    before, supervisor = set(runs.processes()), runs.supervisor()
    shutil.rmtree(runs.layout().run_dir)
    up(runs)
    assert not before & set(runs.processes())
    runs.until("the first supervisor to end", lambda: processes.identify(supervisor) is None)
    assert runs.backend.status("run").state == State.RUNNING
    assert runs.supervisor() != supervisor
    runs.backend.stop("run")
    assert gone(runs)


def test_no_run_starts_beside_tasks_that_stay_and_a_stop_ends_them(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    up(runs)
    monkeypatch.setattr(backend, "_KILL_WAIT", 0.3)
    with unheard(runs.supervisor()):
        shutil.rmtree(runs.layout().run_dir)
        with pytest.raises(UsageError, match=r"tasks of an earlier run run in .* still run: process \d+, \d+"):
            runs.start(TASKS)
        status = runs.backend.status("run")
        assert status.state == State.INTERRUPTED
        assert "was removed while the run ran; still running: process" in status.reason
        runs.backend.stop("run")
        assert gone(runs)


def test_who_follows_it_is_told(runs: Runs) -> None:
    up(runs, detach=False)
    shutil.rmtree(runs.layout().run_dir)
    status = runs.backend.status("run")
    assert (status.state, gone(runs)) == (State.FAILED, True)
    assert status.reason == f"{runs.layout().run_dir} was removed while the run ran; its tasks were killed"
