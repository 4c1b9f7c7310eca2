"""The protocol by which the tasks of a user's program learn that their run has ended: each polls the leader, on a port that the leader's parent serves.

A parameter server never ends by itself, and an evaluator need not. A task is never ordered to end: it asks, and its own parent ends it.
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

RUNNING, SUCCEEDED, FAILED = "running", "succeeded", "failed"  # states of a run, and of a task that asks

_POLL_INTERVAL = 1.0  # seconds between two questions of a task
_TASKS_PER_SECOND = 100  # requests to the leader for which its load is planned: the tasks of a larger cluster poll less often
_TIMEOUT = 2.0  # seconds to wait for an answer
_MAX_MESSAGE = 4096  # of a question or an answer
# Seconds for which a leader waits at most for its followers, and a failed required task for its leader.
FOLLOWERS_TIMEOUT = 60.0
# The same for a leader that is asked to stop, or whose run has failed after each remaining task had polled; longer if tasks poll less often.
_SHORT_FOLLOWERS_TIMEOUT = 5.0
_SERVE_INTERVAL = 1.0  # seconds between two tries of the leader to get its port
_CHECK_INTERVAL = 0.1  # seconds between the leader's checks whether all tasks know


@dataclass(frozen=True)
class RunEndRules:
    """When the run of a program has ended, and what follows: `trainer.settings.Ending` without pydantic, which a program's environment may lack.

    Times in seconds.
    """

    port: int  # of the leader's parent
    success: str = "chief"  # the tasks whose exit 0 the run needs: the leader, or `all_workers` too
    graces: Mapping[str, float] = field(default_factory=dict)  # role -> the time to end by itself once the run has succeeded
    grace_period: float = 30.0  # from the request to stop to SIGKILL


@dataclass(frozen=True)
class RunEndStatus:
    """The state of the run, as its leader's parent reports it; `reason` says why it has failed."""

    state: str = RUNNING
    reason: str = ""


@dataclass(frozen=True)
class RunEndTask:
    """A task of a run whose tasks learn of its end from the leader. Addresses are host:port, times seconds."""

    run: str  # identifies the run
    task: str
    leader: str
    leader_address: str  # of the leader's parent
    leader_program_address: str
    required: frozenset[str] = frozenset()  # in the leader: the tasks that have to be done before the run has succeeded
    followers: frozenset[str] = frozenset()  # in the leader: the tasks that have to be notified before it exits
    grace: float = 0.0  # after the run's success, in which a follower may end by itself
    # Whether the leader needs this task's success. Done, the task stays until the run has succeeded, as a replaced leader has to be told again;
    # failed, it polls an unreachable leader for FOLLOWERS_TIMEOUT.
    is_required: bool = False
    interval: float = _POLL_INTERVAL  # between two questions
    short_followers_timeout: float = _SHORT_FOLLOWERS_TIMEOUT  # of a leader whose run has failed, if each remaining task has polled before
    stop_followers_timeout: float = _SHORT_FOLLOWERS_TIMEOUT  # of a leader that is asked to stop
    orphan_timeout: float = 600.0  # without an answer, or a question, after which a task counts as lost
    start_timeout: float = 600.0  # the same for a leader that has never answered, if this is longer

    @property
    def is_leader(self) -> bool:
        """Whether this is the leader."""
        return self.task == self.leader


def run_end_task(
    rules: RunEndRules | None, task: TaskConfig, *, run: str, has_evaluator: bool, unsupervised: tuple[str, ...] = ()
) -> RunEndTask | None:
    """Return a task as one that learns of the end of its run; None without rules, or if the run has only one task.

    The tasks of the roles in `unsupervised` have no parent that asks.
    """
    leader = task.chief_address
    names = {*task.tasks(), *(["evaluator"] if has_evaluator else [])}
    if rules is None or leader is None or len(names) < 2:
        return None
    others = names - {task.chief_name}
    required = {name for name in others if rules.success == "all_workers" and name.startswith("worker-")}
    interval = max(_POLL_INTERVAL, len(names) / _TASKS_PER_SECOND)
    short_followers_timeout = max(_SHORT_FOLLOWERS_TIMEOUT, 2 * interval + _TIMEOUT)
    return RunEndTask(
        run=run,
        task=task.name,
        leader=task.chief_name,
        leader_address=f"{leader.rpartition(':')[0]}:{rules.port}",
        leader_program_address=leader,
        required=frozenset(required if task.is_chief else ()),
        followers=frozenset(name for name in others if task.is_chief and name.partition("-")[0] not in unsupervised),
        grace=rules.graces.get(task.role, 0.0),
        is_required=task.name in required,
        interval=interval,
        short_followers_timeout=short_followers_timeout,
        stop_followers_timeout=min(short_followers_timeout, rules.grace_period / 2),
    )


