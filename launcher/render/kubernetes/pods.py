"""The pod of a role's tasks: its program, its environment, its resources and its security context. Pure."""

import math
import posixpath
from collections.abc import Sequence
from typing import Any

from launcher.errors import UsageError
from launcher.plan import role_rules
from launcher.plan.container_paths import CONTAINER_CODE, CONTAINER_PARENT
from launcher.plan.models import Task
from launcher.plan.role_groups import RoleGroup
from launcher.render.kubernetes import extra_containers, storage
from launcher.render.kubernetes.configmaps import CLUSTER_KEY, cluster_name, code_name, items, parent_name
from launcher.render.kubernetes.merge import merge
from launcher.render.kubernetes.objects import (
    ATTENDANT,
    CLUSTER_LABEL,
    RESTRICTED_SECURITY_CONTEXT,
    TENSORBOARD,
    TRAINER,
    Object,
    Run,
    env,
    literal,
    pod_metadata,
    resources,
    selector,
)
from launcher.spec.kubernetes import EnvSource, Kubernetes, Volume
from launcher.spec.models import Role
from launcher.spec.names import TMP
from launcher.spec.role_programs import roles_of, volumes_of

_COMPLETION_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_EXECUTABLE = 0o555
# For so many seconds a stop lasts at least. A pod that is evicted as it has outgrown its storage gets 2 s, whatever its grace period says
# (evictPod of the kubelet's eviction_manager.go, minimumGracePeriodInSeconds of kuberuntime_manager.go): it is killed then, and counts.
_STOP_SECONDS = 4
# Parts of GPUs and shared ones (nvidia.com/mig-1g.5gb, nvidia.com/gpu.shared) are on nodes with the taint of whole ones.
_OF_NVIDIA, _GPU_TAINT = "nvidia.com/", "nvidia.com/gpu"
_PARENT = "tf-launcher"  # the volume with the parent of a command


def template(run: Run, group: RoleGroup) -> Object:
    """Return the pod template of a role, the user's overrides merged in."""
    metadata = pod_metadata(run, group.role)
    metadata["labels"] |= {CLUSTER_LABEL: run.name}
    if group.mounts_run_dir:
        metadata["labels"] |= storage.volume_labels(run)
    spec: Object = {
        "restartPolicy": "Never",
        "subdomain": run.name,
        "terminationGracePeriodSeconds": math.ceil(run.plan.grace_period),
        **(hardened(run) if group.task.is_hardened else _unhardened(run, group)),
        **_scheduling(run, group),
        **({"automountServiceAccountToken": True} if run.options.service_account else {}),
        **extra_containers.init_containers(run, group),
        "containers": [_task_container(run, group)],
        "volumes": _volumes(run, group),
    }
    return overridden(run, group.role, {"metadata": metadata, "spec": spec})


def killed_if_evicted(run: Run, group: RoleGroup) -> bool:
    """Return whether a task that is evicted for using too much is killed before it can exit 143, as one does that somebody has deleted."""
    return role_rules.has_parent(group.task) and run.plan.grace_period > _STOP_SECONDS


def may_outgrow(made: Object) -> bool:
    """Return whether a pod template says how much storage its pod may fill, beyond which the kubelet evicts it."""
    limited = [(one.get("resources") or {}).get("limits") or {} for one in made["spec"]["containers"]]
    scratch = [one.get("emptyDir") or {} for one in made["spec"].get("volumes") or ()]
    # One in memory is full at its limit, and takes no more.
    return any("ephemeral-storage" in limits for limits in limited) or any(
        "sizeLimit" in one and one.get("medium") != "Memory" for one in scratch
    )


def overridden(run: Run, component: str, made: Object) -> Object:
    """Return a pod template with what the spec overrides for all components and for this one.

    Raises UsageError where that changes a container that the pod has not.
    """
    overrides = run.options.overrides
    everywhere = overrides.all if component not in {TENSORBOARD, ATTENDANT} else {}
    merged: Object = merge(merge(made, everywhere), getattr(overrides, component))
    containers = [one for part in ("initContainers", "containers") for one in merged["spec"].get(part) or ()]
    if unknown := [str(one.get("name")) for one in containers if not one.get("image")]:
        raise UsageError(
            f"kubernetes.overrides changes what {component} does not have: the container {', '.join(unknown)}",
            "remove it there, or give it an `image`, which adds it",
        )
    return merged


def hardened(run: Run) -> Object:
    """Return the fields of a pod that Pod Security `restricted` and good sense ask for, and how its image is pulled."""
    user = run.options.user
    return _fields(run, {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, **_of_group(run)})


