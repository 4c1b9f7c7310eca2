"""Access modes that storage classes offer, as known from their provisioners, and the remedies."""

from typing import Any

import pytest

from launcher.backend.kubernetes import storage_classes
from launcher.images import spec_image
from launcher.plan import planner
from launcher.render.kubernetes.objects import Run
from launcher.spec.models import ClusterSpec
from tests.golden_messages import Golden

DEFAULT = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
CLASSES: dict[str, Any] = {
    "disk": {"metadata": {"name": "disk"} | DEFAULT, "provisioner": "ebs.csi.aws.com"},
    "files": {"metadata": {"name": "files"}, "provisioner": "efs.csi.aws.com"},
}


def run(**sections: Any) -> Run:
    spec = ClusterSpec.model_validate({"version": 1, "name": "digits"} | sections)
    return Run(spec, planner.plan(spec, "kubernetes", run_dir="/runs/digits"), spec_image(spec))


def test_the_class_is_the_specs_or_the_default() -> None:
    assert storage_classes.chosen(run(train={"workload": "mnist"}), CLASSES) == "disk"
    assert storage_classes.chosen(run(train={"workload": "mnist"}, storage={"class": "files"}), CLASSES) == "files"
    assert storage_classes.chosen(run(train={"workload": "mnist"}), {"files": CLASSES["files"]}) is None


@pytest.mark.parametrize(
    "provisioner, offers",
    [
        ("ebs.csi.aws.com", False),
        ("pd.csi.storage.gke.io", False),
        ("rancher.io/local-path", False),
        ("rook-ceph.rbd.csi.ceph.com", False),
        ("rook-ceph.cephfs.csi.ceph.com", True),
        ("nfs.csi.k8s.io", True),
        ("filestore.csi.storage.gke.io", True),
        ("file.csi.azure.com", True),
        ("disk.csi.azure.com", False),
        ("example.com/whatever", None),
    ],
)
def test_the_provisioner_decides_whether_many_nodes_can_mount_a_volume(provisioner: str, offers: bool | None) -> None:
    assert storage_classes.offers_many_nodes({"provisioner": provisioner}) is offers


WITHOUT_CHIEF: dict[str, Any] = {"strategy": "multi_worker_mirrored", "roles": {"worker": {"replicas": 2}}}
WITH_CHIEF: dict[str, Any] = {"strategy": "multi_worker_mirrored", "roles": {"chief": {}, "worker": {"replicas": 2}}}


@pytest.mark.parametrize(
    "sections",
    [WITH_CHIEF | {"command": ["a"]}, WITHOUT_CHIEF | {"command": ["a"]}, WITHOUT_CHIEF | {"train": {"workload": "mnist_mlp"}}],
    ids=["with a chief", "without one", "a workload without one"],
)
def test_both_remedies_are_named_and_the_first_is_possible(sections: dict[str, Any], golden: Golden) -> None:
    golden(storage_classes.remedies(run(**sections)))
