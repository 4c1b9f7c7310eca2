"""A supervisor's decisions about the tasks of a run, with tasks that a test drives."""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from launcher.errors import LauncherError, StartInterruptedError
from launcher.plan.models import Plan, Resources, RestartRule, Task
from launcher.runs import run_controller, state_file
from launcher.runs.paths import RunPaths
from launcher.runs.restart_policy import RestartDecision
from launcher.runs.run_controller import ControlledTask, RunBackend, RunController, RunOutcome
from launcher.runs.status import State
from launcher.runs.stop_order import Shutdown
from launcher.runs.task_tracker import TaskTracker
from tests.golden_messages import Golden
from trainer.exit_codes import describe
from trainer.strategies import Scope, Strategy


class ScriptedTask(ControlledTask):
    """A task that ends when the test says so, and that records the calls of the controller."""

    ran_for = 0.0
    was_killed = False

    def __init__(self, task: Task, log: Path) -> None:
        super().__init__(task, log, TaskTracker(task.name, max_restarts=task.restart.max_restarts))
        self._running = False
        self.calls: list[str] = []

    @property
    def running(self) -> bool:
        """Whether the test lets it run."""
        return self._running

    def start(self) -> None:
        """Start it."""
        self._running = True
        self.tracker.mark_started()

    def stop(self, grace: float) -> None:
        """Record the call."""
        self.stop_at = None
        self.calls.append(f"stop within {grace:g} s")

    def kill(self) -> None:
        """Record the call."""
        self.calls.append("kill")

    def kill_for_restart(self) -> None:
        """Record the call."""
        self.calls.append("kill for restart")

    def prevent_restart(self) -> None:
        """Record the call."""
        self.calls.append("prevent restart")

    def decide(self, code: int) -> RestartDecision:
        """Decide by the policy `on_failure`."""
        return self.decide_by_policy(code, "on_failure")

    def end(self, controller: RunController, code: int) -> None:
        """End it with an exit code."""
        self._running, self.tracker.code = False, code
        self.was_killed = code == 137
        controller.on_exit(self, code)


class ScriptedBackend(RunBackend):
    """A run, driven step by step."""

    name = "local"

    def __init__(self, tasks: list[ScriptedTask]) -> None:
        self.tasks = tasks
        self.steps: list[Callable[[], object]] = []
        self.outcome: RunOutcome | None = None

    def start(self) -> None:
        """Start every task."""
        for task in self.tasks:
            task.start()

    def wait(self, run: RunController, timeout: float | None) -> None:  # noqa: ARG002
        """Do the next step."""
        self.steps.pop(0)()

    def close(self, run: RunController) -> None:
        """Do nothing: no output is left."""

    def clean_up(self, outcome: RunOutcome) -> None:
        """Store the outcome."""
        self.outcome = outcome

    def on_directory_lost(self) -> bool:
        """Request that the tasks are killed."""
        return True


class ScriptedRun:
    """A run whose steps a test determines, and its controller."""

    def __init__(
        self,
        directory: Path,
        *names: str,
        strategy: Strategy = "parameter_server",
        scope: Scope = "alone",
        restarts_stalled: bool = False,
        required: tuple[str, ...] | None = None,
    ) -> None:
        self.paths = RunPaths(directory / "run")
        self.paths.tasks.mkdir(parents=True)
        self.paths.lock.touch()
        rule = RestartRule(scope, 3)
        tasks = tuple(
            Task(name, name.partition("-")[0], 0, "", {}, (), {}, Resources(), rule, mounts_run_dir=False)  # type: ignore[arg-type]
            for name in names
        )
        run_dir, required = str(self.paths.run_dir), required or (names[0],)
        plan = Plan("run", "local", strategy, "", tasks, run_dir, 600.0, 30.0, None, required, restarts_stalled=restarts_stalled)
        self.tasks = {task.name: ScriptedTask(task, self.paths.log(task.name)) for task in tasks}
        self.backend = ScriptedBackend(list(self.tasks.values()))
        self.controller = RunController(self.paths, plan, self.backend.tasks, self.backend)

    def end(self, **codes: int) -> Callable[[], None]:
        """Return a step in which these tasks end."""

        def step() -> None:
            for name, code in codes.items():
                self.tasks[name.replace("_", "-")].end(self.controller, code)

        return step

    def play(self, *steps: Callable[[], object]) -> dict[str, tuple[State, str]]:
        """Start the run, take these steps, and return the final state and reason of each task."""
        self.backend.steps = list(steps)
        self.controller.start()
        self.controller.run()
        snapshot = state_file.read(self.paths.state)
        assert snapshot is not None
        return {task.name: (task.state, task.reason) for task in snapshot.status.tasks}


