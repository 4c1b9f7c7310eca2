"""The peers that a task waits for before TensorFlow connects, with real sockets."""

import functools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.waiting import until
from trainer.engine import peer_wait
from trainer.engine.session import PeerLostError
from trainer.port_holder import PortHolder
from trainer.strategies import Strategy
from trainer.tf_config import TaskConfig, split_address


@pytest.fixture
def chief(ports: Any) -> TaskConfig:
    """Return the chief of a cluster none of whose tasks is there."""
    roles = {"chief": 1, "ps": 1, "worker": 2}
    cluster = {role: tuple(ports.address() for _ in range(count)) for role, count in roles.items()}
    return TaskConfig(cluster, "chief", 0)


class Waiting:
    """A task that waits in a thread until it is asked to stop."""

    def __init__(self, task: TaskConfig, strategy: Strategy) -> None:
        self.asked = threading.Event()
        self.results: list[bool] = []
        wait = functools.partial(peer_wait.wait, task, strategy, PortHolder(task.address, 60), self.asked.is_set, 60)
        self.thread = threading.Thread(target=lambda: self.results.append(wait()))
        self.thread.start()

    def state(self) -> str:
        """Return whether it still waits, and what came of it."""
        return f"{'it waits' if self.thread.is_alive() else 'it has ended'}, results {self.results}"


@pytest.fixture
def waiting(ports: Any) -> Iterator[Callable[..., Waiting]]:
    """Return what makes a task wait whose own port is free."""
    made: list[Waiting] = []

    def start(task: TaskConfig, strategy: Strategy) -> Waiting:
        if not made:
            ports.close(task.address)
        made.append(Waiting(task, strategy))
        return made[-1]

    yield start
    for one in made:
        one.asked.set()
        one.thread.join(10)
        assert not one.thread.is_alive()


def answers(task: TaskConfig) -> bool:
    """Return whether a task's port gives a connection."""
    try:
        socket.create_connection(split_address(task.address or ""), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_chief_waits_for_all_its_servers_and_answers_meanwhile(chief: TaskConfig, ports: Any, waiting: Any) -> None:
    one = waiting(chief, "parameter_server")
    *others, last = chief.peers().values()
    for address in others:
        ports.listen(address)
    until("the chief's port to answer", lambda: answers(chief), seen=one.state)
    for _ in range(200):  # more than a socket keeps that nobody takes
        assert answers(chief)
        time.sleep(0.005)
    assert not one.results
    ports.listen(last)
    assert until("the chief to go on", lambda: one.results, seen=one.state) == [True]
    assert not answers(chief)  # the port is TensorFlow's now


def test_who_is_asked_to_stop_waits_no_longer(chief: TaskConfig, waiting: Any) -> None:
    one = waiting(chief, "manual")
    until("the chief's port to answer", lambda: answers(chief), seen=one.state)
    one.asked.set()
    assert until("it to hear", lambda: one.results, seen=one.state) == [False]


def test_a_chief_that_was_asked_to_stop_before_does_not_go_on_though_all_are_there(chief: TaskConfig, ports: Any) -> None:
    for address in chief.peers().values():
        ports.listen(address)
    assert not peer_wait.wait(chief, "parameter_server", PortHolder(chief.address, 60), lambda: True, 60)


def test_a_worker_among_its_like_waits_for_the_chief_alone(chief: TaskConfig, ports: Any, waiting: Any) -> None:
    worker = replace(chief, role="worker", index=1, cluster={role: chief.cluster[role] for role in ("chief", "worker")})
    one = waiting(worker, "multi_worker_mirrored")
    until("the worker's port to answer", lambda: answers(worker), seen=one.state)
    assert not one.results
    ports.listen(chief.address)
    assert until("the worker to go on", lambda: one.results, seen=one.state) == [True]


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "single", "mirrored"])
def test_other_chiefs_wait_for_nobody(strategy: Strategy, chief: TaskConfig) -> None:
    assert peer_wait.wait(chief, strategy, PortHolder(chief.address, 60), lambda: True, 60)


def test_who_is_not_there_in_time_is_named(chief: TaskConfig, ports: Any) -> None:
    ports.close(chief.address)
    ports.listen(chief.cluster["worker"][0])
    missing = f"worker-1 ({chief.cluster['worker'][1]}) was not there after 0.1 s: connection refused"
    with pytest.raises(PeerLostError, match=re.escape(missing)):
        peer_wait.wait(chief, "manual", PortHolder(chief.address, 60), lambda: False, 0.1)


def test_a_port_that_is_taken_is_for_tensorflow_to_tell(chief: TaskConfig, waiting: Any) -> None:
    one = waiting(chief, "parameter_server")
    until("the chief's port to answer", lambda: answers(chief), seen=one.state)
    second = waiting(chief, "parameter_server")
    assert until("it to go on", lambda: second.results, seen=second.state) == [True]
