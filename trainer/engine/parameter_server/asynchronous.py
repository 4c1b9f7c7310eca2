"""Asynchronous training on parameter servers: the chief schedules, workers compute, servers update."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.engine import model_ops
from trainer.engine.parameter_server.server_session import ServerSession
from trainer.engine.parameter_server.state import device
from trainer.engine.parameter_server.worker_pool import (
    CALLS_PER_WORKER,
    Assignment,
    CallResult,
    Connection,
    WorkerResult,
    constant,
    non_finite,
    translate_peer_errors,
)
from trainer.engine.session import CallProgress, NonFinite
from trainer.engine.train_config import TrainConfig
from trainer.workloads.protocol import Workload

# The loop of a call runs four steps an iteration, which saves messages. A larger model gains little from that, and would start seconds later.
_UNROLLED, FEW_OPERATIONS = 4, 300


class AsynchronousSession(ServerSession):
    """The chief's session. A call has a worker's share of `run`'s steps; each step reads the weights once, and sends one tensor for each pack."""

    def __init__(self, workload: Workload, config: TrainConfig, connection: Connection, stop_requested: Callable[[], bool]) -> None:
        super().__init__(workload, config, connection, stop_requested, replicas=1, per_server=False)
        self._wire = tf.as_dtype(config.train.gradients.wire)
        self._reported_step = self._scheduled = 0
        self._flushed: list[WorkerResult] = []  # results of `flush`, which took `_flush_seconds`
        self._flush_seconds = 0.0

    def begin_at(self, step: int) -> None:
        """See Session.begin_at."""
        super().begin_at(step)
        self._scheduled = self._reported_step = step

    def flush(self) -> NonFinite | None:
        """See Session.flush: wait for the calls that workers still compute; the next `run` reports them."""
        began = time.perf_counter()
        self._flushed += self._take_all()
        self._flush_seconds += time.perf_counter() - began
        return non_finite(self._flushed)

    def run(self, steps: int, *, stop: bool = False, finish: bool = False, next_steps: int = 0) -> CallProgress:
        """Run until the global step is at least `steps` beyond the one that the last `run` reported; see Session.run.

        Calls overlap: workers already compute the next steps when this returns, except with `stop` or `finish`: the state that is saved then
        must be that of the reported step. Fewer steps are done if the task is asked to stop meanwhile: there may be no worker left.
        """
        began, start = time.perf_counter() - self._flush_seconds, self._reported_step
        results, self._flushed, self._flush_seconds = self._flushed, [], 0.0
        goal = min(start + steps, self._last_step)
        share = max(1, -(-steps // self._workers.count))
        while self._step < goal and not self._stop_requested():
            self._fill(share)
            if self._workers.in_flight and (result := self._workers.take()):
                self._step = max(self._step, result.global_step)
                results.append(result)
        stop = stop or self._stop_requested()
        if stop or finish or self._step >= min(self._last_step, self._step_limit) or self._note_first_non_finite(results):
            results += self._take_all()
        self._reported_step = self._step
        loss, metrics, workers = self._workers.summarise(results)
        return CallProgress(
            step=self._step,
            steps=self._reported_step - start,
            loss=loss,
            metrics=metrics,
            examples=sum(r.steps for r in results) * self._replica.examples,
            seconds=time.perf_counter() - began,
            measured_steps=sum(result.steps for result in results),
            stop=stop,
            finish=finish,
            next_steps=next_steps or None,
            non_finite=non_finite(results),
            workers=workers,
        )

    def _read_step(self) -> int:
        with translate_peer_errors():
            return int(self._state.step.numpy())

    def _fill(self, share: int) -> None:
        if not self._workers.in_flight:  # only the servers know how many steps a lost call has done
            self._step = self._scheduled = self._read_step()
        last = min(self._last_step, self._step_limit)
        while self._workers.in_flight < self._workers.count * CALLS_PER_WORKER and self._scheduled < last:
            steps = min(share, last - self._scheduled)
            self._workers.schedule(steps)
            self._scheduled += steps

    def _take_all(self) -> list[WorkerResult]:
        results = self._workers.take_all()
        self._step = self._read_step()
        return results

    def _worker_step(self) -> int:
        # A worker's position in its own stream is not known after a restart: it starts at its fair share.
        return self._step // self._workers.count

    def _run(self, iterator: Any, steps: int, assignment: Assignment) -> CallResult:
        *totals, from_finite_weights, finite, start, done, global_step = self._call(
            assignment.worker, iterator, constant(steps), constant(assignment.worker)
        ).numpy()
        first_non_finite = round(start + finite) + 1 if finite < done else None  # a lower bound: other workers also take steps
        numbers = np.array(totals, np.float32)
        return CallResult(
            totals=numbers,
            steps=round(done),
            global_step=round(global_step),
            first_non_finite=first_non_finite,
            weights_non_finite=first_non_finite is not None and not from_finite_weights,
        )

    def _make_call(self, seeded_for: int) -> Any:
        state, replica, tables, last_step, wire = self._state, self._replica, self.tables, self._last_step, self._wire

        @tf.function(autograph=False)
        def call(iterator: Any, steps: tf.Tensor, worker: tf.Tensor) -> tf.Tensor:
            self._seed_graph(seeded_for)
            start = tf.cast(state.step.read_value(), tf.int32)
            # A call that ran again after its worker was lost must not pass the last step.
            steps = tf.clip_by_value(last_step - start, 0, steps)

            def step(done: tf.Tensor) -> tf.Tensor:
                values, non_trainable = state.read()
                # Steps of two calls of a worker never overlap, so start + done is unique for each worker.
                measured, gradients, new_non_trainable = replica.stateless_step(iterator, values, non_trainable, worker, start + done)
                if tables:
                    gradients = tables.apply(gradients, state.groups[0], lambda values, server: _over_wire(values, wire, server))
                for pack_group, packed in zip(state.groups, state.packed(gradients), strict=True):
                    pack_group.apply([_over_wire(g, wire, pack.server) for g, pack in zip(packed, pack_group.packs, strict=True)])
                for variable, old, new in zip(state.non_trainable, non_trainable, new_non_trainable, strict=True):
                    variable.assign_add(new - old)
                # If the weights were still finite, this worker's step diverged.
                from_finite_weights = tf.cond(tf.math.is_finite(measured[0]), lambda: tf.constant(False), lambda: _all_finite(values))
                return tf.concat([measured, [tf.cast(from_finite_weights, tf.float32)]], 0)

            small = replica.operations is not None and replica.operations <= FEW_OPERATIONS
            totals = model_ops.repeat(steps, step, replica.width + 1, unrolled=_UNROLLED if small else 1)
            after = tf.stack([tf.cast(number, tf.float64) for number in (start, steps, state.step.read_value())])
            return tf.concat([tf.cast(totals, tf.float64), after], 0)

        return call


def _all_finite(values: list[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([True, *(tf.reduce_all(tf.math.is_finite(value)) for value in values if value.dtype.is_floating)])


def _over_wire(gradient: tf.Tensor, wire: tf.DType, server: int) -> tf.Tensor:
    """Send a float32 gradient to its server as `wire`."""
    if wire == tf.float32 or gradient.dtype != tf.float32:
        return gradient
    short = tf.cast(gradient, wire)
    with tf.device(device(server)):
        return tf.cast(short, tf.float32)
