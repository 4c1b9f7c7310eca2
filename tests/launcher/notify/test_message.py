"""Messages about a run: their content, when one is due, and that none is sent twice."""

import dataclasses

import pytest

from launcher.notify import ledger
from launcher.notify.message import STALL_GRACE, DueMessages, Message, end_message, stall_message, variables
from launcher.runs.status import RunStatus, State, TaskStatus

RUN = RunStatus("digits", "local", State.FAILED, "worker-0 failed\non attempt 3: boom\0", started=100.0, ended=160.0, step=1200, steps=2000)
NOW = 1000.0


def task(name: str, stall: str = "", since: float = 900.0) -> TaskStatus:
    reason = f"no progress since 1970-01-01T00:15:00Z: {stall}" if stall else ""
    return TaskStatus(name, State.RUNNING, reason, stalled=stall, stalled_since=since if stall else None)


def running(*tasks: TaskStatus) -> RunStatus:
    return RunStatus("digits", "local", State.RUNNING, started=100.0, step=7, tasks=tasks)


def due_after_grace(due: DueMessages, status: RunStatus, now: float = NOW) -> list[Message]:
    assert due.check(status, now) == []
    return due.check(status, now + STALL_GRACE)


def test_the_message_of_an_end_has_name_state_reason_step_and_time() -> None:
    message = end_message(RUN, NOW)
    assert message is not None
    payload = message.payload()
    assert payload.pop("id") == message.payload()["id"]
    assert payload == {
        "version": 1,
        "event": "failed",
        "name": "digits",
        "backend": "local",
        "state": "failed",
        "reason": "worker-0 failed on attempt 3: boom",
        "step": 1200,
        "steps": 2000,
        "time": "1970-01-01T00:02:40Z",
        "text": "digits has failed at step 1,200 of 2,000: worker-0 failed on attempt 3: boom",
    }
    assert variables(message.payload())["NOTIFY_STEP"] == "1200"


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.RESTARTING, State.STOPPED, State.INTERRUPTED, State.UNKNOWN])
def test_no_message_is_due_for_a_run_that_continues_or_was_stopped(state: State) -> None:
    assert DueMessages().check(dataclasses.replace(RUN, state=state), NOW) == []


def test_a_long_reason_is_cut() -> None:
    message = end_message(dataclasses.replace(RUN, reason="x" * 5000), NOW)
    assert message is not None
    assert (len(message.reason), message.reason[-4:]) == (2000, "x...")


def test_an_id_is_the_same_for_every_sender_and_differs_for_the_next_start() -> None:
    first, same, next_start = end_message(RUN, 1.0), end_message(RUN, 2.0), end_message(dataclasses.replace(RUN, started=101.0), 1.0)
    assert first is not None
    assert same is not None
    assert next_start is not None
    assert first.payload()["id"] == same.payload()["id"] != next_start.payload()["id"]


def test_a_stall_that_lasts_is_reported_with_the_task_that_blocks_the_others() -> None:
    due = DueMessages()
    [message] = due_after_grace(due, running(task("chief", "servers"), task("ps-0", "stopped")))
    assert (message.event, message.stalled_tasks, message.since) == ("stalled", ("ps-0",), 900.0)
    assert message.text == "digits makes no progress at step 7: ps-0 makes no progress since 1970-01-01T00:15:00Z: stopped"


def test_a_stall_that_ends_at_once_is_not_reported() -> None:
    due = DueMessages()
    assert due.check(running(task("chief", "code")), NOW) == []
    assert due.check(running(task("chief")), NOW + 5) == []
    assert due.check(running(task("chief", "code")), NOW + STALL_GRACE) == []
    assert due.is_stalled


def test_stalls_of_one_task_are_reported_once_an_hour_and_another_task_s_at_once() -> None:
    [first] = due_after_grace(DueMessages(), running(task("chief", "code")))
    entries = ledger.with_entry([], first, "webhook", {"at": NOW, "state": ledger.SENT})
    assert ledger.wait_time(entries, first, "webhook", NOW + 7200) is None  # the same stall, two hours later
    later = dataclasses.replace(first, since=NOW + 300)
    assert ledger.wait_time(entries, later, "webhook", NOW + 400) is None
    assert ledger.wait_time(entries, later, "webhook", NOW + 3600) == 0.0
    assert ledger.wait_time(entries, dataclasses.replace(later, stalled_tasks=("ps-0",)), "webhook", NOW + 400) == 0.0
    assert ledger.wait_time(entries, first, "command", NOW) == 0.0


def test_a_message_that_another_sender_has_claimed_is_left_to_it_until_the_claim_expires() -> None:
    end = end_message(RUN, NOW)
    assert end is not None
    assert ledger.wait_time([], end, "webhook", NOW) == 0.0
    claimed = ledger.with_claim([], end, "webhook", NOW, 60.0)
    assert ledger.wait_time(claimed, end, "webhook", NOW + 20) == 40.0
    assert ledger.wait_time(claimed, end, "webhook", NOW + 61) == 0.0
    for state in (ledger.SENT, ledger.FAILED):
        recorded = ledger.with_entry(claimed, end, "webhook", {"at": NOW, "state": state, "words": "failed: sent"})
        assert ledger.wait_time(recorded, end, "webhook", NOW + 9999) is None
        assert ledger.outcomes(recorded) == ("failed: sent",)


def test_a_stall_of_very_many_tasks_is_one_message_and_few_entries() -> None:
    tasks = [task(f"worker-{number}", "code") for number in range(1000)]
    message = stall_message(running(*tasks))
    assert message is not None
    assert len(message.entry_keys) == 20
    entries: list[ledger.Entry] = []
    for number in range(50):
        next_message = dataclasses.replace(message, stalled_tasks=tuple(f"worker-{number}-{index}" for index in range(20)))
        entries = ledger.with_entry(entries, next_message, "webhook", {"at": NOW, "state": ledger.SENT})
    assert len(entries) == 100
