"""Runs supervised in the test's own process, of programs that need no TensorFlow: what a supervisor decides, seen in seconds."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.backend.docker.engine import Engine, endpoint
from launcher.backend.docker.run_containers import COMPOSE_FILE, RunContainers
from launcher.cli.planning import plan_file
from launcher.plan.models import Plan
from launcher.render.compose import render
from launcher.render.labels import TENSORBOARD
from launcher.render.targets import Source
from launcher.runs import state_file
from launcher.runs.paths import RunPaths
from launcher.runs.run_controller import RunController
from launcher.runs.status import RunStatus
from tests.e2e.docker.running import Run, unique

_WITHIN = 60.0


@dataclass(frozen=True)
class Prepared:
    """A run of which all is there but its containers."""

    run: Run
    plan: Plan
    paths: RunPaths
    engine: Engine

    @property
    def file(self) -> Path:
        """Its Compose file."""
        return self.paths.directory / COMPOSE_FILE

    def write(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the Compose file."""
        document = yaml.safe_load(self.file.read_text())
        change(document)
        self.file.write_text(yaml.safe_dump(document))


@contextlib.contextmanager
def prepared(directory: Path, **spec: Any) -> Iterator[Prepared]:
    """Give a run of `spec` without TensorBoard, which takes seconds to start; whatever happens, nothing of it is left."""
    name = unique("kept")
    file = directory / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"version": 1, "name": name, **spec}))
    read, plan = plan_file(file, [], "docker", directory / "runs")
    paths = RunPaths(directory / "runs" / ".docker" / name)
    paths.tasks.mkdir(parents=True)
    paths.lock.touch()
    found = Prepared(Run(name, directory / "runs"), plan, paths, Engine(endpoint()))
    found.file.write_text(render(Source(read, plan, paths.directory, "a test")))
    found.write(lambda document: document["services"].pop(TENSORBOARD, None))
    try:
        yield found
    finally:
        engine = Engine(endpoint())
        engine.remove(name)
        for volume in engine.volumes(name):
            volume.remove()


@dataclass(frozen=True)
class Kept:
    """A run that a controller keeps, on a thread."""

    of: Prepared
    containers: RunContainers
    thread: threading.Thread

    @property
    def run(self) -> Run:
        """The run."""
        return self.of.run

    def status(self) -> RunStatus:
        """Return what the controller has written of it."""
        snapshot = state_file.read(self.of.paths.state)
        assert snapshot is not None
        return snapshot.status

    def ask(self, number: int | None = signal.SIGTERM) -> None:
        """Ask the controller to stop the run, as a signal does; None is a launcher that is gone."""
        self.containers.request_stop(number)

    def ended(self) -> RunStatus:
        """Wait for the controller to end by itself, and return what it has written at last."""
        self.thread.join(_WITHIN)
        assert not self.thread.is_alive(), f"not within {_WITHIN:g} s: {self.status()}"
        return self.status()


@contextlib.contextmanager
def kept(directory: Path, **spec: Any) -> Iterator[Kept]:
    """Start and keep a run of `spec` for a `with` block."""
    with prepared(directory, **spec) as there:
        containers = RunContainers(there.paths, there.plan, there.engine)
        run = RunController(there.paths, there.plan, containers.tasks, containers)
        run.start()
        found = Kept(there, containers, threading.Thread(target=run.run, name=f"supervisor of {there.run.name}", daemon=True))
        found.thread.start()
        try:
            yield found
        finally:
            found.ask(signal.SIGQUIT)
            found.thread.join(_WITHIN)
