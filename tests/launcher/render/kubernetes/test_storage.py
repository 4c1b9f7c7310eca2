"""The run's volume: the tasks that mount it, its claim's request, and the nodes of its pods."""

import dataclasses
from collections.abc import Callable

import pytest

from launcher.errors import UsageError
from launcher.render.kubernetes import storage
from launcher.render.kubernetes.objects import Run
from tests.launcher.render.kubernetes.conftest import CLUSTER, TRAIN, Rendered, container, pod
from tests.launcher.render.kubernetes.test_options import WORKERS, mounting

IN_STEP = "strategy: multi_worker_mirrored\nroles: {chief: {}, worker: {replicas: 2}}\n"
PROGRAM = "command: [python, train.py]\n"


@pytest.mark.parametrize(
    "spec, access",
    [
        (TRAIN, "ReadWriteOnce"),
        (CLUSTER, "ReadWriteOnce"),
        (IN_STEP + TRAIN, "ReadWriteOnce"),
        (WORKERS, "ReadWriteMany"),  # pods of one role are alike, so all of them mount what worker-0 writes
        (WORKERS.replace("replicas: 3", "replicas: 1"), "ReadWriteOnce"),
        (PROGRAM, "ReadWriteOnce"),
        (IN_STEP + PROGRAM, "ReadWriteMany"),
        ("storage: {mount: one}\n" + IN_STEP + PROGRAM, "ReadWriteOnce"),
        ("storage: {mount: all}\n" + IN_STEP + TRAIN, "ReadWriteMany"),
        ("storage: {mount: one, access: ReadWriteMany}\n" + CLUSTER, "ReadWriteMany"),
    ],
)
def test_the_claim_asks_for_as_many_nodes_as_mount_it(rendered: Rendered, spec: str, access: str) -> None:
    assert rendered(spec)["PersistentVolumeClaim", "digits"]["spec"]["accessModes"] == [access]


def test_tasks_of_a_program_without_the_volume_have_a_run_dir_of_their_own(rendered: Rendered) -> None:
    objects = rendered("storage: {mount: one}\n" + IN_STEP + PROGRAM)
    assert mounting(objects) == {"digits-chief", "digits-tensorboard"}
    for role, source in (("chief", "persistentVolumeClaim"), ("worker", "emptyDir")):
        (volume,) = [one for one in pod(objects, role)["spec"]["volumes"] if one["name"] == "run"]
        assert source in volume
        assert {"name": "run", "mountPath": "/runs"} in container(objects, role)["volumeMounts"]
    assert not [one for one in pod(rendered(), "worker")["spec"]["volumes"] if one["name"] == "run"]  # the trainer writes nothing there


def test_a_claim_that_is_there_keeps_its_mode(made: Callable[[str], Run]) -> None:
    kept = dataclasses.replace(made(CLUSTER), claim_access="ReadWriteMany")
    assert storage.claim(kept)[0]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert storage.volume_affinity(kept, "chief") == {}
    narrow = dataclasses.replace(made("storage: {mount: all}\n" + CLUSTER), claim_access="ReadWriteOnce")
    with pytest.raises(
        UsageError, match="the claim digits is ReadWriteOnce, one node; the volume is mounted by chief, 2 workers"
    ) as refused:
        storage.sharing(narrow)
    assert "set storage.mount to one" in refused.value.remedy
    assert "a claim of ReadWriteMany" in refused.value.remedy
    # The spec's access of somebody else's claim holds: such as of an NFS share whose claim says less.
    said = made("storage: {access: ReadWriteMany}\n" + CLUSTER + "kubernetes: {claim: team}\n")
    assert dataclasses.replace(said, claim_access="ReadWriteOnce").access == "ReadWriteMany"
    assert dataclasses.replace(made(CLUSTER + "kubernetes: {claim: team}\n"), claim_access="ReadWriteMany").access == "ReadWriteMany"


def test_what_is_said_of_somebody_else_s_claim_is_a_way_out(made: Callable[[str], Run]) -> None:
    theirs = dataclasses.replace(made(IN_STEP + PROGRAM + "kubernetes: {claim: team}\n"), claim_access="ReadWriteOnce")
    with pytest.raises(UsageError, match="the claim team is ReadWriteOnce, one node; the volume is mounted by chief, 2 workers") as refused:
        storage.sharing(theirs)
    assert "set storage.access to ReadWriteMany, which has priority over the claim" in refused.value.remedy
    assert "--delete-data" not in refused.value.remedy


def test_those_beside_a_chief_with_gpus_tolerate_what_it_does(rendered: Rendered) -> None:
    spec = CLUSTER.replace("chief: {", "chief: {gpus: 1, ", 1)
    objects = rendered(spec)
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    board = objects["Deployment", "digits-tensorboard"]["spec"]["template"]["spec"]
    for one in (pod(objects, "chief")["spec"], pod(objects, "evaluator")["spec"], board):
        assert one["tolerations"] == [taint]
    assert "tolerations" not in pod(objects, "worker")["spec"]
    anywhere = rendered("storage: {access: ReadWriteMany}\n" + spec)
    assert "tolerations" not in pod(anywhere, "evaluator")["spec"]
    two = spec.replace("gpus: 1, ", "gpus: 1, gpu_type: A100, ").replace("evaluator: {", "evaluator: {gpus: 1, gpu_type: H100, ")
    wanted = r"different types of GPU are requested by chief \(A100\) and evaluator \(H100\)"
    with pytest.raises(UsageError, match="storage.access is ReadWriteOnce by default, one node; " + wanted) as refused:
        rendered(two)
    assert "give them one gpu_type, or set storage.access to ReadWriteMany" in refused.value.remedy
    with pytest.raises(UsageError, match="storage.access is ReadWriteOnce, one node; " + wanted):
        rendered("storage: {access: ReadWriteOnce}\n" + two)
