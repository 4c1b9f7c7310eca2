"""Which task and device ran each operation of a program, as TensorFlow tells it, counted and shown as a table.

An operation is what TensorFlow runs as a whole: an op such as MatMul, or a call of a tf.function, which is one request to
the task that it runs on.
"""

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute

from trainer.programs import devices
from trainer.programs.devices import Device
from trainer.programs.tables import table

HEADERS = ("OPERATION", "NAME", "TIMES", "TASK", "DEVICE", "ASKED FOR")
_MOST_ROWS = 500  # different ones; a program that names each operation anew does not fill the memory
_FUNCTION = re.compile(r"__(?:inference|forward|backward)_(.+)_\d+")
# Of the log itself and of TensorBoard's files: nothing that a program computes.
_HOUSEKEEPING = re.compile(r"Write\w*Summary|\w*SummaryWriter|SummaryWriter\w*")

_Row = tuple[str, str, str, str]  # operation, name, device, device that was asked for where it is another


class DeviceLog:
    """Counts operations by what they are and where they ran; threads that `watch` share it."""

    def __init__(self) -> None:
        self._counts: dict[_Row, int] = {}
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
        with self._lock:
            counts = dict(self._counts)
        return [
            (operation, name, str(times), (place := _device(ran)).task or "", place.own, asked)
            for (operation, name, ran, asked), times in counts.items()
        ]

    def elsewhere(self) -> list[str]:
        """Return, for each operation that did not run where it was asked to, a sentence that says so."""
        with self._lock:
            return [
                f"{operation} ran on {_device(ran)} and not on {asked}, which cannot run it or has not what it works on"
                for operation, _, ran, asked in self._counts
                if asked
            ]

    def text(self) -> str:
        """Return the table."""
        lines = table(HEADERS, self.rows())
        more = [f"and {self._left_out} more operations of other names"] * bool(self._left_out)
        return "\n".join([*lines, *more])

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
        ran = _place(inputs, outputs) or asked
        if not ran:
            return
        function = _FUNCTION.fullmatch(operation)
        wish = _device(asked)
        missed = "" if wish.covers(_device(ran)) else str(wish)
        # Many of TensorFlow's functions drop the name that they are given; a tf.name_scope around them is there.
        scope, own = context.context().scope_name or "", op_name or ""
        name = (own if own.startswith(scope) else scope + own).rstrip("/")
        row = (f"function {function[1].lstrip('_')}" if function else operation, name, ran, missed)
        with self._lock:
            if row in self._counts or len(self._counts) < _MOST_ROWS:
                self._counts[row] = self._counts.get(row, 0) + 1
            else:
                self._left_out += 1


def _device(name: str) -> Device:
    """Return what a device's name says; nothing for one of a kind that is not known here: the log must not end a program."""
    try:
        return devices.parse(name)
    except ValueError:
        return Device()


def _place(inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
    """Return the device of an operation: of what it gave, else of the variable or other resource that it worked on."""
    for tensor in (*outputs, *(one for one in inputs if one.dtype == tf.resource)):
        if device := getattr(tensor, "device", ""):
            return str(device)
    return ""
