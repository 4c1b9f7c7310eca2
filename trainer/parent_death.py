"""Ends a process when its parent ends, however that happens.

The parent gives its child `child_environment`; the child calls `die_with_parent` before anything else. Linux signals a
parent's death to its child (prctl PR_SET_PDEATHSIG); elsewhere the child reads a pipe whose other end only the
parent holds. Any other program is started through this file: `python parent_death.py -- COMMAND`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

PARENT_PID_VARIABLE = "TRAINER_PARENT_PID"  # the process that must live
PARENT_PIPE_VARIABLE = "TRAINER_PARENT_PIPE"  # not on Linux: the read end of the pipe that closes with it

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_CANNOT_RUN = 2  # ExitCode.FINAL_FAILURE; this file imports nothing of the package


def needs_pipe() -> bool:
    """Return whether the parent has to hold a pipe for its child on this system."""
    return sys.platform != "linux"


def child_environment(pipe: int | None = None) -> dict[str, str]:
    """Return the variables for the child's environment; `pipe` is the read end that the child inherits."""
    return {PARENT_PID_VARIABLE: str(os.getpid()), **({} if pipe is None else {PARENT_PIPE_VARIABLE: str(pipe)})}


def die_with_parent() -> None:
    """Have this process killed (SIGKILL) when its parent ends; kill it at once if the parent has already ended.

    Does nothing if the parent did not set the variables. They are removed from the environment, so that this process's own
    children do not see them.
    """
    parent = os.environ.pop(PARENT_PID_VARIABLE, "")
    pipe = os.environ.pop(PARENT_PIPE_VARIABLE, "")
    if not parent.isdecimal():
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    elif pipe.isdecimal():
        os.set_inheritable(int(pipe), False)
        watch(int(pipe), lambda: os.kill(os.getpid(), signal.SIGKILL))
    if os.getppid() != int(parent):  # it died before the call
        os.kill(os.getpid(), signal.SIGKILL)


def watch(fd: int, on_eof: Callable[[], None]) -> threading.Thread:
    """Call `on_eof` from a thread of its own once all processes have closed the other end of the pipe `fd`."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(fd, 4096):
                pass
        on_eof()

    thread = threading.Thread(target=wait, name="parent pipe", daemon=True)
    thread.start()
    return thread


def wrapped(command: list[str]) -> list[str]:
    """Return the argv that runs `command` so that it dies with its parent, in the same process and environment."""
    # -I and -S: no module in the user's directory or PYTHONPATH can shadow the standard library here.
    return [sys.executable, "-I", "-S", *_this_program(), "--", *command]


def _this_program() -> list[str]:
    """Return Python's arguments that run this file, or its text if the parent is a single file (launcher/render/parent_file.py)."""
    if "__file__" in globals():
        return [__file__]
    loader: Any = __spec__.loader
    return ["-c", loader.get_source(__name__)]


def _guard(pipe: int) -> None:
    """Fork a process that kills its whole group once the pipe closes: exec ends threads, but not child processes."""
    if (middle := os.fork()) == 0:
        if os.fork():  # the guard has no parent here: a program that waits for all its children must not wait for it
            os._exit(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            while os.read(pipe, 4096):
                pass
        os.killpg(0, signal.SIGKILL)
    os.waitpid(middle, 0)
    os.set_inheritable(pipe, False)


def main(arguments: list[str]) -> int:
    """Bind this process to its parent, then become the command after `--`. Returns only if that cannot be run."""
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not command:
        print("expected: parent_death.py -- COMMAND ...", file=sys.stderr)
        return _CANNOT_RUN
    if needs_pipe() and os.environ.get(PARENT_PIPE_VARIABLE, "").isdecimal():
        _guard(int(os.environ.pop(PARENT_PIPE_VARIABLE)))
    die_with_parent()
    try:
        os.execvp(command[0], command)  # noqa: S606 - a shell would get the program's signals
    except OSError as error:
        print(f"{command[0]!r} cannot be run: {error.strerror}; give a program that exists and is executable", file=sys.stderr)
    return _CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
