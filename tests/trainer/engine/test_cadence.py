"""How many steps a call runs, and how fast they are."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.engine import cadence


@given(st.integers(1, 1000), st.floats(1e-6, 100))
def test_a_call_grows_step_by_step_and_never_beyond_its_limits(steps: int, seconds: float) -> None:
    chosen = cadence.next_steps(steps, seconds)
    assert 1 <= chosen <= 1000
    assert chosen <= steps * 8


def test_fast_steps_are_many_in_a_call_and_slow_ones_few() -> None:
    assert cadence.next_steps(100, 0.1) == 200
    assert cadence.next_steps(10, 20.0) == 1


@given(st.integers(0, 5000), st.integers(1, 1000), st.integers(1, 500), st.one_of(st.none(), st.integers(1, 500)))
def test_no_boundary_is_passed(step: int, wanted: int, every: int, also: int | None) -> None:
    last = step + 2000
    steps = cadence.to_boundary(step, wanted, last, every, also)
    assert 1 <= steps <= wanted
    for multiple in (every, also):
        if multiple:
            assert (step + steps - 1) // multiple == step // multiple


def test_the_last_step_ends_a_call() -> None:
    assert cadence.to_boundary(1990, 100, 2000, None) == 10


def test_a_rate_is_of_all_that_came_since_it_was_asked_last() -> None:
    rate = cadence.Rate()
    time.sleep(0.2)
    began = time.monotonic()
    rate.start()
    rate.add(1000, 10)
    rate.add(1000, 10)
    time.sleep(0.2)
    examples_per_second, seconds_per_step = rate.take()
    took = time.monotonic() - began
    assert 2000 / took <= examples_per_second <= 2000 / 0.2
    assert seconds_per_step * examples_per_second == pytest.approx(100)
    assert rate.take()[0] == 0
