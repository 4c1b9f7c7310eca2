"""One Indexed Job for each role: the meaning of failed pods, how often they are replaced, and when the Job ends."""

import math

from launcher.errors import UsageError
from launcher.plan import role_rules
from launcher.plan.task_groups import TaskGroup, groups
from launcher.render.kubernetes import pods
from launcher.render.kubernetes.objects import (
    FOLLOWS_RUN,
    QUEUE_LABEL,
    SECONDS_AFTER_RUN,
    TASK_COUNT,
    TRAINER_CONTAINER,
    Object,
    Run,
    checked,
    metadata,
    provenance,
    supported,
)
from launcher.spec.quantities import parse_duration
from trainer.exit_codes import SIGNAL_BASE, ExitCode
from trainer.strategies import SERVER_STRATEGIES, is_server

# Exit codes of a container after which a retry may help: lost peers, a container that could not be started or whose end was not
# observed (128 and 255 of containerd), one that was killed, e.g. for lack of memory, and one that was asked to stop.
_RETRYABLE = (int(ExitCode.PEER_LOST), 128, 137, int(ExitCode.STOPPED), 255)

# A longer time to live would overflow the field's int32.
_MAX_TTL = 2**31 - 1


def jobs(run: Run) -> list[Object]:
    """Return the Job of each role."""
    return [_job(run, group) for group in groups(run.plan)]


def job_spec(run: Run, group: TaskGroup, *, retries: int, in_jobset: bool = False) -> Object:
    """Return the specification of a role's Job; `retries` is the limit of restarts after failures that count: see _backoff_limit.

    With `in_jobset` the Job belongs to a JobSet, which restarts or ends all its Jobs when one fails.
    """
    checked(f"{run.name}-{group.role}-{group.count - 1}")  # the host name of its last pod
    if group.first_task.restart.when == "always" and not role_rules.has_parent(group.first_task):
        raise UsageError(
            f"roles.{group.role}.restart is always; Kubernetes only restarts the pod of a Job after failures",
            "write `command` in the role and remove `supervise: false`, so that it runs under the trainer's parent; or remove `restart`",
        )
    template = pods.template(run, group)
    failure_rules = _failure_rules(run, group, in_jobset=in_jobset, may_exceed_storage=pods.may_exceed_storage(template))
    spec: Object = {
        "completionMode": "Indexed",
        "completions": group.count,
        "parallelism": group.count,
        **_backoff_limit(run, group, retries),
        **supported(run, {"podFailurePolicy": {"rules": failure_rules}, "podReplacementPolicy": "Failed"}),
    }
    if run.plan.deadline is not None:
        spec["activeDeadlineSeconds"] = math.ceil(run.plan.deadline)
    spec["template"] = template
    return spec


def _backoff_limit(run: Run, group: TaskGroup, retries: int) -> Object:
    """Return how often the pods of a Job are replaced after failures.

    Failures are counted for each task, each with its own back-off, if the version of Kubernetes can. `backoffLimit` counts all pods of a Job
    together: with it, a hundred workers on nodes that come and go would soon wait ten minutes for each replacement. For a Job of one task there
    is no difference.
    """
    per_task = supported(run, {"backoffLimitPerIndex": retries, "maxFailedIndexes": 0})
    return per_task if per_task and group.count > 1 else {"backoffLimit": retries}


def _failure_rules(run: Run, group: TaskGroup, *, in_jobset: bool, may_exceed_storage: bool) -> list[Object]:
    """Return the rules for the exit codes of docs/architecture.md. The first rule that matches applies; other failures count."""
    final = [int(ExitCode.FINAL_FAILURE)]
    if group.first_task.restart.when == "exit_code" and not role_rules.has_parent(group.first_task):
        final = list(range(1, SIGNAL_BASE))
    if _exits_if_chief_is_lost(run, group) or (not in_jobset and _waits_for_another_job(run, group)):
        # The trainer has already waited for its peers: the run is over, and more attempts would only keep the nodes occupied.
        final.append(int(ExitCode.PEER_LOST))
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        _on_exit("FailJob", "In", final),
    ]
    if pods.killed_if_evicted(run, group) or not may_exceed_storage:
        # Otherwise a pod that exceeded its storage may end with this code, too, and no condition distinguishes its eviction from a deletion.
        rules.append(_on_exit("Ignore", "In", [int(ExitCode.STOPPED)]))
    if role_rules.has_parent(group.first_task):
        # The parent has restarted it limits.max_restarts times before it exits with a failure.
        rules.append(_on_exit("FailJob", "NotIn", list(_RETRYABLE)))
    return rules


