"""`launcher doctor --on kubernetes` on a real cluster."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.cluster import Namespace, kubectl, stand_in_spec
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher, doctor, short_probe_timeouts
from tests.e2e.kubernetes.starting import quota

pytestmark = pytest.mark.kubernetes


def test_a_cluster_that_can_run_an_example_has_no_problem(namespace: Namespace) -> None:
    code, findings = doctor(namespace.name, "examples/mnist-ps.yaml")
    assert code == 0, findings
    assert {name for name, (level, _) in findings.items() if level == "ok"} >= {
        "version",
        "permissions",
        "namespace",
        "network policies",
        "storage",
        "nodes",
        "capacity",
        "image",
        "DNS",
    }
    assert namespace.kubectl("get", "pods,configmaps", "-l", "app.kubernetes.io/name=tf-launcher", "-o", "name") == ""


def test_everything_that_the_cluster_lacks_for_a_spec_is_named(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_probe_timeouts(monkeypatch)
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "version: 1\nname: greedy\nroles: {chief: {cpu: 900}}\nimage: no-such/image:1\ntrain: {workload: mnist_mlp}\n"
        "storage: {class: no-such}\nkubernetes: {image_pull_policy: Never}\nnotify: {webhook: {secret: hook}}\n"
    )
    namespace.kubectl("create", "secret", "generic", "hook", "--from-literal=address=https://example.com")
    code, findings = doctor(namespace.name, str(spec))
    assert code == 1
    assert findings["capacity"] == ("problem", "no node has room for 1 chief")
    assert findings["storage"] == ("problem", "there is no storage class no-such")
    assert findings["image"][0] == "problem"
    assert "ErrImageNeverPull" in findings["image"][1]
    assert findings["notify"][0] == "warning"
    assert findings["notify"][1].startswith("there is no key url in the Secret hook in ")


def test_a_class_without_volumes_for_many_nodes_is_named_with_both_remedies(launcher: Launcher, tmp_path: Path) -> None:
    name = f"disks-{launcher.namespace.name}"
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "version: 1\nname: shares\nstrategy: multi_worker_mirrored\nroles: {chief: {}, worker: {}}\n"
        f"command: [python, train.py]\nstorage: {{class: {name}}}\nkubernetes: {{tensorboard: false}}\n"
    )
    disks = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
    }
    kubectl("apply", "-f", "-", text=json.dumps(disks))
    try:
        code, findings = doctor(launcher.namespace.name, str(spec))
        assert code == 1
        lacking = f"{name} (kubernetes.io/no-provisioner) does not offer ReadWriteMany"
        assert findings["storage"] == ("problem", f"{lacking}, and chief and worker mount the volume")
        output = launcher("up", str(spec), "--detach")
        assert f"the storage class {lacking}: set storage.mount to one" in output
        assert "or storage.class to one that offers ReadWriteMany" in output
        code, findings = doctor(launcher.namespace.name, str(spec), "--set", "storage.mount=one")
        assert findings["storage"][0] == "problem"  # of the existing claim, which keeps its mode
        launcher("down", "shares", "--now", "--delete-data", "--yes")
        code, findings = doctor(launcher.namespace.name, str(spec), "--set", "storage.mount=one")
        assert findings["storage"] == ("ok", f"class {name} (kubernetes.io/no-provisioner), ReadWriteOnce")
    finally:
        kubectl("delete", "storageclass", name)


@pytest.mark.usefixtures("cluster")
def test_a_missing_namespace_is_named() -> None:
    code, findings = doctor("no-such-namespace", "examples/mnist-ps.yaml")
    assert code == 1
    assert "there is no namespace no-such-namespace" in findings["namespace"][1]


DENY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny-all"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
}
# Tasks of runs have to reach DNS and each other.
TASKS = {"matchExpressions": [{"key": "tf-launcher/cluster", "operator": "Exists"}]}
DNS = {"ports": [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]}
PEERS = {"to": [{"podSelector": TASKS}], "ports": [{"port": 2222, "endPort": 2223}]}


def allow(name: str, pods: dict[str, Any], rule: dict[str, Any]) -> dict[str, Any]:
    return {**DENY, "metadata": {"name": name}, "spec": {"podSelector": pods, "policyTypes": ["Egress"], "egress": [rule]}}


def test_policies_that_deny_all_are_named_until_the_traffic_of_runs_is_allowed(launcher: Launcher, tmp_path: Path) -> None:
    namespace, file = launcher.namespace, tmp_path / "spec.yaml"
    file.write_text(
        f"version: 1\nname: meets\nstrategy: parameter_server\nroles: {{chief: {{}}, ps: {{}}, worker: {{}}}}\n{stand_in_spec(20, 0.05)}"
    )
    namespace.kubectl("apply", "-f", "-", text=json.dumps(DENY))
    try:
        code, findings = doctor(namespace.name, str(file))
        assert code == 1
        assert findings["network policies"] == ("problem", "deny-all: a run's tasks may not reach DNS and port 2222 of each other")
        own_policy = ("--set", "kubernetes.egress=tasks")
        code, findings = doctor(namespace.name, str(file), *own_policy)
        assert code == 0, findings
        assert "meets succeeded" in launcher("up", str(file), *own_policy, timeout=TRAINING_TIMEOUT)
        launcher("down", "meets", "--delete-data", "--yes")
        for policy in (allow("dns", TASKS, DNS), allow("peers", TASKS, PEERS)):
            namespace.kubectl("apply", "-f", "-", text=json.dumps(policy))
        code, findings = doctor(namespace.name, str(file))
        assert code == 0, findings
        assert findings["network policies"][0] == findings["DNS"][0] == "ok"
        assert "succeeded" in launcher("up", str(file), timeout=TRAINING_TIMEOUT)
    finally:
        namespace.kubectl("delete", "networkpolicies", "deny-all", "dns", "peers", "--ignore-not-found")
    launcher("down", "meets", "--delete-data", "--yes")


LIMITS = """\
apiVersion: v1
kind: LimitRange
metadata: {name: sizes}
spec: {limits: [{type: Container, min: {cpu: 250m}}]}
"""


def test_pods_that_the_namespace_does_not_admit_are_named_before_any_object_is_created(launcher: Launcher, tmp_path: Path) -> None:
    namespace, file = launcher.namespace, tmp_path / "spec.yaml"
    file.write_text(f"version: 1\nname: sized\nroles: {{chief: {{memory: 1Gi}}}}\ntensorboard: {{cpu: 0.5}}\n{stand_in_spec(20, 0.05)}")
    with quota(namespace, "cores", "limits.cpu=10"):
        namespace.kubectl("apply", "-f", "-", text=LIMITS)
        try:
            for options in (("--set", "roles.chief.cpu=0.1"), ("--set", "roles.chief.cpu=20")):
                code, findings = doctor(namespace.name, str(file), *options)
                assert (code, findings["admission"][0]) == (1, "problem")
                output = launcher("up", str(file), *options, code=1)
                assert findings["admission"][1] in output
                assert namespace.objects("ConfigMap", "sized") == []
            assert "its tasks take 20 of limits.cpu in all, and the quota cores allows 10" in output
            _, findings = doctor(namespace.name, str(file), "--set", "roles.chief.cpu=0.5")
            message = "the pod with which the launcher reads the volume: a LimitRange of the namespace does not admit it"
            assert findings["admission"][0] == "warning"
            assert findings["admission"][1].startswith(message)
            fits = ("--set", "roles.chief.cpu=0.5", "--set", "kubernetes.helper.cpu=0.25")
            assert doctor(namespace.name, str(file), *fits)[0] == 0
            assert "sized succeeded" in launcher("up", str(file), *fits, timeout=TRAINING_TIMEOUT)
        finally:
            namespace.kubectl("delete", "limitrange", "sizes")
    launcher("down", "sized", "--delete-data", "--yes")
