"""Connections to the servers of other tasks."""

from tests.trainer.conftest import Ports
from trainer.engine.connections import unreachable


def test_an_address_without_a_connection_has_a_reason(ports: Ports) -> None:
    address = ports.address()
    assert unreachable(address, 1) == "connection refused"
    assert unreachable("no-such-host.invalid:1", 1) is not None
    ports.listen(address)
    assert unreachable(address, 1) is None
