"""Before a task's TensorFlow connects: whom it connects to first is waited for, until each gives a TCP connection.

TensorFlow waits for peers, too. But its gRPC looks a name up when it connects first, and then every 30 s only
(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS): where a peer's pod is replaced, its name has a new address, and would be found that late.
A request to stop interrupts the wait at once. The task's parent reports the missing peers (trainer/peers.py).
"""

import time
from collections.abc import Callable, Mapping

from trainer.engine.manual.watchdog import unreachable
from trainer.engine.session import PeerLostError
from trainer.port_holder import PortHolder
from trainer.strategies import SERVER_STRATEGIES, STRATEGIES, Strategy
from trainer.tf_config import TaskConfig

_CONNECT_TIMEOUT = 1.0  # seconds to connect
_PAUSE = 0.5  # seconds between two tries, at least
_LOOKUPS_PER_SECOND = 200  # tasks that may ask for a name in a second
_POLL_INTERVAL = 0.1  # seconds between checks whether a stop was asked for


def wait(task: TaskConfig, strategy: Strategy, port: PortHolder, stopped: Callable[[], bool], within: float) -> bool:
    """Wait until all whom a task connects to first are there; returns False when `stopped` returns True meanwhile.

    Its own `port` answers all the while, as TensorFlow's does later: others see that it is there. It is free when this is done.

    Raises:
        PeerLostError: one of them was not there `within` so many seconds.
    """
    peers = _first(task, strategy)
    pause = max(_PAUSE, len(task.tasks()) / _LOOKUPS_PER_SECOND)
    deadline = time.monotonic() + within
    try:
        if peers and stopped():  # while it was starting; peers that are there end with the run
            return False
        while missing := _first_missing(peers):
            name, reason = missing
            if time.monotonic() > deadline:
                raise PeerLostError(f"{name} ({peers[name]}) was not there after {within:g} s: {reason}")
            peers = {name: peers[name], **peers}  # it is asked first, and once it is there all the others again
            if not port.open():
                return True  # TensorFlow says what is wrong with the port
            if _stopped_within(pause, stopped):
                return False
        return True
    finally:
        port.close()


def _first(task: TaskConfig, strategy: Strategy) -> dict[str, str]:
    """Return name -> address of the peers to wait for: the chief of servers connects to all of them, a worker of an all-reduce to its chief."""
    if strategy in SERVER_STRATEGIES and task.is_chief:
        return task.peers()
    return {task.chief_name: task.tasks()[task.chief_name]} if STRATEGIES[strategy].all_reduces and not task.is_chief else {}


def _first_missing(peers: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the first of `peers` that gives no connection, and why; None when all do."""
    for name, address in peers.items():
        if reason := unreachable(address, _CONNECT_TIMEOUT):
            return name, reason
    return None


def _stopped_within(seconds: float, stopped: Callable[[], bool]) -> bool:
    """Wait for some seconds; returns early, and True, when the task is asked to stop."""
    until = time.monotonic() + seconds
    while not (asked := stopped()) and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _POLL_INTERVAL))
    return asked
