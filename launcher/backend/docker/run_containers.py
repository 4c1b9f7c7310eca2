"""The tasks of a run as containers: what the engine reports of them, for the controller that supervises the run.

The engine starts failed containers again by itself, also without this process. The controller ends a run that cannot succeed, restarts
containers that the engine does not, stops those that do not end by themselves once the work is done, and enforces the deadline.
"""

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator

from docker.models.containers import Container

from launcher.backend.docker import container_status
from launcher.backend.docker.compose_up import start_containers
from launcher.backend.docker.container_task import ENGINE_RESTART_TIMEOUT, ContainerTask
from launcher.backend.docker.engine import ERRORS, Engine, endpoint
from launcher.backend.docker.event_stream import ContainerEnded, ContainerEvent, EventReader, Inbox, LineWritten
from launcher.backend.docker.sidecars import Sidecars
from launcher.errors import StartInterruptedError
from launcher.plan.models import Plan
from launcher.runs.paths import RunPaths
from launcher.runs.progress import integer
from launcher.runs.run_controller import RunBackend, RunController, RunOutcome
from launcher.runs.status import Location
from trainer.exit_codes import ExitCode

# Seconds, at most and at least, for which output is read between two checks of deadlines.
_MAX_READ_TIME, _MIN_READ_TIME = 0.1, 0.01
_POLL_INTERVAL = 0.5  # seconds between two polls of the containers
_ANSWER_TIMEOUT = 20  # seconds; a request without an answer by then is repeated
_UNREACHABLE_TIMEOUT = 600.0  # seconds that the engine may not answer; an update of it takes a minute or two
_LAST_OUTPUT_TIMEOUT = 5.0


def controller(paths: RunPaths, plan: Plan, lifeline: int | None) -> RunController:
    """Return the controller of a run of containers, which gets this process's signals. Raises LauncherError if there is no engine."""
    containers = RunContainers(paths, plan, Engine(endpoint()))
    containers.listen(lifeline)
    return RunController(paths, plan, containers.tasks, containers)