def _unhardened(run: Run, group: RoleGroup) -> Object:
    """Return the same of a pod whose user is its image's own, which can write to the run's volume as one of a group."""
    return _fields(run, _of_group(run) if group.mounts_run_dir else {})


def _of_group(run: Run) -> Object:
    return {"fsGroup": run.options.user, "fsGroupChangePolicy": "OnRootMismatch"}


def _fields(run: Run, user: Object) -> Object:
    fields: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    if run.options.service_account:
        fields["serviceAccountName"] = run.options.service_account
    if run.options.image_pull_secrets:
        fields["imagePullSecrets"] = [{"name": name} for name in run.options.image_pull_secrets]
    if run.options.priority_class:
        fields["priorityClassName"] = run.options.priority_class
    return fields


def base_container(run: Run, name: str, command: Sequence[str], *, task: Task | None = None) -> Object:
    """Return what every container has; that of a task may have an image of its own, whose entrypoint gets `command`."""
    key = "args" if task and task.is_entrypoint else "command"
    policy = {"imagePullPolicy": run.options.image_pull_policy} if run.options.image_pull_policy else {}
    return {
        "name": name,
        "image": (task and task.image) or run.image,
        **policy,
        **({key: [literal(word) for word in command]} if command else {}),
        "securityContext": {"allowPrivilegeEscalation": False, **(RESTRICTED_SECURITY_CONTEXT if task is None or task.is_hardened else {})},
        # Without a message of its own, a failed pod's status has the last lines that it wrote.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def tmp() -> tuple[Object, Object]:
    """Return the volume /tmp, and where a hardened container has it: nothing else can be written, the run's volume apart."""
    return {"name": "tmp", "emptyDir": {}}, {"name": "tmp", "mountPath": TMP}


def _task_container(run: Run, group: RoleGroup) -> Object:
    made = base_container(run, TRAINER, group.task.command, task=group.task)
    if group.task.cwd is not None:
        made["workingDir"] = group.task.cwd
    env_from = [_env_from(source) for source in run.options.env_from if source.name is None]
    if env_from:
        made["envFrom"] = env_from
    made["env"] = _env(run, group)
    role = _role(run, group)
    if asked := resources(run, role.cpu, role.memory, {run.options.gpu_resource: str(role.gpus)} if role.gpus else None):
        made["resources"] = asked
    made["ports"] = [{"name": "grpc", "containerPort": int(group.task.address.rpartition(":")[2])}] if group.task.address else []
    made["volumeMounts"] = _mounts(run, group)
    return {key: value for key, value in made.items() if value != []}


def _env(run: Run, group: RoleGroup) -> list[Object]:
    values = ({"HOME": TMP} if group.task.is_hardened else {}) | group.task.env
    if killed_if_evicted(run, group):
        values |= {"TRAINER_STOP_SECONDS": str(_STOP_SECONDS)}
    single = [_env_value(source) for source in run.options.env_from if source.name is not None]
    taken = {entry["name"] for entry in single}
    kind = group.task.tf_config["task"]["type"]
    tf_config = f'{{"cluster":$(TF_CLUSTER),"task":{{"type":"{kind}","index":$(JOB_COMPLETION_INDEX)}}}}'
    return [
        *(entry for entry in [*env(values), *env(group.task.secrets)] if entry["name"] not in taken),
        *single,
        {"name": "TF_CLUSTER", "valueFrom": {"configMapKeyRef": {"name": cluster_name(run), "key": CLUSTER_KEY}}},
        {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": _COMPLETION_INDEX}}},
        # Last: what it refers to must stand before it.
        {"name": "TF_CONFIG", "value": tf_config},
    ]


def _env_from(source: EnvSource) -> Object:
    kind, name = ("secretRef", source.secret) if source.secret else ("configMapRef", source.config_map)
    prefix = {"prefix": source.prefix} if source.prefix else {}
    return {**prefix, kind: {"name": name, **_optional(source)}}


def _env_value(source: EnvSource) -> Object:
    kind, name = ("secretKeyRef", source.secret) if source.secret else ("configMapKeyRef", source.config_map)
    return {"name": source.name, "valueFrom": {kind: {"name": name, "key": source.key, **_optional(source)}}}


def _optional(source: EnvSource) -> Object:
    return {"optional": True} if source.optional else {}


def _role(run: Run, group: RoleGroup) -> Role:
    return roles_of(run.spec)[group.role]


def _volumes(run: Run, group: RoleGroup) -> list[Object]:
    own = [
        *([tmp()[0]] if group.task.is_hardened else []),
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": run.options.shm_size}},
    ]
    if group.mounts_run_dir:
        own.insert(0, storage.volume(run))
    elif _has_scratch(run):
        own.insert(0, storage.scratch())
    if run.spec.code is not None:
        own.append({"name": "code", "configMap": {"name": code_name(run), "defaultMode": _EXECUTABLE, **_key_to_path(run)}})
    if role_rules.parent_is_injected(group.task):
        own.append({"name": _PARENT, "configMap": {"name": parent_name(run)}})
    extra_mounts = extra_containers.mounted(run, group.role)
    return own + [
        {"name": extra.name, **(extra.source or {})}
        for extra in volumes_of(run.spec)
        if extra.name in extra_mounts or _is_mounted(extra, group)
    ]


def _has_scratch(run: Run) -> bool:
    """Return whether tasks without the run's volume have a RUN_DIR all the same: a program may write there in each task."""
    return run.spec.train is None and run.storage is not None


def _key_to_path(run: Run) -> Object:
    listed = items(run)
    return {"items": listed} if any(item["key"] != item["path"] for item in listed) else {}


def _mounts(run: Run, group: RoleGroup) -> list[Object]:
    own = [*([tmp()[1]] if group.task.is_hardened else []), {"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108
    if group.mounts_run_dir or _has_scratch(run):
        own.insert(0, storage.mount())
    if run.spec.code is not None:
        own.append({"name": "code", "mountPath": CONTAINER_CODE, "readOnly": True})
    if role_rules.parent_is_injected(group.task):
        own.append({"name": _PARENT, "mountPath": posixpath.dirname(CONTAINER_PARENT), "readOnly": True})
    for extra in volumes_of(run.spec):
        if _is_mounted(extra, group):
            made: Object = {"name": extra.name, "mountPath": extra.mount_path} | ({"subPath": extra.sub_path} if extra.sub_path else {})
            own.append(made | ({"readOnly": True} if extra.is_mounted_read_only(extra.read_only) else {}))
    return own


def _is_mounted(extra: Volume, group: RoleGroup) -> bool:
    return extra.mount_path is not None and (not extra.roles or group.role in extra.roles)


def _scheduling(run: Run, group: RoleGroup) -> Object:
    options, role = run.options, _role(run, group)
    fields: Object = {}
    if options.runtime_class and role.gpus:
        fields["runtimeClassName"] = options.runtime_class
    nodes = dict(options.node_selector) | ({options.gpu_type_label: role.gpu_type} if role.gpu_type else {})
    if nodes:
        fields["nodeSelector"] = nodes
    if tolerated := tolerations(options, role, on_gpus=group.mounts_run_dir and storage.follows_gpus(run)):
        fields["tolerations"] = tolerated
    if affinity := _affinity(run, group):
        fields["affinity"] = {"podAffinity": affinity}
    if options.placement == "spread" and group.count > 1:
        fields["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": options.placement_key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector(run, group.role)},
            }
        ]
    return fields


def placement(run: Run) -> Object:
    """Return the fields of a pod that is none of the tasks, and may mount the volume, which say where it may run."""
    options = run.options
    nodes: Object = {"nodeSelector": dict(options.node_selector)} if options.node_selector else {}
    tolerated = tolerations(options, on_gpus=storage.follows_gpus(run))
    return nodes | ({"tolerations": tolerated} if tolerated else {})


def tolerations(options: Kubernetes, role: Role | None = None, *, on_gpus: bool = False) -> list[dict[str, Any]]:
    """Return which taints the pods of a role tolerate; without a role, those of a pod that is none of the tasks.

    With `on_gpus` they go to nodes with GPUs though they ask for none.
    """
    given = [toleration.model_dump(exclude_none=True) for toleration in options.tolerations]
    if not on_gpus and (role is None or not role.gpus):
        return given
    taints = [options.gpu_resource, *([_GPU_TAINT] if options.gpu_resource.startswith(_OF_NVIDIA) else [])]
    return [*({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in dict.fromkeys(taints)), *given]


def _affinity(run: Run, group: RoleGroup) -> Object:
    affinity = storage.together(run, group.role) if group.mounts_run_dir else {}
    if run.options.placement == "pack":
        term = {"labelSelector": {"matchLabels": {CLUSTER_LABEL: run.name}}, "topologyKey": run.options.placement_key}
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": 100, "podAffinityTerm": term}]
    return affinity
