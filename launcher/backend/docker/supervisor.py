"""Keeps one run of containers: has Compose start it, watches it, ends it, and writes down what it knows.

One process a run, started by launcher.runs.spawn as the local supervisor is. The engine starts lost containers again by
itself, and goes on when this process is gone; what only the keeper does is to end a run that cannot succeed at once, to start
again what the engine leaves alone, to let servers go when the work is done, and to meet the deadline.
"""

import contextlib
import os
import queue
import signal
import socket
import threading
import time
from pathlib import Path

from docker.models.containers import Container

from launcher.backend.docker import container_status
from launcher.backend.docker.compose_up import begin
from launcher.backend.docker.engine import ERRORS, Engine
from launcher.backend.docker.event_stream import Asked, Ended, Heard, Inbox, Watch, Wrote
from launcher.backend.docker.sidecars import Sidecars
from launcher.backend.docker.supervised_task import Ending, SupervisedTask
from launcher.backend.docker.task_state import OVER, is_final
from launcher.plan.models import Plan
from launcher.runs import locks, process_identity, restart_policy, stop_order
from launcher.runs.paths import RunPaths
from launcher.runs.progress import Progress
from launcher.runs.restart_policy import Verdict
from launcher.runs.state_file import Snapshot
from launcher.runs.state_writer import Record, say
from launcher.runs.status import LogLine, RunStatus, State
from trainer.exit_codes import ExitCode

COMPOSE_FILE = "compose.yaml"
_LOOK_EVERY = 0.5  # seconds between two looks at the containers
_ANSWERS_WITHIN = 20  # seconds; what has no answer by then is asked again
_ENGINE_BACK_WITHIN = 600.0  # seconds; an engine that is updated takes a minute or two
# The engine starts a container again within a tenth of a second at first; later it says `restarting` while it waits.
_ENGINE_RESTARTS_WITHIN = 3.0
_LAST_LINES = 5.0
_LEAVES_WITHIN = 3.0  # for a trainer that says that it gives up, to leave with its own exit code
_STOP_SLACK = 15.0  # beyond the grace period, for the engine itself


