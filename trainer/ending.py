"""How the tasks of a user's program learn that their run has ended: each asks the one that leads, at a port of that one's parent.

A parameter server never ends by itself, and an evaluator need not. Nobody can order a task to end: it asks, and its own parent ends it.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import socketserver
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

from trainer.reactor import Reactor
from trainer.tf_config import TaskConfig, split_address

RUNNING, SUCCEEDED, FAILED = "running", "succeeded", "failed"  # how a run is, and a task that asks

_EVERY = 1.0  # seconds between two questions of a task
_TASKS_PER_SECOND = 100  # that the leader answers at most: those of a larger cluster ask less often
_ANSWER = 2.0  # seconds for an answer
_LONGEST = 4096  # bytes of a question or an answer
_STAYS = 60.0  # seconds that the leader stays at most, for tasks that have not heard that the run has succeeded
_STAYS_SHORTLY = 5.0  # the same where it is to stop, or has failed


@dataclass(frozen=True)
class Rules:
    """When the run of a program has ended, and what follows. Times in seconds.

    `port` is that of the leader's parent. `success` says whose exit 0 the run needs: that of `chief`, the task that leads, or that of
    `all_workers` too. A worker of parameter servers gets `worker_grace` to end by itself then, an evaluator `evaluator_grace`.
    """

    port: int
    success: str = "chief"
    worker_grace: float = 10.0
    evaluator_grace: float = 600.0


@dataclass(frozen=True)
class News:
    """How the run is, as its leader's parent tells; `reason` says why it has failed."""

    state: str = RUNNING
    reason: str = ""


@dataclass(frozen=True)
class Part:
    """The part of one task in the end of its run. `address` is that of the leader's parent, host:port.

    The leader waits for the tasks in `needed` to be done, and stays until those in `followers` have heard; both are empty elsewhere.
    A follower ends `grace` seconds after a run that has succeeded; infinite where it takes its time. `waits`: being done, it stays until
    the run has succeeded, so that a leader in the place of a lost one can hear of it.
    """

    task: str
    leader: str
    address: str
    needed: frozenset[str] = frozenset()
    followers: frozenset[str] = frozenset()
    grace: float = math.inf
    waits: bool = False
    interval: float = _EVERY

    @property
    def leads(self) -> bool:
        """Whether this is the leader's."""
        return self.task == self.leader


def part(rules: Rules | None, task: TaskConfig, *, served: bool, has_evaluator: bool) -> Part | None:
    """Return a task's part; None where a run ends with its one task, or no rules say how. `served`: workers are driven by parameter servers."""
    leader = task.chief_address
    names = {*task.tasks(), *(["evaluator"] if has_evaluator else [])}
    if rules is None or leader is None or len(names) < 2:
        return None
    host = leader.rpartition(":")[0]
    of_all = rules.success == "all_workers"
    needed = {name for name in names if of_all and name.startswith("worker-")} - {task.chief_name}
    graces = {"ps": 0.0, "evaluator": rules.evaluator_grace}
    if served:
        graces["worker"] = graces["chief"] = rules.worker_grace
    leads = task.is_chief
    return Part(
        task=task.name,
        leader=task.chief_name,
        address=f"{host}:{rules.port}",
        needed=frozenset(needed if leads else ()),
        followers=frozenset(names - {task.chief_name} if leads else ()),
        grace=graces.get(task.role, math.inf),
        waits=task.name in needed,
        interval=max(_EVERY, len(names) / _TASKS_PER_SECOND),
    )


