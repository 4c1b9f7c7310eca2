"""The spec as data: one pydantic model per section. JSON Schema and docs/spec.md are made from these."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from launcher.spec import names
from launcher.spec.containers import Command, Env, Image, InitContainers, Sidecars
from launcher.spec.fields import MAX_GPUS, MAX_RESTARTS, Cpu, Duration, Memory, Name, ObjectName, Section
from launcher.spec.kubernetes import Kubernetes, Volume
from launcher.spec.notification import Notify
from launcher.spec.problems import FieldError, shown
from trainer.exit_codes import OnStall
from trainer.settings import Train
from trainer.strategies import Strategy


def _version(value: object) -> object:
    # To Python, and so to pydantic's Literal, True and 1.0 equal 1.
    if type(value) is not int or value != 1:
        raise FieldError(f"{shown(value)} is not a version of the spec format", "1, the only version there is", "write version: 1")
    return value


def _storage(value: object) -> object:
    if value is None:
        raise FieldError("`storage` has no value", "a mapping", "write `storage: {}` for the defaults, or leave the key out")
    return value


def _notify(value: object) -> object:
    if value is None:
        remedy = "write `notify: {command: [./tell.sh]}`, for example, or leave the key out"
        raise FieldError("`notify` has no value", "a mapping with `command`, `webhook`, or both", remedy)
    return value


def _tensorboard(value: object) -> object:
    if value is None:
        raise FieldError("`tensorboard` has no value", "a mapping, or false", "write `tensorboard: false` for none, or leave the key out")
    return None if value is False else value


class Role(Section):
    """The tasks of one role: their number, the resources of each, and their program if it differs from the spec's."""

    replicas: int = Field(1, ge=1, le=10_000, description="How many tasks the role has.")
    cpu: Cpu | None = Field(
        None,
        description="CPU cores a task gets; `500m` or `0.5` is half a core. No limit when left out. On this machine: the number of its threads.",
    )
    memory: Memory | None = Field(
        None,
        description="Memory a task gets, such as `4Gi`. No limit when left out, and none for tasks on this machine outside containers.",
    )
    gpus: int = Field(0, ge=0, le=MAX_GPUS, description="GPUs a task gets. If this machine has too few, tasks run without.")
    gpu_type: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="On Kubernetes: the kind of GPU, by its product label, such as `NVIDIA-H100-80GB-HBM3`."
    )
    image: Image | None = Field(None, description="The role's container image, instead of the spec's.")
    command: Command | None = Field(None, description="The role's program, instead of the spec's `command`.")
    args: list[str] = Field(
        default_factory=list, description="Arguments of the `command`, added to it; without one, of the image's entrypoint."
    )
    env: Env = Field(
        default_factory=dict,
        description="Environment variables of the role's tasks. They add to the spec's, and replace those of the same name.",
    )
    init_containers: InitContainers = Field(default_factory=list)
    sidecars: Sidecars = Field(default_factory=list)
    working_dir: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="The directory in which the role's program starts: a path in its container, or a directory relative to the spec, which for containers must be in `code`. "
        "When left out: `code`; without `code` the spec's directory on this machine, and the image's working directory in containers.",
    )
    restart: Literal["always", "on_failure", "never", "exit_code"] = Field(
        "on_failure",
        description="When a program is started again: `always` also after exit code 0, `exit_code` only after signals (128 and above). "
        "`always` is not allowed for the role that decides the run's success, nor on Kubernetes for a role without the trainer's parent.",
    )
    max_restarts: Annotated[int, Field(ge=0, le=MAX_RESTARTS)] | None = Field(
        None, description="Restarts after failures, for each task of the role; `limits.max_restarts` when left out."
    )


class Roles(Section):
    """The cluster's roles; the strategy decides which are required or allowed."""

    chief: Role | None = Field(None, description="The task that coordinates, saves checkpoints and writes logs.")
    worker: Role | None = Field(None, description="The tasks that compute gradients.")
    ps: Role | None = Field(None, description="The parameter servers, which hold the variables.")
    evaluator: Role | None = Field(
        None, description="The task that evaluates checkpoints, outside the cluster; if several wait, the newest."
    )