class Keeper:
    """One run from the start of its containers to its end."""

    def __init__(self, layout: RunPaths, plan: Plan, engine: Engine) -> None:
        self._layout, self._plan, self._engine = layout, plan, engine
        self._leader = plan.decisive[0]
        self._trains = any(stop_order.trains(task) for task in plan.tasks)
        self._tasks = {task.name: SupervisedTask(task, layout.log(task.name), engine, plan.name) for task in plan.tasks}
        self._sidecars = Sidecars(plan.grace_period)
        self._progress = Progress()
        self._inbox: Inbox = queue.SimpleQueue()
        self._watch: Watch | None = None
        self._started_as: dict[str, str] = {}  # task -> the id of its container
        self._ending: Ending | None = None
        self._requests = 0
        self._board = ""
        self._place = f"volume {container_status.volume_of(plan.name)}" if plan.run_dir else ""
        self._started = time.time()
        self._ended: float | None = None
        began = time.monotonic()
        self._engine_seen = self._looked = began
        self._ready_by = began + plan.start_timeout if self._trains else None
        self._done_by = began + plan.deadline if plan.deadline else None
        self._record = Record(layout.state, self._snapshot)
        self._home = locks.Hold(layout.lock)
        self._lost = False
        self._self = process_identity.identify(os.getpid())

    @property
    def _file(self) -> Path:
        return self._layout.directory / COMPOSE_FILE

    def start(self) -> None:
        """Have Compose start every container. Raises LauncherError, and leaves none, when one cannot be started."""
        name = self._plan.name
        self._record.reserve()
        self._record.save()
        try:
            containers = begin(self._engine, name, self._file, self._plan.start_timeout)
        except BaseException as error:
            self._ending, self._ended = Ending(State.FAILED, str(error)), time.time()
            self._record.save_at_last()
            raise
        self._engine.hurry(_ANSWERS_WITHIN)
        self._see(containers, time.monotonic())
        for kept in self._tasks.values():
            kept.log.note(f"run {name} starts")
        self._started_as = {task: str(container.id) for task, container in container_status.members(containers).items()}
        self._watch = Watch(self._engine, name, self._started_as, self._inbox)
        self._record.save()

    def listen(self, lifeline: int | None) -> None:
        """Hear signals, and a lifeline that closes with the launcher that ran this in the foreground."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda number, _frame: self._inbox.put(Asked(number)))
        if lifeline is not None:
            threading.Thread(target=self._hold, args=(lifeline,), name="lifeline", daemon=True).start()

    def _hold(self, lifeline: int) -> None:
        with contextlib.suppress(OSError):
            while os.read(lifeline, 4096):
                pass
        self._inbox.put(Asked(None))

    def run(self) -> None:
        """Keep the run until nothing of it is left but TensorBoard, or nothing at all when it was stopped."""
        while not self._over():
            self._hear(0.1)
            now = time.monotonic()
            if now - self._looked >= _LOOK_EVERY or any(kept.answered for kept in self._tasks.values()):
                self._looked = now
                self._look_again()
                self._follow_up()
            self._meet_deadlines()
            self._next_wave()
            if not self._lost and self._home.lost():
                self._lost = True
                self._record.lose()
                for name, kept in self._tasks.items():
                    kept.own = self._started_as.get(name)
                self._stop(f"{self._layout.run_dir} was removed or replaced while the run ran", now=False)
            self._record.save_if_due()
        if self._watch is not None:
            self._watch.close(_LAST_LINES)
        while self._hear(0):
            pass
        self._settle()

    # What happened

    def _hear(self, wait: float) -> bool:
        try:
            heard: Heard = self._inbox.get(timeout=wait) if wait else self._inbox.get_nowait()
        except queue.Empty:
            return False
        while True:
            self._take_in(heard)
            try:
                heard = self._inbox.get_nowait()
            except queue.Empty:
                return True

    def _take_in(self, heard: Heard) -> None:
        match heard:
            case Wrote(task, line):
                self._read(self._tasks[task], line)
            case Ended(task, code) if task in self._tasks:
                kept = self._tasks[task]
                kept.view.ended_with(code)
                self._looked = 0.0
                if code == ExitCode.WRONG_CONFIGURATION:
                    self._give_up(kept, code)
            case Asked(number) if number != signal.SIGHUP:
                reason = "asked to stop" if number else "the launcher that ran it in the foreground is gone"
                # A terminal that closes during a stop is no second request.
                self._stop(reason, now=number == signal.SIGQUIT or (number is not None and self._requests > 0))

    def _read(self, kept: SupervisedTask, line: LogLine) -> None:
        event = kept.line(line)
        if event is None:
            return
        told_of = self._tasks.get(str(event.get("task")), kept)
        own = told_of is kept
        told_of.view.tell(event, own=own)
        self._progress.apply(event, leads=own and kept.task.name == self._leader)
        self._record.changed(at_once=event["event"] != "progress")
        if self._progress.ready:
            self._ready_by = None
        if own and kept.view.gave_up is not None and is_final(kept.view.gave_up):
            self._give_up(kept, kept.view.gave_up)

    def _look(self) -> None:
        asked = time.monotonic()
        self._see(self._engine.containers(self._plan.name), asked)

    def _see(self, containers: list[Container], asked: float) -> None:
        self._engine_seen = time.monotonic()
        found = container_status.members(containers)
        for name, kept in self._tasks.items():
            if kept.look(found[name].attrs if name in found and kept.is_own(found[name]) else {}, asked):
                self._record.changed()
        self._sidecars.look(containers)
        for member in found.values():
            if member.status == "running":
                self._sidecars.join_again(member)
        self._board = container_status.board(containers) or self._board
        self._place = container_status.place_of(containers, self._plan.name)

    def _look_again(self) -> None:
        try:
            self._look()
        except ERRORS as error:
            away = time.monotonic() - self._engine_seen
            if away > _ENGINE_BACK_WITHIN:
                self._ending = Ending(State.INTERRUPTED, f"the engine has not answered for {away:.0f} s: {error}")
                return
            with contextlib.suppress(*ERRORS):
                self._engine.client = self._engine.connect()
                if self._watch is not None:
                    self._watch.renew()

    # What follows

    def _follow_up(self) -> None:
        now = time.monotonic()
        if now - self._engine_seen > _LOOK_EVERY:  # what an engine that is away does with containers it will tell later
            for kept in self._tasks.values():
                kept.over_since = None
            return
        for kept in self._tasks.values():
            if kept.view.phase not in {*OVER, "gone"}:
                kept.over_since = None
                continue
            kept.over_since = kept.over_since or now
            if not self._ending and kept.start_at is None and kept.view.settled is None:
                self._ended_by_itself(kept, kept.view.code if kept.view.phase != "gone" else None, now - kept.over_since)
            # Only now: sidecars that are stopped lose their restart policy, and those of a task that starts again need it.
            if kept.start_at is None and now - kept.over_since >= _ENGINE_RESTARTS_WITHIN:
                self._sidecars.stop(kept.task.name)
        if not self._ending and all(self._state(name) is State.SUCCEEDED for name in self._plan.decisive):
            self._finish()

    def _ended_by_itself(self, kept: SupervisedTask, code: int | None, seconds: float) -> None:
        if code == ExitCode.DONE or seconds < _ENGINE_RESTARTS_WITHIN:
            return
        if self._state(self._leader) is State.SUCCEEDED and kept.task.name not in self._plan.decisive:
            return  # training is done
        if code is None:
            self._stop_all(State.FAILED, f"the container of {kept.task.name} was removed")
            return
        counted = max(kept.counted, kept.view.counted)
        rule = kept.task.restart
        when = "on_failure" if kept.view.has_trainer else rule.when  # a parent inside has minded it
        follows = restart_policy.verdict(code, counted=counted, max_restarts=rule.max_restarts, when=when)
        if follows is Verdict.GIVE_UP or kept.view.had_no_parent(code):
            self._give_up(kept, code)
            return
        kept.start_later(code, counts=follows is Verdict.RESTART)

    def _give_up(self, kept: SupervisedTask, code: int) -> None:
        kept.try_no_more()  # each that gives up, and not the first alone
        if self._ending:
            return
        why = kept.view.why(code)
        kept.view.ended_with(code)
        kept.view.settled = (State.FAILED, why)
        attempt = len(kept.view.restarts) + 1
        self._stop_all(State.FAILED, f"{kept.task.name} failed on attempt {attempt} (exit code {code}): {why}")

    def _meet_deadlines(self) -> None:
        now = time.monotonic()
        if self._ready_by is not None and now >= self._ready_by and not self._ending:
            waiting = [f"{name} is {kept.view.state()[1]}" for name, kept in self._tasks.items() if kept.view.state()[1]]
            detail = f": {'; '.join(waiting)}" if waiting else ""
            self._stop_all(State.FAILED, f"training did not start within the start timeout of {self._plan.start_timeout:g} s{detail}")
        if self._done_by is not None and now >= self._done_by and not self._ending:
            self._stop_all(State.FAILED, f"not done within the deadline of {self._plan.deadline:g} s")
        for kept in self._tasks.values():
            if kept.start_at is not None and now >= kept.start_at:
                kept.start()
            if kept.stop_at is not None and now >= kept.stop_at:
                kept.ask(self._ending.grace if self._ending else self._grace())

    def _finish(self) -> None:
        say("the run's work is done")
        self._ending = Ending(State.SUCCEEDED, "", grace=self._grace())
        for kept in self._tasks.values():
            kept.start_at = None
            kept.stop_at = time.monotonic() + stop_order.own_time(self._plan, kept.task)

    def _stop(self, reason: str, *, now: bool) -> None:
        self._requests += 1
        ending = self._ending or self._stop_all(State.STOPPED, reason)
        if now:
            say("killing every task")
            ending.waves.clear()
            ending.killed, ending.grace = True, 0
            for kept in self._tasks.values():
                kept.kill()

    def _stop_all(self, outcome: State, reason: str) -> Ending:
        say(f"stopping: {reason}")
        self._ending = ending = Ending(outcome, reason, stop_order.waves(self._plan), self._grace())
        for kept in self._tasks.values():
            kept.start_at = None
        self._record.changed()
        return ending

    def _grace(self) -> int:
        began = self._progress.ready or not self._trains
        return round(self._plan.grace_period if began else min(stop_order.NOTHING_TO_SAVE, self._plan.grace_period))

    def _next_wave(self) -> None:
        ending = self._ending
        while ending and ending.waves and all(self._tasks[name].over for name in ending.wave):
            ending.wave = ending.waves.pop(0)
            for name in ending.wave:
                leaves = _LEAVES_WITHIN if self._tasks[name].view.settled else 0.0
                self._tasks[name].stop_at = time.monotonic() + leaves

    def _state(self, name: str) -> State:
        return self._tasks[name].view.state()[0]

    # The end

    def _over(self) -> bool:
        ending = self._ending
        if ending is None:
            return False
        if ending.state is State.INTERRUPTED:
            return True
        if ending.waves or not all(kept.over for kept in self._tasks.values()):
            return False
        # A task that ended by itself is stopped too: else those that failed come back when the engine is next started.
        awake = [kept for kept in self._tasks.values() if not kept.at_rest]
        for kept in awake:
            kept.ask(ending.grace)
        return not awake

    def _settle(self) -> None:
        ending = self._ending or Ending(State.FAILED, "no task was left")
        if ending.state is State.STOPPED:
            # A user's own program that is asked to stop says by exit 0 that it is done: all of its tasks do.
            needed = self._plan.decisive if self._trains else self._tasks
            if all(self._state(name) is State.SUCCEEDED for name in needed):
                ending.state, ending.reason = State.SUCCEEDED, "it was done before it stopped"
            elif self._progress.checkpoint_step is not None:
                ending.reason += f"; the last checkpoint is of step {self._progress.checkpoint_step}"
        for kept in self._tasks.values():
            kept.settle(ending)
            kept.log.close()
        self._sidecars.end()
        self._ending, self._ended = ending, time.time()
        # A run that was started in the place of this one has removed what was left of it.
        if self._requests and not (self._lost and self._layout.lock.exists()):
            self._board = ""
            with contextlib.suppress(*ERRORS):
                self._engine.remove(self._plan.name)
        say(f"{ending.state}: {ending.reason}" if ending.reason else ending.state)
        self._record.save_at_last()

    def _snapshot(self) -> Snapshot:
        ended = self._ended is not None
        underway = State.RUNNING if self._progress.ready or not self._trains else State.PENDING
        status = RunStatus(
            name=self._plan.name,
            backend="docker",
            state=self._ending.state if self._ending and ended else underway,
            reason=self._ending.reason if self._ending else "",
            run_dir=self._place,
            spec_digest=self._plan.spec_digest,
            strategy=self._plan.strategy,
            started=self._started,
            ended=self._ended,
            tensorboard=self._board,
            tasks=tuple(kept.view.status() for kept in self._tasks.values()),
            **self._progress.fields(ended=ended),
        )
        return Snapshot(status, socket.gethostname(), self._self, self._plan.grace_period + _STOP_SLACK, stopping=self._requests > 0)
