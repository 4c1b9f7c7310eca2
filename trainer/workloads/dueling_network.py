"""The dueling network that sees GridWorld: four convolutions, then advantage and value side by side.

Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning", 2016.
"""

from collections.abc import Sequence
from itertools import pairwise

import keras
import tensorflow as tf

from trainer.workloads import gridworld

# Height and width of each convolution's kernel, and its stride; all VALID, without bias, with ReLU.
KERNELS, STRIDES = (8, 4, 3, 7), (4, 2, 1, 1)
_BLOCK = STRIDES[0]  # the first convolution moves by blocks of so many pixels
_BLOCKS_A_CELL = gridworld.PIXELS_A_CELL // _BLOCK
_WHITE = 255.0


class Dueling(keras.layers.Layer):
    """Small pictures, uint8 [n, 7, 7, 3], to the value of each action, float32 [n, 4]."""

    def __init__(self, filters: Sequence[int], hidden: int, *, trainable: bool = True, name: str | None = None) -> None:
        super().__init__(trainable=trainable, name=name)
        depths = (3, *filters, hidden)
        shapes = {f"conv{i}": (size, size, *depth) for i, (size, depth) in enumerate(zip(KERNELS, pairwise(depths), strict=True), 1)}
        for weight, shape in {**shapes, "advantage": (hidden // 2, gridworld.ACTIONS), "value": (hidden // 2, 1)}.items():
            # As attributes, or checkpoints would not have them.
            setattr(self, weight, self.add_weight(shape=shape, initializer="glorot_uniform", name=weight))
        self.built = True

    def call(self, small: tf.Tensor) -> tf.Tensor:
        """Return what the layer's own weights make of small pictures."""
        return action_values([tf.convert_to_tensor(weight.value) for weight in self.weights], small)


def action_values(weights: Sequence[tf.Tensor], small: tf.Tensor) -> tf.Tensor:
    """Return the value of each action, float32 [n, 4]; `weights` are those of a Dueling layer, in its order.

    The same as convolutions over gridworld.pictures(small) / 255, [n, 84, 84, 3]. A cell is 12 pixels wide and the first
    convolution moves by 4, so each block of 4 x 4 pixels has one colour: the kernel's weights of a block can be added up first, and a
    sixteenth of the multiplications is left.
    """
    conv1, conv2, conv3, conv4, advantage, value = weights
    blocks = tf.cast(tf.repeat(tf.repeat(small, _BLOCKS_A_CELL, axis=1), _BLOCKS_A_CELL, axis=2), tf.float32) / _WHITE
    across = KERNELS[0] // _BLOCK
    summed = tf.reduce_sum(tf.reshape(conv1, [across, _BLOCK, across, _BLOCK, *conv1.shape[2:]]), axis=[1, 3])
    seen = tf.nn.relu(tf.nn.conv2d(blocks, summed, 1, "VALID"))
    seen = tf.nn.relu(tf.nn.conv2d(seen, conv2, STRIDES[1], "VALID"))
    seen = tf.nn.relu(tf.nn.conv2d(seen, conv3, STRIDES[2], "VALID"))
    # The last kernel is as large as what is left, 7 x 7.
    inputs, hidden = KERNELS[3] ** 2 * conv4.shape[2], conv4.shape[3]
    seen = tf.nn.relu(tf.matmul(tf.reshape(seen, [-1, inputs]), tf.reshape(conv4, [inputs, hidden])))
    of_actions, of_board = tf.split(seen, 2, axis=1)
    advantages = tf.matmul(of_actions, advantage)
    return tf.matmul(of_board, value) + advantages - tf.reduce_mean(advantages, axis=1, keepdims=True)
