"""Checks whether a task's peers are reachable: tries a TCP connection to each address until one succeeds.

The parent does this in parallel to the training process, which waits for the peer that it needs first (engine/peer_wait.py) and connects itself.
The parent names missing peers, and ends a start that cannot succeed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Optional

from trainer.event_loop import EventLoop, Timer
from trainer.strategies import SERVER_STRATEGIES, STRATEGIES, Strategy, is_server
from trainer.tf_config import TaskConfig, split_address

FailureReason = Optional[str]  # the reason why a connection failed; None: it succeeded

_CONNECT_TIMEOUT = 1.0
_MAX_OPEN = 200  # open connections; a process may often have no more than 1,024 files
_RESOLVERS = 8  # getaddrinfo blocks, so threads call it
_RETRY = 1.0
# Before the first look-up of a name. A pod starts a moment before its peers have DNS names, and a cluster's DNS caches a failed
# look-up for 5 s. Importing TensorFlow takes longer than this delay.
_DNS_DELAY = 1.5
MAX_LISTED = 25  # missing peers named in one event: with more, a line would no longer be written in one piece (PIPE_BUF)
_REASONS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ETIMEDOUT: "no answer",
    errno.EHOSTUNREACH: "no route to the host",
    errno.ENETUNREACH: "no route to the network",
}
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: no TIME_WAIT left on a port that a task may want


def required_peers(task: TaskConfig, strategy: Strategy) -> dict[str, str]:
    """Return the peers that a task needs before it can train: name -> address.

    An all-reduce needs all peers. Under parameter_server and manual the chief needs its servers; ps and workers need no peer.
    """
    traits = STRATEGIES[strategy]
    needs = traits.all_reduces or (traits.uses_servers and task.is_chief)
    return task.peers() if needs and task.role != "evaluator" else {}


def watched_chief(task: TaskConfig, strategy: Strategy) -> str | None:
    """Return the chief's address for a task that is useless without it: a ps or worker that serves it; else None."""
    return task.chief_address if is_server(strategy, task.role) and not task.is_chief else None


def watched_workers(task: TaskConfig, strategy: Strategy) -> tuple[str, ...]:
    """Return the workers' addresses for a chief that sends them work, and is useless without any of them; else none."""
    if strategy not in SERVER_STRATEGIES or not task.is_chief:
        return ()
    return tuple(address for name, address in task.peers().items() if name.startswith("worker-"))


