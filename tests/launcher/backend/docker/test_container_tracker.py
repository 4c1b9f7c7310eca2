"""The status of a task in a container, from the engine's state and the task's output."""

import json
from typing import Any

import pytest

from launcher.backend.docker.container_status import run_state
from launcher.backend.docker.container_tracker import ContainerTracker
from launcher.backend.docker.log_stream import lines
from launcher.runs.status import LogLine, State, TaskStatus
from launcher.timestamps import parse_rfc3339
from tests.golden_messages import Golden


def container(status: str, code: int = 0, **more: Any) -> dict[str, Any]:
    """Return a container's state as the engine describes it."""
    times = {"StartedAt": "2026-01-31T10:00:00.5Z", "FinishedAt": "2026-01-31T10:01:00Z"}
    return {"Status": status, "ExitCode": code, "OOMKilled": False, **times, **more}


def emit(tracker: ContainerTracker, **event: Any) -> None:
    parsed = tracker.feed(json.dumps({"event": event.pop("event"), "time": 1.0, "task": tracker.name, **event}))
    assert parsed is not None
    tracker.apply(parsed, self_reported=True)


@pytest.mark.parametrize(
    "engine_status, code, state",
    [
        ("created", 0, State.PENDING),
        ("restarting", 137, State.RESTARTING),
        ("exited", 0, State.SUCCEEDED),
        ("exited", 143, State.STOPPED),
        ("exited", 2, State.FAILED),
        ("dead", 1, State.FAILED),
    ],
)
def test_the_engine_s_state_decides_unless_the_container_runs(engine_status: str, code: int, state: State) -> None:
    tracker = ContainerTracker("chief")
    tracker.update(container(engine_status, code))
    assert tracker.state()[0] is state


def test_the_state_of_a_running_container_comes_from_its_output() -> None:
    tracker = ContainerTracker("chief")
    tracker.update(container("running"))
    emit(tracker, event="started", attempt=1)
    emit(tracker, event="waiting", missing=[{"task": "ps-0", "address": "ps-0:2222", "reason": "no answer"}])
    assert tracker.state() == (State.PENDING, "waiting for ps-0")
    emit(tracker, event="ready", seconds=3.0)
    assert tracker.state() == (State.RUNNING, "")
    emit(tracker, event="waiting", missing=[{"task": "ps-0", "address": "ps-0:2222", "reason": "no answer"}])
    assert tracker.state() == (State.RUNNING, "")  # the parent waits for the last peer a moment longer than the program
    emit(tracker, event="restarting", cause="a peer was lost", exit_code=75)
    assert tracker.state() == (State.RESTARTING, "a peer was lost")
    tracker.update(container("paused"))
    assert "docker unpause" in tracker.state()[1]


def test_restarts_that_the_trainer_does_not_count_are_listed() -> None:
    tracker = ContainerTracker("worker-0")
    emit(tracker, event="started", attempt=1)
    emit(tracker, event="restarting", cause="a peer was lost", exit_code=75, restarts=0)
    emit(tracker, event="restarting", cause="killed", exit_code=137, restarts=1)
    emit(tracker, event="restarting", cause="asked to stop", exit_code=143, restarts=1)
    assert (len(tracker.restarts), tracker.restarts_used) == (3, 1)
    tracker.code = 137
    emit(tracker, event="started", attempt=1)  # the engine has restarted it, and its own count starts at zero
    emit(tracker, event="restarting", cause="killed", exit_code=137, restarts=1)
    assert (len(tracker.restarts), tracker.restarts_used) == (5, 3)
    tracker.code = 143
    emit(tracker, event="started", attempt=1)
    assert (len(tracker.restarts), tracker.restarts_used) == (6, 3)


def test_after_a_recovery_all_restarts_are_left_again() -> None:
    tracker = ContainerTracker("worker-0", max_restarts=5)
    assert tracker.status().restarts_left == 5
    emit(tracker, event="restarting", cause="killed", exit_code=137, restarts=1, left=4)
    assert (tracker.status().restarts_left, tracker.restarts_used) == (4, 1)
    emit(tracker, event="recovered", restarts=0, left=5)
    assert (tracker.status().restarts_left, tracker.restarts_used, len(tracker.restarts)) == (5, 0, 1)
    assert ContainerTracker("worker-0").status().restarts_left is None


def test_a_trainer_that_is_at_its_first_attempt_again_was_restarted_by_the_engine() -> None:
    tracker = ContainerTracker("worker-0")
    emit(tracker, event="started", attempt=1)
    tracker.code = 137
    emit(tracker, event="started", attempt=1)
    emit(tracker, event="started", attempt=2)
    assert [(restart.exit_code, restart.cause) for restart in tracker.status().restarts] == [(137, "killed by SIGKILL")]


