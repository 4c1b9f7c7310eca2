"""Facts about a run beside its Jobs and pods: where it stores its files, who started it, and which objects of its record are gone. Pure."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from launcher.plan import role_rules
from launcher.render.kubernetes.objects import ATTENDANT
from launcher.runs.status import ENDED, Location, Loss, RunStatus, State, TaskStatus

# Those of a run's kinds that start tasks. They are made, never changed: one that is there is another launcher's.
JOB_KINDS = frozenset({"JobSet", "Job"})
_NOT_FOUND = "its Job is not found"
_OPTIONAL_JOBS = ("-evaluator", f"-{ATTENDANT}")  # Jobs without which a run trains all the same


@dataclass(frozen=True)
class ObjectRef:
    """One object as it was made: another one of its name has another uid."""

    kind: str
    name: str
    uid: str

    def __str__(self) -> str:
        """Return how kubectl names it."""
        return f"{self.kind.lower()}/{self.name}"


@dataclass(frozen=True)
class Differences:
    """Differences from the record: why the data is lost, which objects are gone, and which have lost the run's labels."""

    loss: Loss | None = None
    deleted: tuple[ObjectRef, ...] = ()
    unlabelled: tuple[ObjectRef, ...] = ()
    tasks: tuple[str, ...] = ()  # that the run is to have
    reason: str = ""  # what is gone or has lost its labels, and what to do about it


@dataclass(frozen=True)
class RunContext:
    """Facts that the status of a run has beside what its Jobs, pods and tasks tell."""

    location: Location | None = None
    user: str = ""  # empty where that is not known
    is_own: bool = True
    attended: bool = True
    notified: tuple[str, ...] = ()
    differences: Differences = Differences()

    def fields(self, state: State, reason: str, reason_task: str, tasks: tuple[TaskStatus, ...]) -> dict[str, Any]:
        """Return the fields of a RunStatus: of these facts, and of the state, the reason and its task, and the tasks as the run's objects show them."""
        found = self.differences
        made: dict[str, Any] = {"state": state, "reason": reason, "reason_task": reason_task, "tasks": tasks}
        hidden = [one for one in found.unlabelled if one.kind in JOB_KINDS]
        if (found.deleted or found.unlabelled) and (state not in ENDED or hidden):
            there = {task.name for task in tasks}
            missing = [TaskStatus(name, State.STOPPED, _NOT_FOUND) for name in found.tasks if name not in there]
            by_role = sorted([*tasks, *missing], key=lambda task: role_rules.ROLE_ORDER.index(task.name.partition("-")[0]))
            made |= {
                "reason": found.reason,
                "reason_task": "",
                "tasks": tuple(by_role),
                "missing": tuple(map(str, (*found.deleted, *found.unlabelled))),
            }
            lacking = [one for one in (*found.deleted, *hidden) if one.kind in JOB_KINDS]
            if any(not one.name.endswith(_OPTIONAL_JOBS) for one in lacking):  # it stands still
                made |= {"state": State.PENDING, "eta": None}
        attended = made["state"] in ENDED or self.attended
        return made | {"data_lost": found.loss, "user": self.user, "mine": self.is_own, "attended": attended, "notified": self.notified}

    def add_to(self, recorded: RunStatus) -> RunStatus:
        """Return a status that was recorded when the run ended, or is that of a run without Jobs, with these facts."""
        return dataclasses.replace(recorded, **self.fields(recorded.state, recorded.reason, recorded.reason_task, recorded.tasks))
