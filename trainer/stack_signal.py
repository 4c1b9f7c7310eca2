"""Lets the task's parent ask this Python process for its stacks: a signal makes it write them to a pipe.

`faulthandler` writes them in the signal handler itself, so a process that hangs in C answers too. The signal would end a process that has not registered, so only registered ones get it.

The parent puts this file, as `sitecustomize`, before a user's own modules (trainer/stacks.py). Any version of Python may import it, and it raises nothing.
"""

from __future__ import annotations

import os
import sys

DIRECTORY_VARIABLE = "TRAINER_STACKS_DIRECTORY"  # directory of the pipes
# Names of pipes.
REGISTERED = "registered"  # each process writes a line "PID DESCRIPTOR", with its descriptor of the other pipe
STACKS = "stacks"


def stack_signal() -> int:
    """Return the signal: a real-time one that programs rarely use, if the system has them."""
    import signal

    return int(signal.SIGRTMIN) + 9 if hasattr(signal, "SIGRTMIN") else int(signal.SIGUSR2)


def register() -> None:
    """Have this process, and those that it forks, answer the signal. Does nothing without a parent that asked for it."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        return
    try:
        import faulthandler

        writing = _open(os.path.join(directory, STACKS))  # noqa: PTH118 - pathlib would be imported before every program
        os.set_blocking(writing, True)  # stacks longer than the pipe's buffer wait for the parent
        faulthandler.register(stack_signal(), file=writing, all_threads=True)
        _publish(directory, writing)
        os.register_at_fork(after_in_child=lambda: _publish(directory, writing))
    except Exception:  # noqa: BLE001, S110 - the program runs without
        pass


def _publish(directory: str, writing: int) -> None:
    try:
        pipe = _open(os.path.join(directory, REGISTERED))  # noqa: PTH118 - see above
        try:
            os.write(pipe, b"%d %d\n" % (os.getpid(), writing))
        finally:
            os.close(pipe)
    except OSError:  # the parent is gone, or has not read for long
        pass


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))


def _import_shadowed_sitecustomize() -> None:
    """Register, then import the `sitecustomize` that this file shadows in its place."""
    register()
    module = sys.modules.pop(__name__)
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - see above
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = module


if __name__ == "sitecustomize":
    _import_shadowed_sitecustomize()
