"""One task of a local run: its process, its output, and how it is stopped."""

import os
import signal
import subprocess
import time
from collections.abc import Callable

from launcher.backend.local.lifelines import Lifelines
from launcher.plan.addresses import tf_config_text
from launcher.plan.models import Task
from launcher.runs import process_identity, restart_policy
from launcher.runs.event_lines import as_shown
from launcher.runs.paths import RunPaths
from launcher.runs.process_identity import Identity
from launcher.runs.restart_policy import RestartDecision
from launcher.runs.run_controller import ControlledTask
from launcher.runs.state_writer import log_message
from launcher.runs.task_tracker import TaskTracker
from trainer import stacks
from trainer.events import MARK, Event, parse
from trainer.exit_codes import ExitCode

_READ = 64 * 1024
# Most bytes that are read from the pipe when a task has ended; more than the largest pipe that a user may have.
_DRAIN = 1024 * 1024
_KILL_INTERVAL = 5.0
_FROM_OUTSIDE = {137: "killed by SIGKILL (out of memory?)", 143: "asked to stop from outside"}


class ProcessTask(ControlledTask):
    """One task; `started` is called with it and where its output is read, whenever its process has been started."""

    def __init__(self, task: Task, paths: RunPaths, lifelines: Lifelines, started: Callable[["ProcessTask", int], None]) -> None:
        tracker = TaskTracker(task.name, task.address, task.restart.max_restarts, limited_memory=False, from_outside=_FROM_OUTSIDE)
        super().__init__(task, paths.log(task.name), tracker)
        self.identity: Identity | None = None
        self.output: int | None = None  # read end of the pipe that stdout and stderr go to
        self._stacks_socket = paths.stacks_socket(task.name)
        self._lifelines, self._on_start = lifelines, started
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._began = 0.0

    @property
    def running(self) -> bool:
        """Whether the task has a process."""
        return self._process is not None

    @property
    def ran_for(self) -> float:
        """Seconds since its process was started last."""
        return time.monotonic() - self._began

    @property
    def was_killed(self) -> bool:
        """Whether it was killed from here."""
        return self._killed

    def start(self) -> None:
        """Start the process. Raises OSError.

        It stops when its lifeline closes, and holds those of the tasks that are to stop after it.
        """
        lifeline = self._lifelines.of(self.name)
        environment = {
            **os.environ,
            **self.task.env,
            "TF_CONFIG": tf_config_text(self.task.tf_config),
            "TRAINER_LIFELINE": str(lifeline),
            stacks.SOCKET_ENV: str(self._stacks_socket),
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
                # With the read end of its own output it can go on writing when the supervisor is gone, and save.
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
        self._began = time.monotonic()
        self.tracker.mark_started()
        self.tracker.started = self.tracker.started or time.time()
        self.tracker.pid = self._process.pid
        log_message(f"{self.name} started: attempt {len(self.tracker.restarts) + 1}, pid {self._process.pid}")
        self._on_start(self, reading)

    def read(self) -> tuple[list[Event], bool]:
        """Take in output that is there now; return its events, and whether more may come."""
        if self.output is None:
            return [], False
        try:
            output = os.read(self.output, _READ)
        except BlockingIOError:
            return [], True
        return self._taken_in(self.log.feed(output) if output else self.log.end()), bool(output)

    def poll(self) -> int | None:
        """Return the exit code once the process has ended, as shells tell it; the caller then calls `exited`."""
        code = self._process.poll() if self._process else None
        return None if code is None else restart_policy.exit_code(code)

    def exited(self, code: int) -> list[Event]:
        """Clean up after the process: kill what it left in its session, take in its last output; return the events."""
        if self._process is None:
            return []
        process_identity.kill_session(self._process.pid)
        events: list[Event] = []
        if self.output is not None:
            for _ in range(_DRAIN // _READ):
                before = self.log.bytes_fed
                more_events, more = self.read()
                events += more_events
                if not more or self.log.bytes_fed == before:
                    break
            events += self._taken_in(self.log.end())
            os.close(self.output)
            self.output = None
        self._process = self.stop_at = self.kill_at = None
        self.tracker.code, self.tracker.ended, self.tracker.pid = code, time.time(), None
        return events

    def stop(self, grace: float) -> None:
        """Ask the process to save and end; what it started hears of it from it."""
        self.stop_at = None
        if self._process:
            self.kill_at = time.monotonic() + grace
            process_identity.send(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the process and all it started, now; and again later should one of them resist."""
        self.stop_at = None
        if self._process:
            self._killed, self.kill_at = True, time.monotonic() + _KILL_INTERVAL
            self.interrupt()

    def interrupt(self) -> None:
        """Kill the process and all it started: what is frozen hears nothing else."""
        if self._process:
            process_identity.kill_session(self._process.pid)

    def decide(self, code: int) -> RestartDecision:
        """Return what follows from this exit; code 75 is always the parent's, never the program's."""
        return self.decide_by_policy(code, "on_failure" if code == ExitCode.PEER_LOST else self.task.restart.when)

    def prevent_restart(self) -> None:
        """Do nothing: nothing else starts it."""

    def _taken_in(self, lines: list[bytes]) -> list[Event]:
        events = []
        for line in lines:
            # Most output is no event: told apart before it is decoded.
            event = parse(line.decode("utf-8", "replace")) if line.startswith(MARK) else None
            if event is not None:
                events.append(event)
            elif (shown := as_shown(line)).strip():
                self.tracker.last.feed(shown.decode("utf-8", "replace"))
        return events
