"""Events that end a program that the chief runs, and others that do not."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.trainer.conftest import Ports
from tests.waiting import until
from trainer.engine.manual.watchdog import ProgramWatchdog
from trainer.exit_codes import ExitCode
from trainer.tf_config import split_address

INTERVAL = 0.3  # seconds between reports that the run is alive


@dataclass
class Exits:
    """The exit codes and reasons with which the watchdog would end this process."""

    reasons: list[tuple[ExitCode, str]] = field(default_factory=list)
    called: threading.Event = field(default_factory=threading.Event)

    def __call__(self, code: ExitCode, reason: str) -> None:
        self.reasons.append((code, reason))
        self.called.set()


@contextmanager
def watched(servers: dict[str, str], exits: Exits, *, stopped: bool = False, connected: bool = True) -> Iterator[list[float]]:
    alive: list[float] = []
    watch = ProgramWatchdog(
        servers, lambda: stopped, lambda: alive.append(time.monotonic()), exits, timeout=0.5, poll_interval=0.1, heartbeat_interval=INTERVAL
    )
    watch.start()
    if connected:
        watch.all_connected()
    try:
        yield alive
    finally:
        watch.stop()


def test_a_stop_ends_the_program() -> None:
    exits = Exits()
    with watched({}, exits, stopped=True):
        assert exits.called.wait(10)
    assert exits.reasons == [(ExitCode.STOPPED, "")]


def test_a_lost_server_is_named_after_the_timeout(ports: Ports) -> None:
    exits = Exits()
    answering, lost = ports.address(), ports.address()
    ports.listen(answering)
    start = time.monotonic()
    with watched({"worker-0": answering, "worker-1": lost}, exits):
        assert exits.called.wait(30)
    assert time.monotonic() - start >= 0.5
    assert exits.reasons == [(ExitCode.PEER_LOST, f"worker-1 ({lost}) is gone: connection refused for 0.5 s")]


def test_the_watchdog_waits_for_a_server_that_has_not_started_but_not_for_one_that_is_lost(ports: Ports) -> None:
    exits = Exits()
    late, lost = ports.address(), ports.address()
    ports.listen(lost)
    with watched({"worker-0": late, "worker-1": lost}, exits, connected=False) as alive:
        assert not exits.called.wait(3 * INTERVAL)
        assert alive == []  # nothing runs yet
        ports.close(lost)
        assert exits.called.wait(30)
    assert exits.reasons == [(ExitCode.PEER_LOST, f"worker-1 ({lost}) is gone: connection refused for 0.5 s")]


def test_servers_that_answer_do_not_end_the_program(ports: Ports) -> None:
    exits = Exits()
    address = ports.address()
    ports.listen(address)
    with watched({"worker-0": address}, exits) as alive:
        # This takes longer than the timeout of a silent server.
        until("three reports that the run is alive", lambda: len(alive) >= 3 or exits.reasons, seen=lambda: alive)
    assert exits.reasons == []


def greet(listener: socket.socket, accepted: list[socket.socket]) -> None:
    """Accept connections, and send on each the first message of gRPC, until the listener is shut down."""
    with suppress(OSError):
        while True:
            accepted.append(listener.accept()[0])
            accepted[-1].sendall(b"settings")


def test_a_server_whose_process_ended_is_detected_even_if_another_serves_at_its_address() -> None:
    exits, accepted = Exits(), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        watch = ProgramWatchdog({"worker-0": address}, lambda: False, lambda: None, exits, poll_interval=0.1)
        serving = threading.Thread(target=greet, args=(listener, accepted))
        serving.start()
        watch.start()
        try:
            watch.all_connected()
            until("the third connection", lambda: len(accepted) >= 3, seen=lambda: accepted)
            listener.shutdown(socket.SHUT_RDWR)
            serving.join()
            for opened in (listener, *accepted):
                opened.close()
            with socket.create_server(split_address(address)) as another:
                accepted = [another.accept()[0] for _ in range(3)]
                assert watch.ended() == ["worker-0"]
        finally:
            watch.stop()
            for connection in accepted:
                connection.close()
    assert exits.reasons == []
