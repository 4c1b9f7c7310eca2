"""The peers that each task waits for, and the probes of their addresses."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.trainer.clocked import FakeClockLoop, FakeProber
from trainer import peers
from trainer.event_loop import EventLoop
from trainer.peers import ConnectionProber, PeerWait, ReachabilityMonitor, connect_error, required_peers, watched_chief, watched_workers
from trainer.strategies import Strategy
from trainer.tf_config import TaskConfig, parse

PS = {"chief": ["c:1"], "worker": ["w0:1", "w1:1"], "ps": ["p0:1"]}
ALL_REDUCE = {"chief": ["c:1"], "worker": ["w0:1", "w1:1"]}


def task(cluster: dict[str, list[str]], role: str, index: int = 0) -> TaskConfig:
    return parse(json.dumps({"cluster": cluster, "task": {"type": role, "index": index}}))


@pytest.mark.parametrize(
    "strategy, cluster, role, expected",
    [
        ("parameter_server", PS, "chief", {"worker-0", "worker-1", "ps-0"}),
        ("parameter_server", PS, "worker", set()),
        ("parameter_server", PS, "ps", set()),
        ("manual", PS, "chief", {"worker-0", "worker-1", "ps-0"}),
        ("manual", PS, "worker", set()),
        ("parameter_server", PS, "evaluator", set()),
        ("multi_worker_mirrored", ALL_REDUCE, "chief", {"worker-0", "worker-1"}),
        ("multi_worker_mirrored", ALL_REDUCE, "worker", {"chief", "worker-1"}),
        ("multi_worker_mirrored", ALL_REDUCE, "evaluator", set()),
        ("single", {"chief": ["c:1"]}, "chief", set()),
        ("mirrored", {"chief": ["c:1"]}, "chief", set()),
    ],
)
def test_each_strategy_decides_the_peers_that_a_task_waits_for(
    strategy: Strategy, cluster: dict[str, list[str]], role: str, expected: set[str]
) -> None:
    assert set(required_peers(task(cluster, role), strategy)) == expected


def test_only_servers_watch_the_chief() -> None:
    assert watched_chief(task(PS, "worker", 1), "parameter_server") == "c:1"
    assert watched_chief(task(PS, "ps"), "parameter_server") == "c:1"
    assert watched_chief(task(PS, "worker"), "manual") == "c:1"
    assert watched_chief(task(PS, "chief"), "parameter_server") is None
    assert watched_chief(task(PS, "evaluator"), "parameter_server") is None
    assert watched_chief(task(ALL_REDUCE, "worker"), "multi_worker_mirrored") is None


def test_a_chief_watches_the_workers_that_it_drives() -> None:
    workers = watched_workers(task(PS, "chief"), "parameter_server")
    assert workers
    assert list(workers) == [address for name, address in task(PS, "chief").tasks().items() if name.startswith("worker-")]
    assert watched_workers(task(PS, "chief"), "manual") == workers
    assert watched_workers(task(PS, "ps"), "parameter_server") == ()
    assert watched_workers(task(ALL_REDUCE, "chief"), "multi_worker_mirrored") == ()


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    with EventLoop() as event_loop:
        event_loop.call_later(60, event_loop.stop)
        yield event_loop


def probe(loop: EventLoop, addresses: list[str]) -> dict[str, str | None]:
    """Probe each address once; return its error, None if it answers."""
    errors: dict[str, str | None] = {}

    def record(address: str, error: str | None) -> None:
        errors[address] = error
        if len(errors) == len(addresses):
            loop.stop()

    prober = ConnectionProber(loop)
    for address in addresses:
        prober.ask(address, lambda error, address=address: record(address, error))  # type: ignore[misc]
    loop.run()
    return errors


def test_the_reason_of_a_failed_connection_is_reported(loop: EventLoop, ports: Any) -> None:
    reachable, refusing = ports.address(), ports.address()
    ports.listen(reachable)
    unknown = "worker-7.nowhere.invalid:2222"
    assert probe(loop, [reachable, refusing, unknown]) == {reachable: None, refusing: "connection refused", unknown: "name not known yet"}


def test_a_name_with_several_addresses_is_reachable_if_one_answers(loop: EventLoop, ports: Any) -> None:
    address = ports.address()
    ports.listen(address)
    name = address.replace("127.0.0.1", "localhost")  # ::1, where nothing listens, comes first on most machines
    assert probe(loop, [name]) == {name: None}


def test_no_name_is_looked_up_before_peers_can_have_one(loop: EventLoop, ports: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ports.address()
    ports.listen(address)
    lookups: list[float] = []
    getaddrinfo = socket.getaddrinfo

    def look_up(host: str, port: int, **options: Any) -> Any:
        if options.get("flags") != socket.AI_NUMERICHOST:
            lookups.append(time.monotonic())
        return getaddrinfo(host, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    name = address.replace("127.0.0.1", "localhost")
    # A numeric address needs no lookup, so it does not wait.
    with monkeypatch.context() as patched:
        patched.setattr(peers, "_DNS_DELAY", 1000.0)
        assert probe(loop, [address]) == {address: None}
    assert not lookups
    began = time.monotonic()
    assert probe(loop, [name]) == {name: None}
    assert lookups[0] - began > 1.4


def test_a_server_that_takes_no_connection_gives_no_answer(loop: EventLoop) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        bound = full.getsockname()
        connections = [socket.socket() for _ in range(4)]
        for connection in connections:
            connection.setblocking(False)
            connection.connect_ex(bound)
        address = f"127.0.0.1:{bound[1]}"
        errors = probe(loop, [address])
        for connection in connections:
            connection.close()
    assert errors == {address: "no answer"}


def test_a_connection_to_itself_is_no_answer_of_a_port() -> None:
    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        connection.connect(connection.getsockname())  # the kernel may do so by itself on a free local port
        assert connect_error(connection) == "connection refused"


def test_peers_need_not_be_reachable_at_the_same_time(loop: EventLoop, ports: Any) -> None:
    first, second = ports.address(), ports.address()
    ports.listen(first)
    reports: list[list[dict[str, str]]] = []
    completed: list[float] = []

    def waiting(missing: list[dict[str, str]], _seconds: float) -> None:
        if not reports:
            ports.close(first)
            ports.listen(second)
        reports.append(missing)

    def complete(seconds: float) -> None:
        completed.append(seconds)
        loop.stop()

    def timed_out(_missing: list[dict[str, str]]) -> None:
        pytest.fail("the time has not passed")

    addresses = {"ps-0": first, "ps-1": second}
    PeerWait(
        loop,
        ConnectionProber(loop),
        addresses,
        timeout=15,
        on_waiting=waiting,
        on_complete=complete,
        on_timeout=timed_out,
        first_report_after=0.3,
    )
    loop.run()
    assert reports == [[{"task": "ps-1", "address": second, "reason": "connection refused"}]]
    assert len(completed) == 1


def test_nothing_is_reported_without_peers(loop: EventLoop) -> None:
    def never(*_: Any) -> None:
        pytest.fail("there is no peer to wait for")

    PeerWait(loop, ConnectionProber(loop), {}, timeout=0.1, on_waiting=never, on_complete=never, on_timeout=never, first_report_after=0.05)
    loop.call_later(0.4, loop.stop)
    loop.run()


class Watched:
    """Watched addresses, and the events of the watch."""

    def __init__(self, loop: FakeClockLoop, addresses: list[str], timeout: float) -> None:
        self.prober, self.events = FakeProber(loop), list[str]()
        self.prober.reachable |= set(addresses)
        self.watch = ReachabilityMonitor(
            loop,
            self.prober,
            addresses,
            timeout=timeout,
            on_unreachable=lambda reason: self.events.append(f"lost: {reason}"),
            on_answer=lambda: self.events.append("back"),
            on_timeout=lambda reason: self.events.append(f"gone: {reason}"),
        )


@pytest.fixture
def clocked() -> Iterator[FakeClockLoop]:
    with FakeClockLoop() as fake_clock_loop:
        yield fake_clock_loop


def test_a_silent_address_is_reported_as_lost_and_later_as_gone(clocked: FakeClockLoop) -> None:
    watched = Watched(clocked, ["c:1"], timeout=600)
    clocked.advance(10_000)
    assert watched.events == []
    watched.prober.reachable.clear()
    clocked.advance(59)
    assert watched.events == []
    clocked.advance(12)
    assert watched.events == ["lost: connection refused"]
    clocked.advance(520)
    assert len(watched.events) == 1
    clocked.advance(20)
    assert watched.events[1:] == ["gone: connection refused"]
    probes = len(watched.prober.probed)
    clocked.advance(1000)
    assert len(watched.prober.probed) == probes


def test_an_address_that_answers_again_in_time_is_not_gone(clocked: FakeClockLoop) -> None:
    watched = Watched(clocked, ["c:1"], timeout=4)
    watched.prober.reachable.clear()
    clocked.advance(3)
    watched.prober.reachable.add("c:1")
    clocked.advance(100)
    assert watched.events == ["lost: connection refused", "back"]
    watched.prober.reachable.clear()
    clocked.advance(3.9)  # its time begins again
    assert watched.events[2:] == ["lost: connection refused"]


def test_of_several_addresses_one_that_answers_is_enough(clocked: FakeClockLoop) -> None:
    watched = Watched(clocked, ["w0:1", "w1:1"], timeout=2)
    watched.prober.reachable -= {"w0:1"}
    clocked.advance(100)
    assert watched.events == []
    watched.prober.reachable.clear()
    clocked.advance(1)
    watched.prober.reachable.add("w0:1")
    clocked.advance(100)
    assert watched.events == ["lost: connection refused", "back"]
    watched.prober.reachable.clear()
    clocked.advance(3)
    assert watched.events[2:] == ["lost: connection refused", "gone: connection refused"]


def test_a_missing_step_is_reported_repeatedly_once_all_peers_are_reached(clocked: FakeClockLoop) -> None:
    reports: list[tuple[list[Any], float]] = []
    prober = FakeProber(clocked)
    wait = PeerWait(
        clocked,
        prober,
        {"ps-0": "a:1"},
        timeout=60,
        on_waiting=lambda missing, seconds: reports.append((missing, seconds)),
        on_complete=lambda _seconds: None,
        on_timeout=lambda _missing: pytest.fail("the peer was reachable"),
        no_step_report=60,
    )
    clocked.advance(3)
    prober.reachable.add("a:1")
    clocked.advance(130)
    assert reports == [([], 60), ([], 120)]
    wait.note_step()
    clocked.advance(130)
    assert len(reports) == 2


def test_missing_peers_are_reported_soon_then_rarely_and_at_each_change_until_the_timeout(clocked: FakeClockLoop) -> None:
    prober, reports, outcomes = FakeProber(clocked), list[tuple[float, list[str]]](), list[str]()
    PeerWait(
        clocked,
        prober,
        {"ps-0": "a:1", "ps-1": "b:1"},
        timeout=60,
        on_waiting=lambda missing, seconds: reports.append((seconds, [peer["task"] for peer in missing])),
        on_complete=lambda seconds: outcomes.append(f"complete after {seconds:g} s"),
        on_timeout=lambda missing: outcomes.append(" ".join(f"{peer['task']}: {peer['reason']}" for peer in missing)),
    )
    clocked.advance(4)
    assert reports == []
    clocked.advance(12)
    assert reports == [(5, ["ps-0", "ps-1"]), (15, ["ps-0", "ps-1"])]
    prober.reachable.add("a:1")
    clocked.advance(3)
    (changed, missing) = reports[2]
    assert missing == ["ps-1"]
    assert 16 <= changed <= 18
    clocked.advance(100)
    assert outcomes == ["ps-1: connection refused"]
    assert [round(seconds) for seconds, _ in reports[3:]] == [round(changed) + more for more in (10, 20, 30, 40)]
