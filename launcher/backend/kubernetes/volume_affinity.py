"""The reason why a pod that has to be on the node of the run's volume does not start: the node, and the remedy. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.backend.kubernetes import diagnosis
from launcher.backend.kubernetes.client import claims_of
from launcher.backend.kubernetes.diagnosis import Diagnosis
from launcher.render.kubernetes.objects import COMPONENT, HOUSEKEEPING, TENSORBOARD, VOLUME_LABEL

Object = Mapping[str, Any]

# Annotation of a claim: the node for which the scheduler had its volume made. https://kubernetes.io/docs/reference/labels-annotations-taints/
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
# Annotation of a claim: the provisioner of its volume, noted by the controller of volumes.
_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
# Provisioners whose volumes are of the node itself, and are lost with it.
NODE_LOCAL = r"local-path|no-provisioner|hostpath|topolvm|local\.csi|openebs\.io/local"
_OF_THE_NODE = re.compile(NODE_LOCAL)
_ELSEWHERE = re.compile(r"volume node affinity conflict|match PersistentVolume's node affinity")
_AFFINITY_UNMET = "match pod affinity rules"
_ATTACHED = re.compile(r"[Mm]ulti-?[Aa]ttach error")
_USED_BY = re.compile(r"already used by pod\(s\) (.+)")
_MARK_FAILED = 'kubectl patch pod {0} --subresource=status --type=merge -p \'{{"status":{{"phase":"Failed"}}}}\''


def of_pod(
    pod: Object, pods: Sequence[Object], claims: Sequence[Object], events: Iterable[Object], *, leader_completed: bool = False
) -> Diagnosis | None:
    """Return the reason why a waiting pod is not on the node of its volume; None if it waits for something else, or the node is not known.

    `pods` and `claims` are the run's, `events` those about the pod; `leader_completed` says that the leader has ended well.
    """
    if pod.get("status", {}).get("phase") != "Pending":
        return None
    message = _scheduling(pod)
    if _ELSEWHERE.search(message):
        claim = _selected_node_annotations(pod, claims)
        return _on_its_node(claim[_SELECTED_NODE], claim.get(_PROVISIONER, ""), pods, message) if claim else None
    if _AFFINITY_UNMET in message and VOLUME_LABEL in (pod["metadata"].get("labels") or {}):
        return _of_affinity(pod, pods, message, leader_completed=leader_completed)
    held = [event for event in diagnosis.failed_attachments(events) if _ATTACHED.search(str(event.get("message", "")))]
    found = [_attached(pod, pods, claims, event) for event in held]
    messages, remedies = ("; ".join(dict.fromkeys(one[part] for one in found)) for part in (0, 1))
    return Diagnosis("storage", messages, remedies) if found else None


def waits_for_none(pod: Object, pods: Iterable[Object]) -> bool:
    """Return whether a pod waits to be put beside others of the run's volume, and none of `pods`, the run's, is there or is to come first."""
    there = [
        one
        for one in pods
        if one.get("status", {}).get("phase") in {"Running", "Pending"} and one["metadata"]["name"] != pod["metadata"]["name"]
    ]
    mounting = [one for one in there if _is_followed(one)]
    # Those that wait for each other wait for none.
    return _AFFINITY_UNMET in _scheduling(pod) and all(_AFFINITY_UNMET in _scheduling(one) for one in mounting)


def _on_its_node(node: str, provisioner: str, pods: Sequence[Object], message: str) -> Diagnosis:
    if not _OF_THE_NODE.search(provisioner):  # a disk, which other nodes of its zone attach; that node may be gone for long
        return Diagnosis(
            "nodes",
            f"its volume is in the zone of the node {node}, where it was made, and no node there takes it: {diagnosis.unschedulable(message)}",
            "another node of that zone will do: add one, or free what it asks for on one (kubectl get nodes -L topology.kubernetes.io/zone)",
        )
    if _is_lost(node, pods):
        return Diagnosis(
            "storage",
            f"its volume is on the node {node}, which is lost",
            "bring the node back; if it is gone for good, so is the volume: launcher down --delete-data, and start the run again",
        )
    return Diagnosis(
        "nodes",
        f"its volume is on the node {node}, which does not take it: {diagnosis.unschedulable(message)}",
        f"free what it asks for there, or let that node take pods again (kubectl describe node {node})",
    )


def _of_affinity(pod: Object, pods: Sequence[Object], message: str, *, leader_completed: bool) -> Diagnosis | None:
    others = [one for one in pods if one is not pod and _node(one) and _is_followed(one)]
    there = [one for one in others if one.get("status", {}).get("phase") in {"Running", "Pending"}]
    held = next((one for one in there if one["metadata"].get("deletionTimestamp") and _is_lost(_node(one), pods)), None)
    if held is not None:
        name = held["metadata"]["name"]
        return Diagnosis(
            "storage",
            f"the run's volume ties it to the node {_node(held)}, which is lost: the pod {name} still counts there",
            f"`launcher wait` marks that pod as failed; or: {_MARK_FAILED.format(name)}",
        )
    if not there and leader_completed:
        return Diagnosis("nodes", "the leader has ended, and no other pod shows where the run's volume can be used", _again(pod, pods))
    if not there:
        return Diagnosis("nodes", "waits for the leader, on whose node the run's volume is", "")
    node = _node(there[0])
    return Diagnosis(
        "nodes",
        f"the run's volume ties it to the node {node}, which does not take it: {diagnosis.unschedulable(message)}",
        f"free what it asks for on {node}, ask for less, or let it be on another node by a claim with storage.access: ReadWriteMany",
    )


def _again(pod: Object, pods: Iterable[Object]) -> str:
    """Return the command that starts a pod without another to follow, in words: it chooses a node."""
    run = pod["metadata"]["labels"][VOLUME_LABEL]
    if any((one["metadata"].get("labels") or {}).get(COMPONENT) == TENSORBOARD for one in pods):
        return f"launcher tensorboard {run} lets TensorBoard go to the volume, and this task follows it"
    return f"launcher down {run}, and launcher up again: the leader comes back with its last checkpoint, and this task follows it"


def _is_followed(pod: Object) -> bool:
    """Return whether other pods follow a pod to its node: not one with which the launcher reads the volume, which is gone in a moment."""
    labels = pod["metadata"].get("labels") or {}
    return VOLUME_LABEL in labels and labels.get(COMPONENT) != HOUSEKEEPING


def _attached(pod: Object, pods: Sequence[Object], claims: Sequence[Object], event: Object) -> tuple[str, str]:
    """Return a message that another node has a volume of a pod, as an event says, and the remedy."""
    volume, all_claims = diagnosis.volume_of(event), _claims(pod)
    bound = {one["metadata"]["name"] for one in claims if one.get("spec", {}).get("volumeName") == volume}
    own_claims = all_claims & bound or all_claims
    its = f"its volume {min(all_claims & bound, default=volume)}" if len(all_claims) > 1 else "its volume"
    if users := _USED_BY.search(str(event.get("message", ""))):
        names = {one["metadata"]["name"] for one in pods}
        if not names & set(re.split(r"[ ,]+", users[1])):  # of another run, or somebody else's
            return f"{its} is in use on another node, by {users[1]}", "it is free when that pod has ended"
    nodes = [_node(one) for one in pods if one is not pod and own_claims & _claims(one) and _node(one) not in {"", _node(pod)}]
    if not nodes:
        freed = (
            "Kubernetes detaches it some six minutes after it has lost a node; kubectl get volumeattachments names the node, and kubectl delete node "
            "NODE detaches it at once where that is gone for good"
        )
        return f"{its} is still attached to a node where no pod of the run is any more, as of a node that was lost", freed
    node = nodes[-1]
    if not _is_lost(node, pods):
        return f"{its} is in use on the node {node}", "it is free when the pod there has ended"
    freed = (
        f"Kubernetes detaches it some six minutes after it has lost the node; at once: kubectl taint node {node} "
        f"node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, or kubectl delete node {node}"
    )
    return f"{its} is still attached to the node {node}, which is lost", freed


def _scheduling(pod: Object) -> str:
    conditions = {one["type"]: one for one in pod.get("status", {}).get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {})
    return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else ""


def _selected_node_annotations(pod: Object, claims: Iterable[Object]) -> Mapping[str, str]:
    """Return the annotations of the pod's claim whose volume was made for a node, none where none was."""
    wanted = _claims(pod)
    noted = (one["metadata"].get("annotations") or {} for one in claims if one["metadata"]["name"] in wanted)
    return next((one for one in noted if one.get(_SELECTED_NODE)), {})


def _claims(pod: Object) -> set[str]:
    return set(claims_of(pod.get("spec", {})).values())


def _node(pod: Object) -> str:
    return str(pod.get("spec", {}).get("nodeName") or "")


def _is_lost(node: str, pods: Iterable[Object]) -> bool:
    """Return whether a pod of the run tells that its node is lost: it does not answer, or the pod was deleted for that."""
    return any(_node(one) == node and diagnosis.is_unresponsive(one) for one in pods)
