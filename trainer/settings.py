"""The trainer's settings: the models behind a spec's `train` section and the TRAINER_SETTINGS variable.

Imports no TensorFlow: the launcher validates with these models too. Field descriptions end up in the
JSON Schema and in docs/spec.md.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainer.exit_codes import OnStall, RestartWhen
from trainer.strategies import Strategy

Steps = Annotated[int, Field(ge=1, le=1_000_000_000)]


class Settings(BaseModel):
    """Base of all settings: unknown keys are errors, values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Sync(Settings):
    """Synchronous parameter-server training with backup workers."""

    replicas_to_aggregate: int = Field(ge=1, description="Gradients that make one step; workers beyond it are backups.")


class LearningRate(Settings):
    """The learning rate over the steps; it takes the place of the workload's own."""

    schedule: Literal["constant", "cosine", "linear", "exponential", "piecewise"] = Field(
        "constant", description="How the rate falls after the warm-up; `constant` does not."
    )
    initial: float | None = Field(None, gt=0, description="The rate that the schedule starts from; the workload's own when left out.")
    warmup_steps: int = Field(
        0, ge=0, le=1_000_000_000, description="Steps of a linear warm-up from `initial / warmup_steps` to `initial`."
    )
    decay_steps: Steps | None = Field(
        None, description="cosine, linear: steps of the whole fall, up to the last step when left out. exponential: steps of one factor."
    )
    decay_rate: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="exponential: the factor each `decay_steps` steps; 0.1 when left out."
    )
    staircase: bool | None = Field(None, description="exponential: fall all at once after each `decay_steps` instead of little by little.")
    final: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="cosine, linear: the part of `initial` that is left at the end; 0 when left out."
    )
    boundaries: list[Steps] | None = Field(None, description="piecewise: steps after the warm-up after which the rate changes, ascending.")
    factors: list[Annotated[float, Field(ge=0)]] | None = Field(
        None, description="piecewise: the part of `initial` after each boundary; as many as boundaries."
    )


class Gradients(Settings):
    """The processing of gradients between their computation and the update."""

    clip_value: float | None = Field(None, gt=0, description="Cut each element to at most this size.")
    clip_norm: float | None = Field(None, gt=0, description="Scale each variable's gradient down to at most this norm.")
    clip_global_norm: float | None = Field(None, gt=0, description="Scale all gradients together down to at most this norm.")
    accumulate: int = Field(1, ge=1, le=10_000, description="Batches of a replica whose mean gradient makes one step.")
    wire: Literal["float32", "bfloat16"] = Field(
        "float32", description="How gradients travel between tasks; bfloat16 halves the bytes and keeps 8 bits of precision."
    )


Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]


class Embeddings(Settings):
    """The embedding layers of a Keras model of which a step reads and updates only the rows it uses; parameter_server spreads them over its ps."""

    min_rows: int = Field(1_000_000, ge=1, description="Layers of at least so many rows are updated by rows.")
    min_mebibytes: int = Field(64, ge=1, description="Layers of at least so many MiB are updated by rows, too.")
    sharded: list[str] = Field(default=[], description="Names of layers that are always updated by rows.")
    whole: list[str] = Field(default=[], description="Names of layers that are never updated by rows.")


class CheckpointSettings(Settings):
    """When the chief saves, and how many checkpoints it keeps."""

    every_steps: Steps | None = Field(None, description="Save each time this many steps are done.")
    every_seconds: float | None = Field(None, gt=0, description="Save when this many seconds have passed since the last save.")
    keep: int = Field(3, ge=1, le=1000, description="How many of the newest checkpoints stay on disk.")


class Evaluation(Settings):
    """When the chief evaluates on the held-out set, into `logs/eval`; with an evaluator only after the last step, and each epoch for callbacks."""

    every_steps: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Evaluate each time this many steps are done; 0 evaluates only at the end."
    )
    batch_size: int = Field(1000, ge=1, description="Examples in one evaluation batch.")


class Summaries(Settings):
    """The chief's summaries for TensorBoard, in `logs/train`."""

    every_steps: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Write summaries each time this many steps are done; 0 writes none."
    )
    profile_every_steps: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Record a profile of one step each time this many steps are done; 0 records none."
    )


