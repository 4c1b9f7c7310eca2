"""Storage classes, and whether one offers volumes for many nodes, for checks of `doctor` and `up` before a run needs it."""

import re
from collections.abc import Mapping
from typing import Any

from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.volume_affinity import NODE_LOCAL
from launcher.render.kubernetes.objects import Run
from launcher.render.kubernetes.storage import single_mount_remedy

_DEFAULT = "storageclass.kubernetes.io/is-default-class"
# Provisioners whose volumes only one node at a time can mount, in any access mode.
_ONE_NODE = re.compile(
    NODE_LOCAL
    + r"|ebs\.csi\.(?:aws|eks)|kubernetes\.io/(?:aws-ebs|gce-pd|azure-disk|cinder|vsphere-volume)|pd\.csi\.storage\.gke|disk\.csi\.azure"
    r"|cinder\.csi|(?:dobs|digitalocean)\.csi|csi\.hetzner|rbd\.csi\.ceph|csi\.vsphere"
)
# Provisioners whose volumes many nodes can mount.
_MANY_NODES = re.compile(
    r"nfs|efs\.csi|filestore|cephfs|file\.csi\.azure|azure-file|longhorn|portworx|fsx|lustre|gluster|juicefs|weka|beegfs"
)


def by_name(cluster: Cluster) -> dict[str, Mapping[str, Any]]:
    """Return the cluster's storage classes by name. Raises LauncherError if the user may not list them."""
    answer = cluster.request("get", "/apis/storage.k8s.io/v1/storageclasses", action="listing storage classes")
    return {storage_class["metadata"]["name"]: storage_class for storage_class in answer.get("items") or ()}


def chosen(run: Run, classes: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the name of the class of a run's claim; None if the spec names none and the cluster has no default."""
    named = run.storage.class_ if run.storage else None
    return named or next(
        (name for name, storage_class in classes.items() if (storage_class["metadata"].get("annotations") or {}).get(_DEFAULT) == "true"),
        None,
    )


def provisioner(storage_class: Mapping[str, Any]) -> str:
    """Return the provisioner of a class's volumes."""
    return str(storage_class.get("provisioner", ""))


def offers_many_nodes(storage_class: Mapping[str, Any]) -> bool | None:
    """Return whether many nodes can mount a volume of the class; None if its provisioner is not known."""
    known = provisioner(storage_class)
    return False if _ONE_NODE.search(known) else True if _MANY_NODES.search(known) else None


def remedies(run: Run) -> str:
    """Return the remedies if many nodes must mount a run's volume, and its class does not offer ReadWriteMany."""
    return f"{single_mount_remedy(run.spec)} (then any class will do), or storage.class to one that offers ReadWriteMany"
