"""One Indexed Job a role: what a failed pod means, how often it is tried again, and when all ends. Pure."""

import math

from launcher.errors import UsageError
from launcher.plan import role_rules
from launcher.plan.role_groups import RoleGroup, groups
from launcher.render.kubernetes import pods
from launcher.render.kubernetes.objects import (
    ENDED_BY_RUN,
    ENDS_AFTER,
    TASKS,
    TRAINER,
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

# https://kueue.sigs.k8s.io/docs/tasks/run/jobs/
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

# Exit codes of a whole container that do not say that its trainer failed for good: peers that were not there, a container that could not
# be started or whose end nobody saw (128 and 255 of containerd), one that was killed, such as one out of memory, and one asked to stop.
_RETRYABLE = (int(ExitCode.PEER_LOST), 128, 137, int(ExitCode.STOPPED), 255)

# A longer time to live than this would overflow what Kubernetes keeps it in.
_LONGEST = 2**31 - 1


def jobs(run: Run) -> list[Object]:
    """Return the Job of each role."""
    return [_job(run, group) for group in groups(run.plan)]


def spec_of(run: Run, group: RoleGroup, *, retries: int, in_jobset: bool = False) -> Object:
    """Return the specification of a role's Job; each of its tasks is started again `retries` times after failures that count.

    `in_jobset`: a JobSet has the run's Jobs. When one fails, it starts all of them again or ends them.
    """
    checked(f"{run.name}-{group.role}-{group.count - 1}")  # the host name of its last pod
    if group.task.restart.when == "always" and not role_rules.has_parent(group.task):
        raise UsageError(
            f"roles.{group.role}.restart is always; Kubernetes starts the pod of a Job again after failures alone",
            "give the role a `command`, which then runs under the trainer's parent, and no `supervise: false`; or remove `restart`",
        )
    template = pods.template(run, group)
    rules_of_failures = _failure_rules(run, group, in_jobset=in_jobset, may_outgrow=pods.may_outgrow(template))
    spec: Object = {
        "completionMode": "Indexed",
        "completions": group.count,
        "parallelism": group.count,
        **_limit(run, group, retries),
        **supported(run, {"podFailurePolicy": {"rules": rules_of_failures}, "podReplacementPolicy": "Failed"}),
    }
    if run.plan.deadline is not None:
        spec["activeDeadlineSeconds"] = math.ceil(run.plan.deadline)
    spec["template"] = template
    return spec


def _limit(run: Run, group: RoleGroup, retries: int) -> Object:
    """Return how often the pods of a Job are replaced after failures.

    They are counted for each task, with a back-off of its own. `backoffLimit` counts all pods of a Job together: with it alone, hundred workers
    on nodes that come and go would soon wait ten minutes for each replacement. A Job of one task needs no other.
    """
    per_task = supported(run, {"backoffLimitPerIndex": retries, "maxFailedIndexes": 0})
    return per_task if per_task and group.count > 1 else {"backoffLimit": retries}


def _failure_rules(run: Run, group: RoleGroup, *, in_jobset: bool, may_outgrow: bool) -> list[Object]:
    """Return what the exit codes of docs/architecture.md mean to a Job; the first rule that fits holds, all else counts."""
    final = [int(ExitCode.WRONG_CONFIGURATION)]
    if group.task.restart.when == "exit_code" and not role_rules.has_parent(group.task):
        final = list(range(1, SIGNAL_BASE))
    if _follows_the_chief(run, group) or (not in_jobset and _waits_for_another_job(run, group)):
        # The trainer inside has waited: the run is over, and anyone who waits for these nodes need not wait for more attempts.
        final.append(int(ExitCode.PEER_LOST))
    found = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        _on_exit("FailJob", "In", final),
    ]
    if pods.killed_if_evicted(run, group) or not may_outgrow:
        # Otherwise a pod that outgrew its storage may end with this code, too, and no condition sets its eviction apart from a deletion.
        found.append(_on_exit("Ignore", "In", [int(ExitCode.STOPPED)]))
    if role_rules.has_parent(group.task):
        # It has tried limits.max_restarts times before it left with a failure.
        found.append(_on_exit("FailJob", "NotIn", list(_RETRYABLE)))
    return found


