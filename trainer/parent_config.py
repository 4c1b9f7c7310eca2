"""The parent's configuration: the program to run, the peers that it needs, and the time limits."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer.restart_in_place import RestartPolicy
from trainer.run_end import RunEndTask

TRAINING_COMMAND = (sys.executable, "-P", "-m", "trainer.task")  # -P: no file of the working directory stands in for a module


@dataclass(frozen=True)
class Timeouts:
    """The time limits of the parent, in seconds."""

    start: float = 600.0  # for peers to answer
    orphan: float = 600.0  # without an answer from the chief, or from any worker
    first_report_after: float = 5.0  # of missing peers
    report_interval: float = 10.0  # between the reports that follow
    no_step_report: float = 60.0  # after every peer was reached, until the report that no step has followed; then between these reports
    sigterm_interval: float = 1.0  # between two SIGTERM to a training process, which may have missed the first
    server_stop: float = 20.0  # how long a server that is asked to stop serves a chief that saves; below Kubernetes' 30 s
    kill_after: float = 5.0  # between SIGTERM and SIGKILL if nothing can be lost
    kill_after_while_saving: float = 60.0  # the same if there is a checkpoint to save, at least
    kill_after_supervisor_lost: float = 30.0  # between SIGTERM and SIGKILL when no supervisor is left to kill
    kill_after_success: float = 10.0  # between SIGTERM and SIGKILL for a program whose run has succeeded
    reap_timeout: float = 10.0  # for a process to end after SIGKILL; one that is blocked on storage that does not answer does not


@dataclass(frozen=True)
class StallPolicy:
    """When an attempt counts as stalled, and the reaction."""

    timeout: float | None = None  # seconds without progress; None for the default
    on_stall: str = "tell"  # a report only; or `restart` the attempt, or `fail`: end the task


@dataclass(frozen=True)
class ParentConfig:
    """The program to run and the peers that it needs."""

    command: tuple[str, ...]
    role: str = "chief"
    runs_built_in_trainer: bool = True  # trainer.task, which knows the parent; else a user's program
    trains: bool = False  # it trains a model, and reports its steps
    added_environment: Mapping[str, str] = field(default_factory=dict)  # to the parent's own, which has TF_CONFIG
    required_peers: Mapping[str, str] = field(default_factory=dict)
    watched_chief: str | None = None
    watched_workers: tuple[str, ...] = ()
    run_end_task: RunEndTask | None = None  # if the tasks of a program learn of the end of the run from each other
    lifeline: int | None = None  # the pipe of the run's supervisor
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    timeouts: Timeouts = field(default_factory=Timeouts)
    stalls: StallPolicy = field(default_factory=StallPolicy)

    @property
    def is_chief_of_servers(self) -> bool:
        """Whether the program is the chief of parameter servers and workers: only there workers are watched."""
        return bool(self.watched_workers)
