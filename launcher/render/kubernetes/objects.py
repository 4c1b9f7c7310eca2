"""The parts that the objects of a run share: names, labels, annotations, variables and resources. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.errors import UsageError
from launcher.images import all_for, attendant_image
from launcher.plan.models import Plan, SecretKey
from launcher.spec import role_programs
from launcher.spec.containers import FromSecret
from launcher.spec.kubernetes import DEFAULT_VERSION, Kubernetes, parse_version
from launcher.spec.models import ClusterSpec, Storage
from launcher.spec.names import MAX_LABEL_LENGTH
from launcher.spec.quantities import millicores

Object = dict[str, Any]

# The names of containers, in overrides and policies, too.
TRAINER_CONTAINER = "trainer"
TENSORBOARD = "tensorboard"
HELPER_POD = "housekeeping"
ATTENDANT = "attendant"

# The additional fields in the security context of a hardened container.
RESTRICTED_SECURITY_CONTEXT: Object = {"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}

# https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/
NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
# On the pods of every role's tasks, the evaluator's too, and on no others, except a helper pod of `doctor`.
TASK_LABEL = "tf-launcher/cluster"
# On every pod that mounts the run's volume, if those have to be on one node.
VOLUME_LABEL = "tf-launcher/volume"
DIGEST_ANNOTATION = "tf-launcher/spec-digest"
STRATEGY_ANNOTATION = "tf-launcher/strategy"
# https://kueue.sigs.k8s.io/docs/tasks/run/jobs/
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
# "true" on a Job whose tasks end themselves once the run has ended: the end of such a Job says nothing about the run.
FOLLOWS_RUN = "tf-launcher/follows"
# On a Job that nothing in the cluster ends with the run: the seconds from the run's end until the launcher ends it, and its number of tasks.
SECONDS_AFTER_RUN = "tf-launcher/ends-after"
TASK_COUNT = "tf-launcher/tasks"

# The first version with a field by default, without a feature gate.
# https://kubernetes.io/docs/reference/command-line-tools-reference/feature-gates/
_SINCE: dict[str, tuple[int, int]] = {
    "podFailurePolicy": (1, 26),
    "podReplacementPolicy": (1, 29),
    "backoffLimitPerIndex": (1, 29),
    "maxFailedIndexes": (1, 29),
    "successPolicy": (1, 31),
}


@dataclass(frozen=True)
class Run:
    """The input of the renderer: a valid spec, its plan for Kubernetes, and the image of tasks whose role names none.

    `claim_access` is the access mode of the volume's claim if that exists: it cannot be changed.
    """

    spec: ClusterSpec
    plan: Plan
    image: str
    claim_access: str | None = None

    @property
    def name(self) -> str:
        """The run's name."""
        return self.plan.name

    @property
    def images(self) -> list[str]:
        """The images of its pods, each once."""
        of_attendant = [attendant_image(self.spec)] if self.options.attendant else []
        return list(dict.fromkeys([*all_for(self.spec, tensorboard=self.has_tensorboard), *of_attendant]))

    @property
    def options(self) -> Kubernetes:
        """The spec's `kubernetes` section."""
        return self.spec.kubernetes

    @property
    def version(self) -> str:
        """The oldest Kubernetes version that the objects must work on."""
        return self.options.version or DEFAULT_VERSION

    @property
    def storage(self) -> Storage | None:
        """The volume with the run directory; None if the run has none."""
        return role_programs.storage_of(self.spec)

    @property
    def has_tensorboard(self) -> bool:
        """Whether TensorBoard runs beside the tasks: it reads the run's volume."""
        return self.options.tensorboard and role_programs.has_tensorboard(self.spec)

    @property
    def has_own_claim(self) -> bool:
        """Whether the run has a claim of its own."""
        return self.storage is not None and self.options.claim is None

    @property
    def access(self) -> str:
        """The access mode of the run's volume; ReadWriteMany without a volume."""
        if self.storage is None:
            return "ReadWriteMany"
        # For a claim that is not the run's own, the spec has priority: a volume may serve more nodes than its claim says, e.g. NFS.
        access = self.storage.access if self.options.claim else None
        return access or self.claim_access or role_programs.access_of(self.spec)

    @property
    def claim(self) -> str:
        """The claim of the volume with the run directory."""
        return self.options.claim or self.name


