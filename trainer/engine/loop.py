"""The outer loop: runs a session to its last step, and decides when to save, evaluate and write summaries."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainer.engine import cadence, data_length, evaluations, model_ops, moving_averages
from trainer.engine.cadence import REPORT_INTERVAL, Interval, Rate
from trainer.engine.callbacks import CallbackList
from trainer.engine.changes import Snapshot
from trainer.engine.checkpoints import Checkpoints
from trainer.engine.divergence import Divergence
from trainer.engine.early_stopping import EarlyStop, check_metric
from trainer.engine.embeddings import exported_tables
from trainer.engine.embeddings.sharded_tables import Tables
from trainer.engine.export import BestModel, clear_last, write_last
from trainer.engine.file_writer import FileWriter
from trainer.engine.replica import MAX_NAMES
from trainer.engine.run_state import Record, RunState
from trainer.engine.saving import Saver, Timeouts
from trainer.engine.session import CallProgress, SaveError, Session, UnsavedStopError, WorkerProgress
from trainer.engine.tensorboard_logs import Logs
from trainer.engine.train_config import TrainConfig
from trainer.events import Reporter, join_names
from trainer.workloads.protocol import Agent, Workload, WritesStartSummaries, WritesSummaries

_EXPORT_SHARE = 0.1  # the largest fraction of the time that exports of the best model take before the end
_OPTIONAL_FIELDS = ("input_wait", "peer_wait", "dropped")
_RECORD_INTERVAL = 10.0  # seconds after which run.json says again that the run is alive

_WRITE_TIMEOUT = 1.0  # seconds to wait until an evaluation is written: early stopping reads the file
_LAST_WRITES_TIMEOUT = 10.0  # the same at the end


@dataclass(frozen=True)
class TrainingOutcome:
    """The result of the loop: every step done, or stopped on request after `step`."""

    step: int
    finished: bool
    metrics: dict[str, float]
    ended_early: str | None = None  # the reason, if it ended before the last step


def run(
    session: Session,
    workload: Workload | Agent,
    config: TrainConfig,
    report: Reporter,
    stop_requested: Callable[[], bool],
    own_stop_requested: Callable[[], bool] | None = None,
) -> TrainingOutcome:
    """Train until every step is done or a task was asked to stop. Every task of the strategy runs this.

    `stop_requested` returns whether this task or a ps was asked to stop; `own_stop_requested` whether this task was, so that it has only its grace
    period to save. Without `own_stop_requested` every stop has that limit.

    Raises:
        PeerLostError: from the session; training resumes from the last save.
        WorkloadError: the training data ends before the last step.
        CheckpointError: the checkpoints in the run directory are of another model.
        DivergedError: a loss or a weight is not finite, and `train.on_nan` is `stop`.
        SaveError, UnsavedStopError: see Saver.
    """
    divergence, callbacks = Divergence(session, config, report), CallbackList(session, workload, config, report)
    chief = (
        _Chief(session, workload, config, report, divergence, callbacks, stop_requested, own_stop_requested or stop_requested)
        if session.is_chief
        else None
    )
    with chief or nullcontext(), session.tables.translate_errors(config) if session.tables else nullcontext():
        outcome = _run(session, config, report, stop_requested, divergence, callbacks, chief)
        if chief is None:
            return outcome
        stopping = own_stop_requested() if own_stop_requested else not outcome.finished
        return chief.finish(finished=outcome.finished, stopping=stopping)


def _run(
    session: Session,
    config: TrainConfig,
    report: Reporter,
    stop_requested: Callable[[], bool],
    divergence: Divergence,
    callbacks: CallbackList,
    chief: "_Chief | None",
) -> TrainingOutcome:
    session.begin_at(chief.restore() if chief else 0)
    if chief and session.step < config.steps and (config.evaluate_every or callbacks.enabled):  # callbacks may evaluate, too
        chief.prepare_evaluation()
    report.start_step = session.step
    worker_reporter = _WorkerReporter(config, report)
    every = (config.evaluate_every, config.checkpoint.every_steps, config.summaries_every, config.profile_every, config.report_every)
    # Every task takes the chief's proposal for the next call, so that all run the same number of steps.
    fixed = config.steps_per_execution or (1 if callbacks.by_batch else None)
    wanted = proposal = fixed or 1
    profile_due = Interval(config.profile_every)  # not `step % every`: asynchronous steps may skip that one
    profile_due.start(session.step)
    report.heartbeat("callbacks", step=session.step)
    stop, finish = False, callbacks.begin(session.step, chief.evaluate if chief else None)
    report.heartbeat("training", step=session.step)
    step = session.step  # as reported; the session may be ahead of it after a checkpoint
    while step < config.steps and not (stop or finish):
        profiling = profile_due(step)
        steps = 1 if profiling else cadence.to_boundary(step, wanted, callbacks.epoch_end(config.steps), *every)
        with data_length.translate_end_of_data(config), chief.logs.profile() if chief and profiling else nullcontext():
            ends_early = chief is not None and bool(chief.early_stop(session.step))
            progress = session.run(steps, stop=stop_requested(), finish=ends_early, next_steps=proposal)
        divergence.check(progress.non_finite)
        step = progress.step
        report.heartbeat("training", step=step, steps=progress.steps)
        finish = progress.finish and step < config.steps
        stop = progress.stop and step < config.steps and not finish
        (chief or worker_reporter).after(progress)
        if callbacks.enabled:
            report.heartbeat("callbacks", step=step)
        finish = callbacks.after(progress) or finish
        report.heartbeat("training", step=step, steps=0)
        if chief and not finish:  # the end is saved when callbacks have been called for it
            chief.save_when_due(progress)
        wanted = progress.next_steps or wanted
        if not fixed and not profiling:
            proposal = cadence.next_steps(progress.steps, progress.seconds)
    return TrainingOutcome(session.step, not stop, {})


class _Chief:
    """The chief's own work between calls: it reports, saves, evaluates and writes."""

    def __init__(
        self,
        session: Session,
        workload: Workload | Agent,
        config: TrainConfig,
        report: Reporter,
        divergence: Divergence,
        callbacks: CallbackList,
        stop_requested: Callable[[], bool],
        own_stop_requested: Callable[[], bool],
    ) -> None:
        self._session, self._workload, self._config, self._report = session, workload, config, report
        self._divergence, self._callbacks = divergence, callbacks
        self._stop_requested, self._own_stop_requested = stop_requested, own_stop_requested
        self._files = FileWriter(report)
        self.logs = Logs(config.run_dir, self._files)
        tables = session.tables.files() if session.tables else None
        self._checkpoints = Checkpoints(config.run_dir / "checkpoints", session.model, session.optimizer, config.checkpoint.keep, tables)
        self._record = Record(
            config.run_dir,
            self._files.replace,
            name=config.run,
            strategy=config.strategy,
            workload=config.train.workload,
            steps=config.steps,
            **({"epochs": config.train.epochs} if config.train.epochs else {}),
            spec_digest=config.spec_digest,
        )
        self._timeouts = Timeouts(config.save_timeout, config.grace_period)
        self.saver = Saver(self._checkpoints, report, self._timeouts, self._note_checkpoint)
        self.early_stop = EarlyStop(config.train, config.run_dir)
        if config.train.early_stopping and (names := model_ops.evaluated_names(workload, session.model)) is not None:
            check_metric(config.train.early_stopping, names)
        self._evaluation: model_ops.ModelEvaluation | None = None
        self._best: BestModel | None = None
        if session.tables:
            report("notice", message=session.tables.described())
        self._sharded_tables = session.tables if isinstance(session.tables, Tables) else None
        self._export = config.export
        if (
            self._sharded_tables
            and config.export
            and not config.has_evaluator
            and (message := exported_tables.omitted_formats(config.export))
        ):
            report("notice", message=message)
        if self._sharded_tables and config.export and "saved_model" not in config.export.formats:
            self._export = None
        if self._export:
            clear_last(config.run_dir)
        if self._export and not config.has_evaluator:
            names = model_ops.evaluated_names(workload, session.model) if self._export.metric else None
            sharded = self._sharded_tables
            self._best = BestModel(self._export, config.run_dir, names, session.model, report, share=_EXPORT_SHARE, tables=sharded)
        self._save_due = Interval(config.checkpoint.every_steps, config.checkpoint.every_seconds)
        self._evaluate_due = Interval(config.evaluate_every)
        self._summaries_due = Interval(config.summaries_every)
        self._report_due = Interval(config.report_every, None if config.report_every else REPORT_INTERVAL)
        self._recorded_at, self._recorded_step = 0.0, 0
        self._reported = False
        self._reported_rate, self._written_rate = Rate(), Rate()
        self._saved_step: int | None = None
        self._evaluated_step: int | None = None
        self._evaluated = Snapshot(())  # of the evaluated weights, if there are callbacks, which may change them
        self._metrics: dict[str, float] = {}

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for a bounded time until everything is written; only a second after a SaveError or UnsavedStopError: the volume has had its time."""
        if kind is not None and issubclass(kind, (SaveError, UnsavedStopError)):
            self._files.close(1.0)
            return
        self.saver.wait()
        if self._best and kind is not None:
            self._best.wait(_LAST_WRITES_TIMEOUT)
        self._files.close(_LAST_WRITES_TIMEOUT)

    def _note_checkpoint(self, step: int, path: str) -> None:
        """Record a checkpoint before it is reported; the thread that saves calls this, and training may have come further."""
        self._record.update("running", max(step, self._recorded_step), checkpoint=path)
        self._files.wait(_WRITE_TIMEOUT)

    def restore(self) -> int:
        """Load the newest checkpoint and return its step, or 0."""
        restored = self._checkpoints.restore(lambda message: self._report("notice", message=message))
        step = restored.step if restored else 0
        if message := self._checkpoints.free_space_notice():
            self._report("notice", message=message)
        if restored:
            self._report("restored", step=restored.step, path=restored.path)
            self._saved_step = step
            self._callbacks.restore(restored.callbacks)
        for due in (self._save_due, self._evaluate_due, self._summaries_due, self._report_due):
            due.start(step)
        self._update_record("running", step)
        for rate in (self._reported_rate, self._written_rate):
            rate.start()
        if self._config.summaries_every and isinstance(self._workload, WritesStartSummaries):
            with self.logs.training_writer(0):
                self._workload.write_start_summaries(self._session.model, self.logs.train_dir)
        return step

    def after(self, progress: CallProgress) -> None:
        """Report, write summaries and evaluate after a call, each when it is due."""
        self.saver.check()
        step = progress.step
        last = step >= self._config.steps or progress.finish
        if not self._reported and (names := self._session.without_gradient):
            self._report(
                "notice",
                message=f"these trainable weights stay as they are, since the loss has no gradient to them: {join_names(names, MAX_NAMES)}; "
                "if that is intended, set `trainable = False` on their layers",
            )
        for rate in (self._reported_rate, self._written_rate):
            rate.add(progress.examples, progress.steps)
        if self._report_due(step) or last or progress.stop or not self._reported:
            self._report_progress(progress)
        if time.monotonic() - self._recorded_at >= _RECORD_INTERVAL:
            self._update_record("running", step)
        fetched = False
        if self._summaries_due(step):
            self._session.fetch()
            fetched = True
            self.logs.progress(progress, self._session.optimizer, self._written_rate.take()[0])
            if isinstance(self._workload, WritesSummaries):
                with self.logs.training_writer(step):
                    self._workload.write_summaries(self._session.model, step)
        if self._evaluate_due(step) and not last:
            if not fetched:
                self._session.fetch()
            self.evaluate(step)

    def save_when_due(self, progress: CallProgress) -> None:
        """Save after a call and its callbacks, when a save is due."""
        due = self._save_due(progress.step) or self.saver.retry_is_due
        if due and progress.step < self._config.steps and not progress.finish:
            self._divergence.flush()
            self._session.fetch()
            if self._saved_step != self._session.step:  # equal if the last save has flushed these steps, too
                self._save(self._session.step)

    def finish(self, *, finished: bool, stopping: bool) -> TrainingOutcome:
        """Save and evaluate for the last time."""
        began = time.monotonic()
        step = self._session.step
        early = (self._callbacks.reason or self.early_stop(step)) if finished and step < self._config.steps else None
        if early:
            self._report("notice", message=f"the run ends after step {step} of {self._config.steps}: {early}")
        self._divergence.flush()
        self._session.fetch()
        if self._callbacks.end(finished=finished):  # callbacks have changed the weights after they were saved
            self._saved_step = None
        self._report.heartbeat("saving", step=step)
        self.saver.complete(self._own_stop_requested, stopping=stopping, since=began)
        if self._saved_step != step or self.saver.saved_step != step:
            self._save(step, last=True)
        if finished:
            self.evaluate(step)
        self._report.heartbeat("saving", step=step)
        self.saver.complete(self._own_stop_requested, stopping=stopping, since=began)
        if finished or stopping:
            deadline = self._export_deadline(began if stopping else None)
            if self._best:  # after the last save, which needs the disk's space more
                self._best.finish(deadline, step, finished=finished)
            self._export_last(step, deadline, finished=finished)
        elif self._best and not self._sharded_tables:
            # A server stops: the next attempt resumes with this model. To write rows takes too long.
            self._best.wait(_LAST_WRITES_TIMEOUT)
        self.logs.close()
        self._update_record("succeeded" if finished else "stopped", step, metrics=self._metrics, ended_early=early)
        return TrainingOutcome(step, finished, self._metrics, early)

    def _export_deadline(self, stop_at: float | None) -> Callable[[], float]:
        """Return a function for the deadline of exports: the save timeout from now, cut to the grace period once a stop is requested (earlier: `stop_at`)."""
        end = time.monotonic() + self._timeouts.timeout if stop_at is None else stop_at + self._timeouts.stop

        def deadline() -> float:
            nonlocal stop_at, end
            if stop_at is None and self._own_stop_requested():
                stop_at = time.monotonic()
                end = min(end, stop_at + self._timeouts.stop)
            return end

        return deadline

    def _export_last(self, step: int, deadline: Callable[[], float], *, finished: bool) -> None:
        """Export the model as it is if there is no best one: nothing was evaluated yet, or no evaluation gave a number."""
        evaluated = self._best.has_best if self._best else finished  # by the evaluator, which waits for the last checkpoint
        if self._export and not evaluated and self._divergence.may_save(step):
            with moving_averages.swapped_in(self._session.model, self._session.optimizer):
                model, run_dir, tables = self._session.model, self._config.run_dir, self._sharded_tables
                write_last(self._export, run_dir, step, self._metrics, model, self._report, deadline, finished=finished, tables=tables)

    def _report_progress(self, progress: CallProgress) -> None:
        examples_per_second, seconds_per_step = self._reported_rate.take()
        self._report(
            "progress",
            step=progress.step,
            steps=self._config.steps,
            **_loss_of(progress),
            metrics=progress.metrics,
            examples_per_second=examples_per_second,
            seconds_per_step=seconds_per_step,
            **_optional_fields(progress),
        )
        self._reported = True
        for worker in progress.workers:
            self._report(
                "progress",
                task=worker.task,
                step=progress.step,
                steps=self._config.steps,
                local_step=worker.local_step,
                **_loss_of(worker),
                metrics=worker.metrics,
                examples_per_second=worker.examples_per_second,
                seconds_per_step=worker.seconds_per_step,
                **_optional_fields(worker),
            )

    def _update_record(self, state: RunState, step: int, **facts: Any) -> None:
        self._recorded_at, self._recorded_step = time.monotonic(), step
        if self._config.train.max_seconds is not None:
            facts["trained_seconds"] = self.early_stop.trained_seconds
        self._record.update(state, step, **facts)

    def prepare_evaluation(self) -> model_ops.ModelEvaluation:
        """Read the held-out set. Call it before the first step: later, it would let training's random operations repeat their first numbers."""
        self._evaluation = model_ops.evaluation(
            self._workload, self._session.model, self._config.evaluation_batch_size, self._sharded_tables
        )
        return self._evaluation

    def evaluate(self, step: int) -> dict[str, float]:
        """Evaluate at `step`, unless these weights were evaluated already, and return loss and metrics."""
        if self._evaluated_step == step and not self._evaluated.changed():
            return self._metrics
        began, phase = time.monotonic(), self._report.phase or "training"
        self._report.heartbeat("evaluating", step=step)
        with moving_averages.swapped_in(self._session.model, self._session.optimizer):
            self._metrics = self._callbacks.evaluation(partial(self._evaluate_batches, self._evaluation or self.prepare_evaluation()))
            if self._best and self._divergence.may_save(step):
                self._report.heartbeat("saving", step=step)
                self._best.offer(step, self._metrics, self._session.model.weights, self._stop_requested)
        self._evaluated_step, self._evaluated = step, Snapshot(self._session.model.weights if self._callbacks.enabled else ())
        if not self._config.has_evaluator:  # which writes these files itself
            self.logs.evaluation(self._metrics, step)
            self._files.call(evaluations.path(self._config.run_dir), partial(evaluations.append, self._config.run_dir, step, self._metrics))
            self._files.wait(_WRITE_TIMEOUT)
        self._update_record("running", step, metrics=self._metrics)
        self._report("evaluated", step=step, metrics=self._metrics, seconds=time.monotonic() - began)
        self._report.heartbeat(phase, step=step)  # the phase before: callbacks may evaluate, too
        return self._metrics

    def _evaluate_batches(self, evaluation: model_ops.ModelEvaluation) -> dict[str, float]:
        def report_alive() -> bool:
            self._report.heartbeat("evaluating")
            return False

        return evaluation.run(report_alive) or {}

    def _save(self, step: int, *, last: bool = False) -> None:
        if not self._divergence.may_save(step):
            return
        self._report.heartbeat("saving", step=step)
        if self.saver.save(step, self._callbacks.state(step), last=last):
            self._saved_step = step
            if not last and self._session.tables and self._session.tables.blocked_while_saved:
                self.saver.complete(self._own_stop_requested, stopping=False)  # rows are read from the servers while they are written
        self._report.heartbeat("training", step=step)


