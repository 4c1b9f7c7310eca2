"""The spec as data: one pydantic model a section. JSON Schema and docs/spec.md are made from these."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from launcher.spec import names
from launcher.spec.containers import Command, Env, Image, InitContainers, Sidecars
from launcher.spec.fields import Cpu, Duration, Memory, Name, ObjectName, Section
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
    """The tasks of one role: how many there are, what each of them gets, and what they run where that is not the spec's own."""

    replicas: int = Field(1, ge=1, le=10_000, description="How many tasks the role has.")
    cpu: Cpu | None = Field(
        None,
        description="CPU cores a task gets; `500m` or `0.5` is half a core. No limit when left out. On this machine: its number of threads.",
    )
    memory: Memory | None = Field(
        None, description="Memory a task gets, such as `4Gi`. No limit when left out, nor on this machine without containers."
    )
    gpus: int = Field(0, ge=0, le=64, description="GPUs a task gets. Where this machine has too few, its tasks run without.")
    gpu_type: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="On Kubernetes: the kind of GPU, by its product label, such as `NVIDIA-H100-80GB-HBM3`."
    )
    image: Image | None = Field(None, description="The role's container image, instead of the spec's.")
    command: Command | None = Field(None, description="The role's program, instead of the spec's `command`.")
    args: list[str] = Field(
        default_factory=list, description="Words that follow the `command`; without one, the arguments of the image's entrypoint."
    )
    env: Env = Field(default_factory=dict, description="Environment variables of the role's tasks, beside the spec's or in place of one.")
    init_containers: InitContainers = Field(default_factory=list)
    sidecars: Sidecars = Field(default_factory=list)
    working_dir: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="The directory in which the role's program starts: a path in its container, or a directory in `code`, relative to the spec. "
        "When left out `code`; without it the spec's directory on this machine, and the image's own in containers.",
    )
    restart: Literal["always", "on_failure", "never", "exit_code"] = Field(
        "on_failure",
        description="When a program is started again: `always` also after exit code 0, `exit_code` only after signals (128 and above). "
        "`always` is not for the role that decides the run's success, nor on Kubernetes for a role without the trainer's parent.",
    )
    max_restarts: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        None, description="Restarts after failures, for each task of the role; `limits.max_restarts` when left out."
    )


class Roles(Section):
    """The cluster's roles; which of them there may be depends on the strategy."""

    chief: Role | None = Field(None, description="The task that coordinates, saves checkpoints and writes logs.")
    worker: Role | None = Field(None, description="The tasks that compute gradients.")
    ps: Role | None = Field(None, description="The parameter servers, which hold the variables.")
    evaluator: Role | None = Field(
        None, description="The task that evaluates checkpoints, outside the cluster; the newest one where several wait."
    )


class Storage(Section):
    """The volume that holds the run directory."""

    size: Memory = Field("10Gi", description="On Kubernetes: how much is asked for, such as `20Gi`.")
    class_: ObjectName | None = Field(
        None, alias="class", description="On Kubernetes: the storage class; the cluster's default when left out."
    )
    mount: Literal["one", "all"] | None = Field(
        None,
        description="On Kubernetes, which tasks mount it: `one` is the leader (the chief) and, on its node, the evaluator and TensorBoard; `all` is "
        "every task. When left out `all` for a `command` of several tasks and for a multi_worker_mirrored of several workers without a chief, else `one`.",
    )
    access: Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"] | None = Field(
        None,
        description="The pods that may mount it at a time: those of one node, one pod, or those of many nodes. ReadWriteOnce with `mount: one` when left out, ReadWriteMany with `all`; "
        "a claim that is there keeps its own.",
    )


class TensorBoard(Section):
    """TensorBoard beside the run; `false` in place of the section for none. This machine starts none: `launcher tensorboard` does."""

    port: int = Field(6006, ge=1, le=65535, description="The port it answers on.")
    host: Annotated[str, AfterValidator(names.check_host)] = Field(
        "127.0.0.1",
        description="The address that it is reached at, here and in Compose; loopback unless you open it. Not on Kubernetes, where it has a Service.",
    )
    image: Image | None = Field(
        None,
        description="Its container's image, with `python` and TensorBoard in it; that of the tasks without one of their role's when left out.",
    )
    cpu: Cpu | None = Field(None, description="CPU cores it gets. On Kubernetes it asks for 100m, without a limit, when left out.")
    memory: Memory | None = Field(
        None, description="Memory it gets. On Kubernetes it asks for 512Mi, and 2Gi are the limit, when left out. No limit in Compose."
    )


class TfConfig(Section):
    """Changes to TF_CONFIG, compared with TensorFlow's own."""

    master: bool = Field(
        False,
        description="Whether the chief of a `command` is called `master`, in `cluster` and as task type, for programs that know TensorFlow 1's name.",
    )


