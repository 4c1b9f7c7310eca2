"""The Game of Life on a torus that is cut into strips of rows, one for each task: in each generation the tasks exchange the rows at their edges."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.programs.cluster import Task
from trainer.programs.rle import Board

_WEIGHTS_SEED = 0  # any: fingerprints are compared within one run only


@dataclass(frozen=True)
class State:
    """A generation: the number of living cells, and a number that identifies the board.

    The fingerprint is the sum of a random 64-bit number for each living cell, modulo 2^64. Two different boards have the same one
    with a probability of 2^-64.
    """

    alive: int
    fingerprint: int


class Strips:
    """A board over tasks: each strip stays on its task; only edges and two numbers are sent in each generation."""

    def __init__(self, board: Board, tasks: Sequence[Task]) -> None:
        tasks = tasks[: len(board)]  # a strip has at least one row
        weights = np.random.default_rng(_WEIGHTS_SEED).integers(-(2**63), 2**63, board.shape, np.int64)
        self._devices = [task.device for task in tasks]
        self._strips, self._tops, self._bottoms, self._weights, self._states, self._next = [], [], [], [], [], []
        for device, cells, numbers in zip(
            self._devices, np.array_split(board, len(tasks)), np.array_split(weights, len(tasks)), strict=True
        ):
            with tf.device(device):
                strip, strip_weights = tf.constant(cells), tf.constant(numbers)
                self._strips.append(strip)
                self._weights.append(strip_weights)
                self._tops.append(strip[:1])
                self._bottoms.append(strip[-1:])
                self._states.append(_state_of(strip, strip_weights))
                edge = tf.TensorSpec([1, board.shape[1]], strip.dtype)
                self._next.append(tf.function(_generation, autograph=False).get_concrete_function(edge, strip, edge, strip_weights))

    def state(self) -> State:
        """Return the state of the current generation; waits for each task."""
        states = [state.numpy() for state in self._states]
        return State(int(sum(alive for alive, _ in states)), sum(int(number) for _, number in states) % 2**64)

    def advance(self) -> None:
        """Compute the next generation."""
        results = []
        for i, device in enumerate(self._devices):
            with tf.device(device):
                above = tf.identity(self._bottoms[i - 1], name="edge_above")
                below = tf.identity(self._tops[(i + 1) % len(self._devices)], name="edge_below")
                results.append(self._next[i](above, self._strips[i], below, self._weights[i]))
        self._strips, self._tops, self._bottoms, self._states = (list(parts) for parts in zip(*results, strict=True))

    def board(self) -> Board:
        """Return the whole board."""
        return np.concatenate([strip.numpy() for strip in self._strips])


def _generation(above: Any, strip: Any, below: Any, weights: Any) -> tuple[Any, ...]:
    """Return the next strip [rows, columns], its first and its last row [1, columns], and its state."""
    board = tf.concat([above, strip, below], axis=0)
    columns = board[:-2] + board[1:-1] + board[2:]
    # The total includes the cell itself: with 3 it is born or survives, with 4 it survives.
    total = columns + tf.roll(columns, 1, axis=1) + tf.roll(columns, -1, axis=1)
    alive = tf.logical_or(tf.equal(total, 3), tf.logical_and(tf.equal(total, 4), tf.equal(strip, 1)))
    strip = tf.cast(alive, tf.uint8)
    return strip, strip[:1], strip[-1:], _state_of(strip, weights)


def _state_of(strip: Any, weights: Any) -> Any:
    """Return how many cells live and the strip's part of the fingerprint, int64 [2]."""
    cells = tf.cast(strip, tf.int64)
    return tf.stack([tf.reduce_sum(cells), tf.reduce_sum(cells * weights)])
