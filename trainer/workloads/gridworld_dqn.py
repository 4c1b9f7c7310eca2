"""gridworld_dqn: double deep Q-learning of GridWorld, from a replay buffer of the agent's own moves.

Mnih et al., "Human-level control through deep reinforcement learning", 2015; van Hasselt et al., "Deep Reinforcement Learning
with Double Q-learning", 2016; the network is that of Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning",
2016: four convolutions, then advantage and value side by side. docs/workloads.md has the hyperparameters.
"""

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf
from PIL import Image
from tensorboard.plugins.image import metadata

from trainer.engine import fused_updates
from trainer.programs.rendering import animation
from trainer.workloads import gridworld
from trainer.workloads.catalog import GridworldDqnParams, parse_params
from trainer.workloads.errors import DataError
from trainer.workloads.gridworld import EPISODE, THINGS, Boards

BOARD = 1 + THINGS  # numbers of a board: the hero's cell, then the things'
TRANSITION = 2 * BOARD + 2  # numbers of a transition: board, action, reward, board after it
_EVALUATION_EPISODES = 64
_FRAME_MILLISECONDS = 200
_ANIMATION_ZOOM = 2

# Height and width of each convolution's kernel, and its stride; all VALID, without bias, with ReLU.
KERNELS, STRIDES = (8, 4, 3, 7), (4, 2, 1, 1)
_BLOCK = STRIDES[0]  # the first convolution moves by blocks of so many pixels
_BLOCKS_A_CELL = gridworld.PIXELS_A_CELL // _BLOCK
_WHITE = 255.0

# Independent streams of random numbers.
_MOVES, _SAMPLES, _EVALUATION, _ANIMATION = range(4)


