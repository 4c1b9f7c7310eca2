"""The chief's watch over its servers: a ps that was asked to stop, or whose process has ended, and a server that has another address.

TensorFlow notices a lost ps late, or not at all: its coordinator retries up to three times, and each time gRPC tries for 20 s to reach the
lost address. So a thread holds a connection to each ps, and renews it now and then; the kernel closes it when the ps's process ends. A call
to a worker whose machine has vanished hangs as long. So a thread looks up the workers' names: if one has a new address, it ends the
connections to the old one, and with them the call.
"""

import glob
import ipaddress
import math
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer import error_file
from trainer.engine import connections, saving
from trainer.engine.parameter_server import state
from trainer.engine.parameter_server.servers import leaving_file
from trainer.engine.session import PeerLostError
from trainer.events import Reporter
from trainer.exit_codes import ExitCode
from trainer.tf_config import split_address

_POLL_INTERVAL = 0.25  # seconds between checks of the open connections
_RENEW_INTERVAL = 10.0  # seconds; gRPC ends a connection on which nothing was said for two minutes
_CONNECT_TIMEOUT = 1.0  # seconds for a ps to take a connection
# Seconds after a broken connection until a ps that accepts no other counts as ended: one that was killed may still listen for a moment.
_SHUTDOWN_SECONDS = 2.0
_REFUSED = "connection refused"  # the answer of a machine's kernel if no process listens
_FOLLOW_INTERVAL = 5.0  # seconds between checks of the workers' addresses
_ASK_INTERVAL = 1.0  # seconds between checks whether a ps was asked to stop, and between tries to connect to one
_CALL_TIMEOUT = 3.0  # seconds that a call into TensorFlow may take once a ps that it may wait for is gone

_calls: dict[int, float] = {}  # id of a thread that is inside a call into TensorFlow -> since when


@contextmanager
def tracked_call() -> Iterator[None]:
    """Record that this thread is inside a call into TensorFlow, which may wait for a ps forever."""
    thread = threading.get_ident()
    before = _calls.get(thread)
    _calls[thread] = time.monotonic()
    try:
        yield
    finally:
        if before is None:
            _calls.pop(thread, None)
        else:
            _calls[thread] = before


