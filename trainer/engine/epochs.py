"""Epochs in steps: one is a pass over the training data, of all replicas together."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainer.workloads.errors import WorkloadError

if TYPE_CHECKING:
    from trainer.engine.job import Job
    from trainer.workloads.protocol import Agent, Workload


@dataclass(frozen=True)
class Pass:
    """One pass over `examples`, of which a global step takes `per_step`.

    A batch may span two epochs, so nothing is left out: n epochs are n x examples / per_step steps, rounded up.
    """

    examples: int
    per_step: int

    def steps(self, epochs: int) -> int:
        """Return the global step with which so many epochs end."""
        return -(-epochs * self.examples // self.per_step)

    def epoch_at(self, step: int) -> int:
        """Return the epoch, counted from 0, to which the step after `step` belongs."""
        return step * self.per_step // self.examples


def with_steps(job: "Job", workload: "Workload | Agent", replicas: int) -> "Job":
    """Return the job with `train.epochs` turned into steps; a step takes a batch from each of `replicas`. `train.steps` stay as they are.

    Raises:
        WorkloadError: it has epochs, and how many examples there are is not known.
    """
    epochs, one_pass = job.train.epochs, _pass(job, workload, replicas)
    if epochs is None:
        return replace(job, one_pass=one_pass)
    if one_pass is None:
        raise WorkloadError(
            f"train.epochs is {epochs}, and how many examples {job.train.workload} trains on is not known; expected arrays, a tf.data.Dataset "
            "of known cardinality, or a class with train_examples(). Write train.steps instead, or end a Dataset of single examples with "
            ".apply(tf.data.experimental.assert_cardinality(n))"
        )
    return replace(job, steps=one_pass.steps(epochs), one_pass=one_pass)


def _pass(job: "Job", workload: "Workload | Agent", replicas: int) -> Pass | None:
    count = getattr(workload, "train_examples", None)
    examples = count() if count is not None else None
    return Pass(examples, job.examples_per_step * replicas) if examples else None
