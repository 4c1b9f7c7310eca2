"""The small parent of a training process: starts it, passes signals on, starts it again, never leaves it behind."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable

from trainer import scratch
from trainer.child import Child
from trainer.ending import FAILED, RUNNING, STAYS, SUCCEEDED, Following, Hears, Leading, News, Part
from trainer.event_loop import EventLoop, Timer
from trainer.events import TOLD, Event, listed
from trainer.exit_codes import OF_SIGNALS, ExitCode
from trainer.output import Output
from trainer.parent_job import ParentJob
from trainer.peers import LISTED, PeerWait, Prober, Watch
from trainer.restarts import End, History, Restart, cause_of, decide_restart, exit_code_of
from trainer.stacks import Stacks
from trainer.stalls import StallWatch

Report = Callable[..., None]

_NEWER = frozenset({"restored", "checkpoint", "evaluated"})  # events about a checkpoint

# Exit code, beside 143, of a TensorFlow program that was asked to stop and has saved (PreemptionCheckpointHandler).
_PREEMPTED = 42
_ABOUT_TO_END = 10.0  # seconds before the end of a run in which its tasks may fail for want of each other
_ASK_AGAIN = 0.5  # seconds between two questions meanwhile
_COMES_BACK = frozenset({int(ExitCode.STOPPED), int(ExitCode.PEER_LOST)})  # and signals: this is not the run's end

_CHIEF_IS_GONE = 0.6  # seconds without a connection, when the chief is expected to go


def supervise(job: ParentJob, report: Report, output: Output) -> int:
    """Run `job` to its end, restarts included, and return the exit code for this process. `report` writes to `output`.

    Takes over this process's signals and reaps its children while it runs. Whichever way it ends, the training
    process and its process group are gone, and what it wrote is written.
    """
    with scratch.directory() as own, EventLoop() as loop:
        try:
            with contextlib.closing(Stacks(loop, own)) as stacks:
                return _Supervisor(job, _unbreakable(report), loop, output, stacks, own).run()
        finally:
            output.detach()


def _unbreakable(report: Report) -> Report:
    def safely(*arguments: Any, **fields: Any) -> None:
        with contextlib.suppress(OSError):  # the reader of our output is gone; the training process must still be stopped well
            report(*arguments, **fields)

    return safely


class _Supervisor:
    """The state of one supervised task."""

    def __init__(self, job: ParentJob, report: Report, loop: EventLoop, output: Output, stacks: Stacks, directory: Path | None) -> None:
        self._job, self._report, self._loop, self._output = job, report, loop, output
        self._child = Child(job, loop, output, stacks, directory, self._abandon)
        self._prober = Prober(loop)
        self._attempt = 0
        self._began = 0.0
        self._history = History()
        self._newest = -1  # step of the newest checkpoint that the task knows of
        self._recovery: Timer | None = None
        self._backoff: Timer | None = None
        self._wait: PeerWait | None = None
        self._watch: Watch | None = None  # of the chief, for as long as the task lives
        self._workers: Watch | None = None  # of all workers, for as long as an attempt lives that had reached them
        self._peers_missing = False
        self._together: float | None = None  # since when every peer was reached, in this attempt
        self._stopping = False
        self._signals = 0
        self._verdict: tuple[str, str] | None = None  # cause and detail, when the parent itself has ended the task
        self._stalls = StallWatch(job, report, loop, stacks, self._prober, self._kill_stalled)
        self._stall = ""  # over which the attempt was killed
        self._exit_code = int(ExitCode.FAILURE)
        self._leading: Leading | None = None
        self._following: Following | None = None
        self._over = False  # the run has succeeded: whichever way this task ends now, it is done
        self._leaving = False  # it has ended, and stays for others

    def run(self) -> int:
        """Run until the task has ended."""
        loop = self._loop
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # started with nohup
            loop.on_signal(number, lambda number=number: self._signalled(signal.Signals(number)))  # type: ignore[misc]
        loop.on_signal(signal.SIGCHLD, self._reap)
        if self._job.lifeline is not None:
            os.set_inheritable(self._job.lifeline, False)
            loop.on_ready(self._job.lifeline, selectors.EVENT_READ, self._lifeline_ready)
        if self._job.part is not None:
            self._take_part(self._job.part)
        self._output.heard, self._output.wrote = self._heard, self._stalls.wrote
        self._output.attach(loop)
        try:
            loop.call_later(0, self._start)
            loop.run()
        finally:
            self._child.close()
        return self._exit_code

    # Attempts

    def _start(self) -> None:
        self._backoff = None
        self._attempt += 1
        self._began = time.monotonic()
        self._child.start(self._attempt)
        self._stall = ""
        self._stalls.begin(self._child.pid)
        self._report("started", attempt=self._attempt, role=self._job.role, pid=self._child.pid)
        if self._job.built_in:
            from trainer.unreaped import Unreaped

            Unreaped(self._child, self._loop, self._report, self._ended, self._abandon).watch(lambda: self._stopping)
        self._peers_missing = bool(self._job.awaited)
        self._together = None
        if self._job.policy.recovers_after < math.inf:
            self._recovery = self._loop.call_later(self._job.policy.recovers_after, self._recover)
        timeouts = self._job.timeouts
        self._wait = PeerWait(
            self._loop,
            self._prober,
            self._job.awaited,
            timeout=timeouts.start,
            first=timeouts.first_waiting,
            every=timeouts.waiting_every,
            stalled=timeouts.stalled if self._job.makes_steps else None,
            waiting=self._tell_waiting,
            complete=self._peers_there,
            timed_out=self._peers_not_there,
        )
        if self._watch is None and self._job.watched_chief is not None:
            self._watch = self._watch_for("the chief", (self._job.watched_chief,), "the chief answers again", timeouts.ending)

    def _reap(self) -> None:
        code = self._child.reap()
        if code is not None:
            self._ended(code)

    def _ended(self, code: int) -> None:
        for watching in (self._wait, self._workers, self._recovery, self._stalls):
            if watching is not None:
                watching.cancel()
        self._output.take()
        code, detail, same = self._why(code)
        if self._over:
            self._done()
        elif self._verdict is not None and (code != ExitCode.DONE or not self._job.built_in):
            self._fail(ExitCode.PEER_LOST, *self._verdict)
        elif code == ExitCode.DONE and (self._stopping or self._job.policy.restart != "always"):
            if self._stopping and not self._job.built_in:  # it stops because it is done: only the output shows that
                self._done()
            else:
                self._leave(ExitCode.DONE)
        elif self._stopping:
            self._ended_on_request(code, detail)
        elif code == ExitCode.PEER_LOST and self._job.role == "evaluator" and self._job.built_in:
            self._fail(code, "the chief is gone", detail)  # it has waited for it, as a server's parent does: not once more
        else:
            now = time.monotonic()
            together = 0.0 if self._together is None else now - self._together
            self._follow(code, decide_restart(code, now - self._began, self._history, self._job.policy, same, together), detail)

    def _why(self, code: int) -> tuple[int, str, str]:
        """Return the exit code of the attempt that has ended, its error line, and that line's fingerprint."""
        if self._stall:  # killed for it: not for want of memory
            return int(ExitCode.FAILURE), self._stall, ""
        return (code, *self._child.last_words(code))

    def _heard(self, event: Event) -> None:
        """Pass on the events of the training process; a newer checkpoint is one that a restart goes on from."""
        self._stalls.heard(event)
        if event["event"] not in TOLD:
            return
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):  # a program's own event may lack what makes a line of it
            self._report(event["event"], **{name: value for name, value in event.items() if name != "event"})
        if event["event"] in {"progress", "done"} and self._wait is not None:
            self._wait.stepped()
        step = event.get("step")
        if event["event"] in _NEWER and isinstance(step, int) and step > self._newest:
            self._newest = step
            self._recover()

    def _kill_stalled(self, why: str) -> None:
        if not self._stopping:
            self._stall = why
            self._child.kill(why)

    def _recover(self) -> None:
        """Have restarts before count no more."""
        if self._history.restarts:
            self._history = replace(self._history, restarts=0)
            self._report("recovered", restarts=0, left=self._job.policy.max_restarts)

    def _ended_on_request(self, code: int, detail: str) -> None:
        nothing_to_save = self._peers_missing and code == -signal.SIGKILL and self._job.built_in
        saved = code == _PREEMPTED and not self._job.built_in
        if nothing_to_save or saved or exit_code_of(code) in {ExitCode.STOPPED, ExitCode.PEER_LOST}:
            self._leave(ExitCode.STOPPED)
        elif self._child.killed_for:
            self._fail(exit_code_of(code), f"killed before it had stopped: {self._child.killed_for}", detail)
        else:
            self._fail(exit_code_of(code), f"{cause_of(code)} while it was stopping", detail)

    def _follow(self, code: int, decision: Restart | End, detail: str) -> None:
        if self._stall and self._job.stalls.on_stall == "fail":
            self._fail(ExitCode.WRONG_CONFIGURATION, self._stall, "")
            return
        if isinstance(decision, End):
            self._fail(decision.exit_code, decision.cause, detail, exit_code_of(code))
            return
        self._history = decision.history
        self._report(
            "restarting",
            attempt=self._attempt + 1,
            restarts=decision.history.restarts,
            left=self._job.policy.max_restarts - decision.history.restarts,
            exit_code=exit_code_of(code),
            cause=decision.cause,
            detail=detail,
            delay=decision.delay,
        )
        self._backoff = self._loop.call_later(decision.delay, self._start)

    def _fail(self, code: int, cause: str, detail: str, process: int | None = None) -> None:
        def fail() -> None:
            ended = {} if process is None else {"process_exit_code": process}
            self._report("failed", exit_code=int(code), cause=cause, detail=detail, **ended)
            self._leave(code, f"{cause}: {detail}" if detail else cause)

        if self._following is None or self._stopping or self._verdict is not None:
            fail()
        else:  # a program may fail for want of its leader, which is about to be done
            self._unless_over(fail, time.monotonic() + _ABOUT_TO_END)

    def _unless_over(self, fail: Callable[[], None], until: float) -> None:
        """Fail, unless the task that leads says within some seconds that the run has ended."""
        assert self._following is not None  # noqa: S101 - only called where it is

        def answered(news: News | None) -> None:
            if self._leaving:
                return
            if news is not None and news.state == RUNNING and time.monotonic() < until:
                self._loop.call_later(_ASK_AGAIN, lambda: None if self._leaving else self._unless_over(fail, until))
            elif news is None or news.state != SUCCEEDED:
                fail()

        self._following.ask_now(answered)

    def _done(self) -> None:
        """Leave, and say what the output does not: that this task is done."""
        self._report("done", seconds=round(time.monotonic() - self._began, 3))
        self._leave(ExitCode.DONE)

    def _leave(self, code: int, why: str = "") -> None:
        """End with `code`: at once, or when those who wait for this task know."""
        self._exit_code, self._leaving = int(code), True
        comes_back = code in _COMES_BACK or code >= OF_SIGNALS or (self._stopping and code != ExitCode.DONE)
        if self._leading is not None and not comes_back:
            self._tell_all(self._leading, why)
        elif self._following is not None and not comes_back and not self._over:
            self._following.has_ended(FAILED if code else SUCCEEDED)
            if code or not self._part.waits or self._stopping:
                self._tell_leader(time.monotonic() + STAYS)
        else:
            self._loop.stop()

    # The end of the run

    @property
    def _part(self) -> Part:
        assert self._job.part is not None  # noqa: S101 - nobody else asks
        return self._job.part

    def _take_part(self, part: Part) -> None:
        if part.leads:
            self._leading = Leading(part, self._loop)
            if not self._leading.answers:
                message = f"port {part.address.rpartition(':')[2]} is another's: the other tasks cannot ask when the run has ended"
                self._report("notice", message=message)
            return
        hears = Hears(self._run_has_ended, self._leader_is_gone, partial(self._report, "notice"))
        self._following = Following(part, self._loop, hears)

    def _tell_all(self, leading: Leading, why: str) -> None:
        """Inform the others how the run has ended: this is the task that leads."""

        def leave(news: News) -> None:
            if news.state == FAILED and self._exit_code == ExitCode.DONE:  # a worker that it needs
                self._lose(news.reason, "", ExitCode.FAILURE)
            self._loop.stop()

        if self._exit_code != ExitCode.DONE:
            leading.fail(why, leave)
        elif self._stopping and not leading.complete:
            self._stop_leaving()
        else:
            if self._stopping:
                leading.hurry()
            leading.succeed(leave)

    def _tell_leader(self, until: float) -> None:
        """Leave when the leader knows that this task has ended, or does not answer. A task that fails the run asks again, `until` a time: the leader may be starting."""
        following = self._following
        assert following is not None  # noqa: S101 - only called where it is

        def told(news: News | None) -> None:
            if self._part.waits and self._exit_code == ExitCode.DONE:
                if news is None or news.state == RUNNING:
                    self._exit_code = int(ExitCode.STOPPED)  # it comes back, and says so again
            elif self._part.waits and news is None and time.monotonic() < until:
                self._loop.call_later(_ASK_AGAIN, lambda: following.ask_now(told))
                return
            self._loop.stop()

        following.ask_now(told)

    def _run_has_ended(self, news: News) -> None:
        """Follow the task that leads: it was done, or has failed for good."""
        part = self._part
        self._over = news.state == SUCCEEDED
        if self._leaving:
            if not self._over and self._part.waits and self._exit_code == ExitCode.DONE:
                self._lose(f"{part.leader} has failed", news.reason)
            self._loop.stop()
        elif not self._over:
            self._end_task(f"{part.leader} has failed", news.reason, self._job.timeouts.ending)
        elif self._child.pid is not None:
            self._loop.call_later(part.grace, self._dismiss)
        else:
            if self._backoff is not None:
                self._backoff.cancel()
            self._done()

    def _leader_is_gone(self, reason: str) -> None:
        part = self._part
        cause = f"{part.leader} was gone for {part.orphan:g} s"
        if not self._leaving:
            self._end_task(cause, f"{part.address}: {reason}", self._job.timeouts.ending)
        elif self._exit_code == ExitCode.DONE:
            self._lose(cause, reason)

    def _lose(self, cause: str, detail: str, code: int = ExitCode.PEER_LOST) -> None:
        """Fail where the program is done, and the run is not."""
        self._report("failed", exit_code=int(code), cause=cause, detail=detail)
        self._exit_code = int(code)
        self._loop.stop()

    def _dismiss(self) -> None:
        if self._child.pid is not None and not self._stopping:
            self._report("notice", message="the run has succeeded; this task is ended")
            self._child.terminate()
            self._loop.call_later(self._job.timeouts.dismissed, lambda: self._child.kill("the run has succeeded"))

    def _hurry(self) -> None:
        """Stay no longer than others need to hear of the end: it is asked to stop when it has ended."""
        unfinished = self._part.waits if self._leading is None else not self._leading.complete
        if self._exit_code == ExitCode.DONE and unfinished and not self._over:
            self._stop_leaving()
        elif self._leading is None or self._signals > 1:
            self._loop.stop()
        else:
            self._leading.hurry()

    def _stop_leaving(self) -> None:
        """Leave as one that comes back: others are not done, and have to find it, or to hear of it."""
        self._exit_code = int(ExitCode.STOPPED)
        self._loop.stop()

    # Stopping

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals == 1 or self._leaving:
            self._stop(f"{number.name} received")
        else:
            self._child.kill("a second signal came")

    def _lifeline_ready(self) -> None:
        assert self._job.lifeline is not None  # noqa: S101 - only registered where it is
        with contextlib.suppress(OSError):
            if os.read(self._job.lifeline, 4096):
                return
        self._loop.forget(self._job.lifeline)
        self._stop("the launcher is gone")
        self._loop.call_later(
            self._job.timeouts.launcher_gone, lambda: self._child.kill("the launcher is gone, and the time to stop is over")
        )

    def _stop(self, reason: str) -> None:
        """Ask the training process to stop, once."""
        if self._leaving:
            self._hurry()
            return
        if self._stopping:
            return
        self._stopping = True
        serves = self._job.watched_chief is not None and self._child.pid is not None
        self._report("stopping", reason=f"{reason}; serving until the chief has saved" if serves else reason)
        if self._child.pid is None:  # between two attempts
            if self._backoff is not None:
                self._backoff.cancel()
            self._leave(ExitCode.STOPPED)
            return
        if self._job.watched_chief is not None:
            self._terminate_after_chief(self._job.watched_chief)
            return
        self._child.terminate()
        if self._peers_missing and self._job.built_in:  # training has not begun; TensorFlow may wait inside, deaf to signals
            self._loop.call_later(self._job.timeouts.ending, self._kill_unless_training)

    def _terminate_after_chief(self, address: str) -> None:
        """Stop a server once its chief, which saves its state, is gone."""
        self._child.warn()
        self._loop.call_later(self._job.timeouts.serve_on, self._child.terminate)
        Watch(self._loop, self._prober, [address], timeout=_CHIEF_IS_GONE, gone=lambda _reason: self._child.terminate())

    def _kill_unless_training(self) -> None:
        if self._peers_missing:
            self._child.kill("its peers were not there")

    def _end_task(self, cause: str, detail: str, within: float) -> None:
        """End the task with exit code 75, and its process by SIGKILL where it has not ended `within` so many seconds."""
        if self._stopping or self._verdict is not None:
            return
        if self._child.pid is None:
            if self._backoff is not None:
                self._backoff.cancel()
            self._verdict = (cause, detail)
            self._fail(ExitCode.PEER_LOST, cause, detail)
            return
        self._verdict = (cause, detail)
        self._child.terminate()
        self._loop.call_later(within, lambda: self._child.kill(cause))

    def _abandon(self, pid: int) -> None:
        self._fail(exit_code_of(-signal.SIGKILL), "the training process does not end, not even by SIGKILL", f"process {pid}")

    # Peers

    def _tell_waiting(self, missing: list[dict[str, str]], seconds: float) -> None:
        first = missing[:LISTED]
        tell = partial(self._report, "waiting", missing=first, more=len(missing) - len(first), seconds=round(seconds, 1))
        if missing:
            tell(timeout=self._job.timeouts.start)
        else:
            self._stalls.ask(lambda doing: tell(doing=doing.kind, place=doing.place))

    def _peers_there(self, seconds: float) -> None:
        self._peers_missing = False
        self._together = time.monotonic()
        if self._job.watched_workers:
            within = max(self._job.timeouts.saving, self._job.timeouts.orphan)
            self._workers = self._watch_for("every worker", self._job.watched_workers, "a worker answers again", within)
        if seconds >= self._job.timeouts.first_waiting:
            self._report("notice", message=f"every peer was reached, the last after {seconds:.1f} s")
            if not self._job.built_in:  # a training process of ours says so itself, when its model is built
                self._report("ready", seconds=round(seconds, 1))

    def _peers_not_there(self, missing: list[dict[str, str]]) -> None:
        timeouts = self._job.timeouts
        named = listed([f"{peer['task']} ({peer['address']}: {peer['reason']})" for peer in missing], LISTED)
        self._end_task(f"peers were not there after {timeouts.start:g} s", f"missing: {named}", timeouts.ending)

    def _watch_for(self, who: str, addresses: tuple[str, ...], back: str, within: float) -> Watch:
        """End the task, `within` so many seconds, when none of `addresses` gave a connection for limits.orphan_timeout."""
        orphan = self._job.timeouts.orphan
        place = listed(addresses, LISTED)

        def lost(reason: str) -> None:
            self._report("notice", message=f"{who} ({place}) does not answer: {reason}; this task ends when that lasts {orphan:g} s")

        return Watch(
            self._loop,
            self._prober,
            addresses,
            timeout=orphan,
            lost=lost,
            back=lambda: self._report("notice", message=back),
            gone=lambda reason: self._end_task(f"{who} was gone for {orphan:g} s", f"{place}: {reason}", within),
        )