def file_check(path: Path, device: str) -> Callable[[], bool]:
    """Return a function that asks the task of a device whether it has a file. TensorFlow must be connected."""

    @tf.function(autograph=False)
    def exists(path: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            return tf.size(tf.io.matching_files(path)) > 0

    with tf.device("CPU:0"):
        argument = tf.constant(glob.escape(os.fspath(path)))
    check = exists.get_concrete_function(tf.TensorSpec([], tf.string))
    return lambda: bool(check(argument).numpy())


class ServerWatch:
    """Watches `servers`, name -> address, until `stop`, from threads of its own: ps, and workers.

    `stop_checks` has, for each ps, a function that returns whether it was asked to stop. If a call into TensorFlow does not return once a ps is
    gone, `exit_process(reason)` is to end this process.
    """

    def __init__(
        self,
        servers: Mapping[str, str],
        stop_checks: Mapping[str, Callable[[], bool]],
        notice: Callable[[str], None],
        exit_process: Callable[[str], None],
    ) -> None:
        self._notice, self._exit = notice, exit_process
        self.leaving: set[str] = set()
        self._failure = ""
        self._done = threading.Event()
        for name in stop_checks:
            self._start_thread(self._watch_process, name, servers[name])
        self._start_thread(self._watch_addresses, {name: address for name, address in servers.items() if name not in stop_checks})
        for name, check in stop_checks.items():
            self._start_thread(self._watch_stop, name, check)

    def stop(self) -> None:
        """Watch no longer."""
        self._done.set()

    def check(self) -> None:
        """Raise PeerLostError if a ps is gone."""
        if self._failure:
            self.stop()
            raise PeerLostError(self._failure)

    def _start_thread(self, watch: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=watch, args=arguments, name="server watch", daemon=True).start()

    def _watch_process(self, name: str, address: str) -> None:
        """Keep a connection to a ps, and fail when its process has ended, or its name has another address."""
        connection: socket.socket | None = None
        known_ip, connect_at, suspect_until = "", 0.0, math.inf
        while not self._done.wait(_POLL_INTERVAL):
            now = time.monotonic()
            if connection is not None and connections.closed_by_peer(connection):
                connection.close()
                connection, connect_at, suspect_until = None, now, now + _SHUTDOWN_SECONDS
            if now < connect_at:
                continue
            renewed, reason = connections.connect(address, _CONNECT_TIMEOUT)
            current_ip = _peer(renewed)[0] if renewed is not None else ""
            suspect = suspect_until < math.inf
            if known_ip and current_ip != known_ip and (new_ip := _moved_to(address, known_ip)):
                self._fail(f"{name} ({address}) was lost: its address was {known_ip}, and is {new_ip}")
            # A lost packet, or a name that is unknown for a moment, is no end of a process.
            elif renewed is None and suspect and (reason == _REFUSED or now >= suspect_until):
                self._fail(f"{name} ({address}) was lost: {reason}")
            connect_at = now + (_ASK_INTERVAL if renewed is None or suspect else _RENEW_INTERVAL)
            if renewed is not None and now >= suspect_until:
                suspect_until = math.inf
            if renewed is not None:
                if connection is not None:
                    connection.close()
                connection, known_ip = renewed, current_ip
        if connection is not None:
            connection.close()

    def _watch_addresses(self, workers: Mapping[str, str]) -> None:
        """Look up the workers' addresses; end the connections to one that has moved."""
        known_ips: dict[str, str] = {}
        while not self._done.wait(_FOLLOW_INTERVAL):
            for name, address in workers.items():
                connection, _ = connections.connect(address, _CONNECT_TIMEOUT)
                if connection is None:
                    continue
                with connection:
                    ip, port = _peer(connection)
                before = known_ips.get(name) or ip  # both empty while each connection has ended before it could be asked
                known_ips[name] = ip or before
                if ip and before != ip and _moved_to(address, before) and end_connections(before, port):
                    self._notice(f"{name} is at {ip}, no longer at {before}; this task connects to it again")

    def _watch_stop(self, name: str, check: Callable[[], bool]) -> None:
        """Check repeatedly whether a ps was asked to stop."""
        while not self._done.wait(_ASK_INTERVAL):
            with suppress(tf.errors.OpError):  # the ps is gone, or a worker is, and TensorFlow connects again
                if check():
                    self.leaving.add(name)
                    self._notice(f"{name} was asked to stop: this task saves, and starts again when {name} is back")
                    return

    def _fail(self, reason: str) -> None:
        """Let `check` raise; end this process if it is inside TensorFlow and stays there."""
        self._failure = self._failure or reason
        since = time.monotonic()
        while not self._done.wait(_POLL_INTERVAL):
            now = time.monotonic()
            if any(now - max(since, began) > _CALL_TIMEOUT for began in list(_calls.values())):
                self._exit(reason)


def _peer(connection: socket.socket) -> tuple[str, int]:
    """Return IP address and port of the other end; empty if that has closed the connection meanwhile."""
    try:
        host, port, *_ = connection.getpeername()
    except OSError:
        return "", 0
    return host, port


def exit_process(report: Reporter, reason: str) -> None:
    """End this process with the exit code of a lost peer: it waits inside TensorFlow, which nothing interrupts. A save in progress may end first."""
    try:
        saving.wait_for_saves()
        print(reason, file=sys.stderr)
        error_file.write(reason, error_file.start_step_fingerprint(report.start_step))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # even if something could not be written: nothing else ends this process
        os._exit(ExitCode.PEER_LOST)


def _moved_to(address: str, ip: str) -> str:
    """Return the IP address to which the name in `address` resolves now, if no longer to `ip`; else, or if it is unknown, nothing."""
    try:
        current_ips = {str(one[4][0]) for one in socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)}
    except OSError:
        return ""
    return "" if ip in current_ips else min(current_ips)


def end_connections(host: str, port: int) -> int:
    """End all of this process's connections to an address; return how many there were. Only on Linux."""
    ended = 0
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the names are numbers, not paths
            with suppress(OSError):
                ended += _shut_down_if_to(int(name), host, port)
    return ended


def _shut_down_if_to(fd: int, host: str, port: int) -> bool:
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return False
    with socket.socket(fileno=os.dup(fd)) as one:
        if one.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        peer = one.getpeername()
        if peer[1] != port or _unmapped(peer[0]) != _unmapped(host):
            return False
        one.shutdown(socket.SHUT_RDWR)
        return True


def _unmapped(host: str) -> str:
    """Return an address, an IPv4-mapped IPv6 one as IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


def watch(servers: Mapping[str, str], scratch_dir: str, report: Reporter) -> ServerWatch:
    """Watch the ps and workers of the cluster, name -> address, that this process is connected to."""
    devices = {name: state.device(int(name.rpartition("-")[2])) for name in servers if name.startswith("ps-")}
    stop_checks = {name: file_check(leaving_file(scratch_dir, name), device) for name, device in devices.items()}
    return ServerWatch(servers, stop_checks, lambda message: report("notice", message=message), lambda reason: exit_process(report, reason))
