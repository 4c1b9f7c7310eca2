"""The supervisor of a run: starts and restarts its tasks, enforces deadlines, stops the tasks in order, and records the run's state.

A run has one such process. One thread makes all decisions; under Docker, others only wait for the engine's events. A backend provides
the tasks (`ControlledTask`) and reports their events (`RunBackend`); the decisions are made here, the same for processes and containers. SIGTERM or
SIGINT asks every task to save and stop; a second one, a second or more later, or SIGQUIT, kills. If the launcher in the foreground is gone, the run stops as if asked to.
"""

import contextlib
import os
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import StartInterruptedError
from launcher.notify.supervisor_notifier import SupervisorNotifier
from launcher.plan.models import Plan, Task
from launcher.runs import locks, process_identity, restart_policy, stop_order
from launcher.runs.log_files import LogWriter
from launcher.runs.os_errors import translate_os_errors
from launcher.runs.paths import RunPaths
from launcher.runs.process_identity import Identity
from launcher.runs.progress import RunProgress
from launcher.runs.reasons import ASKED_TO_STOP, ASKED_TO_STOP_AT_ONCE, DONE_BEFORE_STOP, with_remedy
from launcher.runs.restart_policy import RestartDecision
from launcher.runs.stalled_tasks import awaited_servers
from launcher.runs.state_file import Snapshot
from launcher.runs.state_writer import StateWriter, log_message
from launcher.runs.status import Location, RunStatus, State
from launcher.runs.stop_order import Shutdown
from launcher.runs.task_tracker import TaskTracker
from trainer.events import Event
from trainer.exit_codes import ExitCode, RestartWhen

_EXIT_TIMEOUT = 3.0  # seconds for a trainer that has reported its final failure to exit with its own code
_SAME_STOP_SECONDS = 1.0  # seconds in which two signals are one stop: systemd signals every process, and a launcher its supervisor, too
_STOP_REASONS: dict[int | None, str] = {
    None: "the launcher that ran it in the foreground is gone",
    **dict.fromkeys((signal.SIGTERM, signal.SIGINT), ASKED_TO_STOP),
    signal.SIGQUIT: ASKED_TO_STOP_AT_ONCE,
}


class ControlledTask(ABC):
    """One task as its backend runs it. Times named `..._at` are of time.monotonic; None means never."""

    def __init__(self, task: Task, log: Path, tracker: TaskTracker) -> None:
        self.task, self.name, self.tracker = task, task.name, tracker
        self.log = LogWriter(log)
        self.restart_at: float | None = None
        self.stop_at: float | None = None
        self.kill_at: float | None = None
        self._delay = 0.0

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether its process or container runs, as last seen."""

    @property
    @abstractmethod
    def ran_for(self) -> float:
        """Seconds that its last attempt took."""

    @property
    @abstractmethod
    def was_killed(self) -> bool:
        """Whether its last attempt was killed."""

    @abstractmethod
    def start(self) -> None:
        """Start it, or start it again. Raises OSError if that fails."""

    @abstractmethod
    def stop(self, grace: float) -> None:
        """Ask it to save and end, and have it killed after `grace` seconds."""

    @abstractmethod
    def kill(self) -> None:
        """Kill it, and all processes that it started."""

    @abstractmethod
    def kill_for_restart(self) -> None:
        """Kill it as a failure, so that the supervisor starts it again."""

    @abstractmethod
    def decide(self, code: int) -> RestartDecision:
        """Return the restart decision for this exit code."""

    @abstractmethod
    def prevent_restart(self) -> None:
        """Keep everything else from starting it again."""

    @property
    def engine_may_restart(self) -> bool:
        """Whether something other than this supervisor may start it again after its end; then it still has to be stopped."""
        return False

    def decide_by_policy(self, code: int, when: RestartWhen) -> RestartDecision:
        """Return the decision for this exit code by the restart policy. `always` acts like `on_failure`: after exit 0 the parent or the engine restarts."""
        return restart_policy.decide(code, restarts_used=self.tracker.restarts_used, max_restarts=self.task.restart.max_restarts, when=when)

    def restart_later(self, cause: str, *, counts: bool) -> None:
        """Record a restart and its cause, and schedule it after the back-off."""
        self._delay = restart_policy.delay(self._delay, ran_for=self.ran_for)
        self.tracker.mark_restarting(cause, counts=counts)
        self.restart_at = time.monotonic() + self._delay
        self.log.note(f"attempt {self.tracker.attempt} starts in {self._delay:.0f} s: {cause}")
        log_message(f"{self.name} is started again in {self._delay:.0f} s: {cause}")

    def mark_ended(self, state: State, reason: str = "") -> None:
        """Record its final state in the run."""
        self.tracker.outcome = (state, reason)
        self.restart_at = None


@dataclass(frozen=True)
class RunOutcome:
    """The end of a run. `stop_requested`: it was asked to stop, or its directory was removed; then `lost_at` is when that was last seen (time.time())."""

    state: State
    reason: str
    stop_requested: bool
    lost_at: float | None


class RunBackend(ABC):
    """A backend's part in one run: it waits for events of tasks, starts them, and cleans up after them."""

    name: str
    location: Location | None = None  # of the run's directory
    tensorboard_url = ""
    extra_stop_seconds = 0.0  # that a stop needs beyond the grace period

    @abstractmethod
    def start(self) -> None:
        """Start every task. Raises LauncherError or OSError if one cannot be started."""

    @abstractmethod
    def wait(self, run: "RunController", timeout: float | None) -> None:
        """Wait for events, for at most `timeout` seconds, and report them to the controller."""

    @abstractmethod
    def clean_up(self, outcome: RunOutcome) -> None:
        """Remove the run's temporary files or containers."""

    @abstractmethod
    def on_directory_lost(self) -> bool:
        """Release the run's name after its directory was removed; return whether to kill the tasks at once."""

    @abstractmethod
    def close(self, run: "RunController") -> None:
        """Report the rest of the tasks' output to the controller, once no task runs."""

    def processes(self) -> dict[str, Identity]:
        """Return the session leaders of tasks that are processes of this machine."""
        return {}


