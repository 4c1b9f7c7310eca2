"""One task of a run of containers: its container, its log, and how the engine is told to start and stop it."""

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
from trainer.exit_codes import SIGKILL, ExitCode

_RETRY_INTERVAL = 2.0  # seconds after which an engine that did not answer is asked again to stop a container
# The engine starts a container again within a tenth of a second at first; later it says `restarting` while it waits.
ENGINE_RESTART_TIMEOUT = 3.0


class ContainerTask(ControlledTask):
    """One task, and what is about to be done with its container."""

    tracker: ContainerTracker

    def __init__(self, task: Task, log: Path, engine: Engine, run: str) -> None:
        tracker = ContainerTracker(
            task.name,
            task.address,
            task.restart.max_restarts,
            has_trainer=role_rules.has_parent(task),
            in_own_image=task.image is not None and task.is_hardened,
        )
        super().__init__(task, log, tracker)
        self.own: str | None = None  # the id of its container, where one of its name may be of a run that was started in this one's place
        self._engine, self._run = engine, run
        self._over_since: float | None = None
        self._exit_reported = False
        self._may_restart = True
        self._stopping: threading.Thread | None = None
        self._stopped: float | None = None  # when the engine said that it has

    @property
    def running(self) -> bool:
        """Whether something of it runs, as far as was seen; what was seen before it was asked to stop does not count."""
        return not self._is_over or self._stopping is not None

    @property
    def _is_over(self) -> bool:
        return self.tracker.phase in {*EXITED, "gone"}

    @property
    def ran_for(self) -> float:
        """Seconds that its container ran the last time."""
        return self.tracker.ran_for

    @property
    def was_killed(self) -> bool:
        """Whether its container ended by being killed, as far as its exit code tells."""
        return self.tracker.code == SIGKILL

    @property
    def may_restart(self) -> bool:
        """Whether the engine may start it again: until it has stopped it.

        Also where it was seen to have ended: the engine may be starting it again at that very moment, or when it is itself started.
        """
        return self._may_restart

    @property
    def answered(self) -> bool:
        """Whether the engine has stopped it since the last update."""
        return self._stopped is not None

    def update(self, described: dict[str, Any], asked: float) -> bool:
        """Take in what the engine says of the container, asked at that time, nothing where there is none; True when it changed."""
        if self._stopped is not None and asked >= self._stopped:
            self._may_restart, self._stopping, self._stopped = False, None, None
        return self.tracker.update(described.get("State", {}), described.get("RestartCount", 0))

    def line(self, line: LogLine) -> Event | None:
        """Take in one line of output; return the event in it, if it is one."""
        if not self.tracker.has_trainer:
            line = log_line(line.time, line.task, line.raw, has_events=False)
        self.log.feed(line.raw + b"\n")
        return self.tracker.line(line.text)

    def exited_for(self, *, seen: bool) -> float | None:
        """Return for how many seconds the engine has left it ended, None while it runs, and where it was not `seen` now."""
        if not seen or not self._is_over:
            # An exit that the engine has reported is reported once.
            self._over_since, self._exit_reported = None, self._exit_reported and not seen
            return None
        self._over_since = self._over_since or time.monotonic()
        return time.monotonic() - self._over_since

    @property
    def exit_code(self) -> int | None:
        """The exit code of a container that has ended, None of one that was removed."""
        return None if self.tracker.phase == "gone" else self.tracker.code

    def should_report_exit(self, exited_for: float) -> bool:
        """Return, once, that the engine does not start it again by itself."""
        is_done = self.exit_code == ExitCode.DONE and (self.tracker.has_trainer or self.task.restart.when != "always")
        if self._exit_reported or not (is_done or exited_for >= ENGINE_RESTART_TIMEOUT):
            return False
        self._exit_reported = True
        return True

    def container(self) -> Container:
        """Return its container as it is now. Raises one of engine.ERRORS, NotFound when it is gone."""
        found = container_status.by_task(self._engine.containers(self._run))
        if self.name not in found or not self.is_own(found[self.name]):
            raise NotFound(f"the container of {self.name} is gone")
        return found[self.name]

    def is_own(self, container: Container) -> bool:
        """Return whether a container of its name is its own."""
        return self.own is None or container.id == self.own

    def decide(self, code: int) -> RestartDecision:
        """Return what follows from this exit."""
        if self.tracker.parent_never_started(code):
            return RestartDecision.FAIL
        return self.decide_by_policy(
            code, "on_failure" if self.tracker.has_trainer else self.task.restart.when
        )  # a parent inside has minded it

    def start(self) -> None:
        """Start its container; an engine that cannot is asked again, when the container is still not running later."""
        self._over_since, self._exit_reported = None, False
        # Until the next poll: that it has ended was so before.
        self.tracker.mark_starting()
        with self._logging_errors("starting"):
            self.container().start()
            self.tracker.mark_restarted()

    def prevent_restart(self) -> None:
        """Tell the engine not to start it again, by itself or when it is itself started again."""
        with self._logging_errors("forbidding the engine to start"):
            prevent_restart(self.container())

    def kill(self) -> None:
        """Kill it at once."""
        self.stop(0)
        self.interrupt()

    def interrupt(self) -> None:
        """Kill its container, paused or not; the engine leaves that ended."""
        with self._logging_errors("killing"):
            self.container().kill()

    def stop(self, grace: float) -> None:
        """Have the engine stop it, on a thread, and kill it after `grace` seconds. It is asked until the engine has done so."""
        self.stop_at = time.monotonic() + _RETRY_INTERVAL
        self.restart_at = None
        if self._stopping is None or not self._stopping.is_alive():
            self._stopped = None
            self._stopping = threading.Thread(target=self._stop, args=(round(grace),), name=f"stop {self.name}", daemon=True)
            self._stopping.start()

    def _stop(self, grace: int) -> None:
        try:
            stop(self.container(), grace)
        except NotFound:
            pass  # gone, which is as good
        except ERRORS as error:
            log_message(f"stopping {self.name} failed, and is tried again: {error}")
            return
        self.stop_at = None
        self._stopped = time.monotonic()

    @contextlib.contextmanager
    def _logging_errors(self, doing: str) -> Iterator[None]:
        """Note what goes wrong in a `with` block: what matters is tried again, or looked at later."""
        try:
            yield
        except ERRORS as error:
            log_message(f"{doing} {self.name}: {error}")
