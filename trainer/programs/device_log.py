"""A table of the task and device that ran each operation of a program, as TensorFlow reports it, with counts.

An operation is what TensorFlow runs as a whole: an op such as MatMul, or a call of a tf.function, which is one request to
the task that it runs on.
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
_MAX_ROWS = 500  # different ones; a program that names each operation again does not fill the memory
_FUNCTION = re.compile(r"__(?:inference|forward|backward)_(.+)_\d+")
# Of the log itself and of TensorBoard's files: nothing that a program computes.
_HOUSEKEEPING = re.compile(r"Write\w*Summary|\w*SummaryWriter|SummaryWriter\w*")

_Row = tuple[str, str, str, str]  # operation, name, device, device that was asked for where it is another


@dataclass(frozen=True)
class _Call:
    """A function's call, whose device is asked for later: to name it, TensorFlow waits for the call's end."""

    order: int
    operation: str
    name: str
    asked: str
    tensors: Sequence[Any]  # what it gave, then the variables and other resources that it worked on


@dataclass
class _Count:
    order: int  # among all that ran, of the first time
    times: int = 0


class DeviceLog:
    """Counts operations by what they are and where they ran; threads that `watch` share it."""

    def __init__(self) -> None:
        self._counts: dict[_Row, _Count] = {}
        self._order = itertools.count()
        # At most one per device: once the next call is under way there, waiting for the last one delays nothing.
        self._open: dict[str, _Call] = {}
        self._left_out = 0
        self._lock = threading.Lock()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Note every operation that this thread runs inside."""
        here = context.context()
        # As tf.debugging does, but for all threads: one that leaves must not end what others note.
        execute.execute = execute.execute_with_callbacks
        here.add_op_callback(self._ran)
        try:
            yield
        finally:
            here.remove_op_callback(self._ran)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note nothing inside, in a thread that watches: of what only shows what a program computes."""
        here = context.context()
        here.remove_op_callback(self._ran)
        try:
            yield
        finally:
            here.add_op_callback(self._ran)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table's rows in the order in which operations first ran: HEADERS says what is in them."""
        return [
            (operation, name, str(count.times), (device := _device(ran)).task or "", device.own, asked)
            for (operation, name, ran, asked), count in self._ordered()
        ]

    def elsewhere(self) -> list[str]:
        """Return, for each operation that did not run where it was asked to, a sentence that says so."""
        return [
            f"{operation} ran on {_device(ran)} and not on {asked}, which cannot run it or lacks its inputs"
            for (operation, _, ran, asked), _ in self._ordered()
            if asked
        ]

    def text(self) -> str:
        """Return the table."""
        lines = table(HEADERS, self.rows())
        more = [f"and {self._left_out} more operations of other names"] * bool(self._left_out)
        return "\n".join([*lines, *more])

    def _ordered(self) -> list[tuple[_Row, _Count]]:
        """Close what is open, and return what ran in the order of the first times."""
        with self._lock:
            calls, self._open = list(self._open.values()), {}
        for call in calls:
            _await(call)
            self._count_call(call)
        with self._lock:
            return sorted(self._counts.items(), key=lambda counted: counted[1].order)

    def _ran(
        self,
        op_type: str | bytes,
        inputs: Sequence[Any],
        _attributes: Any,
        outputs: Sequence[Any],
        op_name: str | None = None,
        graph: Any = None,
    ) -> None:
        """Note one operation; TensorFlow calls this after each, also where a graph is made of it."""
        operation = str(tf.compat.as_str(op_type))  # a function's name comes as bytes
        if graph is not None or _HOUSEKEEPING.fullmatch(operation):
            return
        asked = context.context().device_name or ""
        function = _FUNCTION.fullmatch(operation)
        # Many of TensorFlow's functions drop the name that they are given; a tf.name_scope around them is there.
        scope, own = context.context().scope_name or "", op_name or ""
        name = (own if own.startswith(scope) else scope + own).rstrip("/")
        operation = f"function {function[1].lstrip('_')}" if function else operation
        tensors = (*outputs, *(one for one in inputs if one.dtype == tf.resource))
        call = _Call(next(self._order), operation, name, asked, tensors)
        if not function:
            self._count_call(call)
            return
        with self._lock:
            last = self._open.get(asked)
            self._open[asked] = call
        if last:
            self._count_call(last)

    def _count_call(self, call: _Call) -> None:
        """Count a call, once it has ended. Raises tf.errors.UnknownError where it failed, or was lost with its task."""
        try:
            ran = next((str(device) for tensor in call.tensors if (device := getattr(tensor, "device", ""))), call.asked)
        except ValueError as error:  # whatever it was, TensorFlow says it so here
            raise tf.errors.UnknownError(None, None, f"{call.operation}: {error}") from error
        if not ran:
            return
        requested = _device(call.asked)
        missed = "" if requested.covers(_device(ran)) else str(requested)
        row = (call.operation, call.name, ran, missed)
        with self._lock:
            if row in self._counts or len(self._counts) < _MAX_ROWS:
                count = self._counts.setdefault(row, _Count(call.order))
                count.order = min(count.order, call.order)
                count.times += 1
            else:
                self._left_out += 1


def _await(call: _Call) -> None:
    """Wait for a call's end. Asking for its device waits as well, but no other thread runs meanwhile: none would notice a stop.

    Raises tf.errors.OpError where the call failed.
    """
    value = next((one for one in call.tensors if one.dtype not in (tf.resource, tf.variant)), None)
    if value is None:
        return
    here = context.context()
    calling, here.invoking_op_callbacks = here.invoking_op_callbacks, True  # this is not the program's
    try:
        with tf.device(call.asked or None):
            tf.raw_ops.Rank(input=value).numpy()
    finally:
        here.invoking_op_callbacks = calling


def _device(name: str) -> Device:
    """Return what a device's name says; nothing for one of a kind that is not known here: the log must not end a program."""
    try:
        return devices.parse(name)
    except ValueError:
        return Device()