class RunController:
    """One run from the start of its tasks to its end."""

    def __init__(self, paths: RunPaths, plan: Plan, tasks: Sequence[ControlledTask], backend: RunBackend) -> None:
        self._paths, self._plan, self._backend = paths, plan, backend
        self._tasks = {task.name: task for task in tasks}
        self._leader = self._tasks[plan.required_tasks[0]]
        self._runs_built_in_trainer = any(stop_order.runs_built_in_trainer(task) for task in plan.tasks)
        self._progress = RunProgress()
        self._shutdown: Shutdown | None = None
        self._stop_requested_at: float | None = None
        self._started = time.time()
        self._ended: float | None = None
        now = time.monotonic()
        self._ready_by: float | None = now + plan.start_timeout if self._runs_built_in_trainer else None
        self._done_by: float | None = now + plan.deadline if plan.deadline else None
        self._state_writer = StateWriter(paths.state, self._snapshot)
        self._notifier = SupervisorNotifier(plan.notify, paths.notified, plan.spec_dir)
        self._lock = locks.HeldLock(paths.lock)
        self._directory_seen, self._directory_lost = self._started, False
        self._host, self._identity = socket.gethostname(), process_identity.identify(os.getpid())

    def start(self) -> None:
        """Start every task. Raises LauncherError, and leaves no task, if one cannot be started."""
        try:
            with translate_os_errors("starting the tasks"):
                self._state_writer.reserve()
                self._state_writer.save()
                for task in self._tasks.values():
                    task.log.note(f"run {self._plan.name} starts")
                self._backend.start()
        except BaseException as error:
            self.abort(str(error), State.STOPPED if isinstance(error, StartInterruptedError) else State.FAILED)
            raise
        self._state_writer.save()

    def run(self) -> None:
        """Supervise the run until all its tasks have ended, or can no longer be observed."""
        while not self._is_over():
            self._backend.wait(self, self._seconds_until_due())
            self._run_due_actions()
            self._stop_next_group()
            self._check_directory()
            if self._state_writer.save_if_due():
                for task in self._tasks.values():
                    task.log.note_lost_lines()
        self._backend.close(self)
        shutdown = self._shutdown = self._shutdown or Shutdown(State.FAILED, "no task was left")
        for task in self._tasks.values():
            self._record_final_state(task, shutdown)
        if shutdown.state is State.STOPPED:
            # A stopped command counts as succeeded only if all of its tasks exit 0.
            required = self._plan.required_tasks if self._runs_built_in_trainer else tuple(self._tasks)
            if all(self._state(name) is State.SUCCEEDED for name in required):
                shutdown.state, shutdown.reason = State.SUCCEEDED, DONE_BEFORE_STOP
            elif self._progress.checkpoint_step is not None:
                shutdown.reason += f"; the last checkpoint is of step {self._progress.checkpoint_step}"
        self._conclude(shutdown)

    def abort(self, reason: str, state: State = State.FAILED) -> None:
        """Kill every running task and record the end of the run: the supervisor itself cannot continue."""
        for task in self._tasks.values():
            if task.running:
                task.kill()
                task.mark_ended(State.STOPPED, "killed with the run")
        self._conclude(Shutdown(state, reason))

    # Events

    def on_change(self) -> None:
        """Note that the tasks' state has changed."""
        self._state_writer.changed()

    def on_stop_request(self, number: int | None) -> None:
        """Handle a request to stop: a signal's number, or None if the launcher is gone. SIGHUP is ignored: `up` turns its own into a stop."""
        if number in _STOP_REASONS:
            # The end of the launcher during a stop is no second request.
            repeated = number is not None and time.monotonic() > (self._stop_requested_at or time.monotonic()) + _SAME_STOP_SECONDS
            self._stop_on_request(_STOP_REASONS[number], at_once=number == signal.SIGQUIT or repeated)

    def on_unreachable(self, reason: str) -> None:
        """Give up a run whose tasks can no longer be observed, though they may continue."""
        self._shutdown = Shutdown(State.INTERRUPTED, reason)

    def on_event(self, task: ControlledTask, event: Event) -> None:
        """Handle an event that a task wrote."""
        subject = self._tasks.get(str(event.get("task")), task)
        self_reported = subject is task
        changed = subject.tracker.apply(event, self_reported=self_reported)
        self._progress.apply(event, is_leader=self_reported and task is self._leader)
        self._state_writer.changed(at_once=changed)
        if changed and event["event"] == "stalled":
            self._notifier.schedule_check()
            self._restart_frozen(subject, event)
        if self._progress.ready:
            self._ready_by = None
        if changed and self_reported and event["event"] == "restarting":
            self._restart_finished_peers(task)

    def on_exit(self, task: ControlledTask, code: int | None) -> None:
        """Handle the exit of a task that no engine will restart; `code` is None if its container was removed."""
        log_message(f"{task.name} ended: exit code {code}")
        self._state_writer.changed()
        if self._shutdown:
            self._record_final_state(task, self._shutdown)
        elif self._no_longer_needed(task):
            done = code == ExitCode.DONE
            reason = "its container was removed" if code is None else task.tracker.exit_reason(code)
            task.mark_ended(State.SUCCEEDED if done else State.STOPPED, "" if done else reason)
        elif code is None:
            self._begin_shutdown(State.FAILED, f"the container of {task.name} was removed")
        else:
            self._apply_decision(task, code)

    def on_failure(self, task: ControlledTask, code: int) -> None:
        """Handle a final failure; the task may still be running. `code` is its exit code, or the one that it will have."""
        task.prevent_restart()  # of every such task, not only of the first
        if self._shutdown:
            return
        reason = task.tracker.exit_reason(code)
        if self._no_longer_needed(task):
            task.mark_ended(State.STOPPED, reason)
            self._state_writer.changed()
            return
        task.mark_ended(State.FAILED, reason)
        attempt = task.tracker.attempt
        message = with_remedy(f"{task.name} failed on attempt {attempt} (exit code {code}): {reason}", task.tracker.remedy(State.FAILED))
        self._begin_shutdown(State.FAILED, message, task.name)

    def _no_longer_needed(self, task: ControlledTask) -> bool:
        """Return whether the run no longer needs a task: the leader has succeeded, and the run waits only for other required tasks."""
        return self._state(self._leader.name) is State.SUCCEEDED and task.name not in self._plan.required_tasks

    def _apply_decision(self, task: ControlledTask, code: int) -> None:
        match task.decide(code):
            case RestartDecision.DONE:
                task.mark_ended(State.SUCCEEDED)
                # A peer may have begun to restart from the last checkpoint just before this task ended.
                for peer in [peer for peer in self._tasks.values() if self._state(peer.name) is State.RESTARTING]:
                    self._restart_finished_peers(peer)
                if all(self._state(name) is State.SUCCEEDED for name in self._plan.required_tasks):
                    self._finish()
            case RestartDecision.FAIL:
                self.on_failure(task, code)
            case RestartDecision.RESTART | RestartDecision.RESTART_UNCOUNTED as decision:
                self._restart(task, task.tracker.exit_reason(code), counts=decision is RestartDecision.RESTART)

    def _run_due_actions(self) -> None:
        now = time.monotonic()
        if _due(self._notifier.due, now):
            self._notifier.send_due(self._status())
        if not self._shutdown and _due(self._ready_by, now):
            states = {task.name: task.tracker.state() for task in self._tasks.values()}
            waiting = [f"{name} is {reason}" for name, (state, reason) in states.items() if state is State.PENDING and reason]
            waiting += [f"{name} is restarting: {reason}" for name, (state, reason) in states.items() if state is State.RESTARTING]
            detail = f": {'; '.join(waiting)}" if waiting else ""
            self._begin_shutdown(State.FAILED, f"training did not start within the start timeout of {self._plan.start_timeout:g} s{detail}")
        if not self._shutdown and _due(self._done_by, now):
            self._begin_shutdown(State.FAILED, f"not done within the deadline of {self._plan.deadline:g} s")
        for task in self._tasks.values():
            if _due(task.restart_at, now):
                self._start_again(task)
            if self._shutdown and _due(task.stop_at, now):
                task.stop(self._shutdown.grace)
            if _due(task.kill_at, now):
                task.kill()

    def _check_directory(self) -> None:
        """Stop the run if its directory was removed."""
        if self._directory_lost:
            return
        if not self._lock.lost():
            self._directory_seen = time.time()
            return
        self._directory_lost = True
        self._state_writer.disable()
        at_once = self._backend.on_directory_lost()
        self._stop_on_request(f"{self._paths.run_dir} was removed or replaced while the run ran", at_once=at_once)

    # Reactions

    def _start_again(self, task: ControlledTask) -> None:
        task.restart_at = None
        try:
            task.start()
        except OSError as error:
            cause = f"it could not be started: {error.strerror}"
            if task.tracker.restarts_exhausted:
                task.mark_ended(State.FAILED, cause)
                self._begin_shutdown(State.FAILED, f"{task.name}: {cause}", task.name)
            else:
                self._restart(task, cause, counts=True)
        self._state_writer.changed()

    def _restart(self, task: ControlledTask, cause: str, *, counts: bool) -> None:
        task.restart_later(cause, counts=counts)
        self._state_writer.changed()
        self._restart_finished_peers(task)

    def _restart_finished_peers(self, task: ControlledTask) -> None:
        """Start finished peers again: a task that restarts from the last checkpoint needs all of them."""
        if task.task.restart.scope != "all" or self._shutdown or self._state(self._leader.name) is State.SUCCEEDED:
            return
        for peer in self._tasks.values():
            if peer is not task and self._state(peer.name) is State.SUCCEEDED and peer.task.role != "evaluator":
                peer.restart_later(f"{task.name} is started again and needs it", counts=False)

    def _restart_frozen(self, waiting: ControlledTask, event: Event) -> None:
        """Kill servers that do not answer, so that they are started again, if `limits.on_stall` says so: their parents may be frozen, too."""
        for name in awaited_servers(event) if self._plan.restarts_stalled and not self._shutdown else ():
            task = self._tasks.get(name)
            if task is not None and task.running and not task.tracker.stall.activity:
                task.tracker.failure = f"it did not answer, and {waiting.name} waited for it"
                log_message(f"{name} is killed, to be started again: {task.tracker.failure}")
                task.kill_for_restart()

    def _finish(self) -> None:
        """Let the other tasks end by themselves, and stop them after the time that each has for it."""
        log_message("the run's work is done")
        self._shutdown = Shutdown(State.SUCCEEDED, "", grace=self._plan.grace_period)
        for task in self._tasks.values():
            task.stop_at = time.monotonic() + stop_order.end_grace(self._plan, task.task)
            if task.restart_at is not None:
                task.mark_ended(State.STOPPED, "the run ended before it was started again")

    def _stop_on_request(self, reason: str, *, at_once: bool) -> None:
        self._stop_requested_at = self._stop_requested_at or time.monotonic()
        shutdown = self._shutdown or self._begin_shutdown(State.STOPPED, reason)
        if at_once:
            log_message("killing every task")
            shutdown.remaining_groups.clear()
            shutdown.at_once, shutdown.grace = True, 0.0
        for task in self._tasks.values():
            if at_once:
                task.stop_at = None
                task.kill()
            elif task.stop_at is not None:
                task.stop_at = time.monotonic()

    def _begin_shutdown(self, state: State, reason: str, task_name: str = "") -> Shutdown:
        log_message(f"stopping: {reason}")
        may_save = self._progress.ready or not self._runs_built_in_trainer
        grace = self._plan.grace_period if may_save else min(stop_order.UNTRAINED_GRACE_PERIOD, self._plan.grace_period)
        self._shutdown = shutdown = Shutdown(state, reason, task_name, grace, stop_order.stop_groups(self._plan))
        for task in self._tasks.values():
            if task.restart_at is not None:
                task.mark_ended(State.STOPPED, task.tracker.state()[1])
        self._state_writer.changed()
        return shutdown

    def _stop_next_group(self) -> None:
        shutdown = self._shutdown
        while shutdown and shutdown.remaining_groups and not any(self._tasks[name].running for name in shutdown.stopping_group):
            shutdown.stopping_group = shutdown.remaining_groups.pop(0)
            for name in shutdown.stopping_group:
                task = self._tasks[name]
                task.stop_at = time.monotonic() + (_EXIT_TIMEOUT if task.tracker.outcome else 0.0)

    def _record_final_state(self, task: ControlledTask, shutdown: Shutdown) -> None:
        """Record the final state of a task in a run that ends."""
        if task.tracker.outcome is not None or shutdown.state is State.INTERRUPTED:
            return
        done, code = shutdown.state is State.SUCCEEDED, task.tracker.code
        if code == ExitCode.DONE:
            task.mark_ended(State.SUCCEEDED)
        elif code == ExitCode.STOPPED:
            task.mark_ended(State.SUCCEEDED if done else State.STOPPED, "stopped at the end of the run" if done else "")
        elif task.was_killed:
            task.mark_ended(State.STOPPED, "killed" if shutdown.at_once else f"killed: it did not stop within {shutdown.grace:g} s")
        else:
            task.mark_ended(
                State.FAILED if done else State.STOPPED, task.tracker.state()[1] if code is None else task.tracker.exit_reason(code)
            )

    def _conclude(self, shutdown: Shutdown) -> None:
        self._shutdown, self._ended = shutdown, time.time()
        for task in self._tasks.values():
            with contextlib.suppress(OSError):
                task.log.close()
        lost_at = self._directory_seen if self._directory_lost else None
        self._backend.clean_up(RunOutcome(shutdown.state, shutdown.reason, self._stop_requested_at is not None, lost_at))
        log_message(f"{shutdown.state}: {shutdown.reason}" if shutdown.reason else shutdown.state)
        self._state_writer.save_final()
        self._notifier.end(self._status())

    # Bookkeeping

    def _is_over(self) -> bool:
        shutdown = self._shutdown
        if shutdown is None or shutdown.state is State.INTERRUPTED:
            return shutdown is not None
        if shutdown.remaining_groups or any(task.running or task.restart_at is not None for task in self._tasks.values()):
            return False
        restartable = [task for task in self._tasks.values() if task.engine_may_restart]
        for task in restartable:
            task.stop(shutdown.grace)
        return not restartable

    def _seconds_until_due(self) -> float | None:
        """Return the seconds until the next action is due; None if none is."""
        times = [self._state_writer.due, self._notifier.due, *(() if self._shutdown else (self._ready_by, self._done_by))]
        for task in self._tasks.values():
            times += (task.restart_at, task.stop_at, task.kill_at)
        due = min((at for at in times if at is not None), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def _state(self, name: str) -> State:
        return self._tasks[name].tracker.state()[0]

    def _status(self) -> RunStatus:
        ended = self._ended is not None
        underway = State.RUNNING if self._progress.ready or not self._runs_built_in_trainer else State.PENDING
        return RunStatus(
            name=self._plan.name,
            backend=self._backend.name,
            state=self._shutdown.state if self._shutdown and ended else underway,
            reason=self._shutdown.reason if self._shutdown else "",
            reason_task=self._shutdown.task if self._shutdown else "",
            run_dir=self._backend.location,
            spec_digest=self._plan.spec_digest,
            strategy=self._plan.strategy,
            started=self._started,
            ended=self._ended,
            tensorboard=self._backend.tensorboard_url,
            tasks=tuple(task.tracker.status() for task in self._tasks.values()),
            **self._progress.fields(ended=ended),
        )

    def _snapshot(self) -> Snapshot:
        grace = self._plan.grace_period + self._backend.extra_stop_seconds
        return Snapshot(self._status(), self._host, self._identity, grace, self._backend.processes(), self._stop_requested_at is not None)


def _due(at: float | None, now: float) -> bool:
    return at is not None and now >= at