class Limits(Section):
    """Limits of time and of restarts. Durations are such as `90s`, `10m`, `24h`."""

    max_restarts: int = Field(
        10,
        ge=0,
        le=1000,
        description="Restarts after failures, for each task, before the run fails. Those inside a container count no more once the chief or "
        "evaluator has a newer checkpoint, or another task or a `command` has run for ten minutes; "
        "containers and pods that are replaced count for as long as the run lasts.",
    )
    start_timeout: Duration = Field(
        "10m",
        description="How long tasks wait for their peers, and a run that the launcher or the attendant watches may take to start. "
        "Then it fails.",
    )
    deadline: Duration | None = Field(
        None, description="The run fails when it takes longer than this; not under `docker compose up` alone. No limit when left out."
    )
    orphan_timeout: Duration = Field(
        "10m",
        description="How long a ps or worker serves while its chief is unreachable, a chief waits while every worker is, an evaluator waits for news of "
        "its chief, and a task of a `command` for the leader's.",
    )
    worker_grace: Duration = Field(
        "10s", description="How long workers of parameter_server get to end by themselves once the run of a `command` has succeeded."
    )
    evaluator_grace: Duration = Field("10m", description="How long the evaluator of a `command` gets, which may never end by itself.")
    node_lost: Duration = Field(
        "60s", description="On Kubernetes: how long after the cluster deleted a lost node's pod the launcher lets the Job replace that."
    )
    stall_timeout: Duration | None = Field(
        None,
        description="A task that makes no progress for so long is stalled, and named in `status`. Left out: the longest of 60s, twenty median steps and "
        "three calls into TensorFlow; a `command` is not judged then, else by its output. The start, a compilation and the first call of each kind "
        "of the built-in trainer have at least 20 minutes.",
    )
    on_stall: OnStall = Field(
        "tell",
        description="The action when a task is stalled: `tell` says so, `restart` kills its process and starts it again, which counts, `fail` ends the run. "
        "A task that only waits for others is told of and left; a chief that waits for its servers is left for twice the time.",
    )
    save_timeout: Duration = Field(
        "30m",
        description="How long training goes on while no checkpoint can be saved, as the volume is full, read-only or broken, or does not answer. "
        "Then the run fails.",
    )
    grace_period: Duration = Field(
        "30s", description="How long a task may take to stop: all but the last 5s (at most half of it) are for saving its checkpoint."
    )


class ClusterSpec(Section):
    """One distributed TensorFlow cluster: its tasks, what they train, and where the results go."""

    version: Annotated[Literal[1], BeforeValidator(_version)] = Field(description="The spec format; always 1.")
    name: Name = Field(description="The run's name: a DNS label, the prefix of every task.")
    strategy: Strategy = Field("single", description="How the replicas work together.")
    image: Image | None = Field(
        None,
        description="The container image; the project's own trainer image when left out. With neither `train` nor `command` its entrypoint runs.",
    )
    security: Literal["hardened", "image"] = Field(
        "hardened",
        description="The rights of the tasks' containers: `hardened` is uid 1000 (on Kubernetes `kubernetes.user`), no capabilities and a root file system that is read-only; `image` is "
        "for images that need root or a writable root file system, and leaves user, capabilities and file system as the image and the engine have them.",
    )
    roles: Roles = Field(default_factory=lambda: Roles(chief=Role()), description="The cluster's tasks by role; one chief when left out.")
    train: Train | None = Field(None, description="The training of the built-in trainer. Excludes `command`.")
    command: Command | None = Field(None, description="Any program that reads TF_CONFIG. Excludes `train`.")
    success: Literal["chief", "all_workers"] = Field(
        "chief",
        description="The tasks whose exit 0 means that a `command` has succeeded: the chief (worker-0 where there is none), or that and all workers.",
    )
    supervise: bool = Field(
        True,
        description="Whether a `command` in an `image` of your own runs under the trainer's parent, which comes with the run and needs Python 3.8 "
        "or later there. `false` is for images without Python.",
    )
    code: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="A directory with your code, made importable in every task; relative to the spec."
    )
    env: Env = Field(
        default_factory=dict,
        description="Environment variables of every task: a text, or `{secret: NAME, key: KEY}` for a value that must not be in a file.",
    )
    env_file: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="A file that has values for those variables of `env` that come from secrets, in lines of `NAME=value`; relative to the spec. It is "
        "read on this machine and for Compose, for what is not set where `launcher up` is called. On Kubernetes the Secrets have the values.",
    )
    volumes: list[Volume] = Field(default_factory=list, description="More volumes of the tasks in containers, such as one with data.")
    init_containers: InitContainers = Field(default_factory=list)
    sidecars: Sidecars = Field(default_factory=list)
    storage: Annotated[Storage | None, BeforeValidator(_storage, json_schema_input_type=Storage)] = Field(
        None,
        description="The volume of the run directory. When left out there is one with the defaults, except where all tasks run images "
        "of your own and `kubernetes.claim` names none: those have no volume, no RUN_DIR and no TensorBoard in containers. With `storage: {}` they have.",
    )
    tensorboard: Annotated[TensorBoard | None, BeforeValidator(_tensorboard, json_schema_input_type=TensorBoard | Literal[False])] = Field(
        default_factory=TensorBoard, description="TensorBoard beside the run; `false` for none."
    )
    tf_config: TfConfig = Field(default_factory=TfConfig, description="Changes to TF_CONFIG.")
    limits: Limits = Field(default_factory=Limits, description="Limits of time and of restarts.")
    notify: Annotated[Notify | None, BeforeValidator(_notify, json_schema_input_type=Notify)] = Field(
        None,
        description="The command or webhook that gets a message when the run succeeds, fails or stalls; none when left out. "
        "Under `docker compose up` alone nobody sends it, and after `kubectl apply` only the attendant, to a webhook.",
    )
    kubernetes: Kubernetes = Field(default_factory=Kubernetes, description="Settings for Kubernetes alone.")
