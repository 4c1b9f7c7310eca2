"""The tasks of a run as containers: what the engine reports of them, for the controller that supervises the run.

The engine starts lost containers again by itself, and goes on when this process is gone; only the controller ends a run at once that
cannot succeed, starts again what the engine leaves alone, lets servers go when the work is done, and meets the deadline.
"""

import contextlib
import os
import queue
import signal
import threading
import time

from docker.models.containers import Container

from launcher.backend.docker import container_status
from launcher.backend.docker.compose_up import start_containers
from launcher.backend.docker.container_task import ENGINE_RESTART_TIMEOUT, ContainerTask
from launcher.backend.docker.container_tracker import is_final
from launcher.backend.docker.engine import ERRORS, Engine, endpoint
from launcher.backend.docker.event_stream import ContainerEnded, ContainerEvent, EngineWatch, Inbox, LineWritten
from launcher.backend.docker.sidecars import Sidecars
from launcher.plan.models import Plan
from launcher.runs.paths import RunPaths
from launcher.runs.progress import integer
from launcher.runs.run_controller import Outcome, RunController, Runtime
from launcher.runs.status import Location
from trainer.exit_codes import ExitCode

COMPOSE_FILE = "compose.yaml"
# Seconds at most and at least for which output is taken in between two checks of deadlines, however much there is.
_LISTEN, _LISTEN_LEAST = 0.1, 0.01
_POLL_INTERVAL = 0.5  # seconds between two polls of the containers
_ANSWER_TIMEOUT = 20  # seconds; what has no answer by then is asked again
_ENGINE_AWAY_TIMEOUT = 600.0  # seconds; an engine that is updated takes a minute or two
_LAST_LINES = 5.0


def controller(paths: RunPaths, plan: Plan, lifeline: int | None) -> RunController:
    """Return the controller of a run of containers; signals to this process are for it. Raises LauncherError where no engine can be found."""
    containers = RunContainers(paths, plan, Engine(endpoint()))
    containers.listen(lifeline)
    return RunController(paths, plan, containers.tasks, containers)


