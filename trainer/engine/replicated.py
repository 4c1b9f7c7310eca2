"""Training by one process, or by several with an all-reduce: strategies single and multi_worker_mirrored."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.engine import clock, data_length, fused_updates, global_seed, model_ops, schedules
from trainer.engine.changes import Snapshot
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.embeddings.local_tables import LocalTables
from trainer.engine.replica import Replica, ReplicaSession, timed_next
from trainer.engine.session import CallProgress, NonFinite, PeerLostError
from trainer.engine.train_config import TrainConfig
from trainer.workloads.protocol import Shard, Workload

# Seconds that a task stays after the end: another may still read from it. The first task leads the collective runtime, and stays twice as long.
_CLOSE_DELAY = 0.3
# How many numbers tasks exchange between steps: all vectors of one TensorFlow collective have one size.
_CONTROL_NUMBERS = 3


class ReplicatedSession(ReplicaSession):
    """One replica in this process; with an all-reduce of several tasks, one replica in each of them."""

    def __init__(self, workload: Workload, config: TrainConfig, all_reduce: AllReduce) -> None:
        self._workload, self._config, self._all_reduce = workload, config, all_reduce
        built = model_ops.build(workload, config, all_reduce.size, by_rows=True)
        model_ops.check_normalization(built.model, config, all_reduce.size)
        self.tables: LocalTables | None = built.tables
        self.model: keras.Model = built.model
        self.optimizer: keras.optimizers.Optimizer = built.optimizer
        self.is_chief = all_reduce.index == 0
        self._replica = Replica(workload, self.model, self.optimizer, config)
        self._iterator: Any = None
        self._call = self._make_call()

    def begin_at(self, step: int) -> None:
        """See Session.begin_at. Each task's random layers have a seed of their own, so that replicas drop different units."""
        self._step = self._broadcast_state(step)
        first = self._step * self._config.train.gradients.accumulate
        shard = Shard(self._config.batch_size, self._config.seed, index=self._all_reduce.index, count=self._all_reduce.size, start=first)
        self._iterator = iter(data_length.checked(self._workload.train_data(shard), self._config, self._step))

    def _broadcast_state(self, step: int) -> int:
        """Give every task the first one's model, optimizer and step; return the step."""
        shared_step = tf.Variable(step, dtype=tf.int64)
        variables = [v.value for v in (*self.model.variables, *self.optimizer.variables)]
        variables += [*global_seed.states(self.model), *(self.tables.variables if self.tables else [])]
        self._all_reduce.broadcast([shared_step, *variables])
        for seed in (*model_ops.seeds(self.model), *global_seed.states(self.model)):
            seed.assign_add(model_ops.seed_of_replica(seed, self._all_reduce.index))
        return int(shared_step.numpy())

    def broadcast_flags(self, flags: Sequence[bool]) -> list[bool]:
        """See Session.broadcast_flags."""
        numbers = [float(flag and self.is_chief) for flag in flags]
        sums = self._all_reduce.sum_numbers([*numbers, *[0.0] * (_CONTROL_NUMBERS - len(numbers))])
        return [bool(number) for number in sums[: len(numbers)]]

    def run_callbacks(self, call: Callable[[], bool], *, current: bool = True) -> bool:
        """See Session.run_callbacks."""
        del current  # the state always is
        if self._all_reduce.size == 1:
            return call()
        numbers = [0.0] * _CONTROL_NUMBERS
        if self.is_chief:
            before = Snapshot(self.model.weights)
            stop = call()
            numbers = [float(stop), float(before.changed()), schedules.constant_rate(self.optimizer) or 0.0]
        stops, changes, rate = self._all_reduce.sum_numbers(numbers)
        if schedules.constant_rate(self.optimizer) is not None:
            schedules.set_rate(self.optimizer, rate)
        if changes:
            self._broadcast_state(self._step)
        return bool(stops)

    def run(self, steps: int, *, stop: bool = False, finish: bool = False, next_steps: int = 0) -> CallProgress:
        """See Session.run."""
        began = time.perf_counter()
        from_chief = [float(finish), next_steps] if self.is_chief else [0.0, 0.0]
        control = np.array([float(stop), *from_chief], np.float32)
        with self._all_reduce.translate_peer_errors():
            totals, numbers, waits = (t.numpy() for t in self._call(self._iterator, tf.constant(steps), tf.constant(control)))
        seconds = time.perf_counter() - began
        self._step += steps
        loss, *metrics = totals[:-1] / (steps * self._all_reduce.size)
        input_wait, peer_wait = (clock.fraction(waited, seconds) for waited in waits)
        return CallProgress(
            step=self._step,
            steps=steps,
            loss=float(loss),
            metrics=model_ops.named(self._replica.metrics, metrics),
            examples=steps * self._replica.examples * self._all_reduce.size,
            seconds=seconds,
            stop=bool(numbers[0] > 0),
            finish=bool(numbers[1] > 0),
            next_steps=int(numbers[2]) or None,
            input_wait=input_wait,
            peer_wait=peer_wait if self._all_reduce.size > 1 else None,
            non_finite=self._non_finite(numbers[3:]),
        )

    def _non_finite(self, non_finite_steps: Any) -> NonFinite | None:
        """Return the first loss that was not finite, from each task's number of steps since its own first."""
        first = int(np.argmax(non_finite_steps))
        return NonFinite(self._step - int(non_finite_steps[first]) + 1, self._all_reduce.names[first]) if non_finite_steps[first] else None

    def close(self) -> None:
        """See Session.close."""
        if self._all_reduce.size == 1:
            return
        self._all_reduce.barrier()  # the chief has saved
        # A task that has passed a barrier may leave while another still reads from it, which would see a lost peer. So no task leaves
        # before a second barrier: a peer that is lost there has finished.
        with suppress(PeerLostError):
            self._all_reduce.barrier()
        time.sleep(2 * _CLOSE_DELAY if self.is_chief else _CLOSE_DELAY)
        self._all_reduce.close()

    def _make_call(self) -> Any:
        model, all_reduce, optimizer, replica, tables = self.model, self._all_reduce, self.optimizer, self._replica, self.tables
        width, seed = replica.width, self._config.seed

        @tf.function(autograph=False)
        def call(iterator: Any, steps: tf.Tensor, control: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            model_ops.seed_graph(seed, all_reduce.index, self._step)

            def own_step(_: tf.Tensor) -> tf.Tensor:
                waits = [tf.constant(0.0)]

                def mean_gradients(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
                    reduced, waited = all_reduce.mean_gradients(gradients)
                    waits.append(waited)
                    return reduced

                batch, waited = timed_next(iterator)
                measured = replica.own_step(batch, waited, mean_gradients if all_reduce.size > 1 else None)
                return tf.concat([measured, waits[-1:]], 0)

            def step(_: tf.Tensor) -> tf.Tensor:
                measured, gradients = replica.step(iterator)
                if tables:
                    return tf.concat([measured, [tables.apply(gradients, all_reduce.mean_gradients)]], 0)
                present = [(v, g) for v, g in zip(model.trainable_variables, gradients, strict=True) if g is not None]
                reduced, waited = all_reduce.mean_gradients([g for _, g in present])
                fused_updates.apply(optimizer, reduced, [v for v, _ in present])
                return tf.concat([measured, [waited]], 0)

            totals = model_ops.repeat(steps, own_step if replica.has_own_step else step, width + 1)
            *_, finite = tf.unstack(totals)
            # This task's steps since its first loss that was not finite, in the place of the task.
            non_finite_steps = tf.one_hot(all_reduce.index, all_reduce.size) * (tf.cast(steps, tf.float32) - finite)
            reduced = all_reduce.total(tf.concat([totals[:width], control, non_finite_steps], 0))
            return reduced[:width], reduced[width:], totals[width - 1 : width + 1]

        return call
