"""The protocol by which the tasks of a user's program learn that their run has ended: each asks the one that leads, at a port of that one's parent.

A parameter server never ends by itself, and an evaluator need not. Nobody can order a task to end: it asks, and its own parent ends it.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trainer.event_loop import EventLoop
from trainer.tf_config import TaskConfig, split_address

RUNNING, SUCCEEDED, FAILED = "running", "succeeded", "failed"  # how a run is, and a task that asks

_EVERY = 1.0  # seconds between two questions of a task
_TASKS_PER_SECOND = 100  # that the leader answers at most: those of a larger cluster ask less often
_ANSWER = 2.0  # seconds for an answer
_LONGEST = 4096  # bytes of a question or an answer
STAYS = 60.0  # seconds at most that the leader stays for tasks that have not heard the end, and that a failed needed task stays for a silent leader
_STAYS_SHORTLY = 5.0  # the same where it is to stop, or has failed and all have asked before; longer where tasks ask less often
_LOOKS = 0.1  # seconds between its looks whether all know


@dataclass(frozen=True)
class Rules:
    """When the run of a program has ended, and what follows. Times in seconds.

    `port` is that of the leader's parent. `success` says whose exit 0 the run needs: that of `chief`, the task that leads, or that of
    `all_workers` too. Once it has succeeded a task gets what `graces` has for its role to end by itself. One that is asked to stop is
    killed after `grace_period`.
    """

    port: int
    success: str = "chief"
    graces: Mapping[str, float] = field(default_factory=dict)
    grace_period: float = 30.0


@dataclass(frozen=True)
class News:
    """The state of the run, as its leader's parent reports it; `reason` says why it has failed."""

    state: str = RUNNING
    reason: str = ""


@dataclass(frozen=True)
class Part:
    """The part of one task in the end of its run. Addresses are host:port, times seconds.

    `run` identifies the run. `address` is that of the leader's parent, `program` that of its program. The leader waits for the tasks in `needed` to be done,
    and stays until those in `followers` have heard; both are empty elsewhere. A follower ends `grace` after a run that has succeeded.
    The leader of a failed run stays at most `shortly` for tasks that have asked before, and at most `haste` when it is asked to stop.
    A task that `waits` stays when it is done until the run has succeeded, so that a leader in the place of a lost one hears of it; when it
    has failed, it asks a silent leader again for a minute. A task is taken for lost that does not answer for `orphan`, or for `first` from the start on.
    """

    run: str
    task: str
    leader: str
    address: str
    program: str
    needed: frozenset[str] = frozenset()
    followers: frozenset[str] = frozenset()
    grace: float = 0.0
    waits: bool = False
    interval: float = _EVERY
    shortly: float = _STAYS_SHORTLY
    haste: float = _STAYS_SHORTLY
    orphan: float = 600.0
    first: float = 600.0

    @property
    def leads(self) -> bool:
        """Whether this is the leader's."""
        return self.task == self.leader


def part(rules: Rules | None, task: TaskConfig, *, run: str, has_evaluator: bool, unsupervised: tuple[str, ...] = ()) -> Part | None:
    """Return a task's part; None where a run ends with its one task, or no rules say how.

    The tasks of the roles in `unsupervised` have no parent that asks.
    """
    leader = task.chief_address
    names = {*task.tasks(), *(["evaluator"] if has_evaluator else [])}
    if rules is None or leader is None or len(names) < 2:
        return None
    others = names - {task.chief_name}
    needed = {name for name in others if rules.success == "all_workers" and name.startswith("worker-")}
    interval = max(_EVERY, len(names) / _TASKS_PER_SECOND)
    shortly = max(_STAYS_SHORTLY, 2 * interval + _ANSWER)
    return Part(
        run=run,
        task=task.name,
        leader=task.chief_name,
        address=f"{leader.rpartition(':')[0]}:{rules.port}",
        program=leader,
        needed=frozenset(needed if task.is_chief else ()),
        followers=frozenset(name for name in others if task.is_chief and name.partition("-")[0] not in unsupervised),
        grace=rules.graces.get(task.role, 0.0),
        waits=task.name in needed,
        interval=interval,
        shortly=shortly,
        haste=min(shortly, rules.grace_period / 2),
    )


