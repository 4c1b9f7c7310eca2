"""Reasons that keep a run's pods out of a namespace, and for which they have to wait there, as its API server answers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import admission, helper_pod
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import ForbiddenError, UnreachableError
from launcher.errors import LauncherError
from launcher.images import image_for
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
    run = Run(spec, planner.plan(spec, "kubernetes", run_dir="/runs/digits"), image_for(spec))
    return admission.pod_sets(manifests.objects(run), helper_pod.helper(run))


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "small"}, "spec": spec, "status": {"hard": hard, "used": used or {}}}


def checked(
    *quotas: dict[str, Any], refuse: Callable[[dict[str, Any]], LauncherError | None] = lambda _: None, **options: Any
) -> list[str]:
    """Return for what a run waits where a namespace has these quotas."""

    def create(pod: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
        assert dry_run
        if error := refuse(pod):
            raise error
        return pod

    cluster = SimpleNamespace(namespace="n", description=lambda: "namespace n", create=create, listed_if_any=lambda _: quotas)
    return [words for words, _ in admission.check(cast("Cluster", cluster), pod_sets(**options))]


@pytest.mark.parametrize("gang", [{}, {"gang": "jobset"}])
def test_every_pod_of_the_run_is_asked_about_as_its_controller_makes_it(gang: dict[str, str]) -> None:
    found = pod_sets(**gang)
    assert {pod_set.name: pod_set.count for pod_set in found if not pod_set.optional} == {"chief": 1, "ps": 1, "worker": 3}
    assert [pod_set.name for pod_set in found if pod_set.optional] == ["tensorboard", HELPER]
    owners = [pod_set.pod["metadata"]["ownerReferences"][0]["kind"] for pod_set in found[:-1]]
    assert sorted(owners) == ["Job", "Job", "Job", "ReplicaSet"]


def test_a_run_whose_tasks_are_larger_than_a_quota_is_refused_and_one_that_has_to_wait_is_told(golden: Golden) -> None:
    # Tasks take 8 cores and 16Gi, TensorBoard a little more.
    fits = {"requests.cpu": "9", "memory": "17Gi", "pods": "6", "count/jobs.batch": "2"}
    assert checked(quota(fits, {"count/jobs.batch": "3"})) == []
    with pytest.raises(
        LauncherError, match=r"its tasks take 8 of requests.cpu in all, and the quota small allows 7.5; its tasks take 5 of pods"
    ) as told:
        checked(quota({"requests.cpu": "7500m", "pods": "4"}))
    assert "have the quota raised" in told.value.remedy
    golden(*checked(quota({"requests.cpu": "8"})))
    golden(*checked(quota({"memory": "20Gi"}, {"memory": "8Gi"})))
    assert checked(quota({"pods": "1"}, scopes=["BestEffort"])) == []
    assert checked(quota({"memory": "5Ei"})) == []


def test_what_fills_a_quota_exactly_fits() -> None:
    tenths = {role: {**one, "cpu": 0.1} for role, one in ROLES.items()}
    pods = [pod_set for pod_set in pod_sets(roles=tenths) if pod_set.name == "worker"]
    taken = {name: 3 * value for name, value in admission._usage(pods[0].pod).items()}
    assert taken["requests.cpu"] > 0.3
    assert list(admission._over_limit(quota({"requests.cpu": "300m"}), taken)) == []


def test_all_that_is_refused_is_told_at_once_and_what_is_merely_used_up_is_not() -> None:
    refuse = refusing(
        {
            "worker": "failed quota: small: must specify limits.cpu for: trainer",
            "ps": "maximum cpu usage per Container is 500m, but limit is 1",
            "chief": "exceeded quota: small, requested: pods=1, used: pods=3, limited: pods=3",
        }
    )
    with pytest.raises(LauncherError) as told:
        checked(refuse=refuse)
    assert "worker: failed quota" in told.value.message
    assert "ps: maximum cpu usage" in told.value.message
    assert "exceeded" not in told.value.message
    assert "give every role cpu and memory" in told.value.remedy


def test_what_a_run_can_do_without_is_told_and_keeps_none_from_starting() -> None:
    limits = "minimum cpu usage per Container is 250m, but request is 100m"
    mesh = 'admission webhook "inject.mesh" does not support dry run'
    assert checked(refuse=refusing({"housekeeping": limits, "tensorboard": limits, "chief": mesh})) == [
        f"tensorboard: {limits}",
        f"{HELPER}: {limits}",
    ]


def test_an_api_server_that_does_not_answer_refuses_nothing() -> None:
    with pytest.raises(UnreachableError):
        checked(refuse=lambda _: UnreachableError("checking Pod x: the cluster does not answer"))


def refusing(words: dict[str, str]) -> Callable[[dict[str, Any]], LauncherError | None]:
    """Return what refuses pods of some components with these words."""

    def refuse(pod: dict[str, Any]) -> LauncherError | None:
        who = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        return LauncherError(words[who]) if who in words else None

    return refuse


def test_one_who_may_make_no_pods_is_not_kept_from_starting_a_run() -> None:
    assert checked(refuse=lambda _: ForbiddenError("ada may not create pods", "", "")) == []


def test_what_the_launchers_own_pod_takes_can_be_set() -> None:
    *_, helper = pod_sets(helper={"cpu": 0.5, "memory": "1Gi"})
    amounts = {"cpu": "500m", "memory": "1Gi"}
    assert helper.pod["spec"]["containers"][0]["resources"] == {"requests": amounts, "limits": amounts}


def test_what_pods_name_and_is_not_there_is_told_with_what_makes_it() -> None:
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
    wanted = [admission.PodSet(words, 1, {"spec": pod}) for words in ("chief", "worker")]

    def has(kind: str, name: str) -> bool:
        if name == "hidden":
            raise ForbiddenError(f"ada may not get {kind}", "", "")
        return False

    cluster = cast("Cluster", SimpleNamespace(has=has, description=lambda: "namespace n"))
    mine = {"kind": "ConfigMap", "metadata": {"name": "mine"}}
    told = dict(admission.missing_references(cluster, wanted, [mine]))
    assert [words.split(" in ")[0] for words in told] == [
        "there is no claim digits",
        "there is no ConfigMap settings",
        "there is no Secret tracking",
        "there is no Secret registry",
    ]
    assert all(words.endswith("and chief and worker cannot start without it") for words in [*told][:-1])
    assert "kubectl create secret generic tracking" in [*told.values()][-2]
    assert "kubectl create secret docker-registry registry" in [*told.values()][-1]


def test_an_attendant_is_asked_about_without_the_account_that_is_made_with_it() -> None:
    (own,) = [pod_set for pod_set in pod_sets(attendant=True) if pod_set.name == "attendant"]
    assert own.count == 1
    assert "serviceAccountName" not in own.pod["spec"]
    (others,) = [pod_set for pod_set in pod_sets(attendant={"service_account": "robot"}) if pod_set.name == "attendant"]
    assert others.pod["spec"]["serviceAccountName"] == "robot"
