"""The chief's side of the workers of parameter_server: it schedules calls of some steps on them, and collects the results."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from trainer.engine import model_ops
from trainer.engine.connections import unreachable
from trainer.engine.parameter_server import server_watch
from trainer.engine.parameter_server.server_watch import ServerWatch
from trainer.engine.parameter_server.servers import disable_blocking_enqueue
from trainer.engine.session import NonFinite, PeerLostError, WorkerProgress, cause
from trainer.socket_filter import restricting_to_loopback
from trainer.tf_config import TaskConfig

CHIEF_CPU = "/job:chief/replica:0/task:0/device:CPU:0"
CALLS_PER_WORKER = 2  # that are scheduled at a time, so that no worker waits for the chief
_RESULT_TIMEOUT = 1.0  # seconds without a result before the chief checks whether a server is gone, or it was asked to stop
_CONNECT_TIMEOUT = 1.0  # seconds for a server to take a connection
_SHUTDOWN_SECONDS = 1.0  # seconds after its connections in which a worker that was killed still listens
_ASK_INTERVAL = 0.5  # seconds between checks whether a worker is back
_END_TIMEOUT = 10.0  # seconds for workers to end the calls that they have begun, once no more are needed; well below a stop's grace period

# TensorFlow's messages for a call on a worker that came back and is not connected again yet, or lacks tensors of the worker's earlier process.
_NOT_CONNECTED = ("Primary device is not remote", "Unable to find the relevant tensor remote_handle")

# Type of a Python number -> that of its tensor, as tf.constant chooses it.
_NUMBERS: dict[type, Any] = {bool: np.bool_, int: np.int32, float: np.float32}

# A ps or the whole cluster is gone, or a worker while the chief connects. Later the coordinator gives a lost worker's calls to others.
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)

# The coordinator logs each worker's error several times: the error itself is raised, or reported as a notice.
_REPEATED = (
    "Remote function on worker",
    "encountered the following error when processing closure",
    "Start cancelling closures due to error",
)


class _RepeatedErrorFilter(logging.Filter):
    """Drops messages that are reported elsewhere."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not any(part in record.getMessage() for part in _REPEATED)


@dataclass(frozen=True)
class Connection:
    """The chief's connection to all ps, `servers` of them, and all workers of a cluster; there is one in a process."""

    coordinator: Any
    servers: int
    workers: int
    watch: ServerWatch | None = None


def connect(task: TaskConfig) -> Connection:
    """Connect the chief to all ps and workers; return when every one of them answers.

    Raises:
        PeerLostError: one of them was lost meanwhile.
    """
    tf.get_logger().addFilter(_RepeatedErrorFilter())
    cluster = tf.train.ClusterSpec({role: list(addresses) for role, addresses in task.cluster.items()})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type=task.role, task_id=task.index, rpc_layer="grpc")
    with translate_peer_errors(), restricting_to_loopback(task.address):
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    servers, workers = task.cluster["ps"], task.cluster["worker"]
    _recognise_lost_workers(coordinator, servers)
    _await_lost_workers(coordinator, workers)
    return Connection(coordinator, len(servers), len(workers))


def constant(value: Any, dtype: Any = None) -> tf.Tensor:
    """Return a tensor on the chief, for a call on a worker.

    Created under the worker's device it would be sent there at once, while no other Python runs: a worker that hangs would stop the chief.
    TensorFlow also caches one tensor for each Python number. If a worker dies during its copy, the cached tensor keeps that error, and
    every later call with the number fails, also on the worker's replacement. A tensor of a new array is not cached.
    """
    kind = _NUMBERS.get(type(value)) if dtype is None else tf.as_dtype(dtype).as_numpy_dtype
    with tf.device(CHIEF_CPU):
        return tf.constant(np.asarray(value, kind))


@contextmanager
def translate_peer_errors() -> Iterator[None]:
    """Turn TensorFlow's errors about lost servers into PeerLostError."""
    try:
        with server_watch.tracked_call():
            yield
    except _LOST as error:
        raise PeerLostError(cause(error)) from error


