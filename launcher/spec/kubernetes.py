"""The `kubernetes` section of a spec: the settings for Kubernetes only."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from launcher.spec import names
from launcher.spec.containers import Image
from launcher.spec.fields import Cpu, Duration, Memory, ObjectName, Section
from launcher.spec.problems import FieldError, shown

VERSION_PATTERN = r"^1\.[0-9]{1,3}$"
# The first version with podFailurePolicy by default; without it, Kubernetes would retry after exit code 2.
OLDEST_VERSION = (1, 26)
# The first version with native sidecars, which end with their task, by default.
SIDECARS_SINCE = (1, 29)
# The oldest version with everything that a run uses by default; every supported release is newer.
DEFAULT_VERSION = "1.29"


def parse_version(text: str) -> tuple[int, int]:
    """Return the major and minor number of `1.29`. Raises ValueError for anything else."""
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _version(value: object) -> object:
    expected = f'the cluster\'s version in quotes, from "{OLDEST_VERSION[0]}.{OLDEST_VERSION[1]}" on'
    if isinstance(value, bool | int | float):  # 1.30 is 1.3 to YAML
        raise FieldError(
            f"{shown(value)} is a number, which loses the zero of 1.30", expected, f'write "{DEFAULT_VERSION}", for example, in quotes'
        )
    if value is None or not isinstance(value, str):
        return value
    digits = value.removeprefix("v").split(".")
    if len(digits) < 2 or not all(part.isascii() and part.isdigit() for part in digits[:2]):
        raise FieldError(f"{shown(value)} is not a version of Kubernetes", expected, f'write "{DEFAULT_VERSION}", for example')
    short = f"{int(digits[0])}.{int(digits[1])}"
    if short != value:
        raise FieldError(f"{shown(value)} is more than a major and a minor version", expected, f'write "{short}"')
    if parse_version(short) < OLDEST_VERSION:
        raise FieldError(
            f"Kubernetes {short} is too old", expected, "use a newer cluster; an older one cannot act on the exit codes of pods"
        )
    return short


class Helper(Section):
    """The resources of the launcher's helper pods, which read or move a run's data, or check the cluster."""

    cpu: Cpu | None = Field(None, description="CPU cores it gets. When left out, it requests 100m, with a limit of 1.")
    memory: Memory | None = Field(None, description="Memory it gets. When left out, it requests 128Mi, with a limit of 256Mi.")


def _attendant(value: object) -> object:
    if isinstance(value, bool):
        return {} if value else None
    if value is None or isinstance(value, dict):
        return value
    raise FieldError(f"`attendant` is {shown(value)}", "true, false, or a mapping with its settings", "write `attendant: true`")


class Attendant(Section):
    """The pod that watches the run in the cluster, as `launcher up` and `wait` do from outside; `true` in place of the section for the defaults."""

    image: Image | None = Field(
        None,
        description="Its image: one that `launcher image build` makes, or one built from that; the spec's when left out.",
    )
    service_account: ObjectName | None = Field(
        None, description="An existing service account with the rights that docs/kubernetes.md lists; when left out, the run creates one."
    )
    cpu: Cpu | None = Field(None, description="CPU cores it gets. When left out, it requests 50m, with a limit of 1.")
    memory: Memory | None = Field(None, description="Memory it gets. When left out, it requests 96Mi, with a limit of 256Mi.")


class Toleration(Section):
    """One taint that the pods tolerate, with Kubernetes' own field names."""

    key: str | None = Field(None, description="The taint's key; every taint when left out, with operator Exists.")
    operator: Literal["Equal", "Exists"] = Field("Equal", description="Whether the taint's value must equal `value`.")
    value: str | None = Field(None, description="The taint's value, for operator Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="The taint's effect; every one when left out."
    )
    tolerationSeconds: Annotated[int, Field(ge=0)] | None = Field(  # noqa: N815 - Kubernetes' own spelling
        None, description="For effect NoExecute: the seconds that a pod stays."
    )