class RunContainers(Runtime):
    """The containers of one run."""

    backend = "docker"
    extra_stop_seconds = 15.0  # for the engine itself

    def __init__(self, paths: RunPaths, plan: Plan, engine: Engine) -> None:
        self._paths, self._plan, self._engine = paths, plan, engine
        self.tasks = [ContainerTask(task, paths.log(task.name), engine, plan.name) for task in plan.tasks]
        self.sidecars = Sidecars(plan.grace_period)
        self.watch: EngineWatch | None = None
        self.location = Location("volume", container_status.volume_of(plan.name)) if plan.run_dir else None
        self._by_name = {task.name: task for task in self.tasks}
        self._inbox: Inbox = queue.SimpleQueue()
        self._stop_requests: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # apart: a request waits behind no lines
        self._started_as: dict[str, str] = {}  # task -> the id of its container
        self._engine_seen = self._polled_at = time.monotonic()

    def start(self) -> None:
        """Have Compose start every container. Raises LauncherError, and leaves none, when one cannot be started."""
        name = self._plan.name
        containers = start_containers(self._engine, name, self._paths.directory / COMPOSE_FILE, self._plan.start_timeout)
        self._engine.set_timeout(_ANSWER_TIMEOUT)
        self._update_tasks(containers, time.monotonic())
        self._started_as = {task: str(container.id) for task, container in container_status.by_task(containers).items()}
        self.watch = EngineWatch(self._engine, name, self._started_as, self._inbox)

    def listen(self, lifeline: int | None) -> None:
        """Listen for signals, and for a lifeline that closes with the launcher that ran this in the foreground."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda number, _frame: self.request_stop(number))
        if lifeline is not None:
            threading.Thread(target=self._hold, args=(lifeline,), name="lifeline", daemon=True).start()

    def request_stop(self, number: int | None) -> None:
        """Take in a signal's number, or that the launcher is gone (None)."""
        self._stop_requests.put(number)

    def _hold(self, lifeline: int) -> None:
        with contextlib.suppress(OSError):
            while os.read(lifeline, 4096):
                pass
        self.request_stop(None)

    def wait(self, run: RunController, within: float | None) -> None:
        """Wait for output or word of the engine, a moment at most; poll the containers now and then."""
        until = time.monotonic() + (_LISTEN if within is None else min(max(within, _LISTEN_LEAST), _LISTEN))
        with contextlib.suppress(queue.Empty):
            while self._stop_requests.empty() and (left := until - time.monotonic()) > 0:
                self._receive(self._inbox.get(timeout=left), run)
        while not self._stop_requests.empty():
            run.stop_requested(self._stop_requests.get())
        if time.monotonic() - self._polled_at >= _POLL_INTERVAL or any(task.answered for task in self.tasks):
            self._polled_at = time.monotonic()
            self._poll(run)
            self._report_exits(run)

    def close(self, run: RunController) -> None:
        """Report what the containers still wrote, then end the sidecars."""
        if self.watch is not None:
            self.watch.close(_LAST_LINES)
        with contextlib.suppress(queue.Empty):
            while True:
                self._receive(self._inbox.get_nowait(), run)
        self.sidecars.end()

    def on_directory_lost(self) -> bool:
        """Take in that another run of its name may start: its containers are not this one's. The files that these save stay in their volume."""
        for task in self.tasks:
            task.own = self._started_as.get(task.name)
        return False

    def clean_up(self, outcome: Outcome) -> None:
        """Remove the containers of a run that was asked to stop."""
        # A run that was started in the place of this one has removed what was left of it.
        if outcome.asked and not (outcome.lost_at is not None and self._paths.lock.exists()):
            self.tensorboard_url = ""
            with contextlib.suppress(*ERRORS):
                self._engine.remove(self._plan.name)

    def _receive(self, received: ContainerEvent, run: RunController) -> None:
        task = self._by_name.get(received.task)
        if task is None:
            return
        final: int | None = None
        match received:
            case LineWritten(_, line) if event := task.line(line):
                run.reported(task, event)
                code = integer(event, "exit_code")
                if event["event"] == "failed" and event.get("task", task.name) == task.name and code is not None and is_final(code):
                    final = code
            case ContainerEnded(_, code):
                task.tracker.code = code
                self._polled_at = 0.0
                final = code if code == ExitCode.WRONG_CONFIGURATION else None
        if final is not None:
            task.tracker.code = final
            run.failed(task, final)

    def _poll(self, run: RunController) -> None:
        asked = time.monotonic()
        try:
            if self._update_tasks(self._engine.containers(self._plan.name), asked):
                run.tasks_changed()
        except ERRORS as error:
            away = time.monotonic() - self._engine_seen
            if away > _ENGINE_AWAY_TIMEOUT:
                run.tasks_unreachable(f"the engine has not answered for {away:.0f} s: {error}")
                return
            with contextlib.suppress(*ERRORS):
                self._engine.client = self._engine.connect()
                if self.watch is not None:
                    self.watch.reopen()

    def _update_tasks(self, containers: list[Container], asked: float) -> bool:
        """Take in what the engine lists; return whether a task has changed."""
        self._engine_seen = time.monotonic()
        found = container_status.by_task(containers)
        own = {name: member.attrs for name, member in found.items() if name in self._by_name and self._by_name[name].is_own(member)}
        changed = [task.update(own.get(task.name, {}), asked) for task in self.tasks]
        self.sidecars.update(containers)
        for member in found.values():
            if member.status == "running":
                self.sidecars.restart_outdated(member)
        self.tensorboard_url = container_status.tensorboard_url(containers) or self.tensorboard_url
        self.location = container_status.location_of(containers, self._plan.name)
        return any(changed)

    def _report_exits(self, run: RunController) -> None:
        # An engine that is away reports later what it does with containers meanwhile.
        seen = time.monotonic() - self._engine_seen <= _POLL_INTERVAL
        for task in self.tasks:
            exited_for = task.exited_for(seen=seen)
            if exited_for is None:
                continue
            if task.restart_at is None and task.should_report_exit(exited_for):
                run.exited(task, task.exit_code)
            # Only now: sidecars that are stopped lose their restart policy, and those of a task that starts again need it.
            if task.restart_at is None and exited_for >= ENGINE_RESTART_TIMEOUT:
                self.sidecars.stop(task.name)
