"""A port that answers for TensorFlow, with real sockets."""

import errno
import os
import socket
import threading

import pytest

from tests.waiting import until
from trainer.engine.connections import unreachable
from trainer.port_holder import PortHolder
from trainer.tf_config import split_address


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_it_answers_from_open_to_close_and_never_again(address: str) -> None:
    port = PortHolder(address, 60)
    assert unreachable(address, 1) == "connection refused"
    assert port.open()
    assert port.open()
    for _ in range(1100):  # more than the backlog of a socket that accepts none
        assert unreachable(address, 1) is None
    port.close()
    port.close()
    assert unreachable(address, 1) == "connection refused"
    assert not port.open()
    assert "port holder" not in {thread.name for thread in threading.enumerate()}


def test_a_taken_port_can_be_opened_once_it_is_free(address: str) -> None:
    port, other = PortHolder(address, 60), PortHolder(address, 60)
    assert other.open()
    assert not port.open()
    other.close()
    assert port.open()
    port.close()


def test_it_closes_even_if_shutdown_does_not_wake_the_accepting_thread(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: a listening socket is not connected there and cannot be shut down."""

    def shutdown(*_: object) -> None:
        raise OSError(errno.ENOTCONN, "not connected")

    port = PortHolder(address, 60)
    assert port.open()
    monkeypatch.setattr(socket.socket, "shutdown", shutdown)
    port.close()
    assert unreachable(address, 1) == "connection refused"


def test_it_answers_no_longer_than_its_timeout(address: str) -> None:
    port = PortHolder(address, 0.5)
    assert port.open()
    assert unreachable(address, 1) is None
    until("it to answer no more", lambda: unreachable(address, 1) == "connection refused", seen=lambda: unreachable(address, 1))
    assert port.open()  # its time is over, but nothing is wrong with the port
    assert unreachable(address, 1) == "connection refused"
    port.close()


def test_a_task_without_an_address_has_no_port() -> None:
    port = PortHolder(None, 60)
    assert not port.open()
    port.close()


def test_a_forked_process_does_not_hold_the_port(address: str) -> None:
    port = PortHolder(address, 60)
    assert port.open()
    ours, its = socket.socketpair()
    if (child := os.fork()) == 0:
        its.send(b"x")
        its.recv(1)  # until the test is done
        os._exit(0)
    try:
        ours.recv(1)
        port.close()
        with socket.socket() as bound:  # without SO_REUSEADDR: the port must be free
            bound.bind(split_address(address))
    finally:
        ours.send(b"x")
        os.waitpid(child, 0)
        ours.close()
        its.close()
