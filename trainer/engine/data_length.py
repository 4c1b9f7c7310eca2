"""Checks that training data lasts until the last step: a user's own class may give too little."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from trainer.engine.train_config import TrainConfig
from trainer.workloads.errors import WorkloadError


def checked(data: tf.data.Dataset, config: TrainConfig, start: int = 0, replicas: int = 1, workers: int = 1) -> tf.data.Dataset:
    """Return `data` unchanged, if it lasts: each step takes a batch for each of `replicas`, and `workers` share the steps from `start` on.

    Raises:
        WorkloadError: it is known to have too few batches. They cannot be repeated here: when a run resumes, finite data that begins at
            batch `start` may be empty.
    """
    count, needed = int(data.cardinality()), -(-(config.steps - start) // workers) * config.train.gradients.accumulate * replicas
    if 0 <= count < needed:
        raise _too_short(config, f"gives {count} batches, but the run may take {needed} more")
    return data


@contextmanager
def translate_end_of_data(config: TrainConfig) -> Iterator[None]:
    """Turn the end of data of unknown length into a WorkloadError with the remedy."""
    try:
        yield
    except tf.errors.OutOfRangeError as error:
        if "End of sequence" not in str(error):
            raise
        raise _too_short(config, f"has ended before the last step, {config.steps}") from error


def _too_short(config: TrainConfig, problem: str) -> WorkloadError:
    return WorkloadError(
        f"train.workload {config.train.workload}: train_data(shard) {problem}; "
        "it must be endless: put .repeat() before .batch(...), and begin at batch shard.start of that"
    )
