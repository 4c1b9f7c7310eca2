"""Who waits for whom, and what an address answers."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from trainer.peers import PeerWait, Prober, awaited, outcome, watched_chief, watched_workers
from trainer.reactor import Reactor
from trainer.strategies import Strategy
from trainer.tf_config import TaskConfig, parse

PS = {"chief": ["c:1"], "worker": ["w0:1", "w1:1"], "ps": ["p0:1"]}
RING = {"chief": ["c:1"], "worker": ["w0:1", "w1:1"]}


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
        ("multi_worker_mirrored", RING, "chief", {"worker-0", "worker-1"}),
        ("multi_worker_mirrored", RING, "worker", {"chief", "worker-1"}),
        ("multi_worker_mirrored", RING, "evaluator", set()),
        ("single", {"chief": ["c:1"]}, "chief", set()),
        ("mirrored", {"chief": ["c:1"]}, "chief", set()),
    ],
)
def test_who_waits_for_whom(strategy: Strategy, cluster: dict[str, list[str]], role: str, expected: set[str]) -> None:
    assert set(awaited(task(cluster, role), strategy)) == expected


def test_only_servers_watch_the_chief() -> None:
    assert watched_chief(task(PS, "worker", 1), "parameter_server") == "c:1"
    assert watched_chief(task(PS, "ps"), "parameter_server") == "c:1"
    assert watched_chief(task(PS, "worker"), "manual") == "c:1"
    assert watched_chief(task(PS, "chief"), "parameter_server") is None
    assert watched_chief(task(PS, "evaluator"), "parameter_server") is None
    assert watched_chief(task(RING, "worker"), "multi_worker_mirrored") is None


def test_the_chief_that_drives_them_watches_its_workers() -> None:
    workers = watched_workers(task(PS, "chief"), "parameter_server")
    assert workers
    assert list(workers) == [address for name, address in task(PS, "chief").tasks().items() if name.startswith("worker-")]
    assert watched_workers(task(PS, "chief"), "manual") == workers
    assert watched_workers(task(PS, "ps"), "parameter_server") == ()
    assert watched_workers(task(RING, "chief"), "multi_worker_mirrored") == ()


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    with Reactor() as made:
        made.call_later(20, made.stop)
        yield made


def answers(reactor: Reactor, addresses: list[str]) -> dict[str, str | None]:
    """Ask each address once."""
    found: dict[str, str | None] = {}

    def tell(address: str, answer: str | None) -> None:
        found[address] = answer
        if len(found) == len(addresses):
            reactor.stop()

    prober = Prober(reactor)
    for address in addresses:
        prober.ask(address, lambda answer, address=address: tell(address, answer))  # type: ignore[misc]
    reactor.run()
    return found


def test_answers_say_in_words_what_is_wrong(reactor: Reactor, ports: Any) -> None:
    there, refusing = ports.address(), ports.address()
    ports.listen(there)
    unknown = "worker-7.nowhere.invalid:2222"
    assert answers(reactor, [there, refusing, unknown]) == {there: None, refusing: "connection refused", unknown: "name not known yet"}


def test_a_name_with_several_addresses_is_there_when_one_answers(reactor: Reactor, ports: Any) -> None:
    address = ports.address()
    ports.listen(address)
    name = address.replace("127.0.0.1", "localhost")  # ::1, where nobody listens, comes first on most machines
    assert answers(reactor, [name]) == {name: None}


def test_no_name_is_looked_up_before_peers_may_have_one(reactor: Reactor, ports: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ports.address()
    ports.listen(address)
    looked: list[float] = []
    real = socket.getaddrinfo

    def look_up(host: str, port: int, **options: Any) -> Any:
        if options.get("flags") != socket.AI_NUMERICHOST:
            looked.append(time.monotonic())
        return real(host, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    began = time.monotonic()
    name = address.replace("127.0.0.1", "localhost")
    # An address in numbers asks nobody, so it does not wait.
    assert answers(reactor, [address]) == {address: None}
    assert time.monotonic() - began < 1
    assert not looked
    assert answers(reactor, [name]) == {name: None}
    assert looked[0] - began > 1.4


def test_a_server_that_takes_no_connection_gives_no_answer(reactor: Reactor) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        place = full.getsockname()
        held = [socket.socket() for _ in range(4)]
        for connection in held:
            connection.setblocking(False)
            connection.connect_ex(place)
        address = f"127.0.0.1:{place[1]}"
        began = time.monotonic()
        found = answers(reactor, [address])
        for connection in held:
            connection.close()
    assert found == {address: "no answer"}
    assert time.monotonic() - began < 5


def test_a_port_is_not_there_because_it_reached_itself() -> None:
    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        connection.connect(connection.getsockname())  # what the kernel may do by itself on a free local port
        assert outcome(connection) == "connection refused"


def test_peers_need_not_be_there_at_the_same_time(reactor: Reactor, ports: Any) -> None:
    first, second = ports.address(), ports.address()
    ports.listen(first)
    told: list[list[dict[str, str]]] = []
    completed: list[float] = []

    def waiting(missing: list[dict[str, str]], _seconds: float) -> None:
        if not told:
            ports.close(first)
            ports.listen(second)
        told.append(missing)

    def complete(seconds: float) -> None:
        completed.append(seconds)
        reactor.stop()

    def timed_out(_missing: list[dict[str, str]]) -> None:
        pytest.fail("the time has not passed")

    peers = {"ps-0": first, "ps-1": second}
    PeerWait(reactor, Prober(reactor), peers, timeout=15, waiting=waiting, complete=complete, timed_out=timed_out, first=0.3)
    reactor.run()
    assert told == [[{"task": "ps-1", "address": second, "reason": "connection refused"}]]
    assert len(completed) == 1


def test_with_nobody_to_wait_for_nothing_is_told(reactor: Reactor) -> None:
    def never(*_: Any) -> None:
        pytest.fail("nobody was waited for")

    PeerWait(reactor, Prober(reactor), {}, timeout=0.1, waiting=never, complete=never, timed_out=never, first=0.05)
    reactor.call_later(0.4, reactor.stop)
    reactor.run()
