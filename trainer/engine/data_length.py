"""Training data must last until the last step: a user's own class may give data that does not."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from trainer.engine.job import Job
from trainer.workloads.errors import WorkloadError


def checked(data: tf.data.Dataset, job: Job, start: int = 0, replicas: int = 1, among: int = 1) -> tf.data.Dataset:
    """Return the batches that `replicas` take in turn from step `start` on, as they are; so many workers share the steps.

    Raises:
        WorkloadError: it is known that they are too few. Repeating them here would not do: a data set that ends, begun at batch
            `start`, has nothing to repeat when a run continues.
    """
    count, needed = int(data.cardinality()), -(-(job.steps - start) // among) * job.train.gradients.accumulate * replicas
    if 0 <= count < needed:
        raise _too_short(job, f"gives {count} batches, but the run may take {needed} more")
    return data


@contextmanager
def translate_end_of_data(job: Job) -> Iterator[None]:
    """Turn the end of data of unknown length into a WorkloadError with the remedy."""
    try:
        yield
    except tf.errors.OutOfRangeError as error:
        if "End of sequence" not in str(error):
            raise
        raise _too_short(job, f"has ended before the last step, {job.steps}") from error


def _too_short(job: Job, what: str) -> WorkloadError:
    return WorkloadError(
        f"train.workload {job.train.workload}: train_data(shard) {what}; "
        "it must be endless: put .repeat() before .batch(...), and begin at batch shard.start of that"
    )
