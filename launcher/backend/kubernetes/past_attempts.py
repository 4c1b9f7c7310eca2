"""Attempts whose pods were deleted, by a user, a drain or the scheduler, and replaced by their Job. Pure.

The events of a Job name every pod that it created; a pod's own events and its last known conditions tell why it was deleted.
"""

import re
from collections.abc import Iterable, Mapping

from launcher.backend.kubernetes import diagnosis
from launcher.backend.kubernetes.object_fields import Object, phase
from launcher.backend.kubernetes.pod_status import DELETED, creates_no_more_pods, ended_attempt, role_of, task_of
from launcher.plan import role_rules
from launcher.runs.status import EndedAttempt
from launcher.timestamps import parse_rfc3339

_CREATED_POD = re.compile(r"Created pod: (\S+)")
# Reason of an event about a pod's end -> its cause. `Killing` has none.
_CAUSES = {
    "TaintManagerEviction": "its node is lost, or must not run pods",
    "NodeNotReady": "its node did not answer",
    "Preempted": "preempted by a pod of higher priority",
    "Evicted": "evicted by its node",
}


def attempts(
    job: Object, events: Iterable[Object], pods: Iterable[Object], seen: Mapping[str, Object]
) -> dict[str, tuple[str, EndedAttempt]]:
    """Return for each deleted pod of a Job: name -> task, and how the attempt ended.

    `events` are the known ones of the namespace, `pods` those that exist, `seen`: name -> a pod as last seen. The cluster drops events of a Job
    with many pods: then only pods that were seen are found.
    """
    known_events, existing = list(events), {pod["metadata"]["name"]: pod for pod in pods}
    created = _created_pods(job, known_events)
    newest: dict[str, float] = {}
    for pod in existing.values():
        newest[task_of(pod)] = max(newest.get(task_of(pod), 0.0), parse_rfc3339(pod["metadata"].get("creationTimestamp")) or 0.0)
    # A pod without a replacement may be new: created after the pods were listed.
    found = {name: (task, time) for name, (task, time) in created.items() if name not in existing and time <= newest.get(task, -1.0)}
    if not creates_no_more_pods(job):  # else its pods are not replaced
        current_tasks = {role_rules.task_name(role_of(job), index) for index in range(int(job["spec"].get("completions", 1)))}  # type: ignore[arg-type]  # a label is one of the roles
        vanished = {name: pod for name, pod in seen.items() if name not in existing and _is_of(job, pod) and task_of(pod) in current_tasks}
        found |= {name: (task_of(pod), 0.0) for name, pod in vanished.items() if phase(pod) != "Succeeded"}
    return {name: (task, _end(name, known_events, seen.get(name, {}), time)) for name, (task, time) in found.items()}


def _created_pods(job: Object, events: Iterable[Object]) -> dict[str, tuple[str, float]]:
    """Return for each pod that a Job created: name -> task and creation time, as far as the Job's events tell."""
    metadata, created = job["metadata"], {}
    for event in events:
        match = (
            _CREATED_POD.search(str(event.get("message", "")))
            if event.get("involvedObject", {}).get("uid") == metadata.get("uid")
            else None
        )
        index = match[1].removeprefix(f"{metadata['name']}-").partition("-")[0] if match else ""
        if match and index.isdecimal():
            created[match[1]] = role_rules.task_name(role_of(job), int(index)), _time(event) or 0.0  # type: ignore[arg-type]  # a label is one of the roles
    return created


def _is_of(job: Object, pod: Object) -> bool:
    return any(owner.get("uid") == job["metadata"].get("uid") for owner in pod["metadata"].get("ownerReferences") or ())


def _end(name: str, events: Iterable[Object], last: Object, created: float) -> EndedAttempt:
    """Return how an attempt ended, from its events, and from the pod as it was last seen, if it was."""
    if phase(last) == "Failed":
        return ended_attempt(last)
    own_events = [event for event in events if event.get("involvedObject", {}).get("name") == name]
    times = [time for event in own_events if (time := _time(event)) is not None]
    deleted = parse_rfc3339(last.get("metadata", {}).get("deletionTimestamp"))
    disruption = diagnosis.diagnose_disruption(last)
    cause = next((_CAUSES[event["reason"]] for event in reversed(own_events) if event.get("reason") in _CAUSES), "")
    return EndedAttempt(deleted or max(times, default=created), 0, None, disruption.message if disruption else cause or DELETED)


def _time(event: Object) -> float | None:
    return parse_rfc3339(diagnosis.event_time(event))