@pytest.mark.parametrize(
    "code, shutdown, state, reason",
    [
        (0, Shutdown(State.FAILED, ""), State.SUCCEEDED, ""),
        (143, Shutdown(State.SUCCEEDED, ""), State.SUCCEEDED, "stopped at the end of the run"),
        (143, Shutdown(State.STOPPED, ""), State.STOPPED, ""),
        (137, Shutdown(State.STOPPED, "", grace=30), State.STOPPED, "killed: it did not stop within 30 s"),
        (137, Shutdown(State.STOPPED, "", grace=0, at_once=True), State.STOPPED, "killed"),
        (1, Shutdown(State.SUCCEEDED, ""), State.FAILED, "failed with exit code 1"),
        (75, Shutdown(State.FAILED, ""), State.STOPPED, describe(75)),
    ],
)
def test_the_final_state_of_a_task_depends_on_the_end_of_the_run(
    tmp_path: Path, code: int, shutdown: Shutdown, state: State, reason: str
) -> None:
    run = ScriptedRun(tmp_path, "chief")
    run.controller._shutdown = shutdown
    run.end(chief=code)()
    assert run.tasks["chief"].tracker.state() == (state, reason)


def test_servers_are_asked_to_stop_once_the_tasks_that_save_have_ended(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, "chief", "ps-0")
    server_calls: list[list[str]] = []
    states = run.play(
        lambda: run.controller.on_stop_request(signal.SIGTERM),
        lambda: None,
        lambda: server_calls.append(list(run.tasks["ps-0"].calls)),
        run.end(chief=143),
        lambda: None,
        run.end(ps_0=143),
    )
    assert server_calls == [[]]
    assert [task.calls for task in run.backend.tasks] == [["stop within 30 s"], ["stop within 30 s"]]
    assert states == {"chief": (State.STOPPED, ""), "ps-0": (State.STOPPED, "")}
    assert run.backend.outcome == RunOutcome(State.STOPPED, "asked to stop", stop_requested=True, lost_at=None)


@pytest.mark.parametrize(
    "signals, reason",
    [
        ([signal.SIGQUIT], "asked to stop at once"),
        ([signal.SIGTERM, signal.SIGTERM], "asked to stop"),
        ([None, signal.SIGINT], "the launcher"),
    ],
)
def test_a_second_or_immediate_stop_request_kills_every_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: list[int | None], reason: str
) -> None:
    monkeypatch.setattr(run_controller, "_SAME_STOP_SECONDS", 0.0)
    run = ScriptedRun(tmp_path, "chief", "ps-0")
    states = run.play(*(lambda number=number: run.controller.on_stop_request(number) for number in signals), run.end(chief=137, ps_0=137))
    assert [task.calls[-1] for task in run.backend.tasks] == ["kill", "kill"]
    assert states == dict.fromkeys(("chief", "ps-0"), (State.STOPPED, "killed"))
    assert run.backend.outcome is not None
    assert run.backend.outcome.reason.startswith(reason)


