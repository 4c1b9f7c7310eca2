"""Containers as the engine shows them, and the reaction to tasks that have ended. Actions on containers are tested with a real engine."""

import json
import math
import queue
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker.models.containers import Container

from launcher.backend.docker import compose_up, run_containers
from launcher.backend.docker.engine import Engine
from launcher.backend.docker.event_stream import ContainerEnded, ContainerEvent, LineWritten
from launcher.backend.docker.run_containers import RunContainers
from launcher.errors import LauncherError
from launcher.plan.planner import plan
from launcher.render import labels
from launcher.runs import state_file
from launcher.runs.paths import RunPaths
from launcher.runs.run_controller import ControlledTask, RunController
from launcher.runs.status import LogLine, State
from launcher.spec.models import ClusterSpec
from trainer.exit_codes import ExitCode

# A program without a parent in its container, which the supervisor restarts after some exit codes.
SPEC = {
    "version": 1,
    "name": "toy",
    "command": ["./train"],
    "image": "mine:1",
    "supervise": False,
    "roles": {"chief": {"restart": "exit_code"}},
}


class Sidecar(Container):
    """A sidecar that runs; it records the calls that would change it."""

    def __init__(self) -> None:
        container_labels = {labels.SERVICE: "chief-log", labels.SIDECAR_OF: "chief"}
        super().__init__({"Id": "1", "Config": {"Labels": container_labels}, "State": {"Status": "running"}})
        self.calls: list[str] = []

    def update(self, **changes: Any) -> None:
        """Record a change of the restart policy."""
        self.calls.append(f"restart policy {changes['restart_policy']['Name']}")

    def stop(self, **_: Any) -> None:
        """Record a stop."""
        self.calls.append("stop")

    def restart(self, **_: Any) -> None:
        """Record a restart, which takes a moment."""
        time.sleep(0.05)
        self.calls.append("restart")


