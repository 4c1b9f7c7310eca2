"""The evaluator task: follows the chief's checkpoints, evaluates the newest into `logs/eval`, and exports the best model.

It reads the run directory and nothing else: no other task connects to it. Its evaluations stand in
`evaluations.json`, so that an evaluator that is started again continues where it was.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import tensorflow as tf

from trainer.engine import evaluations, model_ops, moving_averages, run_state
from trainer.engine.checkpoints import list_checkpoints, step_of
from trainer.engine.embeddings import layers, server_memory
from trainer.engine.export import BestModel
from trainer.engine.file_writer import FileWriter
from trainer.engine.session import PeerLostError, first_line
from trainer.engine.tensorboard_logs import Logs
from trainer.engine.train_config import TrainConfig
from trainer.events import Reporter
from trainer.settings import Embeddings
from trainer.workloads.protocol import Agent, Workload

# Memory in multiples of a large matrix's size, as measured with Adagrad: for the matrix, its slot and a copy that is read; more with each export.
_COPIES = {"": 3, "saved_model": 6, "keras": 10}
# The same for a SavedModel's temporary files, beside all that. A Keras file needs none: by then its own memory is free.
_TEMPORARY_COPIES = 2
_POLL_INTERVAL = 0.5  # seconds between checks for a new checkpoint
_TRIES = 5  # attempts to read a checkpoint: a network file system may show it late
_LAST_TIMEOUT = 30.0  # seconds to wait for the last checkpoint after the run's end, for the same reason
_WRITE_TIMEOUT = 1.0  # seconds to wait until an evaluation is written
_VANISHED = 5  # checkpoints in a row that were deleted before they could be read, until a notice gives advice


def evaluate_checkpoints(
    workload: Workload | Agent, config: TrainConfig, report: Reporter, stop_requested: Callable[[], bool]
) -> tuple[int, dict[str, float]] | None:
    """Evaluate checkpoints until the run's last one is done; return the last evaluation's step and metrics, None when stopped.

    Each checkpoint is evaluated once; of those saved during an evaluation, only the newest. One that cannot be read is reported as a
    notice and skipped.

    Raises:
        PeerLostError: there is no news from the chief for `orphan_timeout`.
        WorkloadError: `train.export` does not fit the workload.
    """
    chief, seen = _ChiefState(config), _EvaluatedCheckpoints(config.run_dir)
    evaluator = _Evaluator(workload, config, report)
    try:
        while not stop_requested():
            # Read before the checkpoints: a run that has ended by then has saved its last one.
            ended = chief.poll()
            paths = list_checkpoints(config.run_dir / "checkpoints")
            path = seen.next_of(paths)
            if path is None:
                if ended and chief.has_last(paths, report):
                    evaluator.finish()
                    return evaluator.last()
                report.heartbeat("waiting")
                time.sleep(_POLL_INTERVAL)
            elif (problem := evaluator.load(path)) is not None:
                if message := seen.failed(path, problem):
                    report("notice", message=message)
                time.sleep(_POLL_INTERVAL)
            elif evaluator.evaluate(stop_requested):
                seen.done(path)
    finally:
        evaluator.close()
    return None


class _ChiefState:
    """The state of the chief according to `run.json`, which the chief writes about every 10 s, and with each checkpoint."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._last_seen = time.monotonic()
        self._updated: float | None = None
        self._step = 0
        self._ended_since: float | None = None

    def poll(self) -> bool:
        """Read `run.json`, and return whether training is complete. Raises PeerLostError after `orphan_timeout` without news."""
        facts = run_state.read(self._config.run_dir)
        self._step = facts.get("step", 0)
        # The end of an earlier run, of fewer steps or of another spec, is no end of this one.
        # Only the chief knows how many steps the epochs have: that depends on its devices.
        length = ("epochs", self._config.train.epochs) if self._config.train.epochs else ("steps", self._config.steps)
        is_own = (facts.get(length[0]), facts.get("spec_digest")) == (length[1], self._config.spec_digest)
        ended = is_own and facts.get("state") == "succeeded"
        if facts.get("updated") != self._updated:
            self._last_seen, self._updated = time.monotonic(), facts.get("updated")
        elif not ended and time.monotonic() - self._last_seen > self._config.orphan_timeout:
            path = self._config.run_dir / "run.json"
            raise PeerLostError(f"the chief has written nothing to {path} for {self._config.orphan_timeout:.0f} s; see its log")
        if not ended:
            self._ended_since = None
        elif self._ended_since is None:
            self._ended_since = time.monotonic()
        return ended

    def has_last(self, paths: list[str], report: Reporter) -> bool:
        """Return whether the last checkpoint is among `paths`, or is no longer waited for."""
        if paths and step_of(paths[-1]) >= self._step:
            return True
        if self._ended_since is None or time.monotonic() - self._ended_since < _LAST_TIMEOUT:
            return False
        report("notice", message=f"the last checkpoint, of step {self._step}, was not there {_LAST_TIMEOUT:.0f} s after the run's end")
        return True


