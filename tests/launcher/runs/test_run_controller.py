"""A supervisor's decisions about the tasks of a run, whatever runs them."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.plan.models import Plan, Resources, RestartRule, Task
from launcher.runs import state_file
from launcher.runs.paths import RunPaths
from launcher.runs.restart_policy import RestartDecision
from launcher.runs.run_controller import ControlledTask, Ending, Outcome, RunController, Runtime
from launcher.runs.status import State
from launcher.runs.task_tracker import TaskTracker
from tests.golden_messages import Golden
from trainer.exit_codes import describe
from trainer.strategies import Scope, Strategy


class ScriptedTask(ControlledTask):
    """A task that a test runs: it ends when the test says so, and what is done to it is noted."""

    ran_for = 0.0
    was_killed = False

    def __init__(self, task: Task, log: Path) -> None:
        super().__init__(task, log, TaskTracker(task.name, max_restarts=task.restart.max_restarts))
        self._running = False
        self.done_to: list[str] = []

    @property
    def running(self) -> bool:
        """Whether the test lets it run."""
        return self._running

    def start(self) -> None:
        """Run."""
        self._running = True
        self.tracker.mark_started()

    def stop(self, grace: float) -> None:
        """Note it."""
        self.stop_at = None
        self.done_to.append(f"stop within {grace:g} s")

    def kill(self) -> None:
        """Note it."""
        self.done_to.append("kill")

    def interrupt(self) -> None:
        """Note it."""
        self.done_to.append("interrupt")

    def prevent_restart(self) -> None:
        """Note it."""
        self.done_to.append("never again")

    def decide(self, code: int) -> RestartDecision:
        """Go by the rule for failures."""
        return self.decide_by_policy(code, "on_failure")

    def end(self, run: RunController, code: int) -> None:
        """End with an exit code."""
        self._running, self.tracker.code = False, code
        self.was_killed = code == 137
        run.exited(self, code)


class Script(Runtime):
    """A run, driven step by step."""

    backend = "local"

    def __init__(self, tasks: list[ScriptedTask]) -> None:
        self.tasks = tasks
        self.steps: list[Callable[[], object]] = []
        self.outcome: Outcome | None = None

    def start(self) -> None:
        """Start every task."""
        for task in self.tasks:
            task.start()

    def wait(self, run: RunController, within: float | None) -> None:  # noqa: ARG002
        """Do the next step."""
        self.steps.pop(0)()

    def close(self, run: RunController) -> None:
        """All has been heard."""

    def clean_up(self, outcome: Outcome) -> None:
        """Keep how the run has ended."""
        self.outcome = outcome

    def on_directory_lost(self) -> bool:
        """Have the tasks killed."""
        return True


class Made:
    """A run of a test."""

    def __init__(
        self,
        directory: Path,
        *names: str,
        strategy: Strategy = "parameter_server",
        scope: Scope = "alone",
        most: int = 3,
        restarts_stalled: bool = False,
    ) -> None:
        self.paths = RunPaths(directory / "run")
        self.paths.tasks.mkdir(parents=True)
        self.paths.lock.touch()
        rule = RestartRule(scope, most)
        tasks = tuple(
            Task(name, name.partition("-")[0], 0, "", {}, (), {}, Resources(), rule, mounts_run_dir=False)  # type: ignore[arg-type]
            for name in names
        )
        where, required = str(self.paths.run_dir), (names[0],)
        plan = Plan("run", "local", strategy, "", tasks, where, 600.0, 30.0, None, required, restarts_stalled=restarts_stalled)
        self.tasks = {task.name: ScriptedTask(task, self.paths.log(task.name)) for task in tasks}
        self.script = Script(list(self.tasks.values()))
        self.run = RunController(self.paths, plan, self.script.tasks, self.script)

    def end(self, **codes: int) -> Callable[[], None]:
        """Return a step in which these tasks end."""

        def step() -> None:
            for name, code in codes.items():
                self.tasks[name.replace("_", "-")].end(self.run, code)

        return step

    def keep(self, *steps: Callable[[], object]) -> dict[str, tuple[State, str]]:
        """Start the run, take these steps, and return how each task has ended."""
        self.script.steps = list(steps)
        self.run.start()
        self.run.run()
        snapshot = state_file.read(self.paths.state)
        assert snapshot is not None
        return {task.name: (task.state, task.reason) for task in snapshot.status.tasks}


@pytest.mark.parametrize(
    "code, ending, state, reason",
    [
        (0, Ending(State.FAILED, ""), State.SUCCEEDED, ""),
        (143, Ending(State.SUCCEEDED, ""), State.SUCCEEDED, "stopped at the end of the run"),
        (143, Ending(State.STOPPED, ""), State.STOPPED, ""),
        (137, Ending(State.STOPPED, "", grace=30), State.STOPPED, "killed: it did not stop within 30 s"),
        (137, Ending(State.STOPPED, "", grace=0, at_once=True), State.STOPPED, "killed"),
        (1, Ending(State.SUCCEEDED, ""), State.FAILED, "failed with exit code 1"),
        (75, Ending(State.FAILED, ""), State.STOPPED, describe(75)),
    ],
)
def test_how_a_task_ended_is_told_by_how_the_run_did(tmp_path: Path, code: int, ending: Ending, state: State, reason: str) -> None:
    made = Made(tmp_path, "chief")
    made.run._ending = ending
    made.end(chief=code)()
    assert made.tasks["chief"].tracker.state() == (state, reason)


def test_those_that_save_are_asked_first_and_servers_once_they_have_ended(tmp_path: Path) -> None:
    made = Made(tmp_path, "chief", "ps-0")
    servers: list[list[str]] = []
    found = made.keep(
        lambda: made.run.stop_requested(signal.SIGTERM),
        lambda: None,
        lambda: servers.append(list(made.tasks["ps-0"].done_to)),
        made.end(chief=143),
        lambda: None,
        made.end(ps_0=143),
    )
    assert servers == [[]]
    assert [task.done_to for task in made.script.tasks] == [["stop within 30 s"], ["stop within 30 s"]]
    assert found == {"chief": (State.STOPPED, ""), "ps-0": (State.STOPPED, "")}
    assert made.script.outcome == Outcome(State.STOPPED, "asked to stop", stop_requested=True, lost_at=None)


@pytest.mark.parametrize(
    "signals, reason",
    [
        ([signal.SIGQUIT], "asked to stop at once"),
        ([signal.SIGTERM, signal.SIGTERM], "asked to stop"),
        ([None, signal.SIGINT], "the launcher"),
    ],
)
def test_who_asks_twice_or_at_once_has_every_task_killed(tmp_path: Path, signals: list[int | None], reason: str) -> None:
    made = Made(tmp_path, "chief", "ps-0")
    found = made.keep(*(lambda number=number: made.run.stop_requested(number) for number in signals), made.end(chief=137, ps_0=137))
    assert [task.done_to[-1] for task in made.script.tasks] == ["kill", "kill"]
    assert found == dict.fromkeys(("chief", "ps-0"), (State.STOPPED, "killed"))
    assert made.script.outcome is not None
    assert made.script.outcome.reason.startswith(reason)


@pytest.mark.parametrize("restarts", [True, False])
def test_a_server_that_does_not_answer_is_started_again_and_not_one_whose_own_parent_sees_to_it(tmp_path: Path, restarts: bool) -> None:
    made = Made(tmp_path, "chief", "worker-0", "ps-0", "ps-1", restarts_stalled=restarts)

    def stalled(task: str, doing: str, place: str = "") -> Callable[[], None]:
        event = {"event": "stalled", "time": 1.0, "task": task, "seconds": 60.0, "doing": doing, "place": place}
        return lambda: made.run.reported(made.tasks[task], event)

    frozen: list[list[str]] = []
    made.keep(
        stalled("worker-0", "peers"),
        stalled("ps-1", "stopped"),
        stalled("chief", "servers", "ps-0, ps-1"),
        lambda: frozen.extend(task.done_to for task in made.script.tasks),
        made.end(**{"ps-0": 137}) if restarts else lambda: None,
        lambda: made.run.stop_requested(signal.SIGQUIT),
        made.end(**({} if restarts else {"ps-0": 137}), chief=137, **{"worker-0": 137, "ps-1": 137}),
    )
    told = made.tasks["ps-0"].tracker.restarts
    assert [restart.cause for restart in told] == ["it did not answer, and chief waited for it"] * restarts
    assert [task.name for task in made.script.tasks if "interrupt" in task.done_to] == ["ps-0"] * restarts


def test_a_stop_after_the_work_is_done_asks_those_at_once_that_had_time_to_end_by_themselves(tmp_path: Path, golden: Golden) -> None:
    made = Made(tmp_path, "chief", "ps-0")
    asked: list[list[str]] = []
    found = made.keep(
        made.end(chief=0),
        lambda: asked.append(list(made.tasks["ps-0"].done_to)),
        lambda: made.run.stop_requested(signal.SIGTERM),
        lambda: asked.append(list(made.tasks["ps-0"].done_to)),
        made.end(ps_0=143),
    )
    assert asked == [[], ["stop within 30 s"]]
    assert {name: state for name, (state, _) in found.items()} == {"chief": State.SUCCEEDED, "ps-0": State.SUCCEEDED}
    golden(found["ps-0"][1])


def test_a_restart_that_is_pending_when_the_run_ends_is_recorded_as_stopped(tmp_path: Path, golden: Golden) -> None:
    made = Made(tmp_path, "chief", "ps-0", "worker-0")
    found = made.keep(made.end(ps_0=1), made.end(chief=0), made.end(worker_0=0))
    assert found["ps-0"][0] is State.STOPPED
    golden(found["ps-0"][1])
    other = Made(tmp_path / "other", "chief", "ps-0")
    found = other.keep(other.end(ps_0=1), lambda: other.run.stop_requested(signal.SIGTERM), other.end(chief=143))
    assert found["ps-0"][0] is State.STOPPED
    golden(found["ps-0"][1])


def test_a_task_that_fails_for_good_while_it_runs_has_a_moment_to_leave_by_itself(tmp_path: Path) -> None:
    made = Made(tmp_path, "chief", "ps-0")
    found = made.keep(lambda: made.run.failed(made.tasks["chief"], 1), lambda: None, made.end(chief=1), lambda: None, made.end(ps_0=143))
    assert made.tasks["chief"].done_to == ["never again"]
    assert found == {"chief": (State.FAILED, "failed with exit code 1"), "ps-0": (State.STOPPED, "")}


def test_peers_that_were_done_start_again_with_one_that_goes_back_to_the_last_checkpoint(tmp_path: Path, golden: Golden) -> None:
    made = Made(tmp_path, "chief", "worker-0", strategy="multi_worker_mirrored", scope="all")
    made.script.steps = []
    made.run.start()
    made.end(worker_0=0)()
    assert made.tasks["worker-0"].tracker.state()[0] is State.SUCCEEDED
    made.end(chief=75)()
    assert [task.tracker.state()[0] for task in made.script.tasks] == [State.RESTARTING, State.RESTARTING]
    golden(made.tasks["worker-0"].tracker.state()[1])


def test_a_start_that_takes_too_long_names_who_waits_and_who_is_restarting(tmp_path: Path, golden: Golden) -> None:
    made = Made(tmp_path, "chief", "ps-0")
    made.run.start()
    made.tasks["chief"].tracker.reported = (State.PENDING, "waiting for ps-0")
    made.end(ps_0=1)()
    made.run._ready_by = 0.0
    made.run._enforce_deadlines()
    assert made.run._ending is not None
    golden(made.run._ending.reason)


def test_a_run_that_cannot_start_leaves_no_task_and_is_recorded_as_failed(tmp_path: Path, golden: Golden) -> None:
    made = Made(tmp_path, "chief")

    def fail() -> None:
        made.tasks["chief"].start()
        raise OSError(11, "no more processes")

    made.script.start = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no more"):
        made.run.start()
    assert made.tasks["chief"].done_to == ["kill"]
    snapshot = state_file.read(made.paths.state)
    assert snapshot is not None
    assert snapshot.status.state is State.FAILED
    golden(snapshot.status.reason)
