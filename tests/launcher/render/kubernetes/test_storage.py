"""The run's volume: the tasks that mount it, its claim's request, and the nodes of its pods."""

import dataclasses
from collections.abc import Callable

import pytest

from launcher.errors import UsageError
from launcher.render.kubernetes import storage
from launcher.render.kubernetes.objects import Run
from tests.launcher.render.kubernetes.conftest import CLUSTER, TRAIN, Rendered, container, pod
from tests.launcher.render.kubernetes.test_options import WORKERS, mounting

MULTI_WORKER = "strategy: multi_worker_mirrored\nroles: {chief: {}, worker: {replicas: 2}}\n"
PROGRAM = "command: [python, train.py]\n"


@pytest.mark.parametrize(
    "spec, access",
    [
        (TRAIN, "ReadWriteOnce"),
        (CLUSTER, "ReadWriteOnce"),
        (MULTI_WORKER + TRAIN, "ReadWriteOnce"),
        (WORKERS, "ReadWriteMany"),  # pods of one role are alike, so all of them mount the volume that worker-0 writes
        (WORKERS.replace("replicas: 3", "replicas: 1"), "ReadWriteOnce"),
        (PROGRAM, "ReadWriteOnce"),
        (MULTI_WORKER + PROGRAM, "ReadWriteMany"),
        ("storage: {mount: one}\n" + MULTI_WORKER + PROGRAM, "ReadWriteOnce"),
        ("storage: {mount: all}\n" + MULTI_WORKER + TRAIN, "ReadWriteMany"),
        ("storage: {mount: one, access: ReadWriteMany}\n" + CLUSTER, "ReadWriteMany"),
    ],
)
def test_the_claim_requests_access_for_as_many_nodes_as_mount_it(rendered: Rendered, spec: str, access: str) -> None:
    assert rendered(spec)["PersistentVolumeClaim", "digits"]["spec"]["accessModes"] == [access]


def test_tasks_of_a_program_without_the_volume_have_their_own_run_dir(rendered: Rendered) -> None:
    objects = rendered("storage: {mount: one}\n" + MULTI_WORKER + PROGRAM)
    assert mounting(objects) == {"digits-chief", "digits-tensorboard"}
    for role, source in (("chief", "persistentVolumeClaim"), ("worker", "emptyDir")):
        (volume,) = [one for one in pod(objects, role)["spec"]["volumes"] if one["name"] == "run"]
        assert source in volume
        assert {"name": "run", "mountPath": "/runs"} in container(objects, role)["volumeMounts"]
    assert not [one for one in pod(rendered(), "worker")["spec"]["volumes"] if one["name"] == "run"]  # the trainer's workers write nothing


def test_an_existing_claim_keeps_its_access_mode(run_for: Callable[[str], Run]) -> None:
    existing = dataclasses.replace(run_for(CLUSTER), claim_access="ReadWriteMany")
    assert storage.claim(existing)[0]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert storage.volume_affinity(existing, "chief") == {}
    narrow = dataclasses.replace(run_for("storage: {mount: all}\n" + CLUSTER), claim_access="ReadWriteOnce")
    with pytest.raises(
        UsageError, match="the claim digits is ReadWriteOnce, one node; the volume is mounted by chief, 2 workers"
    ) as refused:
        storage.volume_pods(narrow)
    assert "set storage.mount to one" in refused.value.remedy
    assert "a claim of ReadWriteMany" in refused.value.remedy
    # For a claim that the spec names, the spec's access has priority: the claim of an NFS share may have a narrower mode.
    explicit = run_for("storage: {access: ReadWriteMany}\n" + CLUSTER + "kubernetes: {claim: team}\n")
    assert dataclasses.replace(explicit, claim_access="ReadWriteOnce").access == "ReadWriteMany"
    assert dataclasses.replace(run_for(CLUSTER + "kubernetes: {claim: team}\n"), claim_access="ReadWriteMany").access == "ReadWriteMany"


def test_the_remedy_for_a_claim_that_the_spec_names_does_not_delete_it(run_for: Callable[[str], Run]) -> None:
    run = dataclasses.replace(run_for(MULTI_WORKER + PROGRAM + "kubernetes: {claim: team}\n"), claim_access="ReadWriteOnce")
    with pytest.raises(UsageError, match="the claim team is ReadWriteOnce, one node; the volume is mounted by chief, 2 workers") as refused:
        storage.volume_pods(run)
    assert "set storage.access to ReadWriteMany, which has priority over the claim" in refused.value.remedy
    assert "--delete-data" not in refused.value.remedy


def test_pods_on_the_node_of_a_chief_with_gpus_tolerate_its_taint(rendered: Rendered) -> None:
    spec = CLUSTER.replace("chief: {", "chief: {gpus: 1, ", 1)
    objects = rendered(spec)
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    board = objects["Deployment", "digits-tensorboard"]["spec"]["template"]["spec"]
    for one in (pod(objects, "chief")["spec"], pod(objects, "evaluator")["spec"], board):
        assert one["tolerations"] == [taint]
    assert "tolerations" not in pod(objects, "worker")["spec"]
    shared = rendered("storage: {access: ReadWriteMany}\n" + spec)
    assert "tolerations" not in pod(shared, "evaluator")["spec"]
    two_types = spec.replace("gpus: 1, ", "gpus: 1, gpu_type: A100, ").replace("evaluator: {", "evaluator: {gpus: 1, gpu_type: H100, ")
    conflict = r"different types of GPU are requested by chief \(A100\) and evaluator \(H100\)"
    with pytest.raises(UsageError, match="storage.access is ReadWriteOnce by default, one node; " + conflict) as refused:
        rendered(two_types)
    assert "give them one gpu_type, or set storage.access to ReadWriteMany" in refused.value.remedy
    with pytest.raises(UsageError, match="storage.access is ReadWriteOnce, one node; " + conflict):
        rendered("storage: {access: ReadWriteOnce}\n" + two_types)
