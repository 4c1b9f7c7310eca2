"""The agent: its network, how it plays and learns, each against a plain reference; and its film."""

import io
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.trainer.tensorboard_reader import read_events
from trainer.workloads import gridworld
from trainer.workloads.errors import DataError, WorkloadError
from trainer.workloads.gridworld import EPISODE, GOALS, Boards
from trainer.workloads.gridworld_dqn import BOARD, TRANSITION, DuelingNetwork, GridworldDqn

SMALL = {"filters": [4, 6, 8], "hidden": 16, "replay": 10_000, "random_steps": 100, "epsilon_steps": 200}
Transitions = np.ndarray[Any, np.dtype[np.int8]]


def agent(**params: Any) -> GridworldDqn:
    return GridworldDqn(params={**SMALL, **params}, data="synthetic", seed=3)


def small_images(games: Any) -> tf.Tensor:
    return gridworld.small_images(Boards(tf.constant(games[:, 0], tf.int32), tf.constant(games[:, 1:], tf.int32)))


def play(player: GridworldDqn, weights: list[tf.Tensor], steps: int, epsilon: float, count: int = 10, first: int = 0) -> Transitions:
    """Return the transitions, [steps, count, 16]."""
    games, seed = player.reset(count, player=1, step=0)
    _, transitions, _ = player._play(
        weights, games, tf.constant(first), tf.constant(steps), tf.constant(epsilon), seed
    )  # in a graph, as tasks do
    reshaped: Transitions = transitions.numpy().reshape(steps, count, -1)
    return reshaped


def weights_of(network: DuelingNetwork) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(weight.value) for weight in network.weights]


def test_the_network_equals_convolutions_over_the_whole_image() -> None:
    network = DuelingNetwork([4, 6, 8], 16)
    conv1, conv2, conv3, conv4, advantage, value = weights_of(network)
    small = gridworld.small_images(gridworld.reset(20, tf.constant([1, 2])))
    seen: Any = tf.cast(gridworld.images(small), tf.float32) / 255
    assert seen.shape == (20, 84, 84, 3)
    for kernel, stride in ((conv1, 4), (conv2, 2), (conv3, 1), (conv4, 1)):
        seen = tf.nn.relu(tf.nn.conv2d(seen, kernel, stride, "VALID"))
    assert seen.shape == (20, 1, 1, 16)
    seen = seen[:, 0, 0]
    advantages = seen[:, :8] @ advantage
    expected = seen[:, 8:] @ value + advantages - tf.reduce_mean(advantages, 1, keepdims=True)
    assert np.allclose(network(small), expected, atol=1e-5)


def test_epsilon_falls_in_a_line_after_the_random_moves() -> None:
    published = GridworldDqn(params={}, data="synthetic", seed=0)
    assert [published.epsilon(step) for step in (0, 9_999, 10_000, 15_000, 20_000, 400_000)] == pytest.approx([1, 1, 1, 0.55, 0.1, 0.1])


def test_every_fourth_move_after_the_random_ones_has_an_update() -> None:
    published = GridworldDqn(params={}, data="synthetic", seed=0)
    assert published.update_count(0, 10_000) == 0
    assert published.update_count(9_990, 10_008) == 2
    steps = np.cumsum(np.random.default_rng(0).integers(1, 100, size=500))
    total = sum(published.update_count(int(a), int(b)) for a, b in pairwise(steps))
    assert total == (steps[-1] - 10_000) // 4


@pytest.fixture(scope="module")
def player() -> GridworldDqn:
    """An agent with the small parameters only; the tests share it, so that its moves are traced once."""
    return agent()


def test_moves_follow_one_another_by_the_rules_and_episodes_have_fifty(player: GridworldDqn) -> None:
    transitions = play(player, weights_of(player.model().online), 120, 0.5)
    before, action, reward, after = (
        transitions[..., :BOARD],
        transitions[..., BOARD],
        transitions[..., BOARD + 1],
        transitions[..., BOARD + 2 :],
    )
    steps = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])[action]
    places = np.clip(np.stack(np.divmod(before[..., 0], 5), -1) + steps, 0, 4)
    assert (after[..., 0] == places[..., 0] * 5 + places[..., 1]).all()
    touched = before[..., 1:] == after[..., :1]
    assert (reward == touched[..., :GOALS].sum(-1) - touched[..., GOALS:].sum(-1)).all()
    continues = (before[1:] == after[:-1]).all((1, 2))
    assert [i + 1 for i, same in enumerate(continues) if not same] == [EPISODE, 2 * EPISODE]


def test_a_move_that_is_not_random_is_the_best_action(player: GridworldDqn) -> None:
    model = player.model()
    transitions = play(player, weights_of(model.online), 20, 0.0).reshape(200, -1)
    assert (transitions[:, BOARD] == np.argmax(model.online(small_images(transitions[:, :BOARD])), 1)).all()
    random = play(player, weights_of(model.online), 200, 1.0)[..., BOARD]
    assert np.bincount(random.ravel()).min() > 500 - 5 * 500**0.5  # of 2,000, each action a quarter


