"""Facts about a run beside the states of its tasks: location, user, attendant, messages, missing objects. Pure."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from launcher.plan import role_rules
from launcher.render.kubernetes.objects import ATTENDANT
from launcher.runs.status import ENDED, DataLoss, Location, RunStatus, State, TaskStatus

BACKEND: Final = "kubernetes"
# Kinds that start tasks. They are created, never changed: an existing one is another launcher's.
JOB_KINDS = frozenset({"JobSet", "Job"})
# Kinds that only users who may create an attendant can read.
ACCOUNT_KINDS = frozenset({"RoleBinding", "Role", "ServiceAccount"})
# Kinds of which the list is empty for a user who may not read them, or in a cluster that lacks them.
OPTIONAL_KINDS = ACCOUNT_KINDS | {"JobSet"}
_NOT_FOUND = "its Job is not found"
_OPTIONAL_JOBS = ("-evaluator", f"-{ATTENDANT}")  # Jobs without which a run still trains


@dataclass(frozen=True)
class ObjectRef:
    """One object, as it was created: a later object of its name has another uid."""

    kind: str
    name: str
    uid: str

    @classmethod
    def of(cls, kind: str, obj: Mapping[str, Any]) -> "ObjectRef":
        """Return the reference to an object, as the API returns it."""
        return cls(kind, obj["metadata"]["name"], obj["metadata"]["uid"])

    def __str__(self) -> str:
        """Return the name as kubectl writes it."""
        return f"{self.kind.lower()}/{self.name}"


@dataclass(frozen=True)
class MissingObjects:
    """The recorded objects that were deleted, or have lost the run's labels, and why the data is lost."""

    data_loss: DataLoss | None = None
    deleted: tuple[ObjectRef, ...] = ()
    unlabelled: tuple[ObjectRef, ...] = ()
    tasks: tuple[str, ...] = ()  # of the recorded spec
    reason: str = ""  # the message about deleted and unlabelled objects, with remedies


@dataclass(frozen=True)
class RunContext:
    """Facts of a run's status beside the states of its tasks."""

    location: Location | None = None
    user: str = ""  # who started it, empty if not known
    is_mine: bool = True
    attended: bool = True
    notified: tuple[str, ...] = ()
    missing_objects: MissingObjects = MissingObjects()

    def fields(self, state: State, reason: str, reason_task: str, tasks: tuple[TaskStatus, ...]) -> dict[str, Any]:
        """Return the fields of a RunStatus from these facts, and from the state, the reason, its task and the tasks that the run's objects show."""
        missing = self.missing_objects
        fields: dict[str, Any] = {"state": state, "reason": reason, "reason_task": reason_task, "tasks": tasks}
        unlabelled_jobs = [ref for ref in missing.unlabelled if ref.kind in JOB_KINDS]
        if (missing.deleted or missing.unlabelled) and (state not in ENDED or unlabelled_jobs):
            existing = {task.name for task in tasks}
            not_found = [TaskStatus(name, State.STOPPED, _NOT_FOUND) for name in missing.tasks if name not in existing]
            by_role = sorted([*tasks, *not_found], key=lambda task: role_rules.role_position(role_rules.role_and_index(task.name)[0]))
            fields |= {
                "reason": missing.reason,
                "reason_task": "",
                "tasks": tuple(by_role),
                "missing": tuple(map(str, (*missing.deleted, *missing.unlabelled))),
            }
            lost_jobs = [ref for ref in (*missing.deleted, *unlabelled_jobs) if ref.kind in JOB_KINDS]
            if any(not job.name.endswith(_OPTIONAL_JOBS) for job in lost_jobs):  # the run cannot train
                fields |= {"state": State.PENDING, "eta": None}
        attended = fields["state"] in ENDED or self.attended
        return fields | {
            "data_lost": missing.data_loss,
            "user": self.user,
            "mine": self.is_mine,
            "attended": attended,
            "notified": self.notified,
        }

    def add_to(self, recorded: RunStatus) -> RunStatus:
        """Return a recorded status, or that of a run without Jobs, with these facts."""
        return dataclasses.replace(recorded, **self.fields(recorded.state, recorded.reason, recorded.reason_task, recorded.tasks))
