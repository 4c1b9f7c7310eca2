"""Training on every GPU of one machine, or on logical CPU devices where it has none: strategy mirrored."""

import time
from typing import Any

import keras
import tensorflow as tf

from trainer.engine import compute
from trainer.engine.job import Job
from trainer.engine.session import Progress
from trainer.workloads.protocol import Shard, Workload


def devices(replicas: int) -> list[str]:
    """Return the devices to mirror over: the GPUs, or `replicas` logical CPUs; before TensorFlow starts up."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return [f"GPU:{i}" for i in range(len(gpus))]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return [f"CPU:{i}" for i in range(replicas)]


class MirroredSession:
    """One replica a device; each computes gradients on its own batch, and their mean is applied once."""

    is_chief = True

    def __init__(self, workload: Workload, job: Job, names: list[str]) -> None:
        self._workload, self._batch_size, self._seed = workload, job.batch_size, job.seed
        # Several logical CPUs share one memory: there, copying to the first and adding is all there is to do.
        hub = tf.distribute.HierarchicalCopyAllReduce() if names[0].startswith("CPU") else None
        self._strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=hub)
        with self._strategy.scope():
            built = compute.build(workload, job.seed, job.batch_size * self.replicas)
        self.model: keras.Model = built.model
        self.optimizer: keras.optimizers.Optimizer = built.optimizer
        self._metrics = compute.metric_names(workload, self.model)
        self._step = 0
        self._iterator: Any = None
        self._call = self._make_call()

    @property
    def replicas(self) -> int:
        """Return the number of devices that train."""
        return int(self._strategy.num_replicas_in_sync)

    @property
    def step(self) -> int:
        """Return the global step as of the last call."""
        return self._step

    def push(self, step: int) -> None:
        """See Session.push: restored variables are mirrored already."""
        self._step = step
        # One stream feeds all devices: a step takes one batch for each.
        shard = Shard(self._batch_size, self._seed, start=step * self.replicas)
        data = self._strategy.distribute_datasets_from_function(lambda _: self._workload.train_data(shard))
        self._iterator = iter(data)

    def settle(self) -> None:
        """Do nothing: no call outlasts `run`."""

    def pull(self) -> None:
        """Do nothing: model and optimizer are where the training happens."""

    def run(self, steps: int, *, stop: bool = False, next_steps: int = 0) -> Progress:
        """See Session.run."""
        began = time.perf_counter()
        loss, *metrics = self._call(self._iterator, tf.constant(steps)).numpy() / steps
        self._step += steps
        return Progress(
            step=self._step,
            steps=steps,
            loss=float(loss),
            metrics=compute.named(self._metrics, metrics),
            examples=steps * self._batch_size * self.replicas,
            seconds=time.perf_counter() - began,
            stop=stop,
            next_steps=next_steps or None,
        )

    def close(self) -> None:
        """Do nothing: there is nobody else."""

    def _make_call(self) -> Any:
        model, workload, optimizer, strategy = self.model, self._workload, self.optimizer, self._strategy
        replicas, count = self.replicas, 1 + len(self._metrics)

        def step(inputs: Any, targets: Any) -> tf.Tensor:
            with tf.GradientTape() as tape:
                outputs = model(inputs, training=True)
                loss = compute.total_loss(workload, targets, outputs, model.losses)
                scaled = loss / replicas  # Keras adds the replicas' gradients up
            variables = [v.value for v in model.trainable_variables]
            gradients = tape.gradient(scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            optimizer.apply(gradients, model.trainable_variables)
            return compute.measures(workload, loss, targets, outputs)

        @tf.function(autograph=False)
        def call(iterator: Any, steps: tf.Tensor) -> tf.Tensor:
            def step_everywhere() -> tf.Tensor:
                measured = strategy.run(step, args=next(iterator))
                return strategy.reduce(tf.distribute.ReduceOp.MEAN, measured, axis=None)

            return compute.repeat(steps, step_everywhere, count)

        return call