# Whether more or less of a metric is better, by the last word of its name that is listed.
_MORE_IS_BETTER = "acc accuracy auc precision recall f1 fbeta iou dice bleu rouge psnr ssim r2 return reward score"
_LESS_IS_BETTER = "loss error mae mse rmse msle mape crossentropy entropy perplexity divergence distance wer cer"
_DIRECTIONS: dict[str, Literal["min", "max"]] = {
    **dict.fromkeys(_MORE_IS_BETTER.split(), "max"),
    **dict.fromkeys(_LESS_IS_BETTER.split(), "min"),
}

Mode = Literal["auto", "min", "max"]


def direction(metric: str, mode: Mode) -> Literal["min", "max"] | None:
    """Return whether the lowest or the highest value of a metric is its best; None where `auto` cannot decide by its name."""
    if mode != "auto":
        return mode
    words = re.split(r"[^a-z0-9]+", metric.lower())
    return next((_DIRECTIONS[word] for word in reversed(words) if word in _DIRECTIONS), None)


class EarlyStopping(Settings):
    """When the run ends before its last step because it gets no better."""

    metric: str = Field("loss", min_length=1, description="The evaluation's metric that is watched.")
    mode: Mode = Field("auto", description="Whether less or more of it is better; `auto` decides by the metric's name.")
    patience: int = Field(5, ge=1, description="Evaluations in a row without a better value after which the run ends.")
    min_delta: float = Field(0.0, ge=0, description="By how much a value must be better to count.")


class Export(Settings):
    """The export of a model for use elsewhere, into `export/best`; into `export/last` where nothing was evaluated."""

    metric: str | None = Field(
        None,
        min_length=1,
        description="The measure on the held-out set that says which model is best: loss or one of the workload's metrics."
        " Left out: accuracy where there is one, else loss.",
    )
    mode: Mode = Field("auto", description="Whether the lowest or the highest value is best; `auto` knows it by the metric's name.")
    formats: list[Literal["keras", "saved_model"]] = Field(
        default=["keras", "saved_model"],
        description="The formats: `model.keras`, `saved_model/`; an empty list exports nothing.",
    )


class Train(Settings):
    """The `train` section: the training of the built-in trainer. The workload decides fields that are left out."""

    workload: str = Field(
        min_length=1,
        description="A built-in name (mnist, cifar10, ...), or package.module:name of a class, Keras model, model function or program of your own.",
    )
    steps: Steps | None = Field(None, description="Global steps to train for.")
    epochs: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Passes over the training data to train for, in the place of `steps`, where the number of examples is known."
    )
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Examples in one batch of a replica; a step takes `gradients.accumulate` batches."
    )
    params: dict[str, Any] = Field(default_factory=dict, description="The workload's own parameters; docs/workloads.md lists them.")
    data: str = Field(
        "synthetic",
        min_length=1,
        description="`synthetic`, `download`, or a directory with the published files; which of them a workload has: docs/workloads.md.",
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Seed of start weights, shuffling and dropout.")
    sync: Sync | None = Field(None, description="Synchronous updates on parameter_server; without it they are asynchronous.")
    learning_rate: LearningRate | None = Field(None, description="The learning rate over the steps, instead of the workload's own.")
    gradients: Gradients = Field(default_factory=Gradients, description="Clipping, accumulation, and how gradients travel.")
    embeddings: Embeddings | None = Field(
        None,
        description="Which embedding layers are read and updated by rows, spread over parameter servers; the large ones when left out.",
    )
    precision: Precision = Field(
        "float32",
        description="The precision of layers; with a mixed one, variables stay float32. mixed_float16 scales the loss. "
        "With float32, a Keras dtype policy that your code sets on import stays in effect.",
    )
    jit_compile: bool = Field(False, description="Compile a replica's forward and backward pass with XLA.")
    deterministic: bool = Field(False, description="Take only operations that give the same bits each time; slower.")
    on_nan: Literal["stop", "warn"] = Field(
        "stop",
        description="When a loss or a weight is not finite: `stop` fails the run, `warn` says so once. Weights that are not finite are never saved.",
    )
    early_stopping: EarlyStopping | None = Field(None, description="End the run when an evaluation's metric gets no better.")
    max_seconds: float | None = Field(
        None, gt=0, description="End the run, as done, when it has trained for this many seconds, restarts included."
    )
    steps_per_execution: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="Steps run by one call into TensorFlow; chosen by measurement when left out."
    )
    report_every_steps: Steps | None = Field(
        None, description="Report progress each time this many steps are done; about twice a second when left out."
    )
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings, description="Checkpoints: when to save, and how many stay.")
    evaluate: Evaluation = Field(default_factory=Evaluation, description="When to evaluate on the held-out set.")
    summaries: Summaries = Field(default_factory=Summaries, description="Summaries for TensorBoard, and how often.")
    export: Export | None = Field(
        None,
        description="Export the best model for use elsewhere. Left out: a model of your own is exported, a built-in one only by an evaluator."
        " `{formats: []}` exports nothing.",
    )


