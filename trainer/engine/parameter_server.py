"""Asynchronous training on parameter servers: the chief schedules, workers compute, servers update."""

import logging
import queue
import time
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.engine import compute
from trainer.engine.job import Job
from trainer.engine.ps_state import ServerState
from trainer.engine.session import PeerLostError, Progress, WorkerProgress, cause
from trainer.loopback import closed_to_others
from trainer.tf_config import TaskConfig
from trainer.workloads.protocol import Shard, Workload

_IN_FLIGHT = 2  # calls scheduled a worker, so that none waits for the chief
_SILENCE = 1.0  # seconds without a result before the chief looks whether a server is gone

# A server or the whole cluster is gone. Workers' own failures never surface: the coordinator reschedules.
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)


@dataclass
class _Call:
    """Steps for a worker. Once `lost` with its worker, whoever is given it again does nothing: the chief asks for what is missing."""

    steps: int
    lost: bool = False


@dataclass(frozen=True)
class _Result:
    worker: int
    steps: int
    seconds: float
    global_step: int
    totals: np.ndarray[Any, np.dtype[np.float32]]


# What the coordinator logs of each worker's error, several times over: the error itself is raised, or told as a notice.
_REPEATED = (
    "Remote function on worker",
    "encountered the following error when processing closure",
    "Start cancelling closures due to error",
)


class _Repeated(logging.Filter):
    """Drops what is told elsewhere."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not any(part in record.getMessage() for part in _REPEATED)


@dataclass(frozen=True)
class Connection:
    """The chief's connection to every server of a cluster; there is one in a process."""

    coordinator: Any
    servers: int
    workers: int


def connect(task: TaskConfig) -> Connection:
    """Connect the chief to all ps and workers; returns when every one of them answers.

    Raises:
        PeerLostError: one of them went away meanwhile.
    """
    tf.get_logger().addFilter(_Repeated())
    cluster = tf.train.ClusterSpec({role: list(addresses) for role, addresses in task.cluster.items()})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type=task.role, task_id=task.index, rpc_layer="grpc")
    try:
        with closed_to_others(task.address):
            strategy = tf.distribute.ParameterServerStrategy(resolver)
            coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    except _LOST as error:
        raise _lost(error) from error
    return Connection(coordinator, len(task.cluster["ps"]), len(task.cluster["worker"]))


