"""Determines a task's activity from its stacks: its input, its own code, a wait for other tasks, or TensorFlow. Pure."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

# A thread and a frame in faulthandler's format.
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
_FRAME = re.compile(r'^ *File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_LIBRARIES = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python\d[^/\\]*)[/\\]|^<")
# Files of TensorFlow on the stack when a dataset calls Python, or Python waits for a dataset.
_INPUT = re.compile(r"[/\\]tensorflow[/\\]python[/\\]data[/\\]")
_PYTHON_CALLS = re.compile(r"[/\\]tensorflow[/\\]python[/\\]ops[/\\]script_ops\.py$")  # a graph calls Python
_TRACING = re.compile(r"[/\\]tensorflow[/\\]python[/\\]framework[/\\]func_graph\.py$")
_TENSORFLOW = re.compile(r"[/\\]tensorflow[/\\]")
# The full path, as a user's directory may be called trainer, too. A parent that is a single file has none, and runs only users' programs.
_TRAINER_DIRECTORY = os.path.dirname(os.path.abspath(__file__)) if "__file__" in globals() else "-"  # noqa: PTH100, PTH120 - in images without the trainer, too
_PEER_WAITS = re.compile(re.escape(_TRAINER_DIRECTORY) + r"[/\\]engine[/\\](collectives[/\\]|parameter_server[/\\]worker_pool|peer_wait)")

ACTIVITY_TEXTS = {
    "input": "in its input",
    "code": "in its code",
    "peers": "waiting for other tasks",
    "servers": "waiting for servers that do not answer",
    "compiling": "tracing or compiling",
    "tensorflow": "inside TensorFlow",
    "stopped": "stopped by a signal; SIGCONT continues it",
    "silent": "not answering",
    "unknown": "",  # no process can be asked
}


@dataclass(frozen=True)
class Frame:
    """One call on a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line} in {self.function}"  # noqa: PTH119 - pathlib is not needed for it


@dataclass(frozen=True)
class Activity:
    """The activity of a task: a key of ACTIVITY_TEXTS, and its detail: the innermost call, or the servers that do not answer."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (ACTIVITY_TEXTS.get(self.kind, self.kind), self.detail)))


def no_progress_message(seconds: float, activity: Activity) -> str:
    """Return the message that a task makes no progress, with its activity."""
    return ": ".join(filter(None, (f"no progress for {seconds:.0f} s", str(activity))))


def threads(stacks: str) -> list[list[Frame]]:
    """Return the frames of each thread, innermost first, in the order in which they are written: the main thread last."""
    return [
        [Frame(found["file"], int(found["line"]), found["function"]) for found in _FRAME.finditer(part)]
        for part in _THREAD.split(stacks)[1:]
    ]


def read_activity(stacks: str) -> Activity:
    """Return the activity of the process with these stacks.

    The user's code in the main thread comes first, then that in a thread by which TensorFlow calls Python, then a wait for other tasks.
    """
    all_threads = [frames for frames in threads(stacks) if frames]
    if not all_threads:
        return Activity("silent")
    *others, main = all_threads
    if any(_TRACING.search(frame.file) for frame in main):
        return Activity("compiling", _innermost_call(main))
    for frames in [main, *others]:
        users = [frame for frame in frames if _is_users(frame)]
        if users and (frames is main or any(_PYTHON_CALLS.search(frame.file) for frame in frames)):
            return Activity("input" if any(_INPUT.search(frame.file) for frame in frames) else "code", str(users[0]))
    for frames in [main, *others]:
        if any(_PEER_WAITS.search(frame.file) for frame in frames[:12]):
            return Activity("peers")
    if any(_INPUT.search(frame.file) for frame in main):
        return Activity("input", _innermost_call(main))
    return Activity("tensorflow" if any(_TENSORFLOW.search(frame.file) for frame in main) else "code", _innermost_call(main))


def _innermost_call(frames: list[Frame]) -> str:
    return str(next((frame for frame in frames if not frame.file.startswith("<frozen ")), frames[0]))


def _is_users(frame: Frame) -> bool:
    return not _LIBRARIES.search(frame.file) and not frame.file.startswith(_TRAINER_DIRECTORY)
