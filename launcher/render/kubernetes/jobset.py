"""The same run as one JobSet: Kueue then admits all of it or nothing, and it restarts and ends as one. Pure.

https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/ has the format. The JobSet makes the headless Service by itself.
"""

import dataclasses

from launcher.plan import role_rules
from launcher.plan.addresses import PORT, with_addresses
from launcher.plan.role_groups import RoleGroup, groups
from launcher.render.kubernetes import jobs, storage
from launcher.render.kubernetes.objects import Object, Run, checked, metadata, provenance

# Rules of the failure policy are there since then.
MINIMUM = "0.6"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_RANDOM = "xxxxx"  # what Kubernetes ends the names of pods with
# Reasons why a Job has failed that no further attempt can mend: an exit code that its failure policy makes final, and limits.deadline.
_FINAL = ["PodFailurePolicy", "DeadlineExceeded"]


def jobset(run: Run) -> Object:
    """Return the JobSet: a replicated job for each role, whose one Job has the role's tasks.

    Raises UsageError where roles that each are to have a part of the cluster for themselves have to be on one node.
    """
    storage.check_apart(run)
    by_role = groups(run.plan)
    exclusive = {_EXCLUSIVE: run.options.exclusive_topology} if run.options.exclusive_topology else {}
    spec: Object = {
        # Names are there before the tasks are ready, since tasks wait for each other: publishNotReadyAddresses is the default.
        "network": {"enableDNSHostnames": True, "subdomain": run.name},
        "successPolicy": {
            "operator": "All",
            "targetReplicatedJobs": [group.role for group in by_role if group.required or _ends_by_itself(run, group)],
        },
        "failurePolicy": _failure_policy(by_role),
        **jobs.time_to_live(run),
        "replicatedJobs": [_replicated(run, group) for group in by_role],
    }
    head = metadata(run, run.name, labels=jobs.queue_labels(run), annotations=provenance(run) | exclusive)
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": head, "spec": spec}


def host(run_name: str, role: str, index: int) -> str:
    """Return the host name of a task: <JobSet>-<replicated job>-<number of the Job>-<index in the Job>."""
    return checked(f"{run_name}-{role}-0-{index}")


def with_jobset_addresses(run: Run) -> Run:
    """Return a run whose tasks have the names that a JobSet gives them. Raises UsageError where one is too long."""
    held = {task.name: f"{host(run.name, task.role, task.index)}.{run.name}:{PORT}" for task in run.plan.tasks if task.address}
    last = [host(run.name, group.role, group.count - 1) for group in groups(run.plan)]  # the evaluator's too, which has no address
    for one in last:
        checked(f"{one}-{_RANDOM}")  # its pod, whose name JobSet wants to be a label as well
    return dataclasses.replace(run, plan=with_addresses(run.plan, held))


def notes(run: Run) -> list[str]:
    """Return what a person should know about the JobSet."""
    found = [f"the cluster needs JobSet {MINIMUM} or newer"]
    if any(group.required and jobs.ends_late(run, group) for group in groups(run.plan)):
        found.append(
            "the workers without the trainer's parent do not end with the first: set kubernetes.version to 1.31 or newer, or delete the set"
        )
    return found


def _replicated(run: Run, group: RoleGroup) -> Object:
    # Where all have to restore together, the first failure of a pod that counts restarts the set.
    retries = 0 if group.scope == "all" else group.task.restart.max_restarts
    spec = jobs.spec_of(run, group, retries=retries, in_jobset=True) | jobs.success(run, group)
    # The set names the pods' subdomain.
    spec["template"]["spec"].pop("subdomain", None)
    head = metadata(run, run.name, group.role)
    del head["name"]  # the set's own, with the role's and a number; and so is its namespace
    head.pop("namespace", None)
    return {"name": group.role, "replicas": 1, "template": {"metadata": head, "spec": spec}}


def _ends_by_itself(run: Run, group: RoleGroup) -> bool:
    """Return whether the trainer ends the tasks of a user's program with their run, each in its time."""
    return run.spec.train is None and role_rules.has_parent(group.task) and role_rules.can_report_end(run.plan)


def _failure_policy(by_role: tuple[RoleGroup, ...]) -> Object:
    """Return which roles are started again together: docs/architecture.md, "Who restarts what"."""
    alone = [group.role for group in by_role if group.scope == "alone"]
    together = [group.role for group in by_role if group.scope == "all"]
    found: list[Object] = [{"name": "final", "action": "FailJobSet", "onJobFailureReasons": _FINAL}]
    if alone:
        # Its Job has started it again as often as limits.max_restarts allows.
        found.append({"name": "alone", "action": "FailJobSet", "targetReplicatedJobs": alone})
    if together:
        found.append({"name": "together", "action": "RestartJobSet", "targetReplicatedJobs": together})
    most = max(group.task.restart.max_restarts for group in by_role if group.role in together or not together)
    return {"maxRestarts": most, "rules": found}
