"""A wait that fails names its condition and the last state."""

import pytest

from tests.waiting import until


def test_it_returns_the_first_true_result() -> None:
    results = iter([0, "", "ready"])
    assert until("it", lambda: next(results), seen=lambda: "nothing", every=0) == "ready"


def test_a_failure_names_the_condition_and_the_last_state() -> None:
    with pytest.raises(AssertionError, match=r"^waited 0 s for it; seen last: nothing"):
        until("it", lambda: False, 0, seen=lambda: "nothing")