class Storage(Section):
    """The volume that holds the run directory."""

    size: Memory = Field("10Gi", description="On Kubernetes: the requested size, such as `20Gi`.")
    class_: ObjectName | None = Field(
        None, alias="class", description="On Kubernetes: the storage class; the cluster's default when left out."
    )
    mount: Literal["one", "all"] | None = Field(
        None,
        description="On Kubernetes, which tasks mount it: `one` is the leader (the chief) and, on its node, the evaluator and TensorBoard; `all` is "
        "every task. When left out: `all` for a `command` of several tasks, and for multi_worker_mirrored with several workers and no chief; else `one`.",
    )
    access: Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"] | None = Field(
        None,
        description="The pods that may mount it at the same time: those of one node, one pod, or those of many nodes. When left out: ReadWriteOnce with `mount: one`, "
        "ReadWriteMany with `all`; an existing claim keeps its own.",
    )


class TensorBoard(Section):
    """TensorBoard beside the run; `false` in place of the section for none. A run on this machine starts none; `launcher tensorboard` does."""

    port: int = Field(6006, ge=1, le=65535, description="The port it answers on.")
    host: Annotated[str, AfterValidator(names.check_host)] = Field(
        "127.0.0.1",
        description="The address at which it is reached, on this machine and in Compose; a loopback address unless you change it. Not on Kubernetes, where it has a Service.",
    )
    image: Image | None = Field(
        None,
        description="Its container's image, with `python` and TensorBoard in it. When left out: the image of tasks whose role names none.",
    )
    cpu: Cpu | None = Field(None, description="CPU cores it gets. When left out, it requests 100m on Kubernetes, without a limit.")
    memory: Memory | None = Field(
        None, description="Memory it gets. When left out, it requests 512Mi on Kubernetes, with a limit of 2Gi; no limit in Compose."
    )


class TfConfig(Section):
    """Changes to TensorFlow's own TF_CONFIG."""

    master: bool = Field(
        False,
        description="Whether the chief of a `command` is called `master`, in `cluster` and as task type, for programs that use TensorFlow 1's name.",
    )


class Limits(Section):
    """Limits of time and of restarts. Durations are such as `90s`, `10m`, `24h`."""

    max_restarts: int = Field(
        10,
        ge=0,
        le=MAX_RESTARTS,
        description="Restarts after failures, for each task, before the run fails. Restarts inside a container are counted from zero again when the chief has "
        "saved a newer checkpoint, the evaluator has evaluated one, or another task or a `command` has run for ten minutes. "
        "The count of replaced containers and pods is never reset.",
    )
    start_timeout: Duration = Field(
        "10m",
        description="How long tasks wait for their peers, and how long a run that the launcher or the attendant watches may take to start. "
        "Then the run fails.",
    )
    deadline: Duration | None = Field(
        None,
        description="The run fails if it takes longer than this. Under Docker the run's supervisor enforces it: it does not hold with plain `docker compose up`, "
        "nor once the supervisor was killed. No limit when left out.",
    )
    orphan_timeout: Duration = Field(
        "10m",
        description="How long a task goes on alone: a ps or worker while its chief is unreachable, a chief while every worker is, an evaluator without news of "
        "its chief, and a task of a `command` without news of the leader.",
    )
    worker_grace: Duration = Field(
        "10s", description="How long workers of parameter_server may take to end by themselves after the run of a `command` has succeeded."
    )
    evaluator_grace: Duration = Field(
        "10m",
        description="How long the evaluator of a `command`, which may never end by itself, may take to end after the run has succeeded.",
    )
    node_lost: Duration = Field(
        "60s",
        description="On Kubernetes: how long after Kubernetes has deleted a lost node's pod the launcher lets the Job replace it.",
    )
    stall_timeout: Duration | None = Field(
        None,
        description="A task that makes no progress for this long is stalled, and `status` names it. When left out: the longest of 60s, twenty median steps and "
        "three calls into TensorFlow. The output of a `command` is its progress; when left out, a `command` never stalls. In the built-in trainer, the start, "
        "a compilation and the first call of each kind have at least 20 minutes.",
    )
    on_stall: OnStall = Field(
        "tell",
        description="The action when a task is stalled: `tell` reports it, `restart` kills its process and starts it again, which counts as a restart, `fail` ends the run. "
        "If a task only waits for others, it is only reported; a chief that waits for its servers gets twice the time.",
    )
    save_timeout: Duration = Field(
        "30m",
        description="How long training continues while no checkpoint can be saved because the volume is full, read-only, broken or unresponsive. "
        "Then the run fails.",
    )
    grace_period: Duration = Field(
        "30s",
        description="How long a task may take to stop. It has all of this time except the last 5s (at most half of it) to save its checkpoint.",
    )


