"""Diagnosis of a pod: why it does not run or how it ended, with a remedy. Pure.

The reasons are those that Kubernetes 1.26 to 1.34 write: kubelet (images, containers, volumes, eviction), scheduler, Job
controller and admission. An unknown reason is reported unchanged.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from launcher import images
from launcher.backend.kubernetes import node_capacity
from launcher.backend.kubernetes.object_fields import Object, condition_entry, namespace_option, node_of, true_condition
from launcher.files import json_object
from launcher.plan import role_rules
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.render.kubernetes.objects import INSTANCE_LABEL, TRAINER_CONTAINER
from launcher.runs.reasons import RESTRICTION_REMEDY, LastError, blocked_by_hardening, cause_with_output, reports_kill
from trainer.exit_codes import describe


@dataclass(frozen=True)
class Diagnosis:
    """One problem. `message` is one line of any length; `remedy` is a sentence. `final`: waiting does not help."""

    kind: str
    message: str
    remedy: str
    final: bool = False


_IMAGE = (
    "check the image's name; load it on the nodes, or put it into a registry they reach (ours: launcher image build --push NAME, and `image: NAME`), "
    "with kubernetes.image_pull_secrets if it asks"
)

# Cause in a node's message about a missing image -> remedy. The first match counts.
_IMAGE_CAUSES: tuple[tuple[str, str], ...] = (
    (r"no space left on device", "free some of the disk of {node}"),
    (r"\"localhost/", "load it on {node} (no registry is asked for this name), or push it to one that the nodes reach: launcher image build --push NAME, and `image: NAME`"),
    (r"no such host|server misbehaving|i/o timeout|connection refused|no route to host", "see that {node} reaches the registry and finds its name"),
    (r"x509|certificate", "have {node} trust the certificate of the registry"),
    (r"\b40[13]\b|unauthorized|authorization failed|denied|no basic auth", "{credentials}, if the image exists there"),
)  # fmt: skip
# Why a container waits -> (kind, remedy, final).
_WAITING: dict[str, tuple[str, str, bool]] = {
    "ImagePullBackOff": ("image", _IMAGE, False),
    "ErrImagePull": ("image", _IMAGE, False),
    "ErrImageNeverPull": ("image", "load the image on {node}, or set kubernetes.image_pull_policy to IfNotPresent", False),
    "InvalidImageName": ("image", "write the image as you would pull it", True),
    "RegistryUnavailable": ("image", "see that the nodes reach the registry", False),
    "CrashLoopBackOff": ("crash", "see its log", False),
    "CreateContainerConfigError": (
        "config",
        "create the Secret or ConfigMap that `env` or kubernetes.env_from names, with that key, in the run's namespace",
        False,
    ),
    "CreateContainerError": ("container", "see the pod's events: kubectl describe pod", False),
    "RunContainerError": ("container", "see that the image has the command", False),
}
_OWN_CONFIG = r'configmap "{run}-(?:cluster|(?:cluster|parent|code)-\w+)" not found'  # created by the run itself
# A task's message that it may not write to the run's volume.
_RUNS = rf"(?<![\w./-]){CONTAINER_RUNS}\b"
_VOLUME_DENIED = re.compile(rf"permission ?denied.*{_RUNS}|{_RUNS}.*permission ?denied", re.IGNORECASE)
_VOLUME_REMEDY = "its volume belongs to another user: set kubernetes.user to that user's id, which `launcher doctor FILE` shows"
_NOT_STARTED = "StartError"  # the reason of a container that ended without having run
NO_PYTHON = "python"  # the kind of a container's problem whose image lacks python3
# Messages of the container runtimes runc and crun about that.
_NO_PYTHON = re.compile(r"[\"`]python3[\"`]:? (?:executable file )?not found|exec: \"python3\": ")
# Reason of a failed pod -> (kind, message, remedy).
_POD: dict[str, tuple[str, str, str]] = {
    "Evicted": ("evicted", "evicted by its node", "give it `memory`, so that it is not the first to go; it is replaced"),
    "Preempting": ("evicted", "preempted by a pod of higher priority", "set kubernetes.priority_class; it is replaced"),
    "NodeLost": ("node", "its node is lost", "wait for the node, or see docs/kubernetes.md, A node lost"),
    "Shutdown": ("node", "its node was shut down", "it is replaced on another node"),
    "NodeShutdown": ("node", "its node was shut down", "it is replaced on another node"),
    "Terminated": ("node", "its node was shut down", "it is replaced on another node"),
    "UnexpectedAdmissionError": ("node", "its node could not give it the devices", "it is replaced"),
    "DeadlineExceeded": ("deadline", "limits.deadline has passed", "raise limits.deadline"),
}
# A pod that the kubelet evicts because it exceeded its limits has no DisruptionTarget, and counts as a failure.
_EXCEEDED = (
    "excess",
    "evicted: it exceeded a limit of storage",
    "let it store less, or raise the limit: sizeLimit of the volume, or ephemeral-storage in kubernetes.overrides or the namespace's LimitRange",
)
# Messages of events -> (kind, message, remedy). The first match counts.
_EVENTS: tuple[tuple[str, str, str, str], ...] = (
    (r"exceeded quota: ([\w.-]+)", "quota", "the namespace's quota {0} is used up", "free some of it, or have it raised"),
    (r"violates PodSecurity \"?([\w:.-]+)", "admission", "Pod Security {0} does not admit it", "leave out `security: image`, and what kubernetes.overrides adds"),
    (r"no PriorityClass with name ([\w.-]+)", "admission", "there is no priority class {0}", "write another kubernetes.priority_class"),
    (r"RuntimeClass \"?([\w.-]+)\"? not found", "admission", "there is no runtime class {0}", "write another kubernetes.runtime_class"),
    (r"admission webhook \"([\w.-]+)\" denied", "admission", "the cluster's webhook {0} does not admit it", "ask the cluster's administrator"),
    (r"must specify ([\w./-]+)", "quota", "the namespace wants {0} from every pod", "give every role cpu and memory"),
    (r"[Ss]torage[Cc]lass\S* \"([\w.-]+)\" not found", "storage", "there is no storage class {0}", "write another storage.class"),
    (r"no persistent volumes available.*no storage class is set", "storage", "the cluster has no default storage class", "write storage.class"),
    (r"[Mm]ulti-?[Aa]ttach error", "storage", "its volume is in use on another node", "see kubectl get volumeattachments; it is free when the pod there has ended"),
    (r"secret \"([\w.-]+)\" not found", "config", "there is no Secret {0}", "create it in the run's namespace"),
    (r"configmap \"([\w.-]+)\" not found", "config", "there is no ConfigMap {0}", "create it in the run's namespace"),
    (r"(?:MountVolume|AttachVolume)\S* failed for volume \"([\w.-]+)\"\s*((?s:.*))", "storage", "its volume {0} cannot be mounted{1}", "see its events: kubectl describe pod"),
)  # fmt: skip
# Messages of provisioners that offer only volumes for one node: those of AWS, Google, Azure, Ceph RBD, DigitalOcean, Rancher's local path, in-tree ones.
_NOT_SHARED = re.compile(
    r"MULTI_NODE_MULTI_WRITER|multi(?: writer|[ -]node access mode)|only supports? (?:ReadWriteOnce|SINGLE_NODE)|SINGLE_NODE_WRITER is supported"
    r"|AccessModes ?\[(?:ReadWriteOnce|ReadWriteMany)\]|access mode (?:\w+ )?ReadWriteMany is not supported",
    re.IGNORECASE,
)
_RWX_REMEDY = (
    "delete the run with its claim (launcher down --delete-data), and set storage.mount to one, where a chief leads, or storage.class to a class that "
    "offers ReadWriteMany"
)
_VOLUME_ELSEWHERE = "the volume is on another node: free that one, or use ReadWriteMany"
_VOLUME = re.compile(r'for volume "([^"]+)"')
_UNSCHEDULABLE = re.compile(r"(\d+/\d+ nodes) are available: (.*)", re.DOTALL)


def diagnose_pod(pod: Object, events: Iterable[Object] = (), nodes: Sequence[Object] = ()) -> Diagnosis | None:
    """Return the problem of a pod, or None. `events` are those about the pod itself, `nodes` the cluster's, if they are known."""
    status = pod.get("status", {})
    found = _diagnose_failed_pod(pod) or _diagnose_containers(pod)
    if found is not None:
        return found
    if status.get("phase") == "Pending":
        return _diagnose_scheduling(pod, nodes) or diagnose_events(events)
    return _diagnose_node(pod)