class EnvSource(Section):
    """Environment variables from a Secret or a ConfigMap of the cluster: all its values, or with `name` and `key` one value."""

    secret: ObjectName | None = Field(None, description="The Secret; excludes `config_map`.")
    config_map: ObjectName | None = Field(None, description="The ConfigMap; excludes `secret`.")
    name: str | None = Field(None, description="The variable that gets one value; with `key`.")
    key: str | None = Field(None, description="The key of one value in the Secret or ConfigMap; with `name`.")
    prefix: str | None = Field(None, description="The prefix of the names of all variables; without `name`.")
    optional: bool = Field(False, description="Whether tasks start if it does not exist.")

    @model_validator(mode="after")
    def _one_source(self) -> "EnvSource":
        if (self.secret is None) == (self.config_map is None):
            expected = "`secret` or `config_map`, one of the two"
            raise FieldError("both or neither of `secret` and `config_map` are given", expected, "write {secret: my-secret}, for example")
        if (self.name is None) != (self.key is None):
            raise FieldError("`name` and `key` go together", "both for one value, none for all", "write both, or none")
        if self.name is not None and self.prefix is not None:
            raise FieldError("`prefix` is for all variables of a Secret", "no `prefix` beside `name`", "put it in `name`")
        if self.name is not None:
            names.check_task_variable(self.name)
        return self