class RunEndServer:
    """The leader's part: its parent answers all other tasks, and exits once they are notified, or after a time-out."""

    def __init__(self, task: RunEndTask, loop: EventLoop) -> None:
        self._task, self._loop = task, loop
        self._status = RunEndStatus()
        self._done: set[str] = set()
        self._notified: set[str] = set()
        self._failed: set[str] = set()
        self._last_asked: dict[str, float] = {}  # task -> time of its last request
        self._awaited_from = math.inf  # the start of the wait for required tasks
        self._deadline, self._deadline_if_all_asked, self._exits_soon = 0.0, 0.0, False
        self._server: socketserver.BaseServer | None = None
        self._serve()

    def _serve(self) -> None:
        """Serve, or try again: this task's predecessor may still have the port."""
        self._server = _server(self._answer, split_address(self._task.leader_address)[1])
        if self._server is None:
            self._loop.call_later(_SERVE_INTERVAL, self._serve)

    @property
    def answers(self) -> bool:
        """Whether others can ask; False while another process has the port."""
        return self._server is not None

    @property
    def complete(self) -> bool:
        """Whether all tasks whose success the run needs are done."""
        return self._task.required <= self._done

    def succeed(self, then: Callable[[RunEndStatus], None]) -> None:
        """End the run with success once the required tasks are done; call `then`, once, when all others are notified, or after a time-out.

        The run fails instead if a required task has failed for good, or has not asked for `orphan_timeout`.
        """
        now = time.monotonic()
        self._awaited_from = min(self._awaited_from, now)
        missing = self._task.required - self._done
        lost = {name for name in missing if now - self._last_asked.get(name, self._awaited_from) > self._task.orphan_timeout}
        failed = missing & self._failed
        if failed or lost:
            self._notified |= lost  # no further wait for them
            self.fail(f"{min(failed)} has failed" if failed else f"{min(lost)} was gone for {self._task.orphan_timeout:g} s", then)
        elif missing:
            self._loop.call_later(_CHECK_INTERVAL, lambda: self.succeed(then))
        else:
            self._end(RunEndStatus(SUCCEEDED), FOLLOWERS_TIMEOUT, then)

    def fail(self, reason: str, then: Callable[[RunEndStatus], None]) -> None:
        """End the run with failure; call `then` as `succeed` does. A task that has not asked yet may be starting."""
        self._end(RunEndStatus(FAILED, reason[: _MAX_MESSAGE // 8]), self._task.short_followers_timeout, then)

    def exit_soon(self) -> None:
        """Shorten the wait for others: this task was asked to stop."""
        self._exits_soon = True
        self._deadline = min(self._deadline, time.monotonic() + self._task.stop_followers_timeout)

    def _end(self, status: RunEndStatus, followers_timeout: float, then: Callable[[RunEndStatus], None]) -> None:
        self._status, now = status, time.monotonic()
        self._deadline = now + (self._task.stop_followers_timeout if self._exits_soon else FOLLOWERS_TIMEOUT)
        self._deadline_if_all_asked = now + followers_timeout
        self._check(then)

    def _check(self, then: Callable[[RunEndStatus], None]) -> None:
        missing = self._task.followers - self._notified
        deadline = min(self._deadline, self._deadline_if_all_asked) if missing <= self._last_asked.keys() else self._deadline
        if not missing or time.monotonic() > deadline or not self.answers:
            then(self._status)
        else:
            self._loop.call_later(_CHECK_INTERVAL, lambda: self._check(then))

    def _answer(self, question: Any) -> tuple[RunEndStatus, Callable[[], None]] | None:
        """Return the answer to a task, and a callback to run once the task confirms it; None if the task is of another run. Runs in a thread of the server."""
        task, state = str(question["task"]), question["state"]
        if question["run"] != self._task.run:
            return None
        self._last_asked[task] = time.monotonic()
        if state == SUCCEEDED:
            self._done.add(task)
        if state == FAILED:
            self._failed.add(task)
        elif task in self._failed:  # the engine has started it again
            self._failed.discard(task)
            if self._status.state == RUNNING:
                self._notified.discard(task)
        status = self._status
        final = status.state != RUNNING or state == FAILED or (state == SUCCEEDED and task not in self._task.required)
        return status, (lambda: self._notified.add(task)) if final else (lambda: None)


class RunEndClient:
    """The part of any other task: its parent asks the leader's until the run has ended.

    Called in the loop's thread: `on_end(status)` at the end of the run, `on_leader_lost(seconds)` if the leader has not answered for so
    long, `notice(message=...)` for people.
    """

    def __init__(
        self,
        task: RunEndTask,
        loop: EventLoop,
        on_end: Callable[[RunEndStatus], None],
        on_leader_lost: Callable[[float], None],
        notice: Callable[..., None],
    ) -> None:
        self._task, self._loop = task, loop
        self._on_end, self._on_leader_lost, self._notice = on_end, on_leader_lost, notice
        self._state = RUNNING
        self._poll_now = threading.Event()
        self._waiting: queue.SimpleQueue[Callable[[RunEndStatus | None], None]] = queue.SimpleQueue()
        threading.Thread(target=self._poll, name="run end", daemon=True).start()

    def report_end(self, state: str) -> None:
        """Report from now on that this task has ended with `state`."""
        self._state = state

    def ask_now(self, then: Callable[[RunEndStatus | None], None]) -> None:
        """Call `then`, in the loop's thread, with the current status; None if the leader does not answer."""
        self._waiting.put(then)
        self._poll_now.set()

    def _poll(self) -> None:
        reported = answered = is_unreachable = False
        seen = time.monotonic()
        while True:
            self._poll_now.wait(self._task.interval)
            self._poll_now.clear()
            waiting = [self._waiting.get() for _ in range(self._waiting.qsize())]
            status = ask(self._task, self._state)
            if status is not None and status.state != RUNNING and not reported:
                reported = True
                self._call(partial(self._on_end, status))
            for then in waiting:
                self._call(partial(then, status))
            if reported:
                continue
            # The leader's program may answer while its parent does not.
            if status is not None or (not answered and _connects(self._task.leader_program_address)):
                answered, seen = answered or status is not None, time.monotonic()
                if is_unreachable:
                    is_unreachable = False
                    self._call(partial(self._notice, message=f"{self._task.leader} answers again"))
                continue
            limit = self._task.orphan_timeout if answered else max(self._task.start_timeout, self._task.orphan_timeout)
            unreachable_for = time.monotonic() - seen
            if unreachable_for >= limit:
                reported = True
                self._call(partial(self._on_leader_lost, limit))
            elif unreachable_for >= limit / 10 and not is_unreachable and answered:
                is_unreachable = True
                message = f"{self._task.leader} ({self._task.leader_address}) does not answer; this task ends if that lasts {limit:g} s"
                self._call(partial(self._notice, message=message))

    def _call(self, callback: Callable[[], None]) -> None:
        self._loop.call_from_thread(callback)


def ask(task: RunEndTask, state: str = RUNNING) -> RunEndStatus | None:
    """Send this task's state to the leader's parent; return the run's status, None if it does not answer or is of another run."""
    question = json.dumps({"run": task.run, "task": task.task, "state": state}).encode() + b"\n"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, UnicodeError):  # noqa: SIM117 - Python 3.8 lacks the long form
        with socket.create_connection(split_address(task.leader_address), timeout=_TIMEOUT) as connection:
            connection.sendall(question)
            answer = json.loads(connection.makefile("rb").readline(_MAX_MESSAGE))
            if answer["run"] == task.run and answer["state"] in {RUNNING, SUCCEEDED, FAILED}:
                connection.sendall(b"\n")
                return RunEndStatus(answer["state"], str(answer["reason"]))
    return None


def _connects(address: str) -> bool:
    """Return whether something accepts a connection at `address`."""
    with contextlib.suppress(OSError, ValueError, UnicodeError), socket.create_connection(split_address(address), timeout=_TIMEOUT):
        return True
    return False


def _server(answer: Callable[[Any], Any], port: int) -> socketserver.BaseServer | None:
    """Start a server on `port` of every address, in threads of its own; None if another process has the port."""

    class Handler(socketserver.StreamRequestHandler):
        timeout = _TIMEOUT

        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                question = json.loads(self.rfile.readline(_MAX_MESSAGE))
                answered = answer(question)
                if answered is not None:
                    status, on_received = answered
                    text = json.dumps({"run": question["run"], **vars(status)}, ensure_ascii=False)  # at most 6 bytes a character
                    self.wfile.write(text.encode("utf-8", "replace") + b"\n")
                    if self.rfile.readline(_MAX_MESSAGE):  # the receipt; without it the task asks again
                        on_received()

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
            """Print nothing: a client may be gone."""

    with contextlib.suppress(OSError):
        server = Server(("", port), Handler)
        threading.Thread(target=server.serve_forever, name="run end", daemon=True).start()
        return server
    return None
