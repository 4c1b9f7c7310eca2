"""Training on every GPU of one machine, or on logical CPU devices where it has none: strategy mirrored."""

import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainer.engine import clock, data_length, global_seed, model_ops, schedules
from trainer.engine.replica import Replica, ReplicaSession, timed_next
from trainer.engine.session import CallProgress, NonFinite
from trainer.engine.train_config import TrainConfig
from trainer.workloads.protocol import Shard, Workload
from trainer.workloads.unscaled_losses import unscaled_losses


def devices(replicas: int) -> list[str]:
    """Return the devices to mirror over: the GPUs, or `replicas` logical CPUs. Call it before TensorFlow starts up."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return [f"GPU:{i}" for i in range(len(gpus))]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return [f"CPU:{i}" for i in range(replicas)]


class MirroredSession(ReplicaSession):
    """One replica per device; each computes gradients on its own batch, and their mean is applied once."""

    def __init__(self, workload: Workload, config: TrainConfig, names: list[str]) -> None:
        self._workload, self._config = workload, config
        # Logical CPUs share one memory: it is enough to copy to the first and to add there.
        cross_device_ops = tf.distribute.HierarchicalCopyAllReduce() if names[0].startswith("CPU") else None
        self._strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=cross_device_ops)
        with self._strategy.scope():
            built = model_ops.build(workload, config, self.replicas)
        self.model: keras.Model = built.model
        self.optimizer: keras.optimizers.Optimizer = built.optimizer
        inner = schedules.inner(built.optimizer)
        inner._all_reduce_sum_gradients = lambda pairs: pairs  # noqa: SLF001 - they are reduced already
        self._replica = Replica(workload, self.model, self.optimizer, config, run=self._run_everywhere)
        self._batches = config.train.gradients.accumulate
        self._iterator: Any = None
        self._call = self._make_call()

    @property
    def replicas(self) -> int:
        """Return the number of devices that train."""
        return int(self._strategy.num_replicas_in_sync)

    def begin_at(self, step: int) -> None:
        """See Session.begin_at: restored variables are mirrored already."""
        self._step = step
        # One stream feeds all devices: a step takes one batch for each.
        shard = Shard(self._config.batch_size, self._config.seed, start=step * self.replicas * self._batches)
        data = self._strategy.distribute_datasets_from_function(lambda _: self._data(shard))
        self._iterator = iter(data)

    def run(self, steps: int, *, stop: bool = False, finish: bool = False, next_steps: int = 0) -> CallProgress:
        """See Session.run."""
        began = time.perf_counter()
        totals = self._call(self._iterator, tf.constant(steps)).numpy()
        seconds = time.perf_counter() - began
        *sums, waited, finite = totals
        loss, *metrics = (total / steps for total in sums)
        before, self._step = self._step, self._step + steps
        return CallProgress(
            step=self._step,
            steps=steps,
            loss=float(loss),
            non_finite=NonFinite(before + int(finite) + 1) if finite < steps else None,
            metrics=model_ops.named(self._replica.metrics, metrics),
            examples=steps * self._replica.examples * self.replicas,
            seconds=seconds,
            stop=stop,
            finish=finish,
            next_steps=next_steps or None,
            input_wait=clock.fraction(waited, seconds),
        )

    def _run_everywhere(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        with unscaled_losses():
            return self._strategy.run(function, args=arguments)

    def _data(self, shard: Shard) -> tf.data.Dataset:
        data = data_length.checked(self._workload.train_data(shard), self._config, self._step, self.replicas)
        return data if self._batches == 1 else data.batch(self._batches, drop_remainder=True)

    def _make_call(self) -> Any:
        model, optimizer, strategy, replica = self.model, self.optimizer, self._strategy, self._replica

        def mean(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
            means: list[tf.Tensor] = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
            return means

        def seed() -> None:
            replica_id = tf.distribute.get_replica_context().replica_id_in_sync_group
            model_ops.seed_graph(self._config.seed, int(tf.get_static_value(replica_id)), self._step)

        def own_step(batch: Any, waited: tf.Tensor) -> tf.Tensor:
            seed()
            return replica.own_step(batch, waited, mean)

        def step(batches: Any, waited: tf.Tensor) -> tf.Tensor:
            seed()
            measured, gradients = replica.step_on(batches, waited)
            # Reduced before Keras sees them: it would clip each replica's gradients, and check that they are finite, before it adds them up.
            present = [(v, tf.convert_to_tensor(g)) for v, g in zip(model.trainable_variables, gradients, strict=True) if g is not None]
            optimizer.apply(mean([g for _, g in present]), [v for v, _ in present])
            return measured

        @tf.function(autograph=False)
        def call(iterator: Any, steps: tf.Tensor) -> tf.Tensor:
            _seed_devices(model)

            def step_everywhere(_: tf.Tensor) -> tf.Tensor:
                batches, waited = timed_next(iterator)
                measured = self._run_everywhere(own_step if replica.has_own_step else step, (batches, waited))
                return strategy.reduce(tf.distribute.ReduceOp.MEAN, measured, axis=None)

            return model_ops.repeat(steps, step_everywhere, replica.width)

        return call


def _seed_devices(model: keras.Model) -> None:
    """Give each device's random layers and keras.random seeds of their own; draws outside of steps, such as an evaluation's, make them equal again."""
    for seed in (*model_ops.seeds(model), *global_seed.states(model)):
        first, *others = seed.values
        for index, other in enumerate(others, 1):
            other.assign(first + model_ops.seed_of_replica(seed, index))
