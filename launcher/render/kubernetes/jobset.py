"""A run as one JobSet: Kueue admits all of it or nothing, and its Jobs restart and end together.

https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/ has the format. The JobSet controller creates the headless Service.
"""

import dataclasses

from launcher.plan.addresses import PORT, with_addresses
from launcher.plan.task_groups import TaskGroup, groups
from launcher.render.kubernetes import jobs, storage
from launcher.render.kubernetes.objects import Object, Run, checked, metadata, provenance

# The first version with rules in the failure policy.
_MIN_VERSION = "0.6"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_RANDOM = "xxxxx"  # stands for the random suffix of pod names
# Reasons of failed Jobs after which a retry cannot help: an exit code that the failure policy makes final, and limits.deadline.
_FINAL = ["PodFailurePolicy", "DeadlineExceeded"]


def jobset(run: Run) -> Object:
    """Return the JobSet: a replicated job for each role, whose one Job has the role's tasks.

    Raises UsageError if roles have to be on one node, but `exclusive_topology` separates them.
    """
    storage.check_exclusive_topology(run)
    by_role = groups(run.plan)
    exclusive = {_EXCLUSIVE: run.options.exclusive_topology} if run.options.exclusive_topology else {}
    spec: Object = {
        # DNS names exist before tasks are ready, as tasks wait for each other: publishNotReadyAddresses is the default.
        "network": {"enableDNSHostnames": True, "subdomain": run.name},
        "successPolicy": {
            "operator": "All",
            "targetReplicatedJobs": [group.role for group in by_role if group.required or jobs.learns_of_end(run, group)],
        },
        "failurePolicy": _failure_policy(by_role),
        **jobs.time_to_live(run),
        "replicatedJobs": [_replicated_job(run, group) for group in by_role],
    }
    head = metadata(run, run.name, labels=jobs.queue_labels(run), annotations=provenance(run) | exclusive)
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": head, "spec": spec}


def host(run_name: str, role: str, index: int) -> str:
    """Return the host name of a task: <JobSet>-<replicated job>-<number of the Job>-<index in the Job>."""
    return checked(f"{run_name}-{role}-0-{index}")


def with_jobset_addresses(run: Run) -> Run:
    """Return a run whose tasks have the host names that a JobSet gives them. Raises UsageError if one is too long."""
    addresses = {task.name: f"{host(run.name, task.role, task.index)}.{run.name}:{PORT}" for task in run.plan.tasks if task.address}
    last_hosts = [host(run.name, group.role, group.count - 1) for group in groups(run.plan)]  # the evaluator's too, which has no address
    for host_name in last_hosts:
        checked(f"{host_name}-{_RANDOM}")  # the pod's name, which JobSet requires to be a label, too
    return dataclasses.replace(run, plan=with_addresses(run.plan, addresses))


def notices(run: Run) -> list[str]:
    """Return the notices about the JobSet."""
    lines = [f"the cluster needs JobSet {_MIN_VERSION} or newer"]
    if any(group.required and jobs.is_ended_by_launcher(run, group) for group in groups(run.plan)):
        lines.append(
            "the workers without the trainer's parent do not end with the first: set kubernetes.version to 1.31 or newer, or delete the set"
        )
    return lines


def _replicated_job(run: Run, group: TaskGroup) -> Object:
    # If all tasks have to restore together, the first failure that counts restarts the set.
    retries = 0 if group.scope == "all" else group.first_task.restart.max_restarts
    spec = jobs.job_spec(run, group, retries=retries, in_jobset=True) | jobs.success_policy(run, group)
    # The JobSet sets the pods' subdomain.
    spec["template"]["spec"].pop("subdomain", None)
    head = metadata(run, run.name, group.role)
    del head["name"]  # the JobSet derives it from its own name, the role and a number; the namespace is its own
    head.pop("namespace", None)
    return {"name": group.role, "replicas": 1, "template": {"metadata": head, "spec": spec}}


def _failure_policy(by_role: tuple[TaskGroup, ...]) -> Object:
    """Return the rules of which roles restart together; see docs/architecture.md, "Who restarts what"."""
    restarted_alone = [group.role for group in by_role if group.scope == "alone"]
    restarted_together = [group.role for group in by_role if group.scope == "all"]
    rules: list[Object] = [{"name": "final", "action": "FailJobSet", "onJobFailureReasons": _FINAL}]
    if restarted_alone:
        # The Job has already restarted its pod as often as limits.max_restarts allows.
        rules.append({"name": "alone", "action": "FailJobSet", "targetReplicatedJobs": restarted_alone})
    if restarted_together:
        rules.append({"name": "together", "action": "RestartJobSet", "targetReplicatedJobs": restarted_together})
    max_restarts = max(
        group.first_task.restart.max_restarts for group in by_role if group.role in restarted_together or not restarted_together
    )
    return {"maxRestarts": max_restarts, "rules": rules}