def supported(run: Run, fields: Mapping[str, Any]) -> Object:
    """Return the fields of an object that the run's version of Kubernetes has."""
    version = parse_version(run.version)
    return {field: value for field, value in fields.items() if _SINCE.get(field, (1, 0)) <= version}


def selector(run: Run, component: str | None = None) -> dict[str, str]:
    """Return the labels that select the pods of a run, or only those of one component."""
    labels = {NAME_LABEL: "tf-launcher", INSTANCE_LABEL: run.name}
    return labels | ({COMPONENT_LABEL: component} if component else {})


def metadata(
    run: Run,
    name: str,
    component: str | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Return an object's metadata. The caller checks a name that becomes a host name."""
    namespace = {"namespace": run.options.namespace} if run.options.namespace else {}
    shared = pod_metadata(run, component)
    merged = {**shared.get("annotations", {}), **(annotations or {})}
    return {"name": name, **namespace, "labels": {**shared["labels"], **(labels or {})}} | ({"annotations": merged} if merged else {})


def provenance(run: Run) -> dict[str, str]:
    """Return the annotations with the strategy and the digest of the spec."""
    return {STRATEGY_ANNOTATION: run.plan.strategy, DIGEST_ANNOTATION: run.plan.spec_digest}


def pod_metadata(run: Run, component: str | None) -> Object:
    """Return the metadata that a component's pods have, and its other objects, too."""
    labels = {**selector(run, component), MANAGED_BY_LABEL: "launcher", **run.options.labels}
    return {"labels": labels} | ({"annotations": dict(run.options.annotations)} if run.options.annotations else {})


def checked(name: str) -> str:
    """Return a name that becomes a host name or a label. Raises UsageError when it is too long for that."""
    if len(name) > MAX_LABEL_LENGTH:
        raise UsageError(
            f"the name {name} has {len(name)} characters; Kubernetes allows {MAX_LABEL_LENGTH}",
            f"shorten the run's name by {len(name) - MAX_LABEL_LENGTH}",
        )
    return name


def literal(text: str) -> str:
    """Return a text escaped for `command` and `env`, in which Kubernetes replaces `$(NAME)`, and `$$` by a dollar."""
    return text.replace("$", "$$")


def env(variables: Mapping[str, str | FromSecret | SecretKey]) -> list[Object]:
    """Return variables as a container's `env`."""
    return [
        {"name": name, "value": literal(value)}
        if isinstance(value, str)
        else {"name": name, "valueFrom": {"secretKeyRef": {"name": value.secret, "key": value.key}}}
        for name, value in variables.items()
    ]


def resource_list(cpu: float | None, memory: str | None) -> Object:
    """Return cores and memory as quantities for a container's requests or limits; without those that are None."""
    cores = {} if cpu is None else {"cpu": str(int(cpu)) if float(cpu).is_integer() else f"{millicores(cpu)}m"}
    return cores | ({} if memory is None else {"memory": memory})


def resources(run: Run, cpu: float | None, memory: str | None, more: Object | None = None) -> Object:
    """Return a container's requests, and its limits: the same and `more`, without the cores if `cpu_limit` is none.

    With both, and limited cores, its QoS class is Guaranteed: it is evicted last.
    """
    requests = resource_list(cpu, memory)
    limits = {key: value for key, value in requests.items() if key != "cpu" or run.options.cpu_limit == "cpu"} | (more or {})
    return ({"requests": requests} if requests else {}) | ({"limits": limits} if limits else {})