def test_the_measures_are_the_reward_of_an_episode_and_the_best_actions_value(player: GridworldDqn) -> None:
    model = player.model()
    games, seed = player.reset(10, player=0, step=0)
    _, transitions, sums = player._play(weights_of(model.online), games, tf.constant(0), tf.constant(30), tf.constant(0.3), seed)
    values = model.online(small_images(transitions.numpy()[:, :BOARD]))
    assert sums.numpy() == pytest.approx([50 * transitions.numpy()[:, BOARD + 1].sum(), np.max(values, 1).sum()], rel=1e-4)


Learn = Callable[[Transitions, int, int], tf.Tensor]


@pytest.fixture(scope="module")
def learning() -> tuple[Any, Learn]:
    """A model, and a function that adds 4,000 transitions to its replay buffer from a position, and makes some updates; it is traced once."""
    learner = agent(gamma=0.9, target_rate=0.25)
    model, optimizer = learner.model(), learner.optimizer()
    optimizer.build(model.trainable_variables)
    learn = tf.function(learner.learn, autograph=False)  # in a graph, as in training, where only the data determines an order
    return model, lambda transitions, begin, updates: learn(
        model, optimizer, tf.constant(transitions), tf.constant(begin), tf.constant(updates), 32
    )


def test_an_update_moves_values_towards_the_double_q_target_and_the_target_network_after_them(
    player: GridworldDqn, learning: tuple[Any, Learn]
) -> None:
    model, learn = learning
    for weight in model.target.weights:  # not the network that learns
        weight.assign(weight.value * 0.5 + 0.01)
    transition = play(player, weights_of(model.online), 1, 1.0)[0, :1]
    # The same move four thousand times, so that each draw from the replay buffer is known.
    transitions = np.repeat(transition, 4000, axis=0)
    before, after = small_images(transition[:, :BOARD]), small_images(transition[:, BOARD + 2 :])
    best = int(np.argmax(model.online(after)[0]))
    goal = transition[0, BOARD + 1] + 0.9 * float(model.target(after)[0, best])
    error = goal - float(model.online(before)[0, transition[0, BOARD]])
    start = [weight.value.numpy() for weight in model.target.weights]
    loss = learn(transitions, 0, 1)
    assert float(loss) == pytest.approx(error**2, rel=1e-3)
    assert abs(goal - float(model.online(before)[0, transition[0, BOARD]])) < abs(error)
    for old, target, online in zip(start, model.target.weights, model.online.weights, strict=True):
        assert np.allclose(target.value, 0.75 * old + 0.25 * online.value, atol=1e-6)


def test_the_replay_buffer_is_a_ring_that_holds_the_last_transitions(learning: tuple[Any, Learn]) -> None:
    model, learn = learning
    transitions = np.random.default_rng(0).integers(
        0, 25, size=(12_000, TRANSITION), dtype=np.int8
    )  # any numbers: nothing is learned from them
    for begin in range(0, 12_000, 4000):
        learn(transitions[begin : begin + 4000], begin, 0)
    assert (model.replay.value.numpy() == np.concatenate([transitions[10_000:], transitions[2000:10_000]])).all()


def test_players_draw_different_games_and_each_the_same_ones_again() -> None:
    player = agent()
    first, again, other, later = (player.reset(50, *player_and_step)[0].numpy() for player_and_step in ((0, 0), (0, 0), (1, 0), (0, 64)))
    assert (first == again).all()
    assert (first != other).any()
    assert (first != later).any()


def test_the_film_shows_an_episode_move_by_move(player: GridworldDqn, tmp_path: Path) -> None:
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        player.write_summaries(player.model(), 500)
    ((step, (width, height, gif)),) = read_events(tmp_path).values("episode")
    assert (step, width, height) == (500, b"168", b"168")
    with Image.open(io.BytesIO(gif)) as film:
        assert film.format == "GIF"
        durations, images = [], []
        for number in range(getattr(film, "n_frames")):  # noqa: B009 - Pillow's type has it only for GIFs
            film.seek(number)
            durations.append(film.info["duration"])
            images.append(np.asarray(film.convert("RGB")))
    # A frame that equals the one before it lengthens that one.
    assert sum(durations) == (EPISODE + 1) * 200
    assert len(images) > 1
    for image in images:
        blue = (image == (0, 0, 255)).all(-1).sum()
        assert blue == 24 * 24  # one hero
        assert (image[0] == 255).all()


def test_evaluation_plays_the_same_episodes_each_time(player: GridworldDqn) -> None:
    model = player.model()
    metrics = player.evaluate(model)
    assert set(metrics) == {"loss", "reward", "q"}
    assert metrics == player.evaluate(model)


def test_wrong_parameters_are_named_together() -> None:
    with pytest.raises(WorkloadError, match=r"params\.boards.*params\.hidden.*the parameters are boards, filters"):
        agent(boards=0, hidden=7)
    with pytest.raises(DataError, match="plays its own boards"):
        GridworldDqn(params={}, data="somewhere", seed=0)


def test_only_the_learned_variables_are_trainable() -> None:
    model = agent().model()
    assert isinstance(model, keras.Model)
    assert [variable.path.split("/")[-2:][0] for variable in model.trainable_variables] == ["online"] * 6
    assert len(model.non_trainable_variables) == 7
