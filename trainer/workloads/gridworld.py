"""GridWorld as TensorFlow operations over many boards at once: workers of a cluster run no Python.

A hero moves on 5 x 5 cells; touching a goal gives +1, a fire -1, and either then reappears on a free cell. Cells are numbered
row by row, 0 to 24. docs/workloads.md has the rules; tests compare each with a plain Python reference.
"""

from typing import NamedTuple

import tensorflow as tf

SIDE = 5
CELLS = SIDE * SIDE
GOALS, FIRES = 4, 2
THINGS = GOALS + FIRES
EPISODE = 50  # steps
ACTIONS = 4  # up, down, left, right
BORDERED = SIDE + 2
PIXELS_A_CELL = 12
PIXELS = BORDERED * PIXELS_A_CELL

_REWARDS = (1.0,) * GOALS + (-1.0,) * FIRES
_FIRE_CHANNEL, _GOAL_CHANNEL, _HERO_CHANNEL = 0, 1, 2  # red, green, blue
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # rows and columns of each action


class Boards(NamedTuple):
    """The state of many games.

    `hero` int32 [boards] and `things` int32 [boards, 6], goals before fires, are cells; no two on a board are the same.
    """

    hero: tf.Tensor
    things: tf.Tensor


def reset(boards: int, seed: tf.Tensor) -> Boards:
    """Return new boards, drawn at random from `seed`, int32 [2]."""
    order = tf.argsort(tf.random.stateless_uniform([boards, CELLS], seed), axis=1)
    return Boards(order[:, 0], order[:, 1 : 1 + THINGS])


def step(state: Boards, actions: tf.Tensor, seed: tf.Tensor) -> tuple[Boards, tf.Tensor]:
    """Move each hero by `actions`, int32 [boards]; return the boards after it and the rewards, float32 [boards].

    Goals and fires that are touched reappear on cells drawn from `seed`, int32 [2].
    """
    hero = _moved(state.hero, actions)
    touched = state.things == hero[:, tf.newaxis]
    rewards = tf.reduce_sum(tf.where(touched, tf.constant(_REWARDS), 0.0), axis=1)
    # A touched thing lies under the hero, so the occupied cells are the hero's and those of all other things.
    occupied = tf.reduce_any(tf.one_hot(tf.concat([hero[:, tf.newaxis], state.things], 1), CELLS, True, False, dtype=tf.bool), axis=1)
    draws = tf.random.stateless_uniform(tf.shape(occupied), seed)
    free = tf.argmax(tf.where(occupied, -1.0, draws), axis=1, output_type=tf.int32)
    return Boards(hero, tf.where(touched, free[:, tf.newaxis], state.things)), rewards


def _moved(hero: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Return the cells after the moves, which the border limits."""
    moves = tf.gather(tf.constant(_MOVES), actions)
    row = tf.clip_by_value(hero // SIDE + moves[:, 0], 0, SIDE - 1)
    column = tf.clip_by_value(hero % SIDE + moves[:, 1], 0, SIDE - 1)
    return row * SIDE + column


def small_images(state: Boards) -> tf.Tensor:
    """Return uint8 [boards, 7, 7, 3], 0 or 255: a white border, the hero blue, goals green, fires red, the rest black."""

    def painted(cells: tf.Tensor) -> tf.Tensor:
        return tf.reduce_max(tf.one_hot(cells, CELLS, tf.constant(255, tf.uint8), tf.constant(0, tf.uint8), dtype=tf.uint8), axis=1)

    by_channel = {
        _HERO_CHANNEL: state.hero[:, tf.newaxis],
        _GOAL_CHANNEL: state.things[:, :GOALS],
        _FIRE_CHANNEL: state.things[:, GOALS:],
    }
    cells = tf.stack([painted(by_channel[channel]) for channel in sorted(by_channel)], axis=-1)
    board = tf.reshape(cells, [-1, SIDE, SIDE, 3])
    return tf.pad(board, [[0, 0], [1, 1], [1, 1], [0, 0]], constant_values=255)


def images(small: tf.Tensor) -> tf.Tensor:
    """Return small images enlarged for the network: [boards, 84, 84, 3], each cell 12 x 12 pixels, of the same type."""
    return tf.repeat(tf.repeat(small, PIXELS_A_CELL, axis=1), PIXELS_A_CELL, axis=2)
