"""The chief's watch over its ps: its notices, and when it ends the process."""

import functools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.waiting import until
from trainer.engine.parameter_server import server_watch
from trainer.engine.parameter_server.server_watch import ServerWatch
from trainer.engine.session import PeerLostError

WITHIN = 30.0  # seconds; a deadline, not a measure


class Server:
    """Takes connections and keeps them, as a server of gRPC does."""

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.taken: list[socket.socket] = []
        self._taking = threading.Thread(target=self._take, daemon=True)
        self._taking.start()

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                self.taken.append(self._listener.accept()[0])
                with suppress(ConnectionError):  # some only look whether it is there
                    self.taken[-1].sendall(b"settings")

    def has_taken(self, number: int) -> bool:
        """Return whether it has taken so many connections."""
        return len(self.taken) >= number

    def end_connections(self) -> None:
        for one in self.taken:
            one.close()

    def end(self) -> None:
        with suppress(OSError):  # it was ended before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._taking.join(WITHIN)
        self._listener.close()
        self.end_connections()


@contextmanager
def watched(server: Server, ask: Callable[[], bool] = lambda: False) -> Iterator[tuple[ServerWatch, list[str], list[str]]]:
    notices, left = list[str](), list[str]()
    watch = ServerWatch({"ps-0": server.address}, {"ps-0": ask}, notices.append, left.append)
    try:
        yield watch, notices, left
    finally:
        ended(watch, server)


def ended(watch: ServerWatch, server: Server) -> None:
    watch.stop()
    server.end()
    for thread in threading.enumerate():
        if thread.name == "server watch":
            thread.join(WITHIN)


def lost(watch: ServerWatch) -> str:
    """Return the reason of a loss, once there is one."""

    def reason() -> str:
        try:
            watch.check()
        except PeerLostError as error:
            return str(error)
        return ""

    found: str = until("a loss", reason, WITHIN, seen=lambda: watch.leaving)
    return found


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watch look more often."""
    for name, seconds in {
        "_POLL_INTERVAL": 0.02,
        "_RENEW_INTERVAL": 0.1,
        "_ASK_INTERVAL": 0.02,
        "_FOLLOW_INTERVAL": 0.05,
        "_CALL_TIMEOUT": 0.2,
        "_SHUTDOWN_SECONDS": 1.0,
    }.items():
        monkeypatch.setattr(server_watch, name, seconds)


@pytest.mark.usefixtures("soon")
def test_a_ps_whose_process_has_ended_is_lost() -> None:
    server = Server()
    with watched(server) as (watch, _, left):
        until("a connection", lambda: server.taken, seen=lambda: server.taken)
        watch.check()
        server.end()
        assert lost(watch) == f"ps-0 ({server.address}) was lost: connection refused"
    assert left == []  # nobody was inside TensorFlow


@pytest.mark.usefixtures("soon")
def test_a_ps_that_closes_connections_and_gives_others_is_not_lost() -> None:
    server = Server()
    with watched(server) as (watch, _, _):
        for _ in range(3):
            more = len(server.taken) + 1
            until("another connection", functools.partial(server.has_taken, more), seen=lambda: server.taken)
            server.end_connections()
        until("more connections", lambda: len(server.taken) > 6, seen=lambda: server.taken)
        watch.check()


class Name:
    """A name that leads where it is told to, though only on loopback."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ips = ["127.0.0.1"]
        known = socket.getaddrinfo

        def look_up(host: str, port: Any, *arguments: Any, **options: Any) -> list[Any]:
            hosts = self.ips if host == "server.test" else [host]
            return [found for one in hosts for found in known(one, port, *arguments, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.usefixtures("soon")
def test_a_ps_at_another_address_is_lost_though_its_connection_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    server, name = Server(), Name(monkeypatch)
    server.address = there = server.address.replace("127.0.0.1", "server.test")
    with watched(server) as (watch, _, _):
        until("a connection", lambda: server.taken, seen=lambda: server.taken)
        name.ips = ["127.0.0.2", "127.0.0.1"]  # one more, which gives none
        before = len(server.taken)
        until("another connection", lambda: len(server.taken) > before + 1, seen=lambda: server.taken)
        watch.check()
        name.ips = ["127.0.0.2"]
        assert lost(watch) == f"ps-0 ({there}) was lost: its address was 127.0.0.1, and is 127.0.0.2"


@pytest.mark.usefixtures("soon")
def test_a_call_that_does_not_come_back_ends_the_process() -> None:
    server = Server()
    with watched(server) as (_, _, left), server_watch.tracked_call():
        until("a connection", lambda: server.taken, seen=lambda: server.taken)
        server.end()
        until("the end of the process", lambda: left, seen=lambda: left)
        assert left[0] == f"ps-0 ({server.address}) was lost: connection refused"


@pytest.mark.usefixtures("soon")
def test_a_ps_that_was_asked_to_stop_is_told_once() -> None:
    answers = iter([False, True])
    with watched(Server(), lambda: next(answers)) as (watch, notices, _):
        until("an answer", lambda: watch.leaving, seen=lambda: notices)
        assert watch.leaving == {"ps-0"}
    assert notices == ["ps-0 was asked to stop: this task saves, and starts again when ps-0 is back"]


@pytest.mark.usefixtures("soon")
def test_connections_to_a_worker_that_is_at_another_address_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    server, name, notices = Server(), Name(monkeypatch), list[str]()
    port = int(server.address.rpartition(":")[2])
    with (
        socket.create_server(("127.0.0.2", port)),
        socket.create_connection(("127.0.0.1", port), timeout=WITHIN) as mine,
        socket.create_connection(("127.0.0.2", port), timeout=WITHIN) as elsewhere,
    ):
        watch = ServerWatch({"worker-0": f"server.test:{port}"}, {}, notices.append, notices.append)
        until("a look", lambda: len(server.taken) > 2, seen=lambda: server.taken)
        name.ips = ["127.0.0.2"]
        until("a notice", lambda: notices, seen=lambda: server.taken)
        ended(watch, server)
        assert mine.recv(100) == b"settings"
        assert mine.recv(100) == b""
        elsewhere.settimeout(0.1)
        with pytest.raises(TimeoutError):
            elsewhere.recv(100)
    assert notices == ["worker-0 is at 127.0.0.2, no longer at 127.0.0.1; this task connects to it again"]
