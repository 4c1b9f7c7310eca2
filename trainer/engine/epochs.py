"""Epochs in steps: one is a pass over the training data, of all replicas together."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Agent, HasTrainExamples, Workload

if TYPE_CHECKING:
    from trainer.engine.train_config import TrainConfig


@dataclass(frozen=True)
class EpochLength:
    """The length of an epoch, one pass over `examples`, of which a global step takes `per_step`.

    A batch may span two epochs, so nothing is left out: n epochs are n x examples / per_step steps, rounded up.
    """

    examples: int
    per_step: int

    def steps(self, epochs: int) -> int:
        """Return the global step at the end of so many epochs."""
        return -(-epochs * self.examples // self.per_step)

    def epoch_at(self, step: int) -> int:
        """Return the epoch, counted from 0, to which the step after `step` belongs."""
        return step * self.per_step // self.examples


def with_steps(config: "TrainConfig", workload: Workload | Agent, replicas: int) -> "TrainConfig":
    """Return the configuration with `train.epochs` turned into steps; a step takes a batch from each of `replicas`. `train.steps` stay as they are.

    Raises:
        WorkloadError: it has epochs, and how many examples there are is not known.
    """
    epochs, epoch_length = config.train.epochs, _epoch_length(config, workload, replicas)
    if epochs is None:
        return replace(config, epoch_length=epoch_length)
    if epoch_length is None:
        raise WorkloadError(
            f"train.epochs is {epochs}, and how many examples {config.train.workload} trains on is not known; expected arrays, a tf.data.Dataset "
            "of known cardinality, or a class with train_examples(). Write train.steps instead, or end a Dataset of single examples with "
            ".apply(tf.data.experimental.assert_cardinality(n))"
        )
    return replace(config, steps=epoch_length.steps(epochs), epoch_length=epoch_length)


def _epoch_length(config: "TrainConfig", workload: Workload | Agent, replicas: int) -> EpochLength | None:
    examples = workload.train_examples() if isinstance(workload, HasTrainExamples) else None
    return EpochLength(examples, config.examples_per_step * replicas) if examples else None
