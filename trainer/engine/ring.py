"""All-reduce over the tasks of a multi-worker cluster: one packed collective, outside any strategy scope."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from trainer.engine import clock
from trainer.engine.session import PeerLostError, cause

_GROUP = 1
_GRADIENTS, _CONTROL, _STATE = 1, 2, 100  # instance keys: one a place in the program

# What TensorFlow raises when a peer is gone; see tensorflow/core/distributed_runtime.
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError)


class Ring:
    """The tasks that reduce together: `size` of them, this one at `index`. One task alone needs no collective.

    `MultiWorkerMirroredStrategy` is made because it starts TensorFlow's collective runtime and watches
    the peers; models and optimizers stay outside its scope, where Keras is three times as fast.
    """

    def __init__(self, size: int = 1, index: int = 0, wire: str = "float32") -> None:
        self.size = size
        self.index = index
        self._wire = tf.as_dtype(wire)  # what float32 gradients travel as
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy() if size > 1 else None
        self._hint = "nccl" if tf.config.list_logical_devices("GPU") else "ring"

    def _reduce(self, vector: tf.Tensor, instance: int) -> tf.Tensor:
        if self.size == 2 and self._hint == "ring":
            # A ring of two reduces in two hops, each of half the vector. Exchanging it whole takes one: the
            # bytes are the same, the waiting is half. Both add in the same order, so both get the same sum.
            # The operation does not know bfloat16; to carry the bits, float16 is as good.
            short = vector.dtype == tf.bfloat16
            both = tf.raw_ops.CollectiveGatherV2(
                input=tf.bitcast(vector, tf.float16) if short else vector,
                group_size=2,
                group_key=_GROUP,
                instance_key=instance,
                ordering_token=[],
                communication_hint=self._hint,
            )
            halves = tf.split(tf.ensure_shape(both, [2 * vector.shape[0]]), 2)
            first, second = (tf.cast(tf.bitcast(h, tf.bfloat16), tf.float32) if short else h for h in halves)
            return first + second
        return tf.raw_ops.CollectiveReduceV2(
            input=vector,
            group_size=self.size,
            group_key=_GROUP,
            instance_key=instance,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint=self._hint,
        )

    def mean_gradients(self, gradients: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return the mean over all tasks of each gradient, sent as one vector a data type; and the seconds that took.

        The seconds, a float32 scalar, run from this task's gradients to everybody's: the slowest task waits least.
        """
        if self.size == 1:
            return list(gradients), tf.constant(0.0)
        dense = [tf.convert_to_tensor(g) for g in gradients]
        result: list[tf.Tensor] = list(dense)
        packs = []
        for dtype in sorted({g.dtype.name for g in dense}):
            places = [i for i, g in enumerate(dense) if g.dtype.name == dtype]
            packs.append((places, tf.concat([tf.reshape(dense[i], [-1]) for i in places], 0)))
        with tf.control_dependencies([packed for _, packed in packs]):
            began = clock.now()
        sums = [self._sent(packed, _GRADIENTS * 10 + offset) for offset, (_, packed) in enumerate(packs)]
        with tf.control_dependencies(sums):
            waited = clock.since(began)
        for (places, packed), total in zip(packs, sums, strict=True):
            mean = total / tf.cast(self.size, packed.dtype)
            for i, part in zip(places, tf.split(mean, [int(np.prod(dense[i].shape)) for i in places]), strict=True):
                result[i] = tf.reshape(part, dense[i].shape)
        return result, waited

    def _sent(self, packed: tf.Tensor, instance: int) -> tf.Tensor:
        wire = self._wire if packed.dtype == tf.float32 else packed.dtype
        return tf.cast(self._reduce(tf.cast(packed, wire), instance), packed.dtype)

    def total(self, vector: tf.Tensor) -> tf.Tensor:
        """Return the sum over all tasks of a small vector; usable inside a tf.function."""
        return vector if self.size == 1 else self._reduce(vector, _CONTROL)

    def share_from_first(self, variables: Sequence[tf.Variable]) -> None:
        """Give every task the values that the first task's variables hold."""
        if self.size == 1:
            return
        with self.watching():
            _share(self, variables)

    def barrier(self) -> None:
        """Return when every task has called it."""
        if self.size > 1:
            with self.watching():
                tf.function(lambda: self._reduce(tf.ones([1]), _STATE), autograph=False)()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Turn TensorFlow's errors about lost peers into PeerLostError."""
        if self.size == 1:
            yield
            return
        try:
            yield
        except _LOST as error:
            raise PeerLostError(cause(error)) from error
        except tf.errors.OpError as error:
            if "Collective ops is aborted" not in str(error.message):
                raise
            raise PeerLostError(cause(error)) from error


def _share(ring: Ring, variables: Sequence[tf.Variable]) -> None:
    by_type: dict[str, list[tf.Variable]] = {}
    for variable in variables:
        # Integers of any kind travel as int64, which the collective knows.
        name = variable.dtype.name if variable.dtype.is_floating else "int64"
        by_type.setdefault(name, []).append(variable)

    @tf.function(autograph=False)
    def share() -> None:
        for offset, dtype in enumerate(sorted(by_type)):
            members = by_type[dtype]
            packed = tf.concat([tf.cast(tf.reshape(v, [-1]), dtype) for v in members], 0)
            # The sum of one task's values and the others' zeros is exact.
            mine = packed if ring.index == 0 else tf.zeros_like(packed)
            shared = ring._reduce(mine, _STATE + 1 + offset)  # noqa: SLF001 - same module
            for variable, part in zip(members, tf.split(shared, [int(np.prod(v.shape)) for v in members]), strict=True):
                variable.assign(tf.cast(tf.reshape(part, variable.shape), variable.dtype))

    share()
