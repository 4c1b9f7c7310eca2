"""A task while its keeper keeps it: its container, its log, and what is about to be done with it."""

import contextlib
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker.errors import NotFound
from docker.models.containers import Container

from launcher.backend.docker import look
from launcher.backend.docker.engine import ERRORS, Engine
from launcher.backend.docker.task import OVER, TaskView
from launcher.backend.local import restarts
from launcher.backend.local.logfiles import LogWriter
from launcher.backend.model import State
from launcher.plan.models import Task
from trainer.exit_codes import ExitCode


@dataclass
class Ending:
    """How a run ends, once that is known, and who is still to be asked to leave. `grace` in seconds."""

    state: State
    reason: str
    waves: list[frozenset[str]] = field(default_factory=list)
    grace: int = 0
    wave: frozenset[str] = frozenset()  # asked by now; the next one is asked once these have ended


class Kept:
    """One task of a run of containers. Times are of time.monotonic; None is never."""

    def __init__(self, task: Task, log: Path, engine: Engine, run: str) -> None:
        self.task = task
        self.view = TaskView(task.name, task.address)
        self.log = LogWriter(log)
        self.over_since: float | None = None
        self.start_at: float | None = None
        self.stop_at: float | None = None
        self.counted = 0  # restarts by the keeper that count
        self._delay = 0.0
        self._engine, self._run = engine, run

    @property
    def over(self) -> bool:
        """Whether nothing of it runs, nor will."""
        return self.view.phase in {*OVER, "gone"} and self.start_at is None

    def container(self) -> Container:
        """Return its container as it is now. Raises one of engine.ERRORS, NotFound when it is gone."""
        found = look.members(self._engine.containers(self._run))
        if self.task.name not in found:
            raise NotFound(f"the container of {self.task.name} is gone")
        return found[self.task.name]

    def start_later(self, code: int, *, counts: bool) -> None:
        """Have its container started again after a while, as the engine leaves it."""
        self.counted += counts
        self._delay = restarts.delay(self._delay, ran_for=0.0)
        self.start_at = time.monotonic() + self._delay
        self.log.note(f"its container is started again in {self._delay:.0f} s: {self.view.why(code)}")

    def start(self) -> None:
        """Start its container; an engine that cannot is asked again, when the container is still not running later."""
        self.start_at = self.over_since = None
        with contextlib.suppress(*ERRORS):
            self.container().start()

    def try_no_more(self) -> None:
        """Tell the engine not to start it again."""
        with contextlib.suppress(*ERRORS):
            never: Any = {"Name": "no"}
            self.container().update(restart_policy=never)

    def kill(self) -> None:
        """Kill it at once."""
        self.stop_at = None
        with contextlib.suppress(*ERRORS):
            self.container().kill()

    def ask(self, grace: int) -> None:
        """Ask it to stop, on a thread; the engine kills it after `grace` seconds."""
        self.stop_at = None
        if not self.over:
            threading.Thread(target=self._stop, args=(grace,), name=f"stop {self.task.name}", daemon=True).start()

    def _stop(self, grace: int) -> None:
        with contextlib.suppress(*ERRORS):
            container = self.container()
            if container.status == "paused":
                container.unpause()
            container.stop(timeout=grace)

    def settle(self, ending: Ending, *, killed: bool) -> None:
        """Note how it ended for the run; `killed` tells whether that was asked for."""
        state, reason = self.view.state()
        if self.view.settled is not None or state is State.SUCCEEDED or ending.state is State.INTERRUPTED:
            return
        done = ending.state is State.SUCCEEDED
        if self.view.code == ExitCode.STOPPED:
            self.view.settled = (State.SUCCEEDED, "stopped at the end of the run") if done else (State.STOPPED, "")
        elif self.view.code == 128 + signal.SIGKILL:
            self.view.settled = (State.STOPPED, "killed" if killed else f"killed: it did not stop within {ending.grace:g} s")
        else:
            self.view.settled = (State.FAILED if done else State.STOPPED, reason)
