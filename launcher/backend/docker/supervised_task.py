"""A task while its keeper keeps it: its container, its log, and what is about to be done with it."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker.errors import NotFound
from docker.models.containers import Container

from launcher.backend.docker import container_status
from launcher.backend.docker.engine import ERRORS, Engine
from launcher.backend.docker.stop import never_again, stop
from launcher.backend.docker.task_state import OVER, TaskView
from launcher.plan import role_rules
from launcher.plan.models import Task
from launcher.runs import restart_policy
from launcher.runs.event_lines import log_line
from launcher.runs.log_files import LogWriter
from launcher.runs.state_writer import say
from launcher.runs.status import LogLine, State
from trainer.events import Event
from trainer.exit_codes import ExitCode

_ASK_AGAIN = 2.0  # seconds after which an engine that did not answer is asked again to stop a container


@dataclass
class Ending:
    """How a run ends, once that is known, and who is still to be asked to leave. `grace` in seconds."""

    state: State
    reason: str
    waves: list[frozenset[str]] = field(default_factory=list)
    grace: int = 0
    wave: frozenset[str] = frozenset()  # asked by now; the next one is asked once these have ended
    killed: bool = False  # somebody wants no more waiting


class SupervisedTask:
    """One task of a run of containers. Times are of time.monotonic; None is never."""

    def __init__(self, task: Task, log: Path, engine: Engine, run: str) -> None:
        self.task = task
        self.view = TaskView(
            task.name,
            task.address,
            has_trainer=role_rules.supervised(task),
            limit=task.restart.max_restarts,
            in_own_image=task.image is not None and task.is_hardened,
        )
        self.log = LogWriter(log)
        self.over_since: float | None = None
        self.start_at: float | None = None
        self.stop_at: float | None = None
        self.own: str | None = None  # the id of its container, where one of its name may be of a run that was started in this one's place
        self.counted = 0  # restarts by the keeper that count
        self._delay = 0.0
        self._engine, self._run = engine, run
        # The engine has stopped it, and nothing starts it again: that it was seen to have ended is not that, as the engine may
        # be starting it again at that very moment.
        self.at_rest = False
        self._stopping: threading.Thread | None = None
        self._stopped: float | None = None  # when the engine said that it has

    @property
    def over(self) -> bool:
        """Whether nothing of it runs, as far as was seen; what was seen before it was asked to stop does not count."""
        return self.view.phase in {*OVER, "gone"} and self.start_at is None and self._stopping is None

    @property
    def answered(self) -> bool:
        """Whether the engine has stopped it since it was last looked at."""
        return self._stopped is not None

    def look(self, described: dict[str, Any], asked: float) -> bool:
        """Take in what the engine says of the container, asked at that time, nothing where there is none; True when it changed."""
        if self._stopped is not None and asked >= self._stopped:
            self.at_rest, self._stopping, self._stopped = True, None, None
        return self.view.look(described.get("State", {}), described.get("RestartCount", 0))

    def line(self, line: LogLine) -> Event | None:
        """Take in one line of output; return the event in it, if it is one."""
        if not self.view.has_trainer:
            line = log_line(line.time, line.task, line.whole, has_events=False)
        self.log.feed(line.whole + b"\n")
        return self.view.line(line.text)

    def container(self) -> Container:
        """Return its container as it is now. Raises one of engine.ERRORS, NotFound when it is gone."""
        found = container_status.members(self._engine.containers(self._run))
        if self.task.name not in found or not self.is_own(found[self.task.name]):
            raise NotFound(f"the container of {self.task.name} is gone")
        return found[self.task.name]

    def is_own(self, container: Container) -> bool:
        """Return whether a container of its name is its own."""
        return self.own is None or container.id == self.own

    def start_later(self, code: int, *, counts: bool) -> None:
        """Have its container started again after a while, as the engine leaves it."""
        self.counted += counts
        self._delay = restart_policy.delay(self._delay, ran_for=self.view.ran_for)
        self.start_at = time.monotonic() + self._delay
        self.log.note(f"its container is started again in {self._delay:.0f} s: {self.view.why(code)}")

    def start(self) -> None:
        """Start its container; an engine that cannot is asked again, when the container is still not running later."""
        self.start_at = self.over_since = None
        # Until the next look: that it has ended was so before.
        self.view.starts()
        with self._told("starting"):
            self.container().start()
            self.view.started_again()

    def try_no_more(self) -> None:
        """Tell the engine not to start it again, by itself or when it is itself started again."""
        with self._told("giving up"):
            never_again(self.container())

    def kill(self) -> None:
        """Kill it at once."""
        self.ask(0)
        with self._told("killing"):
            self.container().kill()

    def ask(self, grace: int) -> None:
        """Have the engine stop it, on a thread, and kill it after `grace` seconds. It is asked until the engine has done so."""
        self.stop_at = time.monotonic() + _ASK_AGAIN
        self.start_at = None
        if self._stopping is None or not self._stopping.is_alive():
            self._stopped = None
            self._stopping = threading.Thread(target=self._stop, args=(grace,), name=f"stop {self.task.name}", daemon=True)
            self._stopping.start()

    def _stop(self, grace: int) -> None:
        try:
            stop(self.container(), grace)
        except NotFound:
            pass  # gone, which is as good
        except ERRORS as error:
            say(f"stopping {self.task.name} failed, and is tried again: {error}")
            return
        self.stop_at = None
        self._stopped = time.monotonic()

    @contextlib.contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Note what goes wrong in a `with` block: what matters is tried again, or looked at later."""
        try:
            yield
        except ERRORS as error:
            say(f"{doing} {self.task.name}: {error}")

    def settle(self, ending: Ending) -> None:
        """Note how it ended for the run."""
        state, reason = self.view.state()
        if self.view.settled is not None or state is State.SUCCEEDED or ending.state is State.INTERRUPTED:
            return
        done = ending.state is State.SUCCEEDED
        if self.view.code == ExitCode.STOPPED:
            self.view.settled = (State.SUCCEEDED, "stopped at the end of the run") if done else (State.STOPPED, "")
        elif self.view.code == 128 + signal.SIGKILL:
            self.view.settled = (State.STOPPED, "killed" if ending.killed else f"killed: it did not stop within {ending.grace:g} s")
        else:
            self.view.settled = (State.FAILED if done else State.STOPPED, reason)
