"""Keeps one local run: starts its tasks, restarts them, ends them, and writes down what it knows.

One process a run and one thread: it waits for output, signals and deadlines in one place. Imports neither TensorFlow
nor what draws on terminals. `python -m launcher.backend.local RUN_DIR` is started by `starting.py`.

SIGTERM asks every task to save and stop; a second one, or SIGQUIT, kills. When the lifeline closes, the launcher that
waits in the foreground is gone, and the run stops as if asked to.
"""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass

from launcher.backend.local.lifelines import Lifelines
from launcher.backend.local.signal_pipe import SignalPipe
from launcher.backend.local.task import TaskRun
from launcher.plan.addresses import LOOPBACK, readdress
from launcher.plan.models import Plan
from launcher.plan.plan_json import to_document
from launcher.runs import locks, orphans, ports, process_identity, run_json, state_file, stop_order
from launcher.runs.paths import RunPaths
from launcher.runs.progress import Progress
from launcher.runs.restart_policy import Verdict
from launcher.runs.state_file import Snapshot
from launcher.runs.state_writer import Record, say
from launcher.runs.status import RunStatus, State
from trainer.events import Event
from trainer.exit_codes import ExitCode

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# No signal is lost, but a process that is gone must be noticed even if one were.
_LONGEST_SLEEP = 1.0


@dataclass
class _Ending:
    """How the run ends, once that is known, and which tasks are still to be asked to leave."""

    state: State
    reason: str
    waves: list[frozenset[str]]
    grace: float
    wave: frozenset[str] = frozenset()  # asked by now; the next one is asked once these have ended