def _optional_fields(progress: CallProgress | WorkerProgress) -> dict[str, Any]:
    """Return the fields of a progress event about waits and dropped gradients, as far as the strategy has them."""
    return {name: value for name in _OPTIONAL_FIELDS if (value := getattr(progress, name, None)) is not None}


def _loss_of(progress: CallProgress | WorkerProgress) -> dict[str, Any]:
    """Return the loss as a field of a progress event; no field if it is not known, since null stands for one that is not finite."""
    return {} if progress.loss is None else {"loss": progress.loss}


class _WorkerReporter:
    """Reports the progress of a task that is not the chief, in steps that all tasks take together."""

    def __init__(self, config: TrainConfig, report: Reporter) -> None:
        self._config, self._report = config, report
        self._due = Interval(config.report_every, None if config.report_every else REPORT_INTERVAL)
        self._local_step = 0

    def after(self, progress: CallProgress) -> None:
        """Report a call, when it is time."""
        self._local_step += progress.steps
        if not self._due(progress.step):
            return
        self._report(
            "progress",
            step=progress.step,
            steps=self._config.steps,
            local_step=self._local_step,
            **_loss_of(progress),
            metrics=progress.metrics,
            examples_per_second=progress.steps * self._config.examples_per_step / progress.seconds,
            seconds_per_step=progress.seconds / progress.steps,
            **_optional_fields(progress),
        )