class ParameterServerSession:
    """The chief's session. Workers run `steps` small steps a call; each reads once and sends one gradient."""

    is_chief = True

    def __init__(self, workload: Workload, job: Job, connection: Connection) -> None:
        self._workload = workload
        self._batch_size, self._seed, self._target = job.batch_size, job.seed, job.steps
        self._coordinator, self._workers = connection.coordinator, connection.workers
        try:
            with tf.device("/job:chief/replica:0/task:0/device:CPU:0"):
                built = compute.build(workload, job.seed, job.batch_size * (job.train.sync.replicas_to_aggregate if job.train.sync else 1))
                self._metrics = compute.metric_names(workload, built.model)
            self.model: keras.Model = built.model
            self.optimizer: keras.optimizers.Optimizer = built.optimizer
            self._state = ServerState(self.model, self.optimizer, connection.servers)
        except _LOST as error:
            raise _lost(error) from error
        self._iterators: dict[int, Any] = {}
        self._local_steps = [0] * self._workers
        self._results: queue.SimpleQueue[_Result] = queue.SimpleQueue()
        self._means = np.zeros(1 + len(self._metrics), np.float32)  # loss and metrics, as last known
        self._step = self._told = 0
        self._settled: list[_Result] = []  # what came while settling, which took `_settling` seconds
        self._settling = 0.0
        self._scheduled = 0  # global steps asked for, done or not; never fewer than are done
        self._in_flight = 0
        self._data = self._make_data()
        self._call = self._make_call()

    @property
    def step(self) -> int:
        """Return the global step as of the last result."""
        return self._step

    def push(self, step: int) -> None:
        """See Session.push."""
        try:
            self._state.push(step)
        except _LOST as error:
            raise _lost(error) from error
        self._step = self._scheduled = self._told = step
        self._start = step

    def settle(self) -> None:
        """See Session.settle: wait for the calls that workers still compute; the next `run` tells of them."""
        began = time.perf_counter()
        while self._in_flight:
            self._settled.append(self._take())
        try:
            self._step = int(self._state.step.numpy())
        except _LOST as error:
            raise _lost(error) from error
        self._settling += time.perf_counter() - began

    def pull(self) -> None:
        """See Session.pull. Workers go on meanwhile."""
        try:
            self._state.pull()
        except _LOST as error:
            raise _lost(error) from error

    def run(self, steps: int, *, stop: bool = False, next_steps: int = 0) -> Progress:
        """Return when at least `steps` more global steps are done than the last call told of; see Session.run.

        Calls overlap: workers already compute the next steps when this returns; not so with `stop`, as what is
        saved then must be the state at the step that is told.
        """
        began, start = time.perf_counter() - self._settling, self._told
        results, self._settled, self._settling = self._settled, [], 0.0
        goal = min(start + steps, self._target)
        share = max(1, -(-steps // self._workers))
        while self._step < goal:
            self._fill(share)
            if self._in_flight:
                results.append(self._take())
        while stop and self._in_flight:
            results.append(self._take())
        self._told = self._step
        done = self._told - start
        results = [r for r in results if r.steps]  # without those that were lost
        if results:
            self._means = np.sum([r.totals for r in results], axis=0) / sum(r.steps for r in results)
        return Progress(
            step=self._step,
            steps=done,
            loss=float(self._means[0]),
            metrics=compute.named(self._metrics, self._means[1:]),
            examples=sum(r.steps for r in results) * self._batch_size,
            seconds=time.perf_counter() - began,
            stop=stop,
            next_steps=next_steps or None,
            workers=[self._worker_progress(r) for r in {r.worker: r for r in results}.values()],
        )

    def close(self) -> None:
        """Wait for calls that are still under way; servers are told to stop by `servers.stop_all`."""
        try:
            while self._in_flight:
                self._take()
            self._coordinator.join()
        except _LOST as error:
            raise _lost(error) from error

    def _fill(self, share: int) -> None:
        try:
            if not self._in_flight:  # how many steps a lost call has done, the servers alone know
                self._step = self._scheduled = int(self._state.step.numpy())
            while self._in_flight < self._workers * _IN_FLIGHT and self._scheduled < self._target:
                steps = min(share, self._target - self._scheduled)
                # Its public `schedule` takes tf.functions alone; only a Python function can tell which worker ran it.
                self._coordinator._cluster.schedule(self._work, args=(_Call(steps),), kwargs={})  # noqa: SLF001
                self._scheduled += steps
                self._in_flight += 1
        except _LOST as error:
            raise _lost(error) from error

    def _take(self) -> _Result:
        while True:
            try:
                result = self._results.get(timeout=_SILENCE)
                break
            except queue.Empty:
                self._look_for_errors()
        self._in_flight -= 1
        self._step = max(self._step, result.global_step)
        self._local_steps[result.worker] += result.steps
        return result

    def _look_for_errors(self) -> None:
        try:
            self._coordinator.done()
        except _LOST as error:
            raise _lost(error) from error

    def _worker_progress(self, result: _Result) -> WorkerProgress:
        return WorkerProgress(
            task=f"worker-{result.worker}",
            local_step=self._local_steps[result.worker],
            loss=float(result.totals[0] / result.steps),
            examples_per_second=result.steps * self._batch_size / result.seconds,
        )

    def _work(self, call: _Call) -> None:
        """Run one call on a worker; the coordinator's thread of that worker executes this, under its device."""
        if call.lost:
            return
        worker = tf.DeviceSpec.from_string(tf.constant(0).device).task
        began = time.perf_counter()
        try:
            if worker not in self._iterators:
                self._iterators[worker] = iter(self._data(tf.constant(worker, tf.int64), tf.constant(self._start, tf.int64)))
            values = self._call(self._iterators[worker], tf.constant(call.steps)).numpy()
        except tf.errors.OpError:
            self._iterators.pop(worker, None)  # it lived on that worker
            call.lost = True
            self._results.put(_Result(worker, 0, 0, 0, np.zeros_like(self._means)))
            raise
        seconds = time.perf_counter() - began
        *totals, done, global_step = values
        self._results.put(_Result(worker, round(done), seconds, round(global_step), np.array(totals, np.float32)))

    def _make_data(self) -> Any:
        def data(worker: tf.Tensor, start: tf.Tensor) -> tf.data.Dataset:
            # Where a worker stood in its own stream is not known after a restart: it starts at its fair share.
            own = start // self._workers
            return self._workload.train_data(Shard(self._batch_size, self._seed, index=worker, count=self._workers, start=own))

        scalar = tf.TensorSpec([], tf.int64)
        return tf.function(data, autograph=False).get_concrete_function(scalar, scalar)

    def _make_call(self) -> Any:
        model, workload, state, target = self.model, self._workload, self._state, self._target
        count = 1 + len(self._metrics)

        @tf.function(autograph=False)
        def call(iterator: Any, steps: tf.Tensor) -> tf.Tensor:
            # A call that ran again after its worker was lost must not pass the last step.
            steps = tf.clip_by_value(target - tf.cast(state.step.read_value(), tf.int32), 0, steps)

            def step() -> tf.Tensor:
                inputs, targets = next(iterator)
                values, averages = state.read()
                with tf.GradientTape() as tape:
                    tape.watch(values)
                    outputs, new_averages, regularisation = _stateless(model, values, averages, inputs)
                    loss = compute.total_loss(workload, targets, outputs, regularisation)
                state.apply(tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO))
                for variable, old, new in zip(state.averages, averages, new_averages, strict=True):
                    variable.assign_add(new - old)
                return compute.measures(workload, loss, targets, outputs)

            totals = compute.repeat(steps, step, count)
            after = tf.stack([tf.cast(steps, tf.float64), tf.cast(state.step.read_value(), tf.float64)])
            return tf.concat([tf.cast(totals, tf.float64), after], 0)

        return call


def _stateless(
    model: keras.Model, values: list[tf.Tensor], averages: list[tf.Tensor], inputs: Any
) -> tuple[Any, list[tf.Tensor], list[tf.Tensor]]:
    """Call the model on given values; seeds of random layers are drawn where this runs. Returns outputs, averages, losses."""
    given = iter(averages)
    fixed = []
    for variable in model.non_trainable_variables:
        if variable.value.dtype.is_floating:
            fixed.append(next(given))
        elif not compute.is_seed(variable):
            with tf.init_scope():  # stays what it was at the start
                constant = variable.value.numpy()
            fixed.append(tf.constant(constant))
        else:
            fixed.append(tf.cast(tf.random.uniform(variable.shape, maxval=2**31 - 1, dtype=tf.int32), variable.value.dtype))
    outputs, after, losses = model.stateless_call(values, fixed, inputs, training=True, return_losses=True)
    floating = [new for v, new in zip(model.non_trainable_variables, after, strict=True) if v.value.dtype.is_floating]
    return outputs, floating, list(losses)


def _lost(error: tf.errors.OpError) -> PeerLostError:
    return PeerLostError(cause(error))
