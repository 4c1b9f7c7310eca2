"""The plan as data, the input of every backend and renderer."""

from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.exit_codes import RestartWhen
from trainer.strategies import Scope

RoleName = Literal["chief", "worker", "ps", "evaluator"]
Target = Literal["local", "docker", "kubernetes"]


@dataclass(frozen=True)
class Resources:
    """The resources of one task. cpu in cores, memory in bytes; None is no limit."""

    cpu: float | None = None
    memory: int | None = None
    gpus: int = 0
    gpu_type: str | None = None


@dataclass(frozen=True)
class RestartRule:
    """The reaction to a task that ends before its work is done."""

    scope: Scope
    max_restarts: int
    when: RestartWhen = "on_failure"  # the ends after which a user's own program is started again


@dataclass(frozen=True)
class SecretKey:
    """One value of a Secret of the cluster."""

    secret: str
    key: str


@dataclass(frozen=True)
class Task:
    """One process of the cluster."""

    name: str  # chief, evaluator, worker-0, ps-1
    role: RoleName
    index: int
    address: str  # host:port; empty for the evaluator
    tf_config: dict[str, Any]  # {"cluster": {role: [address]}, "task": {"type", "index"}}
    command: tuple[str, ...]
    env: dict[str, str]  # without TF_CONFIG and secrets
    resources: Resources
    restart: RestartRule
    mounts_run_dir: bool
    cwd: str | None = None  # the command's working directory; None is the target's default
    image: str | None = None  # of its container; None is the project's image
    is_hardened: bool = True  # its container has no root, no capabilities, and cannot write to its root file system
    secrets: dict[str, SecretKey] = field(default_factory=dict)  # variables whose values must not be in any file
    is_entrypoint: bool = False  # the image's entrypoint runs, and `command` has its arguments


@dataclass(frozen=True)
class Plan:
    """A whole run on one target. Times in seconds."""

    name: str
    target: Target
    strategy: str
    spec_digest: str
    tasks: tuple[Task, ...]
    run_dir: str  # empty if the tasks have none
    start_timeout: float
    grace_period: float
    deadline: float | None
    # Tasks whose success the run needs, by role_rules.required_tasks. The others end with them.
    required_tasks: tuple[str, ...]
    # Seconds that tasks have to end by themselves once the run has succeeded, used only for a user's own program; see role_rules.end_grace_periods.
    end_grace_periods: dict[RoleName, float] = field(default_factory=dict)
    notices: tuple[str, ...] = field(default=())
    spec_dir: str = ""  # the directory of the spec's file, which its relative paths are relative to
    notify: dict[str, Any] | None = None  # the spec's section on messages to people
    restarts_stalled: bool = False  # tasks without progress are started again
