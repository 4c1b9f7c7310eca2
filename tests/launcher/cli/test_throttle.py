"""The progress events that become lines."""

import pytest

from launcher.cli.throttle import Throttle
from trainer.events import Event


def progress(step: int, task: str = "chief", **more: int) -> Event:
    return {"event": "progress", "task": task, "step": step, "steps": 100, **more}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("launcher.cli.throttle.time.monotonic", lambda: now[0])
    return now


def test_progress_of_the_chief_is_shown_once_a_second_and_at_the_last_step(clock: list[float]) -> None:
    throttle = Throttle()
    assert throttle.admits(progress(1))
    clock[0] = 0.9
    assert not throttle.admits(progress(2))
    assert throttle.admits(progress(100))
    clock[0] = 2.0
    assert throttle.admits(progress(3))


def test_the_checkpoint_that_a_stop_saves_is_shown_however_soon_after_another(clock: list[float]) -> None:
    throttle = Throttle()
    assert throttle.admits({"event": "checkpoint", "task": "chief", "step": 270})
    clock[0] = 0.5
    assert not throttle.admits({"event": "checkpoint", "task": "chief", "step": 272})
    assert throttle.admits({"event": "stopping", "task": "worker-1"})  # for which the chief saves, too
    assert throttle.admits({"event": "checkpoint", "task": "chief", "step": 274})
    assert throttle.admits({"event": "started", "task": "worker-1"})  # again
    assert not throttle.admits({"event": "checkpoint", "task": "chief", "step": 275})


def test_workers_together_are_shown_about_every_five_seconds(clock: list[float]) -> None:
    throttle = Throttle()
    workers = [f"worker-{index}" for index in range(8)]
    shown = 0
    for second in range(400):
        clock[0] = float(second)
        shown += sum(throttle.admits(progress(second, worker, local_step=second)) for worker in workers)
    assert 400 / 5 - 8 <= shown <= 400 / 5 + 16


def test_rare_events_are_always_shown(clock: list[float]) -> None:
    del clock
    throttle = Throttle()
    event = {"event": "restarting", "task": "ps-0"}
    assert [throttle.admits(event) for _ in range(3)] == [True] * 3


def test_waiting_for_peers_is_shown_every_ten_seconds_for_each_task(clock: list[float]) -> None:
    throttle = Throttle()
    assert throttle.admits({"event": "waiting", "task": "chief"})
    assert throttle.admits({"event": "waiting", "task": "ps-0"})
    clock[0] = 9.0
    assert not throttle.admits({"event": "waiting", "task": "chief"})
    clock[0] = 11.0
    assert throttle.admits({"event": "waiting", "task": "chief"})