def diagnose_events(events: Iterable[Object]) -> Diagnosis | None:
    """Return the problem that the newest known warning reports: of a Job that cannot create pods, of a claim without a volume, of a mount."""
    listed = list(events)
    failed = failed_attachments(listed)
    resolved = [event for event in listed if event.get("reason") == "FailedAttachVolume" and event not in failed]
    warnings = sorted((event for event in listed if event.get("type") == "Warning" and event not in resolved), key=event_time, reverse=True)
    for event in warnings:
        text = str(event.get("message", ""))
        for pattern, kind, message, remedy in _EVENTS:
            if match := re.search(pattern, text):
                return Diagnosis(kind, _line(message.format(*match.groups())), remedy)
    for event in warnings:
        if event.get("reason") in {"FailedCreate", "FailedMount", "FailedAttachVolume", "ProvisioningFailed", "FailedScheduling"}:
            return Diagnosis("event", f"{event['reason']}: {_line(str(event.get('message', '')))}", "see kubectl get events")
    return None


def failed_attachments(events: Iterable[Object]) -> list[Object]:
    """Return for each volume of a pod the last event of attaching it, if that failed; a later success has an event too."""
    last: dict[str, Object] = {}
    for event in sorted(events, key=lambda event: (event_time(event), event.get("reason") == "SuccessfulAttachVolume")):
        if event.get("reason") in {"FailedAttachVolume", "SuccessfulAttachVolume"}:
            last[volume_of(event)] = event
    return [event for event in last.values() if event["reason"] == "FailedAttachVolume"]