class Supervisor:
    """One run from its first process to its last."""

    def __init__(self, layout: RunPaths, plan: Plan, *, lifeline: int | None) -> None:
        self._layout = layout
        self._selector = selectors.DefaultSelector()
        members = [task.name for task in plan.tasks if task.role != "evaluator"]
        self._ports = ports.hold(len(members))
        held = {name: f"{LOOPBACK}:{port}" for name, port in zip(members, self._ports.ports, strict=True)}
        self.plan = readdress(plan, held)
        self._leader = self.plan.decisive[0]
        self._trains = any(stop_order.trains(task) for task in self.plan.tasks)
        self._tasks = {task.name: TaskRun(task, layout.log(task.name), layout.stacks_socket(task.name)) for task in self.plan.tasks}
        self._progress = Progress()
        self._ending: _Ending | None = None
        self._stop_requests = 0
        self._started = time.time()
        self._ended: float | None = None
        began = time.monotonic()
        self._ready_by: float | None = began + plan.start_timeout if self._trains else None
        self._done_by: float | None = began + plan.deadline if plan.deadline else None
        self._record = Record(layout.state, self._snapshot)
        self._home = locks.Hold(layout.lock)
        self._lost, self._seen = False, time.time()  # the directory, and when it was there last
        self._host = socket.gethostname()
        self._self = process_identity.identify(os.getpid())
        self._lifelines = Lifelines(stop_order.waves(self.plan))
        self._signals = SignalPipe(_SIGNALS)
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signal)
        if lifeline is not None:
            os.set_blocking(lifeline, False)
            self._selector.register(lifeline, selectors.EVENT_READ, lambda: self._on_lifeline(lifeline))

    def start(self) -> None:
        """Start every task. Raises OSError when the machine does not let it; `abort` then ends what was started."""
        shutil.rmtree(self._layout.scratch, ignore_errors=True)  # stop files of an earlier run would stop this one's servers
        self._layout.scratch.mkdir()
        state_file.write_json(self._layout.plan, to_document(self.plan))
        self._record.reserve()
        for task in self._tasks.values():
            task.log.note(f"run {self.plan.name} starts")
            self._start(task)
        self._record.save()

    def run(self) -> None:
        """Keep the run until nothing of it is left."""
        while not self._over():
            for key, _ in self._selector.select(self._sleep()):
                key.data()
            self._reap()
            self._meet_deadlines()
            self._next_wave()
            self._look_for_the_directory()
            self._record.save_if_due()
        self._settle_run()

    def abort(self, reason: str) -> None:
        """Kill everything and note the run as failed: the launcher itself cannot go on."""
        self._ending = _Ending(State.FAILED, reason, [], 0)
        for task in self._tasks.values():
            task.kill()
            if task.running:
                task.settle(State.STOPPED, "killed with the run")
        self._settle_run()

    # What happened

    def _on_output(self, task: TaskRun) -> None:
        events, more = task.read()
        self._take_in(task, events)
        if not more and task.output is not None:
            # It closed its output but runs on; its exit is noticed by itself.
            self._selector.unregister(task.output)

    def _on_signal(self) -> None:
        for number in self._signals.read():
            if number in {signal.SIGTERM, signal.SIGINT}:
                self._stop("asked to stop", now=self._stop_requests > 0)
            elif number == signal.SIGQUIT:
                self._stop("asked to stop at once", now=True)

    def _on_lifeline(self, lifeline: int) -> None:
        with contextlib.suppress(BlockingIOError):
            if os.read(lifeline, 4096) == b"":
                self._selector.unregister(lifeline)
                self._stop("the launcher that ran it in the foreground is gone", now=False)

    def _take_in(self, task: TaskRun, events: Iterable[Event]) -> None:
        for event in events:
            told_of = self._tasks.get(str(event.get("task")), task)
            changed = told_of.tell(event, own=told_of is task)
            progressed = self._progress.apply(event, leads=task.name == self._leader and told_of is task)
            if changed or progressed:
                self._record.changed(at_once=changed)
            if self._progress.ready:
                self._ready_by = None
            if changed and event["event"] == "restarting" and told_of is task:
                self._revive_peers(task)

    def _reap(self) -> None:
        for task in self._tasks.values():
            if task.running and (code := task.poll()) is not None:
                self._on_exit(task, code)

    def _on_exit(self, task: TaskRun, code: int) -> None:
        if task.output is not None and task.output in self._selector.get_map():
            self._selector.unregister(task.output)
        self._take_in(task, task.ended_with(code))
        say(f"{task.name} ended: exit code {code}")
        self._record.changed()
        if self._ending:
            self._settle_task(task, code, self._ending)
            return
        if self._tasks[self._leader].state == State.SUCCEEDED and task.name not in self.plan.decisive:
            # Training is done; the evaluator alone has work left.
            task.settle(State.SUCCEEDED if code == ExitCode.DONE else State.STOPPED, task.why(code) if code else "")
            return
        match task.verdict(code):
            case Verdict.DONE:
                task.settle(State.SUCCEEDED)
                # A peer that is going back to the last checkpoint may have said so just before this one ended.
                for peer in [peer for peer in self._tasks.values() if peer.state == State.RESTARTING]:
                    self._revive_peers(peer)
                if all(self._tasks[name].state == State.SUCCEEDED for name in self.plan.decisive):
                    self._finish()
            case Verdict.GIVE_UP:
                self._give_up(task, code)
            case Verdict.RESTART | Verdict.RESTART_UNCOUNTED as verdict:
                self._restart(task, task.why(code), counts=verdict is Verdict.RESTART)

    def _meet_deadlines(self) -> None:
        now = time.monotonic()
        if self._ready_by is not None and now >= self._ready_by and not self._ending:
            waiting = [f"{task.name} is {task.reason}" for task in self._tasks.values() if task.state == State.PENDING and task.reason]
            detail = ": " + "; ".join(waiting) if waiting else ""
            self._stop_all(State.FAILED, f"training did not start within the start timeout of {self.plan.start_timeout:g} s{detail}")
        if self._done_by is not None and now >= self._done_by and not self._ending:
            self._stop_all(State.FAILED, f"not done within the deadline of {self.plan.deadline:g} s")
        for task in self._tasks.values():
            if task.restart_at is not None and now >= task.restart_at:
                self._start_again(task)
            if task.term_at is not None and now >= task.term_at:
                task.terminate()
            if task.kill_at is not None and now >= task.kill_at:
                task.kill()

    def _look_for_the_directory(self) -> None:
        """Kill every task where the run's directory was removed: what they would save would come back in its place."""
        if self._lost:
            return
        if not self._home.lost():
            self._seen = time.time()
            return
        self._lost = True
        self._record.lose()
        self._stop(f"{self._layout.run_dir} was removed or replaced while the run ran", now=True)

    # What follows

    def _start(self, task: TaskRun) -> None:
        output = task.start(self._lifelines.of(task.name), self._lifelines.kept_by(task.name))
        self._selector.register(output, selectors.EVENT_READ, lambda: self._on_output(task))
        say(f"{task.name} started: attempt {task.attempt}, pid {task.identity.pid if task.identity else 0}")
        self._record.changed()

    def _start_again(self, task: TaskRun) -> None:
        try:
            self._start(task)
        except OSError as error:
            cause = f"it could not be started: {error.strerror}"
            if task.used_up:
                task.settle(State.FAILED, cause)
                self._stop_all(State.FAILED, f"{task.name}: {cause}")
            else:
                self._restart(task, cause, counts=True)

    def _restart(self, task: TaskRun, cause: str, *, counts: bool) -> None:
        seconds = task.restart_later(cause, counts=counts)
        say(f"{task.name} is started again in {seconds:.0f} s: {cause}")
        self._record.changed()
        self._revive_peers(task)

    def _revive_peers(self, task: TaskRun) -> None:
        """Start peers again that were done already: a task that goes back to the last checkpoint needs all of them."""
        if task.task.restart.scope != "all" or self._ending or self._tasks[self._leader].state == State.SUCCEEDED:
            return
        for peer in self._tasks.values():
            if peer is not task and peer.state == State.SUCCEEDED and peer.task.role != "evaluator":
                peer.restart_later(f"{task.name} is started again and needs it", counts=False)

    def _give_up(self, task: TaskRun, code: int) -> None:
        why = task.why(code)
        task.settle(State.FAILED, why)
        self._stop_all(State.FAILED, f"{task.name} failed on attempt {task.attempt} (exit code {code}): {why}")

    def _finish(self) -> None:
        say("the run's work is done")
        self._ending = _Ending(State.SUCCEEDED, "", [], self.plan.grace_period)
        for task in self._tasks.values():
            self._dismiss(task, after=stop_order.own_time(self.plan, task.task), ending=self._ending)

    def _stop(self, reason: str, *, now: bool) -> None:
        self._stop_requests += 1
        ending = self._ending or self._stop_all(State.STOPPED, reason)
        if now:
            say("killing every task")
            ending.waves.clear()
        for task in self._tasks.values():
            if now:
                task.kill_at = time.monotonic()
            elif task.term_at is not None:
                task.term_at = time.monotonic()

    def _stop_all(self, outcome: State, reason: str) -> _Ending:
        say(f"stopping: {reason}")
        began = self._progress.ready or not self._trains
        grace = self.plan.grace_period if began else min(stop_order.NOTHING_TO_SAVE, self.plan.grace_period)
        self._ending = ending = _Ending(outcome, reason, stop_order.waves(self.plan), grace)
        for task in self._tasks.values():
            if task.state == State.RESTARTING and not task.running:
                task.settle(State.STOPPED, task.reason)
        self._record.changed()
        return ending

    def _next_wave(self) -> None:
        ending = self._ending
        while ending and ending.waves and not any(self._tasks[name].running for name in ending.wave):
            ending.wave = ending.waves.pop(0)
            for name in ending.wave:
                self._dismiss(self._tasks[name], after=0, ending=ending)

    def _dismiss(self, task: TaskRun, *, after: float, ending: _Ending) -> None:
        """Give a task time to end by itself, then ask it to, then kill it."""
        if task.running:
            task.term_at = time.monotonic() + after
            task.kill_at = task.term_at + ending.grace
            if after == 0:
                task.terminate()
        elif task.state == State.RESTARTING:
            task.settle(State.STOPPED, "the run ended before it was started again")

    def _settle_task(self, task: TaskRun, code: int, ending: _Ending) -> None:
        if code == ExitCode.DONE:
            task.settle(State.SUCCEEDED)
        elif task.killed:
            task.settle(State.STOPPED, f"killed: it did not stop within {ending.grace:g} s" if self._stop_requests < 2 else "killed")
        elif task.told and code == ExitCode.STOPPED:
            done = ending.state == State.SUCCEEDED
            task.settle(State.SUCCEEDED if done else State.STOPPED, "stopped at the end of the run" if done else "")
        else:
            task.settle(State.STOPPED if ending.state != State.SUCCEEDED else State.FAILED, task.why(code))

    def _settle_run(self) -> None:
        ending = self._ending or _Ending(State.FAILED, "no task was left", [], 0)
        # A user's own program that is asked to stop says by exit 0 that it is done: all of its tasks do.
        needed = self.plan.decisive if self._trains else self._tasks
        if ending.state == State.STOPPED and all(self._tasks[name].state == State.SUCCEEDED for name in needed):
            ending.state, ending.reason = State.SUCCEEDED, "it was done before it stopped"
        if ending.state == State.STOPPED and self._progress.checkpoint_step is not None:
            ending.reason += f"; the last checkpoint is of step {self._progress.checkpoint_step}"
        self._ending = ending
        self._ended = time.time()
        for task in self._tasks.values():
            task.close()
        if not self._lost:
            if self._trains:
                run_json.settle(self._layout, ending.state, ending.reason)
            shutil.rmtree(self._layout.scratch, ignore_errors=True)
        elif not self._layout.lock.exists():  # else a run that is starting there removes it
            orphans.remove_returned(self._layout, self._seen)
        say(f"{ending.state}: {ending.reason}" if ending.reason else ending.state)
        self._record.save_at_last()
        self._ports.close()

    # Bookkeeping

    def _over(self) -> bool:
        waiting = any(task.running or task.restart_at is not None for task in self._tasks.values())
        return self._ending is not None and not self._ending.waves and not waiting

    def _sleep(self) -> float:
        times = [self._record.due, *(() if self._ending else (self._ready_by, self._done_by))]
        for task in self._tasks.values():
            times += (task.restart_at, task.term_at, task.kill_at)
        due = min((at for at in times if at is not None), default=None)
        return _LONGEST_SLEEP if due is None else min(_LONGEST_SLEEP, max(0, due - time.monotonic()))

    def _snapshot(self) -> Snapshot:
        ended = self._ended is not None
        underway = State.RUNNING if self._progress.ready or not self._trains else State.PENDING
        status = RunStatus(
            name=self.plan.name,
            backend="local",
            state=self._ending.state if self._ending and ended else underway,
            reason=self._ending.reason if self._ending else "",
            run_dir=str(self._layout.run_dir),
            spec_digest=self.plan.spec_digest,
            strategy=self.plan.strategy,
            started=self._started,
            ended=self._ended,
            tasks=tuple(task.status() for task in self._tasks.values()),
            **self._progress.fields(ended=ended),
        )
        leaders = {name: task.identity for name, task in self._tasks.items() if task.identity is not None}
        return Snapshot(status, self._host, self._self, self.plan.grace_period, leaders, self._stop_requests > 0)
