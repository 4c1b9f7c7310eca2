"""Events that end a program that the chief runs, and others that do not."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.trainer.conftest import Ports
from tests.waiting import until
from trainer.engine.manual.watchdog import ServerWatchdog, unreachable
from trainer.exit_codes import ExitCode
from trainer.tf_config import split_address

SAY_EVERY = 0.3  # seconds


@dataclass
class Left:
    """The watch's reasons when it wanted to end this process."""

    said: list[tuple[ExitCode, str]] = field(default_factory=list)
    told: threading.Event = field(default_factory=threading.Event)

    def __call__(self, code: ExitCode, reason: str) -> None:
        self.said.append((code, reason))
        self.told.set()


@contextmanager
def watched(servers: dict[str, str], left: Left, *, stopped: bool = False, there: bool = True) -> Iterator[list[float]]:
    alive: list[float] = []
    watch = ServerWatchdog(
        servers, lambda: stopped, lambda: alive.append(time.monotonic()), left, timeout=0.5, poll_interval=0.1, alive_interval=SAY_EVERY
    )
    watch.start()
    if there:
        watch.all_connected()
    try:
        yield alive
    finally:
        watch.stop()


def test_a_stop_ends_the_program() -> None:
    left = Left()
    with watched({}, left, stopped=True):
        assert left.told.wait(10)
    assert left.said == [(ExitCode.STOPPED, "")]


def test_a_server_that_is_gone_is_named_after_a_while(ports: Ports) -> None:
    left = Left()
    here, gone = ports.address(), ports.address()
    ports.listen(here)
    began = time.monotonic()
    with watched({"worker-0": here, "worker-1": gone}, left):
        assert left.told.wait(30)
    assert time.monotonic() - began >= 0.5
    assert left.said == [(ExitCode.PEER_LOST, f"worker-1 ({gone}) is gone: connection refused for 0.5 s")]


def test_a_server_that_was_never_there_is_awaited_and_one_that_was_is_not(ports: Ports) -> None:
    left = Left()
    late, lost = ports.address(), ports.address()
    ports.listen(lost)
    with watched({"worker-0": late, "worker-1": lost}, left, there=False) as alive:
        assert not left.told.wait(3 * SAY_EVERY)
        assert alive == []  # nothing runs yet
        ports.close(lost)
        assert left.told.wait(30)
    assert left.said == [(ExitCode.PEER_LOST, f"worker-1 ({lost}) is gone: connection refused for 0.5 s")]


def test_servers_that_answer_are_left_alone(ports: Ports) -> None:
    left = Left()
    here = ports.address()
    ports.listen(here)
    with watched({"worker-0": here}, left) as alive:
        # Twice as long as the timeout of a silent one.
        until("run.json to say three times that the run is alive", lambda: len(alive) >= 3 or left.said, seen=lambda: alive)
    assert left.said == []


def test_why_an_address_gives_no_connection(ports: Ports) -> None:
    address = ports.address()
    assert unreachable(address, 1) == "connection refused"
    assert unreachable("no-such-host.invalid:1", 1) is not None
    ports.listen(address)
    assert unreachable(address, 1) is None


def greet(listener: socket.socket, taken: list[socket.socket]) -> None:
    """Take connections and send on each what gRPC sends unasked, until the listener is shut down."""
    with suppress(OSError):
        while True:
            taken.append(listener.accept()[0])
            taken[-1].sendall(b"settings")


def test_a_server_whose_process_ended_is_known_though_another_serves_in_its_place() -> None:
    left, taken = Left(), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        watch = ServerWatchdog({"worker-0": address}, lambda: False, lambda: None, left, poll_interval=0.1)
        serving = threading.Thread(target=greet, args=(listener, taken))
        serving.start()
        watch.start()
        try:
            watch.all_connected()
            until("the third connection", lambda: len(taken) >= 3, seen=lambda: taken)
            listener.shutdown(socket.SHUT_RDWR)
            serving.join()
            for one in (listener, *taken):
                one.close()
            with socket.create_server(split_address(address)) as another:
                taken = [another.accept()[0] for _ in range(3)]
                assert watch.ended() == ["worker-0"]
        finally:
            watch.stop()
            for one in taken:
                one.close()
    assert left.said == []