def volume_of(event: Object) -> str:
    """Return the name of the volume that an event is about, empty if it names none."""
    found = _VOLUME.search(str(event.get("message", "")))
    return found[1] if found else ""


def diagnose_claim(claim: Object, events: Iterable[Object] = ()) -> Diagnosis | None:
    """Return why a claim has no volume, or None when it has one or waits for its first pod."""
    if claim.get("status", {}).get("phase") == "Bound":
        return None
    listed = list(events)
    if any(event.get("reason") == "WaitForFirstConsumer" for event in listed) and not diagnose_events(listed):
        return None
    name = claim.get("metadata", {}).get("name", "")
    spec = claim.get("spec", {})
    of_class, modes = spec.get("storageClassName") or "the default class", spec.get("accessModes", [])
    if "ReadWriteMany" in modes and any(_NOT_SHARED.search(str(event.get("message", ""))) for event in listed):
        return Diagnosis(
            "storage", f"the claim {name} asks for ReadWriteMany, which the storage class {of_class} does not offer", _RWX_REMEDY
        )
    if found := diagnose_events(listed):
        return found
    remedy = (
        f"see that the storage class offers this access mode; if not: {_RWX_REMEDY}"
        if "ReadWriteMany" in modes
        else "see kubectl describe pvc"
    )
    return Diagnosis("storage", f"the claim {name} has no volume yet ({of_class}, {', '.join(modes)})", remedy)


def has_exceeded_limits(pod: Object) -> bool:
    """Return whether a pod was evicted because it exceeded its limits: then the kubelet sets no DisruptionTarget."""
    status = pod["status"]
    return status.get("reason") == "Evicted" and not true_condition(pod, "DisruptionTarget") and "exceed" in str(status.get("message"))


