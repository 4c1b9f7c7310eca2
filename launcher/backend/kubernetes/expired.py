"""The end of a run whose Jobs `kubernetes.ttl` has deleted while no launcher watched."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from launcher.backend.kubernetes import run_record
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.errors import LauncherError
from launcher.render.kubernetes.objects import Run
from launcher.runs import run_json
from launcher.runs.status import RunStatus, State

# States in run.json of a run that has ended. A run that is `running` there was killed before it could record its end.
_STATES = {"succeeded": State.SUCCEEDED, "failed": State.FAILED, "stopped": State.STOPPED}
_COMPLETED = "Completed"
# The reasons of a failed Job's event. https://pkg.go.dev/k8s.io/api/batch/v1 has them as those of its condition.
_FAILURES = frozenset({"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"})


def status(cluster: Cluster, unknown: RunStatus, run: Run, record: Object | None) -> RunStatus:
    """Return the status of a run whose end is not known, from the run.json on its volume, else from the events of its Jobs.

    If neither has it, it stays unknown, with a reason. A cluster drops events after an hour.
    """
    try:
        found = by_run_json(unknown, _run_json(cluster, run), run_record.digest(record))
        read_error = ""
    except LauncherError as error:
        found, read_error = None, f"; its run.json was not read: {error.message}"
    if found is None:
        jobs = {ref.uid: ref.name for ref in run_record.recorded_objects(record) if ref.kind == "Job"}
        try:
            found = by_events(unknown, jobs, cluster.list_objects("Event"))
        except LauncherError:  # e.g. without the right to read them
            found = None
    return found or dataclasses.replace(unknown, reason=unknown.reason + read_error)


def _run_json(cluster: Cluster, run: Run) -> Mapping[str, Any]:
    if run.spec.train is None:  # only the trainer writes one
        return {}
    from launcher.backend.kubernetes import download  # with all of the client, which takes a second

    return download.run_json(cluster, run)


def by_run_json(unknown: RunStatus, document: Mapping[str, Any], digest: str) -> RunStatus | None:
    """Return the status that run.json records; None if the run has not ended there, or was started from another spec. Pure."""
    state = _STATES.get(str(document.get("state")))
    if state is None or not digest or document.get("spec_digest") != digest:
        return None
    ended = run_json.merged(_ended(unknown, state, str(document.get("reason") or "")), document, newer=True)
    return dataclasses.replace(
        ended, spec_digest=digest, started=_seconds(document.get("started")), ended=_seconds(document.get("updated"))
    )


def by_events(unknown: RunStatus, jobs: Mapping[str, str], events: Iterable[Object]) -> RunStatus | None:
    """Return the run's end from the events of `jobs` (uid -> name); None if they do not show it. Pure."""
    ends: dict[str, tuple[str, str]] = {}
    for event in events:
        uid, reason = event.get("involvedObject", {}).get("uid"), event.get("reason")
        if uid in jobs and reason in {_COMPLETED, *_FAILURES}:
            ends[jobs[uid]] = reason, f"job/{jobs[uid]}: {event.get('message', '')}"
    failed = next((message for reason, message in ends.values() if reason != _COMPLETED), None)
    if failed is not None:
        return _ended(unknown, State.FAILED, failed)
    return _ended(unknown, State.SUCCEEDED, "") if jobs and ends.keys() == set(jobs.values()) else None


def _ended(unknown: RunStatus, state: State, reason: str) -> RunStatus:
    """Return the status with this end. Of a failed run it is not known which tasks failed: theirs stay as they are."""
    tasks = unknown.tasks if state is State.FAILED else tuple(dataclasses.replace(task, state=state) for task in unknown.tasks)
    return dataclasses.replace(unknown, state=state, reason=reason, tasks=tasks)


def _seconds(time: object) -> float | None:
    return float(time) if isinstance(time, int | float) else None
