"""Leftovers when a supervisor, a launcher or a task is killed, and how a run continues after it."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.errors import LauncherError
from launcher.plan.models import Plan
from launcher.runs import orphans, process_identity
from launcher.runs.status import State
from tests.launcher.backend.local.running import FOREVER, SAVES, STUBBORN, Runs, event


def start_and_kill_supervisor(runs: Runs, grace_period: float) -> int:
    """Start a run, kill its supervisor, and return the process id of the chief, which ignores SIGTERM."""
    runs.start({"chief": STUBBORN}, grace_period=grace_period)
    runs.until_line("up")
    (pid,) = runs.processes()
    os.kill(runs.supervisor(), signal.SIGKILL)
    runs.until("the run to be interrupted", lambda: runs.backend.status("run").state == State.INTERRUPTED)
    return pid


def test_processes_that_a_task_leaves_behind_end_before_it_is_restarted(runs: Runs) -> None:
    child = "import time; time.sleep(3600)"
    runs.start({"chief": f"print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid); sys.exit(1)"}, max_restarts=1)
    runs.until("chief to be restarted", lambda: runs.backend.status("run").tasks[0].state == State.RESTARTING)
    assert process_identity.identify(int(runs.lines()[0])) is None
    runs.backend.stop("run")


def test_a_killed_supervisor_leaves_nothing_and_the_run_can_be_started_again(runs: Runs, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saves = SAVES.replace("os._exit", f"open({str(saved)!r}, 'w').close(); os._exit")
    runs.start({"chief": saves, "ps-0": STUBBORN}, supervised=True, env={"TRAINER_EVENTS": "json"}, grace_period=2.0)
    runs.until_line("up")
    runs.until_line("up", task="ps-0")
    assert len(runs.processes()) >= 4
    os.kill(runs.supervisor(), signal.SIGKILL)
    runs.until("the run to be interrupted", lambda: runs.backend.status("run").state == State.INTERRUPTED)
    assert "supervisor was killed" in runs.backend.status("run").reason
    runs.backend.stop("run")  # waits for the chief to save, and kills ps-0
    assert runs.processes() == []
    assert saved.exists()
    assert [status.state for status in runs.backend.runs()] == [State.INTERRUPTED]
    runs.start({"chief": "print('restarted')"})
    assert runs.wait().state == State.SUCCEEDED
    assert runs.lines()[-1] == "restarted"


def test_a_copy_of_a_live_run_has_no_processes_and_a_moved_run_keeps_its_own(runs: Runs) -> None:
    runs.start({"chief": FOREVER})
    runs.until("chief to run", lambda: runs.backend.status("run").state == State.RUNNING)
    shutil.copytree(runs.directory / "run", runs.directory / "copy", symlinks=True)
    copy = runs.backend.status("copy")
    assert (copy.state, copy.reason) == (State.INTERRUPTED, "the launcher's supervisor was killed")
    assert runs.backend.stop("copy") == {}
    runs.backend.delete("copy")
    assert runs.backend.status("run").state == State.RUNNING
    assert not runs.backend.status("run").tasks[0].restarts

    os.kill(runs.supervisor(), signal.SIGKILL)
    (runs.directory / "run").rename(runs.directory / "moved")
    runs.until("the run to be interrupted", lambda: runs.backend.status("moved").state == State.INTERRUPTED)
    assert "still running: chief (pid" in runs.backend.status("moved").reason
    runs.backend.stop("moved", now=True)
    assert runs.processes() == []


def test_without_its_supervisor_every_task_ends_by_itself_and_the_chief_first(runs: Runs, tmp_path: Path) -> None:
    def saves(task: str, seconds: float) -> str:
        return SAVES.replace("os._exit", f"time.sleep({seconds}); open({str(tmp_path / task)!r}, 'w').write(str(time.time())); os._exit")

    programs = {"chief": saves("chief", 0.5), "worker-0": saves("worker-0", 0), "ps-0": saves("ps-0", 0)}
    runs.start(programs, supervised=True, env={"TRAINER_EVENTS": "json"})
    for task in programs:
        runs.until_line("up", task=task)
    os.kill(runs.supervisor(), signal.SIGKILL)
    runs.until("all processes to end", lambda: not runs.processes())
    assert runs.backend.status("run").reason == "the launcher's supervisor was killed"
    saved = {task: float((tmp_path / task).read_text()) for task in programs}
    assert saved["chief"] < min(saved["worker-0"], saved["ps-0"])


def test_a_start_first_ends_the_tasks_of_a_killed_supervisor(runs: Runs) -> None:
    pid = start_and_kill_supervisor(runs, grace_period=0.3)
    assert f"chief (pid {pid})" in runs.backend.status("run").reason
    runs.start({"chief": FOREVER})
    assert pid not in runs.processes()
    assert runs.backend.status("run").state == State.RUNNING
    runs.backend.stop("run")


def test_orphans_are_ended_even_while_another_process_holds_a_shared_lock(runs: Runs) -> None:
    start_and_kill_supervisor(runs, grace_period=0.1)
    # As `locks.held` does for a moment.
    lock = os.open(runs.paths().lock, os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)
    threading.Timer(0.3, os.close, [lock]).start()
    orphans.clear(runs.paths(), now=True)
    assert runs.processes() == []


def test_tasks_that_cannot_be_ended_are_reported_and_ended_by_the_next_stop(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = start_and_kill_supervisor(runs, grace_period=0.1)
    with monkeypatch.context() as patched:
        patched.setattr(process_identity, "kill_session", lambda _leader: False)  # as for a process that another user owns
        with pytest.raises(LauncherError, match=rf"cannot be ended: chief \(pid {pid}\)"):
            runs.backend.stop("run")
    runs.backend.stop("run")
    assert runs.processes() == []


def test_a_run_in_the_foreground_ends_with_the_launcher_that_waits(runs: Runs, foreground: Callable[[Plan], subprocess.Popen[str]]) -> None:
    launcher = foreground(runs.plan({"chief": SAVES, "ps-0": FOREVER}))
    runs.until_line("up")
    launcher.kill()
    ended = runs.wait()
    assert (ended.state, ended.reason) == (State.STOPPED, "the launcher that ran it in the foreground is gone")
    assert any(line.startswith("saved") for line in runs.lines())
    assert runs.processes() == []


def test_a_detached_run_outlives_the_launcher_and_its_terminal(runs: Runs) -> None:
    runs.start({"chief": "print(os.getsid(0) == os.getpid()); time.sleep(0.5)"})
    runs.until("the chief's line", lambda: runs.lines() == ["True"])
    assert os.getsid(runs.supervisor()) != os.getsid(0)
    assert runs.wait().state == State.SUCCEEDED


def test_an_interrupted_run_reports_the_checkpoint_that_its_chief_saved_afterwards(runs: Runs) -> None:
    runs.start({"chief": event("progress", step=40, steps=100) + "print('up'); time.sleep(3600)"}, grace_period=0.1)
    runs.until_line("up")
    os.kill(runs.supervisor(), signal.SIGKILL)
    summary = {"step": 47, "steps": 100, "metrics": {"accuracy": 0.5}, "checkpoint": "/where/it/was/copied/from/checkpoints/ckpt-47"}
    runs.paths().run_json.write_text(json.dumps(summary))
    runs.until("the run to be interrupted", lambda: runs.backend.status("run").state == State.INTERRUPTED)
    status = runs.backend.status("run")
    assert (status.step, status.checkpoint_step, status.metrics) == (47, 47, {"accuracy": 0.5})
    assert status.checkpoint == str(runs.paths().run_dir / "checkpoints" / "ckpt-47")
    runs.backend.stop("run", now=True)
