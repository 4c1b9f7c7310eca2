"""The small parent of a training process: starts and restarts it, passes signals on, and at the end kills every process it can."""

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
from trainer.event_loop import EventLoop, Timer
from trainer.events import FORWARDED, Event, join_names
from trainer.exit_codes import SIGNAL_BASE, ExitCode, exit_code_of
from trainer.output import Output
from trainer.parent_config import ParentConfig
from trainer.peers import MAX_LISTED, ConnectionProber, PeerWait, ReachabilityMonitor
from trainer.restart_in_place import NoRestart, RestartHistory, RestartInPlace, cause_of, decide_restart
from trainer.run_end import FAILED, FOLLOWERS_TIMEOUT, RUNNING, SUCCEEDED, RunEndClient, RunEndServer, RunEndStatus, RunEndTask
from trainer.stacks import Stacks
from trainer.stalls import StallDetector

Report = Callable[..., None]

_CHECKPOINTS = frozenset({"restored", "checkpoint"})  # events about a checkpoint, beside an evaluator's `evaluated`

# Exit code, beside 143, of a TensorFlow program that was asked to stop and has saved (PreemptionCheckpointHandler).
_PREEMPTED = 42
_RUN_END_WINDOW = 10.0  # seconds at the end of a run in which tasks may fail because others have already ended
_ASK_INTERVAL = 0.5  # seconds between two requests meanwhile
_RESTARTED = frozenset({int(ExitCode.STOPPED), int(ExitCode.PEER_LOST)})  # after these, and signals, the task starts again

# For servers, the end of the message `stopping`, by role.
_SERVING = {"ps": "; serving until the chief has saved", "worker": "; serving the calls that have begun"}
_CHIEF_TIMEOUT = 0.6  # seconds without a connection after which an expected end of the chief is assumed


def run_parent(config: ParentConfig, report: Report, output: Output) -> int:
    """Run the program of `config` to its end, restarts included, and return the exit code for this process. `report` writes to `output`.

    Handles this process's signals and reaps its children while it runs. When it returns, all output of the training process has been written, and
    its process group has been killed, except a process that is blocked on storage that does not answer.
    """
    with scratch.directory() as directory, EventLoop() as loop:
        try:
            with contextlib.closing(Stacks(loop, directory)) as stacks:
                return _Parent(config, _ignoring_broken_output(report), loop, output, stacks, directory).run()
        finally:
            output.detach()


def _ignoring_broken_output(report: Report) -> Report:
    def safely(*arguments: Any, **fields: Any) -> None:
        with contextlib.suppress(OSError):  # the reader of our output is gone; the training process must still be stopped cleanly
            report(*arguments, **fields)

    return safely