class _EvaluatedCheckpoints:
    """The checkpoints that are evaluated or skipped."""

    def __init__(self, run_dir: Path) -> None:
        # Step -> when its file was written: training that resumes from an earlier checkpoint saves steps again.
        self._done: dict[int, float | None] = {result.step: None for result in evaluations.read(run_dir)}
        self._skipped: set[tuple[str, float | None]] = set()
        self._failures: Counter[tuple[str, float | None]] = Counter()
        self._vanished = 0

    def next_of(self, paths: list[str]) -> str | None:
        """Return the newest of `paths` that is not skipped; None if it, or a newer one, is done."""
        for path in reversed(paths):
            written = _written(path)
            if (step := step_of(path)) in self._done and self._done[step] in (None, written):
                return None
            if (path, written) not in self._skipped:
                return path
        return None

    def done(self, path: str) -> None:
        """Remember that it was evaluated."""
        self._vanished = 0
        self._done[step_of(path)] = _written(path)

    def failed(self, path: str, problem: Exception) -> str:
        """Remember that it could not be loaded; return a notice about it, if there is one."""
        written = _written(path)
        if written is None:  # the chief has deleted it: a newer one is there
            self._skipped.add((path, None))
            self._vanished += 1
            if self._vanished != _VANISHED:
                return ""
            return f"{_VANISHED} checkpoints in a row were deleted before they were read; raise train.checkpoint.keep, or save less often"
        self._failures[path, written] += 1
        is_of_another_model = isinstance(problem, AssertionError | ValueError)
        if self._failures[path, written] < _TRIES and not is_of_another_model:
            return ""
        self._skipped.add((path, written))
        what = "is of another model" if is_of_another_model else "cannot be read"
        return f"the checkpoint {path} {what} and is passed over: {first_line(problem)}"


class _Evaluator:
    """The model, its evaluations and its exports."""

    def __init__(self, workload: Workload | Agent, config: TrainConfig, report: Reporter) -> None:
        self._run_dir, self._report = config.run_dir, report
        check = server_memory.evaluator_check(copies(config.export.formats if config.export else [], tempfile.gettempdir()))
        # No check after an earlier evaluation: the memory suffices, though less of it may be free now.
        fits = bool(evaluations.read(config.run_dir))
        with nullcontext() if fits else layers.checked(config.train.embeddings or Embeddings(), check):
            built = model_ops.build(workload, config)
        self._model, self._optimizer = built.model, built.optimizer
        self._evaluation = model_ops.evaluation(workload, self._model, config.evaluation_batch_size)
        self._step = tf.Variable(0, dtype=tf.int64)
        # With the optimizer only if it has the averages to evaluate: its slots may be twice the size of the model.
        optimizers = {"optimizer": self._optimizer} if moving_averages.are_enabled(self._optimizer) else {}
        self._saved = tf.train.Checkpoint(model=self._model, step=self._step, **optimizers)
        self._files = FileWriter(report)
        self._logs = Logs(config.run_dir, self._files)
        self._best: BestModel | None = None
        if config.export:
            names = model_ops.evaluated_names(workload, self._model) if config.export.metric else None
            self._best = BestModel(config.export, config.run_dir, names, self._model, report, share=1)
        self._began = 0.0

    def load(self, path: str) -> Exception | None:
        """Load a checkpoint, or return why not."""
        self._began = time.monotonic()
        try:
            # Not `restore`, which creates a save counter: incomplete if the file is deleted just then, and then no later checkpoint matches.
            self._saved.read(path).expect_partial().assert_existing_objects_matched()
        except Exception as error:  # noqa: BLE001 - a damaged file may raise any error
            return error
        return None

    def evaluate(self, stop_requested: Callable[[], bool]) -> bool:
        """Evaluate the loaded checkpoint, record and report the result; return False if `stop_requested` returned True before the end."""
        step = int(self._step.numpy())
        moving_averages.swap_in(self._model, self._optimizer)
        self._report.heartbeat("evaluating", step=step)

        def report_and_check() -> bool:
            self._report.heartbeat("evaluating", step=step)
            return stop_requested()

        metrics = self._evaluation.run(report_and_check)
        if metrics is None:
            return False
        self._report.heartbeat("saving", step=step)
        if self._best:  # before the evaluation is recorded: an evaluator that is killed in between repeats both
            self._best.offer(step, metrics, self._model.weights)
            self._best.wait(_LAST_TIMEOUT)
        self._logs.evaluation(metrics, step)
        self._files.call(evaluations.path(self._run_dir), partial(evaluations.append, self._run_dir, step, metrics))
        self._files.wait(_WRITE_TIMEOUT)
        self._report("evaluated", step=step, metrics=metrics, seconds=time.monotonic() - self._began)
        return True

    def finish(self) -> None:
        """Report the best model, even if an earlier attempt has written it."""
        if self._best:
            end = time.monotonic() + _LAST_TIMEOUT
            self._best.finish(lambda: end, finished=False)

    def last(self) -> tuple[int, dict[str, float]]:
        """Return step and metrics of the last evaluation, also of an earlier attempt's; step 0 without any."""
        return next(((result.step, result.metrics) for result in reversed(evaluations.read(self._run_dir))), (0, {}))

    def close(self) -> None:
        """Write out what is buffered."""
        self._logs.close()
        self._files.close(_LAST_TIMEOUT)


def copies(formats: Sequence[str], directory: str) -> int:
    """Return an evaluator's memory in multiples of a large matrix's size, with the files of exports if `directory` is in memory."""
    temporary = _TEMPORARY_COPIES if "saved_model" in formats and server_memory.is_memory(directory) else 0
    return max(_COPIES[name] for name in ("", *formats)) + temporary


def _written(path: str) -> float | None:
    """Return when a checkpoint was written, None when it is no longer there."""
    try:
        return Path(f"{path}.index").stat().st_mtime
    except OSError:
        return None
