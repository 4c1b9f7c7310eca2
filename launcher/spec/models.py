"""The spec as data: one pydantic model a section. JSON Schema and docs/spec.md are made from these."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainer.settings import Strategy, Train


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Role(Section):
    """The tasks of one role: how many there are and what each of them gets."""

    replicas: int = Field(1, ge=1, le=10_000, description="How many tasks the role has.")
    cpu: float | None = Field(None, gt=0, le=1024, description="CPU cores a task gets; `500m` or `0.5` is half a core.")
    memory: str | None = Field(None, description="Memory a task gets, such as `4Gi`.")
    gpus: int = Field(0, ge=0, le=64, description="GPUs a task gets.")
    gpu_type: str | None = Field(None, description="Which GPU, by its product label, such as `NVIDIA-H100-80GB-HBM3`.")


class Roles(Section):
    """The cluster's roles; which of them there may be depends on the strategy."""

    chief: Role | None = Field(None, description="The task that coordinates, saves checkpoints and writes logs.")
    worker: Role | None = Field(None, description="The tasks that compute gradients.")
    ps: Role | None = Field(None, description="The parameter servers, which hold the variables.")
    evaluator: Role | None = Field(None, description="The task that evaluates each checkpoint, outside the cluster.")


class Storage(Section):
    """The volume that holds the run directory."""

    size: str = Field("10Gi", description="How much is asked for, such as `20Gi`.")
    class_: str | None = Field(None, alias="class", description="The storage class; the cluster's default when left out.")
    access: Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"] = Field("ReadWriteMany", description="Who may mount it at a time.")


class TensorBoard(Section):
    """TensorBoard beside the run."""

    port: int = Field(6006, ge=1, le=65535, description="The port it answers on.")
    host: str = Field("127.0.0.1", description="The address it listens on; loopback unless you open it.")


class Limits(Section):
    """When to give up. Durations are such as `90s`, `10m`, `24h`."""

    max_restarts: int = Field(10, ge=0, le=1000, description="Restarts after failures, for each task, before the run fails.")
    start_timeout: str = Field("10m", description="How long tasks wait for their peers.")
    deadline: str | None = Field(None, description="The run fails when it takes longer than this.")
    orphan_timeout: str = Field("10m", description="How long a ps or worker serves while its chief is unreachable.")
    grace_period: str = Field("30s", description="How long a task may take to save its checkpoint when asked to stop.")


class Kubernetes(Section):
    """What only Kubernetes needs to know."""

    namespace: str | None = Field(None, description="The namespace; the context's own when left out.")
    queue: str | None = Field(None, description="The Kueue queue that admits the run.")
    priority_class: str | None = Field(None, description="The pods' priority class.")
    node_selector: dict[str, str] = Field(default_factory=dict, description="Labels a node must have.")
    tolerations: list[dict[str, Any]] = Field(default_factory=list, description="Taints the pods tolerate.")


class ClusterSpec(Section):
    """One distributed TensorFlow cluster: its tasks, what they train, and where the results go."""

    version: Literal[1] = Field(description="The spec format; always 1.")
    name: str = Field(description="The run's name: a DNS label, the prefix of every task.")
    strategy: Strategy = Field("single", description="How the replicas work together.")
    image: str | None = Field(None, description="The container image; the project's own trainer image when left out.")
    roles: Roles = Field(default_factory=lambda: Roles(chief=Role()), description="The cluster's tasks by role.")
    train: Train | None = Field(None, description="What the built-in trainer trains. Excludes `command`.")
    command: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="Any program that reads TF_CONFIG. Excludes `train`."
    )
    code: str | None = Field(None, description="A directory with your code, made importable in every task; relative to the spec.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of every task.")
    storage: Storage = Field(default_factory=Storage, description="The volume of the run directory.")
    tensorboard: TensorBoard = Field(default_factory=TensorBoard, description="TensorBoard beside the run.")
    limits: Limits = Field(default_factory=Limits, description="When to give up.")
    kubernetes: Kubernetes = Field(default_factory=Kubernetes, description="What only Kubernetes needs to know.")