def is_lost_worker_error(error: Exception, servers: Sequence[str]) -> bool:
    """Return whether a call on a worker, or a new connection to it, failed because the worker is lost, if the error does not name it.

    For some connections that break when a process dies, gRPC does not report the task at the other end. It is a worker if each of
    `servers`, the addresses of all ps, accepts a connection.
    """
    message = str(error)
    if isinstance(error, tf.errors.UnavailableError) and "/job:" not in message:
        return not any(unreachable(address, _CONNECT_TIMEOUT) for address in servers)
    return any(words in message for words in _NOT_CONNECTED) and "/job:ps" not in message


def _recognise_lost_workers(coordinator: Any, servers: Sequence[str]) -> None:
    """Have the coordinator treat a worker as lost, and wait for it, also after errors in which it does not find the worker's name."""
    cluster = coordinator._cluster  # noqa: SLF001 - the coordinator has no public option for this
    by_name = cluster.failure_handler._validate_preemption_failure  # noqa: SLF001

    def validate(error: Exception) -> None:
        ending = cluster.closure_queue._cancellation_mgr.is_cancelled  # noqa: SLF001
        if ending or not is_lost_worker_error(error, servers):
            by_name(error)

    cluster.failure_handler._validate_preemption_failure = validate  # noqa: SLF001


def _await_lost_workers(coordinator: Any, workers: Sequence[str]) -> None:
    """Have the coordinator connect again to lost workers only when all workers accept connections.

    Its gRPC resolves a name at the first connection, and then only every 30 s: a worker that has come back at another address would be
    found that late.
    """
    handler = coordinator._cluster.failure_handler  # noqa: SLF001 - the coordinator has no public option for this
    by_tensorflow = handler.wait_on_failure

    def wait_on_failure(on_failure_fn: Callable[[Exception], None] | None = None, **others: Any) -> Any:
        def failed(error: Exception) -> None:
            if on_failure_fn is not None:
                on_failure_fn(error)
            time.sleep(_SHUTDOWN_SECONDS)
            while handler._should_preemption_thread_run and any(unreachable(address, _CONNECT_TIMEOUT) for address in workers):  # noqa: SLF001
                time.sleep(_ASK_INTERVAL)

        return by_tensorflow(on_failure_fn=failed, **others)

    handler.wait_on_failure = wait_on_failure


class Measures(Protocol):
    """Measures of a step by its worker: a vector of `width` numbers, the loss, the `metrics`, the seconds it waited for input."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics."""

    @property
    def width(self) -> int:
        """Return how many numbers there are."""

    @property
    def examples(self) -> int:
        """Return the examples of a step."""


@dataclass
class _Call:
    """Steps for a worker. Once `ended`, a call does nothing on any worker: it was lost with its worker, or is no longer needed."""

    steps: int
    started: bool = False
    ended: bool = False


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """Result of a call: `totals`, float32 [Measures.width], are sums over its `steps`.

    `global_step` is the cluster's after the call, `waited` the seconds that it waited for others' gradients, if it reports that; `first_non_finite`
    is the first global step whose loss was not finite, `weights_non_finite` whether weights that were not finite caused each such loss, `payload`
    any other result for the chief.
    """

    totals: np.ndarray[Any, np.dtype[np.float32]]
    steps: int
    global_step: int = 0
    waited: float | None = None
    first_non_finite: int | None = None
    weights_non_finite: bool = False
    payload: Any = None


@dataclass(frozen=True, kw_only=True)
class WorkerResult(CallResult):
    """Result of a call on one worker, which took `seconds`."""

    worker: int
    seconds: float


def non_finite(results: Iterable[WorkerResult]) -> NonFinite | None:
    """Return the first loss that was not finite, by global step, preferring one from finite weights; None if all were finite."""
    found = [
        (result.weights_non_finite, NonFinite(result.first_non_finite, f"worker-{result.worker}"))
        for result in results
        if result.first_non_finite is not None
    ]
    return min(found)[1] if found else None


@dataclass(frozen=True)
class Assignment:
    """The worker that a call runs on, and whether it is the first call there, or the first since `start_over`."""

    worker: int
    first: bool


