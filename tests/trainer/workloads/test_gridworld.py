"""The rules of GridWorld, one by one, against a reference in plain Python."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.workloads import gridworld
from trainer.workloads.gridworld import ACTIONS, CELLS, GOALS, SIDE, THINGS, Boards

UP, DOWN, LEFT, RIGHT = range(ACTIONS)
CENTRE = 12


def seed(number: int) -> tf.Tensor:
    return tf.constant([number, 1], tf.int32)


def board(hero: int, things: list[int]) -> Boards:
    return Boards(tf.constant([hero]), tf.constant([things]))


def reference_cell(hero: int, action: int) -> int:
    row, column = divmod(hero, SIDE)
    if action == UP and row > 0:
        row -= 1
    elif action == DOWN and row < SIDE - 1:
        row += 1
    elif action == LEFT and column > 0:
        column -= 1
    elif action == RIGHT and column < SIDE - 1:
        column += 1
    return row * SIDE + column


def reference_image(hero: int, things: list[int]) -> np.ndarray:
    image = np.zeros((84, 84, 3), np.uint8)
    image[:12], image[-12:], image[:, :12], image[:, -12:] = 255, 255, 255, 255
    for cell, channel in [(hero, 2), *((cell, 1) for cell in things[:GOALS]), *((cell, 0) for cell in things[GOALS:])]:
        row, column = divmod(cell, SIDE)
        image[12 * (row + 1) : 12 * (row + 2), 12 * (column + 1) : 12 * (column + 2), channel] = 255
    return image


def test_everything_starts_on_a_random_cell_of_its_own() -> None:
    boards = gridworld.reset(2000, seed(0))
    cells = np.concatenate([boards.hero[:, None], boards.things], axis=1)
    assert cells.shape == (2000, 1 + THINGS)
    assert all(len(set(row)) == 1 + THINGS for row in cells)
    for column in cells.T:  # 80 of each expected; five standard deviations are 44
        assert np.bincount(column, minlength=CELLS).min() > 36
        assert np.bincount(column, minlength=CELLS).max() < 124


@pytest.mark.parametrize("hero", range(CELLS))
def test_the_hero_moves_one_cell_and_stops_at_the_border(hero: int) -> None:
    others = [cell for cell in range(CELLS) if abs(cell // SIDE - hero // SIDE) + abs(cell % SIDE - hero % SIDE) > 1][:THINGS]
    for action in range(ACTIONS):
        after, rewards = gridworld.step(board(hero, others), tf.constant([action]), seed(1))
        assert int(after.hero[0]) == reference_cell(hero, action)
        assert after.things.numpy().tolist() == [others]
        assert float(rewards[0]) == 0.0


@pytest.mark.parametrize("place", range(THINGS))
def test_a_touched_thing_is_rewarded_and_reappears_on_a_free_cell(place: int) -> None:
    things = [0, 1, 2, 3, 4, 5]
    things[place] = CENTRE - SIDE
    before = Boards(tf.fill([3000], CENTRE), tf.repeat(tf.constant([things]), 3000, axis=0))
    after, rewards = gridworld.step(before, tf.fill([3000], UP), seed(2))
    assert set(rewards.numpy()) == {1.0 if place < GOALS else -1.0}
    others = [cell for i, cell in enumerate(things) if i != place]
    untouched = np.delete(after.things.numpy(), place, axis=1)
    assert (untouched == others).all()
    free = set(range(CELLS)) - set(others) - {CENTRE - SIDE}
    counts = np.bincount(after.things.numpy()[:, place], minlength=CELLS)
    assert {cell for cell in range(CELLS) if counts[cell]} == free
    expected = 3000 / len(free)
    assert counts[sorted(free)].min() > expected - 5 * expected**0.5
    assert counts[sorted(free)].max() < expected + 5 * expected**0.5


def test_many_boards_follow_the_rules_for_whole_episodes() -> None:
    random = np.random.default_rng(3)
    boards = gridworld.reset(64, seed(4))
    for number in range(gridworld.EPISODE):
        actions = random.integers(ACTIONS, size=64).astype(np.int32)
        after, gained = gridworld.step(boards, tf.constant(actions), seed(100 + number))
        heroes, all_things, heroes_after, all_things_after, rewards = (part.numpy().tolist() for part in (*boards, *after, gained))
        for i in range(64):
            hero, things, moved = reference_cell(heroes[i], actions[i]), all_things[i], all_things_after[i]
            touched = [place for place, cell in enumerate(things) if cell == hero]
            assert heroes_after[i] == hero
            assert rewards[i] == sum(1.0 if place < GOALS else -1.0 for place in touched)
            assert [cell for place, cell in enumerate(moved) if place not in touched] == [cell for cell in things if cell != hero]
            assert len({hero, *moved}) == 1 + THINGS
        boards = after


def test_the_same_seed_gives_the_same_game_and_another_seed_another_game() -> None:
    boards = gridworld.reset(50, seed(5))
    assert (gridworld.reset(50, seed(5)).things.numpy() == boards.things.numpy()).all()
    assert (gridworld.reset(50, seed(6)).things.numpy() != boards.things.numpy()).any()


def test_the_image_shows_the_board_pixel_for_pixel() -> None:
    boards = gridworld.reset(40, seed(7))
    seen = gridworld.images(gridworld.small_images(boards))
    assert (seen.shape, seen.dtype) == ((40, 84, 84, 3), tf.uint8)
    for i in range(40):
        assert (seen[i].numpy() == reference_image(int(boards.hero[i]), boards.things[i].numpy().tolist())).all()


def test_a_random_hero_gets_about_two_an_episode() -> None:
    """As published."""
    random = np.random.default_rng(8)
    boards, total = gridworld.reset(500, seed(9)), np.zeros(500)
    for number in range(gridworld.EPISODE):
        boards, rewards = gridworld.step(boards, tf.constant(random.integers(ACTIONS, size=500), tf.int32), seed(200 + number))
        total += rewards.numpy()
    assert 1.5 < total.mean() < 3.0
