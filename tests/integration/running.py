"""Drives real runs for the integration tests: starts them detached, watches their events, kills their processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainer.events import Event, parse

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@dataclass(frozen=True)
class Run:
    """One run of `launcher` in a runs directory of the test's own."""

    name: str
    runs: Path

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.runs / self.name

    def launcher(self, *arguments: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run the launcher on this runs directory."""
        command = [sys.executable, "-m", "launcher", arguments[0], "--runs", str(self.runs), *arguments[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        assert not check or done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    def status(self) -> dict[str, Any]:
        """Return `launcher status --json`."""
        status = json.loads(self.launcher("status", self.name, "--json").stdout)
        assert isinstance(status, dict)
        return status

    def log(self, task: str) -> str:
        """Return all output of a task so far."""
        path = self.directory / "launcher" / "tasks" / f"{task}.log"
        return path.read_text() if path.exists() else ""

    def events(self, task: str, kind: str | None = None) -> list[Event]:
        """Return the events that a task has reported so far."""
        found = (parse(line.partition(" ")[2]) for line in self.log(task).splitlines())
        return [event for event in found if event and (kind is None or event["event"] == kind)]

    def chief_step(self, chief: str) -> int:
        """Return the last step that the chief reported."""
        steps = [event["step"] for event in self.events(chief, "progress")]
        return steps[-1] if steps else 0

    def until(self, what: str, condition: Callable[[], Any], timeout: float = 60) -> Any:
        """Wait for `condition` to give something true, and return that."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if result := condition():
                return result
            time.sleep(0.05)
        logs = "\n".join(
            f"--- {p.name}\n" + "\n".join(p.read_text().splitlines()[-15:]) for p in self.directory.glob("launcher/tasks/*.log")
        )
        raise AssertionError(f"waited {timeout} s for {what}\n{logs}")

    def kill_training_process(self, task: str) -> float:
        """Kill -9 the process that trains or serves for `task`; return when."""
        pid = self.events(task, "started")[-1]["pid"]
        now = time.time()
        os.kill(pid, signal.SIGKILL)
        return now


@contextlib.contextmanager
def started(spec: dict[str, Any], directory: Path) -> Iterator[Run]:
    """Start a run of `spec` detached; whatever happens, nothing of it is left."""
    file = directory / f"{spec['name']}.yaml"
    file.write_text(yaml.safe_dump(spec))
    run = Run(spec["name"], directory / "runs")
    run.launcher("up", str(file), "--detach")
    try:
        yield run
    finally:
        run.launcher("down", run.name, "--now", check=False)