class ConnectionProber:
    """Tries TCP connections to many addresses at once, and reports the result of each."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._waiting: deque[_ConnectionAttempt] = deque()
        self._open: set[_ConnectionAttempt] = set()
        self._unresolved: queue.SimpleQueue[_ConnectionAttempt] = queue.SimpleQueue()
        self._threads = 0
        self._first_lookup_at = loop.now() + _DNS_DELAY
        self._filling = False

    def ask(self, address: str, then: Callable[[FailureReason], None]) -> None:
        """Try a connection to `address`; call `then`, in the loop's thread, with the reason of a failure, or None."""
        self._waiting.append(_ConnectionAttempt(address, then))
        self._fill()

    def _fill(self) -> None:
        if self._filling:  # an attempt that fails at once comes back here: the loop below continues, without recursion
            return
        self._filling = True
        while self._waiting and len(self._open) < _MAX_OPEN:
            attempt = self._waiting.popleft()
            self._open.add(attempt)
            try:  # a numeric address needs no look-up, and no thread
                self._connect(attempt, socket.getaddrinfo(attempt.host, attempt.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
            except OSError:
                self._look_up(attempt)
        self._filling = False

    def _look_up(self, attempt: _ConnectionAttempt) -> None:
        if (delay := self._first_lookup_at - self._loop.now()) > 0:
            self._loop.call_later(delay, lambda: self._look_up(attempt))
            return
        self._unresolved.put(attempt)
        if self._threads < min(_RESOLVERS, len(self._open)):
            self._threads += 1
            # Daemons: a look-up that hangs for half a minute must not delay the end of the process.
            threading.Thread(target=self._resolve, name="resolver", daemon=True).start()

    def _resolve(self) -> None:
        while True:
            attempt = self._unresolved.get()
            addresses: list[Any] = []
            with contextlib.suppress(OSError, UnicodeError):
                addresses = socket.getaddrinfo(attempt.host, attempt.port, type=socket.SOCK_STREAM)
            self._loop.call_from_thread(partial(self._connect, attempt, addresses))

    def _connect(self, attempt: _ConnectionAttempt, addresses: list[Any], reason: str = "name not known yet") -> None:
        """Try the addresses of a look-up one after the other; `reason` is why the one before failed."""
        if not addresses:
            self._finish(attempt, reason)
            return
        family, kind, protocol, _, address = addresses[0]
        try:
            connection = socket.socket(family, kind, protocol)
        except OSError as error:
            self._connect(attempt, addresses[1:], _describe(error.errno or 0))
            return
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        code = connection.connect_ex(address)
        if code not in {0, errno.EINPROGRESS}:
            connection.close()
            self._connect(attempt, addresses[1:], _describe(code))
            return

        def done(reason: FailureReason) -> None:
            timer.cancel()
            self._loop.forget(connection)
            connection.close()
            if reason is None:
                self._finish(attempt, None)
            else:
                self._connect(attempt, addresses[1:], reason)

        timer = self._loop.call_later(_CONNECT_TIMEOUT, lambda: done("no answer"))
        self._loop.on_ready(connection, selectors.EVENT_WRITE, lambda: done(connect_error(connection)))

    def _finish(self, attempt: _ConnectionAttempt, answer: FailureReason) -> None:
        self._open.discard(attempt)
        attempt.then(answer)
        self._fill()


class _ConnectionAttempt:
    """A connection attempt to one address."""

    def __init__(self, address: str, then: Callable[[FailureReason], None]) -> None:
        self.host, self.port = split_address(address)
        self.then = then


def connect_error(connection: socket.socket) -> FailureReason:
    """Return why a non-blocking connection failed, None if it succeeded, once its socket is writable."""
    code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        return _describe(code)
    with contextlib.suppress(OSError):
        # On a free local port the kernel may choose that very port as the source: the socket is then connected to itself.
        if connection.getsockname() == connection.getpeername():
            return "connection refused"
    return None


def _describe(code: int) -> str:
    return _REASONS.get(code) or os.strerror(code).lower()


class PeerWait:
    """Waits until each peer was reached once, reports those missing, and times out.

    `on_waiting(missing, seconds)` is called first after `first_report_after` seconds, then every `report_interval` seconds and when the set
    changes; missing is a list of {task, address, reason}. Exactly one of `on_complete(seconds)` and `on_timeout(missing)`
    is called, unless `cancel` comes before. After `on_complete`, `on_waiting([], seconds since)` is called every `no_step_report`
    seconds until `note_step`.
    """

    def __init__(
        self,
        loop: EventLoop,
        prober: ConnectionProber,
        peers: Mapping[str, str],
        *,
        timeout: float,
        on_waiting: Callable[[list[dict[str, str]], float], None],
        on_complete: Callable[[float], None],
        on_timeout: Callable[[list[dict[str, str]]], None],
        first_report_after: float = 5.0,
        report_interval: float = 10.0,
        no_step_report: float | None = None,
    ) -> None:
        self._loop, self._prober = loop, prober
        self._missing = dict(peers)
        self._reasons = dict.fromkeys(peers, "not asked yet")
        self._on_waiting, self._on_complete, self._on_timeout = on_waiting, on_complete, on_timeout
        self._report_interval, self._no_step_report = report_interval, no_step_report
        self._started = self._loop.now()
        self._reported: set[str] = set()
        self._next_report = self._started + first_report_after
        self._done = not peers
        self._timers: list[Timer] = []
        if peers:
            self._timers = [loop.call_later(timeout, self._time_out), loop.call_later(min(first_report_after, _RETRY), self._check)]
            for name in peers:
                self._ask(name)

    @property
    def missing(self) -> list[dict[str, str]]:
        """The peers that were not reached yet, and the reasons."""
        return [{"task": name, "address": address, "reason": self._reasons[name]} for name, address in self._missing.items()]

    def cancel(self) -> None:
        """Stop waiting; make no further call."""
        self._done = True
        for timer in self._timers:
            timer.cancel()

    def note_step(self) -> None:
        """Note that a step was made: no further report is due."""
        self._no_step_report = None
        if self._done:
            self.cancel()

    def _ask(self, name: str) -> None:
        if not self._done:
            self._prober.ask(self._missing[name], partial(self._answered, name))

    def _answered(self, name: str, reason: FailureReason) -> None:
        if self._done:
            return
        if reason is not None:
            self._reasons[name] = reason
            # With many missing peers, retries are slower: each of a thousand tasks asks all the others.
            self._loop.call_later(max(_RETRY, len(self._missing) / _MAX_OPEN), partial(self._ask, name))
            return
        del self._missing[name]
        if not self._missing:
            self.cancel()
            self._on_complete(self._loop.now() - self._started)
            self._expect_a_step(self._loop.now())

    def _expect_a_step(self, since: float) -> None:
        if self._no_step_report is not None:
            self._timers = [self._loop.call_later(self._no_step_report, partial(self._no_step, since))]

    def _no_step(self, since: float) -> None:
        self._on_waiting([], self._loop.now() - since)
        self._expect_a_step(since)

    def _check(self) -> None:
        now = self._loop.now()
        changed = bool(self._reported) and set(self._missing) != self._reported
        if now >= self._next_report or changed:
            self._reported = set(self._missing)
            self._next_report = now + self._report_interval
            self._on_waiting(self.missing, now - self._started)
        self._timers[1] = self._loop.call_later(min(_RETRY, max(0.01, self._next_report - now)), self._check)

    def _time_out(self) -> None:
        self.cancel()
        self._on_timeout(self.missing)


class ReachabilityMonitor:
    """Watches addresses until it is cancelled; calls `on_timeout(reason)` when none has accepted a connection for `timeout` seconds.

    `on_unreachable(reason)` is called once none has for a tenth of that, `on_answer()` when one answers again. The reason is
    that of one address.
    """

    def __init__(
        self,
        loop: EventLoop,
        prober: ConnectionProber,
        addresses: Iterable[str],
        *,
        timeout: float,
        on_timeout: Callable[[str], None],
        on_unreachable: Callable[[str], None] = lambda _reason: None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop, self._prober = loop, prober
        self._addresses = list(addresses)  # the one that answered last comes first
        self._timeout = timeout
        self._interval = min(5.0, timeout / 5)
        self._on_unreachable, self._on_answer, self._on_timeout = on_unreachable, on_answer, on_timeout
        self._last_seen = self._loop.now()
        self._is_unreachable = False
        self._done = False
        self._ask()

    def cancel(self) -> None:
        """Stop watching; make no further call."""
        self._done = True

    def _ask(self) -> None:
        """Ask the address that answered last; if it is unreachable, ask all the others at once."""
        if self._done:
            return
        first, *others = self._addresses

        def answered(reason: FailureReason) -> None:
            if reason is None or not others:
                self._on_result(reason)
            else:
                self._ask_all(others, reason)

        self._prober.ask(first, answered)

    def _ask_all(self, addresses: list[str], reason: str) -> None:
        unreachable = 0
        answered_once = False

        def answered(address: str, answer: FailureReason) -> None:
            nonlocal unreachable, answered_once
            unreachable += answer is not None
            if answer is None and not answered_once:
                answered_once = True
                self._addresses.remove(address)
                self._addresses.insert(0, address)
                self._on_result(None)
            elif unreachable == len(addresses):
                self._on_result(reason)

        for address in addresses:
            self._prober.ask(address, partial(answered, address))

    def _on_result(self, reason: FailureReason) -> None:
        if self._done:
            return
        now = self._loop.now()
        unreachable_for = now - self._last_seen
        if reason is None:
            self._last_seen = now
            if self._is_unreachable:
                self._is_unreachable = False
                self._on_answer()
        elif unreachable_for >= self._timeout:
            self._on_timeout(reason)
            return
        elif unreachable_for >= self._timeout / 10 and not self._is_unreachable:
            self._is_unreachable = True
            self._on_unreachable(reason)
        self._loop.call_later(self._interval, self._ask)
