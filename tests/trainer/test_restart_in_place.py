"""Reactions to the end of a training process: the decisions, without processes."""

import signal
from dataclasses import replace

import pytest

from tests.golden_messages import Golden
from trainer.error_file import FINAL_PREFIX, START_STEP_PREFIX
from trainer.restart_in_place import SAME_AGAIN, NoRestart, RestartHistory, RestartInPlace, RestartPolicy, cause_of, decide_restart

POLICY = RestartPolicy(max_restarts=3)


def test_success_and_a_final_failure_end_the_task() -> None:
    assert decide_restart(0, 10, RestartHistory(), POLICY) == NoRestart(0)
    assert decide_restart(2, 10, RestartHistory(), POLICY) == NoRestart(2, "a final failure")


# Past the limit the task does not exit like a killed container or one without peers: those are started again.
@pytest.mark.parametrize("code, task_code", [(75, 1), (1, 1), (7, 7), (139, 1), (255, 1), (-signal.SIGKILL, 1), (-signal.SIGSEGV, 1)])
def test_failures_count_until_the_limit(code: int, task_code: int, golden: Golden) -> None:
    decision = decide_restart(code, 10, RestartHistory(restarts=2), POLICY)
    assert isinstance(decision, RestartInPlace)
    assert decision.history.restarts == 3
    end = decide_restart(code, 10, decision.history, POLICY)
    assert isinstance(end, NoRestart)
    assert end.exit_code == task_code
    golden(end.cause)


def test_restart_always_also_restarts_after_success_without_counting(golden: Golden) -> None:
    always = replace(POLICY, restart="always")
    first = decide_restart(0, 10, RestartHistory(restarts=3), always)
    assert isinstance(first, RestartInPlace)
    assert (first.delay, first.history) == (0.0, RestartHistory(restarts=3, recent_exits=1))
    golden(first.cause)
    second = decide_restart(0, 10, first.history, always)
    assert isinstance(second, RestartInPlace)
    assert second.delay == 1.0  # one that returns at once is not started in a loop without a pause
    assert isinstance(decide_restart(1, 10, RestartHistory(restarts=3), always), NoRestart)  # a failure still counts


@pytest.mark.parametrize("code, task_code", [(1, 1), (75, 1), (127, 127)])
def test_exit_code_makes_codes_below_those_of_signals_final(code: int, task_code: int, golden: Golden) -> None:
    end = decide_restart(code, 10, RestartHistory(), replace(POLICY, restart="exit_code"))
    assert isinstance(end, NoRestart)
    assert end.exit_code == task_code
    golden(end.cause)


@pytest.mark.parametrize("code", [128, 137, 139, 255, -signal.SIGKILL, -signal.SIGSEGV, -signal.SIGTERM])
def test_exit_code_restarts_after_signals(code: int) -> None:
    decision = decide_restart(code, 10, RestartHistory(), replace(POLICY, restart="exit_code"))
    assert isinstance(decision, RestartInPlace)
    assert decision.history.restarts == (code != -signal.SIGTERM)


@pytest.mark.parametrize("code", [143, -signal.SIGTERM])
def test_a_stop_never_counts(code: int) -> None:
    decision = decide_restart(code, 10, RestartHistory(restarts=3), POLICY)
    assert isinstance(decision, RestartInPlace)
    assert decision.history.restarts == 3


def test_a_peer_lost_after_a_minute_does_not_count_while_training_progresses() -> None:
    used_up = RestartHistory(restarts=3, fingerprint="an error", lost_from=0)
    late = decide_restart(75, 200, used_up, POLICY, f"{START_STEP_PREFIX}50", connected=61)
    assert isinstance(late, RestartInPlace)
    assert late.history == RestartHistory(restarts=3, recent_exits=1, fingerprint="an error", lost_from=50)
    for fingerprint in (f"{START_STEP_PREFIX}50", f"{START_STEP_PREFIX}0", ""):  # no progress, or a program that does not report it
        assert isinstance(decide_restart(75, 200, late.history, POLICY, fingerprint, connected=61), NoRestart)
    assert isinstance(decide_restart(75, 200, used_up, POLICY, f"{START_STEP_PREFIX}50", connected=59), NoRestart)
    assert isinstance(decide_restart(1, 200, used_up, POLICY, "from step 50: model.py:3: KeyError", connected=61), NoRestart)


