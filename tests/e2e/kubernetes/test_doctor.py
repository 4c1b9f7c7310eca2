"""`launcher doctor --on kubernetes` on a real cluster."""

from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import Namespace
from tests.e2e.kubernetes.launching import doctor

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]


def test_a_cluster_that_runs_an_example_is_well(namespace: Namespace) -> None:
    code, found = doctor(namespace.name, "examples/mnist-ps.yaml")
    assert code == 0, found
    assert {what for what, (level, _) in found.items() if level == "ok"} >= {
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


def test_what_a_spec_lacks_there_is_named(namespace: Namespace, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "version: 1\nname: greedy\nroles: {chief: {cpu: 900}}\nimage: no-such/image:1\ntrain: {workload: mnist_mlp}\n"
        "storage: {class: no-such}\nkubernetes: {image_pull_policy: Never}\n"
    )
    code, found = doctor(namespace.name, str(spec))
    assert code == 1
    assert found["capacity"] == ("problem", "no node has room for 1 chief")
    assert found["storage"] == ("problem", "there is no storage class no-such")
    assert found["image"][0] == "problem"
    assert "ErrImageNeverPull" in found["image"][1]


def test_a_namespace_that_is_not_there_is_named() -> None:
    code, found = doctor("no-such-namespace", "examples/mnist-ps.yaml")
    assert code == 1
    assert "there is no namespace no-such-namespace" in found["namespace"][1]