class Leading:
    """The leader's part: its parent answers all who ask, and leaves last."""

    def __init__(self, mine: Part, loop: EventLoop) -> None:
        self._mine, self._loop = mine, loop
        self._news = News()
        self._done: set[str] = set()
        self._told: set[str] = set()
        self._failed: set[str] = set()
        self._asked: dict[str, float] = {}  # when a task asked last
        self._awaited_from = math.inf  # when tasks that the run needs were first waited for
        self._until, self._until_all_asked, self._hurries = 0.0, 0.0, False
        self._answers = _server(self._answer, split_address(mine.address)[1])

    @property
    def answers(self) -> bool:
        """Whether others can ask; not where the port is another's."""
        return self._answers is not None

    @property
    def complete(self) -> bool:
        """Whether all tasks whose success the run needs are done."""
        return self._mine.needed <= self._done

    def succeed(self, leave: Callable[[News], None]) -> None:
        """Call `leave`, once, when all others know how the run has ended, or have had time to: it has succeeded when those it needs are done.

        It has failed where one of these has failed for good, or has asked no more for as long as a lost task is waited for.
        """
        now = time.monotonic()
        self._awaited_from = min(self._awaited_from, now)
        missing = self._mine.needed - self._done
        gone = {one for one in missing if now - self._asked.get(one, self._awaited_from) > self._mine.orphan}
        lost = gone | (missing & self._failed)
        if lost:
            self._told |= gone  # nobody waits for them any more
            self.fail(f"{min(lost)} has failed" if self._failed else f"{min(lost)} was gone for {self._mine.orphan:g} s", leave)
        elif missing:
            self._loop.call_later(_LOOKS, lambda: self.succeed(leave))
        else:
            self._end(News(SUCCEEDED), STAYS, leave)

    def fail(self, reason: str, leave: Callable[[News], None]) -> None:
        """Do the same where the run has failed; one that has not asked yet may be starting, and nobody else could tell it."""
        self._end(News(FAILED, reason[: _LONGEST // 8]), self._mine.shortly, leave)

    def hurry(self) -> None:
        """Leave soon: this task was asked to stop."""
        self._hurries = True
        self._until = min(self._until, time.monotonic() + self._mine.haste)

    def _end(self, news: News, stays: float, leave: Callable[[News], None]) -> None:
        self._news, now = news, time.monotonic()
        self._until = now + (self._mine.haste if self._hurries else STAYS)
        self._until_all_asked = now + stays
        self._look(leave)

    def _look(self, leave: Callable[[News], None]) -> None:
        missing = self._mine.followers - self._told
        until = min(self._until, self._until_all_asked) if missing <= self._asked.keys() else self._until
        if not missing or time.monotonic() > until or not self.answers:
            leave(self._news)
        else:
            self._loop.call_later(_LOOKS, lambda: self._look(leave))

    def _answer(self, question: Any) -> tuple[News, Callable[[], None]] | None:
        """Return what to answer a task, and what to call once it has the answer; None for one of another run. In a thread of the server's."""
        task, state = str(question["task"]), question["state"]
        if question["run"] != self._mine.run:
            return None
        self._asked[task] = time.monotonic()
        if state == SUCCEEDED:
            self._done.add(task)
        if state == FAILED:
            self._failed.add(task)
        news = self._news
        over = news.state != RUNNING or state == FAILED or (state == SUCCEEDED and task not in self._mine.needed)
        return news, (lambda: self._told.add(task)) if over else (lambda: None)


@dataclass(frozen=True)
class Hears:
    """Calls that another task's parent gets, in the loop's thread: `ended` when the run has ended, `gone` when its leader is, `notice` to show."""

    ended: Callable[[News], None]
    gone: Callable[[str], None]
    notice: Callable[..., None]


class Following:
    """Another task's part: its parent asks the leader's until it knows that the run has ended."""

    def __init__(self, mine: Part, loop: EventLoop, hears: Hears) -> None:
        self._mine, self._loop, self._hears = mine, loop, hears
        self._state = RUNNING
        self._at_once = threading.Event()
        self._waiting: queue.SimpleQueue[Callable[[News | None], None]] = queue.SimpleQueue()
        threading.Thread(target=self._ask_on, name="ending", daemon=True).start()

    def has_ended(self, state: str) -> None:
        """Say from now on that this task has ended, and how."""
        self._state = state

    def ask_now(self, then: Callable[[News | None], None]) -> None:
        """Call `then`, in the loop's thread, with the news of this moment; None where the leader does not answer."""
        self._waiting.put(then)
        self._at_once.set()

    def _ask_on(self) -> None:
        told = answered = silent = False
        seen = time.monotonic()
        while True:
            self._at_once.wait(self._mine.interval)
            self._at_once.clear()
            waiting = [self._waiting.get() for _ in range(self._waiting.qsize())]
            news = ask(self._mine, self._state)
            if news is not None and news.state != RUNNING and not told:
                told = True
                self._call(partial(self._hears.ended, news))
            for then in waiting:
                self._call(partial(then, news))
            if told:
                continue
            # One that never answered here may have a way to its program alone.
            if news is not None or (not answered and _connects(self._mine.program)):
                answered, seen = answered or news is not None, time.monotonic()
                if silent:
                    silent = False
                    self._call(partial(self._hears.notice, message=f"{self._mine.leader} answers again"))
                continue
            limit = self._mine.orphan if answered else max(self._mine.first, self._mine.orphan)
            silence = time.monotonic() - seen
            if silence >= limit:
                told = True
                self._call(partial(self._hears.gone, f"no answer for {limit:g} s"))
            elif silence >= limit / 10 and not silent and answered:
                silent = True
                message = f"{self._mine.leader} ({self._mine.address}) does not answer; this task ends when that lasts {limit:g} s"
                self._call(partial(self._hears.notice, message=message))

    def _call(self, callback: Callable[[], None]) -> None:
        self._loop.call_from_thread(callback)


def ask(mine: Part, state: str = RUNNING) -> News | None:
    """Ask the leader's parent for the state of the run, and send that of this task; None where that does not answer, or is another run's."""
    question = json.dumps({"run": mine.run, "task": mine.task, "state": state}).encode() + b"\n"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, UnicodeError):
        with socket.create_connection(split_address(mine.address), timeout=_ANSWER) as connection:
            connection.sendall(question)
            answer = json.loads(connection.makefile("rb").readline(_LONGEST))
        if answer["run"] == mine.run and answer["state"] in {RUNNING, SUCCEEDED, FAILED}:
            return News(answer["state"], str(answer["reason"]))
    return None


def _connects(address: str) -> bool:
    with contextlib.suppress(OSError, ValueError, UnicodeError), socket.create_connection(split_address(address), timeout=_ANSWER):
        return True
    return False


def _server(answer: Callable[[Any], Any], port: int) -> socketserver.BaseServer | None:
    """Answer on `port` of every address, in threads of its own; None where the port is another's."""

    class Handler(socketserver.StreamRequestHandler):
        timeout = _ANSWER

        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                question = json.loads(self.rfile.readline(_LONGEST))
                answered = answer(question)
                if answered is not None:
                    news, sent = answered
                    self.wfile.write(json.dumps({"run": question["run"], **vars(news)}).encode() + b"\n")
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
            """Say nothing: a client asked something else, or is gone."""

    with contextlib.suppress(OSError):
        server = Server(("", port), Handler)
        threading.Thread(target=server.serve_forever, name="ending", daemon=True).start()
        return server
    return None
