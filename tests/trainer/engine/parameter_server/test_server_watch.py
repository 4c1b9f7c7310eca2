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

DEADLINE = 30.0  # seconds


class Server:
    """Accepts connections and keeps them open, as a server of gRPC does."""

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self.accepted.append(self._listener.accept()[0])
                with suppress(ConnectionError):  # some clients only check whether it answers
                    self.accepted[-1].sendall(b"settings")

    def has_accepted(self, number: int) -> bool:
        """Return whether it has accepted so many connections."""
        return len(self.accepted) >= number

    def end_connections(self) -> None:
        for connection in self.accepted:
            connection.close()

    def end(self) -> None:
        with suppress(OSError):  # already ended
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE)
        self._listener.close()
        self.end_connections()


@contextmanager
def watched(server: Server, is_leaving: Callable[[], bool] = lambda: False) -> Iterator[tuple[ServerWatch, list[str], list[str]]]:
    notices, exit_reasons = list[str](), list[str]()
    watch = ServerWatch({"ps-0": server.address}, {"ps-0": is_leaving}, notices.append, exit_reasons.append)
    try:
        yield watch, notices, exit_reasons
    finally:
        end_both(watch, server)


def end_both(watch: ServerWatch, server: Server) -> None:
    watch.stop()
    server.end()
    for thread in threading.enumerate():
        if thread.name == "server watch":
            thread.join(DEADLINE)


def loss_reason(watch: ServerWatch) -> str:
    """Wait until the watch reports a loss; return its reason."""

    def reason() -> str:
        try:
            watch.check()
        except PeerLostError as error:
            return str(error)
        return ""

    result: str = until("a loss", reason, DEADLINE, seen=lambda: watch.leaving)
    return result


@pytest.fixture
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watch check more often."""
    for name, seconds in {
        "_POLL_INTERVAL": 0.02,
        "_RENEW_INTERVAL": 0.1,
        "_ASK_INTERVAL": 0.02,
        "_FOLLOW_INTERVAL": 0.05,
        "_CALL_TIMEOUT": 0.2,
        "_SHUTDOWN_SECONDS": 1.0,
    }.items():
        monkeypatch.setattr(server_watch, name, seconds)


@pytest.mark.usefixtures("short_intervals")
def test_a_ps_whose_process_has_ended_is_lost() -> None:
    server = Server()
    with watched(server) as (watch, _, exit_reasons):
        until("a connection", lambda: server.accepted, seen=lambda: server.accepted)
        watch.check()
        server.end()
        assert loss_reason(watch) == f"ps-0 ({server.address}) was lost: connection refused"
    assert exit_reasons == []  # no call was inside TensorFlow


@pytest.mark.usefixtures("short_intervals")
def test_a_ps_that_closes_connections_and_accepts_others_is_not_lost() -> None:
    server = Server()
    with watched(server) as (watch, _, _):
        for _ in range(3):
            count = len(server.accepted) + 1
            until("another connection", functools.partial(server.has_accepted, count), seen=lambda: server.accepted)
            server.end_connections()
        until("more connections", lambda: len(server.accepted) > 6, seen=lambda: server.accepted)
        watch.check()


class HostName:
    """The name server.test, which resolves to `ips`, addresses on loopback."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ips = ["127.0.0.1"]
        getaddrinfo = socket.getaddrinfo

        def look_up(host: str, port: Any, *arguments: Any, **options: Any) -> list[Any]:
            hosts = self.ips if host == "server.test" else [host]
            return [address for name in hosts for address in getaddrinfo(name, port, *arguments, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.usefixtures("short_intervals")
def test_a_ps_at_another_address_is_lost_even_if_its_connection_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    server, name = Server(), HostName(monkeypatch)
    server.address = address = server.address.replace("127.0.0.1", "server.test")
    with watched(server) as (watch, _, _):
        until("a connection", lambda: server.accepted, seen=lambda: server.accepted)
        name.ips = ["127.0.0.2", "127.0.0.1"]  # one more address, which refuses connections
        before = len(server.accepted)
        until("another connection", lambda: len(server.accepted) > before + 1, seen=lambda: server.accepted)
        watch.check()
        name.ips = ["127.0.0.2"]
        assert loss_reason(watch) == f"ps-0 ({address}) was lost: its address was 127.0.0.1, and is 127.0.0.2"


@pytest.mark.usefixtures("short_intervals")
def test_a_call_that_does_not_return_ends_the_process() -> None:
    server = Server()
    with watched(server) as (_, _, exit_reasons), server_watch.tracked_call():
        until("a connection", lambda: server.accepted, seen=lambda: server.accepted)
        server.end()
        until("the end of the process", lambda: exit_reasons, seen=lambda: exit_reasons)
        assert exit_reasons[0] == f"ps-0 ({server.address}) was lost: connection refused"


@pytest.mark.usefixtures("short_intervals")
def test_a_ps_that_was_asked_to_stop_is_reported_once() -> None:
    answers = iter([False, True])
    with watched(Server(), lambda: next(answers)) as (watch, notices, _):
        until("an answer", lambda: watch.leaving, seen=lambda: notices)
        assert watch.leaving == {"ps-0"}
    assert notices == ["ps-0 was asked to stop: this task saves, and starts again when ps-0 is back"]


@pytest.mark.usefixtures("short_intervals")
@pytest.mark.parametrize("resets", [0, 1], ids=["", "after a connection that ends at once"])
def test_connections_to_a_worker_that_is_at_another_address_are_closed(resets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    server, name, notices = Server(), HostName(monkeypatch), list[str]()
    port = int(server.address.rpartition(":")[2])
    peer_of, unnamed = server_watch._peer, iter([("", 0)] * resets)
    monkeypatch.setattr(server_watch, "_peer", lambda connection: next(unnamed, None) or peer_of(connection))
    with (
        socket.create_server(("127.0.0.2", port)),
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as old,
        socket.create_connection(("127.0.0.2", port), timeout=DEADLINE) as new,
    ):
        watch = ServerWatch({"worker-0": f"server.test:{port}"}, {}, notices.append, notices.append)
        until("the first checks", lambda: len(server.accepted) > 2, seen=lambda: server.accepted)
        name.ips = ["127.0.0.2"]
        until("a notice", lambda: notices, seen=lambda: server.accepted)
        end_both(watch, server)
        assert old.recv(100) == b"settings"
        assert old.recv(100) == b""
        new.settimeout(0.1)
        with pytest.raises(TimeoutError):
            new.recv(100)
    assert notices == ["worker-0 is at 127.0.0.2, no longer at 127.0.0.1; this task connects to it again"]