# Creates a worker's iterator, under its device.
MakeIterator = Callable[[int], Any]
# Runs so many steps with that iterator, under the worker's device.
Run = Callable[[Any, int, Assignment], CallResult]


class Workers:
    """Schedules calls on workers and collects their results, those of lost workers included.

    `stop_requested` returns whether this task was asked to stop: then waits for workers end, since there may be none left.
    Methods that schedule, wait or check raise PeerLostError when a ps is gone.
    """

    def __init__(
        self, connection: Connection, make_iterator: MakeIterator, run: Run, measures: Measures, stop_requested: Callable[[], bool]
    ) -> None:
        self._coordinator, self.count, self._watch = connection.coordinator, connection.workers, connection.watch
        self._make_iterator, self._run, self._measures, self._stop_requested = make_iterator, run, measures, stop_requested
        self._empty = CallResult(totals=np.zeros(measures.width, np.float32), steps=0)
        self._iterators: dict[int, Any] = {}
        # Objects on lost workers: iterators and, in the frames of an error, arguments. If they were freed, TensorFlow would ask the new process of
        # the worker to destroy them. It refuses, and a request beside that may never be answered: the worker's thread here would wait forever.
        self._kept_alive: list[Any] = []
        self._results: queue.SimpleQueue[WorkerResult | None] = queue.SimpleQueue()  # None only wakes a waiting thread
        self._calls: dict[int, _Call] = {}  # that have not ended
        self._lock = threading.Lock()  # of calls, which end in the coordinator's threads
        self._called: set[int] = set()  # those whose first call was made
        self._lost: set[int] = set()
        self.local_steps = [0] * self.count
        self.in_flight = 0  # calls of all workers that are scheduled and have not ended
        self._loss: float | None = None  # as last known
        self._metrics: dict[str, float] = {}

    def schedule(self, steps: int) -> None:
        """Schedule `steps` steps on the first free worker; a call of no steps only shows that there is one."""
        call = _Call(steps)
        self._calls[id(call)] = call
        self.in_flight += 1
        with translate_peer_errors():
            # Its public `schedule` takes only tf.functions; only a Python function can tell which worker ran it.
            self._coordinator._cluster.schedule(self._work, args=(call,), kwargs={})  # noqa: SLF001

    def take(self) -> WorkerResult | None:
        """Wait for a call to end and return its result, of no steps if its worker was lost; None once this task is asked to stop."""
        while not self._stop_requested():
            if result := self._take_or_check():
                return result
        return None

    def take_within(self, seconds: float) -> WorkerResult | None:
        """Wait at most `seconds`, or until `wake`, for a call to end; return its result, None if none has ended."""
        try:
            result = self._results.get(timeout=seconds)
        except queue.Empty:
            return None
        if result is not None:
            self.in_flight -= 1
            self.local_steps[result.worker] += result.steps
        return result

    def wake(self) -> None:
        """Let the thread that waits in `take_within` continue; from any thread."""
        self._results.put(None)

    def drain(self) -> list[WorkerResult]:
        """Return all results so far, without a wait."""
        results: list[WorkerResult] = []
        while not self._results.empty():
            result = self.take_within(0)
            results += [result] if result else []
        return results

    def take_all(self) -> list[WorkerResult]:
        """Wait for all calls that were scheduled and return their results.

        Once this task is asked to stop, calls that no worker has begun do nothing. Calls that workers do not end within some seconds count as
        ended; only the servers know how many steps these have done.
        """
        results: list[WorkerResult] = []
        while self.in_flight and (result := self.take()):
            results.append(result)
        self.drop_queued()
        until = time.monotonic() + _END_TIMEOUT
        while self.in_flight and time.monotonic() < until:
            result = self._take_or_check()
            results += [result] if result else []
        if self.in_flight:
            disable_blocking_enqueue()  # saving has operations of its own
            self._drop(started=True)
        return results + self.drain()

    def drop_queued(self) -> None:
        """Drop calls that no worker has begun, and count them as ended: there may be no worker left to take them."""
        self._drop(started=False)

    @property
    def alive_count(self) -> int:
        """Return how many workers are not known to be lost; one that is back counts again when it begins a call."""
        return self.count - len(self._lost)

    def start_over(self) -> None:
        """Let the next call of every worker be its first."""
        self._called.clear()

    def check_errors(self) -> None:
        """Raise a permanent error of the cluster, if there is one."""
        if self._watch is not None:
            self._watch.check()
        with translate_peer_errors():
            self._coordinator.done()

    def close(self) -> None:
        """Drop calls that no worker has begun, and give the others some seconds to end: no result is needed any more."""
        self.drop_queued()
        with translate_peer_errors():
            # The public `join` has no deadline, and calls stay in the queue if there is no worker to take them.
            self._coordinator._cluster.closure_queue.wait(timeout=_END_TIMEOUT)  # noqa: SLF001

    def summarise(self, results: list[WorkerResult]) -> tuple[float | None, dict[str, float], list[WorkerProgress]]:
        """Return loss and metrics, means over the steps of `results`, and each worker's progress.

        Without steps they are the last known ones; before any call has ended there is no loss and no metric.
        """
        results = [r for r in results if r.steps]  # without those that were lost
        if results:
            loss, *metrics, _ = np.sum([r.totals for r in results], axis=0) / sum(r.steps for r in results)
            self._loss, self._metrics = float(loss), model_ops.named(self._measures.metrics, metrics)
        return self._loss, self._metrics, [self._progress(r) for r in {r.worker: r for r in results}.values()]

    def _progress(self, result: WorkerResult) -> WorkerProgress:
        loss, *metrics, waited = result.totals
        return WorkerProgress(
            task=f"worker-{result.worker}",
            local_step=self.local_steps[result.worker],
            loss=float(loss / result.steps),
            metrics=model_ops.named(self._measures.metrics, [total / result.steps for total in metrics]),
            examples_per_second=result.steps * self._measures.examples / result.seconds,
            seconds_per_step=result.seconds / result.steps,
            input_wait=float(waited / result.seconds),
            peer_wait=None if result.waited is None else result.waited / result.seconds,
        )

    def _work(self, call: _Call) -> None:
        """Run one call on a worker; the coordinator's thread of that worker executes this, under its device."""
        with self._lock:
            if call.ended:
                return
            call.started = True
        worker = tf.DeviceSpec.from_string(context.context().device_name).task
        began = time.perf_counter()
        try:
            if worker not in self._iterators:
                self._iterators[worker] = self._make_iterator(worker)
            self._lost.discard(worker)
            done = self._run(self._iterators[worker], call.steps, self._assignment(worker)) if call.steps else self._empty
        except tf.errors.OpError as error:
            self._kept_alive.append((error, self._iterators.pop(worker, None)))
            self._called.discard(worker)
            self._lost.add(worker)
            with self._lock:
                self._end(call, self._empty_result(worker))
            raise
        with self._lock:
            self._end(call, WorkerResult(**vars(done), worker=worker, seconds=time.perf_counter() - began))

    def _take_or_check(self) -> WorkerResult | None:
        """Wait a moment for a call to end; if none does, check for permanent errors."""
        result = self.take_within(_RESULT_TIMEOUT)
        if result is None:
            self.check_errors()
        return result

    def _drop(self, *, started: bool) -> None:
        """Count calls as ended; those that have not begun will do nothing."""
        with self._lock:
            for call in [call for call in self._calls.values() if started or not call.started]:
                self._end(call, self._empty_result(0))

    def _assignment(self, worker: int) -> Assignment:
        first = worker not in self._called
        self._called.add(worker)
        return Assignment(worker, first)

    def _end(self, call: _Call, result: WorkerResult) -> None:
        """Report a call, once; under the lock."""
        call.ended = True
        if self._calls.pop(id(call), None) is not None:
            self._results.put(result)

    def _empty_result(self, worker: int) -> WorkerResult:
        return WorkerResult(**vars(self._empty), worker=worker, seconds=0.0)
