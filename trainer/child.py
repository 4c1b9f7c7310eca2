"""The program of a task, one attempt at a time: started, asked to stop, killed, and its last error."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
from collections.abc import Callable
from pathlib import Path

from trainer import error_file, tracebacks
from trainer.event_loop import EventLoop
from trainer.events import EVENTS_FD
from trainer.exit_codes import ExitCode
from trainer.output import Output
from trainer.parent_job import ParentJob
from trainer.process_group import kill_group, reap, spawn
from trainer.stacks import SOCKET_ENV, Stacks


def library_path() -> dict[str, str]:
    """Return LD_LIBRARY_PATH with the cuSOLVER of this Python's packages behind what it has; nothing where they have none.

    TensorFlow 2.21 does not find that package, and without it uses no GPU: https://github.com/tensorflow/tensorflow/pull/112973
    """
    found = importlib.util.find_spec("nvidia")  # imports nothing
    places = [Path(place, "cusolver/lib") for place in (found and found.submodule_search_locations) or ()]
    there = [str(place) for place in places if place.is_dir()]
    given = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": os.pathsep.join(([given] if given else []) + there)} if there else {}


class Child:
    """The training process, or a user's program. `stuck(pid)` is called when it does not end, not even by SIGKILL."""

    def __init__(
        self, job: ParentJob, loop: EventLoop, output: Output, stacks: Stacks, directory: Path | None, stuck: Callable[[int], None]
    ) -> None:
        self._job, self._loop, self._output, self._stacks, self._stuck = job, loop, output, stacks, stuck
        # Without a directory the last error line is missing from events, no more.
        self._error_file = directory / "error" if directory else None
        self.pid: int | None = None  # and the id of its process group; None where it does not run
        self.killed_for = ""  # why it was sent SIGKILL
        self.is_done = False  # it has reported that its work is

    def start(self, attempt: int) -> None:
        """Start it for the attempt of that number."""
        self.killed_for, self.is_done = "", False
        if self._error_file:
            error_file.clear(self._error_file)
        self._output.begin()
        environment = {**os.environ, **library_path(), **self._job.environment, "TRAINER_ATTEMPT": str(attempt)}
        if self._error_file:
            environment[error_file.VARIABLE] = str(self._error_file)
            if self._job.built_in:
                # TensorFlow writes a file for each function it converts, which no process takes away that is killed.
                environment["TMPDIR"] = str(self._error_file.parent)
        for name in ("TRAINER_LIFELINE", SOCKET_ENV):
            environment.pop(name, None)
        environment.update(self._stacks.environment(built_in=self._job.built_in))
        out = self._output
        environment[EVENTS_FD] = str(out.events)
        self.pid = spawn(
            self._job.command, environment, bound=self._job.built_in, stdout=out.stdout, stderr=out.stderr, pass_fds=(out.events,)
        )

    def reap(self) -> int | None:
        """Return how it ended, once it has: its exit code, or the signal as a negative number. Every child of this process is reaped."""
        code = reap(self.pid)
        if code is not None:
            self.pid = None
        return code

    def diagnose(self, code: int) -> tuple[int, str, str]:
        """Return the exit code of the attempt that has ended, its error line and that line's fingerprint: those it left, else of what a program raised.

        A training process of ours that ends with DONE and has not reported it was ended by the user's code: WRONG_CONFIGURATION.
        """
        if code == ExitCode.DONE and self._job.built_in and not self.is_done:
            detail = "its exit code was 0, and its work was not done: code in it has ended it, as os._exit does"
            return int(ExitCode.WRONG_CONFIGURATION), detail, f"{error_file.FINAL}the training process was ended from inside"
        detail, fingerprint = error_file.last_line(self._error_file), error_file.fingerprint(self._error_file)
        if detail or fingerprint or self._job.built_in or code != ExitCode.FAILURE:
            return code, detail, fingerprint
        raised = tracebacks.last(self._output.tail)
        return (code, raised.line, raised.fingerprint) if raised else (code, "", "")

    def notify_stop(self) -> None:
        """Tell a server that it is to stop: a ps when its chief has saved, a worker soon."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGURG)

    def terminate(self) -> None:
        """Ask it to stop."""
        if self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        # TensorFlow's collective runtime takes signals over while it starts, and forgets them. A user's program may
        # take a second one for more than the first.
        if self._job.built_in:
            self._loop.call_later(self._job.timeouts.again, self.terminate)

    def kill(self, reason: str) -> None:
        """End it, and what it has in its process group."""
        if self.pid is None or self.killed_for:
            return
        self.killed_for = reason
        kill_group(self.pid)
        self._loop.call_later(self._job.timeouts.killed, self._check_killed)

    def _check_killed(self) -> None:
        if self.pid is not None:
            self._stuck(self.pid)

    def close(self) -> None:
        """Leave nothing of it behind."""
        if self.pid is not None:
            kill_group(self.pid)
