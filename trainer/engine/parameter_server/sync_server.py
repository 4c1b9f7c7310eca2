"""One parameter server's part in synchronous training: it gathers gradients, updates, and answers.

A worker sends its gradient and gets the new values in reply, one message each way. A request names the worker and the
step of its gradient. In a round, the first `needed` gradients of the current step are added up on the server; then their
mean is applied once and those workers get the new values. A gradient of an older step is stale: it is dropped and
counted, and its worker gets the current values at once. So with fewer `needed` than workers a slow worker delays no
other. Every worker has at most one reply to wait for.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer.engine.embeddings.row_updates import deduplicated
from trainer.engine.embeddings.sharded_tables import RowGradients, Tables
from trainer.engine.parameter_server.state import PackGroup, device

_FIRST_REQUEST = -1  # instead of the step: a worker's first request, without a gradient
LAST_REQUEST = -2  # instead of the step: a worker's last request, which gets no reply
_ENDED = -1  # instead of the step of a reply: there is nothing more to compute
_NEVER = -3  # a step that no gradient has
_REQUEST_HEADER, _REPLY_HEADER = 2, 1  # numbers in front of a request (worker, step), and of a reply (step)


class SyncServer:
    """The queues of one server, with the operations that workers and the chief run on it.

    A message is a list of vectors of bytes, one for each tensor: first the group's packs, then `non_trainable`. A request also has, for
    each group of `tables` that is trained, the indices of its rows on the server and their gradients.
    """

    def __init__(
        self, group: PackGroup, non_trainable: Sequence[tf.Variable], workers: int, wire: tf.DType, tables: Tables | None = None
    ) -> None:
        self._group, self._non_trainable, self._workers, self._tables = group, non_trainable, workers, tables
        self._table_groups = tables.trained_groups if tables else []
        self._device = device(group.server)
        self._shapes = [tuple(v.value.shape) for v in group.variables] + [tuple(a.shape) for a in non_trainable]
        self._value_types = [v.value.dtype for v in group.variables] + [a.dtype for a in non_trainable]
        # Gradients of float32 may be sent in a shorter type; changes of `non_trainable` never are.
        self._request_types = [wire if t == tf.float32 and i < len(group.variables) else t for i, t in enumerate(self._value_types)]
        for table_group in self._table_groups:
            self._request_types += [table_group.key_dtype, wire if table_group.dtype == tf.float32 else table_group.dtype]
        self._reply_types = [tf.uint8] * max(1, len(self._value_types))  # only the step if it has nothing else
        with tf.device(self._device):
            # Unbounded: a worker that no round waits for must not block. A worker has one request in progress at a time.
            self._requests = tf.queue.FIFOQueue(-1, [tf.uint8] * len(self._request_types))
            self._replies = [tf.queue.FIFOQueue(-1, self._reply_types) for _ in range(workers)]

    # Run by workers

    def request_values(self, worker: tf.Tensor) -> None:
        """Ask for the current values without a gradient; replies to an earlier process of this worker are discarded."""
        self._enqueue_request([write_message([worker, tf.constant(_FIRST_REQUEST)], tf.zeros([0])) for _ in self._request_types])

    def reply_queue(self, worker: tf.Tensor) -> tf.Tensor:
        """Return the handle of the queue from which `receive` takes this worker's replies."""
        with tf.device(self._device):
            return tf.stack([queue.queue_ref for queue in self._replies])[worker]

    def receive(self, queue: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Wait for a reply; return the step, negative when there is nothing to compute, and the tensors."""
        with tf.device(self._device):
            parts = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=self._reply_types)
        parts = [tf.identity(part) for part in parts]
        (step,) = read_numbers(parts[0], _REPLY_HEADER)
        return step, [read_tensor(p, _REPLY_HEADER, t, s) for p, t, s in zip(parts, self._value_types, self._shapes, strict=False)]

    def send(self, worker: tf.Tensor, step: tf.Tensor, tensors: Sequence[tf.Tensor], rows: Sequence[RowGradients] = ()) -> None:
        """Send the gradients of `step`, one tensor per pack, the changes of `non_trainable`, and gradients of rows; the reply has new values."""
        by_table_group = {gradients.lookup.group: gradients for gradients in rows}
        for table_group in self._table_groups:
            gradients = by_table_group.get(table_group)
            tensors = [*tensors, *(gradients.of_server(self._group.server) if gradients is not None else table_group.no_rows())]
        self._enqueue_request(
            [write_message([worker, step], tf.cast(t, sent)) for t, sent in zip(tensors, self._request_types, strict=True)]
        )

    def _enqueue_request(self, parts: list[tf.Tensor]) -> None:
        with tf.device(self._device):
            self._requests.enqueue([tf.identity(part) for part in parts])

    # Run by the chief

    def interrupt(self) -> None:
        """Let `rounds` return before its last round, and `answering` at once."""
        self._enqueue_request([write_message([tf.constant(-1), tf.constant(0)], tf.zeros([0])) for _ in self._request_types])

    def end(self, worker: int) -> None:
        """Notify a worker that there is nothing more to compute."""
        with tf.device(self._device):
            self._replies[worker].enqueue(self._reply(tf.constant(_ENDED)))

    def clear(self) -> None:
        """Empty the queues; to be called while no worker computes."""
        with tf.device(self._device):
            for queue in (self._requests, *self._replies):
                for _ in range(int(queue.size().numpy())):
                    queue.dequeue()

    def answering(self) -> Any:
        """Return a TensorFlow function that answers with the current values until `interrupt`, and returns how many gradients it dropped.

        For a server that has finished while another still waits for gradients from workers that need replies from both.
        """

        @tf.function(autograph=False)
        def run() -> tf.Tensor:
            with tf.device(self._device):
                # No gradient is of this step, so there are never enough.
                reply = self._reply(tf.cast(self._group.step.read_value(), tf.int32))
                _, _, stale, _ = self._gather(reply, 1, tf.constant(_NEVER))
                return stale

        return run

    def rounds(self, needed: int) -> Any:
        """Return a TensorFlow function of `count`, an int32 scalar, that runs at most `count` rounds and returns [rounds done, gradients dropped]."""

        def body(done: tf.Tensor, dropped: tf.Tensor, interrupted: tf.Tensor, reply: list[tf.Tensor]) -> tuple[Any, ...]:
            (current_step,) = read_numbers(reply[0], _REPLY_HEADER)
            sums, contributors, stale, interrupted = self._gather(reply, needed, current_step)

            def update() -> list[tf.Tensor]:
                self._apply(sums, needed)
                return self._reply(tf.cast(self._group.step.read_value(), tf.int32))

            reply = tf.cond(interrupted, lambda: reply, update)
            _for_each(tf.where(contributors)[:, 0], lambda worker: self._answer(worker, reply))
            return tf.where(interrupted, done, done + 1), dropped + stale, interrupted, reply

        @tf.function(autograph=False)
        def run(count: tf.Tensor) -> tf.Tensor:
            with tf.device(self._device):
                start = (tf.constant(0), tf.constant(0), tf.constant(False), self._reply(tf.cast(self._group.step.read_value(), tf.int32)))
                unknown = [tf.TensorShape([None])] * len(self._reply_types)
                shapes = (tf.TensorShape([]), tf.TensorShape([]), tf.TensorShape([]), unknown)
                done, dropped, *_ = tf.while_loop(
                    lambda done, _, interrupted, __: (done < count) & ~interrupted,
                    body,
                    start,
                    shape_invariants=shapes,
                    parallel_iterations=1,
                )
                return tf.stack([done, dropped])

        return run

    def _gather(
        self, reply: list[tf.Tensor], needed: int, current_step: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor, tf.Tensor]:
        """Take requests until `needed` gradients are of step `current_step`, or it is interrupted.

        Returns the sums of these gradients, the mask of their workers, the number of stale gradients, and whether it was interrupted.
        Gradients of rows are concatenated, not summed, and so are the rows' indices, which come first.
        """

        def body(count: tf.Tensor, stale: tf.Tensor, _: tf.Tensor, contributors: tf.Tensor, sums: list[tf.Tensor]) -> Any:
            parts = _as_list(self._requests.dequeue())
            worker, step = read_numbers(parts[0], _REQUEST_HEADER)
            is_worker = tf.range(self._workers) == worker

            def accept() -> tuple[Any, ...]:
                arrived = [read_tensor(p, _REQUEST_HEADER, t, s) for p, t, s in zip(parts, self._request_types, shapes, strict=True)]
                sum_count = len(self._value_types)
                added = [
                    total + tf.cast(gradient, total.dtype) for total, gradient in zip(sums[:sum_count], arrived[:sum_count], strict=True)
                ]
                added += [
                    tf.concat([before, tf.cast(gradient, before.dtype)], 0)
                    for before, gradient in zip(sums[sum_count:], arrived[sum_count:], strict=True)
                ]
                return count + 1, stale, tf.constant(False), contributors | is_worker, added

            def answer_stale() -> tuple[Any, ...]:
                first = step == _FIRST_REQUEST
                with tf.control_dependencies([tf.cond(first, lambda: self._clear_replies(worker), lambda: tf.constant(0))]):
                    self._answer(worker, reply)
                return count, stale + tf.cast(step >= 0, tf.int32), tf.constant(False), contributors & ~is_worker, sums

            def interrupt() -> tuple[Any, ...]:
                return count, stale, tf.constant(True), contributors, sums

            def skip() -> tuple[Any, ...]:
                return count, stale, tf.constant(False), contributors, sums

            kind = tf.where(worker < 0, 2, tf.where(step == LAST_REQUEST, 3, tf.where(step == current_step, 0, 1)))
            return tf.switch_case(kind, [accept, answer_stale, interrupt, skip])

        zeros = [tf.zeros(s, t) for s, t in zip(self._shapes, self._value_types, strict=True)]
        zeros += [tensor for table_group in self._table_groups for tensor in table_group.no_rows()]
        shapes = [*self._shapes, *(shape for table_group in self._table_groups for shape in ([-1], [-1, table_group.dimension]))]
        start = (tf.constant(0), tf.constant(0), tf.constant(False), tf.zeros([self._workers], tf.bool), zeros)
        grows = [tf.TensorShape([None if size == -1 else size for size in shape]) for shape in shapes]
        _, stale, interrupted, contributors, sums = tf.while_loop(
            lambda count, _, interrupted, *__: (count < needed) & ~interrupted,
            body,
            start,
            shape_invariants=(*(tensor.shape for tensor in start[:4]), grows),
            parallel_iterations=1,
        )
        return sums, contributors, stale, interrupted

    def _apply(self, sums: Sequence[tf.Tensor], needed: int) -> None:
        sum_count = len(self._value_types)
        means = [total / tf.cast(needed, total.dtype) for total in sums[:sum_count]]
        packs = len(self._group.variables)
        dense = means[:packs]
        if self._tables:
            rows = [
                deduplicated(tf.IndexedSlices(values / tf.cast(needed, values.dtype), row_indices, tf.constant([0])))
                for row_indices, values in zip(sums[sum_count::2], sums[sum_count + 1 :: 2], strict=True)
            ]
            dense = self._tables.apply_mean(self._group, dense, rows)
        self._group.apply(dense)
        for variable, change in zip(self._non_trainable, means[packs:], strict=True):
            variable.assign_add(change)

    def _reply(self, step: tf.Tensor) -> list[tf.Tensor]:
        values = [v.value.read_value() for v in self._group.variables] + [a.read_value() for a in self._non_trainable]
        return [write_message([step], value) for value in values or [tf.zeros([0])]]

    def _answer(self, worker: tf.Tensor, reply: Sequence[tf.Tensor]) -> None:
        queue = self.reply_queue(worker)
        tf.raw_ops.QueueEnqueueV2(handle=queue, components=reply)

    def _clear_replies(self, worker: tf.Tensor) -> tf.Tensor:
        """Discard the replies to a worker that has been started again; return how many there were."""
        queue = self.reply_queue(worker)

        def body(count: tf.Tensor) -> tf.Tensor:
            dropped = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=self._reply_types)
            with tf.control_dependencies(_as_list(dropped)):
                return count + 1

        waiting = tf.raw_ops.QueueSizeV2(handle=queue)
        return tf.while_loop(lambda count: count < waiting, body, (tf.constant(0),), parallel_iterations=1)[0]


def _as_list(parts: Any) -> list[tf.Tensor]:
    """Return a queue's element as a list, also of one component."""
    return list(parts) if isinstance(parts, list | tuple) else [parts]


def _for_each(indices: tf.Tensor, act: Any) -> None:
    def body(position: tf.Tensor) -> tf.Tensor:
        act(indices[position])
        return position + 1

    tf.while_loop(lambda position: position < tf.size(indices), body, (tf.constant(0),), parallel_iterations=1)


# Messages: numbers and tensors in one vector of bytes, so that they are sent together.


def write_message(numbers: Sequence[tf.Tensor], tensor: tf.Tensor) -> tf.Tensor:
    """Return uint8 [bytes]: the int32 scalars `numbers`, then the elements of `tensor`."""
    header = tf.bitcast(tf.stack(numbers), tf.uint8)
    return tf.concat([tf.reshape(header, [-1]), tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])], 0)


def read_numbers(message: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Return the `count` int32 scalars that a message begins with."""
    return list(tf.unstack(tf.bitcast(tf.reshape(message[: 4 * count], [count, 4]), tf.int32)))


def read_tensor(message: tf.Tensor, count: int, dtype: tf.DType, shape: Sequence[int]) -> tf.Tensor:
    """Return the tensor that follows `count` numbers."""
    elements = tf.reshape(message[4 * count :], [-1, dtype.size])
    return tf.reshape(tf.bitcast(elements, dtype), shape)