class Leading:
    """The leader's part: its parent answers all who ask, and leaves last. `leave` is called once, when that is."""

    def __init__(self, mine: Part, reactor: Reactor) -> None:
        self._mine, self._reactor = mine, reactor
        self._news = News()
        self._done: set[str] = set()
        self._told: set[str] = set()
        self._leave: Callable[[], None] | None = None
        self._until = math.inf
        self._server = _server(self._asked, split_address(mine.address)[1])

    def end(self, state: str, reason: str, leave: Callable[[], None], *, shortly: bool) -> None:
        """Tell all who ask how the run has ended, once the tasks that it needs are done, and leave when they know or have had time to."""
        self._leave = leave
        self._news = News(state, reason[: _LONGEST // 8])
        self._until = time.monotonic() + (_STAYS if state == SUCCEEDED else _STAYS_SHORTLY)
        if shortly:
            self.hurry()
        self._look()

    @property
    def complete(self) -> bool:
        """Whether all tasks whose success the run needs are done."""
        return self._mine.needed <= self._done

    def hurry(self) -> None:
        """Leave soon: this task was asked to stop."""
        self._until = min(self._until, time.monotonic() + _STAYS_SHORTLY)

    def _look(self) -> None:
        if self._leave is None:
            return
        waits = self._news.state == SUCCEEDED and not self.complete
        knows = self._mine.followers <= self._told
        if not waits and (knows or time.monotonic() > self._until):
            leave, self._leave = self._leave, None
            leave()
        else:
            self._reactor.call_later(0.1, self._look)

    def _asked(self, task: str, state: str) -> tuple[News, Callable[[], None]]:
        """Return what to answer a task, and what to call once it has the answer. In a thread of the server's."""
        if state == SUCCEEDED:
            self._done.add(task)
        news = self._news if self._news.state != SUCCEEDED or self.complete else News()
        over = news.state != RUNNING or state == FAILED or (state == SUCCEEDED and task not in self._mine.needed)
        return news, (lambda: self._told.add(task)) if over else (lambda: None)


class Following:
    """Another task's part: its parent asks the leader's. `heard` is called once, in the reactor's thread, when the run has ended."""

    def __init__(self, mine: Part, reactor: Reactor, heard: Callable[[News], None]) -> None:
        self._mine, self._reactor, self._heard = mine, reactor, heard
        self._state = RUNNING
        self._at_once = threading.Event()
        self._waiting: list[Callable[[News | None], None]] = []
        threading.Thread(target=self._ask_on, name="ending", daemon=True).start()

    def ended(self, state: str) -> None:
        """Say from now on that this task has ended, and how."""
        self._state = state

    def ask_now(self, then: Callable[[News | None], None]) -> None:
        """Call `then`, in the reactor's thread, with the news of this moment; None where the leader does not answer."""
        self._waiting.append(then)
        self._at_once.set()

    def _ask_on(self) -> None:
        told = False
        while True:
            self._at_once.wait(self._mine.interval)
            self._at_once.clear()
            waiting, self._waiting = self._waiting, []
            news = ask(self._mine, self._state)
            if news is not None and news.state != RUNNING and not told:
                told = True
                self._reactor.call_from_thread(partial(self._heard, news))
            for then in waiting:
                self._reactor.call_from_thread(partial(then, news))


def ask(mine: Part, state: str = RUNNING) -> News | None:
    """Ask the leader's parent how the run is, and tell how this task is; None where that does not answer."""
    question = json.dumps({"task": mine.task, "state": state}).encode() + b"\n"
    with contextlib.suppress(OSError, ValueError, UnicodeError):
        with socket.create_connection(split_address(mine.address), timeout=_ANSWER) as connection:
            connection.sendall(question)
            answer = json.loads(connection.makefile("rb").readline(_LONGEST))
        return News(str(answer["state"]), str(answer["reason"]))
    return None


_Asked = Callable[[str, str], Any]


def _server(asked: _Asked, port: int) -> socketserver.BaseServer | None:
    """Answer on `port` of every address, in threads of its own; None where the port is another's."""

    class Handler(socketserver.StreamRequestHandler):
        timeout = _ANSWER

        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                question = json.loads(self.rfile.readline(_LONGEST))
                news, sent = asked(str(question["task"]), str(question["state"]))
                self.wfile.write(json.dumps(vars(news)).encode() + b"\n")
                sent()

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        request_queue_size = 128
        address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

        def server_bind(self) -> None:
            if self.address_family == socket.AF_INET6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            super().server_bind()

        def handle_error(self, *_: Any) -> None:
            """Say nothing of whoever asks something else, or goes away."""

    with contextlib.suppress(OSError):
        server = Server(("", port), Handler)
        threading.Thread(target=server.serve_forever, name="ending", daemon=True).start()
        return server
    return None
