"""Heartbeats: a task asks TensorFlow's server in each task that it waits for whether that is alive.

A process that is stopped, or on a machine that hangs, keeps its connections open: the kernel answers for it. Its server does not answer.
A process that computes, or evaluates for an hour, has threads that answer at once.
"""

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

import tensorflow as tf

_ANSWER_TIMEOUT = 1.0  # seconds

# Checks come a second after each other, and each takes up to _ANSWER_TIMEOUT: half a minute to a minute in all. Counted rather than
# timed, so that a task that was stopped itself does not give up the others when it resumes.
_MAX_UNANSWERED = 30
# A check that comes later than so many seconds after the last one starts a new count.
_SAME_SILENCE = 5.0


class HeartbeatProbe:
    """Asks tasks whether they are alive, and counts consecutive checks with a missing answer."""

    def __init__(self, names: Sequence[str], monotonic: Callable[[], float] = time.monotonic) -> None:
        """Ask tasks of these `names`, such as chief and worker-1. TensorFlow's collective runtime must have been started."""
        self._tasks = [_in_tensorflow(name) for name in names]
        self._unanswered = 0
        self._monotonic = monotonic
        self._last_check = monotonic()

    def __call__(self, waiting: AbstractSet[int]) -> bool:
        """Ask the tasks at these indices of `names`; return whether to wait for them any longer. To be called after each second of silence."""
        if self._monotonic() - self._last_check > _SAME_SILENCE:
            self._unanswered = 0
        self._unanswered = 0 if all(_answers(self._tasks[index]) for index in sorted(waiting)) else self._unanswered + 1
        self._last_check = self._monotonic()
        return self._unanswered < _MAX_UNANSWERED


def _in_tensorflow(name: str) -> str:
    role, _, index = name.partition("-")
    return f"/job:{role}/replica:0/task:{index or 0}"


def _answers(task: str) -> bool:
    from tensorflow.python.eager.context import context  # TensorFlow has no public way to ask

    try:
        context().check_collective_ops_peer_health(task, timeout_in_ms=int(_ANSWER_TIMEOUT * 1000))
    except tf.errors.OpError:  # also from a restarted task, which is another process
        return False
    return True
