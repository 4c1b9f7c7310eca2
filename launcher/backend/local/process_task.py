"""One task of a local run: its process, its output, and how it is stopped."""

import os
import signal
import subprocess
import time
from collections.abc import Callable

from launcher.backend.local.lifelines import Lifelines
from launcher.plan.addresses import tf_config_text
from launcher.plan.models import Task
from launcher.runs import process_identity
from launcher.runs.event_lines import as_shown
from launcher.runs.paths import RunPaths
from launcher.runs.process_identity import Identity
from launcher.runs.restart_policy import RestartDecision
from launcher.runs.run_controller import ControlledTask
from launcher.runs.state_writer import log_message
from launcher.runs.task_tracker import TaskTracker
from trainer import stacks
from trainer.events import EVENT_PREFIX, Event, parse
from trainer.exit_codes import SIGKILL_EXIT_CODE, ExitCode, exit_code_of

_READ_SIZE = 64 * 1024
# The most bytes that are read from the pipe once a task has ended: the capacity of the largest pipe that a user may have.
_MAX_DRAIN = 1024 * 1024
_KILL_INTERVAL = 5.0
_SIGNAL_REASONS = {SIGKILL_EXIT_CODE: "killed by SIGKILL (out of memory?)", ExitCode.STOPPED: "asked to stop from outside"}


class ProcessTask(ControlledTask):
    """One task. `started` is called with it and the read end of its output, whenever its process has been started."""

    def __init__(self, task: Task, paths: RunPaths, lifelines: Lifelines, started: Callable[["ProcessTask", int], None]) -> None:
        tracker = TaskTracker(task.name, task.address, task.restart.max_restarts, limited_memory=False, signal_reasons=_SIGNAL_REASONS)
        super().__init__(task, paths.log(task.name), tracker)
        self.identity: Identity | None = None
        self.output: int | None = None  # read end of the pipe that stdout and stderr go to
        self._stacks_socket = paths.stacks_socket(task.name)
        self._lifelines, self._on_start = lifelines, started
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._started_at = self._ran_for = 0.0

    @property
    def running(self) -> bool:
        """Whether the task has a process."""
        return self._process is not None

    @property
    def ran_for(self) -> float:
        """Seconds that its last process ran; 0 while it runs, or if it could not be started."""
        return self._ran_for

    @property
    def was_killed(self) -> bool:
        """Whether this supervisor killed it."""
        return self._killed

    def start(self) -> None:
        """Start the process. Raises OSError.

        It stops when its lifeline closes, and holds open those of the tasks that are to stop after it.
        """
        self._ran_for = 0.0
        lifeline = self._lifelines.read_end(self.name)
        environment = {
            **os.environ,
            **self.task.env,
            "TF_CONFIG": tf_config_text(self.task.tf_config),
            "TRAINER_LIFELINE": str(lifeline),
            stacks.SOCKET_VARIABLE: str(self._stacks_socket),
        }
        reading, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                self.task.command,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
                cwd=self.task.cwd,
                env=environment,
                start_new_session=True,
                # The task holds the read end of its own output, too: so it can still write, and save, when the supervisor is gone.
                pass_fds=(lifeline, reading, *self._lifelines.inherited_by(self.name)),
            )
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        self.output = reading
        self.identity = process_identity.identify(self._process.pid) or Identity(self._process.pid, "")
        self._started_at = time.monotonic()
        self.tracker.mark_started()
        self.tracker.started = self.tracker.started or time.time()
        self.tracker.pid = self._process.pid
        log_message(f"{self.name} started: attempt {self.tracker.attempt}, pid {self._process.pid}")
        self._on_start(self, reading)

    def read(self) -> tuple[list[Event], bool]:
        """Read the output so far, without waiting; return its events, and whether more may come."""
        if self.output is None:
            return [], False
        try:
            output = os.read(self.output, _READ_SIZE)
        except BlockingIOError:
            return [], True
        return self._take_lines(self.log.feed(output) if output else self.log.end()), bool(output)

    def poll(self) -> int | None:
        """Return the exit code once the process has ended, as shells give it; the caller then calls `finish`."""
        code = self._process.poll() if self._process else None
        return None if code is None else exit_code_of(code)

    def finish(self, code: int) -> list[Event]:
        """Clean up after the process: kill the rest of its session and read its last output; return the events."""
        if self._process is None:
            return []
        self._ran_for = time.monotonic() - self._started_at
        process_identity.kill_session(self._process.pid)
        events: list[Event] = []
        if self.output is not None:
            for _ in range(_MAX_DRAIN // _READ_SIZE):
                before = self.log.bytes_fed
                more_events, more = self.read()
                events += more_events
                if not more or self.log.bytes_fed == before:
                    break
            events += self._take_lines(self.log.end())
            os.close(self.output)
            self.output = None
        self._process = self.stop_at = self.kill_at = None
        self.tracker.code, self.tracker.ended, self.tracker.pid = code, time.time(), None
        return events

    def stop(self, grace: float) -> None:
        """Ask the process to save and end; it passes the signal on to its children."""
        self.stop_at = None
        if self._process:
            self.kill_at = time.monotonic() + grace
            process_identity.send(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its session; try again later if one of them remains."""
        self.stop_at = None
        if self._process:
            self._killed, self.kill_at = True, time.monotonic() + _KILL_INTERVAL
            self.kill_for_restart()

    def kill_for_restart(self) -> None:
        """Kill the process and its session: a frozen process reacts to nothing else."""
        if self._process:
            process_identity.kill_session(self._process.pid)

    def decide(self, code: int) -> RestartDecision:
        """Return the restart decision for this exit code; 75 is always the parent's, never the program's."""
        return self.decide_by_policy(code, "on_failure" if code == ExitCode.PEER_LOST else self.task.restart.when)

    def prevent_restart(self) -> None:
        """Do nothing: nothing else starts it."""

    def _take_lines(self, lines: list[bytes]) -> list[Event]:
        """Return the events among the lines; the other lines may name an error."""
        events = []
        for line in lines:
            # Most lines are no events: check the prefix before decoding.
            event = parse(line.decode("utf-8", "replace")) if line.startswith(EVENT_PREFIX) else None
            if event is not None:
                events.append(event)
            elif (shown := as_shown(line)).strip():
                self.tracker.last_error.feed(shown.decode("utf-8", "replace"))
        return events
