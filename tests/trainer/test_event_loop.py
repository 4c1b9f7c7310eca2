"""The loop: timers in order, signals, results of threads, and no busy waiting."""

import os
import selectors
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from trainer.event_loop import EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    with EventLoop() as event_loop:
        event_loop.call_later(60, event_loop.stop)
        yield event_loop


def test_timers_run_in_order_and_can_be_cancelled(loop: EventLoop) -> None:
    seen: list[str] = []
    loop.call_later(0.10, lambda: seen.append("second"))
    loop.call_later(0.05, lambda: seen.append("first"))
    loop.call_later(0.07, lambda: seen.append("never")).cancel()
    loop.call_later(0.15, loop.stop)
    loop.run()
    assert seen == ["first", "second"]


def test_signals_are_handled_in_the_loop_and_their_handlers_restored() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    seen: list[str] = []
    with EventLoop() as loop:

        def record(name: str) -> None:
            seen.append(name)
            loop.stop()

        loop.on_signal(signal.SIGUSR1, lambda: record("usr1"))
        loop.call_later(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        loop.call_later(60, loop.stop)
        began = time.monotonic()
        loop.run()
    assert seen == ["usr1"]
    assert time.monotonic() - began < 30  # woken, not by the timer above
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_thread_wakes_the_loop(loop: EventLoop) -> None:
    thread_ids: list[int] = []

    def record() -> None:
        thread_ids.append(threading.get_ident())
        loop.stop()

    thread = threading.Thread(target=lambda: loop.call_from_thread(record))
    thread.start()
    began = time.monotonic()
    loop.run()
    thread.join()
    assert thread_ids == [threading.get_ident()]
    assert time.monotonic() - began < 30  # woken, not by the timer above


def test_a_forgotten_file_is_not_called(loop: EventLoop) -> None:
    reading, writing = os.pipe()
    calls: list[bytes] = []

    def read() -> None:
        calls.append(os.read(reading, 1))
        loop.forget(reading)

    loop.on_ready(reading, selectors.EVENT_READ, read)
    os.write(writing, b"ab")
    loop.call_later(0.2, loop.stop)
    loop.run()
    os.close(reading)
    os.close(writing)
    assert calls == [b"a"]


def test_a_timer_may_be_due_in_months() -> None:
    with EventLoop() as loop:
        loop.call_later(90 * 86400, loop.stop)
        thread = threading.Timer(0.05, loop.call_from_thread, [loop.stop])
        thread.start()
        loop.run()
        thread.join()


def test_waiting_costs_no_processor_time(loop: EventLoop) -> None:
    loop.call_later(1, loop.stop)
    began = time.process_time()
    loop.run()
    assert time.process_time() - began < 0.1
