"""Names of devices: TensorFlow's own, such as /job:worker/replica:0/task:0/device:GPU:1, and short ones, such as worker-0/gpu:1.

Imports no TensorFlow.
"""

import re
from dataclasses import dataclass

from trainer.tf_config import CLUSTER_ROLES, task_name

KINDS = ("cpu", "gpu")  # those that a task lists; TensorFlow may know others

_FULL = re.compile(
    r"(?:/job:(?P<job>\w+))?(?:/replica:\d+)?(?:/task:(?P<task>\d+))?(?:/(?:device:)?(?P<kind>CPU|GPU)(?::(?P<number>\d+))?)?",
    re.IGNORECASE,
)
_SHORT = re.compile(
    r"(?:(?P<job>chief|(?:worker|ps)(?=-\d))(?:-(?P<task>\d+))?(?:/|\Z))?(?:(?P<kind>cpu|gpu)(?::(?P<number>\d+))?)?", re.IGNORECASE
)


@dataclass(frozen=True)
class Device:
    """A device, or a part of its name: None stands for any."""

    task: str | None = None
    kind: str | None = None
    number: int | None = None

    @property
    def name_in_task(self) -> str:
        """The name within its task, e.g. gpu:1."""
        return self.kind or "" if self.number is None else f"{self.kind}:{self.number}"

    def __str__(self) -> str:
        return "/".join(part for part in (self.task, self.name_in_task) if part)

    def covers(self, other: "Device") -> bool:
        """Return whether this name matches the device `other`."""
        pairs = ((self.task, other.task), (self.kind, other.kind), (self.number, other.number))
        return all(own is None or own == given for own, given in pairs)


def parse(name: str) -> Device:
    """Parse a device's name, a short one or TensorFlow's own. Raises ValueError if it is neither."""
    match = (_FULL if name.startswith("/") else _SHORT).fullmatch(name)
    if match is None or not any(match.groups()) or (match["job"] or CLUSTER_ROLES[0]).lower() not in CLUSTER_ROLES:
        raise ValueError(f"{name!r} is no device: expected for example cpu, gpu:0, worker-1 or worker-0/gpu:1")
    task = task_name(match["job"].lower(), int(match["task"] or 0)) if match["job"] else None
    return Device(task, match["kind"].lower() if match["kind"] else None, int(match["number"]) if match["number"] else None)


def short(name: str) -> str:
    """Return the short form of TensorFlow's name of a device, such as worker-0/gpu:1."""
    return str(parse(name))
