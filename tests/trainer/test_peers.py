"""The peers that each task waits for, and the answer of an address."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.trainer.clocked import Answers, Clocked
from trainer import peers
from trainer.event_loop import EventLoop
from trainer.peers import AddressWatch, ConnectionProber, PeerWait, awaited, connect_error, watched_chief, watched_workers
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
def loop() -> Iterator[EventLoop]:
    with EventLoop() as made:
        made.call_later(60, made.stop)
        yield made


def answers(loop: EventLoop, addresses: list[str]) -> dict[str, str | None]:
    """Ask each address once."""
    found: dict[str, str | None] = {}

    def tell(address: str, answer: str | None) -> None:
        found[address] = answer
        if len(found) == len(addresses):
            loop.stop()

    prober = ConnectionProber(loop)
    for address in addresses:
        prober.ask(address, lambda answer, address=address: tell(address, answer))  # type: ignore[misc]
    loop.run()
    return found


def test_answers_say_in_words_what_is_wrong(loop: EventLoop, ports: Any) -> None:
    there, refusing = ports.address(), ports.address()
    ports.listen(there)
    unknown = "worker-7.nowhere.invalid:2222"
    assert answers(loop, [there, refusing, unknown]) == {there: None, refusing: "connection refused", unknown: "name not known yet"}


def test_a_name_with_several_addresses_is_there_when_one_answers(loop: EventLoop, ports: Any) -> None:
    address = ports.address()
    ports.listen(address)
    name = address.replace("127.0.0.1", "localhost")  # ::1, where nobody listens, comes first on most machines
    assert answers(loop, [name]) == {name: None}


def test_no_name_is_looked_up_before_peers_may_have_one(loop: EventLoop, ports: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ports.address()
    ports.listen(address)
    looked: list[float] = []
    real = socket.getaddrinfo

    def look_up(host: str, port: int, **options: Any) -> Any:
        if options.get("flags") != socket.AI_NUMERICHOST:
            looked.append(time.monotonic())
        return real(host, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    name = address.replace("127.0.0.1", "localhost")
    # An address in numbers asks nobody, so it does not wait.
    with monkeypatch.context() as patched:
        patched.setattr(peers, "_DNS_DELAY", 1000.0)
        assert answers(loop, [address]) == {address: None}
    assert not looked
    began = time.monotonic()
    assert answers(loop, [name]) == {name: None}
    assert looked[0] - began > 1.4


def test_a_server_that_takes_no_connection_gives_no_answer(loop: EventLoop) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        bound = full.getsockname()
        held = [socket.socket() for _ in range(4)]
        for connection in held:
            connection.setblocking(False)
            connection.connect_ex(bound)
        address = f"127.0.0.1:{bound[1]}"
        found = answers(loop, [address])
        for connection in held:
            connection.close()
    assert found == {address: "no answer"}


def test_a_port_is_not_there_because_it_reached_itself() -> None:
    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        connection.connect(connection.getsockname())  # what the kernel may do by itself on a free local port
        assert connect_error(connection) == "connection refused"


def test_peers_need_not_be_there_at_the_same_time(loop: EventLoop, ports: Any) -> None:
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
        loop.stop()

    def timed_out(_missing: list[dict[str, str]]) -> None:
        pytest.fail("the time has not passed")

    peers = {"ps-0": first, "ps-1": second}
    PeerWait(loop, ConnectionProber(loop), peers, timeout=15, waiting=waiting, complete=complete, timed_out=timed_out, first=0.3)
    loop.run()
    assert told == [[{"task": "ps-1", "address": second, "reason": "connection refused"}]]
    assert len(completed) == 1


def test_with_nobody_to_wait_for_nothing_is_told(loop: EventLoop) -> None:
    def never(*_: Any) -> None:
        pytest.fail("nobody was waited for")

    PeerWait(loop, ConnectionProber(loop), {}, timeout=0.1, waiting=never, complete=never, timed_out=never, first=0.05)
    loop.call_later(0.4, loop.stop)
    loop.run()


class Watched:
    """Addresses that are watched, and what the watch told."""

    def __init__(self, loop: Clocked, addresses: list[str], timeout: float) -> None:
        self.prober, self.told = Answers(loop), list[str]()
        self.prober.reachable |= set(addresses)
        self.watch = AddressWatch(
            loop,
            self.prober,
            addresses,
            timeout=timeout,
            lost=lambda reason: self.told.append(f"lost: {reason}"),
            back=lambda: self.told.append("back"),
            timed_out=lambda reason: self.told.append(f"gone: {reason}"),
        )


@pytest.fixture
def clocked() -> Iterator[Clocked]:
    with Clocked() as made:
        yield made


def test_an_address_that_is_silent_for_too_long_is_gone_and_told_of_before(clocked: Clocked) -> None:
    watched = Watched(clocked, ["c:1"], timeout=600)
    clocked.pass_time(10_000)
    assert watched.told == []
    watched.prober.reachable.clear()
    clocked.pass_time(59)
    assert watched.told == []
    clocked.pass_time(12)
    assert watched.told == ["lost: connection refused"]
    clocked.pass_time(520)
    assert len(watched.told) == 1
    clocked.pass_time(20)
    assert watched.told[1:] == ["gone: connection refused"]
    asked = len(watched.prober.probed)
    clocked.pass_time(1000)
    assert len(watched.prober.probed) == asked


def test_an_address_that_answers_again_in_time_is_not_gone(clocked: Clocked) -> None:
    watched = Watched(clocked, ["c:1"], timeout=4)
    watched.prober.reachable.clear()
    clocked.pass_time(3)
    watched.prober.reachable.add("c:1")
    clocked.pass_time(100)
    assert watched.told == ["lost: connection refused", "back"]
    watched.prober.reachable.clear()
    clocked.pass_time(3.9)  # its time begins again
    assert watched.told[2:] == ["lost: connection refused"]


def test_of_several_addresses_one_that_answers_is_enough(clocked: Clocked) -> None:
    watched = Watched(clocked, ["w0:1", "w1:1"], timeout=2)
    watched.prober.reachable -= {"w0:1"}
    clocked.pass_time(100)
    assert watched.told == []
    watched.prober.reachable.clear()
    clocked.pass_time(1)
    watched.prober.reachable.add("w0:1")
    clocked.pass_time(100)
    assert watched.told == ["lost: connection refused", "back"]
    watched.prober.reachable.clear()
    clocked.pass_time(3)
    assert watched.told[2:] == ["lost: connection refused", "gone: connection refused"]


def test_once_all_are_there_it_is_told_again_and_again_that_no_step_follows_until_one_does(clocked: Clocked) -> None:
    told: list[tuple[list[Any], float]] = []
    prober = Answers(clocked)
    wait = PeerWait(
        clocked,
        prober,
        {"ps-0": "a:1"},
        timeout=60,
        waiting=lambda missing, seconds: told.append((missing, seconds)),
        complete=lambda _seconds: None,
        timed_out=lambda _missing: pytest.fail("it was there"),
        stalled=60,
    )
    clocked.pass_time(3)
    prober.reachable.add("a:1")
    clocked.pass_time(130)
    assert told == [([], 60), ([], 120)]
    wait.stepped()
    clocked.pass_time(130)
    assert len(told) == 2


def test_missing_peers_are_told_first_soon_then_seldom_and_at_each_change_until_the_time_is_over(clocked: Clocked) -> None:
    prober, told, ended = Answers(clocked), list[tuple[float, list[str]]](), list[str]()
    PeerWait(
        clocked,
        prober,
        {"ps-0": "a:1", "ps-1": "b:1"},
        timeout=60,
        waiting=lambda missing, seconds: told.append((seconds, [one["task"] for one in missing])),
        complete=lambda seconds: ended.append(f"complete after {seconds:g} s"),
        timed_out=lambda missing: ended.append(" ".join(f"{one['task']}: {one['reason']}" for one in missing)),
    )
    clocked.pass_time(4)
    assert told == []
    clocked.pass_time(12)
    assert told == [(5, ["ps-0", "ps-1"]), (15, ["ps-0", "ps-1"])]
    prober.reachable.add("a:1")
    clocked.pass_time(3)
    (changed, missing) = told[2]
    assert missing == ["ps-1"]
    assert 16 <= changed <= 18
    clocked.pass_time(100)
    assert ended == ["ps-1: connection refused"]
    assert [round(seconds) for seconds, _ in told[3:]] == [round(changed) + more for more in (10, 20, 30, 40)]
