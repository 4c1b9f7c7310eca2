"""The process of a task's program, one attempt at a time: its start, its stop, SIGKILL, and its last error."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from trainer import captured_import, error_file, tracebacks
from trainer.event_loop import EventLoop
from trainer.events import EVENTS_FD_VARIABLE
from trainer.exit_codes import ExitCode
from trainer.output import Output
from trainer.parent_config import ParentConfig
from trainer.process_group import kill_group, reap, spawn
from trainer.stacks import SOCKET_VARIABLE, Stacks


def library_path() -> dict[str, str]:
    """Return LD_LIBRARY_PATH with the cuSOLVER of this Python's packages appended; nothing if it is not installed.

    TensorFlow 2.21 does not find that package, and without it uses no GPU: https://github.com/tensorflow/tensorflow/pull/112973
    """
    package = importlib.util.find_spec("nvidia")  # imports nothing
    candidates = [Path(location, "cusolver/lib") for location in (package and package.submodule_search_locations) or ()]
    directories = [str(candidate) for candidate in candidates if candidate.is_dir()]
    current = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": os.pathsep.join(([current] if current else []) + directories)} if directories else {}


class Child:
    """The training process, or a user's program. `stuck(pid)` is called when it does not end, not even by SIGKILL."""

    def __init__(
        self, config: ParentConfig, loop: EventLoop, output: Output, stacks: Stacks, directory: Path | None, stuck: Callable[[int], None]
    ) -> None:
        self._config, self._loop, self._output, self._stacks, self._stuck = config, loop, output, stacks, stuck
        # Without a directory, events only lack the last error line.
        self._error_file = directory / "error" if directory else None
        self.pid: int | None = None  # also the id of its process group; None if it does not run
        self.kill_reason = ""  # the reason for its SIGKILL
        self._start_error = ""
        self.is_done = False  # whether it has reported `done`

    def start(self, attempt: int) -> None:
        """Start the process of this attempt; `pid` stays None if the system refuses, and `diagnose` returns why."""
        self.kill_reason, self.is_done, self._start_error = "", False, ""
        if self._error_file:
            error_file.clear(self._error_file)
            captured_import.take_captured_output(self._error_file)
        self._output.begin()
        environment = {**os.environ, **library_path(), **self._config.added_environment, "TRAINER_ATTEMPT": str(attempt)}
        if self._error_file:
            environment[error_file.VARIABLE] = str(self._error_file)
            if self._config.runs_built_in_trainer:
                # TensorFlow writes a file for each function that it converts; a killed process does not remove them.
                environment["TMPDIR"] = str(self._error_file.parent)
        for name in ("TRAINER_LIFELINE", SOCKET_VARIABLE):
            environment.pop(name, None)
        environment.update(self._stacks.environment(runs_built_in_trainer=self._config.runs_built_in_trainer))
        out = self._output
        environment[EVENTS_FD_VARIABLE] = str(out.events)
        try:
            self.pid = spawn(
                self._config.command,
                environment,
                handles_parent_death=self._config.runs_built_in_trainer,
                stdout=out.stdout,
                stderr=out.stderr,
                pass_fds=(out.events,),
            )
        except OSError as error:
            self._start_error = f"its process could not be started: {error.strerror}; raise the task's limits of processes and memory"

    def reap(self) -> int | None:
        """Reap every child of this process; return the exit code of this one if it has ended, or the signal as a negative number."""
        code = reap(self.pid)
        if code is not None:
            self.pid = None
        return code

    def diagnose(self, code: int) -> tuple[int, str, str]:
        """Return the ended attempt's exit code, error line and fingerprint: from its error file, what TensorFlow's import said, or a program's traceback.

        If a training process of ours ends with DONE without reporting it, the user's code has ended it: a final failure.
        """
        if self._start_error:
            return code, self._start_error, ""
        if code == ExitCode.DONE and self._config.runs_built_in_trainer and not self.is_done:
            detail = "it exited with code 0 before its work was done: its code called os._exit or the like"
            return int(ExitCode.FINAL_FAILURE), detail, error_file.CODE_ENDED_PROCESS
        detail, fingerprint = error_file.last_line(self._error_file), error_file.fingerprint(self._error_file)
        if self._error_file and (held := captured_import.take_captured_output(self._error_file)):
            self._output.write(f"{held}\n")
            detail = detail or held.splitlines()[-1]
        if detail or fingerprint or self._config.runs_built_in_trainer or code != ExitCode.FAILURE:
            return code, detail, fingerprint
        raised = tracebacks.last(self._output.tail)
        return (code, raised.line, raised.fingerprint) if raised else (code, "", "")

    def notify_stop(self) -> None:
        """Inform a server of a request to stop: a ps stops when its chief has saved, a worker soon."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGURG)

    def terminate(self) -> None:
        """Ask it to stop."""
        if self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        # While it starts, TensorFlow's collective runtime intercepts signals and drops them, so ours are repeated. A user's program
        # may treat a second signal differently.
        if self._config.runs_built_in_trainer:
            self._loop.call_later(self._config.timeouts.sigterm_interval, self.terminate)

    def kill(self, reason: str) -> None:
        """Kill its process group."""
        if self.pid is None or self.kill_reason:
            return
        self.kill_reason = reason
        kill_group(self.pid)
        self._loop.call_later(self._config.timeouts.reap_timeout, partial(self._check_killed, self.pid))

    def _check_killed(self, pid: int) -> None:
        if self.pid == pid:  # not if the next attempt has begun
            self._stuck(pid)

    def close(self) -> None:
        """Kill its process group if it still runs."""
        if self.pid is not None:
            kill_group(self.pid)