class _Parent:
    """The state of one task and its parent process."""

    def __init__(
        self, config: ParentConfig, report: Report, loop: EventLoop, output: Output, stacks: Stacks, directory: Path | None
    ) -> None:
        self._config, self._report, self._loop, self._output = config, report, loop, output
        self._child = Child(config, loop, output, stacks, directory, self._abandon)
        self._prober = ConnectionProber(loop)
        self._lifeline = config.lifeline  # None once it has closed
        self._attempt = 0
        self._began = 0.0
        self._history = RestartHistory()
        self._newest_checkpoint = -1  # step of the newest checkpoint that this task knows
        self._recovery: Timer | None = None
        self._backoff = Timer(lambda: None)
        self._peer_wait: PeerWait | None = None
        self._chief_monitor: ReachabilityMonitor | None = None  # until the task ends
        self._workers_monitor: ReachabilityMonitor | None = None  # until the end of an attempt that has reached all workers
        self._peers_missing = False
        self._connected_at: float | None = None  # when this attempt had reached every peer
        self._stopping = False
        self._signals = 0
        self._end_cause: tuple[str, str] | None = None  # cause and detail, once the parent has decided to end the task
        self._stall_detector = StallDetector(config, report, loop, stacks, self._prober, self._kill_stalled)
        self._stall_reason = ""  # the stall for which the attempt was killed
        self._exit_code = int(ExitCode.FAILURE)
        self._end_server: RunEndServer | None = None
        self._end_client: RunEndClient | None = None
        self._succeeded = False  # the run has succeeded, however this task ends
        self._exiting = False  # the task has ended, and stays until others know

    def run(self) -> int:
        """Run until the task has ended."""
        loop = self._loop
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # started with nohup
            loop.on_signal(number, lambda number=number: self._signalled(signal.Signals(number)))  # type: ignore[misc]
        loop.on_signal(signal.SIGCHLD, self._reap)
        if self._config.lifeline is not None:
            os.set_inheritable(self._config.lifeline, False)
            loop.on_ready(self._config.lifeline, selectors.EVENT_READ, self._lifeline_ready)
        if self._config.run_end_task is not None:
            self._join(self._config.run_end_task)
        self._output.on_event, self._output.on_output = self._on_event, self._stall_detector.on_output
        self._output.attach(loop)
        try:
            loop.call_later(0, self._start)
            loop.run()
        finally:
            self._child.close()
        return self._exit_code

    # Attempts

    def _start(self) -> None:
        self._attempt += 1
        self._began = time.monotonic()
        self._peers_missing, self._connected_at, self._stall_reason = bool(self._config.required_peers), None, ""
        self._child.start(self._attempt)
        if self._child.pid is None:
            self._child_ended(int(ExitCode.FAILURE))
            return
        self._stall_detector.begin(self._child.pid)
        self._report("started", attempt=self._attempt, role=self._config.role, pid=self._child.pid)
        if self._config.runs_built_in_trainer:
            from trainer.uninterruptible import UninterruptibleExit

            UninterruptibleExit(self._child, self._loop, self._report, lambda: self._stopping, self._child_ended, self._abandon).watch()
        if self._config.policy.recovers_after < math.inf:
            self._recovery = self._loop.call_later(self._config.policy.recovers_after, self._recover)
        timeouts = self._config.timeouts
        self._peer_wait = PeerWait(
            self._loop,
            self._prober,
            self._config.required_peers,
            timeout=timeouts.start,
            first_report_after=timeouts.first_report_after,
            report_interval=timeouts.report_interval,
            no_step_report=timeouts.no_step_report if self._config.trains else None,
            on_waiting=self._report_waiting,
            on_complete=self._peers_connected,
            on_timeout=self._peers_timed_out,
        )
        chief = self._config.watched_chief
        if self._chief_monitor is None and chief is not None:
            self._chief_monitor = self._watch_for("the chief", (chief,), "the chief answers again", timeouts.kill_after)

    def _reap(self) -> None:
        code = self._child.reap()
        if code is not None:
            self._child_ended(code)

    def _child_ended(self, code: int) -> None:
        for one in (self._peer_wait, self._workers_monitor, self._recovery, self._stall_detector):
            if one is not None:
                one.cancel()
        self._output.take()
        # SIGKILL after a stall does not mean that memory ran out.
        code, detail, fingerprint = (int(ExitCode.FAILURE), self._stall_reason, "") if self._stall_reason else self._child.diagnose(code)
        if self._succeeded:
            self._done()
        elif self._end_cause is not None and (code != ExitCode.DONE or not self._config.runs_built_in_trainer):
            self._fail(ExitCode.PEER_LOST, *self._end_cause)
        elif code == ExitCode.DONE and (self._stopping or self._config.policy.restart != "always"):
            if self._stopping and not self._config.runs_built_in_trainer:  # the program is done: only its output shows that
                self._done()
            else:
                self._exit(ExitCode.DONE)
        elif self._stopping:
            self._ended_on_request(code, detail)
        elif code == ExitCode.PEER_LOST and self._config.role == "evaluator" and self._config.runs_built_in_trainer:
            self._fail(code, "the chief is gone", detail)  # the evaluator has already waited for it
        else:
            now = time.monotonic()
            connected = 0.0 if self._connected_at is None else now - self._connected_at
            # `restart: exit_code` retries signals.
            policy = replace(self._config.policy, restart="on_failure") if self._stall_reason else self._config.policy
            self._apply(code, decide_restart(code, now - self._began, self._history, policy, fingerprint, connected), detail)

    def _on_event(self, event: Event) -> None:
        """Forward the events of the training process; note a newer checkpoint, from which a restart resumes."""
        self._stall_detector.on_event(event)
        if event["event"] not in FORWARDED:
            return
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):  # a program's own event may lack fields of its line
            self._report(event["event"], **{name: value for name, value in event.items() if name != "event"})
        self._child.is_done |= event["event"] == "done"
        if event["event"] in {"progress", "done"} and self._peer_wait is not None:
            self._peer_wait.note_step()
        step = event.get("step")
        is_checkpoint = event["event"] in _CHECKPOINTS or (event["event"] == "evaluated" and self._config.role == "evaluator")
        if is_checkpoint and isinstance(step, int) and step > self._newest_checkpoint:
            self._newest_checkpoint = step
            self._history = replace(self._history, fingerprint="", repeats=0)  # the next failure is a different one
            self._recover()

    def _kill_stalled(self, why: str) -> None:
        if not self._stopping:
            self._stall_reason = why
            self._child.kill(why)

    def _recover(self) -> None:
        """Reset the count of restarts."""
        if self._history.restarts:
            self._history = replace(self._history, restarts=0)
            self._report("recovered", restarts=0, left=self._config.policy.max_restarts)

    def _ended_on_request(self, code: int, detail: str) -> None:
        nothing_to_save = self._peers_missing and code == -signal.SIGKILL and self._config.runs_built_in_trainer
        saved = code == _PREEMPTED and not self._config.runs_built_in_trainer
        if nothing_to_save or saved or exit_code_of(code) in {ExitCode.STOPPED, ExitCode.PEER_LOST}:
            self._exit(ExitCode.STOPPED)
        elif self._child.kill_reason:
            self._fail(exit_code_of(code), f"killed before it had stopped: {self._child.kill_reason}", detail)
        else:
            self._fail(exit_code_of(code), f"{cause_of(code)} while it was stopping", detail)

    def _apply(self, code: int, decision: RestartInPlace | NoRestart, detail: str) -> None:
        if self._stall_reason and self._config.stalls.on_stall == "fail":
            self._fail(ExitCode.FINAL_FAILURE, self._stall_reason, "")
            return
        if isinstance(decision, NoRestart):
            self._fail(decision.exit_code, decision.cause, detail, exit_code_of(code))
            return
        self._history = decision.history
        self._report(
            "restarting",
            attempt=self._attempt + 1,
            restarts=decision.history.restarts,
            left=self._config.policy.max_restarts - decision.history.restarts,
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
            self._exit(code, f"{cause}: {detail}" if detail else cause)

        if self._end_client is None or self._stopping or self._end_cause is not None:
            fail()
        else:  # a program may fail because its leader is about to end
            self._fail_unless_done(fail, time.monotonic() + _RUN_END_WINDOW)

    def _fail_unless_done(self, fail: Callable[[], None], until: float) -> None:
        """Fail, unless the leader reports within some seconds that the run has succeeded."""
        assert self._end_client is not None  # noqa: S101 - only called where it is

        def answered(status: RunEndStatus | None) -> None:
            if self._exiting:
                return
            if status is not None and status.state == RUNNING and time.monotonic() < until:
                self._loop.call_later(_ASK_INTERVAL, lambda: None if self._exiting else self._fail_unless_done(fail, until))
            elif status is None or status.state != SUCCEEDED:
                fail()

        self._end_client.ask_now(answered)

    def _done(self) -> None:
        """Report `done` for a program that reports nothing itself, and exit."""
        self._report("done", seconds=round(time.monotonic() - self._began, 3))
        self._exit(ExitCode.DONE)

    def _exit(self, code: int, why: str = "") -> None:
        """Exit with `code`: at once, or once the tasks that wait for this one have been notified."""
        self._exit_code, self._exiting = int(code), True
        restarted = code in _RESTARTED or code >= SIGNAL_BASE or (self._stopping and code != ExitCode.DONE)
        if self._end_server is not None and not restarted:
            self._notify_all(self._end_server, why)
        elif self._end_client is not None and not restarted and not self._succeeded:
            self._end_client.report_end(FAILED if code else SUCCEEDED)
            if code or not self._run_end_task.is_required or self._stopping:
                self._notify_leader(time.monotonic() + FOLLOWERS_TIMEOUT)
        else:
            self._loop.stop()

    # The end of the run

    @property
    def _run_end_task(self) -> RunEndTask:
        assert self._config.run_end_task is not None  # noqa: S101 - only called if there is one
        return self._config.run_end_task

    def _join(self, task: RunEndTask) -> None:
        if task.is_leader:
            self._end_server = RunEndServer(task, self._loop)
            if not self._end_server.answers:
                port = task.leader_address.rpartition(":")[2]
                message = f"port {port} is in use by another process: until it is free, other tasks cannot ask whether the run has ended"
                self._report("notice", message=message)
            return
        self._end_client = RunEndClient(task, self._loop, self._run_ended, self._leader_lost, partial(self._report, "notice"))

    def _notify_all(self, server: RunEndServer, why: str) -> None:
        """Inform the other tasks, as the leader, how the run has ended."""

        def finish(status: RunEndStatus) -> None:
            if status.state == FAILED and self._exit_code == ExitCode.DONE:  # a required worker has failed
                self._fail_run(status.reason, "", ExitCode.FAILURE)
            self._loop.stop()

        if self._exit_code != ExitCode.DONE:
            server.fail(why, finish)
        elif self._stopping and not server.complete:
            self._exit_stopped()
        else:
            if self._stopping:
                server.exit_soon()
            server.succeed(finish)

    def _notify_leader(self, until: float) -> None:
        """Exit once the leader knows of this task's end, or does not answer. If it has to know, ask until `until`: it may be starting."""
        client = self._end_client
        assert client is not None  # noqa: S101 - only called where it is

        def answered(status: RunEndStatus | None) -> None:
            if self._run_end_task.is_required and self._exit_code == ExitCode.DONE:
                if status is None or status.state == RUNNING:
                    self._exit_code = int(ExitCode.STOPPED)  # the task starts again, and reports its end again
            elif self._run_end_task.is_required and status is None and time.monotonic() < until:
                self._loop.call_later(_ASK_INTERVAL, lambda: client.ask_now(answered))
                return
            self._loop.stop()

        client.ask_now(answered)

    def _run_ended(self, status: RunEndStatus) -> None:
        """End this task: the leader reports the end of the run."""
        task = self._run_end_task
        self._succeeded = status.state == SUCCEEDED
        if self._exiting:
            if not self._succeeded and task.is_required and self._exit_code == ExitCode.DONE:
                self._fail_run(f"{task.leader} has failed", status.reason)
            self._loop.stop()
        elif not self._succeeded:
            self._end_task(f"{task.leader} has failed", status.reason, self._config.timeouts.kill_after)
        elif self._child.pid is not None:
            self._loop.call_later(task.grace, self._end_program)
        else:
            self._backoff.cancel()
            self._done()

    def _leader_lost(self, seconds: float) -> None:
        task = self._run_end_task
        cause, detail = f"{task.leader} was gone for {seconds:g} s", f"no answer from {task.leader_address}"
        if not self._exiting:
            self._end_task(cause, detail, self._config.timeouts.kill_after)
        elif self._exit_code == ExitCode.DONE:
            self._fail_run(cause, detail)

    def _fail_run(self, cause: str, detail: str, code: int = ExitCode.PEER_LOST) -> None:
        """Fail although the program is done: the run has not succeeded."""
        self._report("failed", exit_code=int(code), cause=cause, detail=detail)
        self._exit_code = int(code)
        self._loop.stop()

    def _end_program(self) -> None:
        if self._child.pid is not None and not self._stopping:
            self._report("notice", message="the run has succeeded; this task is ended")
            self._child.terminate()
            self._loop.call_later(self._config.timeouts.kill_after_success, lambda: self._child.kill("the run has succeeded"))

    def _exit_soon(self) -> None:
        """Handle a request to stop after the task has ended: wait a shorter time for the others."""
        unfinished = self._run_end_task.is_required if self._end_server is None else not self._end_server.complete
        if self._exit_code == ExitCode.DONE and unfinished and not self._succeeded:
            self._exit_stopped()
        elif self._end_server is None or self._signals > 1:
            self._loop.stop()
        else:
            self._end_server.exit_soon()

    def _exit_stopped(self) -> None:
        """Exit with 143, to be restarted: other tasks are not done, and need this one."""
        self._exit_code = int(ExitCode.STOPPED)
        self._loop.stop()

    # Stopping

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals == 1 or self._exiting:
            self._stop(f"{number.name} received")
        elif self._lifeline is None:  # a supervisor kills by itself; one stop may come from it and from systemd, which signals all
            self._child.kill("a second signal came")

    def _lifeline_ready(self) -> None:
        assert self._lifeline is not None  # noqa: S101 - only registered where it is
        with contextlib.suppress(OSError):
            if os.read(self._lifeline, 4096):
                return
        self._loop.forget(self._lifeline)
        self._lifeline = None
        self._stop("the run's supervisor is gone")
        self._loop.call_later(self._config.timeouts.kill_after_supervisor_lost, partial(self._child.kill, "the run's supervisor is gone"))

    def _stop(self, reason: str) -> None:
        """Ask the training process to stop, once."""
        if self._exiting:
            self._exit_soon()
            return
        if self._stopping:
            return
        self._stopping = True
        serves = self._config.watched_chief is not None and self._child.pid is not None
        self._report("stopping", reason=reason + _SERVING[self._config.role] if serves else reason)
        if self._child.pid is None:  # between two attempts
            self._backoff.cancel()
            self._exit(ExitCode.STOPPED)
            return
        if self._config.watched_chief is not None:
            self._terminate_after_chief(self._config.watched_chief)
            return
        self._child.terminate()
        # Training has not begun; TensorFlow may wait without handling signals.
        if self._peers_missing and self._config.runs_built_in_trainer:
            self._loop.call_later(self._config.timeouts.kill_after, self._kill_unless_training)

    def _terminate_after_chief(self, address: str) -> None:
        """Stop a server once its chief, which saves its state, is gone."""
        self._child.notify_stop()
        self._loop.call_later(self._config.timeouts.server_stop, self._child.terminate)
        ReachabilityMonitor(self._loop, self._prober, [address], timeout=_CHIEF_TIMEOUT, on_timeout=lambda _reason: self._child.terminate())

    def _kill_unless_training(self) -> None:
        if self._peers_missing:
            self._child.kill("its peers were not there")

    def _end_task(self, cause: str, detail: str, within: float) -> None:
        """End the task with exit code 75; kill its process if it has not ended `within` seconds."""
        if self._stopping or self._end_cause is not None:
            return
        self._end_cause = (cause, detail)
        if self._child.pid is None:
            self._backoff.cancel()
            self._fail(ExitCode.PEER_LOST, cause, detail)
            return
        self._child.terminate()
        self._loop.call_later(within, lambda: self._child.kill(cause))

    def _abandon(self, pid: int) -> None:
        self._fail(exit_code_of(-signal.SIGKILL), "the training process does not end, not even by SIGKILL", f"process {pid}")

    # Peers

    def _report_waiting(self, missing: list[dict[str, str]], seconds: float) -> None:
        first = missing[:MAX_LISTED]
        report = partial(self._report, "waiting", missing=first, more=len(missing) - len(first), seconds=round(seconds, 1))
        if missing:
            report(timeout=self._config.timeouts.start)
        else:
            self._stall_detector.ask(lambda activity: report(doing=activity.kind, place=activity.detail))

    def _peers_connected(self, seconds: float) -> None:
        self._peers_missing = False
        self._connected_at = time.monotonic()
        if self._config.watched_workers:
            within = max(self._config.timeouts.kill_after_while_saving, self._config.timeouts.orphan)
            self._workers_monitor = self._watch_for("every worker", self._config.watched_workers, "a worker answers again", within)
        if seconds >= self._config.timeouts.first_report_after:
            self._report("notice", message=f"every peer was reached, the last after {seconds:.1f} s")
            if not self._config.runs_built_in_trainer:  # a training process of ours reports it itself, once its model is built
                self._report("ready", seconds=round(seconds, 1))

    def _peers_timed_out(self, missing: list[dict[str, str]]) -> None:
        timeouts = self._config.timeouts
        named = join_names([f"{peer['task']} ({peer['address']}: {peer['reason']})" for peer in missing], MAX_LISTED)
        self._end_task(f"peers were not there after {timeouts.start:g} s", f"missing: {named}", timeouts.kill_after)

    def _watch_for(self, name: str, addresses: tuple[str, ...], answer_notice: str, within: float) -> ReachabilityMonitor:
        """End the task, as `_end_task` does, when no address has accepted a connection for limits.orphan_timeout."""
        orphan = self._config.timeouts.orphan
        shown = join_names(addresses, MAX_LISTED)

        def report_unreachable(reason: str) -> None:
            self._report("notice", message=f"{name} ({shown}) does not answer: {reason}; this task ends if that lasts {orphan:g} s")

        return ReachabilityMonitor(
            self._loop,
            self._prober,
            addresses,
            timeout=orphan,
            on_unreachable=report_unreachable,
            on_answer=lambda: self._report("notice", message=answer_notice),
            on_timeout=lambda reason: self._end_task(f"{name} was gone for {orphan:g} s", f"{shown}: {reason}", within),
        )
