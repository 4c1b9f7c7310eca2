"""The loop: timers in order, signals, results of threads, and no busy waiting."""

import os
import selectors
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from trainer.reactor import Reactor


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    with Reactor() as made:
        made.call_later(60, made.stop)
        yield made


def test_timers_run_in_order_and_can_be_cancelled(reactor: Reactor) -> None:
    seen: list[str] = []
    reactor.call_later(0.10, lambda: seen.append("second"))
    reactor.call_later(0.05, lambda: seen.append("first"))
    reactor.call_later(0.07, lambda: seen.append("never")).cancel()
    reactor.call_later(0.15, reactor.stop)
    reactor.run()
    assert seen == ["first", "second"]


def test_signals_are_handled_in_the_loop_and_given_back() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    seen: list[str] = []
    with Reactor() as reactor:

        def note(name: str) -> None:
            seen.append(name)
            reactor.stop()

        reactor.on_signal(signal.SIGUSR1, lambda: note("usr1"))
        reactor.call_later(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        reactor.call_later(60, reactor.stop)
        began = time.monotonic()
        reactor.run()
    assert seen == ["usr1"]
    assert time.monotonic() - began < 30  # woken, not by the timer above
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_thread_wakes_it(reactor: Reactor) -> None:
    where: list[int] = []

    def note() -> None:
        where.append(threading.get_ident())
        reactor.stop()

    thread = threading.Thread(target=lambda: reactor.call_from_thread(note))
    thread.start()
    began = time.monotonic()
    reactor.run()
    thread.join()
    assert where == [threading.get_ident()]
    assert time.monotonic() - began < 30  # woken, not by the timer above


def test_a_forgotten_file_is_not_called(reactor: Reactor) -> None:
    reading, writing = os.pipe()
    calls: list[bytes] = []

    def read() -> None:
        calls.append(os.read(reading, 1))
        reactor.forget(reading)

    reactor.on_ready(reading, selectors.EVENT_READ, read)
    os.write(writing, b"ab")
    reactor.call_later(0.2, reactor.stop)
    reactor.run()
    os.close(reading)
    os.close(writing)
    assert calls == [b"a"]


def test_waiting_costs_no_processor_time(reactor: Reactor) -> None:
    reactor.call_later(1, reactor.stop)
    began = time.process_time()
    reactor.run()
    assert time.process_time() - began < 0.1
