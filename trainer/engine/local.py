"""Training by one process, or by several in step with an all-reduce: strategies single and multi_worker_mirrored."""

import time
from contextlib import suppress
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.engine import compute, updates
from trainer.engine.job import Job
from trainer.engine.ring import Ring
from trainer.engine.session import PeerLostError, Progress
from trainer.workloads.protocol import Shard, Workload

# Seconds that a task stays when all is done: another may still be reading from it. The first one leads the runtime, and
# stays as long again.
_LINGER = 0.3


class LocalSession:
    """One replica in this process; with a ring of several tasks, one replica in each of them."""

    def __init__(self, workload: Workload, job: Job, ring: Ring) -> None:
        self._workload, self._ring = workload, ring
        self._batch_size, self._seed = job.batch_size, job.seed
        built = compute.build(workload, job.seed, job.batch_size * ring.size)
        self.model: keras.Model = built.model
        self.optimizer: keras.optimizers.Optimizer = built.optimizer
        self.is_chief = ring.index == 0
        self._metrics = compute.metric_names(workload, self.model)
        self._step = 0
        self._iterator: Any = None
        self._call = self._make_call()

    @property
    def step(self) -> int:
        """Return the global step as of the last call."""
        return self._step

    def push(self, step: int) -> None:
        """See Session.push. Each task's random layers have a seed of their own, so that replicas drop different units."""
        where = tf.Variable(step, dtype=tf.int64)
        variables = [v.value for v in (*self.model.variables, *self.optimizer.variables)]
        self._ring.share_from_first([where, *variables])
        for seed in compute.seeds(self.model):
            # A seed generator's state is [seed, how often it was drawn from]: the first stays apart, the second in step.
            own = np.zeros(seed.shape, seed.dtype.as_numpy_dtype)
            own.flat[0] = self._ring.index
            seed.assign_add(own)
        self._step = int(where.numpy())
        shard = Shard(self._batch_size, self._seed, index=self._ring.index, count=self._ring.size, start=self._step)
        self._iterator = iter(self._workload.train_data(shard))

    def settle(self) -> None:
        """Do nothing: no call outlasts `run`."""

    def pull(self) -> None:
        """Do nothing: model and optimizer are where the training happens."""

    def run(self, steps: int, *, stop: bool = False, next_steps: int = 0) -> Progress:
        """See Session.run."""
        began = time.perf_counter()
        control = np.array([float(stop), next_steps if self.is_chief else 0], np.float32)
        with self._ring.watching():
            totals, told = (t.numpy() for t in self._call(self._iterator, tf.constant(steps), tf.constant(control)))
        self._step += steps
        loss, *metrics = totals / (steps * self._ring.size)
        return Progress(
            step=self._step,
            steps=steps,
            loss=float(loss),
            metrics=compute.named(self._metrics, metrics),
            examples=steps * self._batch_size * self._ring.size,
            seconds=time.perf_counter() - began,
            stop=bool(told[0] > 0),
            next_steps=int(told[1]) or None,
        )

    def close(self) -> None:
        """See Session.close."""
        if self._ring.size == 1:
            return
        self._ring.barrier()  # the chief has saved
        # Who has passed a barrier may leave while another still reads from it. After the first one that would be a peer
        # lost in the middle of its work; nobody leaves before the second, and whom that one loses is done.
        with suppress(PeerLostError):
            self._ring.barrier()
        time.sleep(2 * _LINGER if self.is_chief else _LINGER)

    def _make_call(self) -> Any:
        model, workload, ring, optimizer = self.model, self._workload, self._ring, self.optimizer
        count = 1 + len(self._metrics)

        @tf.function(autograph=False)
        def call(iterator: Any, steps: tf.Tensor, control: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            def step() -> tf.Tensor:
                inputs, targets = next(iterator)
                with tf.GradientTape() as tape:
                    outputs = model(inputs, training=True)
                    loss = compute.total_loss(workload, targets, outputs, model.losses)
                gradients = tape.gradient(
                    loss, [v.value for v in model.trainable_variables], unconnected_gradients=tf.UnconnectedGradients.ZERO
                )
                updates.apply(optimizer, ring.mean_gradients(gradients), model.trainable_variables)
                return compute.measures(workload, loss, targets, outputs)

            totals = compute.repeat(steps, step, count)
            together = ring.total(tf.concat([totals, control], 0))
            return together[:count], together[count:]

        return call
