"""Attempts whose pods are gone: deleted by a user, by a drained node or by the scheduler, and made again by their Job. Pure.

The events of a Job name every pod that it made; those of a pod, and its conditions as they were seen last, say why it went.
"""

import re
from collections.abc import Iterable, Mapping

from launcher.backend.kubernetes import diagnosis
from launcher.backend.kubernetes.pod_status import DELETED, Object, condition, restart, role_of, task_of
from launcher.plan import role_rules
from launcher.runs.status import Restart
from launcher.timestamps import parse_rfc3339

_MADE = re.compile(r"Created pod: (\S+)")
# Reason in an event about a pod's end -> in words. `Killing` only says that it ends.
_CAUSES = {
    "TaintManagerEviction": "its node is lost, or nothing is to run there",
    "NodeNotReady": "its node did not answer",
    "Preempted": "preempted by a pod of higher priority",
    "Evicted": "evicted by its node",
}


def attempts(
    job: Object, events: Iterable[Object], there: Iterable[Object], before: Mapping[str, Object]
) -> dict[str, tuple[str, Restart]]:
    """Return each pod of a Job that is gone, by its name: its task, and how the attempt ended.

    `events` are those of the namespace, as far as they are known, `there` the pods that are left, `before` by their names the pods that were
    seen earlier. Of a Job with many pods the cluster drops events: then only pods that were seen are known to be gone.
    """
    known, left = list(events), {pod["metadata"]["name"]: pod for pod in there}
    made = _made(job, known)
    newest: dict[str, float] = {}
    for pod in left.values():
        newest[task_of(pod)] = max(newest.get(task_of(pod), 0.0), parse_rfc3339(pod["metadata"].get("creationTimestamp")) or 0.0)
    # Pods without a replacement were made between two questions to the API server, and are not in its answers yet.
    found = {name: (task, time) for name, (task, time) in made.items() if name not in left and time <= newest.get(task, -1.0)}
    if not (condition(job, "Complete") or condition(job, "Failed") or job.get("spec", {}).get("suspend")):  # which let pods go for good
        wanted = {role_rules.task_name(role_of(job), index) for index in range(int(job["spec"].get("completions", 1)))}  # type: ignore[arg-type]  # a label is one of the roles
        vanished = {name: pod for name, pod in before.items() if name not in left and _is_of(job, pod) and task_of(pod) in wanted}
        found |= {name: (task_of(pod), 0.0) for name, pod in vanished.items() if pod.get("status", {}).get("phase") != "Succeeded"}
    return {name: (task, _ended(name, known, before.get(name, {}), time)) for name, (task, time) in found.items()}


def _made(job: Object, events: Iterable[Object]) -> dict[str, tuple[str, float]]:
    """Return by their names the tasks of the pods that a Job made, and when, as far as its events tell."""
    head, made = job["metadata"], {}
    for one in events:
        match = _MADE.search(str(one.get("message", ""))) if one.get("involvedObject", {}).get("uid") == head.get("uid") else None
        index = match[1].removeprefix(f"{head['name']}-").partition("-")[0] if match else ""
        if match and index.isdecimal():
            made[match[1]] = role_rules.task_name(role_of(job), int(index)), _time(one) or 0.0  # type: ignore[arg-type]  # a label is one of the roles
    return made


def _is_of(job: Object, pod: Object) -> bool:
    return any(owner.get("uid") == job["metadata"].get("uid") for owner in pod["metadata"].get("ownerReferences") or ())


def _ended(name: str, events: Iterable[Object], last: Object, made: float) -> Restart:
    """Return how an attempt ended, by its events, and by the pod as it was seen last, if it was."""
    if last.get("status", {}).get("phase") == "Failed":
        return restart(last)
    about = [one for one in events if one.get("involvedObject", {}).get("name") == name]
    times = [time for one in about if (time := _time(one)) is not None]
    deleted = parse_rfc3339(last.get("metadata", {}).get("deletionTimestamp"))
    moved = diagnosis.of_disruption(last.get("status", {}))
    cause = next((_CAUSES[one["reason"]] for one in reversed(about) if one.get("reason") in _CAUSES), "")
    return Restart(deleted or max(times, default=made), 0, None, moved.message if moved else cause or DELETED)


def _time(event: Object) -> float | None:
    return parse_rfc3339(event.get("lastTimestamp") or event.get("eventTime") or event.get("metadata", {}).get("creationTimestamp"))
