"""Common part of the chief's two sessions on parameter servers that train on data: the model, its state on the servers, the workers and their data."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import keras
import tensorflow as tf

from trainer.engine import data_length, model_ops, schedules, user_step
from trainer.engine.embeddings import layers
from trainer.engine.embeddings.sharded_tables import Tables
from trainer.engine.parameter_server.state import ServerState
from trainer.engine.parameter_server.worker_pool import (
    CHIEF_CPU,
    Assignment,
    CallResult,
    Connection,
    WorkerResult,
    Workers,
    constant,
    non_finite,
    translate_peer_errors,
)
from trainer.engine.replica import Replica, ReplicaSession
from trainer.engine.session import NonFinite
from trainer.engine.train_config import TrainConfig
from trainer.settings import Embeddings
from trainer.workloads.errors import WorkloadError
from trainer.workloads.graph_nodes import nodes_of_functions
from trainer.workloads.protocol import Shard, Workload

_LARGE_BYTES = 1 << 20  # of a constant
_FEW = 128  # elements: a tensor of so few is made a constant again by FuncGraph.capture


class ServerSession(ReplicaSession):
    """The chief's part; see Session. `replicas` make a step together; `per_server` is ServerState's."""

    trains_changed_weights = False

    def __init__(
        self,
        workload: Workload,
        config: TrainConfig,
        connection: Connection,
        stop_requested: Callable[[], bool],
        *,
        replicas: int,
        per_server: bool,
    ) -> None:
        self._last_step, self._stop_requested = config.steps, stop_requested
        with translate_peer_errors():
            with tf.device(CHIEF_CPU):
                settings = config.train.embeddings or Embeddings()
                with layers.sharding(settings):
                    built = model_ops.build(workload, config, replicas)
                layers.check_all_sharded(built.model, settings)
                model_ops.check_normalization(built.model, config, connection.workers)
                if steps := user_step.customizations(workload):
                    raise WorkloadError(
                        f"train.workload {config.train.workload} has {', '.join(steps)} of its own, which parameter_server does not run: there servers "
                        "apply what workers compute. Use strategy single, mirrored or multi_worker_mirrored, or give loss and metrics to compile"
                    )
                tables = layers.tables(built.model)
                self.tables: Tables | None = (
                    Tables(tables, built.optimizer, config, connection.servers, per_server=per_server) if tables else None
                )
                self._replica = Replica(workload, built.model, built.optimizer, config, tables=self.tables)
            self.model: keras.Model = built.model
            self.optimizer: keras.optimizers.Optimizer = built.optimizer
            self._state = ServerState(
                self.model,
                self.optimizer,
                connection.servers,
                per_server=per_server,
                count_on_all=bool(self.tables and self.tables.trained_groups),
            )
            if self.tables:
                self.tables.create()
                layers.refuse_all_weights(self.model)
        self._seed, self._step_limit = config.seed, config.steps
        self._has_non_finite = False
        first = workload.train_data(Shard(config.batch_size, config.seed, count=connection.workers))
        # In synchronous training every worker takes each step.
        data_length.checked(first, config, workers=1 if per_server else connection.workers)
        batches = config.train.gradients.accumulate
        self._data = WorkerData(
            lambda worker, start: workload.train_data(
                Shard(config.batch_size, config.seed, index=worker, count=connection.workers, start=start * batches)
            )
        )
        self._call = WorkerCalls(self._make_call)
        self._workers = Workers(connection, self._iterator, self._run, self._replica, stop_requested)

    def begin_at(self, step: int) -> None:
        """See Session.begin_at."""
        with translate_peer_errors():
            self._state.assign_from_chief(step)
            if self.tables:
                self.tables.initialize()
        self._step = step

    def fetch(self) -> None:
        """See Session.fetch."""
        with translate_peer_errors():
            self._state.copy_to_chief()

    @abstractmethod
    def flush(self) -> NonFinite | None:
        """See Session.flush."""

    def limit_steps(self, step: int) -> None:
        """See Session.limit_steps."""
        self._step_limit = step

    def run_callbacks(self, call: Callable[[], bool], *, current: bool = True) -> bool:
        """See Session.run_callbacks."""
        if current:
            self.flush()
            self.fetch()
        before = schedules.constant_rate(self.optimizer)
        stop = call()
        if (rate := schedules.constant_rate(self.optimizer)) != before:
            with translate_peer_errors():
                self._state.set_rate(rate)
        return stop

    def close(self) -> None:
        """End the workers' calls; `servers.stop_all` stops the servers."""
        self._workers.close()

    def _note_first_non_finite(self, results: Iterable[WorkerResult]) -> bool:
        """Return True once, with the session's first non-finite loss: the caller then waits for the calls of all workers.

        A worker that only received the bad weights may report before the one that diverged.
        """
        first = not self._has_non_finite and non_finite(results) is not None
        self._has_non_finite |= first
        return first

    @abstractmethod
    def _worker_step(self) -> int:
        """Return the step at which a worker that starts now begins in its own stream of batches."""

    @abstractmethod
    def _run(self, iterator: Any, steps: int, assignment: Assignment) -> CallResult:
        """Run a call on a worker; see worker_pool.Run."""

    @abstractmethod
    def _make_call(self, seeded_for: int) -> Any:
        """Return a tf.function that takes steps on a worker; its graph has the seed of one, see `_seed_graph`."""

    def _seed_graph(self, worker: int) -> None:
        model_ops.seed_graph(self._seed, worker, self._worker_step())

    def _iterator(self, worker: int) -> Any:
        self._call.renew(worker)
        return iter(self._data(constant(worker, tf.int64), constant(self._worker_step(), tf.int64)))


