"""Attempts whose pods are gone: deleted by somebody, by a drained node or by the scheduler, and made anew by their Job. Pure.

The events of a Job name every pod that it made; those of a pod, and its conditions as they were seen last, say why it went.
"""

import re
from collections.abc import Iterable, Mapping

from launcher.backend.kubernetes.observe import Object, restart, seconds
from launcher.backend.model import Restart

_MADE = re.compile(r"Created pod: (\S+)")
# What an event about a pod says of its end -> in words. `Killing` only says that it ends.
_CAUSES = {
    "TaintManagerEviction": "its node is lost, or nothing is to run there",
    "NodeNotReady": "its node did not answer",
    "Preempted": "preempted by a pod of higher priority",
    "Evicted": "evicted by its node",
}
_UNKNOWN = "its pod was deleted"


def attempts(
    job: Object, events: Iterable[Object], there: Iterable[Object], before: Mapping[str, Object]
) -> dict[str, tuple[int, Restart]]:
    """Return by its name each pod of a Job that is gone: the index of its task, and how the attempt ended.

    `events` are those of the namespace, `there` the pods that are left, `before` by their names the pods that were seen earlier.
    """
    told, left = list(events), {pod["metadata"]["name"] for pod in there}
    head = job["metadata"]
    about_job = (one for one in told if one.get("involvedObject", {}).get("uid") == head.get("uid"))
    made = {match[1] for one in about_job if (match := _MADE.search(str(one.get("message", ""))))}
    found = {}
    for name in sorted(made - left):
        index = name.removeprefix(f"{head['name']}-").partition("-")[0]
        if index.isdecimal():
            about = [one for one in told if one.get("involvedObject", {}).get("name") == name]
            found[name] = (int(index), _ended(about, before.get(name, {})))
    return found


def _ended(events: list[Object], last: Object) -> Restart:
    """Return how an attempt ended of which only events are left, and perhaps the pod as it was seen last."""
    if last.get("status", {}).get("phase") == "Failed":
        return restart(last)
    times = [time for one in events if (time := seconds(one.get("lastTimestamp") or one.get("eventTime"))) is not None]
    conditions = last.get("status", {}).get("conditions") or ()
    target: Object = next((one for one in conditions if one.get("type") == "DisruptionTarget" and one.get("status") == "True"), {})
    said = next((_CAUSES[one["reason"]] for one in reversed(events) if one.get("reason") in _CAUSES), "")
    cause = f"moved away: {target.get('reason', '')}" if target else said or _UNKNOWN
    return Restart(max(times, default=0.0), 0, None, cause)
