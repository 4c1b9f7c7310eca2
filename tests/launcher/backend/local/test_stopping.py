"""How runs on this machine are stopped, and what ends with them."""

import contextlib
import os
import signal
import time

import pytest

from launcher.runs.status import State
from tests.launcher.backend.local.running import SAVES, STUBBORN, Runs


def test_a_stop_lets_the_chief_save_before_the_servers(runs: Runs) -> None:
    slow = SAVES.replace("os._exit", "time.sleep(0.5); os._exit")
    runs.start({"chief": slow, "ps-0": SAVES, "worker-0": SAVES})
    for task in ("chief", "ps-0", "worker-0"):
        runs.until_line("up", task=task)
    runs.backend.stop("run")
    status = runs.backend.status("run")
    assert (status.state, status.reason) == (State.STOPPED, "asked to stop")
    saved = {task: float(runs.lines(task=task)[-1].removeprefix("saved ")) for task in ("chief", "ps-0", "worker-0")}
    assert min(saved["ps-0"], saved["worker-0"]) >= saved["chief"] + 0.4
    assert runs.processes() == []
    runs.backend.stop("run")  # again: nothing happens


def test_a_task_that_does_not_stop_is_killed_with_its_child_processes_after_the_grace_period(runs: Runs) -> None:
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'], process_group=0)\n"
    runs.start({"chief": child + STUBBORN}, grace_period=0.6)
    runs.until_line("up")
    assert len(runs.processes()) == 2
    began = time.time()
    reports: list[str] = []
    runs.backend.stop("run", report=reports.append)
    assert reports == ["chief: killed: it did not stop within 0.6 s"]
    assert time.time() - began > 0.5
    assert runs.processes() == []
    assert "did not stop within 0.6 s" in runs.backend.status("run").tasks[0].reason


FINISHES = SAVES.replace("os._exit(143)", "os._exit(0)")


def test_a_run_whose_programs_all_finish_when_asked_to_stop_has_succeeded(runs: Runs) -> None:
    runs.start({"chief": FINISHES, "worker-0": FINISHES}, supervised=True, env={"TRAINER_EVENTS": "json"})
    for task in ("chief", "worker-0"):
        runs.until_line("up", task=task)
    runs.backend.stop("run")
    status = runs.backend.status("run")
    assert (status.state, status.reason) == (State.SUCCEEDED, "it was done before it stopped")


def test_a_run_is_stopped_if_one_program_did_not_finish(runs: Runs) -> None:
    runs.start({"chief": FINISHES, "worker-0": SAVES})
    for task in ("chief", "worker-0"):
        runs.until_line("up", task=task)
    runs.backend.stop("run")
    assert runs.backend.status("run").state == State.STOPPED


def test_a_stop_waits_for_an_earlier_one_whose_launcher_was_interrupted(runs: Runs) -> None:
    runs.start({"chief": SAVES.replace("os._exit", "time.sleep(0.5); os._exit")})
    runs.until_line("up")
    os.kill(runs.supervisor(), signal.SIGTERM)  # as by a `launcher down` that was then interrupted
    runs.until("the stop to be noticed", lambda: runs.backend.status("run").reason == "asked to stop")
    runs.backend.stop("run")
    assert runs.lines(task="chief")[-1].startswith("saved ")
    assert runs.backend.status("run").tasks[0].exit_code == 143


def test_stopping_at_once_kills(runs: Runs) -> None:
    runs.start({"chief": STUBBORN, "ps-0": STUBBORN}, grace_period=100_000.0)  # longer than any test
    runs.until_line("up")
    runs.backend.stop("run", now=True)
    assert runs.backend.status("run").state == State.STOPPED
    assert runs.processes() == []


def test_a_later_second_sigterm_to_the_supervisor_kills(runs: Runs) -> None:
    runs.start({"chief": STUBBORN}, grace_period=100_000.0)
    runs.until_line("up")
    supervisor = runs.supervisor()

    def ended() -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor, signal.SIGTERM)
        return runs.backend.status("run").state == State.STOPPED

    runs.until("the supervisor to kill", ended)


@pytest.mark.parametrize("stopped", ["stopped by the supervisor", "signalled with all processes"])
def test_a_stop_of_every_process_at_once_saves(runs: Runs, stopped: str) -> None:
    """As by systemd or Slurm."""
    runs.start({"chief": SAVES.replace("    print(", "    time.sleep(0.5)\n    print(")}, supervised=True)
    runs.until_line("up")
    processes = [runs.supervisor()] if stopped == "stopped by the supervisor" else [runs.supervisor(), *runs.processes()]
    for process in processes:
        os.kill(process, signal.SIGTERM)
    assert runs.wait().state == State.STOPPED
    assert runs.lines(task="chief")[-1].startswith("saved ")
