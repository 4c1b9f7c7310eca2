"""A wait that is over tells what it was for, and what was there instead."""

import pytest

from tests.waiting import until


def test_it_returns_what_was_waited_for() -> None:
    found = iter([0, "", "there"])
    assert until("it", lambda: next(found), seen=lambda: "nothing", every=0) == "there"


def test_it_fails_with_what_was_waited_for_and_what_was_seen_last() -> None:
    with pytest.raises(AssertionError, match=r"^waited 0 s for it; seen last: nothing"):
        until("it", lambda: False, 0, seen=lambda: "nothing")