class RunContainers(RunBackend):
    """The containers of one run."""

    name = "docker"
    extra_stop_seconds = 15.0  # that the engine itself may take

    def __init__(self, paths: RunPaths, plan: Plan, engine: Engine) -> None:
        self._paths, self._plan, self._engine = paths, plan, engine
        self.tasks = [ContainerTask(task, paths.log(task.name), engine, plan.name) for task in plan.tasks]
        self.sidecars = Sidecars(plan.grace_period)
        self.event_reader: EventReader | None = None
        self.location = Location("volume", container_status.volume_of(plan.name)) if plan.run_dir else None
        self._by_name = {task.name: task for task in self.tasks}
        self._inbox: Inbox = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # to stop; apart, so that none waits behind lines
        self._started_ids: frozenset[str] = frozenset()  # of all containers, also of sidecars
        self._container_ids: dict[str, str] = {}  # by task
        self._directory_lost = False
        self._engine_seen = self._polled_at = time.monotonic()
        self._is_interruptible = self._was_signalled = False
        self._gave_up = False  # since the engine has not answered for too long

    def start(self) -> None:
        """Have Compose start every container. Raises LauncherError, and leaves none, if one cannot be started."""
        name = self._plan.name
        containers = start_containers(self._engine, name, self._paths.compose, self._plan.start_timeout, self._interruptible())
        self._engine.set_timeout(_ANSWER_TIMEOUT)
        self._update_tasks(containers, time.monotonic())
        self._started_ids = frozenset(str(container.id) for container in containers)
        self._container_ids = {task: str(container.id) for task, container in container_status.by_task(containers).items()}
        self.event_reader = EventReader(self._engine, name, self._container_ids, self._inbox)

    def listen(self, lifeline: int | None) -> None:
        """Listen for signals (SIGHUP is ignored) and for the lifeline, which closes when the launcher in the foreground ends."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda number, _frame: self.request_stop(number))
        if lifeline is not None:
            threading.Thread(target=self._read_lifeline, args=(lifeline,), name="lifeline", daemon=True).start()

    def request_stop(self, number: int | None) -> None:
        """Record a signal's number, or None if the launcher is gone. A signal ends Compose's start by StartInterruptedError."""
        self._requests.put(number)
        if number not in {None, signal.SIGHUP}:
            self._was_signalled = True
            self._raise_if_interrupted()

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let the first signal, also one before the block, end it by StartInterruptedError. Outside, a signal never interrupts a removal or a record."""
        self._is_interruptible = True
        try:
            self._raise_if_interrupted()
            yield
        finally:
            self._is_interruptible = False

    def _raise_if_interrupted(self) -> None:
        if self._is_interruptible and self._was_signalled:
            self._is_interruptible = False
            raise StartInterruptedError(self._plan.name)

    def _read_lifeline(self, lifeline: int) -> None:
        with contextlib.suppress(OSError):
            while os.read(lifeline, 4096):
                pass
        self.request_stop(None)

    def wait(self, run: RunController, timeout: float | None) -> None:
        """Wait a moment for output or events of the engine, and poll the containers regularly."""
        until = time.monotonic() + (_MAX_READ_TIME if timeout is None else min(max(timeout, _MIN_READ_TIME), _MAX_READ_TIME))
        with contextlib.suppress(queue.Empty):
            while self._requests.empty() and (remaining := until - time.monotonic()) > 0:
                self._receive(self._inbox.get(timeout=remaining), run)
        while not self._requests.empty():
            run.on_stop_request(self._requests.get())
        if time.monotonic() - self._polled_at >= _POLL_INTERVAL or any(task.stop_completed for task in self.tasks):
            self._polled_at = time.monotonic()
            self._poll(run)
            self._report_exits(run)

    def close(self, run: RunController) -> None:
        """Report the rest of the containers' output, then stop the sidecars, unless the tasks may continue."""
        if self.event_reader is not None:
            self.event_reader.close(_LAST_OUTPUT_TIMEOUT)
        with contextlib.suppress(queue.Empty):
            while True:
                self._receive(self._inbox.get_nowait(), run)
        if not self._gave_up:
            self.sidecars.stop_all()

    def on_directory_lost(self) -> bool:
        """Recognise containers by id from now on: another run of this name may start. Return False, so that the tasks may save into the volume."""
        self._directory_lost = True
        for task in self.tasks:
            task.container_id = self._container_ids.get(task.name)
        return False

    def clean_up(self, outcome: RunOutcome) -> None:
        """Remove the containers of a run that was asked to stop."""
        # If another run has replaced this one, it has removed this run's containers.
        if outcome.stop_requested and not (outcome.lost_at is not None and self._paths.lock.exists()):
            self.tensorboard_url = ""
            with contextlib.suppress(*ERRORS):
                self._engine.remove(self._plan.name)

    def _receive(self, received: ContainerEvent, run: RunController) -> None:
        task = self._by_name.get(received.task)
        if task is None:
            return
        final_code: int | None = None
        match received:
            case LineWritten(_, line) if event := task.feed(line):
                run.on_event(task, event)
                code = integer(event, "exit_code")
                if event["event"] == "failed" and event.get("task", task.name) == task.name and code is not None and _is_final(code):
                    final_code = code
            case ContainerEnded(_, code):
                task.tracker.code = code
                self._polled_at = 0.0
                final_code = code if code == ExitCode.FINAL_FAILURE else None
        if final_code is not None:
            task.tracker.code = final_code
            run.on_failure(task, final_code)

    def _poll(self, run: RunController) -> None:
        polled_at = time.monotonic()
        try:
            if self._update_tasks(self._engine.containers(self._plan.name), polled_at):
                run.on_change()
        except ERRORS as error:
            unreachable_for = time.monotonic() - self._engine_seen
            if unreachable_for > _UNREACHABLE_TIMEOUT:
                self._gave_up = True
                run.on_unreachable(f"the engine has not answered for {unreachable_for:.0f} s: {error}")
                return
            with contextlib.suppress(*ERRORS):
                self._engine.client = self._engine.connect()
                if self.event_reader is not None:
                    self.event_reader.reopen()

    def _update_tasks(self, containers: list[Container], polled_at: float) -> bool:
        """Update from the engine's list of the containers of runs with this name; return whether a task has changed."""
        self._engine_seen = time.monotonic()
        if self._directory_lost:
            containers = [container for container in containers if container.id in self._started_ids]
        by_task = container_status.by_task(containers)
        attributes = {name: container.attrs for name, container in by_task.items()}
        changed = [task.update(attributes.get(task.name, {}), polled_at) for task in self.tasks]
        self.sidecars.update(containers)
        for container in by_task.values():
            if container.status == "running":
                self.sidecars.restart_outdated(container)
        self.tensorboard_url = container_status.tensorboard_url(containers) or self.tensorboard_url
        self.location = container_status.location_of(containers, self._plan.name)
        return any(changed)

    def _report_exits(self, run: RunController) -> None:
        # If the engine did not answer the last poll, it may have restarted a container since.
        seen = time.monotonic() - self._engine_seen <= _POLL_INTERVAL
        for task in self.tasks:
            exited_for = task.exited_for(seen=seen)
            if exited_for is None:
                continue
            if task.restart_at is None and task.claim_exit_report(exited_for):
                run.on_exit(task, task.exit_code)
            # Not earlier: a stop removes the sidecars' restart policy, which they need if the task starts again.
            if task.restart_at is None and exited_for >= ENGINE_RESTART_TIMEOUT:
                self.sidecars.stop(task.name)


def _is_final(code: int) -> bool:
    """Return whether this exit code of a failed trainer means that a retry cannot help."""
    return code not in {ExitCode.DONE, ExitCode.PEER_LOST, ExitCode.STOPPED}
