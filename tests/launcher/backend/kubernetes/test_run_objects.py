"""A run's objects: refusals before any is created, and those that a stop deletes."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import run_objects
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import ForbiddenError, explain
from launcher.backend.kubernetes.in_cluster import RefusedError
from launcher.backend.kubernetes.run_context import ObjectRef
from launcher.backend.kubernetes.run_objects import await_pods_deleted, dry_run, existing_objects, require_sidecar_support
from launcher.errors import LauncherError, UsageError
from tests.golden_messages import Golden
from tests.launcher.backend.kubernetes.objects import NOW, StandInClock, running


def test_a_cluster_that_does_not_end_sidecars_with_their_task_is_refused(golden: Golden) -> None:
    require_sidecar_support((1, 29), "namespace team")
    with pytest.raises(UsageError, match=r"namespace team is Kubernetes 1\.28, which does not end sidecars with their task") as refused:
        require_sidecar_support((1, 28), "namespace team")
    golden(refused.value.remedy)


def test_a_binding_is_not_refused_for_a_role_that_is_created_with_it() -> None:
    binding = {"kind": "RoleBinding", "metadata": {"name": "digits-attendant"}}

    def cluster_refusing(status: int) -> Cluster:
        def apply(*_: object, **__: object) -> Any:
            error = RefusedError(status, "no", b'{"message": "roles.rbac.authorization.k8s.io \\"digits-attendant\\" not found"}')
            raise explain(error, "checking it") from error

        return cast("Cluster", SimpleNamespace(apply=apply))

    assert dry_run(cluster_refusing(404), binding) == binding
    with pytest.raises(LauncherError):
        dry_run(cluster_refusing(403), binding)
    with pytest.raises(LauncherError):
        dry_run(cluster_refusing(404), {**binding, "kind": "Role"})


def test_objects_of_an_attendant_that_the_user_may_not_read_are_left_alone() -> None:
    recorded = [("Role", "digits-attendant", "r"), ("ConfigMap", "digits-cluster", "c")]
    objects = {"digits-record": {"data": {"made.json": json.dumps(recorded)}}, "digits-cluster": {"metadata": {"uid": "c"}}}

    def get(kind: str, name: str) -> Any:
        if kind == "Role":
            raise ForbiddenError("anna may not get roles", "", "")
        return objects[name]

    cluster = cast("Cluster", SimpleNamespace(get=get, list_objects=lambda *_: [], list_or_empty=lambda *_: []))
    assert existing_objects(cluster, "digits") == [ObjectRef("ConfigMap", "digits-cluster", "c")]


@pytest.mark.parametrize("deletion, seconds", [({}, 660), ({"deletionGracePeriodSeconds": 1}, 61)], ids=["down", "down --now"])
def test_pods_of_a_lost_node_are_deleted_by_force_a_minute_after_their_grace_period(
    deletion: dict[str, int], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, clock = running("chief"), StandInClock()
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:10:00Z", **deletion}
    pod["spec"]["terminationGracePeriodSeconds"] = 600
    pod["status"]["reason"] = "NodeLost"
    pods = [pod]
    cluster = SimpleNamespace(list_objects=lambda *_: [*pods], now=lambda: NOW + clock.now, delete=lambda *_, **__: pods.clear())
    monkeypatch.setattr(run_objects, "time", clock)
    assert await_pods_deleted(cast("Cluster", cluster), "digits", 720.0) == [pod]
    assert clock.now == pytest.approx(seconds, abs=1)