class WorkerCalls:
    """Calls a tf.function on workers, whose device is set; several threads may do so. `make(worker)` returns it with that worker's seed in its graph.

    All workers share one, unless it has operations of tf.random, whose seeds are constants of a graph: then each worker has its own.
    """

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._shared: Any = None
        self._has_random_ops = False
        self._own: dict[int, Any] = {}
        self._kept_alive: list[Any] = []  # if functions were freed, TensorFlow would remove them from the workers
        self._lock = threading.Lock()

    def __call__(self, worker: int, *arguments: Any) -> tf.Tensor:
        """Call the function of a worker, which is traced if it has none yet."""
        result: tf.Tensor = (self._traced(worker) or self._trace(worker, arguments))(*arguments)
        return result

    def _traced(self, worker: int) -> Any:
        return self._own.get(worker) if self._has_random_ops else self._shared

    def _trace(self, worker: int, arguments: Sequence[Any]) -> Any:
        # One at a time: threads share the model. A trace fails if its worker is lost, and is then repeated.
        with self._lock:
            if self._shared is None:
                shared = self._make(0)
                self._has_random_ops = _has_random_ops(shared.get_concrete_function(*arguments).graph)
                self._own |= {0: shared} if self._has_random_ops else {}
                self._shared = shared
            if self._has_random_ops and worker not in self._own:
                own = self._make(worker)
                own.get_concrete_function(*arguments)
                self._own[worker] = own
            return self._traced(worker)

    def renew(self, worker: int) -> None:
        """Let a worker that was started again have a new function, as its operations of tf.random begin with their first number again."""
        self._kept_alive.append(self._own.pop(worker, None))


def _has_random_ops(graph: Any) -> bool:
    """Return whether a graph has operations of tf.random, in its functions as well."""
    definition = graph.as_graph_def()
    return any("seed2" in node.attr for node in chain(definition.node, nodes_of_functions(definition)))


class WorkerData:
    """`make(worker, first step)`, of int64 scalars, as a TensorFlow function, since workers run no Python.

    Its arrays are inputs of that function, which each worker gets once, not constants of its graph: TensorFlow copies a graph at each stage
    of its preparation, on the chief and on each worker, about ten times in all (docs/decisions/0023).
    """

    def __init__(self, make: Callable[[tf.Tensor, tf.Tensor], tf.data.Dataset]) -> None:
        # References to graph and data set: if they were freed, TensorFlow would remove the functions of their stages from the workers.
        self._graph = _Graph("data")
        with self._graph.as_default():
            self._arguments = [tf.compat.v1.placeholder(tf.int64, []) for _ in range(2)]
            self._data = make(*self._arguments)
            self._variant = tf.data.experimental.to_variant(self._data)
        scalar = tf.TensorSpec([], tf.int64)
        self._function = tf.function(self._run, autograph=False).get_concrete_function(scalar, scalar)

    def __call__(self, worker: tf.Tensor, start: tf.Tensor) -> tf.data.Dataset:
        """Return the data set of a worker, on the device that is set."""
        return tf.data.experimental.from_variant(self._function(worker, start), self._data.element_spec)

    def _run(self, *values: tf.Tensor) -> Any:
        inputs = {inner.name: tf.identity(outer) for outer, inner in self._graph.captures}
        inputs |= {argument.name: value for argument, value in zip(self._arguments, values, strict=True)}
        return tf.graph_util.import_graph_def(self._graph.as_graph_def(), inputs, [self._variant.name], name="")[0]


class _Graph(tf.__internal__.FuncGraph):
    """A graph whose large constants become its inputs."""

    def _create_op_internal(self, op_type: str, *arguments: Any, **options: Any) -> Any:
        value = options["attrs"]["value"].tensor if op_type == "Const" else None
        if value is None or value.ByteSize() < _LARGE_BYTES or tf.TensorShape(value.tensor_shape).num_elements() <= _FEW:
            return super()._create_op_internal(op_type, *arguments, **options)
        with tf.init_scope(), tf.device("CPU:0"):
            array = tf.constant(tf.make_ndarray(value))
        return self.capture(array).op