def _diagnose_failed_pod(pod: Object) -> Diagnosis | None:
    status = pod.get("status", {})
    if status.get("phase") != "Failed":
        return None
    reason = status.get("reason", "")
    if reason in _POD:
        kind, message, remedy = _EXCEEDED if has_exceeded_limits(pod) else _POD[reason]
        return Diagnosis(kind, message + _because(status.get("message")), remedy)
    return diagnose_disruption(pod)


def diagnose_disruption(pod: Object) -> Diagnosis | None:
    """Return the problem of a pod that was evicted, preempted or drained; None for others."""
    target = true_condition(pod, "DisruptionTarget")
    if target is None:
        return None
    message = f"disrupted: {target.get('reason', '')}" + _because(target.get("message"))
    return Diagnosis("evicted", message, "it is replaced; this does not count")


def _has_hardened_user_image(pod: Object, container: str) -> bool:
    """Return whether a container is hardened and runs the user's own image."""
    spec: Object = next((candidate for candidate in pod.get("spec", {}).get("containers", []) if candidate.get("name") == container), {})
    return bool(spec.get("securityContext", {}).get("readOnlyRootFilesystem")) and not images.is_trainer_image(str(spec.get("image")))


def task_container(pod: Object) -> Object:
    """Return the status of the container that runs a pod's task; empty before it exists.

    The kubelet sorts containers by name, and `kubernetes.overrides` or an admission webhook may have added some.
    """
    statuses: Sequence[Object] = pod.get("status", {}).get("containerStatuses") or ({},)
    return next((status for status in statuses if status.get("name") == TRAINER_CONTAINER), statuses[0])


def _diagnose_containers(pod: Object) -> Diagnosis | None:
    status = pod.get("status", {})
    task = task_container(pod)
    init_statuses = status.get("initContainerStatuses", [])
    own = sorted(status.get("containerStatuses", []), key=lambda container: container is not task)
    has_run = any(container.get("state", {}).keys() & {"running", "terminated"} for container in own)
    # A sidecar is ended after the task, with any exit code.
    for container in own if has_run else [*init_statuses, *own]:
        state = container.get("state", {})
        waiting, terminated = state.get("waiting", {}), state.get("terminated", {})
        never_ran = waiting or (terminated if terminated.get("reason") == _NOT_STARTED else {})
        if _NO_PYTHON.search(str(never_ran.get("message"))):
            return Diagnosis(NO_PYTHON, role_rules.NO_PYTHON, role_rules.NO_PYTHON_REMEDY, final=True)
        if blocked_by_hardening(str(waiting.get("message"))):
            return Diagnosis("restricted", f"{waiting.get('reason')}{_because(waiting['message'])}", RESTRICTION_REMEDY)
        if waiting.get("reason") in _WAITING:
            return _diagnose_waiting(pod, waiting, str(container.get("image") or ""))
        if terminated.get("reason") == "OOMKilled":
            return Diagnosis("memory", "OOMKilled: it took more memory than its limit", "raise the role's `memory`")
        code = terminated.get("exitCode", 0)
        if code:
            last = _last_line(terminated.get("message"))
            if container is not task:
                name = container.get("name")
                kind = "sidecar" if name in _sidecars(pod) else "init container" if container in init_statuses else "container"
                message = f"its {kind} {name} ended with exit code {code}" + (f": {last}" if last else "")
                return Diagnosis(
                    "exit", message, f"see its log: kubectl logs {pod.get('metadata', {}).get('name')}{namespace_option(pod)} -c {name}"
                )
            meaning = describe(code)
            suffix = "" if meaning.endswith(str(code)) else f", {meaning}"
            message = f"exit code {code}{suffix}" + (f": {last}" if last else "")
            failed = _failed_event(str(terminated.get("message") or "").splitlines())
            if failed is not None and reports_kill(failed):
                return Diagnosis("memory", message, "raise the role's `memory`, if it ran out of that")
            return _diagnose_exit_code(pod, str(container.get("name")), message, last)
    return None