class Ending(Settings):
    """When the run of a user's own program has ended, and how its tasks learn of it; see trainer/run_end.py. Times in seconds."""

    port: int = Field(ge=1, le=65535, description="The port at which the leader's parent answers the others.")
    success: Literal["chief", "all_workers"] = Field("chief", description="The tasks whose exit 0 the run's success needs.")
    graces: dict[str, float] = Field(default_factory=dict, description="How long a task gets by its role to end by itself after that.")
    grace_period: float = Field(30, ge=0, description="How long a task may take that is asked to stop.")


class Restarts(Settings):
    """When and how often the tasks of a role are started again in place."""

    restart: RestartWhen = Field(
        "on_failure", description="`always`: after every exit; `on_failure`: after failures; `exit_code`: only after signals."
    )
    max_restarts: int = Field(10, ge=0, description="How often, after failures.")


class TrainerSettings(Settings):
    """The whole of TRAINER_SETTINGS: the `train` section and what the launcher derives for a task.

    Paths are paths on the task's own machine or container; times are seconds.
    """

    run: str = Field(description="The run's name.")
    strategy: Strategy = Field("single", description="How the replicas work together.")
    run_dir: str = Field(description="The run directory: checkpoints/, logs/, run.json.")
    scratch_dir: str = Field(description="A directory of the machine's own, where servers find their stop files.")
    spec_digest: str = Field("", description="Digest of the spec, recorded in run.json.")
    local_replicas: int = Field(1, ge=1, description="Devices that `mirrored` uses where the machine has no GPU.")
    has_evaluator: bool = Field(
        False,
        description="An evaluator task follows the checkpoints; the chief then evaluates only at the end, and each epoch for callbacks.",
    )
    max_restarts: int = Field(10, ge=0, description="Restarts in place after failures before a task fails for good.")
    restarts: dict[str, Restarts] | None = Field(
        None, description="Restart rules of the roles that have their own, by role; `max_restarts` is for the others."
    )
    start_timeout: float = Field(600, gt=0, description="Seconds to wait for peers.")
    orphan_timeout: float = Field(
        600, gt=0, description="Seconds a ps or worker serves without its chief, and a chief waits without any worker."
    )
    stall_timeout: float | None = Field(None, gt=0, description="Seconds without progress after which a task is stalled.")
    on_stall: OnStall | None = Field(None, description="What follows a stall; `tell` if left out.")
    save_timeout: float | None = Field(
        None, gt=0, description="Seconds that training goes on while nothing can be saved; 1800 when left out."
    )
    grace_period: float | None = Field(
        None, gt=0, description="Seconds a task may take to save when it is asked to stop; 30 when left out."
    )
    ending: Ending | None = Field(
        None, description="How the tasks of a `command` learn that the run has ended; None if the launcher ends them."
    )
    unsupervised: list[str] | None = Field(
        None, description="The roles without a parent, whose tasks do not ask whether the run has ended."
    )
    train: Train | None = Field(None, description="The training; none for a user's own command.")
