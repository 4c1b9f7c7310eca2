"""The same run as one JobSet."""

import json
import re
from typing import Any

import pytest

from launcher.errors import UsageError
from tests.launcher.render.kubernetes.conftest import CLUSTER, TRAIN, Rendered, cluster_name


def jobset(rendered: Rendered, spec: str = CLUSTER) -> dict[str, Any]:
    return rendered(spec, to="jobset")["JobSet", "digits"]


def test_one_jobset_replaces_the_jobs_and_the_headless_service(rendered: Rendered) -> None:
    plain, objects = rendered(), rendered(CLUSTER, to="jobset")
    replaced = {("Service", "digits"), ("ConfigMap", cluster_name(plain)), *(key for key in plain if key[0] == "Job")}
    assert set(objects) == (set(plain) - replaced) | {("JobSet", "digits"), ("ConfigMap", cluster_name(objects))}
    replicated = jobset(rendered)["spec"]["replicatedJobs"]
    assert [(one["name"], one["replicas"], one["template"]["spec"]["completions"]) for one in replicated] == [
        ("chief", 1, 1),
        ("worker", 1, 2),
        ("ps", 1, 1),
        ("evaluator", 1, 1),
    ]
    assert all("subdomain" not in one["template"]["spec"]["template"]["spec"] for one in replicated)


def test_a_spec_can_request_a_jobset(rendered: Rendered) -> None:
    spec = CLUSTER + "kubernetes: {gang: jobset}\n"
    assert rendered(spec) == rendered(spec, to="jobset")
    assert ("JobSet", "digits") in rendered(spec)


def test_addresses_are_the_host_names_of_a_jobset_s_pods(rendered: Rendered) -> None:
    objects = rendered(CLUSTER, to="jobset")
    members = json.loads(objects["ConfigMap", cluster_name(objects)]["data"]["TF_CLUSTER"])
    assert members["worker"] == ["digits-worker-0-0.digits:2222", "digits-worker-0-1.digits:2222"]
    assert members["chief"] == ["digits-chief-0-0.digits:2222"]
    assert jobset(rendered)["spec"]["network"] == {"enableDNSHostnames": True, "subdomain": "digits"}


def test_success_depends_on_the_chief_and_the_evaluator(rendered: Rendered) -> None:
    policy = jobset(rendered)["spec"]["successPolicy"]
    assert policy == {"operator": "All", "targetReplicatedJobs": ["chief", "evaluator"]}
    workers = jobset(rendered, "strategy: multi_worker_mirrored\nroles: {worker: {replicas: 2}}\n" + TRAIN)
    assert workers["spec"]["successPolicy"]["targetReplicatedJobs"] == ["worker"]


def test_failures_follow_the_table_of_restarts(rendered: Rendered) -> None:
    spec = jobset(rendered, CLUSTER + "limits: {max_restarts: 3}\n")["spec"]
    policy = spec["failurePolicy"]
    assert policy["maxRestarts"] == 3
    assert [(rule["action"], rule.get("targetReplicatedJobs") or rule["onJobFailureReasons"]) for rule in policy["rules"]] == [
        ("FailJobSet", ["PodFailurePolicy", "DeadlineExceeded"]),
        ("FailJobSet", ["chief", "worker", "evaluator"]),
        ("RestartJobSet", ["ps"]),
    ]
    jobs = {one["name"]: one["template"]["spec"] for one in spec["replicatedJobs"]}
    retries = {name: job.get("backoffLimit", job.get("backoffLimitPerIndex")) for name, job in jobs.items()}
    assert retries == {"chief": 3, "worker": 3, "ps": 0, "evaluator": 3}


def test_queue_topology_and_time_to_live(rendered: Rendered) -> None:
    storage = "storage: {access: ReadWriteMany}\n" + CLUSTER
    document = jobset(rendered, storage + "kubernetes: {queue: team-a, exclusive_topology: example.com/rack, ttl: 1h}\n")
    assert document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert document["metadata"]["annotations"]["alpha.jobset.sigs.k8s.io/exclusive-topology"] == "example.com/rack"
    assert document["spec"]["ttlSecondsAfterFinished"] == 3600
    assert all("ttlSecondsAfterFinished" not in one["template"]["spec"] for one in document["spec"]["replicatedJobs"])
    jobs = rendered(CLUSTER + "kubernetes: {queue: team-a}\n")
    assert jobs["Job", "digits-worker"]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"


def test_roles_on_one_node_cannot_each_have_a_rack(rendered: Rendered) -> None:
    racks = "kubernetes: {gang: jobset, exclusive_topology: example.com/rack%s}\n"
    message = re.escape("storage.access is ReadWriteOnce by default, one node: no node can take chief and evaluator")
    with pytest.raises(UsageError, match=message) as refused:
        rendered(CLUSTER + racks % "", to="jobset")
    assert "set storage.access to ReadWriteMany" in refused.value.remedy
    assert "leave kubernetes.exclusive_topology out" in refused.value.remedy
    with pytest.raises(UsageError, match=r"kubernetes\.one_node is true") as refused:
        rendered("storage: {access: ReadWriteMany}\n" + CLUSTER + racks % ", one_node: true", to="jobset")
    assert "set kubernetes.one_node to false" in refused.value.remedy
    # Only the chief and TensorBoard mount the volume, and TensorBoard is not in the set.
    jobset(rendered, CLUSTER.replace(", evaluator: {}", "") + racks % "")


def test_a_name_that_leaves_no_room_for_its_pods_names_is_refused(rendered: Rendered) -> None:
    # <name>-evaluator-0-0-xxxxx: JobSet's own check of a new JobSet.
    assert ("JobSet", "a" * 43) in rendered(CLUSTER, to="jobset", head=f"version: 1\nname: {'a' * 43}\n")
    with pytest.raises(UsageError, match="64 characters"):
        rendered(CLUSTER, to="jobset", head=f"version: 1\nname: {'a' * 44}\n")