def _diagnose_exit_code(pod: Object, container: str, message: str, last: str) -> Diagnosis:
    """Return why a container failed; `last` is the last line of its output."""
    if _VOLUME_DENIED.search(last):
        return Diagnosis("volume", message, _VOLUME_REMEDY)
    if _has_hardened_user_image(pod, container) and blocked_by_hardening(last):
        return Diagnosis("restricted", message, RESTRICTION_REMEDY)
    return Diagnosis("exit", message, "see its log")


def _diagnose_waiting(pod: Object, waiting: Object, image: str) -> Diagnosis:
    """Return why a container waits; for an image with the node, since other nodes may have it."""
    kind, remedy, final = _WAITING[waiting["reason"]]
    node, message = node_of(pod), str(waiting.get("message") or image)
    run = str((pod.get("metadata", {}).get("labels") or {}).get(INSTANCE_LABEL, ""))
    if run and re.search(_OWN_CONFIG.format(run=re.escape(run)), message):
        return Diagnosis("deleted", f"{waiting['reason']}{_because(message)}", f"it was deleted: {recreate_remedy(run)}")
    if kind == "image":
        remedies = (text for cause, text in _IMAGE_CAUSES if re.search(cause, message, re.IGNORECASE))
        remedy = next(remedies, remedy).format(node=node or "its node", credentials=_credentials(pod))
    on_node = f" on {node}" if kind == "image" and node else ""
    return Diagnosis(kind, f"{waiting['reason']}{on_node}{_because(message)}", remedy, final=final)


def _credentials(pod: Object) -> str:
    """Return the remedy if a registry wants other credentials than the pod has."""
    names = [str(secret.get("name")) for secret in pod.get("spec", {}).get("imagePullSecrets") or ()]
    if not names:
        return "name a Secret with the registry's credentials in kubernetes.image_pull_secrets"
    which = f"the Secret {names[0]} is" if len(names) == 1 else f"one of the Secrets {', '.join(names)} is"
    return f"see that {which} in the run's namespace and has the credentials of this registry (kubernetes.image_pull_secrets)"


def recreate_remedy(run: str) -> str:
    """Return the remedy if an object of a run was deleted."""
    return f"`launcher down {run} --on kubernetes` and another `up` create everything again and resume from the last checkpoint"


def _sidecars(pod: Object) -> set[str]:
    """Return the names of the init containers that run beside the task."""
    return {
        str(container["name"])
        for container in pod.get("spec", {}).get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    }


def is_unschedulable(pod: Object) -> bool:
    """Return whether the scheduler has found no node for a pod."""
    return bool(condition_entry(pod, "PodScheduled").get("reason") == "Unschedulable")