def test_two_signals_at_once_are_one_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of systemd or Slurm, which signal every process of a run, and of the launcher."""
    monkeypatch.setattr(run_controller, "_SAME_STOP_SECONDS", 60.0)
    run = ScriptedRun(tmp_path, "chief")
    stop = partial(run.controller.on_stop_request, signal.SIGTERM)
    states = run.play(stop, stop, run.end(chief=143))
    assert [call for call in run.backend.tasks[0].calls if call.startswith(("stop", "kill"))] == ["stop within 30 s"]
    assert states == {"chief": (State.STOPPED, "")}


@pytest.mark.parametrize("restarts", [True, False])
def test_a_server_that_does_not_answer_is_restarted_unless_its_own_parent_does_so(tmp_path: Path, restarts: bool) -> None:
    run = ScriptedRun(tmp_path, "chief", "worker-0", "ps-0", "ps-1", restarts_stalled=restarts)

    def stalled(task: str, doing: str, place: str = "") -> Callable[[], None]:
        event = {"event": "stalled", "time": 1.0, "task": task, "seconds": 60.0, "doing": doing, "place": place}
        return lambda: run.controller.on_event(run.tasks[task], event)

    run.play(
        stalled("worker-0", "peers"),
        stalled("ps-1", "stopped"),
        stalled("chief", "servers", "ps-0, ps-1"),
        lambda: None,
        run.end(**{"ps-0": 137}) if restarts else lambda: None,
        lambda: run.controller.on_stop_request(signal.SIGQUIT),
        run.end(**({} if restarts else {"ps-0": 137}), chief=137, **{"worker-0": 137, "ps-1": 137}),
    )
    recorded = run.tasks["ps-0"].tracker.restarts
    assert [restart.cause for restart in recorded] == ["it did not answer, and chief waited for it"] * restarts
    assert [task.name for task in run.backend.tasks if "kill for restart" in task.calls] == ["ps-0"] * restarts


def test_a_stop_after_the_run_has_succeeded_reaches_all_remaining_tasks_at_once(tmp_path: Path, golden: Golden) -> None:
    run = ScriptedRun(tmp_path, "chief", "ps-0")
    calls: list[list[str]] = []
    states = run.play(
        run.end(chief=0),
        lambda: calls.append(list(run.tasks["ps-0"].calls)),
        lambda: run.controller.on_stop_request(signal.SIGTERM),
        lambda: calls.append(list(run.tasks["ps-0"].calls)),
        run.end(ps_0=143),
    )
    assert calls == [[], ["stop within 30 s"]]
    assert {name: state for name, (state, _) in states.items()} == {"chief": State.SUCCEEDED, "ps-0": State.SUCCEEDED}
    golden(states["ps-0"][1])


def test_a_restart_that_is_pending_when_the_run_ends_is_recorded_as_stopped(tmp_path: Path, golden: Golden) -> None:
    run = ScriptedRun(tmp_path, "chief", "ps-0", "worker-0")
    states = run.play(run.end(ps_0=1), run.end(chief=0), run.end(worker_0=0))
    assert states["ps-0"][0] is State.STOPPED
    golden(states["ps-0"][1])
    other = ScriptedRun(tmp_path / "other", "chief", "ps-0")
    states = other.play(other.end(ps_0=1), lambda: other.controller.on_stop_request(signal.SIGTERM), other.end(chief=143))
    assert states["ps-0"][0] is State.STOPPED
    golden(states["ps-0"][1])


def test_a_running_task_that_reports_its_final_failure_has_time_to_exit(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, "chief", "ps-0")
    states = run.play(
        lambda: run.controller.on_failure(run.tasks["chief"], 1),
        lambda: None,
        run.end(chief=1),
        lambda: None,
        run.end(ps_0=143),
    )
    assert run.tasks["chief"].calls == ["prevent restart"]
    assert states == {"chief": (State.FAILED, "failed with exit code 1"), "ps-0": (State.STOPPED, "")}


def test_a_task_that_is_no_longer_needed_may_fail_for_good(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, "chief", "ps-0", "evaluator", required=("chief", "evaluator"))
    states = run.play(
        run.end(chief=0),
        lambda: run.controller.on_failure(run.tasks["ps-0"], 1),
        run.end(ps_0=1),
        run.end(evaluator=0),
        lambda: None,
    )
    assert run.tasks["ps-0"].calls == ["prevent restart"]
    assert states["ps-0"] == (State.STOPPED, "failed with exit code 1")
    assert run.backend.outcome is not None
    assert run.backend.outcome.state is State.SUCCEEDED


def test_a_container_that_is_no_longer_needed_may_be_removed(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, "chief", "ps-0", "evaluator", required=("chief", "evaluator"))
    run.controller.start()
    run.end(chief=0)()
    run.controller.on_exit(run.tasks["ps-0"], None)
    assert run.tasks["ps-0"].tracker.state() == (State.STOPPED, "its container was removed")


def test_finished_peers_start_again_with_a_task_that_resumes_from_the_last_checkpoint(tmp_path: Path, golden: Golden) -> None:
    run = ScriptedRun(tmp_path, "chief", "worker-0", strategy="multi_worker_mirrored", scope="all")
    run.backend.steps = []
    run.controller.start()
    run.end(worker_0=0)()
    assert run.tasks["worker-0"].tracker.state()[0] is State.SUCCEEDED
    run.end(chief=75)()
    assert [task.tracker.state()[0] for task in run.backend.tasks] == [State.RESTARTING, State.RESTARTING]
    golden(run.tasks["worker-0"].tracker.state()[1])


def test_a_start_that_takes_too_long_names_the_tasks_that_wait_and_those_that_restart(tmp_path: Path, golden: Golden) -> None:
    run = ScriptedRun(tmp_path, "chief", "ps-0")
    run.controller.start()
    run.tasks["chief"].tracker.reported = (State.PENDING, "waiting for ps-0")
    run.end(ps_0=1)()
    run.controller._ready_by = 0.0
    run.controller._run_due_actions()
    assert run.controller._shutdown is not None
    golden(run.controller._shutdown.reason)


@pytest.mark.parametrize(
    "error, state",
    [(OSError(11, "no more processes"), State.FAILED), (StartInterruptedError("run"), State.STOPPED)],
    ids=["fails", "is interrupted"],
)
def test_a_run_that_cannot_start_leaves_no_task_and_is_recorded(error: Exception, state: State, tmp_path: Path, golden: Golden) -> None:
    run = ScriptedRun(tmp_path, "chief")

    def fail() -> None:
        run.tasks["chief"].start()
        raise error

    run.backend.start = fail  # type: ignore[method-assign]
    with pytest.raises(LauncherError):
        run.controller.start()
    assert run.tasks["chief"].calls == ["kill"]
    snapshot = state_file.read(run.paths.state)
    assert snapshot is not None
    assert snapshot.status.state is state
    golden(snapshot.status.reason)
