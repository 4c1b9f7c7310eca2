"""Reasons for which a namespace refuses a run's pods or makes them wait, as its API server answers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import admission, helper_pod
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import ForbiddenError, TransientError
from launcher.errors import LauncherError
from launcher.images import spec_image
from launcher.plan import planner
from launcher.render.kubernetes import manifests
from launcher.render.kubernetes.objects import Run
from launcher.spec.models import ClusterSpec
from tests.golden_messages import Golden

HELPER = "the pod with which the launcher reads the volume"
ROLES = {"chief": {"cpu": 1, "memory": "2Gi"}, "ps": {"cpu": 1, "memory": "2Gi"}, "worker": {"replicas": 3, "cpu": 2, "memory": "4Gi"}}


def pod_sets(roles: object = ROLES, **options: Any) -> list[admission.PodSet]:
    values = {"version": 1, "name": "digits", "strategy": "parameter_server", "roles": roles, "kubernetes": options}
    spec = ClusterSpec.model_validate(values)
    run = Run(spec, planner.plan(spec, "kubernetes", run_dir="/runs/digits"), spec_image(spec))
    return admission.pod_sets(manifests.objects(run), helper_pod.helper(run))


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "small"}, "spec": spec, "status": {"hard": hard, "used": used or {}}}


def waiting_reasons(
    *quotas: dict[str, Any], refuse: Callable[[dict[str, Any]], LauncherError | None] = lambda _: None, **options: Any
) -> list[str]:
    """Return the reasons for which a run waits in a namespace with these quotas."""

    def create(pod: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
        assert dry_run
        if error := refuse(pod):
            raise error
        return pod

    cluster = SimpleNamespace(namespace="n", description=lambda: "namespace n", create=create, list_or_empty=lambda _: quotas)
    return [message for message, _ in admission.check(cast("Cluster", cluster), pod_sets(**options))]


@pytest.mark.parametrize("gang", [{}, {"gang": "jobset"}])
def test_every_pod_of_the_run_is_checked_as_its_controller_creates_it(gang: dict[str, str]) -> None:
    sets = pod_sets(**gang)
    assert {pod_set.name: pod_set.count for pod_set in sets if not pod_set.optional} == {"chief": 1, "ps": 1, "worker": 3}
    assert [pod_set.name for pod_set in sets if pod_set.optional] == ["tensorboard", HELPER]
    owners = [pod_set.pod["metadata"]["ownerReferences"][0]["kind"] for pod_set in sets[:-1]]
    assert sorted(owners) == ["Job", "Job", "Job", "ReplicaSet"]


def test_a_run_whose_tasks_exceed_a_quota_is_refused_and_one_that_has_to_wait_gets_a_notice(golden: Golden) -> None:
    # Tasks take 8 cores and 16Gi, TensorBoard a little more.
    fits = {"requests.cpu": "9", "memory": "17Gi", "pods": "6", "count/jobs.batch": "2"}
    assert waiting_reasons(quota(fits, {"count/jobs.batch": "3"})) == []
    with pytest.raises(
        LauncherError, match=r"its tasks take 8 of requests.cpu in all, and the quota small allows 7.5; its tasks take 5 of pods"
    ) as caught:
        waiting_reasons(quota({"requests.cpu": "7500m", "pods": "4"}))
    assert "have the quota raised" in caught.value.remedy
    golden(*waiting_reasons(quota({"requests.cpu": "8"})))
    golden(*waiting_reasons(quota({"memory": "20Gi"}, {"memory": "8Gi"})))
    assert waiting_reasons(quota({"pods": "1"}, scopes=["BestEffort"])) == []
    assert waiting_reasons(quota({"memory": "5Ei"})) == []


def test_a_quota_may_be_filled_exactly() -> None:
    tenths = {role: {**fields, "cpu": 0.1} for role, fields in ROLES.items()}
    pods = [pod_set for pod_set in pod_sets(roles=tenths) if pod_set.name == "worker"]
    usage = {name: 3 * value for name, value in admission._usage(pods[0].pod).items()}
    assert usage["requests.cpu"] > 0.3
    assert list(admission._over_limit(quota({"requests.cpu": "300m"}), usage)) == []


def test_all_refusals_are_reported_at_once_without_quotas_that_are_merely_used_up() -> None:
    refuse = refusing(
        {
            "worker": "failed quota: small: must specify limits.cpu for: trainer",
            "ps": "maximum cpu usage per Container is 500m, but limit is 1",
            "chief": "exceeded quota: small, requested: pods=1, used: pods=3, limited: pods=3",
        }
    )
    with pytest.raises(LauncherError) as caught:
        waiting_reasons(refuse=refuse)
    assert "worker: failed quota" in caught.value.message
    assert "ps: maximum cpu usage" in caught.value.message
    assert "exceeded" not in caught.value.message
    assert "give every role cpu and memory" in caught.value.remedy


def test_refusals_of_optional_pods_are_reported_and_prevent_no_start() -> None:
    limits = "minimum cpu usage per Container is 250m, but request is 100m"
    mesh = 'admission webhook "inject.mesh" does not support dry run'
    assert waiting_reasons(refuse=refusing({"housekeeping": limits, "tensorboard": limits, "chief": mesh})) == [
        f"tensorboard: {limits}",
        f"{HELPER}: {limits}",
    ]


def test_an_api_server_that_does_not_answer_refuses_nothing() -> None:
    with pytest.raises(TransientError):
        waiting_reasons(refuse=lambda _: TransientError("checking Pod x: the cluster does not answer"))


def refusing(messages: dict[str, str]) -> Callable[[dict[str, Any]], LauncherError | None]:
    """Return a function that refuses pods of some components with these messages."""

    def refuse(pod: dict[str, Any]) -> LauncherError | None:
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        return LauncherError(messages[component]) if component in messages else None

    return refuse


def test_a_user_without_the_right_to_create_pods_may_start_a_run() -> None:
    assert waiting_reasons(refuse=lambda _: ForbiddenError("ada may not create pods", "", "")) == []


def test_the_resources_of_the_launcher_s_pod_can_be_set() -> None:
    *_, helper = pod_sets(helper={"cpu": 0.5, "memory": "1Gi"})
    amounts = {"cpu": "500m", "memory": "1Gi"}
    assert helper.pod["spec"]["containers"][0]["resources"] == {"requests": amounts, "limits": amounts}


def test_missing_objects_that_pods_name_are_reported_with_the_command_that_creates_them() -> None:
    pod = {
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "digits"}},
            {"name": "own", "configMap": {"name": "mine"}},
            {
                "name": "all",
                "projected": {"sources": [{"secret": {"name": "token", "optional": True}}, {"configMap": {"name": "settings"}}]},
            },
        ],
        "containers": [{"env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "tracking", "key": "k"}}}]}],
        "initContainers": [{"envFrom": [{"secretRef": {"name": "hidden"}}]}],
        "imagePullSecrets": [{"name": "registry"}],
    }
    sets = [admission.PodSet(name, 1, {"spec": pod}) for name in ("chief", "worker")]

    def has(kind: str, name: str) -> bool:
        if name == "hidden":
            raise ForbiddenError(f"ada may not get {kind}", "", "")
        return False

    cluster = cast("Cluster", SimpleNamespace(has=has, description=lambda: "namespace n"))
    mine = {"kind": "ConfigMap", "metadata": {"name": "mine"}}
    remedies = dict(admission.missing_references(cluster, sets, [mine]))
    assert [message.split(" in ")[0] for message in remedies] == [
        "there is no claim digits",
        "there is no ConfigMap settings",
        "there is no Secret tracking",
        "there is no Secret registry",
    ]
    assert all(message.endswith("and chief and worker cannot start without it") for message in [*remedies][:-1])
    assert "kubectl create secret generic tracking" in [*remedies.values()][-2]
    assert "kubectl create secret docker-registry registry" in [*remedies.values()][-1]


def test_an_attendant_is_checked_without_the_account_that_is_created_with_it() -> None:
    (own,) = [pod_set for pod_set in pod_sets(attendant=True) if pod_set.name == "attendant"]
    assert own.count == 1
    assert "serviceAccountName" not in own.pod["spec"]
    (others,) = [pod_set for pod_set in pod_sets(attendant={"service_account": "robot"}) if pod_set.name == "attendant"]
    assert others.pod["spec"]["serviceAccountName"] == "robot"
