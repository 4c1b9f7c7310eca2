"""Reasons as text for statuses and logs, from the events and the output of tasks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from launcher.runs.progress import integer, number, text
from launcher.runs.status import RunStatus, State
from trainer.events import Event, first_step_message
from trainer.exit_codes import SIGKILL_EXIT_CODE, describe
from trainer.stack_reading import Activity

# Reasons of a run that was stopped; with SIGQUIT or `--now` at once.
ASKED_TO_STOP, ASKED_TO_STOP_AT_ONCE, DONE_BEFORE_STOP = "asked to stop", "asked to stop at once", "it was done before it stopped"

_MAX_LENGTH = 300  # characters of a reason in a table
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)(:|$)|Fatal Python error: ")
# TensorFlow's lines between the first line of an error in a graph and the one with its message.
_GRAPH_LOCATION = re.compile(r"Detected at node |<stack traces unavailable>|in user code:")
# Errors of the system, and of the kubelet, if an image needs another user or a writable file system.
_RESTRICTED = re.compile(r"read-only file system|permission denied|operation not permitted|image will run as root", re.IGNORECASE)
RESTRICTION_REMEDY = "if its image needs root or a writable root file system: `security: image` in the spec"
_FORGOTTEN_AFTER = 100  # lines: if more follow an error, the program has ended for another reason


def killed_task_messages(status: RunStatus) -> Iterator[str]:
    """Yield a message for each task of a stopped run that had to be killed: its unsaved work is lost."""
    for task in status.tasks:
        if task.state is State.STOPPED and task.exit_code == SIGKILL_EXIT_CODE:
            yield f"{task.name}: {task.reason or describe(SIGKILL_EXIT_CODE)}"


def cause_of(event: Event) -> str:
    """Return an event's cause, with its detail; empty if it has none."""
    return ": ".join(part for part in (text(event, "cause"), text(event, "detail")) if part)


def shortened(line: str) -> str:
    """Return a line for a table, with the middle of a long one cut out: the error is at its start, the reason at its end."""
    if len(line) <= _MAX_LENGTH:
        return line
    end = _MAX_LENGTH // 2
    return f"{line[: _MAX_LENGTH - end - 5]} ... {line[-end:]}"


@dataclass
class StartPhase:
    """Whether a task's training process is still starting. A `waiting` event with missing peers that comes after `ready` is late, and is ignored."""

    ready: bool = False

    def apply(self, event: Event) -> bool:
        """Process the task's own event; return whether it waits for peers, or for its first step."""
        kind = event["event"]
        if kind in {"started", "ready"}:
            self.ready = kind == "ready"
        return kind == "waiting" and (not self.ready or event.get("missing") == [])


def waiting_reason(event: Event) -> str:
    """Return the reason of a task that waits, from its event `waiting`."""
    missing = event.get("missing")
    if missing == [] and (seconds := number(event, "seconds")) is not None:
        return first_step_message(seconds, Activity(text(event, "doing"), text(event, "place")))
    names = [str(peer.get("task")) for peer in missing if isinstance(peer, dict)] if isinstance(missing, list) else []
    return f"waiting for {', '.join(names)}" if names else "waiting for peers"


class LastError:
    """Finds the line of a task's output that names the error: the last line of a traceback, else the last line of all."""

    def __init__(self) -> None:
        self._error = ""
        self._last = ""
        self._lines_since_error = 0
        self._in_traceback = False
        self._unfinished = False  # the line ends in a colon: a later line has the message

    @property
    def error(self) -> str:
        """The line that names an exception; empty if there was none recently."""
        return self._error if self._lines_since_error < _FORGOTTEN_AFTER else ""

    @property
    def line(self) -> str:
        """The line that names an exception, else the last line of all."""
        return self.error or self._last

    def feed(self, line: str) -> None:
        """Process one line of output that is no event."""
        stripped = line.strip()
        if not stripped or not stripped.strip("^~ "):  # only markers under a line of source
            return
        self._last = stripped
        self._lines_since_error += 1
        if stripped == _TRACEBACK:
            self._in_traceback = True
        elif line[0].isspace():
            return
        elif self._in_traceback or _EXCEPTION.match(stripped):
            self._error, self._lines_since_error, self._in_traceback = stripped, 0, False
            self._unfinished = stripped.endswith(":")
        elif self._unfinished and not _GRAPH_LOCATION.match(stripped):
            self._error, self._unfinished = f"{self._error} {stripped}", False


def out_of_memory_remedy(task: str, *, limited: bool) -> str:
    """Return the remedy for a task that was killed, probably out of memory; `limited`: whether its role's `memory` limits it here."""
    memory = f"roles.{task.partition('-')[0]}.memory"
    if limited:
        return f"raise `{memory}`, or lower `train.batch_size`"
    return f"if memory ran out: end other programs, or lower `train.batch_size`; in containers and on Kubernetes raise `{memory}`"


def with_remedy(reason: str, remedy: str) -> str:
    """Return a reason with its remedy, if there is one."""
    return f"{reason}; {remedy}" if remedy else reason


def blocked_by_hardening(reason: str) -> bool:
    """Return whether a program probably ended because of a restriction of its hardened container."""
    return _RESTRICTED.search(reason) is not None


def reports_kill(event: Event) -> bool:
    """Return whether a `failed` or `restarting` event reports that the process got SIGKILL."""
    code = integer(event, "process_exit_code")
    return (integer(event, "exit_code") if code is None else code) == SIGKILL_EXIT_CODE


def cause_with_output(event: Event, last: LastError) -> str:
    """Return the cause of a `failed` or `restarting` event; without a detail, add the last exception in the output."""
    error = "" if text(event, "detail") or reports_kill(event) else last.error
    return ": ".join(part for part in (cause_of(event), error) if part)
