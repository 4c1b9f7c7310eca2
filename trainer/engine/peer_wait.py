"""Waits, before a task's TensorFlow connects, until the peers that it connects to first accept TCP connections.

TensorFlow waits for peers, too. But its gRPC resolves a name at the first connection, and then only every 30 s
(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS): if a peer's pod is replaced, gRPC would find the new address of its name that late.
A request to stop interrupts the wait at once. The task's parent reports the missing peers (trainer/peers.py).
"""

import time
from collections.abc import Callable, Mapping

from trainer.engine.connections import unreachable
from trainer.engine.session import PeerLostError
from trainer.port_holder import PortHolder
from trainer.strategies import SERVER_STRATEGIES, STRATEGIES, Strategy
from trainer.tf_config import TaskConfig

_CONNECT_TIMEOUT = 1.0  # seconds to connect
_PAUSE = 0.5  # seconds between two tries, at least
_LOOKUPS_PER_SECOND = 200  # look-ups of names in a second, by all tasks together
_POLL_INTERVAL = 0.1  # seconds between checks whether a stop was asked for


def wait(task: TaskConfig, strategy: Strategy, port: PortHolder, stop_requested: Callable[[], bool], timeout: float) -> bool:
    """Wait until all peers that a task connects to first accept connections; return False if `stop_requested` returns True meanwhile.

    The task's own `port` accepts connections during the wait, as TensorFlow's does later, so that others see the task. It is free afterwards.

    Raises:
        PeerLostError: a peer did not accept a connection within `timeout` seconds.
    """
    peers = _peers_to_connect(task, strategy)
    pause = max(_PAUSE, len(task.tasks()) / _LOOKUPS_PER_SECOND)
    deadline = time.monotonic() + timeout
    try:
        if peers and stop_requested():  # asked to stop during the start
            return False
        while missing := _first_missing(peers):
            name, reason = missing
            if time.monotonic() > deadline:
                raise PeerLostError(f"{name} ({peers[name]}) was not there after {timeout:g} s: {reason}")
            peers = {name: peers[name], **peers}  # this one is tried first, and once it answers all the others again
            if not port.open():
                return True  # TensorFlow reports what is wrong with the port
            if _stop_requested_within(pause, stop_requested):
                return False
        return True
    finally:
        port.close()


def _peers_to_connect(task: TaskConfig, strategy: Strategy) -> dict[str, str]:
    """Return name -> address of the peers to wait for: for the chief of servers all of them, for a worker of an all-reduce its chief."""
    if strategy in SERVER_STRATEGIES and task.is_chief:
        return task.peers()
    return {task.chief_name: task.tasks()[task.chief_name]} if STRATEGIES[strategy].all_reduces and not task.is_chief else {}


def _first_missing(peers: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the first of `peers` that accepts no connection, and why; None if all do."""
    for name, address in peers.items():
        if reason := unreachable(address, _CONNECT_TIMEOUT):
            return name, reason
    return None


def _stop_requested_within(seconds: float, stop_requested: Callable[[], bool]) -> bool:
    """Wait for some seconds; return True, early, if the task is asked to stop."""
    until = time.monotonic() + seconds
    while not (requested := stop_requested()) and (remaining := until - time.monotonic()) > 0:
        time.sleep(min(remaining, _POLL_INTERVAL))
    return requested
