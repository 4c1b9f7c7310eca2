"""The pod template of a replica: what the spec has a field for, and the rest as an override."""

from pydantic import ValidationError

from launcher.spec.kubernetes import Toleration
from launcher.spec.problems import Path, shown
from launcher.tfjob import container, pod_containers, pod_volumes
from launcher.tfjob.draft import RoleDraft, Shared
from launcher.tfjob.pod_containers import MAIN
from launcher.tfjob.reading import LeftOut, Table, read_elsewhere, section, walk

_POD_POLICIES = {"Always", "OnFailure", "Never"}


def _carry_over(role: RoleDraft, path: Path) -> None:
    role.pod[str(path[-1])] = role.reading.value(path)


def _host_network(role: RoleDraft, path: Path) -> None:
    _carry_over(role, path)
    if role.reading.flag(path):
        message = "carried over; every task listens on port 2222 of its node, and a program's parent on 2224, so no two share one"
        role.reading.remark(path, message, "separate tasks by affinity, and check NetworkPolicies: they do not apply to such pods")


def _scheduler(role: RoleDraft, path: Path) -> None:
    _carry_over(role, path)
    role.reading.remark(path, "carried over; the scheduler has to be in the cluster, and starts the pods one by one")


def _service_account(role: RoleDraft, path: Path) -> None:
    name = role.reading.text(path)
    if not name:
        return
    role.pod["serviceAccountName"] = name
    # A pod of ours has no token unless it asks for it.
    role.pod.setdefault("automountServiceAccountToken", True)


def _restart_policy(role: RoleDraft, path: Path) -> None:
    policy = role.reading.text(path)
    if policy in _POD_POLICIES:
        role.policy_of_template = policy, path
    elif policy:
        role.reading.refuse(path, f"{shown(policy)} is no pod's restartPolicy", "Always, OnFailure or Never", "write one of them")


def _grace(role: RoleDraft, path: Path) -> None:
    seconds = role.reading.number(path, 0)
    if seconds is not None:
        role.grace = seconds, path


def _node_selector(role: RoleDraft, path: Path) -> None:
    given = role.reading.mapping(path)
    labels = {key: role.reading.text((*path, key)) for key in given}
    if given:
        role.shared["node_selector"] = Shared(labels, "nodeSelector", given, path)


def _tolerations(role: RoleDraft, path: Path) -> None:
    given = role.reading.items(path)
    if not given:
        return
    try:
        for one in given:
            Toleration.model_validate(one)
    except ValidationError:
        role.pod["tolerations"] = given
    else:
        role.shared["tolerations"] = Shared(given, "tolerations", given, path)


def _pull_secrets(role: RoleDraft, path: Path) -> None:
    found = [role.reading.name((*path, index)) for index in range(len(role.reading.items(path)))]
    secrets = [name for name in found if name is not None]
    if secrets:
        role.shared["image_pull_secrets"] = Shared(secrets, "imagePullSecrets", [{"name": name} for name in secrets], path)


def _priority_class(role: RoleDraft, path: Path) -> None:
    if name := role.reading.text(path):
        role.shared["priority_class"] = Shared(name, "priorityClassName", name, path)


def _containers(role: RoleDraft, path: Path) -> None:
    found = {index: role.reading.name((*path, index)) for index in range(len(role.reading.items(path)))}
    mains = [index for index, name in found.items() if name == MAIN]
    if len(mains) != 1:
        there = ", ".join(str(name) for name in found.values()) or "none"
        message = f"the {role.kind} has no container called {MAIN}; it has {there}" if not mains else f"two containers are called {MAIN}"
        role.reading.refuse(path, message, f"one container called {MAIN}, as TFJob asks for", f"call the one with the program {MAIN}")
    for index in found:
        below = (*path, index)
        if index in mains:
            container.read(role, below)
        else:
            pod_containers.read_sidecar(role, below)


def _volumes(role: RoleDraft, path: Path) -> None:
    pod_volumes.read(role, path)


_OURS = LeftOut("would take the pod's address in the cluster from it: left out", "read addresses from TF_CONFIG")
POD: Table[RoleDraft] = {
    "volumes": _volumes,
    "containers": _containers,
    "initContainers": pod_containers.read_init_containers,
    "restartPolicy": _restart_policy,
    "nodeSelector": _node_selector,
    "tolerations": _tolerations,
    "imagePullSecrets": _pull_secrets,
    "priorityClassName": _priority_class,
    "serviceAccountName": _service_account,
    "serviceAccount": _service_account,
    "hostNetwork": _host_network,
    "terminationGracePeriodSeconds": _grace,
    "schedulerName": _scheduler,
    "hostname": _OURS,
    "subdomain": _OURS,
    "setHostnameAsFQDN": _OURS,
    "priority": LeftOut("follows from the priority class, and left out", "name the class: `kubernetes.priority_class`"),
    **dict.fromkeys(
        [
            "activeDeadlineSeconds",
            "affinity",
            "automountServiceAccountToken",
            "dnsConfig",
            "dnsPolicy",
            "enableServiceLinks",
            "hostAliases",
            "hostIPC",
            "hostPID",
            "hostUsers",
            "nodeName",
            "os",
            "overhead",
            "preemptionPolicy",
            "readinessGates",
            "resourceClaims",
            "resources",
            "runtimeClassName",
            "schedulingGates",
            "securityContext",
            "shareProcessNamespace",
            "topologySpreadConstraints",
        ],
        _carry_over,
    ),
}


# By these Volcano finds the group of pods that TFJob's operator has made.
_GROUPS = ("scheduling.k8s.io/", "scheduling.volcano.sh/")


def _labels(role: RoleDraft, path: Path) -> None:
    labels = role.reading.labels(path)
    for key in labels:
        if key.startswith(_GROUPS):
            message = "carried over; the group of pods that it names has to be there, and nobody creates it any more"
            role.reading.remark((*path, key), message, "make the PodGroup, or remove this and schedulerName from the override")
    if labels:
        role.metadata[str(path[-1])] = labels


_OF_THE_JOB = LeftOut("means nothing in a pod template, and is left out")
METADATA: Table[RoleDraft] = {
    "labels": _labels,
    "annotations": _labels,
    "name": _OF_THE_JOB,
    "generateName": _OF_THE_JOB,
    "namespace": _OF_THE_JOB,
    "creationTimestamp": _OF_THE_JOB,
    "finalizers": _OF_THE_JOB,
    "ownerReferences": _OF_THE_JOB,
}


def _spec(role: RoleDraft, path: Path) -> None:
    # Volumes first: containers refer to them.
    given = role.reading.mapping(path)
    if "volumes" in given:
        _volumes(role, (*path, "volumes"))
    walk(path, {**POD, "volumes": read_elsewhere}, role)


TEMPLATE: Table[RoleDraft] = {"metadata": section(METADATA), "spec": _spec}
