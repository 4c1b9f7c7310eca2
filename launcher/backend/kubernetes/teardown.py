"""Stops a run: its tasks save and stop, its objects are deleted, and its final status is recorded.

Also deletes TensorBoards whose runs ended long ago.
"""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable

from launcher.backend.kubernetes import diagnosis, pod_status, run_objects, run_record, status_reader
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.object_fields import Object, is_being_deleted, node_of
from launcher.backend.kubernetes.pod_logs import PodLogs
from launcher.backend.kubernetes.pod_status import task_of
from launcher.backend.kubernetes.run_context import JOB_KINDS, ObjectRef
from launcher.backend.kubernetes.task_events import TaskEvents
from launcher.errors import LauncherError, UsageError
from launcher.render.kubernetes.objects import COMPONENT_LABEL, INSTANCE_LABEL, TENSORBOARD
from launcher.runs.reasons import ASKED_TO_STOP, DONE_BEFORE_STOP
from launcher.runs.status import ENDED, RunStatus, State, TaskStatus
from launcher.spec.quantities import parse_duration

_OF_TENSORBOARD = ("Deployment", "Service", "NetworkPolicy")
_STOP_MARGIN = 120.0  # seconds beyond the grace period within which pods are gone; a busy node takes more than one minute


def stop(
    cluster: Cluster, last_status: RunStatus | None, run: str, logs: PodLogs, *, now: bool, report: Callable[[str], object] | None = None
) -> tuple[RunStatus | None, dict[str, int]]:
    """Stop a run and delete its objects except its record and its data; `last_status` is None if nothing is left to stop.

    `report`, if there is one, is called with messages for the user: nodes that do not answer, and what was not saved because of that.

    Returns the final status, and how many objects of each kind were deleted. Raises LauncherError if pods remain, UsageError if a controller
    would create the Jobs again.
    """
    # Listed first: objects that another launcher creates from now on must stay.
    start = run_record.start_id(cluster.get("ConfigMap", run_record.name_of(run)))
    existing, pods = run_objects.existing_objects(cluster, run), status_reader.pods_of(cluster, run)
    _refuse_other_controllers(cluster, run, existing)
    task_events = TaskEvents(last_status.tasks[0].name if last_status and last_status.tasks else "")
    task_events.apply(logs.new_lines(pods))  # the logs of ended pods are lost in a moment
    if last_status is not None:
        # Recorded before the Jobs are deleted: else other launchers that watch would report them as missing.
        (run_record.write_end if last_status.state in ENDED else run_record.write_stopping)(
            cluster, _final_status(last_status, task_events, cluster.now()), start
        )
    unresponsive = _UnresponsiveNodes(report)

    def poll() -> None:
        remaining = status_reader.pods_of(cluster, run)
        unresponsive.check(remaining)
        task_events.apply(logs.new_lines(remaining))

    with logs.following(sorted(pods, key=lambda pod: not task_events.is_leader(task_of(pod)))):  # the tasks' last lines
        for ref in existing:
            if ref.kind in JOB_KINDS:
                run_objects.delete(cluster, ref)
        grace = max((pod["spec"].get("terminationGracePeriodSeconds") or 30 for pod in pods), default=0)
        for pod in pods:
            # The garbage collector would do so a moment later; a pod that is already being deleted keeps its grace period.
            if not is_being_deleted(pod) or now:
                cluster.delete("Pod", pod["metadata"]["name"], grace=1 if now else None)
        lost = run_objects.await_pods_deleted(cluster, run, grace + _STOP_MARGIN, poll)
    task_events.apply(logs.new_lines(()))
    run_objects.remove(cluster, run, existing)
    if any(ref.kind == "JobSet" for ref in existing):
        run_objects.await_jobs_deleted(cluster, run)
    removed = dict(Counter(ref.kind for ref in existing))
    if last_status is None:
        return None, removed
    ended = _final_status(last_status, task_events, cluster.now(), unsaved_notice(lost))
    run_record.update_end(cluster, ended, start)  # including the tasks' last checkpoint
    if lost and report is not None:
        report(ended.reason)
    return ended, removed


def _refuse_other_controllers(cluster: Cluster, run: str, existing: Iterable[ObjectRef]) -> None:
    controller = pod_status.controller_of(cluster.list_objects("Job", status_reader.labels_of(run)))
    if controller and controller not in {f"{ref.kind.lower()}/{ref.name}" for ref in existing}:
        raise UsageError(
            f"the Jobs of {run} in {cluster.description()} belong to {controller}, which creates them again when they are deleted",
            f"delete {controller}, which deletes them too: kubectl delete {controller} -n {cluster.namespace}",
        )


