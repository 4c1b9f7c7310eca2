"""A port that listens on all addresses is reachable only from loopback once it is restricted."""

import contextlib
import socket
import sys
from collections.abc import Iterator

import pytest

from trainer.socket_filter import is_loopback, restrict_to_loopback

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="socket filters are Linux's")


@contextlib.contextmanager
def listening(family: socket.AddressFamily, address: str) -> Iterator[int]:
    with socket.socket(family) as server:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((address, 0))
        server.listen()
        yield server.getsockname()[1]


def address_for_others() -> str | None:
    """Return an address of this machine that is not loopback, None if it has none; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def own_address() -> str:
    """Return the address by which others reach this machine; skip the test if it has none."""
    if (address := address_for_others()) is None:
        pytest.skip("this machine has no address but loopback")
    return address


def reachable(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=0.5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("family,everywhere", [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")])
def test_other_machines_cannot_connect(family: socket.AddressFamily, everywhere: str) -> None:
    address = own_address()
    with listening(family, everywhere) as port:
        assert reachable(address, port)
        assert restrict_to_loopback(f"127.0.0.1:{port}") == 1
        assert not reachable(address, port)
        assert reachable("127.0.0.1", port)
        if family == socket.AF_INET6:
            assert reachable("::1", port)


def test_a_cluster_of_several_machines_stays_open() -> None:
    with listening(socket.AF_INET, "0.0.0.0") as port:
        assert restrict_to_loopback(f"worker-0:{port}") == 0
        assert restrict_to_loopback(None) == 0
        assert reachable(own_address(), port)


@pytest.mark.parametrize(
    "address,expected",
    [
        ("127.0.0.1:2222", True),
        ("127.8.9.1:1", True),
        ("localhost:2222", True),
        ("[::1]:2222", True),
        ("10.0.0.1:2222", False),
        ("worker-0:2222", False),
    ],
)
def test_is_loopback(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
