"""Runs that are supervised in the test's own process, of programs without TensorFlow, to test a supervisor's decisions within seconds."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.backend.docker.engine import Engine, endpoint
from launcher.backend.docker.run_containers import RunContainers
from launcher.plan.models import Plan
from launcher.plan.spec_file import plan_file
from launcher.render.compose import render
from launcher.render.labels import TENSORBOARD
from launcher.render.targets import RenderSource
from launcher.runs import state_file
from launcher.runs.paths import RunPaths
from launcher.runs.run_controller import RunController
from launcher.runs.status import RunStatus
from tests.e2e.docker.running import Run, unique

_TIMEOUT = 60.0


@dataclass(frozen=True)
class Prepared:
    """A run that is prepared, but whose containers are not created."""

    run: Run
    plan: Plan
    paths: RunPaths
    engine: Engine

    @property
    def file(self) -> Path:
        """Its Compose file."""
        return self.paths.compose

    def write(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the Compose file."""
        document = yaml.safe_load(self.file.read_text())
        change(document)
        self.file.write_text(yaml.safe_dump(document))


@contextlib.contextmanager
def prepared(directory: Path, **spec: Any) -> Iterator[Prepared]:
    """Prepare a run of `spec` without TensorBoard, which takes seconds to start; remove the run at the end of the block."""
    name = unique("supervised")
    file = directory / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"version": 1, "name": name, **spec}))
    parsed, plan = plan_file(file, [], "docker", directory / "runs")
    paths = RunPaths(directory / "runs" / ".docker" / name)
    paths.tasks.mkdir(parents=True)
    paths.lock.touch()
    result = Prepared(Run(name, directory / "runs"), plan, paths, Engine(endpoint()))
    result.file.write_text(render(RenderSource(parsed, plan, paths.launcher_dir, "a test")))
    result.write(lambda document: document["services"].pop(TENSORBOARD, None))
    try:
        yield result
    finally:
        engine = Engine(endpoint())
        engine.remove(name)
        for volume in engine.volumes(name):
            volume.remove()


@dataclass(frozen=True)
class Supervised:
    """A run that a controller supervises on a thread."""

    prepared: Prepared
    containers: RunContainers
    thread: threading.Thread

    @property
    def run(self) -> Run:
        """The run."""
        return self.prepared.run

    def status(self) -> RunStatus:
        """Return the status that the controller has written."""
        snapshot = state_file.read(self.prepared.paths.state)
        assert snapshot is not None
        return snapshot.status

    def request_stop(self, number: int | None = signal.SIGTERM) -> None:
        """Ask the controller to stop the run, as a signal does; None means that the launcher has ended."""
        self.containers.request_stop(number)

    def wait_for_end(self) -> RunStatus:
        """Wait for the controller to end by itself, and return the last status that it has written."""
        self.thread.join(_TIMEOUT)
        assert not self.thread.is_alive(), f"not ended within {_TIMEOUT:g} s: {self.status()}"
        return self.status()


@contextlib.contextmanager
def supervised(directory: Path, **spec: Any) -> Iterator[Supervised]:
    """Start and supervise a run of `spec` for a `with` block."""
    with prepared(directory, **spec) as prepared_run:
        containers = RunContainers(prepared_run.paths, prepared_run.plan, prepared_run.engine)
        controller = RunController(prepared_run.paths, prepared_run.plan, containers.tasks, containers)
        controller.start()
        thread = threading.Thread(target=controller.run, name=f"supervisor of {prepared_run.run.name}", daemon=True)
        result = Supervised(prepared_run, containers, thread)
        result.thread.start()
        try:
            yield result
        finally:
            result.request_stop(signal.SIGQUIT)
            result.thread.join(_TIMEOUT)
