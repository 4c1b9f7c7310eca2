"""One task while its supervisor keeps it: its process, its log, its restarts, and what its events tell."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from launcher.plan.addresses import tf_config_text
from launcher.plan.models import Task
from launcher.runs import process_identity, restart_policy
from launcher.runs.event_lines import as_shown
from launcher.runs.log_files import LogWriter
from launcher.runs.process_identity import Identity
from launcher.runs.progress import Pace, whole
from launcher.runs.reasons import LastError, Start, out_of_memory, said_with, waiting, was_killed
from launcher.runs.status import Restart, State, TaskStatus
from trainer import stacks
from trainer.events import MARK, Event, parse
from trainer.exit_codes import SIGKILL, ExitCode, describe

_READ = 64 * 1024
# What is still in the pipe when a task has ended; more than the largest pipe that a user may have.
_DRAIN = 1024 * 1024
_KILL_AGAIN = 5.0
_KILLED_FROM_OUTSIDE = {137: "killed by SIGKILL (out of memory?)", 143: "asked to stop from outside"}


class TaskRun:
    """One task of a running plan. Times named `..._at` are of time.monotonic; None is never."""

    def __init__(self, task: Task, log: Path, stacks_socket: Path) -> None:
        self.task = task
        self.name = task.name
        self.log = LogWriter(log)
        self._stacks_socket = stacks_socket
        self.state = State.PENDING
        self.reason = ""
        self.restarts: list[Restart] = []
        self.exit_code: int | None = None
        self.started: float | None = None
        self.ended: float | None = None
        self.identity: Identity | None = None
        self.output: int | None = None  # read end of the pipe that stdout and stderr go to
        self.restart_at: float | None = None
        self.term_at: float | None = None
        self.kill_at: float | None = None
        self.told = False  # asked to stop
        self._start = Start()
        self.killed = False
        self._last = LastError()
        self.remedy = ""
        self.failure = ""  # what the task itself said of why it gives up
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._delay = 0.0
        self._counted = 0  # restarts that count, of the processes that have ended
        self._counted_in_place = 0  # of the process that runs, which restarts its child by itself
        self._pace = Pace()

    @property
    def running(self) -> bool:
        """Whether the task has a process."""
        return self._process is not None

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return len(self.restarts) + 1

    @property
    def used_up(self) -> bool:
        """Whether no restart that counts is left."""
        return self._counted >= self.task.restart.max_restarts

    def start(self, lifeline: int, keeps: Iterable[int] = ()) -> int:
        """Start the process; return the pipe its output comes from. Raises OSError.

        `lifeline` is the read end of a pipe; the task stops when it closes. `keeps` are the write ends of pipes that
        are not to close before this task has ended, as those who stop after it have them for a lifeline.
        """
        environment = {
            **os.environ,
            **self.task.env,
            "TF_CONFIG": tf_config_text(self.task.tf_config),
            "TRAINER_LIFELINE": str(lifeline),
            stacks.PLACE: str(self._stacks_socket),
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
                pass_fds=(lifeline, reading, *keeps),
            )
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        self.output = reading
        self.identity = process_identity.identify(self._process.pid) or Identity(self._process.pid, "")
        self.state, self.reason, self.exit_code, self.ended = State.RUNNING, "", None, None
        self.restart_at = self.term_at = self.kill_at = None
        self.failure = self.remedy = ""
        self._last = LastError()
        self._began = time.monotonic()
        self.started = self.started or time.time()
        return reading

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
        """Return the exit code once the process has ended, as shells tell it; the caller then calls `ended_with`."""
        code = self._process.poll() if self._process else None
        return None if code is None else restart_policy.exit_code(code)

    def ended_with(self, code: int) -> list[Event]:
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
        self._process = None
        self.exit_code = code
        self.ended = time.time()
        self._counted += self._counted_in_place
        self._counted_in_place = 0
        return events

    def verdict(self, code: int) -> restart_policy.Verdict:
        """Return what follows from this exit."""
        rule = self.task.restart
        when = "on_failure" if code == ExitCode.PEER_LOST else rule.when  # that is the parent's own; the program's would be another
        return restart_policy.verdict(code, counted=self._counted, max_restarts=rule.max_restarts, when=when)

    def restart_later(self, cause: str, *, counts: bool) -> float:
        """Note a restart and its cause; return the seconds until it is due."""
        self._delay = restart_policy.delay(self._delay, ran_for=time.monotonic() - self._began)
        self._counted += counts
        self.restarts.append(Restart(time.time(), self.attempt, self.exit_code, cause))
        self.state, self.reason = State.RESTARTING, cause
        self.restart_at = time.monotonic() + self._delay
        self.log.note(f"attempt {self.attempt} starts in {self._delay:.0f} s: {cause}")
        return self._delay

    def terminate(self) -> None:
        """Ask the process to save and end; what it started hears of it from it."""
        self.told, self.term_at = True, None
        if self._process:
            process_identity.send(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the process and all it started, now; and again later should one of them resist."""
        self.killed, self.term_at, self.kill_at = True, None, time.monotonic() + _KILL_AGAIN
        if self._process:
            process_identity.kill_session(self._process.pid)

    def settle(self, state: State, reason: str = "") -> None:
        """Note how the task ended for good."""
        self.state, self.reason = state, reason
        self.restart_at = self.term_at = self.kill_at = None

    def why(self, code: int) -> str:
        """Say why an attempt ended: the exit code in words and the task's last words."""
        if self.failure:
            return self.failure
        # Who was killed from outside had no say: its last line is about something else.
        if code in _KILLED_FROM_OUTSIDE or not self._last.line:
            return _KILLED_FROM_OUTSIDE.get(code) or describe(code)
        return f"{describe(code)}: {self._last.line}"

    def tell(self, event: Event, *, own: bool) -> bool:
        """Take in one event about this task; `own` when it wrote it itself. True when its state changed."""
        kind = event["event"]
        if kind == "progress":
            self._pace = Pace.of(event)
        if not own or self.told:
            return False
        before = (self.state, self.reason)
        if kind == "started":
            self._last = LastError()  # of this attempt
        if self._start.waits(event):
            self.state, self.reason = State.PENDING, waiting(event)
        elif kind in {"started", "ready", "restored", "progress"}:
            self.state, self.reason = State.RUNNING, ""
        elif kind == "restarting":
            code, cause = whole(event, "exit_code"), said_with(event, self._last)
            self.restarts.append(Restart(time.time(), self.attempt, code, cause))
            self._counted_in_place = whole(event, "restarts") or self._counted_in_place
            self.state, self.reason = State.RESTARTING, cause
        elif kind == "recovered":
            self._counted_in_place = whole(event, "restarts") or 0
        elif kind == "failed":
            self.failure = said_with(event, self._last)
            self.remedy = out_of_memory(self.name, limited=False) if was_killed(event) else ""
        return (self.state, self.reason) != before or kind in {"restarting", "recovered"}

    def status(self) -> TaskStatus:
        """Return the task as others see it."""
        return TaskStatus(
            name=self.name,
            state=self.state,
            reason=self.reason,
            remedy=self._remedy(),
            address=self.task.address,
            pid=self._process.pid if self._process else None,
            restarts=tuple(self.restarts),
            restarts_left=max(0, self.task.restart.max_restarts - self._counted - self._counted_in_place),
            exit_code=self.exit_code,
            started=self.started,
            ended=self.ended,
            **vars(self._pace),
        )

    def _remedy(self) -> str:
        if self.state is not State.FAILED:
            return ""
        return out_of_memory(self.name, limited=False) if self.exit_code == SIGKILL else self.remedy

    def close(self) -> None:
        """Close the log."""
        with suppress(OSError):
            self.log.close()

    def _taken_in(self, lines: list[bytes]) -> list[Event]:
        events = []
        for line in lines:
            # Most output is no event: told apart before it is decoded.
            event = parse(line.decode("utf-8", "replace")) if line.startswith(MARK) else None
            if event is not None:
                events.append(event)
            elif (shown := as_shown(line)).strip():
                self._last.feed(shown.decode("utf-8", "replace"))
        return events
