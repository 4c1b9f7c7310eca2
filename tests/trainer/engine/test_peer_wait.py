"""The wait of a task for its peers before TensorFlow connects, with real sockets."""

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
    """Return the chief of a cluster in which no task listens yet."""
    roles = {"chief": 1, "ps": 1, "worker": 2}
    cluster = {role: tuple(ports.address() for _ in range(count)) for role, count in roles.items()}
    return TaskConfig(cluster, "chief", 0)


class Waiting:
    """A task that waits in a thread until it is asked to stop."""

    def __init__(self, task: TaskConfig, strategy: Strategy) -> None:
        self.stop_requested = threading.Event()
        self.results: list[bool] = []
        wait = functools.partial(peer_wait.wait, task, strategy, PortHolder(task.address, 60), self.stop_requested.is_set, 60)
        self.thread = threading.Thread(target=lambda: self.results.append(wait()))
        self.thread.start()

    def state(self) -> str:
        """Return whether it still waits, and its results."""
        return f"{'it waits' if self.thread.is_alive() else 'it has ended'}, results {self.results}"


@pytest.fixture
def start_waiting(ports: Any) -> Iterator[Callable[..., Waiting]]:
    """Return a function that starts the wait of a task; the first call frees the task's own port."""
    started: list[Waiting] = []

    def start(task: TaskConfig, strategy: Strategy) -> Waiting:
        if not started:
            ports.close(task.address)
        started.append(Waiting(task, strategy))
        return started[-1]

    yield start
    for waiting in started:
        waiting.stop_requested.set()
        waiting.thread.join(10)
        assert not waiting.thread.is_alive()


def answers(task: TaskConfig) -> bool:
    """Return whether a task's port accepts a connection."""
    try:
        socket.create_connection(split_address(task.address or ""), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_chief_waits_for_all_its_servers_and_answers_meanwhile(chief: TaskConfig, ports: Any, start_waiting: Any) -> None:
    waiting = start_waiting(chief, "parameter_server")
    *others, last = chief.peers().values()
    for address in others:
        ports.listen(address)
    until("the chief's port to answer", lambda: answers(chief), seen=waiting.state)
    for _ in range(200):  # more connections than a socket keeps unaccepted
        assert answers(chief)
        time.sleep(0.005)
    assert not waiting.results
    ports.listen(last)
    assert until("the chief to continue", lambda: waiting.results, seen=waiting.state) == [True]
    assert not answers(chief)  # the port is TensorFlow's now


def test_a_task_that_is_asked_to_stop_ends_its_wait(chief: TaskConfig, start_waiting: Any) -> None:
    waiting = start_waiting(chief, "manual")
    until("the chief's port to answer", lambda: answers(chief), seen=waiting.state)
    waiting.stop_requested.set()
    assert until("the end of the wait", lambda: waiting.results, seen=waiting.state) == [False]


def test_a_chief_that_was_asked_to_stop_earlier_does_not_continue_even_if_all_peers_answer(chief: TaskConfig, ports: Any) -> None:
    for address in chief.peers().values():
        ports.listen(address)
    assert not peer_wait.wait(chief, "parameter_server", PortHolder(chief.address, 60), lambda: True, 60)


def test_a_worker_of_multi_worker_mirrored_waits_only_for_the_chief(chief: TaskConfig, ports: Any, start_waiting: Any) -> None:
    worker = replace(chief, role="worker", index=1, cluster={role: chief.cluster[role] for role in ("chief", "worker")})
    waiting = start_waiting(worker, "multi_worker_mirrored")
    until("the worker's port to answer", lambda: answers(worker), seen=waiting.state)
    assert not waiting.results
    ports.listen(chief.address)
    assert until("the worker to continue", lambda: waiting.results, seen=waiting.state) == [True]


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "single", "mirrored"])
def test_chiefs_of_other_strategies_do_not_wait(strategy: Strategy, chief: TaskConfig) -> None:
    assert peer_wait.wait(chief, strategy, PortHolder(chief.address, 60), lambda: True, 60)


def test_a_peer_that_does_not_answer_in_time_is_named(chief: TaskConfig, ports: Any) -> None:
    ports.close(chief.address)
    ports.listen(chief.cluster["worker"][0])
    missing = f"worker-1 ({chief.cluster['worker'][1]}) was not there after 0.1 s: connection refused"
    with pytest.raises(PeerLostError, match=re.escape(missing)):
        peer_wait.wait(chief, "manual", PortHolder(chief.address, 60), lambda: False, 0.1)


def test_a_taken_port_is_left_for_tensorflow_to_report(chief: TaskConfig, start_waiting: Any) -> None:
    first = start_waiting(chief, "parameter_server")
    until("the chief's port to answer", lambda: answers(chief), seen=first.state)
    second = start_waiting(chief, "parameter_server")
    assert until("the second to continue", lambda: second.results, seen=second.state) == [True]
