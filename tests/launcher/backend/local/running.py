"""Plans of small programs run for a test, and waits with a deadline."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.backend.local.backend import LocalBackend
from launcher.backend.model import PlannedRun
from launcher.plan.models import Plan, Resources, RestartRule, RoleName, Task
from launcher.runs import process_identity, state_file
from launcher.runs.paths import RunPaths
from launcher.runs.status import ENDED, RunStatus
from tests.waiting import until
from trainer.strategies import Scope

FOREVER = "print('up'); time.sleep(3600)"
# Ends as the trainer does: on SIGTERM it prints the time of its save, and exits 143.
SAVES = """
def save(*_):
    print(f'saved {time.time()}', flush=True)
    os._exit(143)
signal.signal(signal.SIGTERM, save)
print('up', flush=True)
time.sleep(3600)
"""
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(3600)"


def event(kind: str, **fields: object) -> str:
    """Return a line of a program that prints an event."""
    return f"print({json.dumps(json.dumps({'event': kind, **fields}, separators=(',', ':')))}, flush=True)\n"


class Runs:
    """A directory of runs and its backend; programs are Python text, run directly or under the trainer's parent."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.backend = LocalBackend(directory)

    def plan(self, programs: dict[str, str], *, name: str = "run", **fields: Any) -> Plan:
        """Return a plan with a task for each program; `fields` replace those of the plan and of its tasks."""
        run_dir = str(self.directory / name)
        task_fields: dict[str, Any] = {
            "scope": fields.pop("scope", "alone"),
            "max_restarts": fields.pop("max_restarts", 0),
            "env": {"RUN_DIR": run_dir, "RUN_NAME": name, "PYTHONPATH": os.getcwd(), **fields.pop("env", {})},  # noqa: PTH109
            "supervised": fields.pop("supervised", False),
        }
        tasks = tuple(_task(task, text, index, **task_fields) for index, (task, text) in enumerate(programs.items()))
        settings: dict[str, Any] = {
            "target": "local", "strategy": "parameter_server", "spec_digest": "d1", "start_timeout": 20.0, "grace_period": 5.0,
            "deadline": None, "required_tasks": (tasks[0].name,), "end_grace_periods": {"worker": 0.5, "ps": 0.0, "evaluator": 0.5},
        }  # fmt: skip
        return Plan(name=name, run_dir=run_dir, tasks=tasks, **settings | fields)

    def start(self, programs: dict[str, str], *, detach: bool = True, **fields: Any) -> str:
        """Start a run and return its name."""
        plan = self.plan(programs, **fields)
        self.backend.start(PlannedRun(plan, {"name": plan.name}), is_cancelled=None if detach else lambda: False)
        return plan.name

    def wait(self, name: str = "run") -> RunStatus:
        """Return the run's status once it has ended."""
        self.until("the run to end", lambda: self.backend.status(name).state in ENDED, name)
        return self.backend.status(name)

    def lines(self, name: str = "run", task: str = "chief") -> list[str]:
        """Return the lines that a task has written, without the launcher's own."""
        lines = self.backend.logs(name, tasks=[task], follow=False)
        return [line.text for line in lines if not line.text.startswith("--- launcher: ")]

    def until_line(self, text: str, name: str = "run", task: str = "chief") -> None:
        """Wait until a task has written a line."""
        self.until(f"{task} to write {text!r}", lambda: text in self.lines(name, task), name)

    def until(self, what: str, condition: Callable[[], bool], name: str = "run") -> None:
        """Wait until `condition` holds. A failure reports the state of the run and the last lines of its tasks."""
        until(what, condition, seen=lambda: self._last(name), every=0.03)

    def _last(self, name: str) -> str:
        """Return the state of a run and of its tasks, with their last lines."""
        status = self.backend.status(name)
        tasks = [
            f"{task.name} is {task.state}, {task.reason or 'for no reason'}: {self.lines(name, task.name)[-5:]}" for task in status.tasks
        ]
        return "\n".join([f"{name} is {status.state}, {status.reason or 'for no reason'}; processes {self.processes(name)}", *tasks])

    def paths(self, name: str = "run") -> RunPaths:
        """Return the paths of the run's files."""
        return RunPaths(self.directory / name)

    def supervisor(self, name: str = "run") -> int:
        """Return the process id of a run's supervisor."""
        snapshot = state_file.read(self.paths(name).state)
        assert snapshot is not None
        assert snapshot.supervisor is not None
        return snapshot.supervisor.pid

    def processes(self, name: str = "run") -> list[int]:
        """Return every process of the run except the supervisor, also those that have left their session."""
        run_dir = str(self.directory / name)
        return [
            pid
            for pid in process_identity._running()
            if process_identity.session_of(pid) is not None and process_identity.started_for(pid, run_dir=run_dir)
        ]


def _task(name: str, text: str, port_offset: int, *, scope: Scope, max_restarts: int, env: dict[str, str], supervised: bool) -> Task:
    role, _, index = name.partition("-")
    roles: dict[str, RoleName] = {"chief": "chief", "worker": "worker", "ps": "ps", "evaluator": "evaluator"}
    program = (sys.executable, "-u", "-c", f"import os, sys, time, signal{', subprocess' * ('subprocess' in text)}\n{text}")
    return Task(
        name=name,
        role=roles[role],
        index=int(index or 0),
        address=f"127.0.0.1:{2222 + port_offset}",
        tf_config={"cluster": {}, "task": {"type": role, "index": int(index or 0)}},
        command=(sys.executable, "-P", "-m", "trainer", "--", *program) if supervised else program,
        env=env,
        resources=Resources(),
        restart=RestartRule(scope, max_restarts),
        mounts_run_dir=True,
    )
