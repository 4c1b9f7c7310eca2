"""Diagnosis of a pod that must be on the node of the run's volume and does not start. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence

from launcher.backend.kubernetes import diagnosis
from launcher.backend.kubernetes.client import claims_of
from launcher.backend.kubernetes.diagnosis import Diagnosis
from launcher.backend.kubernetes.object_fields import Object, condition_entry, is_active, is_being_deleted, label, node_of, phase
from launcher.render.kubernetes.objects import COMPONENT_LABEL, HELPER_POD, TENSORBOARD, VOLUME_LABEL

# Annotation of a claim: the node for which the scheduler had its volume provisioned. https://kubernetes.io/docs/reference/labels-annotations-taints/
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
# Annotation of a claim: the provisioner of its volume, set by the volume controller.
_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
# Provisioners whose volumes are on the node itself, and are lost with it.
NODE_LOCAL = r"local-path|no-provisioner|hostpath|topolvm|local\.csi|openebs\.io/local"
_NODE_LOCAL = re.compile(NODE_LOCAL)
_NODE_AFFINITY_CONFLICT = re.compile(r"volume node affinity conflict|match PersistentVolume's node affinity")
_AFFINITY_UNMET = "match pod affinity rules"
_MULTI_ATTACH = re.compile(r"[Mm]ulti-?[Aa]ttach error")
_USED_BY = re.compile(r"already used by pod\(s\) (.+)")


def diagnose(
    pod: Object, pods: Sequence[Object], claims: Sequence[Object], events: Iterable[Object], *, leader_completed: bool = False
) -> Diagnosis | None:
    """Return the reason why a waiting pod is not on the node of its volume; None if it waits for something else, or the node is not known.

    `pods` and `claims` are the run's, `events` those about the pod; `leader_completed` is whether the leader has succeeded.
    """
    if phase(pod) != "Pending":
        return None
    message = _scheduling_message(pod)
    if _NODE_AFFINITY_CONFLICT.search(message):
        claim = _selected_node_annotations(pod, claims)
        return _on_its_node(claim[_SELECTED_NODE], claim.get(_PROVISIONER, ""), pods, message) if claim else None
    if _AFFINITY_UNMET in message and label(pod, VOLUME_LABEL):
        return _diagnose_affinity(pod, pods, message, leader_completed=leader_completed)
    held = [event for event in diagnosis.failed_attachments(events) if _MULTI_ATTACH.search(str(event.get("message", "")))]
    found = [_attachment_problem(pod, pods, claims, event) for event in held]
    messages, remedies = ("; ".join(dict.fromkeys(pair[part] for pair in found)) for part in (0, 1))
    return Diagnosis("storage", messages, remedies) if found else None


def has_no_affinity_target(pod: Object, pods: Iterable[Object]) -> bool:
    """Return whether a pod's affinity to pods of the volume cannot be met: none of the run's `pods` has a node or will get one before it."""
    others = [other for other in pods if is_active(other) and other["metadata"]["name"] != pod["metadata"]["name"]]
    mounting = [other for other in others if _is_affinity_target(other)]
    # Pods that only wait for each other have none to follow.
    return _AFFINITY_UNMET in _scheduling_message(pod) and all(_AFFINITY_UNMET in _scheduling_message(other) for other in mounting)


def _on_its_node(node: str, provisioner: str, pods: Sequence[Object], message: str) -> Diagnosis:
    if not _NODE_LOCAL.search(provisioner):  # a disk, which other nodes of its zone can attach; that node may no longer exist
        return Diagnosis(
            "nodes",
            f"its volume is in the zone of the node {node}, where it was created, and no node there takes it: {diagnosis.scheduler_summary(message)}",
            "add a node to that zone, or free what the pod requests on one there (kubectl get nodes -L topology.kubernetes.io/zone)",
        )
    if _is_lost(node, pods):
        return Diagnosis(
            "storage",
            f"its volume is on the node {node}, which is lost",
            "bring the node back; if it is gone for good, so is the volume: launcher down --delete-data, and start the run again",
        )
    return Diagnosis(
        "nodes",
        f"its volume is on the node {node}, which does not take it: {diagnosis.scheduler_summary(message)}",
        f"free what it asks for there, or let that node take pods again (kubectl describe node {node})",
    )


def _diagnose_affinity(pod: Object, pods: Sequence[Object], message: str, *, leader_completed: bool) -> Diagnosis | None:
    others = [other for other in pods if other is not pod and node_of(other) and _is_affinity_target(other)]
    present = list(filter(is_active, others))
    blocking = next((other for other in present if is_being_deleted(other) and _is_lost(node_of(other), pods)), None)
    if blocking is not None:
        return Diagnosis(
            "storage",
            f"the run's volume ties it to the node {node_of(blocking)}, which is lost: the pod {blocking['metadata']['name']} still counts there",
            f"`launcher wait` marks that pod as failed; or: {diagnosis.mark_failed_command(blocking)}",
        )
    if not present and leader_completed:
        return Diagnosis(
            "nodes", "the leader has ended, and no other pod shows where the run's volume can be used", _restart_remedy(pod, pods)
        )
    if not present:
        return Diagnosis("nodes", "waits for the leader, on whose node the run's volume is", "")
    node = node_of(present[0])
    return Diagnosis(
        "nodes",
        f"the run's volume ties it to the node {node}, which does not take it: {diagnosis.scheduler_summary(message)}",
        f"free what it asks for on {node}, ask for less, or let it be on another node by a claim with storage.access: ReadWriteMany",
    )


def _restart_remedy(pod: Object, pods: Iterable[Object]) -> str:
    """Return the remedy for a pod without another to follow: start one that does not follow any."""
    run = label(pod, VOLUME_LABEL)
    if any(label(one, COMPONENT_LABEL) == TENSORBOARD for one in pods):
        return f"launcher tensorboard {run} lets TensorBoard go to the volume, and this task follows it"
    return f"launcher down {run}, and launcher up again: the leader comes back with its last checkpoint, and this task follows it"


def _is_affinity_target(pod: Object) -> bool:
    """Return whether other pods follow a pod to its node: not a short-lived helper pod of the launcher."""
    return bool(label(pod, VOLUME_LABEL)) and label(pod, COMPONENT_LABEL) != HELPER_POD


def _attachment_problem(pod: Object, pods: Sequence[Object], claims: Sequence[Object], event: Object) -> tuple[str, str]:
    """Return message and remedy for an event that another node has a volume of the pod."""
    volume, all_claims = diagnosis.volume_of(event), _claims(pod)
    bound = {claim["metadata"]["name"] for claim in claims if claim.get("spec", {}).get("volumeName") == volume}
    own_claims = all_claims & bound or all_claims
    subject = f"its volume {min(all_claims & bound, default=volume)}" if len(all_claims) > 1 else "its volume"
    if users := _USED_BY.search(str(event.get("message", ""))):
        names = {one["metadata"]["name"] for one in pods}
        if not names & set(re.split(r"[ ,]+", users[1])):  # of another run, or not of a run at all
            return f"{subject} is in use on another node, by {users[1]}", "it is free when that pod has ended"
    nodes = [
        node_of(other) for other in pods if other is not pod and own_claims & _claims(other) and node_of(other) not in {"", node_of(pod)}
    ]
    if not nodes:
        remedy = (
            "Kubernetes detaches it some six minutes after it has lost a node; kubectl get volumeattachments names the node, and kubectl delete node "
            "NODE detaches it at once, if the node is gone for good"
        )
        return f"{subject} is still attached to a node without pods of the run, perhaps a lost one", remedy
    node = nodes[-1]
    if not _is_lost(node, pods):
        return f"{subject} is in use on the node {node}", "it is free when the pod there has ended"
    remedy = (
        f"Kubernetes detaches it some six minutes after it has lost the node; at once: kubectl taint node {node} "
        f"node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, or kubectl delete node {node}"
    )
    return f"{subject} is still attached to the node {node}, which is lost", remedy


def _scheduling_message(pod: Object) -> str:
    scheduled = condition_entry(pod, "PodScheduled")
    return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else ""


def _selected_node_annotations(pod: Object, claims: Iterable[Object]) -> Mapping[str, str]:
    """Return the annotations of the pod's claim whose volume was provisioned for a node; empty if none was."""
    wanted = _claims(pod)
    annotations = (claim["metadata"].get("annotations") or {} for claim in claims if claim["metadata"]["name"] in wanted)
    return next((one for one in annotations if one.get(_SELECTED_NODE)), {})


def _claims(pod: Object) -> set[str]:
    return set(claims_of(pod.get("spec", {})).values())


def _is_lost(node: str, pods: Iterable[Object]) -> bool:
    """Return whether a pod of the run shows that the node is lost: the node does not answer."""
    return any(node_of(one) == node and diagnosis.is_unresponsive(one) for one in pods)
