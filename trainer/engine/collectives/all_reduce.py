"""All-reduce over the tasks of a multi-worker cluster: the values of a step are joined in one vector, outside any strategy scope."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import trainer
from trainer.engine import clock
from trainer.engine.collectives.liveness import HeartbeatProbe
from trainer.engine.collectives.rendezvous import MAX_TASKS, Endpoint, Listener
from trainer.engine.collectives.tcp_all_reduce import PeerUnreachableError, TcpAllReduce
from trainer.engine.session import PeerLostError, cause
from trainer.events import join_names
from trainer.tf_config import split_address
from trainer.workloads.errors import WorkloadError

_DEVICE_GROUP_KEY, _CPU_GROUP_KEY = 1, 2  # of the devices that train, and of a CPU in each task
# Instance keys, one per call site. Each data type of gradients has its own, and so has each vector of a broadcast.
_GRADIENTS, _CONTROL, _ENDPOINTS, _CONNECTED, _COMPATIBLE, _NUMBERS, _BARRIER, _FIRST_OF_BROADCAST = 1, 2, 3, 4, 5, 6, 100, 101
_MAX_NAMES = 5  # tasks that a message names
_CONNECT_TIMEOUT = 15.0  # seconds for all tasks to connect to each other

_BROADCAST_BYTES = 1 << 25  # of variables that are broadcast at once

_VERSION_BITS = 48  # fits in an int64 with bits to spare

# TensorFlow's errors when a peer is gone; see tensorflow/core/distributed_runtime.
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError)


class AllReduce:
    """The tasks that reduce together: `size` of them, this one at `index`. One task alone needs no collective.

    Tasks on GPUs reduce by NCCL, tasks on CPUs by TensorFlow's collectives until they `connect`, and by a TcpAllReduce afterwards.
    `MultiWorkerMirroredStrategy` is created only because it starts TensorFlow's collective runtime; models and optimizers stay
    outside its scope, where Keras is three times as fast. The runtime permanently drops a task that has been silent for ten
    seconds. Connected tasks reduce over TCP; HeartbeatProbe, which limits their waits, only asks it which tasks are alive.
    """

    def __init__(self, size: int = 1, index: int = 0, wire: str = "float32") -> None:
        self.size = size
        self.index = index
        self.names: tuple[str, ...] = ("",) * size
        self._wire = tf.as_dtype(wire)  # the type in which float32 gradients travel
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy() if size > 1 else None
        self._hint = "nccl" if tf.config.list_logical_devices("GPU") else "ring"
        self._tcp: TcpAllReduce | None = None
        self._sum_of_numbers = tf.function(lambda vector: self._total(vector, _NUMBERS), autograph=False)

    def connect(self, names: Sequence[str], addresses: Sequence[str]) -> str:
        """Connect all tasks on CPUs to each other, so that they no longer need TensorFlow's slower all-reduce; every task calls it.

        `names` and `addresses`, host:port of TensorFlow's servers, are in the order of the tasks. Returns a notice if they cannot connect:
        then all continue with TensorFlow's.

        Raises:
            PeerLostError: a task was lost.
            WorkloadError: some tasks have a GPU, and others none.
        """
        if self.size == 1:
            return ""
        self.names = tuple(names)
        self._check_compatible(names)
        if self._hint == "nccl":
            return ""
        if self.size > MAX_TASKS:
            return f"{self.size} tasks, more than {MAX_TASKS}, exchange gradients by TensorFlow's all-reduce, which is slower"
        rows = np.zeros([self.size, 3], np.int64)
        listener = None
        with suppress(OSError):  # a task that cannot listen is one that others cannot reach
            listener = Listener(addresses[self.index])
            rows[self.index] = [listener.endpoint.port, *np.frombuffer(listener.endpoint.token, np.int64)]
        with self.translate_peer_errors():
            endpoints = [
                Endpoint(int(port), token.tobytes()) for port, token in ((row[0], row[1:]) for row in self._sum_on_cpus(rows, _ENDPOINTS))
            ]
            hosts = [split_address(address)[0] for address in addresses]
            connections = listener.connect(self.index, hosts, endpoints, _CONNECT_TIMEOUT) if listener else None
            reached = int(self._sum_on_cpus(np.array([connections is not None], np.int64), _CONNECTED)[0])
        if connections is not None and reached == self.size:
            self._tcp = TcpAllReduce(self.index, names, connections, HeartbeatProbe(names))
            return ""
        for connection in (connections or {}).values():
            connection.close()
        ports = ", ".join(
            f"{name} {endpoint.port or 'none (it could not listen)'}" for name, endpoint in zip(names, endpoints, strict=True)
        )
        return (
            f"{self.size - reached} of {self.size} tasks could not connect to all others within about {_CONNECT_TIMEOUT:.0f} s; "
            f"gradients go by TensorFlow's all-reduce, which is slower. Let the tasks reach these ports of each other: {ports}"
        )

    def _check_compatible(self, names: Sequence[str]) -> None:
        """Check that all tasks have the same trainer, and that all of them have a GPU, or none. Else they would wait forever.

        Tasks exchange this first, so its form must never change: an int64 per task, 2 * version + whether it has a GPU.
        """
        own = np.zeros([self.size], np.int64)
        own[self.index] = 2 * trainer_version() + (self._hint == "nccl")
        with self.translate_peer_errors():
            answers = self._sum_on_cpus(own, _COMPATIBLE)
        _check_versions(names, [int(answer) // 2 for answer in answers])
        has_gpu = answers % 2
        if 0 < has_gpu.sum() < self.size:
            without, having = (
                join_names([name for name, has in zip(names, has_gpu, strict=True) if bool(has) is wanted], _MAX_NAMES)
                for wanted in (False, True)
            )
            raise WorkloadError(
                f"TensorFlow finds no GPU in {without}, and one in {having}; tasks of multi_worker_mirrored all train on GPUs, or all on CPUs. "
                "Give chief and workers the same `gpus`, or none, and see that the GPUs are free and their drivers there"
            )

    def _sum_on_cpus(self, values: np.ndarray[Any, Any], instance: int) -> np.ndarray[Any, Any]:
        """Return the sum of an array over all tasks, computed on their CPUs, whatever they train on."""

        @tf.function(autograph=False)
        def summed() -> tf.Tensor:
            with tf.device("CPU:0"):
                return _all_reduced(tf.constant(values.reshape(-1)), self.size, _CPU_GROUP_KEY, instance, "ring")

        flat = summed()
        total: np.ndarray[Any, Any] = flat.numpy().reshape(values.shape)
        return total

    def _reduce(self, vector: tf.Tensor, instance: int) -> tf.Tensor:
        return _all_reduced(vector, self.size, _DEVICE_GROUP_KEY, instance, self._hint)

    def mean_gradients(self, gradients: Sequence[Any], rows: Sequence[tf.IndexedSlices] = ()) -> tuple[list[Any], tf.Tensor]:
        """Return each gradient's mean over all tasks, then those of `rows`, and the seconds it took. Gradients travel as one vector per data type.

        Each task sends only its own rows, and a row that k tasks used occurs k times; TensorFlow's collectives send all rows.
        The seconds, a float32 scalar, count from this task's gradients until those of all tasks: the slowest task waits least.
        """
        if self.size == 1:
            return [*gradients, *rows], tf.constant(0.0)
        if rows and self._tcp:
            dense, waited = self.mean_gradients(gradients) if gradients else ([], tf.constant(0.0))
            means, longer = self._mean_rows(self._tcp, rows)
            return [*dense, *means], waited + longer
        gradients = [*gradients, *rows]
        dense = [tf.convert_to_tensor(g) for g in gradients]
        result: list[tf.Tensor] = list(dense)
        by_type = []
        for dtype in sorted({g.dtype.name for g in dense}):
            indices = [i for i, g in enumerate(dense) if g.dtype.name == dtype]
            by_type.append((indices, tf.concat([tf.reshape(dense[i], [-1]) for i in indices], 0)))
        vectors = [vector for _, vector in by_type]
        means, waited = self._mean_by_tcp(self._tcp, vectors) if self._tcp else self._mean_by_collectives(vectors)
        for (indices, _), mean in zip(by_type, means, strict=True):
            for i, part in zip(indices, tf.split(mean, [int(np.prod(dense[i].shape)) for i in indices]), strict=True):
                result[i] = tf.reshape(part, dense[i].shape)
        return result, waited

    def _mean_rows(self, tcp: TcpAllReduce, rows: Sequence[tf.IndexedSlices]) -> tuple[list[tf.IndexedSlices], tf.Tensor]:
        sent = [tensor for slices in rows for tensor in (slices.indices, self._to_wire(slices.values))]
        *gathered, waited = tf.numpy_function(tcp.all_gather, sent, [*(tensor.dtype for tensor in sent), tf.float32])
        means = []
        for slices, indices, values in zip(rows, gathered[::2], gathered[1::2], strict=True):
            mean = tf.cast(tf.ensure_shape(values, [None, *slices.values.shape[1:]]), slices.values.dtype) / self.size
            means.append(tf.IndexedSlices(mean, tf.ensure_shape(indices, [None]), slices.dense_shape))
        return means, tf.ensure_shape(waited, []) if clock.is_allowed() else clock.since(clock.now())

    def _mean_by_tcp(self, tcp: TcpAllReduce, vectors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        means, waits = [], []
        for vector in vectors:
            short = self._to_wire(vector)
            sum_dtype = short.dtype if short.dtype.size > tf.float16.size else tf.float32
            mean, waited = tf.numpy_function(tcp.mean, [short], [sum_dtype, tf.float32])
            means.append(tf.cast(tf.ensure_shape(mean, vector.shape), vector.dtype))
            waits.append(tf.ensure_shape(waited, []))
        return means, tf.add_n(waits) if clock.is_allowed() else clock.since(clock.now())

    def _mean_by_collectives(self, vectors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        with tf.control_dependencies(vectors):
            began = clock.now()
        sums = [tf.cast(self._reduce(self._to_wire(v), _GRADIENTS * 10 + offset), v.dtype) for offset, v in enumerate(vectors)]
        with tf.control_dependencies(sums):
            waited = clock.since(began)
        return [total / tf.cast(self.size, total.dtype) for total in sums], waited

    def _to_wire(self, vector: tf.Tensor) -> tf.Tensor:
        return tf.cast(vector, self._wire) if vector.dtype == tf.float32 else vector

    def total(self, vector: tf.Tensor) -> tf.Tensor:
        """Return the sum over all tasks of a small vector; usable inside a tf.function."""
        return self._total(vector, _CONTROL)

    def _total(self, vector: tf.Tensor, instance: int) -> tf.Tensor:
        if self.size == 1:
            return vector
        if self._tcp:
            return tf.ensure_shape(tf.numpy_function(self._tcp.total, [vector], vector.dtype), vector.shape)
        return self._reduce(vector, instance)  # all vectors of one instance have one size

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of a few numbers over all tasks, in float32 precision, between steps; every task passes the same count."""
        vector = np.array(numbers, np.float32)
        if self.size > 1:
            with self.translate_peer_errors():
                vector = self._sum_of_numbers(tf.constant(vector)).numpy()
        return [float(number) for number in vector]

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        """Assign the first task's values to the variables of every task, a part at a time: all at once would need several times their memory."""
        if self.size == 1:
            return
        with self.translate_peer_errors():
            if self._tcp is None:
                self._broadcast_as_sum(variables)
                return
            self._check_same_variables(self._tcp, variables)
            for variable in variables:
                if self.index == 0:
                    self._tcp.broadcast(variable.numpy().reshape(-1))
                else:
                    values = np.empty(variable.shape.num_elements(), variable.dtype.as_numpy_dtype)
                    variable.assign(self._tcp.broadcast(values).reshape(variable.shape))

    def _broadcast_as_sum(self, variables: Sequence[tf.Variable]) -> None:
        @tf.function(autograph=False)
        def share() -> None:
            done: list[tf.Operation] = []
            for offset, (dtype, members) in enumerate(_by_type_and_size(variables)):
                with tf.control_dependencies(done):
                    vector = tf.concat([tf.cast(tf.reshape(v, [-1]), dtype) for v in members], 0)
                # The sum of one task's values and the others' zeros is exact.
                own = vector if self.index == 0 else tf.zeros_like(vector)
                shared = self._reduce(own, _FIRST_OF_BROADCAST + offset)
                parts = tf.split(shared, [int(np.prod(v.shape)) for v in members])
                done = [v.assign(tf.cast(tf.reshape(part, v.shape), v.dtype)).op for v, part in zip(members, parts, strict=True)]

        share()

    def _check_same_variables(self, tcp: TcpAllReduce, variables: Sequence[tf.Variable]) -> None:
        """Check that all tasks have variables of the same types and shapes, as a broadcast needs."""
        form = hashlib.sha256(repr([(v.dtype.name, v.shape.as_list()) for v in variables]).encode()).digest()
        forms, _ = tcp.all_gather(np.frombuffer(form[:8], np.int64))
        others = [name for name, its in zip(self.names, forms, strict=True) if its != forms[0]]
        if others:
            raise WorkloadError(
                f"{join_names(others, _MAX_NAMES)} and {self.names[0]} make models of different variables. "
                "Give all tasks the same code, and let it make the same model in each"
            )

    def barrier(self) -> None:
        """Return when every task has called it."""
        if self.size > 1:
            with self.translate_peer_errors():
                tf.function(lambda: self._total(tf.ones([1]), _BARRIER), autograph=False)()

    def close(self) -> None:
        """End the connections; call it when no task sends any more."""
        if self._tcp:
            self._tcp.close()

    @contextmanager
    def translate_peer_errors(self) -> Iterator[None]:
        """Turn errors about lost peers, TensorFlow's and TcpAllReduce's, into PeerLostError."""
        if self.size == 1:
            yield
            return
        try:
            yield
        except PeerUnreachableError as error:
            raise PeerLostError(str(error)) from error
        except tf.errors.OpError as error:
            if self._tcp and self._tcp.problem:
                raise PeerLostError(self._tcp.problem) from error
            if not isinstance(error, _LOST) and "Collective ops is aborted" not in str(error.message):
                raise
            raise PeerLostError(cause(error)) from error