def unsaved_notice(lost: Iterable[Object]) -> str:
    """Return a notice of steps that may be lost with these pods, which did not end by themselves; empty without pods. Pure."""
    lost_tasks = ", ".join(f"{task_of(pod)} on {node_of(pod) or '?'}" for pod in lost)
    return f"steps after the last checkpoint may be lost with tasks whose nodes did not answer: {lost_tasks}" if lost_tasks else ""


class _UnresponsiveNodes:
    """Reports once of each node that it does not answer while its tasks are asked to stop."""

    def __init__(self, report: Callable[[str], object] | None) -> None:
        self._report, self._reported = report, set[str]()

    def check(self, pods: Iterable[Object]) -> None:
        by_node: dict[str, list[str]] = {}
        for pod in filter(diagnosis.is_unresponsive, pods):
            by_node.setdefault(node_of(pod) or "?", []).append(task_of(pod))
        for node in by_node.keys() - self._reported:
            self._reported.add(node)
            tasks = ", ".join(sorted(by_node[node]))
            if self._report is not None:
                self._report(
                    f"the node {node} does not answer: {tasks} may not save; waiting {_STOP_MARGIN / 60:.0f} min and the grace period at most"
                )


def _final_status(last_status: RunStatus, task_events: TaskEvents, time: float, notice: str = "") -> RunStatus:
    """Return the status to record: as the run ended, or stopped now, with the last checkpoint."""
    if last_status.state in ENDED:
        return last_status
    progress = task_events.progress
    done = [task.state is State.SUCCEEDED or task_events.is_done(task.name) for task in last_status.tasks]
    tasks = tuple(_stopped(task, time, done=is_done) for task, is_done in zip(last_status.tasks, done, strict=True))
    finished = bool(done) and all(done)
    return last_status.with_end(
        State.SUCCEEDED if finished else State.STOPPED,
        DONE_BEFORE_STOP if finished else ASKED_TO_STOP + (f"; {notice}" if notice else ""),
        time,
        tasks=tasks,
        step=progress.step if progress.step is not None else last_status.step,
        checkpoint=progress.checkpoint or last_status.checkpoint,
        checkpoint_step=progress.checkpoint_step if progress.checkpoint else last_status.checkpoint_step,
    )


def _stopped(task: TaskStatus, time: float, *, done: bool) -> TaskStatus:
    if task.state in ENDED:
        return task
    return dataclasses.replace(task, state=State.SUCCEEDED if done else State.STOPPED, reason="", ended=time)


def sweep_tensorboards(cluster: Cluster) -> None:
    """Delete each TensorBoard of the namespace whose run ended longer ago than its own `kubernetes.tensorboard_ttl`.

    Each start or stop of a run calls it, since no part of the launcher stays in the cluster. It skips runs without a record or without this field,
    and ignores errors of the cluster: leftovers of other runs must not prevent a start or stop.
    """
    with contextlib.suppress(LauncherError):
        deployments = cluster.list_objects("Deployment", {**status_reader.LAUNCHER_LABELS, COMPONENT_LABEL: TENSORBOARD})
        for run in sorted({deployment["metadata"]["labels"].get(INSTANCE_LABEL, "") for deployment in deployments} - {""}):
            if _tensorboard_is_due(cluster, run):
                for kind in _OF_TENSORBOARD:
                    for obj in cluster.list_objects(kind, {**status_reader.labels_of(run), COMPONENT_LABEL: TENSORBOARD}):
                        cluster.delete(kind, obj["metadata"]["name"], uid=obj["metadata"]["uid"])


def _tensorboard_is_due(cluster: Cluster, run: str) -> bool:
    record = cluster.get("ConfigMap", run_record.name_of(run))
    ttl = ((run_record.spec(record) or {}).get("kubernetes") or {}).get("tensorboard_ttl")
    if ttl is None or run_record.starting_launcher(record, cluster.now()):
        return False
    status = run_record.final(record) or pod_status.status(status_reader.snapshot_of(cluster, run), cluster.now())
    return status.state in ENDED and status.ended is not None and cluster.now() - status.ended > parse_duration(ttl)