def test_the_state_of_a_program_without_a_trainer_comes_from_the_engine() -> None:
    tracker = ContainerTracker("chief", has_parent=False)
    tracker.feed("so many times")
    tracker.update(container("running"), 0)
    assert (tracker.state(), tracker.restarts) == ((State.RUNNING, ""), [])
    tracker.update(container("restarting", 7), 1)
    tracker.update(container("running"), 2)
    assert [(restart.attempt, restart.exit_code, restart.cause) for restart in tracker.restarts] == [
        (1, 7, "failed with exit code 7: so many times"),
        (2, 7, "failed with exit code 7: so many times"),
    ]
    tracker.update(container("exited", 7), 2)
    tracker.mark_restarting("failed", counts=True)
    assert tracker.state() == (State.RESTARTING, "failed")
    tracker.mark_starting()  # but the engine cannot start it
    tracker.update(container("exited", 7), 2)
    assert len(tracker.restarts) == 3
    # The engine counts from zero after a start that was not its own.
    tracker.mark_starting()
    tracker.mark_restarted()
    tracker.update(container("running"), 0)
    tracker.update(container("restarting", 7), 1)
    assert len(tracker.restarts) == 4


def test_restarts_of_a_program_that_succeeded_do_not_count() -> None:
    tracker = ContainerTracker("ps-0", has_parent=False, max_restarts=1)
    tracker.update(container("restarting", 0), 1)
    tracker.update(container("restarting", 0), 2)
    assert (len(tracker.restarts), tracker.restarts_used, tracker.status().restarts_left) == (2, 0, 1)


def test_a_container_without_python_names_the_field_for_it(golden: Golden) -> None:
    tracker = ContainerTracker("chief")
    tracker.feed("[FATAL tini (7)] exec python3 failed: No such file or directory")
    tracker.update(container("exited", 127))
    status = tracker.status()
    assert status.state == State.FAILED
    golden(status.reason)
    assert "`supervise: false`" in status.remedy
    # A shell that does not find a program ends with 127, too.
    emit(tracker, event="started", attempt=1)
    assert tracker.status().reason == "failed with exit code 127"


def test_the_reason_of_a_failure_is_the_task_s_own_or_that_memory_ran_out(golden: Golden) -> None:
    tracker = ContainerTracker("chief")
    tracker.feed("ValueError: no such layer")
    tracker.update(container("exited", 1))
    golden(tracker.state()[1])
    emit(tracker, event="failed", exit_code=2, cause="the configuration is wrong", detail="params.units: too many")
    golden(tracker.state()[1])
    tracker.update(container("exited", 137, OOMKilled=True))
    assert tracker.state()[1].startswith("out of memory")
    golden(tracker.status().remedy)


def test_the_engine_s_times_have_nine_digits_or_none() -> None:
    assert parse_rfc3339("2026-01-31T10:00:00.123456789Z") == pytest.approx(1769853600.123456789)
    assert parse_rfc3339("2026-01-31T10:00:00Z") == 1769853600
    assert parse_rfc3339("0001-01-01T00:00:00Z") is None
    assert parse_rfc3339(None) is None


def test_output_is_split_into_lines_even_if_one_arrives_in_parts() -> None:
    stamp = "2026-01-31T10:00:00.500000000Z "
    frames = [
        f"{stamp}one\n{stamp}two\n".encode(),
        f"{stamp}{'x' * 10}".encode(),
        f"{stamp}{'y' * 3}\n".encode(),
        f"{stamp}50%\r100%\n".encode(),
    ]
    assert [line for _, line in lines(frames, "chief")] == [
        *(LogLine(1769853600.5, "chief", text) for text in ("one", "two", "x" * 10 + "y" * 3)),
        LogLine(1769853600.5, "chief", "100%", b"50%\r100%"),
    ]


def status(name: str, state: State, code: int | None = None) -> TaskStatus:
    return TaskStatus(name, state, exit_code=code, ended=1.0, reason="why")


@pytest.mark.parametrize(
    "chief, worker, state",
    [
        (State.SUCCEEDED, State.RUNNING, State.SUCCEEDED),
        (State.RUNNING, State.SUCCEEDED, State.RUNNING),
        (State.FAILED, State.RUNNING, State.RUNNING),
        (State.FAILED, State.SUCCEEDED, State.FAILED),
        (State.STOPPED, State.STOPPED, State.STOPPED),
    ],
)
def test_the_state_of_a_run_without_a_supervisor_comes_from_its_tasks(chief: State, worker: State, state: State) -> None:
    tasks = (status("chief", chief, 1), status("worker-0", worker))
    assert run_state(tasks, ["chief"], ready=True)[0] is state


@pytest.mark.parametrize(
    "line", ["OSError: [Errno 30] Read-only file system: '/srv/x'", "mkdir: cannot create directory 'x': Permission denied"]
)
def test_the_remedy_for_missing_rights_in_an_image_of_one_s_own_names_the_security_field(line: str) -> None:
    for own in (True, False):
        tracker = ContainerTracker("chief", has_parent=False, hardened_user_image=own)
        tracker.feed(line)
        tracker.update(container("exited", 1))
        status = tracker.status()
        assert status.reason.endswith(line)
        assert ("`security: image`" in status.remedy) is own
