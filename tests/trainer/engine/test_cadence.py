"""The number of steps in a call, and their rate."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.engine import cadence


@given(st.integers(1, 1000), st.floats(1e-6, 100))
def test_a_call_grows_gradually_and_within_its_limits(steps: int, seconds: float) -> None:
    next_steps = cadence.next_steps(steps, seconds)
    assert 1 <= next_steps <= 1000
    assert next_steps <= steps * 8


def test_a_call_has_many_fast_steps_or_few_slow_ones() -> None:
    assert cadence.next_steps(100, 0.1) == 200
    assert cadence.next_steps(10, 20.0) == 1


@given(st.integers(0, 5000), st.integers(1, 1000), st.integers(1, 500), st.one_of(st.none(), st.integers(1, 500)))
def test_a_call_does_not_pass_a_boundary(step: int, wanted: int, every: int, other_every: int | None) -> None:
    last = step + 2000
    steps = cadence.to_boundary(step, wanted, last, every, other_every)
    assert 1 <= steps <= wanted
    for multiple in (every, other_every):
        if multiple:
            assert (step + steps - 1) // multiple == step // multiple


def test_a_call_ends_with_the_last_step() -> None:
    assert cadence.to_boundary(1990, 100, 2000, None) == 10


def test_a_rate_covers_the_steps_since_it_was_last_taken() -> None:
    rate = cadence.Rate()
    time.sleep(0.2)
    began = time.monotonic()
    rate.start()
    rate.add(1000, 10)
    rate.add(1000, 10)
    time.sleep(0.2)
    examples_per_second, seconds_per_step = rate.take()
    elapsed = time.monotonic() - began
    assert 2000 / elapsed <= examples_per_second <= 2000 / 0.2
    assert seconds_per_step * examples_per_second == pytest.approx(100)
    assert rate.take()[0] == 0