class ClusterSpec(Section):
    """One distributed TensorFlow cluster: its tasks, what they train, and where the results go."""

    version: Annotated[Literal[1], BeforeValidator(_version)] = Field(description="The spec format; always 1.")
    name: Name = Field(description="The run's name: a DNS label, the prefix of every task.")
    strategy: Strategy = Field("single", description="How the replicas work together.")
    image: Image | None = Field(
        None,
        description="The container image; the project's own trainer image when left out. Without `train` and `command`, its entrypoint runs.",
    )
    security: Literal["hardened", "image"] = Field(
        "hardened",
        description="The rights of the tasks' containers: `hardened` is uid 1000 (on Kubernetes `kubernetes.user`), no capabilities and a read-only root file system; `image` is "
        "for images that need root or a writable root file system: user, capabilities and file system are those of the image and the engine.",
    )
    roles: Roles = Field(default_factory=lambda: Roles(chief=Role()), description="The cluster's tasks by role; one chief when left out.")
    train: Train | None = Field(None, description="The training of the built-in trainer. Excludes `command`.")
    command: Command | None = Field(None, description="Any program that reads TF_CONFIG, with its arguments. Excludes `train`.")
    success: Literal["chief", "all_workers"] = Field(
        "chief",
        description="The tasks that must exit with 0 for a `command` to succeed: the chief (worker-0 if there is none), or the chief and all workers.",
    )
    supervise: bool = Field(
        True,
        description="Whether a `command` in an `image` of your own runs under the trainer's parent, which the launcher adds to the container and which needs "
        "Python 3.8 or later in the image. `false` is for images without Python.",
    )
    code: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="A directory with your code, made importable in every task; relative to the spec."
    )
    env: Env = Field(
        default_factory=dict,
        description="Environment variables of every task: a string, or `{secret: NAME, key: KEY}` for a value that must not be in a file.",
    )
    env_file: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="A file with values for the variables of `env` that come from secrets, in lines of `NAME=value`; relative to the spec. It is read "
        "for runs on this machine and in Compose, for variables that are not set where `launcher up` is called. On Kubernetes the Secrets have the values.",
    )
    volumes: list[Volume] = Field(default_factory=list, description="Additional volumes for tasks in containers, such as one with data.")
    init_containers: InitContainers = Field(default_factory=list)
    sidecars: Sidecars = Field(default_factory=list)
    storage: Annotated[Storage | None, BeforeValidator(_storage, json_schema_input_type=Storage)] = Field(
        None,
        description="The volume of the run directory. When left out, there is one with the defaults, unless all tasks run images "
        "of your own and `kubernetes.claim` is not set: then containers have no volume, no RUN_DIR and no TensorBoard. `storage: {}` gives them all three.",
    )
    tensorboard: Annotated[TensorBoard | None, BeforeValidator(_tensorboard, json_schema_input_type=TensorBoard | Literal[False])] = Field(
        default_factory=TensorBoard, description="TensorBoard beside the run; `false` for none."
    )
    tf_config: TfConfig = Field(default_factory=TfConfig, description="Changes to TF_CONFIG.")
    limits: Limits = Field(default_factory=Limits, description="Limits of time and of restarts.")
    notify: Annotated[Notify | None, BeforeValidator(_notify, json_schema_input_type=Notify)] = Field(
        None,
        description="The command or webhook that gets a message when the run succeeds, fails or stalls; none when left out. "
        "With plain `docker compose up` nothing sends it; after `kubectl apply` only the attendant does, to a webhook.",
    )
    kubernetes: Kubernetes = Field(default_factory=Kubernetes, description="Settings for Kubernetes only.")
