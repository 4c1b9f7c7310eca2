"""Drives runs of containers: starts them, watches their tasks, pauses and kills their containers."""

import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

from launcher.docker_cli import DockerError, docker
from launcher.render import labels
from launcher.runs import locks
from launcher.runs.paths import RunPaths
from tests import forked, waiting
from tests.e2e.busy import BUSY
from tests.processes import free_port, is_alive
from trainer.events import Event, parse

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"


def until(what: str, condition: Callable[[], Any], timeout: float = 60, *, seen: Callable[[], object]) -> Any:
    """Wait for a true result of `condition`, and return that; fail after `timeout`, times BUSY, with the result of `seen`."""
    return waiting.until(what, condition, timeout * BUSY, seen=seen, every=0.5)


@contextlib.contextmanager
def paused(*containers: str) -> Iterator[None]:
    """Pause containers for a `with` block. On a busy machine runc may be "unable to freeze" one, so this is retried."""
    refused: list[DockerError] = []

    def pause(container: str) -> bool:
        try:
            docker("pause", container)
        except DockerError as error:
            refused.append(error)
            return False
        return True

    with contextlib.ExitStack() as unpausing:
        for container in containers:
            until(f"{container} to be paused", lambda: pause(container), seen=lambda: refused[-1:])  # noqa: B023
            unpausing.callback(docker, "unpause", container)
        yield


def unique(name: str) -> str:
    """Return a name that no other run on the engine has."""
    return f"{name}-{uuid.uuid4().hex[:6]}"


def launch(
    *arguments: str, runs: Path, environment: dict[str, str] | None = None, timeout: float = 900
) -> subprocess.CompletedProcess[str]:
    """Run a command line of the launcher from the repository's root."""
    command = (arguments[0], "--on", "docker", "--runs", str(runs), *arguments[1:])
    return forked.launcher(*command, env=os.environ | (environment or {}), timeout=timeout, preload=forked.DOCKER)


def get(url: str, within: float = 60) -> Any:
    """Wait for an answer from a URL, and return its JSON."""
    errors: list[OSError] = []

    def answer() -> list[Any]:
        try:
            with urlopen(url, timeout=20) as response:
                return [json.load(response)]
        except OSError as error:
            errors.append(error)
            return []

    return until(f"an answer of {url}", answer, within, seen=lambda: errors[-1:])[0]


@dataclass(frozen=True)
class Supervisor:
    """A supervisor's process."""

    pid: int

    def kill(self) -> None:
        """Kill it."""
        os.kill(self.pid, signal.SIGKILL)

    def is_running(self) -> bool:
        """Return whether it runs; a zombie does not."""
        return is_alive(self.pid)


@dataclass(frozen=True)
class Run:
    """One run of containers by its name."""

    name: str
    runs: Path

    def launcher(self, *arguments: str, timeout: float = 900) -> str:
        """Run a verb that must succeed, and return what it prints."""
        result = launch(*arguments, runs=self.runs, timeout=timeout)
        assert result.returncode == 0, f"{arguments} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def status(self) -> dict[str, Any]:
        """Return `launcher status --json`."""
        status = json.loads(self.launcher("status", self.name, "--json"))
        assert isinstance(status, dict)
        return status

    def tasks_status(self) -> dict[str, dict[str, Any]]:
        """Return the status of each task by its name."""
        return {task["name"]: task for task in self.status()["tasks"]}

    def supervisor(self) -> Supervisor:
        """Return the run's supervisor."""
        state = json.loads((self.runs / ".docker" / self.name / "launcher" / "state.json").read_text())
        return Supervisor(int(state["supervisor"]["pid"]))

    def container(self, task: str) -> str:
        """Return the name of a task's container, as Compose gives it."""
        return f"{self.name}-{task}-1"

    def inspect(self, task: str) -> dict[str, Any]:
        """Return the engine's description of a task's container."""
        described = json.loads(docker("container", "inspect", self.container(task)))[0]
        assert isinstance(described, dict)
        return described

    def events(self, task: str, kind: str | None = None) -> list[Event]:
        """Return the events that a task has reported, by the engine's logs."""
        parsed = (parse(line) for line in docker("logs", self.container(task)).splitlines())
        return [event for event in parsed if event and (kind is None or event["event"] == kind)]

    def step(self, leader: str = "chief") -> int:
        """Return the last step that was reported."""
        steps = [event["step"] for event in self.events(leader, "progress") if event["task"] == leader]
        return steps[-1] if steps else 0

    def until(self, what: str, condition: Callable[[], Any], timeout: float = 120, seen: Callable[[], object] | None = None) -> Any:
        """Wait for a true result of `condition`, and return that; fail with the result of `seen`, or with the tasks' last lines."""
        return until(what, condition, timeout, seen=seen or self.last_lines)

    def last_lines(self) -> str:
        """Return the last lines of each task, by the engine's logs."""
        return "".join(f"\n--- {task}\n{docker('logs', '--tail', '12', self.container(task))}" for task in self.tasks())

    def await_tensorboard(self, port: int, plugin: str, *parts: str) -> None:
        """Wait until TensorBoard shows parts of the run: it reads new events every few seconds."""
        tags = f"http://127.0.0.1:{port}/data/plugin/{plugin}/tags"
        self.until(f"TensorBoard to show {', '.join(parts)}", lambda: all(map(get(tags).get, parts)), seen=lambda: get(tags))

    def tasks(self) -> list[str]:
        """Return the tasks that have a container."""
        names = docker("ps", "--all", "--filter", f"label={labels.RUN}={self.name}", "--format", f'{{{{.Label "{labels.TASK}"}}}}')
        return [task for task in names.split() if task]

    def progress_count(self, task: str, leader: str = "chief") -> int:
        """Return the number of reports of a task's steps or evaluations, by the task or its leader."""
        if task == "evaluator":
            return len(self.events(task, "evaluated"))
        # The chief reports the steps of parameter_server's workers; a ps serves each step of the chief.
        subject = leader if task.startswith("ps") else task
        return sum(event["task"] == subject for reporter in {leader, subject} for event in self.events(reporter, "progress"))

    def await_progress(self, *tasks: str, leader: str = "chief", timeout: float = 240) -> None:
        """Wait for two more reports of progress by each of `tasks`, by default the leader: the first may be a late one.

        The step does not matter, because a restored run continues from an earlier step.
        """
        before = {task: self.progress_count(task, leader) for task in tasks or (leader,)}
        for task, count in before.items():
            self._await_progress_count(task, leader, count + 2, timeout)

    def _await_progress_count(self, task: str, leader: str, count: int, timeout: float) -> None:
        def seen() -> str:
            return f"{self.progress_count(task, leader)} of {count} reports{self.last_lines()}"

        self.until(f"progress of {task} of {self.name}", lambda: self.progress_count(task, leader) >= count, timeout, seen)

    def python(self, task: str, program: str) -> None:
        """Run a program in a task's container, beside its trainer."""
        docker("exec", self.container(task), "python", "-c", program)