@contextmanager
def handlers_restored() -> Iterator[None]:
    """Restore this process's signal handlers after a `with` block."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def joined(containers: RunContainers) -> None:
    """Wait for the calls that change sidecars."""
    for thread in containers.sidecars._threads.values():
        thread.join(30)


@pytest.fixture
def containers(tmp_path: Path) -> RunContainers:
    """Return the containers of a run with one task; these tests never call the engine."""
    paths = RunPaths(tmp_path / "toy")
    paths.tasks.mkdir(parents=True)
    paths.lock.touch()
    run_containers = RunContainers(paths, plan(ClusterSpec.model_validate(SPEC), "docker", run_dir="/runs/toy"), cast("Engine", None))
    run_containers._polled_at = math.inf
    return run_containers


@pytest.fixture
def run(containers: RunContainers) -> RunController:
    return RunController(containers._paths, containers._plan, containers.tasks, containers)


@pytest.mark.parametrize("code, calls", [(137, []), (ExitCode.DONE, ["restart policy no", "stop"])], ids=["restarts", "is done"])
def test_a_sidecar_is_stopped_only_if_its_task_does_not_restart(
    containers: RunContainers, run: RunController, code: int, calls: list[str]
) -> None:
    sidecar = Sidecar()
    containers.sidecars.update([sidecar])
    (chief,) = containers.tasks
    times = {"StartedAt": "2026-01-31T10:00:00Z", "FinishedAt": "2026-01-31T10:00:05Z"}
    chief.update({"State": {"Status": "exited", "ExitCode": code, "OOMKilled": False, **times}}, 0.0)
    chief._exited_at = time.monotonic() - 60
    containers._engine_seen = time.monotonic()
    containers._report_exits(run)
    assert (chief.restart_at is not None) == (code != ExitCode.DONE)
    joined(containers)
    assert sidecar.calls == calls


def restarted_task() -> tuple[Container, Sidecar]:
    """Return a task that has just been started again, and its sidecar, which was stopped when the task had ended."""
    task = Container(
        {
            "Config": {"Labels": {labels.SERVICE: "chief", labels.TASK: "chief"}},
            "State": {"Status": "running", "StartedAt": "2026-01-31T10:00:10Z"},
        }
    )
    sidecar = Sidecar()
    sidecar.attrs["State"] = {"Status": "exited", "StartedAt": "2026-01-31T10:00:00Z"}
    return task, sidecar


def test_a_sidecar_that_was_stopped_starts_again_with_its_task_and_is_restarted_by_the_engine_as_before(
    containers: RunContainers,
) -> None:
    task, sidecar = restarted_task()
    containers.sidecars.update([sidecar])
    containers.sidecars.restart_outdated(task)
    joined(containers)
    assert sidecar.calls == ["restart policy unless-stopped", "restart"]


def test_a_sidecar_that_is_being_restarted_when_its_run_ends_is_stopped(containers: RunContainers) -> None:
    task, sidecar = restarted_task()
    containers.sidecars.update([sidecar])
    containers.sidecars.restart_outdated(task)
    containers.sidecars.stop_all()
    assert sidecar.calls == ["restart policy unless-stopped", "restart", "restart policy no", "stop"]


def test_the_sidecars_of_a_run_whose_engine_does_not_answer_stay(containers: RunContainers, run: RunController) -> None:
    def no_answer(_: str) -> list[Container]:
        raise ConnectionRefusedError(111, "Connection refused")

    sidecar = Sidecar()
    containers.sidecars.update([sidecar])
    containers._engine = cast("Engine", SimpleNamespace(containers=no_answer))
    containers._engine_seen -= 3600
    containers._poll(run)
    run.run()
    assert sidecar.calls == []
    snapshot = state_file.read(containers._paths.state)
    assert snapshot is not None
    assert snapshot.status.state is State.INTERRUPTED


def test_a_run_that_lost_its_directory_does_not_stop_the_sidecars_of_a_new_run_of_its_name(
    containers: RunContainers, run: RunController
) -> None:
    sidecar = Sidecar()
    containers.on_directory_lost()
    containers._engine = cast("Engine", SimpleNamespace(containers=lambda _: [sidecar]))
    containers._poll(run)
    containers.close(run)
    assert sidecar.calls == []


@pytest.mark.parametrize(
    "signals, state, reason",
    [
        ({"Compose", "removal"}, State.STOPPED, "its start was interrupted"),
        ({"earlier run"}, State.STOPPED, "its start was interrupted"),
        ({"removal"}, State.FAILED, "the image was not found"),
        ({"record"}, State.FAILED, "the image was not found"),
    ],
    ids=["during and after Compose", "before Compose", "in the removal after a failure", "in the record of a failure"],
)
def test_a_signal_ends_only_compose_and_neither_the_removal_of_containers_nor_the_record(
    signals: set[str], state: State, reason: str, containers: RunContainers, run: RunController, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    def reach(step: str) -> None:
        signal.raise_signal(signal.SIGHUP)  # is ignored
        if step in signals:
            signal.raise_signal(signal.SIGTERM)
        steps.append(step)

    def compose(*_: object, **__: object) -> None:
        reach("Compose")
        raise LauncherError("the image was not found")

    volume = SimpleNamespace(remove=lambda: steps.append("removed the volume"))
    containers._engine = cast("Engine", SimpleNamespace(containers=lambda _: [], remove=lambda _: None, volumes=lambda _: [volume]))
    monkeypatch.setattr(compose_up, "_has_data", lambda *_: False)
    monkeypatch.setattr(compose_up, "stop_running", lambda _: reach("earlier run"))
    monkeypatch.setattr(compose_up, "compose", compose)
    monkeypatch.setattr(compose_up, "_clear", lambda *_: reach("removal"))
    monkeypatch.setattr(containers, "clean_up", lambda _: reach("record"))
    with handlers_restored():
        containers.listen(None)
        with pytest.raises(LauncherError, match=reason):
            run.start()
    assert [step for step in steps if step != "Compose"] == ["earlier run", "removal", "removed the volume", "record"]
    snapshot = state_file.read(containers._paths.state)
    assert snapshot is not None
    assert snapshot.status.state is state


class Flood(queue.SimpleQueue[ContainerEvent]):
    """A queue of lines that never ends."""

    def get(self, block: bool = True, timeout: float | None = None) -> ContainerEvent:  # noqa: ARG002
        """Return one more line."""
        return LineWritten("chief", LogLine(1.0, "chief", "again"))


def test_a_flood_of_lines_delays_neither_deadlines_nor_a_request_to_stop(containers: RunContainers, run: RunController) -> None:
    containers._inbox = Flood()
    containers.wait(run, None)  # returns, so that the controller checks its deadlines
    containers.request_stop(signal.SIGTERM)
    containers.wait(run, None)
    assert run._shutdown is not None
    assert run._shutdown.reason == "asked to stop"


class Failures(RunController):
    """A controller that records the exit codes of tasks that failed permanently."""

    def __init__(self, containers: RunContainers) -> None:
        super().__init__(containers._paths, containers._plan, containers.tasks, containers)
        self.codes: list[int] = []

    def on_failure(self, task: ControlledTask, code: int) -> None:
        """Record the exit code."""
        assert task.name == "chief"
        self.codes.append(code)


@pytest.mark.parametrize(
    "event, codes",
    [
        ({"event": "failed", "task": "chief", "exit_code": 1}, [1]),
        ({"event": "failed", "task": "chief", "exit_code": 75}, []),
        ({"event": "failed", "task": "worker-0", "exit_code": 1}, []),
        ({"event": "progress", "task": "chief", "step": 1}, []),
    ],
)
def test_a_trainer_that_reports_a_permanent_failure_is_not_waited_for(
    containers: RunContainers, event: dict[str, Any], codes: list[int]
) -> None:
    run = Failures(containers)
    containers.tasks[0].tracker.has_parent = True
    containers._receive(LineWritten("chief", LogLine(1.0, "chief", json.dumps(event, separators=(",", ":")))), run)
    assert run.codes == codes


@pytest.mark.parametrize("code, codes", [(ExitCode.FINAL_FAILURE, [2]), (137, [])])
def test_a_wrong_configuration_is_final_as_soon_as_the_engine_reports_the_exit_code(
    containers: RunContainers, code: int, codes: list[int]
) -> None:
    run = Failures(containers)
    containers._receive(ContainerEnded("chief", code), run)
    assert (run.codes, containers.tasks[0].tracker.code) == (codes, code)


@pytest.mark.parametrize("code, final", [(0, False), (2, True), (75, False), (143, False), (1, True), (137, True)])
def test_which_ends_are_final_when_the_trainer_failed_for_good(code: int, final: bool) -> None:
    assert run_containers._is_final(code) is final
