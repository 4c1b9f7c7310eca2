"""What is said of a task for its events, whatever a program may have written into them."""

from typing import Any

import pytest

from launcher.backend.reasons import LAST_LINE, Start, said, waiting


@pytest.mark.parametrize(
    "event, words",
    [
        ({"cause": "a peer was lost", "detail": "ps-0: no answer"}, "a peer was lost: ps-0: no answer"),
        ({"cause": "a peer was lost"}, "a peer was lost"),
        ({"detail": "ValueError: no such layer"}, "ValueError: no such layer"),
        ({"cause": 5, "detail": None}, ""),
        ({}, ""),
    ],
)
def test_a_cause_comes_with_its_detail(event: dict[str, Any], words: str) -> None:
    assert said({"event": "failed", **event}) == words


def test_a_task_that_says_very_much_is_quoted_in_part_with_the_place_at_its_end() -> None:
    quoted = said({"event": "failed", "detail": f"ValueError: {'x' * 5000} (/home/ada/model.py:7, on worker-1)"})
    assert len(quoted) == LAST_LINE
    assert quoted.startswith("ValueError: xxx")
    assert quoted.endswith("xxx (/home/ada/model.py:7, on worker-1)")
    assert " ... " in quoted


@pytest.mark.parametrize(
    "missing, words",
    [
        ([{"task": "ps-0"}, {"task": "worker-1"}], "waiting for ps-0, worker-1"),
        ([], "waiting for peers"),
        ("ps-0", "waiting for peers"),
        (["ps-0"], "waiting for peers"),
        (None, "waiting for peers"),
    ],
)
def test_who_is_missing_is_named(missing: Any, words: str) -> None:
    assert waiting({"event": "waiting", "missing": missing}) == words


def test_who_was_ready_does_not_wait_for_peers_until_it_is_started_again() -> None:
    start = Start()
    heard = [
        start.waits({"event": kind}) for kind in ("started", "waiting", "ready", "waiting", "restored", "waiting", "started", "waiting")
    ]
    assert heard == [False, True, False, False, False, False, False, True]
