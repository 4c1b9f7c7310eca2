"""The restart decision for each exit code, and the back-off."""

import pytest

from launcher.runs import restart_policy
from launcher.runs.restart_policy import RestartDecision
from trainer.exit_codes import exit_code_of


@pytest.mark.parametrize(
    "code, restarts_used, expected",
    [
        (0, 0, RestartDecision.DONE),
        (2, 0, RestartDecision.FAIL),
        (75, 0, RestartDecision.RESTART),
        (75, 3, RestartDecision.FAIL),
        (143, 3, RestartDecision.RESTART_UNCOUNTED),
        (1, 2, RestartDecision.RESTART),
        (137, 3, RestartDecision.FAIL),
    ],
)
def test_the_decision_depends_on_the_exit_code_and_the_restarts_used(code: int, restarts_used: int, expected: RestartDecision) -> None:
    assert restart_policy.decide(code, restarts_used=restarts_used, max_restarts=3) is expected


@pytest.mark.parametrize(
    "code, expected", [(0, RestartDecision.DONE), (1, RestartDecision.FAIL), (75, RestartDecision.FAIL), (137, RestartDecision.RESTART)]
)
def test_exit_code_makes_codes_below_those_of_signals_final(code: int, expected: RestartDecision) -> None:
    assert restart_policy.decide(code, restarts_used=0, max_restarts=3, when="exit_code") is expected


def test_signals_have_the_exit_codes_of_shells() -> None:
    assert [exit_code_of(code) for code in (0, 75, -9, -15)] == [0, 75, 137, 143]


def test_the_delay_doubles_up_to_a_limit_and_starts_again_after_a_healthy_minute() -> None:
    delays = [0.0]
    for _ in range(7):
        delays.append(restart_policy.delay(delays[-1], ran_for=5))
    assert delays[1:] == [1, 2, 4, 8, 16, 30, 30]
    assert [restart_policy.delay(30, ran_for=seconds) for seconds in (60, 61)] == [30, 1]