def test_peers_lost_before_any_step_keep_the_last_known_step() -> None:
    history = RestartHistory(lost_from=500)
    for fingerprint in ("", f"{START_STEP_PREFIX}0", f"{START_STEP_PREFIX}500"):
        lost = decide_restart(75, 200, history, POLICY, fingerprint, connected=61)
        assert isinstance(lost, RestartInPlace)
        assert (lost.history.lost_from, lost.history.restarts) == (500, history.restarts + 1)
        history = lost.history


def test_the_first_restart_comes_at_once_and_delays_then_double_up_to_the_longest() -> None:
    history, delays = RestartHistory(), []
    for _ in range(9):
        decision = decide_restart(143, 1, history, POLICY)
        assert isinstance(decision, RestartInPlace)
        delays.append(decision.delay)
        history = decision.history
    assert delays == [0, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_long_attempt_resets_the_delay_but_not_the_count() -> None:
    decision = decide_restart(75, 61, RestartHistory(restarts=2, recent_exits=5), POLICY)
    assert isinstance(decision, RestartInPlace)
    assert decision.delay == 0
    assert decision.history == RestartHistory(restarts=3, recent_exits=1)


def test_a_cause_is_readable_text(golden: Golden) -> None:
    assert cause_of(-9) == cause_of(137)
    golden(*map(cause_of, (75, -9, -11, 1)))


def test_the_same_failure_twice_in_a_row_ends_the_task() -> None:
    first = decide_restart(1, 10, RestartHistory(), POLICY, "from step 0: model.py:3: KeyError")
    assert isinstance(first, RestartInPlace)
    assert decide_restart(1, 10, first.history, POLICY, "from step 0: model.py:3: KeyError") == NoRestart(2, SAME_AGAIN)
    # With a checkpoint between, or another error, it is another failure.
    assert isinstance(decide_restart(1, 10, first.history, POLICY, "from step 50: model.py:3: KeyError"), RestartInPlace)


def test_the_same_failure_after_long_attempts_is_retried_up_to_the_limit() -> None:
    history = RestartHistory()
    for repeats in range(POLICY.max_restarts + 1):
        decision = decide_restart(1, POLICY.recovers_after, history, POLICY, "ValueError at train.py:3")
        assert isinstance(decision, RestartInPlace)
        assert decision.history.repeats == repeats
        history = replace(decision.history, restarts=0)
    assert decide_restart(1, POLICY.recovers_after, history, POLICY, "ValueError at train.py:3") == NoRestart(2, SAME_AGAIN)


def test_a_final_failure_ends_the_task_at_once_with_its_own_cause() -> None:
    assert decide_restart(2, 10, RestartHistory(), POLICY, f"{FINAL_PREFIX}training has diverged") == NoRestart(2, "training has diverged")


def test_a_lost_peer_between_two_equal_failures_does_not_make_them_differ() -> None:
    first = decide_restart(1, 10, RestartHistory(), POLICY, "it")
    assert isinstance(first, RestartInPlace)
    lost = decide_restart(75, 10, first.history, POLICY)
    assert isinstance(lost, RestartInPlace)
    assert decide_restart(1, 10, lost.history, POLICY, "it") == NoRestart(2, SAME_AGAIN)
    killed = decide_restart(-9, 10, first.history, POLICY)
    assert isinstance(killed, RestartInPlace)
    assert isinstance(decide_restart(1, 10, killed.history, POLICY, "it"), RestartInPlace)