def _follows_the_chief(run: Run, group: RoleGroup) -> bool:
    """Return whether the tasks say that a peer was lost when their chief stayed away for limits.orphan_timeout, or has failed for good."""
    if run.spec.train is None:
        return role_rules.has_parent(group.task) and role_rules.can_report_end(run.plan) and not _has_leader(run, group)
    return group.role == "evaluator" or is_server(run.plan.strategy, group.role)


def _has_leader(run: Run, group: RoleGroup) -> bool:
    return group.role == role_rules.leading_role_name(task.name for task in run.plan.tasks)


def _waits_for_another_job(run: Run, group: RoleGroup) -> bool:
    """Return whether the tasks are of no use without those of another Job, for which they then wait for limits.start_timeout.

    They are the chief that drives ps and workers, and those who restore together. They do not learn that the other Job has failed
    for good; for a task of their own Job, Kubernetes ends them.
    """
    if run.plan.strategy in SERVER_STRATEGIES:
        return role_rules.has_parent(group.task) and _has_leader(run, group)
    others = [other for other in groups(run.plan) if other.role != group.role]
    return role_rules.has_parent(group.task) and group.scope == "all" and any(other.scope == "all" for other in others)


def _on_exit(action: str, operator: str, values: list[int]) -> Object:
    return {"action": action, "onExitCodes": {"containerName": TRAINER, "operator": operator, "values": values}}


def time_to_live(run: Run) -> Object:
    """Return when what has finished is deleted."""
    if run.options.ttl is None:
        return {}
    return {"ttlSecondsAfterFinished": min(math.ceil(parse_duration(run.options.ttl)), _LONGEST)}


def queue_labels(run: Run) -> dict[str, str]:
    """Return the label by which Kueue admits a workload."""
    return {QUEUE_LABEL: run.options.queue} if run.options.queue else {}


def success(run: Run, group: RoleGroup) -> Object:
    """Return the success policy of a `command` whose other tasks do not end by themselves: the end of index 0 completes the Job.

    A Job of workers of an all-reduce has none: `limits` gives them time to end.
    """
    ends = group.required and group.count > 1 and run.spec.success == "chief" and run.plan.strategy in SERVER_STRATEGIES
    if not _is_unwatched(run, group) or not ends:
        return {}
    return supported(run, {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}})


def ends_late(run: Run, group: RoleGroup) -> bool:
    """Return whether nobody inside ends a Job when the run has succeeded."""
    alone = not group.required or (group.count > 1 and run.spec.success == "chief" and not success(run, group))
    return _is_unwatched(run, group) and alone


def _end(run: Run, group: RoleGroup) -> dict[str, str]:
    """Return the annotations of a program's Job: that its success is not the run's, and when the launcher that watches is to end it."""
    if run.spec.train is not None:
        return {}
    if not ends_late(run, group):
        return {} if group.required else {ENDED_BY_RUN: "true"}
    return {ENDS_AFTER: f"{run.plan.graces[group.role]:g}", TASKS: str(group.count)}


def _is_unwatched(run: Run, group: RoleGroup) -> bool:
    return run.spec.train is None and not (role_rules.has_parent(group.task) and role_rules.can_report_end(run.plan))


def _job(run: Run, group: RoleGroup) -> Object:
    spec = spec_of(run, group, retries=group.task.restart.max_restarts)
    template = spec.pop("template")
    spec |= time_to_live(run) | success(run, group)
    spec["template"] = template
    notes = provenance(run) | _end(run, group)
    head = metadata(run, checked(f"{run.name}-{group.role}"), group.role, labels=queue_labels(run), annotations=notes)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": head, "spec": spec}