class DuelingNetwork(keras.layers.Layer):
    """The dueling network (Wang et al., 2016): small images, uint8 [n, 7, 7, 3], to the value of each action, float32 [n, 4]."""

    def __init__(self, filters: Sequence[int], hidden: int, *, trainable: bool = True, name: str | None = None) -> None:
        super().__init__(trainable=trainable, name=name)
        depths = (3, *filters, hidden)
        shapes = {f"conv{i}": (size, size, *depth) for i, (size, depth) in enumerate(zip(KERNELS, pairwise(depths), strict=True), 1)}
        for weight, shape in {**shapes, "advantage": (hidden // 2, gridworld.ACTIONS), "value": (hidden // 2, 1)}.items():
            # Checkpoints only have attributes.
            setattr(self, weight, self.add_weight(shape=shape, initializer="glorot_uniform", name=weight))
        self.built = True

    def call(self, small: tf.Tensor) -> tf.Tensor:
        """Return the value of each action by the layer's own weights."""
        return action_values([tf.convert_to_tensor(weight.value) for weight in self.weights], small)


def action_values(weights: Sequence[tf.Tensor], small: tf.Tensor) -> tf.Tensor:
    """Return the value of each action, float32 [n, 4]; `weights` are those of a DuelingNetwork layer, in its order.

    The same as convolutions over gridworld.images(small) / 255, [n, 84, 84, 3]. A cell is 12 pixels wide and the first
    convolution has stride 4, so each block of 4 x 4 pixels has one colour: the kernel's weights of a block are added up first, which
    leaves a sixteenth of the multiplications.
    """
    conv1, conv2, conv3, conv4, advantage, value = weights
    blocks = tf.cast(tf.repeat(tf.repeat(small, _BLOCKS_A_CELL, axis=1), _BLOCKS_A_CELL, axis=2), tf.float32) / _WHITE
    across = KERNELS[0] // _BLOCK
    summed = tf.reduce_sum(tf.reshape(conv1, [across, _BLOCK, across, _BLOCK, *conv1.shape[2:]]), axis=[1, 3])
    seen = tf.nn.relu(tf.nn.conv2d(blocks, summed, 1, "VALID"))
    seen = tf.nn.relu(tf.nn.conv2d(seen, conv2, STRIDES[1], "VALID"))
    seen = tf.nn.relu(tf.nn.conv2d(seen, conv3, STRIDES[2], "VALID"))
    # The last kernel is as large as its input, 7 x 7.
    inputs, hidden = KERNELS[3] ** 2 * conv4.shape[2], conv4.shape[3]
    seen = tf.nn.relu(tf.matmul(tf.reshape(seen, [-1, inputs]), tf.reshape(conv4, [inputs, hidden])))
    advantage_inputs, value_inputs = tf.split(seen, 2, axis=1)
    advantages = tf.matmul(advantage_inputs, advantage)
    return tf.matmul(value_inputs, value) + advantages - tf.reduce_mean(advantages, axis=1, keepdims=True)


class DqnModel(keras.Model):
    """The network that learns, the target network that follows it, and the replay buffer; so a checkpoint of the model has all three."""

    def __init__(self, params: GridworldDqnParams) -> None:
        super().__init__(name="gridworld_dqn")
        self.online = DuelingNetwork(params.filters, params.hidden, name="online")
        self.target = DuelingNetwork(params.filters, params.hidden, name="target", trainable=False)
        # A ring buffer: transition n of the run is row n modulo its length. On the CPU: GPUs cannot update single rows of int8.
        with tf.device("CPU:0"):
            self.replay = self.add_weight(
                shape=(params.replay, TRANSITION), initializer="zeros", dtype="int8", trainable=False, name="replay"
            )
        for followed, follower in zip(self.online.weights, self.target.weights, strict=True):
            follower.assign(followed)
        self.built = True

    def call(self, small: tf.Tensor) -> tf.Tensor:
        """Return the value of each action, float32 [n, 4], of small images uint8 [n, 7, 7, 3]."""
        return self.online(small)


class GridworldDqn:
    """See protocol.Agent. A step is a move of one board; an episode has 50.

    Raises WorkloadError for wrong `params`, DataError if `data` is not `synthetic`.
    """

    play_metrics: tuple[str, ...] = ("reward", "q")
    eval_metrics: tuple[str, ...] = ("reward", "q")
    metric_window = 100 * EPISODE

    def __init__(self, params: Mapping[str, Any], data: str, seed: int) -> None:
        self._params = parse_params(GridworldDqnParams, params)
        if data != "synthetic":
            raise DataError(f"train.data {data}: gridworld_dqn plays its own boards; expected `synthetic`. Leave train.data out.")
        self._seed = seed
        self._play = tf.function(self.play, autograph=False)
        self._error = tf.function(self._mean_error, autograph=False)

    def model(self) -> keras.Model:
        """Return the agent's networks and its empty replay buffer."""
        return DqnModel(self._params)

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Return Adam."""
        return keras.optimizers.Adam(self._params.learning_rate)

    @property
    def parallel_games(self) -> int:
        """Return how many boards a task plays at once."""
        return self._params.boards

    def epsilon(self, step: int) -> float:
        """Return the probability of a random move at `step`: linear decay after the first, random moves."""
        params = self._params
        if step < params.random_steps:
            return 1.0
        part = min(1.0, (step - params.random_steps) / params.epsilon_steps)
        return params.epsilon_start + part * (params.epsilon_end - params.epsilon_start)

    def update_count(self, before: int, after: int) -> int:
        """Return the number of updates due between steps `before` and `after`."""
        first, every = self._params.random_steps, self._params.update_every
        return max(after, first) // every - max(before, first) // every

    def reset(self, count: int, player: int, step: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the state of `count` new games, int32 [count, 7], and the seed, int32 [2], of player `player` from `step` on."""
        seed = tf.random.experimental.stateless_fold_in(tf.constant([self._seed, _MOVES], tf.int32), player)
        seed = tf.random.experimental.stateless_fold_in(seed, tf.constant(step, tf.int32))
        return _joined(gridworld.reset(count, seed)), seed

    def play(
        self, weights: Sequence[tf.Tensor], games: tf.Tensor, steps_before: tf.Tensor, steps: tf.Tensor, epsilon: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Let the network with `weights` make `steps` moves on each of the games, int32 [count, 7], which have made `steps_before` so far.

        Returns the games after them, the transitions as int8 [steps x count, 16] and the sums of `play_metrics` over them,
        float32 [2]: reward an episode, and the value of the best action. Plain TensorFlow operations: workers run no Python.
        """
        count, shape = tf.shape(games)[0], games.shape

        def move(done: tf.Tensor, games: tf.Tensor, transitions: tf.TensorArray, sums: tf.Tensor) -> tuple[Any, ...]:
            now = tf.random.experimental.stateless_fold_in(seed, steps_before + done)
            seeds = tf.unstack(tf.random.experimental.stateless_split(now, 4))
            before = _boards(games)
            values = action_values(weights, gridworld.small_images(before))
            at_random = tf.random.stateless_uniform([count], seeds[0]) < epsilon
            anything = tf.random.stateless_uniform([count], seeds[1], 0, gridworld.ACTIONS, tf.int32)
            actions = tf.where(at_random, anything, tf.argmax(values, axis=1, output_type=tf.int32))
            after, rewards = gridworld.step(before, actions, seeds[2])
            transition = tf.concat([games, actions[:, tf.newaxis], tf.cast(rewards, tf.int32)[:, tf.newaxis], _joined(after)], axis=1)
            metrics = tf.stack([tf.reduce_sum(rewards) * EPISODE, tf.reduce_sum(tf.reduce_max(values, axis=1))])
            ended = tf.math.floormod(steps_before + done + 1, EPISODE) == 0
            games = tf.cond(ended, lambda: _joined(gridworld.reset(count, seeds[3])), lambda: _joined(after))
            games.set_shape(shape)
            return done + 1, games, transitions.write(done, tf.cast(transition, tf.int8)), sums + metrics

        empty = tf.TensorArray(tf.int8, size=steps, element_shape=[None, TRANSITION])
        state = (tf.constant(0), games, empty, tf.zeros([len(self.play_metrics)]))
        _, games, transitions, sums = tf.while_loop(lambda done, *_: done < steps, move, state)
        return games, tf.reshape(transitions.stack(), [-1, TRANSITION]), sums

    def learn(
        self,
        model: DqnModel,
        optimizer: keras.optimizers.Optimizer,
        transitions: tf.Tensor,
        step: tf.Tensor,
        count: tf.Tensor,
        batch_size: int,
    ) -> tf.Tensor:
        """Put the `transitions` after `step` into the replay buffer, make `count` updates; return the sum of their losses."""
        params = self._params
        replay, new = model.replay.value, tf.shape(transitions)[0]
        indices = tf.math.floormod(step + tf.range(new), params.replay)
        # In a graph, a variable's own method preserves the order of writes and reads.
        replay.scatter_update(tf.IndexedSlices(transitions, indices))
        filled = tf.minimum(step + new, params.replay)
        online, target = ([weight.value for weight in network.weights] for network in (model.online, model.target))

        def update(done: tf.Tensor, losses: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            seed = tf.random.experimental.stateless_fold_in(
                tf.constant([self._seed, _SAMPLES], tf.int32), tf.cast(optimizer.iterations.value, tf.int32)
            )
            drawn = tf.gather(replay, tf.random.stateless_uniform([batch_size], seed, 0, filled, tf.int32))
            with tf.GradientTape() as tape:
                loss = self._mean_error([tf.convert_to_tensor(weight) for weight in target], online, drawn)
            gradients = tape.gradient(loss, online)
            fused_updates.apply(optimizer, gradients, model.online.trainable_variables)
            for followed, follower in zip(online, target, strict=True):
                follower.assign_add(params.target_rate * (followed - follower))
            return done + 1, losses + loss

        _, losses = tf.while_loop(lambda done, _: done < count, update, (tf.constant(0), tf.constant(0.0)), parallel_iterations=1)
        return losses

    def _mean_error(self, target: Sequence[tf.Tensor], online: Sequence[Any], transitions: tf.Tensor) -> tf.Tensor:
        """Return the mean squared error of the values of `transitions`, int8 [n, 16], against their targets: reward plus discounted next value.

        The next value is the target network's, for the action that the online network would take. Episodes are cut
        after 50 moves, but the game does not end there: no state is terminal.
        """
        before, action, reward, after = tf.split(tf.cast(transitions, tf.int32), [BOARD, 1, 1, BOARD], axis=1)
        seen_before, seen_after = (gridworld.small_images(_boards(games)) for games in (before, after))
        best = tf.argmax(action_values(online, seen_after), axis=1, output_type=tf.int32)
        worth = tf.gather(action_values(target, seen_after), best, batch_dims=1)
        goal = tf.stop_gradient(tf.cast(reward[:, 0], tf.float32) + self._params.gamma * worth)
        expected = tf.gather(action_values(online, seen_before), action[:, 0], batch_dims=1)
        return tf.reduce_mean(tf.square(goal - expected))

    def evaluate(self, model: DqnModel) -> dict[str, float]:
        """Return loss, reward and q of 64 episodes, always the same starts, played as at the end of training."""
        transitions, sums = self._episodes(model, _EVALUATION_EPISODES, _EVALUATION, self._params.epsilon_end)
        online, target = ([tf.convert_to_tensor(weight.value) for weight in network.weights] for network in (model.online, model.target))
        reward, q = (float(total) / (_EVALUATION_EPISODES * EPISODE) for total in sums)
        return {"loss": float(self._error(target, online, transitions)), "reward": reward, "q": q}

    def write_summaries(self, model: DqnModel, step: int) -> None:
        """Write an animation of an episode without random moves; each starts with another board."""
        transitions, _ = self._episodes(model, 1, _ANIMATION + step, 0.0)
        games = tf.concat([transitions[:, :BOARD], transitions[-1:, -BOARD:]], axis=0)
        frames = gridworld.images(gridworld.small_images(_boards(tf.cast(games, tf.int32)))).numpy()
        _write_gif(
            "episode",
            animation([frame.repeat(_ANIMATION_ZOOM, 0).repeat(_ANIMATION_ZOOM, 1) for frame in frames], _FRAME_MILLISECONDS),
            step,
        )

    def _episodes(self, model: DqnModel, count: int, seed: int, epsilon: float) -> tuple[tf.Tensor, tf.Tensor]:
        weights = [tf.convert_to_tensor(weight.value) for weight in model.online.weights]
        drawn = tf.constant([self._seed, seed], tf.int32)
        games = _joined(gridworld.reset(count, drawn))
        _, transitions, sums = self._play(weights, games, tf.constant(0), tf.constant(EPISODE), tf.constant(epsilon), drawn)
        return transitions, sums


def _joined(boards: Boards) -> tf.Tensor:
    """Return boards as int32 [n, 7]; `_boards` is the inverse."""
    return tf.concat([boards.hero[:, tf.newaxis], boards.things], axis=1)


def _boards(games: tf.Tensor) -> Boards:
    return Boards(games[:, 0], games[:, 1:])


def _write_gif(name: str, gif: bytes, step: int) -> None:
    """Write an animated GIF as an image summary, with the default writer: tf.summary.image only writes single PNGs."""
    width, height = Image.open(io.BytesIO(gif)).size
    about = metadata.create_summary_metadata(display_name=name, description="")
    tf.summary.write(name, tf.constant([str(width).encode(), str(height).encode(), gif]), step=step, metadata=about)
