"""Controls real runs for the integration tests: starts them detached, reads their events, kills their processes."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests import forked
from tests.integration import leftovers
from tests.waiting import until
from trainer.events import Event, parse

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NEVER = 1_000_000  # steps that no test waits for


class _LogEvents:
    """The events in a log. A waiting test reads it ten times a second, so only new lines are parsed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start, self._read, self._events = b"", 0, list[Event]()

    def read(self) -> list[Event]:
        """Return the events so far. The caller must not change the list."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            start = file.read(24)  # the time of its first line
            if not start.startswith(self._start) or os.fstat(file.fileno()).st_size < self._read:
                self._read, self._events = 0, []  # a new run has replaced it
            self._start = start
            file.seek(self._read)
            lines, newline, _ = file.read().rpartition(b"\n")
        self._read += len(lines + newline)
        parsed = (parse(line.partition(" ")[2]) for line in lines.decode().splitlines())
        self._events += [event for event in parsed if event]
        return self._events


_log_events = functools.cache(_LogEvents)


@dataclass(frozen=True)
class Run:
    """One run of `launcher` in a runs directory of the test's own."""

    name: str
    runs: Path

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.runs / self.name

    def launcher(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the launcher on this runs directory."""
        command = [arguments[0], "--runs", str(self.runs), *arguments[1:]]
        trains = arguments[0] == "up" and "stand_in" not in Path(arguments[1]).read_text()
        result = forked.launcher(*command, preload=forked.TENSORFLOW if trains else "")
        assert not check or result.returncode == 0, f"launcher {command} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}"
        return result

    def status(self) -> dict[str, Any]:
        """Return `launcher status --json`."""
        status = json.loads(self.launcher("status", self.name, "--json").stdout)
        assert isinstance(status, dict)
        return status

    def log(self, task: str) -> str:
        """Return a task's output so far."""
        path = self._log_file(task)
        return path.read_text() if path.exists() else ""

    def _log_file(self, task: str) -> Path:
        return self.directory / "launcher" / "tasks" / f"{task}.log"

    def events(self, task: str, kind: str | None = None) -> list[Event]:
        """Return the events that a task has reported so far."""
        return [event for event in _log_events(self._log_file(task)).read() if kind is None or event["event"] == kind]

    def await_two_checkpoints(self, chief: str) -> None:
        """Wait for two checkpoints of the chief's current attempt."""

        def saved() -> bool:
            attempts = self.events(chief, "started")
            return bool(attempts) and sum(event["time"] > attempts[-1]["time"] for event in self.events(chief, "checkpoint")) >= 2

        self.until("two checkpoints", saved)

    def chief_step(self, chief: str) -> int:
        """Return the last step that the chief reported."""
        steps = [event["step"] for event in self.events(chief, "progress")]
        return steps[-1] if steps else 0

    def until(self, what: str, condition: Callable[[], Any]) -> Any:
        """Wait for a true result of `condition`, and return that."""
        return until(what, condition, seen=self._last_lines, every=0.1)

    def _last_lines(self) -> str:
        """Return the last lines of each task."""
        logs = self.directory.glob("launcher/tasks/*.log")
        return "".join(f"\n--- {path.name}\n" + "\n".join(path.read_text().splitlines()[-15:]) for path in logs)

    def kill_training_process(self, task: str) -> float:
        """Kill -9 the process that trains or serves for `task`; return the time."""
        pid = self.events(task, "started")[-1]["pid"]
        now = time.time()
        os.kill(pid, signal.SIGKILL)
        return now


def paced(steps: int = NEVER, seconds: float = 0.02, **train: Any) -> dict[str, Any]:
    """Return the sections `code` and `train` of a spec that trains a small model, whose training tasks sleep between steps.

    Sessions, servers and checkpoints are real, but steps cost next to nothing while a test waits.
    """
    params = {"seconds": seconds, "slower": 1}
    disabled: dict[str, Any] = {"checkpoint": {"every_steps": NEVER}, "export": {"formats": []}}
    disabled |= {kind: {"every_steps": 0} for kind in ("evaluate", "summaries")}
    model = {"workload": "small:Delayed", "params": params, "steps": steps, "batch_size": 16}
    return {"code": str(ROOT / "tests" / "trainer" / "engine"), "train": {**model, **disabled, **train}}


def checkpoints(directory: Path) -> list[int]:
    """Return the steps of the checkpoints in a run directory."""
    return sorted(int(path.stem.removeprefix("ckpt-")) for path in directory.glob("checkpoints/ckpt-*.index"))


def updates(run: Run, step: int) -> int:
    """Return the number of updates before the checkpoint of a step."""
    import tensorflow as tf

    saved = tf.train.load_checkpoint(str(run.directory / "checkpoints" / f"ckpt-{step}"))
    return int(saved.get_tensor("optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"))


def assert_saved(run: Run) -> int:
    """Check that a run has stopped, has left no process, and has saved its last step; return that step."""
    leftovers.assert_none(run.directory)
    status = run.status()
    assert status["state"] == "stopped"
    step = status["step"]
    assert isinstance(step, int)
    assert status["checkpoint_step"] == step
    assert checkpoints(run.directory)[-1] == step
    record = json.loads((run.directory / "run.json").read_text())
    assert (record["state"], record["step"]) == ("stopped", step)
    return step


def stop(run: Run) -> int:
    """Stop the run gracefully; return the step of the checkpoint that it has saved."""
    run.launcher("down", run.name)
    step = assert_saved(run)
    assert updates(run, step) == step
    return step


def pid_of(run: Run, task: str) -> Any:
    """Return the process id of a task's parent process; None while there is none."""
    return next(status["pid"] for status in run.status()["tasks"] if status["name"] == task)


def kill_with_parent(run: Run, task: str) -> int:
    """Kill the parent process of a task and its training process at once; return the parent's process id."""
    parent = pid_of(run, task)
    for group in (parent, run.events(task, "started")[-1]["pid"]):
        with contextlib.suppress(ProcessLookupError):  # it may already be dying with its parent
            os.killpg(group, signal.SIGKILL)
    assert isinstance(parent, int)
    return parent


@contextlib.contextmanager
def started(spec: dict[str, Any], directory: Path) -> Iterator[Run]:
    """Start a run of `spec` detached, and kill it at the end of the block.

    Unless the spec says otherwise, a stop may take longer than by default: on a busy machine, saving and exporting a model has taken 30 seconds.
    """
    file = directory / f"{spec['name']}.yaml"
    file.write_text(yaml.safe_dump({**spec, "limits": {"grace_period": "90s", **spec.get("limits", {})}}))
    run = Run(spec["name"], directory / "runs")
    run.launcher("up", str(file), "--detach")
    try:
        yield run
    finally:
        run.launcher("down", run.name, "--now", check=False)