def trainer_version() -> int:
    """Return the first 48 bits of the SHA-256 of the trainer's sources, their names included. Never 0.

    It distinguishes images of one tag that were built from different sources.
    """
    root = Path(trainer.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return int.from_bytes(digest.digest()[: _VERSION_BITS // 8], "big") or 1


def version_text(version: int) -> str:
    """Return a version for people; 0 stands for a trainer that does not send its version."""
    return f"{version:0{_VERSION_BITS // 4}x}" if version else "an older one"


def _check_versions(names: Sequence[str], numbers: Sequence[int]) -> None:
    if len(set(numbers)) == 1:
        return
    having = {
        number: join_names([name for name, its in zip(names, numbers, strict=True) if its == number], _MAX_NAMES)
        for number in dict.fromkeys(numbers)
    }
    raise WorkloadError(
        "the tasks have different versions of the trainer: "
        + "; ".join(f"{who} {version_text(number)}" for number, who in having.items())
        + ". They start from different images, perhaps of one name on different nodes: load one image on all of them, "
        "or push it under a tag of its own (`launcher image build --push`) and name that as `image`"
    )


def _by_type_and_size(variables: Sequence[tf.Variable]) -> Iterator[tuple[str, list[tf.Variable]]]:
    """Yield groups of variables with the type in which they are sent, each of at most _BROADCAST_BYTES, or of one variable."""
    by_type: dict[str, list[tf.Variable]] = {}
    for variable in variables:
        # Integers of any kind are sent as int64, which the collective supports.
        by_type.setdefault(variable.dtype.name if variable.dtype.is_floating else "int64", []).append(variable)
    for dtype in sorted(by_type):
        group: list[tf.Variable] = []
        for variable in by_type[dtype]:
            if group and sum(v.shape.num_elements() for v in [*group, variable]) * tf.as_dtype(dtype).size > _BROADCAST_BYTES:
                yield dtype, group
                group = []
            group.append(variable)
        yield dtype, group


def _all_reduced(vector: tf.Tensor, size: int, group: int, instance: int, hint: str) -> tf.Tensor:
    """Return the sum of the vectors of `size` tasks, by TensorFlow's collectives."""
    if size == 2 and hint == "ring":
        # A ring of two reduces in two hops, each of half the vector. Exchanging it whole takes one: the
        # bytes are the same, the waiting is half. Both add in the same order, so both get the same sum.
        # The operation does not support bfloat16; float16 can carry its bits.
        short = vector.dtype == tf.bfloat16
        both = tf.raw_ops.CollectiveGatherV2(
            input=tf.bitcast(vector, tf.float16) if short else vector,
            group_size=2,
            group_key=group,
            instance_key=instance,
            ordering_token=[],
            communication_hint=hint,
        )
        halves = tf.split(tf.ensure_shape(both, [2 * vector.shape[0]]), 2)
        first, second = (tf.cast(tf.bitcast(h, tf.bfloat16), tf.float32) if short else h for h in halves)
        return first + second
    return tf.raw_ops.CollectiveReduceV2(
        input=vector,
        group_size=size,
        group_key=group,
        instance_key=instance,
        ordering_token=[],
        merge_op="Add",
        final_op="Id",
        communication_hint=hint,
    )
