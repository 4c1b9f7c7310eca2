"""One task of a run of containers: its container, its log, and the engine's calls that start and stop it."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docker.errors import NotFound
from docker.models.containers import Container

from launcher.backend.docker import container_status
from launcher.backend.docker.container_tracker import EXITED, ContainerTracker
from launcher.backend.docker.engine import ERRORS, Engine
from launcher.backend.docker.stop import prevent_restart, stop
from launcher.plan import role_rules
from launcher.plan.models import Task
from launcher.runs.event_lines import log_line
from launcher.runs.restart_policy import RestartDecision
from launcher.runs.run_controller import ControlledTask
from launcher.runs.state_writer import log_message
from launcher.runs.status import LogLine
from trainer.events import Event
from trainer.exit_codes import SIGKILL_EXIT_CODE, ExitCode

_RETRY_INTERVAL = 2.0  # seconds between two requests to stop a container, if the engine did not answer the first
# The engine first starts a container again within a tenth of a second; before later restarts it reports `restarting` while it waits.
ENGINE_RESTART_TIMEOUT = 3.0


class ContainerTask(ControlledTask):
    """One task, and the action that its container waits for."""

    tracker: ContainerTracker

    def __init__(self, task: Task, log: Path, engine: Engine, run: str) -> None:
        tracker = ContainerTracker(
            task.name,
            task.address,
            task.restart.max_restarts,
            has_parent=role_rules.has_parent(task),
            hardened_user_image=task.image is not None and task.is_hardened,
        )
        super().__init__(task, log, tracker)
        self.container_id: str | None = None  # set once another run may have replaced this one, with containers of the same names
        self._engine, self._run = engine, run
        self._exited_at: float | None = None
        self._exit_reported = False
        self._engine_may_restart = True
        self._stop_thread: threading.Thread | None = None
        self._stopped_at: float | None = None  # when the engine reported the stop

    @property
    def running(self) -> bool:
        """Whether its container runs, by the last poll; while a stop is in progress, always."""
        return not self._has_exited or self._stop_thread is not None

    @property
    def _has_exited(self) -> bool:
        return self.tracker.engine_status in {*EXITED, "gone"}

    @property
    def ran_for(self) -> float:
        """Seconds that its container's last run took."""
        return self.tracker.ran_for

    @property
    def was_killed(self) -> bool:
        """Whether its container was killed, by its exit code."""
        return self.tracker.code == SIGKILL_EXIT_CODE

    @property
    def engine_may_restart(self) -> bool:
        """Whether the engine may start it again: always until the engine has stopped it.

        This includes a container that has ended: the engine may be about to start it again, or do so when the engine itself restarts.
        """
        return self._engine_may_restart

    @property
    def stop_completed(self) -> bool:
        """Whether the engine has stopped it since the last update."""
        return self._stopped_at is not None

    def update(self, attrs: dict[str, Any], polled_at: float) -> bool:
        """Update from the container's attributes, empty if there is no container, as polled at that time; return whether its state changed."""
        if self._stopped_at is not None and polled_at >= self._stopped_at:
            self._engine_may_restart, self._stop_thread, self._stopped_at = False, None, None
        return self.tracker.update(attrs.get("State", {}), attrs.get("RestartCount", 0))

    def feed(self, line: LogLine) -> Event | None:
        """Process one line of output; return its event, if it is one."""
        if not self.tracker.has_parent:
            line = log_line(line.time, line.task, line.raw, has_events=False)
        self.log.feed(line.raw + b"\n")
        return self.tracker.feed(line.text)

    def exited_for(self, *, seen: bool) -> float | None:
        """Return the seconds since its exit; None while it runs, or if the last poll failed (not `seen`)."""
        if not seen or not self._has_exited:
            # A failed poll does not forget that the exit was reported.
            self._exited_at, self._exit_reported = None, self._exit_reported and not seen
            return None
        self._exited_at = self._exited_at or time.monotonic()
        return time.monotonic() - self._exited_at

    @property
    def exit_code(self) -> int | None:
        """The container's exit code; None if it was removed."""
        return None if self.tracker.engine_status == "gone" else self.tracker.code

    def claim_exit_report(self, exited_for: float) -> bool:
        """Return True once per exit, when the engine is sure not to start it again by itself: the caller then reports the exit."""
        is_done = self.exit_code == ExitCode.DONE and (self.tracker.has_parent or self.task.restart.when != "always")
        if self._exit_reported or not (is_done or exited_for >= ENGINE_RESTART_TIMEOUT):
            return False
        self._exit_reported = True
        return True

    def container(self) -> Container:
        """Return its container in its current state. Raises one of engine.ERRORS, NotFound if it is gone."""
        containers = container_status.by_task(self._engine.containers(self._run))
        if self.name not in containers or not self.owns(containers[self.name]):
            raise NotFound(f"the container of {self.name} is gone")
        return containers[self.name]

    def owns(self, container: Container) -> bool:
        """Return whether a container of its name is its own, and not another run's."""
        return self.container_id is None or container.id == self.container_id

    def decide(self, code: int) -> RestartDecision:
        """Return the restart decision for this exit code."""
        if self.tracker.parent_never_started(code):
            return RestartDecision.FAIL
        # The trainer's parent inside the container has already applied the role's `restart`.
        return self.decide_by_policy(code, "on_failure" if self.tracker.has_parent else self.task.restart.when)

    def start(self) -> None:
        """Start its container; if that fails, it is retried once a poll shows that the container is not running."""
        self._exited_at, self._exit_reported = None, False
        # Until the next poll the last one, which saw the exit, must not count.
        self.tracker.mark_starting()
        with self._logging_errors("starting"):
            self.container().start()
            self.tracker.mark_restarted()

    def prevent_restart(self) -> None:
        """Tell the engine not to start it again, neither by itself nor when the engine restarts."""
        with self._logging_errors("forbidding the engine to start"):
            prevent_restart(self.container())

    def kill(self) -> None:
        """Kill it at once."""
        self.stop(0)
        self.kill_for_restart()

    def kill_for_restart(self) -> None:
        """Kill its container, paused or not. The engine does not start a killed one again; the supervisor does."""
        with self._logging_errors("killing"):
            self.container().kill()

    def stop(self, grace: float) -> None:
        """Have the engine stop it, on a thread, and kill it after `grace` seconds. The request is repeated until it succeeds."""
        self.stop_at = time.monotonic() + _RETRY_INTERVAL
        self.restart_at = None
        if self._stop_thread is None or not self._stop_thread.is_alive():
            self._stopped_at = None
            self._stop_thread = threading.Thread(target=self._stop, args=(round(grace),), name=f"stop {self.name}", daemon=True)
            self._stop_thread.start()

    def _stop(self, grace: int) -> None:
        try:
            stop(self.container(), grace)
        except NotFound:
            pass  # it is gone, so there is nothing to stop
        except ERRORS as error:
            log_message(f"stopping {self.name} failed, and is tried again: {error}")
            return
        self.stop_at = None
        self._stopped_at = time.monotonic()

    @contextlib.contextmanager
    def _logging_errors(self, action: str) -> Iterator[None]:
        """Log an error of a `with` block and continue: later polls show whether the action has to be repeated."""
        try:
            yield
        except ERRORS as error:
            log_message(f"{action} {self.name}: {error}")
