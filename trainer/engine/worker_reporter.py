"""Reports what a task that is not the chief does in step with it."""

from typing import Any

from trainer.engine.cadence import REPORT_EVERY, Interval
from trainer.engine.job import Job
from trainer.engine.session import Progress, WorkerProgress
from trainer.events import Reporter

_WAITS = ("input_wait", "peer_wait", "dropped")


def waits(progress: Progress | WorkerProgress) -> dict[str, Any]:
    """Return the fields of a progress event that say who is slow and why; those that the strategy has."""
    return {name: value for name in _WAITS if (value := getattr(progress, name, None)) is not None}


def loss_of(progress: Progress | WorkerProgress) -> dict[str, Any]:
    """Return the field of a progress event that has the loss; none where it is not known, since null is one that is not finite."""
    return {} if progress.loss is None else {"loss": progress.loss}


class WorkerReporter:
    """Tells of a worker's own part in steps that all take together; see loop.py for what the chief tells."""

    def __init__(self, job: Job, report: Reporter) -> None:
        self._job, self._report = job, report
        self._due = Interval(job.report_every, None if job.report_every else REPORT_EVERY)
        self._local_step = 0

    def after(self, progress: Progress) -> None:
        """Tell of a call, when it is time."""
        self._local_step += progress.steps
        if not self._due(progress.step):
            return
        self._report(
            "progress",
            step=progress.step,
            steps=self._job.steps,
            local_step=self._local_step,
            **loss_of(progress),
            metrics=progress.metrics,
            examples_per_second=progress.steps * self._job.examples_per_step / progress.seconds,
            seconds_per_step=progress.seconds / progress.steps,
            **waits(progress),
        )