def objects_of(name: str) -> dict[str, list[str]]:
    """Return the objects that the engine has of a run."""
    of_run = ("--filter", f"label={labels.RUN}={name}")
    return {
        "containers": docker("ps", "--all", "--quiet", *of_run).split(),
        "networks": docker("network", "ls", "--quiet", *of_run).split(),
        "volumes": docker("volume", "ls", "--quiet", *of_run).split(),
    }


NOTHING: dict[str, list[str]] = {"containers": [], "networks": [], "volumes": []}


@contextlib.contextmanager
def cleaned(name: str, runs: Path) -> Iterator[Run]:
    """Yield a run, and remove it at the end of the block."""
    run = Run(name, runs)
    try:
        yield run
    finally:
        if objects_of(name) != NOTHING or locks.held(RunPaths(runs / ".docker" / name).lock):  # false if the test has removed it
            launch("down", name, "--now", "--delete-data", "--yes", runs=runs)
        for container in objects_of(name)["containers"]:
            docker("rm", "--force", container)
        for network in objects_of(name)["networks"]:
            docker("network", "rm", network)
        for volume in objects_of(name)["volumes"]:
            docker("volume", "rm", volume)


@contextlib.contextmanager
def started(spec: dict[str, Any], directory: Path) -> Iterator[Run]:
    """Start a run of `spec` detached, under a name and on a port of its own."""
    spec = {"version": 1, "name": unique(str(spec["name"])), "tensorboard": {"port": free_port()}} | {
        key: value for key, value in spec.items() if key != "name"
    }
    file = directory / f"{spec['name']}.yaml"
    file.write_text(yaml.safe_dump(spec))
    with cleaned(str(spec["name"]), directory / "runs") as run:
        run.launcher("up", str(file), "--detach")
        yield run


# The task that reports steps in each of the two clusters below, by the cluster's name.
LEADERS = {"servers": "chief", "peers": "worker-0"}


@contextlib.contextmanager
def two_clusters(training: dict[str, Any], directory: Path) -> Iterator[dict[str, Run]]:
    """Run parameter servers with an evaluator, and an all-reduce, at the same time; yield both by name once they report steps."""
    roles = {"chief": {}, "ps": {"replicas": 1}, "worker": {"replicas": 2}, "evaluator": {}}
    servers = {"name": "servers", "strategy": "parameter_server", "roles": roles, **training}
    peers = {"name": "peers", "strategy": "multi_worker_mirrored", "roles": {"worker": {"replicas": 2}}, **training}
    with contextlib.ExitStack() as stack:
        runs = {str(spec["name"]): stack.enter_context(started(spec, directory)) for spec in (servers, peers)}
        for name, run in runs.items():
            run.until(f"{name} to make steps", lambda run=run, name=name: run.step(LEADERS[name]) > 20, 300)  # type: ignore[misc]
        yield runs
