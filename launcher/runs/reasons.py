"""Reasons in words, from the events and the output of tasks, as statuses and logs give them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from launcher.runs.progress import integer, number, text
from launcher.runs.status import RunStatus, State
from trainer.events import Event, first_step
from trainer.exit_codes import SIGKILL, describe
from trainer.stack_reading import Activity

_LINE = 300  # characters of a reason in a table
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)(:|$)|Fatal Python error: ")
# TensorFlow's lines between the first of an error in a graph and the one that says what is wrong.
_WHERE = re.compile(r"Detected at node |<stack traces unavailable>|in user code:")
# Errors of the system, and of the kubelet, if the user or the file system is not what an image needs.
_RESTRICTED = re.compile(r"read-only file system|permission denied|operation not permitted|image will run as root", re.IGNORECASE)
RESTRICTION_REMEDY = "where its image needs root or a writable root file system: `security: image` in the spec"
_FORGOTTEN_AFTER = 100  # lines: a program that continues for longer had another reason to end


def killed_tasks(status: RunStatus) -> Iterator[str]:
    """Yield the tasks of a stopped run that had to be killed, in words: their unsaved work is lost."""
    for task in status.tasks:
        if task.state is State.STOPPED and task.exit_code == SIGKILL:
            yield f"{task.name}: {task.reason or describe(SIGKILL)}"


def cause_of(event: Event) -> str:
    """Return the cause that an event gives, with its detail; empty when it gives none."""
    return ": ".join(part for part in (text(event, "cause"), text(event, "detail")) if part)


def shortened(line: str) -> str:
    """Return a line for a table, a long one without its middle: its start says what happened, its end why."""
    if len(line) <= _LINE:
        return line
    end = _LINE // 2
    return f"{line[: _LINE - end - 5]} ... {line[-end:]}"


@dataclass
class StartPhase:
    """Whether a task's training process is still starting; the peer probe may finish just after `ready`."""

    ready: bool = False

    def is_waiting(self, event: Event) -> bool:
        """Take in an event that the task told of itself; return whether it waits for its peers."""
        kind = event["event"]
        if kind in {"started", "ready"}:
            self.ready = kind == "ready"
        return kind == "waiting" and (not self.ready or event.get("missing") == [])


def waiting_reason(event: Event) -> str:
    """Return what a task waits for, by its event `waiting`."""
    missing = event.get("missing")
    if missing == [] and (seconds := number(event, "seconds")) is not None:
        return first_step(seconds, Activity(text(event, "doing"), text(event, "place")))
    names = [str(peer.get("task")) for peer in missing if isinstance(peer, dict)] if isinstance(missing, list) else []
    return f"waiting for {', '.join(names)}" if names else "waiting for peers"


class LastError:
    """Finds in a task's output the line that says what went wrong: the one of a traceback that names the exception, else the last one."""

    def __init__(self) -> None:
        self._error = ""
        self._last = ""
        self._since = 0  # lines after the error
        self._in_traceback = False
        self._unfinished = False  # the line ends in a colon: what is wrong is in a later one

    @property
    def error(self) -> str:
        """The line that names an exception, empty where there was none lately."""
        return self._error if self._since < _FORGOTTEN_AFTER else ""

    @property
    def line(self) -> str:
        """That line, or the last of all."""
        return self.error or self._last

    def feed(self, line: str) -> None:
        """Take in one line of output that is no event."""
        stripped = line.strip()
        if not stripped or not stripped.strip("^~ "):  # carets under a line of source
            return
        self._last = stripped
        self._since += 1
        if stripped == _TRACEBACK:
            self._in_traceback = True
        elif line[0].isspace():
            return
        elif self._in_traceback or _EXCEPTION.match(stripped):
            self._error, self._since, self._in_traceback = stripped, 0, False
            self._unfinished = stripped.endswith(":")
        elif self._unfinished and not _WHERE.match(stripped):
            self._error, self._unfinished = f"{self._error} {stripped}", False


def out_of_memory(task: str, *, limited: bool) -> str:
    """Return what to do about a task that was killed, out of memory as it seems; `limited` is whether its role's `memory` is its limit here."""
    memory = f"roles.{task.partition('-')[0]}.memory"
    if limited:
        return f"raise `{memory}`, or lower `train.batch_size`"
    return f"if memory ran out: end other programs, or lower `train.batch_size`; in containers and on Kubernetes raise `{memory}`"


def with_remedy(reason: str, remedy: str) -> str:
    """Return a reason with what to do about it, where that is known."""
    return f"{reason}; {remedy}" if remedy else reason


def meets_restriction(reason: str) -> bool:
    """Return whether a program ended because of a restriction of its hardened container."""
    return _RESTRICTED.search(reason) is not None


def was_killed(event: Event) -> bool:
    """Return whether an event `failed` or `restarting` tells that the task's process was killed from outside."""
    code = integer(event, "process_exit_code")
    return (integer(event, "exit_code") if code is None else code) == SIGKILL


def cause_with_output(event: Event, last: LastError) -> str:
    """Return what an event `failed` or `restarting` says; where it has no detail, with the exception in the output before it."""
    error = "" if text(event, "detail") or was_killed(event) else last.error
    return ": ".join(part for part in (cause_of(event), error) if part)
