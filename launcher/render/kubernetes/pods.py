"""The pod of a role's tasks: its program, its environment, its resources and its security context."""

import math
import posixpath
from collections.abc import Sequence
from typing import Any

from launcher.errors import UsageError
from launcher.plan import role_rules
from launcher.plan.container_paths import CONTAINER_CODE, CONTAINER_PARENT
from launcher.plan.models import Task
from launcher.plan.task_groups import TaskGroup
from launcher.render.kubernetes import extra_containers, storage
from launcher.render.kubernetes.configmaps import CLUSTER_KEY, cluster_name, code_items, code_name, parent_name
from launcher.render.kubernetes.merge import merge
from launcher.render.kubernetes.objects import (
    ATTENDANT,
    RESTRICTED_SECURITY_CONTEXT,
    TASK_LABEL,
    TENSORBOARD,
    TRAINER_CONTAINER,
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
# The minimum of seconds that a stop lasts. A pod that is evicted because it exceeds its storage gets only 2 s, whatever its grace period is
# (evictPod of the kubelet's eviction_manager.go, minimumGracePeriodInSeconds of kuberuntime_manager.go): its task is killed, which counts.
_STOP_SECONDS = 4
# Nodes with parts of GPUs or shared GPUs (nvidia.com/mig-1g.5gb, nvidia.com/gpu.shared) have the taint of whole ones.
_NVIDIA_PREFIX, _GPU_TAINT = "nvidia.com/", "nvidia.com/gpu"
_PARENT_VOLUME = "tf-launcher"  # the volume with the parent of a command


def template(run: Run, group: TaskGroup) -> Object:
    """Return the pod template of a role, including the user's overrides."""
    metadata = pod_metadata(run, group.role)
    metadata["labels"] |= {TASK_LABEL: run.name}
    if group.mounts_run_dir:
        metadata["labels"] |= storage.volume_labels(run)
    spec: Object = {
        "restartPolicy": "Never",
        "subdomain": run.name,
        "terminationGracePeriodSeconds": math.ceil(run.plan.grace_period),
        **(hardened_pod_fields(run) if group.first_task.is_hardened else _unhardened_pod_fields(run, group)),
        **_task_scheduling(run, group),
        **({"automountServiceAccountToken": True} if run.options.service_account else {}),
        **extra_containers.init_containers(run, group),
        "containers": [_task_container(run, group)],
        "volumes": _volumes(run, group),
    }
    return with_overrides(run, group.role, {"metadata": metadata, "spec": spec})


def killed_if_evicted(run: Run, group: TaskGroup) -> bool:
    """Return whether a task that is evicted for using too much is killed before it can exit with 143, unlike a task that is deleted."""
    return role_rules.has_parent(group.first_task) and run.plan.grace_period > _STOP_SECONDS


def may_exceed_storage(template: Object) -> bool:
    """Return whether a pod template limits its storage, so that the kubelet may evict its pod."""
    limited = [(part.get("resources") or {}).get("limits") or {} for part in template["spec"]["containers"]]
    empty_dirs = [part.get("emptyDir") or {} for part in template["spec"].get("volumes") or ()]
    # A volume in memory is full at its limit, and cannot exceed it.
    return any("ephemeral-storage" in limits for limits in limited) or any(
        "sizeLimit" in part and part.get("medium") != "Memory" for part in empty_dirs
    )


def with_overrides(run: Run, component: str, template: Object) -> Object:
    """Return a pod template with the spec's overrides for all tasks and for this component.

    Raises UsageError if they change a container that the pod does not have.
    """
    overrides = run.options.overrides
    common = overrides.all if component not in {TENSORBOARD, ATTENDANT} else {}
    merged: Object = merge(merge(template, common), getattr(overrides, component))
    containers = [container for part in ("initContainers", "containers") for container in merged["spec"].get(part) or ()]
    if unknown := [str(container.get("name")) for container in containers if not container.get("image")]:
        raise UsageError(
            f"kubernetes.overrides changes a container that {component} does not have: {', '.join(unknown)}",
            "remove it there, or give it an `image`, which adds it",
        )
    return merged


def hardened_pod_fields(run: Run) -> Object:
    """Return the fields of a pod that Pod Security `restricted` requires, and those of its account, priority and image pulls."""
    user = run.options.user
    return _pod_fields(run, {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, **_group_fields(run)})


def _unhardened_pod_fields(run: Run, group: TaskGroup) -> Object:
    """Return the pod's fields if its containers run as their images' users; the group makes the run's volume writable."""
    return _pod_fields(run, _group_fields(run) if group.mounts_run_dir else {})


def _group_fields(run: Run) -> Object:
    return {"fsGroup": run.options.user, "fsGroupChangePolicy": "OnRootMismatch"}


def _pod_fields(run: Run, security_context: Object) -> Object:
    fields: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**security_context, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    if run.options.service_account:
        fields["serviceAccountName"] = run.options.service_account
    if run.options.image_pull_secrets:
        fields["imagePullSecrets"] = [{"name": name} for name in run.options.image_pull_secrets]
    if run.options.priority_class:
        fields["priorityClassName"] = run.options.priority_class
    return fields


def base_container(run: Run, name: str, command: Sequence[str], *, task: Task | None = None) -> Object:
    """Return the fields of every container. With `task`: its own image if it has one, and `command` as `args` if it runs the entrypoint."""
    key = "args" if task and task.is_entrypoint else "command"
    policy = {"imagePullPolicy": run.options.image_pull_policy} if run.options.image_pull_policy else {}
    return {
        "name": name,
        "image": (task and task.image) or run.image,
        **policy,
        **({key: [literal(word) for word in command]} if command else {}),
        "securityContext": {"allowPrivilegeEscalation": False, **(RESTRICTED_SECURITY_CONTEXT if task is None or task.is_hardened else {})},
        # If it writes no message, a failed pod's status has the last lines of its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def tmp() -> tuple[Object, Object]:
    """Return the volume /tmp, and its mount: besides the run's volume, it is all that a hardened container can write to."""
    return {"name": "tmp", "emptyDir": {}}, {"name": "tmp", "mountPath": TMP}


def _task_container(run: Run, group: TaskGroup) -> Object:
    container = base_container(run, TRAINER_CONTAINER, group.first_task.command, task=group.first_task)
    if group.first_task.cwd is not None:
        container["workingDir"] = group.first_task.cwd
    env_from = [_env_from(source) for source in run.options.env_from if source.name is None]
    if env_from:
        container["envFrom"] = env_from
    container["env"] = _env(run, group)
    role = _role(run, group)
    if container_resources := resources(run, role.cpu, role.memory, {run.options.gpu_resource: str(role.gpus)} if role.gpus else None):
        container["resources"] = container_resources
    container["ports"] = (
        [{"name": "grpc", "containerPort": int(group.first_task.address.rpartition(":")[2])}] if group.first_task.address else []
    )
    container["volumeMounts"] = _mounts(run, group)
    return {key: value for key, value in container.items() if value != []}


def _env(run: Run, group: TaskGroup) -> list[Object]:
    values = ({"HOME": TMP} if group.first_task.is_hardened else {}) | group.first_task.env
    if killed_if_evicted(run, group):
        values |= {"TRAINER_STOP_SECONDS": str(_STOP_SECONDS)}
    single = [_env_value(source) for source in run.options.env_from if source.name is not None]
    replaced = {entry["name"] for entry in single}
    task_type = group.first_task.tf_config["task"]["type"]
    tf_config = f'{{"cluster":$(TF_CLUSTER),"task":{{"type":"{task_type}","index":$(JOB_COMPLETION_INDEX)}}}}'
    return [
        *(entry for entry in [*env(values), *env(group.first_task.secrets)] if entry["name"] not in replaced),
        *single,
        {"name": "TF_CLUSTER", "valueFrom": {"configMapKeyRef": {"name": cluster_name(run), "key": CLUSTER_KEY}}},
        {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": _COMPLETION_INDEX}}},
        # Last: the variables that it refers to must come before it.
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


def _role(run: Run, group: TaskGroup) -> Role:
    return roles_of(run.spec)[group.role]


def _volumes(run: Run, group: TaskGroup) -> list[Object]:
    own = [
        *([tmp()[0]] if group.first_task.is_hardened else []),
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": run.options.shm_size}},
    ]
    if group.mounts_run_dir:
        own.insert(0, storage.volume(run))
    elif _has_temporary_run_dir(run):
        own.insert(0, storage.temporary_run_dir())
    if run.spec.code is not None:
        own.append({"name": "code", "configMap": {"name": code_name(run), "defaultMode": _EXECUTABLE, **_key_to_path(run)}})
    if role_rules.parent_is_injected(group.first_task):
        own.append({"name": _PARENT_VOLUME, "configMap": {"name": parent_name(run)}})
    extra_mounts = extra_containers.mounted(run, group.role)
    return own + [
        {"name": extra.name, **(extra.source or {})}
        for extra in volumes_of(run.spec)
        if extra.name in extra_mounts or _is_mounted(extra, group)
    ]


def _has_temporary_run_dir(run: Run) -> bool:
    """Return whether tasks without the run's volume have a RUN_DIR, too: a user's program may write to it in each task."""
    return run.spec.train is None and run.storage is not None


def _key_to_path(run: Run) -> Object:
    entries = code_items(run)
    return {"items": entries} if any(item["key"] != item["path"] for item in entries) else {}


def _mounts(run: Run, group: TaskGroup) -> list[Object]:
    own = [*([tmp()[1]] if group.first_task.is_hardened else []), {"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108
    if group.mounts_run_dir or _has_temporary_run_dir(run):
        own.insert(0, storage.mount())
    if run.spec.code is not None:
        own.append({"name": "code", "mountPath": CONTAINER_CODE, "readOnly": True})
    if role_rules.parent_is_injected(group.first_task):
        own.append({"name": _PARENT_VOLUME, "mountPath": posixpath.dirname(CONTAINER_PARENT), "readOnly": True})
    for extra in volumes_of(run.spec):
        if _is_mounted(extra, group):
            mount: Object = {"name": extra.name, "mountPath": extra.mount_path} | ({"subPath": extra.sub_path} if extra.sub_path else {})
            own.append(mount | ({"readOnly": True} if extra.is_mounted_read_only(extra.read_only) else {}))
    return own


def _is_mounted(extra: Volume, group: TaskGroup) -> bool:
    return extra.mount_path is not None and (not extra.roles or group.role in extra.roles)


def _task_scheduling(run: Run, group: TaskGroup) -> Object:
    options, role = run.options, _role(run, group)
    fields: Object = {}
    if options.runtime_class and role.gpus:
        fields["runtimeClassName"] = options.runtime_class
    nodes = dict(options.node_selector) | ({options.gpu_type_label: role.gpu_type} if role.gpu_type else {})
    if nodes:
        fields["nodeSelector"] = nodes
    if tolerated := tolerations(options, role, on_gpus=group.mounts_run_dir and storage.is_on_gpu_node(run)):
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


def scheduling(run: Run) -> Object:
    """Return the scheduling fields of a pod that is not a task and may mount the run's volume."""
    options = run.options
    nodes: Object = {"nodeSelector": dict(options.node_selector)} if options.node_selector else {}
    tolerated = tolerations(options, on_gpus=storage.is_on_gpu_node(run))
    return nodes | ({"tolerations": tolerated} if tolerated else {})


def tolerations(options: Kubernetes, role: Role | None = None, *, on_gpus: bool = False) -> list[dict[str, Any]]:
    """Return the tolerations of a role's pods; without a role, those of a pod that is not a task.

    With `on_gpus` they may run on nodes with GPUs without requesting any.
    """
    configured = [toleration.model_dump(exclude_none=True) for toleration in options.tolerations]
    if not on_gpus and (role is None or not role.gpus):
        return configured
    taints = [options.gpu_resource, *([_GPU_TAINT] if options.gpu_resource.startswith(_NVIDIA_PREFIX) else [])]
    return [*({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in dict.fromkeys(taints)), *configured]


def _affinity(run: Run, group: TaskGroup) -> Object:
    affinity = storage.volume_affinity(run, group.role) if group.mounts_run_dir else {}
    if run.options.placement == "pack":
        term = {"labelSelector": {"matchLabels": {TASK_LABEL: run.name}}, "topologyKey": run.options.placement_key}
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": 100, "podAffinityTerm": term}]
    return affinity
