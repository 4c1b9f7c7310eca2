"""Reasons read from a task's events, which may hold anything that a program has written."""

from typing import Any

import pytest

from launcher.runs.reasons import (
    LastError,
    StartPhase,
    cause_of,
    cause_with_output,
    out_of_memory_remedy,
    reports_kill,
    shortened,
    waiting_reason,
)
from tests.golden_messages import Golden


@pytest.mark.parametrize(
    "event, cause",
    [
        ({"cause": "a peer was lost", "detail": "ps-0: no answer"}, "a peer was lost: ps-0: no answer"),
        ({"cause": "a peer was lost"}, "a peer was lost"),
        ({"detail": "ValueError: no such layer"}, "ValueError: no such layer"),
        ({"cause": 5, "detail": None}, ""),
        ({}, ""),
    ],
)
def test_a_cause_comes_with_its_detail(event: dict[str, Any], cause: str) -> None:
    assert cause_of({"event": "failed", **event}) == cause


def test_a_long_cause_is_shortened_in_tables_and_keeps_the_location_at_its_end() -> None:
    cause = f"ValueError: {'x' * 5000} (/home/ada/model.py:7, on worker-1)"
    assert cause_of({"event": "failed", "detail": cause}) == cause
    short = shortened(cause)
    assert len(short) == 300
    assert short.startswith("ValueError: xxx")
    assert short.endswith("xxx (/home/ada/model.py:7, on worker-1)")
    assert " ... " in short


@pytest.mark.parametrize(
    "missing, reason",
    [
        ([{"task": "ps-0"}, {"task": "worker-1"}], "waiting for ps-0, worker-1"),
        ([], "waiting for peers"),
        ("ps-0", "waiting for peers"),
        (["ps-0"], "waiting for peers"),
        (None, "waiting for peers"),
    ],
)
def test_missing_peers_are_named(missing: Any, reason: str) -> None:
    assert waiting_reason({"event": "waiting", "missing": missing}) == reason


def test_a_task_that_has_made_no_step_is_pending_although_its_peers_are_connected_and_it_was_ready(golden: Golden) -> None:
    start = StartPhase()
    none: dict[str, Any] = {"event": "waiting", "missing": [], "more": 0, "seconds": 61.2}
    assert [start.apply(event) for event in ({"event": "started"}, none, {"event": "ready"}, none)] == [False, True, False, True]
    golden(waiting_reason(none))
    assert waiting_reason({**none, "doing": "input", "place": "data.py:7 in rows"}).endswith(
        "no step has been made since; it is in its input, data.py:7 in rows"
    )
    assert waiting_reason({**none, "doing": "silent"}).endswith("no step has been made since; it is not answering")


def test_a_task_that_was_ready_does_not_wait_for_peers_until_it_is_restarted() -> None:
    phase = StartPhase()
    is_waiting = [
        phase.apply({"event": kind}) for kind in ("started", "waiting", "ready", "waiting", "restored", "waiting", "started", "waiting")
    ]
    assert is_waiting == [False, True, False, False, False, False, False, True]


_FRAMES = 'Traceback (most recent call last):\n  File "x.py", line 3, in <module>\n    fit(x)\n    ^^^^^^\n'
_GRAPH = "tf.InvalidArgumentError: Graph execution error:\n\nDetected at node a defined at\n<stack traces unavailable>\n"


@pytest.mark.parametrize(
    "output, line",
    [
        (f"epoch 1\n{_FRAMES}ValueError: no such file\n", "ValueError: no such file"),
        (f"{_FRAMES}mine.Empty: the tank\nleaving\n", "mine.Empty: the tank"),
        (f"{_FRAMES}KeyError: 1\n\nDuring handling of the above:\n\n{_FRAMES}Lost: it\n", "Lost: it"),
        ('  File "x.py", line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n', "SyntaxError: invalid syntax"),
        (
            f"{_FRAMES}{_GRAPH}logits and labels differ\n\t [[{{{{node b}}}}]]\n",
            "tf.InvalidArgumentError: Graph execution error: logits and labels differ",
        ),
        ("no data here\n    ^^^^^^\n\n", "no data here"),
        ("ErrorHandler is set\nleaving\n", "leaving"),
        (f"{_FRAMES}ValueError: caught\n" + 100 * "epoch\n", "epoch"),
        ("", ""),
    ],
)
def test_the_line_with_the_error_is_found(output: str, line: str) -> None:
    last = LastError()
    for written in output.splitlines():
        last.feed(written)
    assert last.line == line


def test_the_output_replaces_a_missing_detail_unless_the_program_was_killed() -> None:
    last = LastError()
    last.feed("ValueError: 1")
    assert cause_with_output({"event": "failed", "cause": "given up", "detail": ""}, last) == "given up: ValueError: 1"
    assert cause_with_output({"event": "failed", "cause": "given up", "detail": "KeyError: 2"}, last) == "given up: KeyError: 2"
    killed = {"event": "failed", "cause": "killed", "exit_code": 1, "process_exit_code": 137}
    assert (cause_with_output(killed, last), reports_kill(killed)) == ("killed", True)
    assert reports_kill({"event": "restarting", "exit_code": 137})


def test_the_remedy_for_memory_names_the_field_of_the_role() -> None:
    assert "`roles.worker.memory`" in out_of_memory_remedy("worker-3", limited=True)
    assert "`roles.ps.memory`" in out_of_memory_remedy("ps-0", limited=False)
