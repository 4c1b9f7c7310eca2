"""Reads the pod template of a replica: into fields of the spec if it has them, else into an override."""

from pydantic import ValidationError

from launcher.plan.addresses import PORT, RUN_END_PORT
from launcher.render.kubernetes.objects import TRAINER_CONTAINER
from launcher.spec.kubernetes import Toleration
from launcher.spec.problems import Path, shown
from launcher.tfjob import container, pod_containers, pod_volumes
from launcher.tfjob.builder import RoleBuilder, SharedSetting
from launcher.tfjob.field_reader import LeftOut, Table, read_elsewhere, section, walk
from launcher.tfjob.pod_containers import TENSORFLOW

_POD_POLICIES = {"Always", "OnFailure", "Never"}


def _carry_over(role: RoleBuilder, path: Path) -> None:
    role.pod[str(path[-1])] = role.reader.value(path)


def _host_network(role: RoleBuilder, path: Path) -> None:
    _carry_over(role, path)
    if role.reader.boolean(path):
        message = f"carried over; every task listens on port {PORT} of its node, and a program's parent on {RUN_END_PORT}, so two tasks cannot share a node"
        role.reader.add_remark(path, message, "separate tasks by affinity, and check NetworkPolicies: they do not apply to such pods")


def _scheduler(role: RoleBuilder, path: Path) -> None:
    _carry_over(role, path)
    role.reader.add_remark(path, "carried over; the cluster must have this scheduler, and it starts the pods one by one")


def _service_account(role: RoleBuilder, path: Path) -> None:
    name = role.reader.string(path)
    if not name:
        return
    role.pod["serviceAccountName"] = name
    # The launcher's pods get no token by default.
    role.pod.setdefault("automountServiceAccountToken", True)


def _restart_policy(role: RoleBuilder, path: Path) -> None:
    policy = role.reader.string(path)
    if policy in _POD_POLICIES:
        role.template_restart_policy = policy, path
    elif policy:
        role.reader.add_problem(path, f"{shown(policy)} is not a pod's restartPolicy", "Always, OnFailure or Never", "write one of them")


def _grace(role: RoleBuilder, path: Path) -> None:
    seconds = role.reader.integer(path, 0)
    if seconds is not None:
        role.grace_period = seconds, path


def _node_selector(role: RoleBuilder, path: Path) -> None:
    selector = role.reader.mapping(path)
    labels = {key: role.reader.string((*path, key)) for key in selector}
    if selector:
        role.shared["node_selector"] = SharedSetting(labels, "nodeSelector", selector, path)


def _tolerations(role: RoleBuilder, path: Path) -> None:
    tolerations = role.reader.items(path)
    if not tolerations:
        return
    try:
        for toleration in tolerations:
            Toleration.model_validate(toleration)
    except ValidationError:
        role.pod["tolerations"] = tolerations
    else:
        role.shared["tolerations"] = SharedSetting(tolerations, "tolerations", tolerations, path)


def _pull_secrets(role: RoleBuilder, path: Path) -> None:
    names = [role.reader.name((*path, index)) for index in range(len(role.reader.items(path)))]
    secrets = [name for name in names if name is not None]
    if secrets:
        role.shared["image_pull_secrets"] = SharedSetting(secrets, "imagePullSecrets", [{"name": name} for name in secrets], path)


def _priority_class(role: RoleBuilder, path: Path) -> None:
    if name := role.reader.string(path):
        role.shared["priority_class"] = SharedSetting(name, "priorityClassName", name, path)


def _containers(role: RoleBuilder, path: Path) -> None:
    names = {index: role.reader.name((*path, index)) for index in range(len(role.reader.items(path)))}
    mains = [index for index, name in names.items() if name == TENSORFLOW]
    if len(mains) != 1:
        names_text = ", ".join(str(name) for name in names.values()) or "none"
        message = (
            f"the {role.kind} has no container called {TENSORFLOW}; it has {names_text}"
            if not mains
            else f"two containers are called {TENSORFLOW}"
        )
        role.reader.add_problem(
            path, message, f"one container called {TENSORFLOW}, as TFJob asks for", f"call the one with the program {TENSORFLOW}"
        )
    for index in names:
        below = (*path, index)
        if index in mains:
            container.read(role, below)
        else:
            pod_containers.read_sidecar(role, below)


_ADDRESS_FIELD = LeftOut("would change the pod's address in the cluster: left out", "read addresses from TF_CONFIG")
POD: Table[RoleBuilder] = {
    "volumes": read_elsewhere,
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
    "hostname": _ADDRESS_FIELD,
    "subdomain": _ADDRESS_FIELD,
    "setHostnameAsFQDN": _ADDRESS_FIELD,
    "priority": LeftOut("follows from the priority class, and is left out", "name the class: `kubernetes.priority_class`"),
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


# Labels with these prefixes name the PodGroup of Volcano that TFJob's operator created.
_POD_GROUP_PREFIXES = ("scheduling.k8s.io/", "scheduling.volcano.sh/")
# An annotation about the task's container by its name, as key or as value -> the same with its new name.
_APPARMOR = "container.apparmor.security.beta.kubernetes.io"
_CONTAINER_KEYS = {f"{_APPARMOR}/{TENSORFLOW}": f"{_APPARMOR}/{TRAINER_CONTAINER}"}
_CONTAINER_VALUES = ("kubectl.kubernetes.io/default-container", "kubectl.kubernetes.io/default-logs-container")


def _labels(role: RoleBuilder, path: Path) -> None:
    labels = role.reader.labels(path)
    for key in labels:
        if key.startswith(_POD_GROUP_PREFIXES):
            message = "carried over; the PodGroup that it names must exist, and TFJob's operator does not create it any more"
            role.reader.add_remark((*path, key), message, "create the PodGroup, or remove this and schedulerName from the override")
    if labels:
        role.metadata[str(path[-1])] = {
            _CONTAINER_KEYS.get(key, key): TRAINER_CONTAINER if key in _CONTAINER_VALUES and value == TENSORFLOW else value
            for key, value in labels.items()
        }


_OBJECT_METADATA = ("name", "generateName", "namespace", "creationTimestamp", "finalizers", "ownerReferences")
METADATA: Table[RoleBuilder] = {
    "labels": _labels,
    "annotations": _labels,
    **dict.fromkeys(_OBJECT_METADATA, LeftOut("means nothing in a pod template, and is left out")),
}


def _spec(role: RoleBuilder, path: Path) -> None:
    # Volumes first: containers refer to them.
    pod_volumes.read(role, (*path, "volumes"))
    walk(path, POD, role)


TEMPLATE: Table[RoleBuilder] = {"metadata": section(METADATA), "spec": _spec}
