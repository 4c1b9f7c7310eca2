"""The configuration of the engine: the trainer's settings with all defaults filled in."""

from dataclasses import dataclass
from pathlib import Path

from trainer.engine.epochs import EpochLength
from trainer.settings import CheckpointSettings, Export, Train, TrainerSettings
from trainer.strategies import TRAINING_STRATEGIES, Strategy
from trainer.workloads.catalog import CATALOG, with_defaults
from trainer.workloads.errors import WorkloadError

# Defaults in seconds, as those of a spec: limits.save_timeout and limits.grace_period.
_SAVE_TIMEOUT, _GRACE_PERIOD = 1800.0, 30.0


@dataclass(frozen=True)
class TrainConfig:
    """The work of one run. Numbers called `every` count global steps, 0 for never; times are in seconds. A program has no steps and no batches."""

    run: str
    strategy: Strategy
    run_dir: Path
    scratch_dir: str
    spec_digest: str
    local_replicas: int
    start_timeout: float
    orphan_timeout: float
    save_timeout: float
    grace_period: float
    train: Train  # what `load_workload` takes
    steps: int  # 0 until epochs.with_steps has counted `train.epochs`
    batch_size: int
    seed: int
    examples_per_step: int  # of one replica
    steps_per_execution: int | None  # None: chosen by measurement
    report_every: int  # 0: by the clock
    checkpoint: CheckpointSettings
    has_evaluator: bool
    evaluate_every: int
    evaluation_batch_size: int
    export: Export | None  # of the best model, by the task that evaluates; None: no export
    summaries_every: int
    profile_every: int
    epoch_length: EpochLength | None = None  # None until epochs.with_steps, or if the number of examples is not known


def train_config(settings: TrainerSettings) -> TrainConfig:
    """Complete the settings with the workload's defaults.

    Raises:
        WorkloadError: there is nothing to train, or no number of steps or epochs.
    """
    if settings.train is None:
        raise WorkloadError("the settings have no `train` section; give one, or run a command: trainer -- python train.py")
    train = with_defaults(settings.train, settings.strategy)
    if settings.strategy in TRAINING_STRATEGIES and ((train.steps is None and train.epochs is None) or train.batch_size is None):
        raise WorkloadError(
            f"train.steps is {train.steps} and train.batch_size {train.batch_size} for {train.workload}; give both a number"
        )
    return TrainConfig(
        run=settings.run,
        strategy=settings.strategy,
        run_dir=Path(settings.run_dir),
        scratch_dir=settings.scratch_dir,
        spec_digest=settings.spec_digest,
        local_replicas=settings.local_replicas,
        start_timeout=settings.start_timeout,
        orphan_timeout=settings.orphan_timeout,
        save_timeout=settings.save_timeout or _SAVE_TIMEOUT,
        grace_period=settings.grace_period or _GRACE_PERIOD,
        train=train,
        steps=train.steps or 0,
        batch_size=train.batch_size or 0,
        seed=train.seed,
        examples_per_step=(train.batch_size or 0) * train.gradients.accumulate,
        steps_per_execution=train.steps_per_execution,
        report_every=train.report_every_steps or 0,
        checkpoint=train.checkpoint,
        has_evaluator=settings.has_evaluator,
        # An evaluator follows the checkpoints, so the chief evaluates only at the end.
        evaluate_every=0 if settings.has_evaluator else train.evaluate.every_steps or 0,
        evaluation_batch_size=train.evaluate.batch_size,
        export=_export(settings, train),
        summaries_every=train.summaries.every_steps or 0,
        profile_every=train.summaries.profile_every_steps or 0,
    )


def _export(settings: TrainerSettings, train: Train) -> Export | None:
    # An evaluator has time to export. A chief takes it from training: by default only for a user's own model.
    own = settings.strategy in TRAINING_STRATEGIES and train.workload not in CATALOG
    export = train.export or (Export() if settings.has_evaluator or own else None)
    return export if export and export.formats else None