def _diagnose_scheduling(pod: Object, nodes: Sequence[Object]) -> Diagnosis | None:
    scheduled = condition_entry(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    if scheduled.get("reason") == "SchedulingGated":
        return Diagnosis("queue", "waits to be admitted by its queue", "see kubectl get workloads")
    message = str(scheduled.get("message", ""))
    if lacking := re.search(r'persistentvolumeclaim "([^"]*)" not found', message):
        return Diagnosis("storage", f"there is no claim {lacking[1]}", "create it: kubectl apply -f CLAIM.yaml")
    if "unbound immediate PersistentVolumeClaims" in message:
        return Diagnosis("storage", "its volume is not provisioned yet", "see kubectl describe pvc")
    if not _UNSCHEDULABLE.search(message):
        return Diagnosis("nodes", _line(message) or "no node takes it", "see kubectl describe pod")
    summary = scheduler_summary(message)
    return Diagnosis("nodes", summary, "; ".join(node_capacity.unmet_pod_requirements(pod, nodes)) or _remedy_for_nodes(summary))


def scheduler_summary(message: str) -> str:
    """Return the scheduler's reasons why no node takes a pod, in one line."""
    match = _UNSCHEDULABLE.search(message)
    if match is None:
        return _line(message)
    why = match[2].partition(". preemption:")[0].partition(". no new claims")[0].strip().rstrip(".")
    summary = re.sub(r"\bInsufficient\b", "insufficient", why)
    total = match[1].split()[0].split("/")[1]
    summary = re.sub(rf"^{total} (?=\S[^,]*$)", "", summary)
    return _line(f"{match[1]}: {summary}")


def _remedy_for_nodes(why: str) -> str:
    table = (
        ("insufficient", "free some, or add nodes; `launcher doctor FILE` says what nodes offer"),
        ("untolerated taint", "tolerate the taint by kubernetes.tolerations, or use other nodes"),
        ("node affinity/selector", "see that a node has the labels of kubernetes.node_selector and gpu_type"),
        ("pod affinity", "see that one node has room for all that kubernetes.one_node, or a volume of one node, puts there"),
        ("volume node affinity", _VOLUME_ELSEWHERE),
        ("PersistentVolume's node affinity", _VOLUME_ELSEWHERE),  # as Kubernetes 1.34 writes it
        ("unschedulable", "wait for the nodes that are drained, or uncordon them"),
    )
    return next((remedy for pattern, remedy in table if pattern in why), "see kubectl describe pod")


def _diagnose_node(pod: Object) -> Diagnosis | None:
    """Return the problem of a running pod whose node does not answer; None for others."""
    if not is_unresponsive(pod):
        return None
    node = node_of(pod) or "?"
    remedy = f"wait for the node; if it is lost, `launcher wait` frees its pods after limits.node_lost, or: kubectl delete node {node}"
    return Diagnosis("node", f"its node {node} does not answer", remedy)


def is_unresponsive(pod: Object) -> bool:
    """Return whether the cluster reports that the node of a running pod does not answer.

    The cluster then sets the pod's Ready to false; container statuses stay as last reported. A deletion for a taint is no sign of
    this: people taint nodes too, and the pod may still be saving.
    """
    ready, containers = condition_entry(pod, "Ready"), condition_entry(pod, "ContainersReady")
    is_withdrawn = ready.get("status") == "False" and containers.get("status") == "True" and not ready.get("reason")
    return pod.get("status", {}).get("reason") == "NodeLost" or ready.get("reason") == "NodeNotReady" or is_withdrawn


def is_evicted_by_taint(pod: Object) -> bool:
    """Return whether a pod was deleted because of a taint on its node, which is lost or must not run pods."""
    return bool(condition_entry(pod, "DisruptionTarget").get("reason") == "DeletionByTaintManager")


def mark_failed_command(pod: Object) -> str:
    """Return the command that marks a pod of a lost node as failed, as a watching launcher does."""
    patch = '{"status":{"phase":"Failed"}}'
    return f"kubectl patch pod {pod['metadata']['name']}{namespace_option(pod)} --subresource=status --type=merge -p '{patch}'"


def _because(message: object) -> str:
    return f": {_line(str(message))}" if message else ""


def _line(text: str) -> str:
    return " ".join(text.split())


def _last_line(message: object) -> str:
    """Return the last error line of a container's last output: that of the trainer's `failed` event, else the last plain line."""
    lines = [line.rstrip() for line in str(message or "").splitlines() if line.strip()]
    last = LastError()
    for line in lines:
        if _trainer_event(line) is None:
            last.feed(line)
    event = _failed_event(lines)
    return _line(last.line if event is None else cause_with_output(event, last))


def _failed_event(lines: Iterable[str]) -> dict[str, Any] | None:
    """Return the trainer's last `failed` event in lines of output."""
    events = [event for line in lines if (event := _trainer_event(line)) is not None and event.get("event") == "failed"]
    return events[-1] if events else None


def _trainer_event(line: str) -> dict[str, Any] | None:
    return json_object(line) if line.startswith("{") else None


def event_time(event: Object) -> str:
    """Return when an event last occurred, in the API's format, which sorts as text."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("metadata", {}).get("creationTimestamp") or "")
