"""The parent's job: the program to run, the peers that it needs, and the time limits."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer.ending import Member
from trainer.restarts import Policy

TRAINING = (sys.executable, "-P", "-m", "trainer.task")  # -P: no file of the working directory stands in for a module


@dataclass(frozen=True)
class Timeouts:
    """The time limits of the parent, in seconds."""

    start: float = 600.0  # for peers to be there
    orphan: float = 600.0  # for a chief that is gone, or every worker
    first_waiting: float = 5.0
    waiting_every: float = 10.0
    stalled: float = 60.0  # after every peer was reached, or after it was last said that no step follows
    again: float = 1.0  # between two SIGTERM to a training process, which may not have got the first
    serve_on: float = 20.0  # a server asked to stop, for a chief that saves; below the 30 s that Kubernetes gives
    ending: float = 5.0  # between SIGTERM and SIGKILL where nothing can be lost
    saving: float = 60.0  # the same, at least, where there is a checkpoint to save
    supervisor_lost: float = 30.0  # between SIGTERM and SIGKILL when nobody is left to send the second signal
    after_success: float = 10.0  # between SIGTERM and SIGKILL for a program whose run has succeeded
    killed: float = 10.0  # for a process to end after SIGKILL; one that waits for a dead disk does not


@dataclass(frozen=True)
class Stalls:
    """For how many seconds the program may make no progress, None for the default; and whether that is reported only, or ends the attempt or the task."""

    timeout: float | None = None
    on_stall: str = "tell"  # or restart, fail


@dataclass(frozen=True)
class ParentJob:
    """The program to run and the peers that it needs. `environment` is added to the parent's own; `lifeline` is the pipe of the run's supervisor."""

    command: tuple[str, ...]
    role: str = "chief"
    built_in: bool = True  # trainer.task, which knows the parent; else a user's program
    makes_steps: bool = False  # and reports them
    environment: Mapping[str, str] = field(default_factory=dict)
    awaited: Mapping[str, str] = field(default_factory=dict)
    watched_chief: str | None = None
    watched_workers: tuple[str, ...] = ()
    member: Member | None = None  # where the tasks of a program learn of the end of the run from each other
    lifeline: int | None = None
    policy: Policy = field(default_factory=Policy)
    timeouts: Timeouts = field(default_factory=Timeouts)
    stalls: Stalls = field(default_factory=Stalls)
