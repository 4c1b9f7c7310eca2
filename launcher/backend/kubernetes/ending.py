"""A run's end by its user: its tasks save and stop, its objects are deleted, and how it was is noted; its data on request."""

import dataclasses
from collections import Counter

from launcher.backend.kubernetes import applying, look, observe, record
from launcher.backend.kubernetes.api import Cluster
from launcher.backend.kubernetes.inventory import WORKLOADS
from launcher.backend.kubernetes.observe import task_of
from launcher.backend.kubernetes.podlogs import PodLogs
from launcher.backend.kubernetes.told import Story
from launcher.backend.model import ENDED, RunStatus, State, TaskStatus
from launcher.errors import UsageError

_SLACK = 120.0  # seconds beyond the grace period in which pods are gone; a busy node takes more than one minute


def stop(cluster: Cluster, before: RunStatus | None, run: str, logs: PodLogs, *, now: bool) -> tuple[RunStatus | None, dict[str, int]]:
    """Stop a run and delete all of it but its record and its data; `before` is how it was, None where it has no Jobs.

    Returns how it has ended, and how many objects of each kind were deleted. Raises LauncherError when pods stay, UsageError where something would make its Jobs again.
    """
    # Nothing that another launcher makes once this is done is to go with it.
    there, pods = applying.belongings(cluster, run), look.pods_of(cluster, run)
    maker = observe.maker(cluster.listed("Job", look.labels_of(run)))
    if maker and maker not in {f"{one.kind.lower()}/{one.name}" for one in there}:
        raise UsageError(
            f"the Jobs of {run} in {cluster.words()} are those of {maker}, which makes them again when they are deleted",
            f"delete that, and they go with it: kubectl delete {maker} -n {cluster.namespace}",
        )
    story = Story(before.tasks[0].name if before and before.tasks else "")
    story.take(logs.news(pods))  # what has ended is gone in a moment
    if before is not None:
        # First of all: who else watches must not take it for a run whose Jobs somebody deleted. It has not stopped yet.
        (record.note if before.state in ENDED else record.announce)(cluster, _ended(before, story, cluster.now()))
    with logs.to_the_end(sorted(pods, key=lambda pod: not story.leads(task_of(pod)))):  # what the tasks write to the last
        for one in there:
            if one.kind in WORKLOADS:
                applying.delete(cluster, one)
        grace = max((pod["spec"].get("terminationGracePeriodSeconds") or 30 for pod in pods), default=0)
        for pod in pods:
            # The garbage collector would do so a moment later; a pod that was being given up by its node stays as it is.
            if not pod["metadata"].get("deletionTimestamp") or now:
                cluster.delete("Pod", pod["metadata"]["name"], grace=1 if now else None)
        applying.await_ended(cluster, run, grace + _SLACK, lambda: story.take(logs.news(look.pods_of(cluster, run))))
    story.take(logs.news(()))
    applying.remove(cluster, run, there)
    if any(one.kind == "JobSet" for one in there):
        applying.await_workloads_gone(cluster, run)
    removed = dict(Counter(one.kind for one in there))
    if before is None:
        return None, removed
    ended = _ended(before, story, cluster.now())
    record.amend(cluster, ended)  # with the checkpoint that its tasks have saved meanwhile
    return ended, removed


def _ended(before: RunStatus, story: Story, now: float) -> RunStatus:
    """Return how the run is to be remembered: as it ended, or stopped now, after a last checkpoint perhaps."""
    if before.state in ENDED:
        return before
    last = story.progress
    done = [task.state is State.SUCCEEDED or story.done(task.name) for task in before.tasks]
    tasks = tuple(_stopped(task, now, done=is_done) for task, is_done in zip(before.tasks, done, strict=True))
    finished = bool(done) and all(done)
    return dataclasses.replace(
        before,
        state=State.SUCCEEDED if finished else State.STOPPED,
        reason="it was done before it stopped" if finished else "asked to stop",
        ended=now,
        eta=None,
        tasks=tasks,
        step=last.step if last.step is not None else before.step,
        checkpoint=last.checkpoint or before.checkpoint,
        checkpoint_step=last.checkpoint_step if last.checkpoint else before.checkpoint_step,
    )


def _stopped(task: TaskStatus, now: float, *, done: bool) -> TaskStatus:
    if task.state in ENDED:
        return task
    return dataclasses.replace(task, state=State.SUCCEEDED if done else State.STOPPED, reason="", ended=now)
