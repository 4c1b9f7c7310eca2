"""A table of the task and device that ran each operation of a program, as TensorFlow reports it, with counts.

An operation is an op such as MatMul, or a call of a tf.function, which is one request to the task that
runs it.
"""

import itertools
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute

from trainer.programs import devices
from trainer.programs.devices import Device
from trainer.programs.text_tables import table

HEADERS = ("OPERATION", "NAME", "TIMES", "TASK", "DEVICE", "ASKED FOR")
_MAX_ROWS = 500  # limits memory for a program that gives each operation a new name
_FUNCTION = re.compile(r"__(?:inference|forward|backward)_(.+)_\d+")
# Operations of TensorBoard summaries, which are not the program's computation.
_SUMMARY_OPERATIONS = re.compile(r"Write\w*Summary|\w*SummaryWriter|SummaryWriter\w*")

_Row = tuple[str, str, str, str]  # operation, name, device, requested device if it is another one


@dataclass(frozen=True)
class _Call:
    """A call of a function. Its device is read later, since TensorFlow waits for the call's end to name it."""

    order: int
    operation: str
    name: str
    requested_device: str
    tensors: Sequence[Any]  # its outputs, then its inputs that are variables or other resources


@dataclass
class _Count:
    order: int  # of the first time, among all operations
    times: int = 0


class DeviceLog:
    """Counts operations by kind, name and device; all threads that `watch` share it."""

    def __init__(self) -> None:
        self._counts: dict[_Row, _Count] = {}
        self._order = itertools.count()
        # At most one per device: once the next call has started there, waiting for the last one causes no delay.
        self._pending: dict[str, _Call] = {}
        self._left_out = 0
        self._lock = threading.Lock()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record every operation that this thread runs inside."""
        eager_context = context.context()
        # As tf.debugging does, but never undone: other threads may still record.
        execute.execute = execute.execute_with_callbacks
        eager_context.add_op_callback(self._record)
        try:
            yield
        finally:
            eager_context.remove_op_callback(self._record)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing inside, in a thread that watches: for operations that only display results."""
        eager_context = context.context()
        eager_context.remove_op_callback(self._record)
        try:
            yield
        finally:
            eager_context.add_op_callback(self._record)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table's rows, with the columns of HEADERS, in the order in which operations first ran."""
        return [
            (operation, name, str(count.times), (device := _device(ran)).task or "", device.name_in_task, requested_device)
            for (operation, name, ran, requested_device), count in self._ordered()
        ]

    def misplaced(self) -> list[str]:
        """Return a message for each operation that did not run on the requested device."""
        return [
            f"{operation} ran on {_device(ran)} and not on {requested_device}, which cannot run it or lacks its inputs"
            for (operation, _, ran, requested_device), _ in self._ordered()
            if requested_device
        ]

    def text(self) -> str:
        """Return the table."""
        lines = table(HEADERS, self.rows())
        more = [f"and {self._left_out} more operations of other names"] * bool(self._left_out)
        return "\n".join([*lines, *more])

    def _ordered(self) -> list[tuple[_Row, _Count]]:
        """Count pending calls, and return all operations in the order in which they first ran."""
        with self._lock:
            calls, self._pending = list(self._pending.values()), {}
        for call in calls:
            _await(call)
            self._count_call(call)
        with self._lock:
            return sorted(self._counts.items(), key=lambda counted: counted[1].order)

    def _record(
        self,
        op_type: str | bytes,
        inputs: Sequence[Any],
        _attributes: Any,
        outputs: Sequence[Any],
        op_name: str | None = None,
        graph: Any = None,
    ) -> None:
        """Record one operation; TensorFlow calls this after each, also when it is added to a graph."""
        operation = str(tf.compat.as_str(op_type))  # a function's name comes as bytes
        if graph is not None or _SUMMARY_OPERATIONS.fullmatch(operation):
            return
        requested_device = context.context().device_name or ""
        function = _FUNCTION.fullmatch(operation)
        # Many of TensorFlow's functions drop their `name` argument, but not a tf.name_scope around them.
        scope, own = context.context().scope_name or "", op_name or ""
        name = (own if own.startswith(scope) else scope + own).rstrip("/")
        operation = f"function {function[1].lstrip('_')}" if function else operation
        tensors = (*outputs, *(tensor for tensor in inputs if tensor.dtype == tf.resource))
        call = _Call(next(self._order), operation, name, requested_device, tensors)
        if not function:
            self._count_call(call)
            return
        with self._lock:
            last = self._pending.get(requested_device)
            self._pending[requested_device] = call
        if last:
            self._count_call(last)

    def _count_call(self, call: _Call) -> None:
        """Count a call, once it has ended. Raises tf.errors.UnknownError if it failed, or was lost with its task."""
        try:
            ran = next((str(device) for tensor in call.tensors if (device := getattr(tensor, "device", ""))), call.requested_device)
        except ValueError as error:  # TensorFlow raises it here for any cause
            raise tf.errors.UnknownError(None, None, f"{call.operation}: {error}") from error
        if not ran:
            return
        requested_name = _device(call.requested_device)
        missed = "" if requested_name.covers(_device(ran)) else str(requested_name)
        row = (call.operation, call.name, ran, missed)
        with self._lock:
            if row in self._counts or len(self._counts) < _MAX_ROWS:
                count = self._counts.setdefault(row, _Count(call.order))
                count.order = min(count.order, call.order)
                count.times += 1
            else:
                self._left_out += 1


def _await(call: _Call) -> None:
    """Wait for a call's end. Reading its device would wait too, but with the GIL: no other thread could notice a stop.

    Raises tf.errors.OpError if the call failed.
    """
    value = next((tensor for tensor in call.tensors if tensor.dtype not in (tf.resource, tf.variant)), None)
    if value is None:
        return
    eager_context = context.context()
    calling, eager_context.invoking_op_callbacks = eager_context.invoking_op_callbacks, True  # do not record this operation
    try:
        with tf.device(call.requested_device or None):
            tf.raw_ops.Rank(input=value).numpy()
    finally:
        eager_context.invoking_op_callbacks = calling


def _device(name: str) -> Device:
    """Parse a device's name; return an empty Device for an unknown kind: the log must not end a program."""
    try:
        return devices.parse(name)
    except ValueError:
        return Device()