def _exits_if_chief_is_lost(run: Run, group: TaskGroup) -> bool:
    """Return whether the tasks exit with PEER_LOST if their chief is unreachable for limits.orphan_timeout, or has failed for good."""
    if run.spec.train is None:
        return learns_of_end(run, group) and not _has_leader(run, group)
    return group.role == "evaluator" or is_server(run.plan.strategy, group.role)


def _has_leader(run: Run, group: TaskGroup) -> bool:
    return group.role == role_rules.leading_role_name(task.name for task in run.plan.tasks)


def _waits_for_another_job(run: Run, group: TaskGroup) -> bool:
    """Return whether the tasks need those of another Job, and wait limits.start_timeout for them.

    These are the chief of ps and workers, and tasks that restore together. They do not learn that the other Job has failed
    for good; if a task of their own Job fails for good, Kubernetes ends them.
    """
    if run.plan.strategy in SERVER_STRATEGIES:
        return role_rules.has_parent(group.first_task) and _has_leader(run, group)
    others = [other for other in groups(run.plan) if other.role != group.role]
    return role_rules.has_parent(group.first_task) and group.scope == "all" and any(other.scope == "all" for other in others)


def _on_exit(action: str, operator: str, values: list[int]) -> Object:
    return {"action": action, "onExitCodes": {"containerName": TRAINER_CONTAINER, "operator": operator, "values": values}}


def time_to_live(run: Run) -> Object:
    """Return the field with the time after which a finished object is deleted."""
    if run.options.ttl is None:
        return {}
    return {"ttlSecondsAfterFinished": min(math.ceil(parse_duration(run.options.ttl)), _MAX_TTL)}


def queue_labels(run: Run) -> dict[str, str]:
    """Return the label by which Kueue admits a workload."""
    return {QUEUE_LABEL: run.options.queue} if run.options.queue else {}


def success_policy(run: Run, group: TaskGroup) -> Object:
    """Return the success policy of a `command` whose other tasks do not end by themselves: the success of index 0 completes the Job.

    Workers of an all-reduce get none: `limits` gives them time to end.
    """
    ends = group.required and group.count > 1 and run.spec.success == "chief" and run.plan.strategy in SERVER_STRATEGIES
    if not _is_unaware_of_end(run, group) or not ends:
        return {}
    return supported(run, {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}})


def is_ended_by_launcher(run: Run, group: TaskGroup) -> bool:
    """Return whether nothing in the cluster ends a Job when the run has succeeded, so that a watching launcher has to."""
    outlives = not group.required or (group.count > 1 and run.spec.success == "chief" and not success_policy(run, group))
    return _is_unaware_of_end(run, group) and outlives


def _end_annotations(run: Run, group: TaskGroup) -> dict[str, str]:
    """Return the annotations of a program's Job: whether its end says nothing about the run, and when the watching launcher ends it."""
    if run.spec.train is not None:
        return {}
    if not is_ended_by_launcher(run, group):
        return {} if group.required else {FOLLOWS_RUN: "true"}
    return {SECONDS_AFTER_RUN: f"{run.plan.end_grace_periods[group.role]:g}", TASK_COUNT: str(group.count)}


def learns_of_end(run: Run, group: TaskGroup) -> bool:
    """Return whether the tasks of a user's program learn of the run's end: the trainer's parent then ends them."""
    return run.spec.train is None and role_rules.has_parent(group.first_task) and role_rules.can_report_end(run.plan)


def _is_unaware_of_end(run: Run, group: TaskGroup) -> bool:
    return run.spec.train is None and not learns_of_end(run, group)


def _job(run: Run, group: TaskGroup) -> Object:
    spec = job_spec(run, group, retries=group.first_task.restart.max_restarts)
    template = spec.pop("template")
    spec |= time_to_live(run) | success_policy(run, group)
    spec["template"] = template
    annotations = provenance(run) | _end_annotations(run, group)
    head = metadata(run, checked(f"{run.name}-{group.role}"), group.role, labels=queue_labels(run), annotations=annotations)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": head, "spec": spec}
