"""Ports that are reserved without listening: unique, given to no other program, and usable by TensorFlow."""

import os
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from launcher.errors import LauncherError
from launcher.runs import ports
from launcher.runs.ports import PortReservation
from tests import forked

linux = pytest.mark.skipif(sys.platform != "linux", reason="BSD sockets refuse two binds of one port")


def by_locking(directory: Path) -> Callable[[int], PortReservation]:
    return lambda count: ports.reserve_by_locking(count, directory)


@pytest.fixture(params=[pytest.param("binding", marks=linux), "locking"])
def reserve(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], PortReservation]:
    return ports.reserve_by_binding if request.param == "binding" else by_locking(tmp_path / "ports")


def test_no_port_is_reserved_twice_until_it_is_released(reserve: Callable[[int], PortReservation]) -> None:
    with closing(reserve(60)) as first, closing(reserve(60)) as second:
        assert len({*first.ports, *second.ports}) == 120


def test_a_server_can_listen_on_a_reserved_port_as_grpc_does(reserve: Callable[[int], PortReservation]) -> None:
    with closing(reserve(1)) as reserved, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", reserved.ports[0]))
        server.listen()
        with socket.create_connection(("127.0.0.1", reserved.ports[0]), 5), server.accept()[0] as accepted:
            assert accepted.getsockname()[1] == reserved.ports[0]


@linux
def test_the_system_gives_reserved_ports_to_no_other_socket() -> None:
    with closing(ports.reserve_by_binding(20)) as reserved:
        others = [socket.socket() for _ in range(500)]
        for other in others:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", 0))
        taken = {other.getsockname()[1] for other in others}
        for other in others:
            other.close()
        assert not taken & set(reserved.ports)
        with socket.socket() as thief, pytest.raises(OSError, match="in use"):
            thief.bind(("127.0.0.1", reserved.ports[0]))


def test_locked_ports_are_below_the_ephemeral_ones_and_can_be_locked_again(tmp_path: Path) -> None:
    directory = tmp_path / "ports"
    with closing(by_locking(directory)(5)) as reserved:
        assert all(20_000 <= port < 32_000 for port in reserved.ports)
    assert {path.name for path in directory.iterdir()} >= {str(port) for port in reserved.ports}
    by_locking(directory)(5).close()


@pytest.mark.parametrize("kind", ["link", "file", "open to all"])
def test_a_directory_of_locks_that_others_can_use_is_refused(kind: str, tmp_path: Path) -> None:
    directory = tmp_path / "ports"
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    if kind == "link":
        directory.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        directory.write_text("")
    else:
        directory.mkdir()
        directory.chmod(0o777)
    with pytest.raises(LauncherError, match=str(directory)) as error:
        ports.reserve_by_locking(1, directory)
    assert "TMPDIR" in error.value.remedy
    assert list((tmp_path / "elsewhere").iterdir()) == []


@linux
def test_tensorflow_serves_on_a_reserved_port(tmp_path: Path) -> None:
    program = tmp_path / "serve.py"
    program.write_text("""
import os, sys
import tensorflow as tf
server = tf.distribute.Server({"worker": ["127.0.0.1:" + sys.argv[1]]}, job_name="worker", task_index=0)
import socket
socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10).close()
print("answers", flush=True)
os._exit(0)
""")
    with closing(ports.reserve_by_binding(1)) as reserved:
        command, environment = [sys.executable, str(program), str(reserved.ports[0])], {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        result = forked.run(command, env=environment, preload=forked.TENSORFLOW)
    assert result.stdout == "answers\n", result.stderr