class Volume(Section):
    """An additional volume of the tasks. Kubernetes uses its `source`; Compose uses its `path`, or a `source` that is an `emptyDir` or `hostPath`."""

    name: Annotated[str, AfterValidator(names.check_volume_name)] = Field(description="The volume's name.")
    mount_path: Annotated[str, AfterValidator(names.check_mount_path)] | None = Field(
        None,
        description="The path in the tasks. When left out, tasks do not mount it: it is for the `mounts` of init containers and sidecars.",
    )
    source: dict[str, Any] | None = Field(
        None,
        description="The volume's source as in a pod: one key, such as `persistentVolumeClaim`, `emptyDir`, `secret`, `nfs` or `csi`.",
    )
    path: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="In Compose: the directory of this machine to mount; relative to the spec."
    )
    sub_path: Annotated[str, AfterValidator(names.check_sub_path)] | None = Field(
        None, description="A directory of the volume to mount; the whole volume when left out."
    )
    read_only: bool | None = Field(None, description="Whether the mount is read-only. When left out: true, except for an `emptyDir`.")
    roles: list[Literal["chief", "worker", "ps", "evaluator"]] = Field(
        default_factory=list, description="The roles that mount it; every one when left out."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> "Volume":
        if self.source is None and self.path is None:
            expected = "`source` for Kubernetes, `path` for Compose, or both"
            raise FieldError(
                f"the volume {self.name} has neither `source` nor `path`",
                expected,
                "write `source: {emptyDir: {}}` for a volume that begins empty",
            )
        if self.source is not None and len(self.source) != 1:
            expected = "one key with its settings, such as `persistentVolumeClaim: {claimName: data}`"
            raise FieldError(f"`source` has {len(self.source)} keys", expected, "write a volume for each key")
        return self

    @property
    def is_empty_dir(self) -> bool:
        """Whether it begins empty for each task, and is deleted with the task."""
        return self.source is not None and "emptyDir" in self.source

    def is_mounted_read_only(self, read_only: bool | None) -> bool:
        """Return whether a mount with this `read_only` is read-only; None is the default."""
        return not self.is_empty_dir if read_only is None else read_only


class Overrides(Section):
    """Parts of pod templates (`metadata`, `spec`), merged as `kubectl patch` does. Containers: `trainer`, `tensorboard`, `attendant`."""

    all: dict[str, Any] = Field(default_factory=dict, description="For the pods of every task.")
    chief: dict[str, Any] = Field(default_factory=dict, description="For the chief's pod.")
    worker: dict[str, Any] = Field(default_factory=dict, description="For the workers' pods.")
    ps: dict[str, Any] = Field(default_factory=dict, description="For the pods of parameter servers.")
    evaluator: dict[str, Any] = Field(default_factory=dict, description="For the evaluator's pod.")
    tensorboard: dict[str, Any] = Field(default_factory=dict, description="For TensorBoard's pod.")
    attendant: dict[str, Any] = Field(default_factory=dict, description="For the attendant's pod.")


class Kubernetes(Section):
    """Settings for Kubernetes only."""

    version: (
        Annotated[str, BeforeValidator(_version, json_schema_input_type=str), Field(json_schema_extra={"pattern": VERSION_PATTERN})] | None
    ) = Field(None, description=f'The oldest Kubernetes version that the run must work on, in quotes; "{DEFAULT_VERSION}" when left out.')
    namespace: Annotated[str, AfterValidator(names.check_namespace)] | None = Field(
        None, description="The namespace; the context's own when left out."
    )
    queue: ObjectName | None = Field(None, description="The Kueue queue that admits the run.")
    gang: Literal["jobset"] | None = Field(
        None,
        description="`jobset` makes the whole run one JobSet, which Kueue admits as a whole. When left out, each role is a Job, which Kueue admits by itself.",
    )
    exclusive_topology: Annotated[str, AfterValidator(names.check_label_key)] | None = Field(
        None, description="For a JobSet: the node label of a topology domain, such as a rack; each role gets a domain of its own."
    )
    priority_class: ObjectName | None = Field(None, description="The pods' priority class.")
    node_selector: dict[str, str] = Field(default_factory=dict, description="Labels a node must have.")
    tolerations: list[Toleration] = Field(default_factory=list, description="Taints the pods tolerate.")
    placement: Literal["spread", "pack"] | None = Field(
        None, description="`spread` prefers different nodes for the tasks of a role, `pack` prefers to place all tasks close together."
    )
    placement_key: Annotated[str, AfterValidator(names.check_label_key)] = Field(
        "kubernetes.io/hostname", description="The node label that defines what is close for `placement`, such as a zone or a rack."
    )
    egress: Literal["any", "tasks"] = Field(
        "any",
        description="The egress of tasks: `any` leaves it to the namespace's policies; `tasks` allows only DNS and the run's own tasks,"
        " also in a namespace that denies all.",
    )
    helper: Helper = Field(default_factory=Helper, description="The launcher's helper pods.")
    attendant: Annotated[Attendant | None, BeforeValidator(_attendant, json_schema_input_type=Attendant | bool)] = Field(
        None,
        description="Whether an additional pod replaces pods of lost nodes, ends the remaining Jobs of the run, and records how it ended, when no launcher watches; "
        "a mapping has its settings.",
    )
    one_node: bool = Field(
        False, description="Whether every task that mounts the run's volume is put on one node, for a volume that only one node can mount."
    )
    gpu_resource: Annotated[str, AfterValidator(names.check_resource)] = Field(
        "nvidia.com/gpu",
        description="The resource name of the nodes' GPUs. Pods with GPUs tolerate the taint of that name; with parts of NVIDIA's (`nvidia.com/mig-1g.5gb`) also that of `nvidia.com/gpu`.",
    )
    gpu_type_label: Annotated[str, AfterValidator(names.check_label_key)] = Field(
        "nvidia.com/gpu.product", description="The node label that `gpu_type` is compared with."
    )
    cpu_limit: Literal["cpu", "none"] = Field(
        "cpu", description="`cpu` limits a task to its `cpu`; with `none` it may also use idle cores of its node."
    )
    service_account: ObjectName | None = Field(
        None,
        description="The service account of the run's pods, whose token the tasks get; the namespace's `default`, without a token, when left out.",
    )
    runtime_class: ObjectName | None = Field(None, description="The runtime class of the pods that have GPUs, such as `nvidia`.")
    shm_size: Memory = Field("1Gi", description="The size limit of /dev/shm, which is part of the task's memory.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="When nodes pull the image; Kubernetes decides by the tag when left out."
    )
    image_pull_secrets: list[ObjectName] = Field(
        default_factory=list, description="Secrets with the credentials of the registry, for all images of the run."
    )
    env_from: list[EnvSource] = Field(
        default_factory=list,
        description="Environment variables from all values of a Secret or a ConfigMap, or from one value of a ConfigMap. For one value of a Secret use `env`, "
        "which works on all backends; here it is deprecated.",
    )
    volumes: list[Volume] = Field(
        default_factory=list, description="Deprecated: use `volumes` at the top of the spec, which work in Compose, too."
    )
    claim: ObjectName | None = Field(
        None, description="An existing PersistentVolumeClaim to use instead of one of the run's own; each run has a directory in it."
    )
    user: int = Field(
        1000,
        ge=1,
        le=2**31 - 1,
        description="The user and group id of every process in a hardened container, and the group id of the volume's files.",
    )
    ttl: Duration | None = Field(None, description="How long after their end Jobs are deleted, with their logs; never when left out.")
    tensorboard_ttl: Duration = Field(
        "7d",
        description="How long TensorBoard stays after the run's end. The next `launcher up` or `down` of any run in the namespace deletes it then.",
    )
    tensorboard: bool = Field(True, description="Deprecated: use `tensorboard: false` at the top of the spec, which works in Compose, too.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels of every object and pod.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of every object and pod.")
    overrides: Overrides = Field(
        default_factory=Overrides, description="The last resort: parts of pod templates, merged as `kubectl patch` does."
    )
