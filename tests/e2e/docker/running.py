"""Drives runs of containers: starts them, watches their tasks, does to them what happens to containers."""

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


def until(what: str, condition: Callable[[], Any], timeout: float = 60, *, told: Callable[[], object]) -> Any:
    """Wait for `condition` to give something true, and return that; fail after `timeout`, times BUSY, with what `told` says it was at last."""
    return waiting.until(what, condition, timeout * BUSY, told=told, every=0.5)


@contextlib.contextmanager
def paused(*containers: str) -> Iterator[None]:
    """Pause containers for a `with` block. On a busy machine runc may be "unable to freeze" one, and has to be asked again."""
    refused: list[DockerError] = []

    def pause(container: str) -> bool:
        try:
            docker("pause", container)
        except DockerError as error:
            refused.append(error)
            return False
        return True

    with contextlib.ExitStack() as let_go:
        for container in containers:
            until(f"{container} to be paused", lambda: pause(container), told=lambda: refused[-1:])  # noqa: B023
            let_go.callback(docker, "unpause", container)
        yield


def unique(name: str) -> str:
    """Return a name that no other run on the engine has."""
    return f"{name}-{uuid.uuid4().hex[:6]}"


def launch(
    *arguments: str, runs: Path, environment: dict[str, str] | None = None, timeout: float = 900
) -> subprocess.CompletedProcess[str]:
    """Run a command line of the launcher from the repository's root."""
    words = (arguments[0], "--on", "docker", "--runs", str(runs), *arguments[1:])
    return forked.launcher(*words, env=os.environ | (environment or {}), timeout=timeout, engine=forked.DOCKER)


def get(url: str, within: float = 60) -> Any:
    """Return the JSON that an address answers, once it does."""
    seen: list[OSError] = []

    def answer() -> list[Any]:
        try:
            with urlopen(url, timeout=20) as answered:
                return [json.load(answered)]
        except OSError as error:
            seen.append(error)
            return []

    return until(f"an answer of {url}", answer, within, told=lambda: seen[-1:])[0]


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
        done = launch(*arguments, runs=self.runs, timeout=timeout)
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def status(self) -> dict[str, Any]:
        """Return `launcher status --json`."""
        status = json.loads(self.launcher("status", self.name, "--json"))
        assert isinstance(status, dict)
        return status

    def tasks_status(self) -> dict[str, dict[str, Any]]:
        """Return what `launcher status` says of each task."""
        return {task["name"]: task for task in self.status()["tasks"]}

    def supervisor(self) -> Supervisor:
        """Return the process that keeps the run."""
        state = json.loads((self.runs / ".docker" / self.name / "launcher" / "state.json").read_text())
        return Supervisor(int(state["supervisor"]["pid"]))

    def container(self, task: str) -> str:
        """Return the name of a task's container, as Compose gives it."""
        return f"{self.name}-{task}-1"

    def inspect(self, task: str) -> dict[str, Any]:
        """Return what the engine says of a task's container."""
        described = json.loads(docker("container", "inspect", self.container(task)))[0]
        assert isinstance(described, dict)
        return described

    def events(self, task: str, kind: str | None = None) -> list[Event]:
        """Return the events that a task has reported, by the engine's logs."""
        found = (parse(line) for line in docker("logs", self.container(task)).splitlines())
        return [event for event in found if event and (kind is None or event["event"] == kind)]

    def step(self, leader: str = "chief") -> int:
        """Return the last step that was reported."""
        told = [event["step"] for event in self.events(leader, "progress") if event["task"] == leader]
        return told[-1] if told else 0

    def until(self, what: str, condition: Callable[[], Any], timeout: float = 120, told: Callable[[], object] | None = None) -> Any:
        """Wait for `condition` to give something true, and return that; fail with what `told` says, or with the tasks' last lines."""
        return until(what, condition, timeout, told=told or self.last_lines)

    def last_lines(self) -> str:
        """Return what each task has written last, by the engine's logs."""
        return "".join(f"\n--- {task}\n{docker('logs', '--tail', '12', self.container(task))}" for task in self.tasks())

    def shown(self, port: int, plugin: str, *parts: str) -> None:
        """Wait until TensorBoard shows parts of the run: it looks for what is new every few seconds."""
        tags = f"http://127.0.0.1:{port}/data/plugin/{plugin}/tags"
        self.until(f"TensorBoard to show {', '.join(parts)}", lambda: all(map(get(tags).get, parts)), told=lambda: get(tags))

    def tasks(self) -> list[str]:
        """Return the tasks that have a container."""
        listed = docker("ps", "--all", "--filter", f"label={labels.RUN}={self.name}", "--format", f'{{{{.Label "{labels.TASK}"}}}}')
        return [task for task in listed.split() if task]

    def computed(self, task: str, leader: str = "chief") -> int:
        """Return how often a task has told, or its leader of it, that it computed something: steps, or an evaluation."""
        if task == "evaluator":
            return len(self.events(task, "evaluated"))
        # The chief tells what a worker of parameter servers does; a ps serves every step of the chief's.
        about = leader if task.startswith("ps") else task
        tellers = {leader, about}
        return sum(event["task"] == about for teller in tellers for event in self.events(teller, "progress"))

    def goes_on(self, *tasks: str, leader: str = "chief", timeout: float = 240) -> None:
        """Wait until each of `tasks`, the leader when left out, has computed more than it has now, and twice: one may be told late."""
        before = {task: self.computed(task, leader) for task in tasks or (leader,)}
        for task, times in before.items():
            # A restored run goes on from an earlier step: that it makes steps is what counts.
            self._until_computed(task, leader, times + 2, timeout)

    def _until_computed(self, task: str, leader: str, times: int, timeout: float) -> None:
        def told() -> str:
            return f"{self.computed(task, leader)} of {times} times{self.last_lines()}"

        self.until(f"{task} of {self.name} to go on", lambda: self.computed(task, leader) >= times, timeout, told)

    def python(self, task: str, program: str) -> None:
        """Run a program in a task's container, beside its trainer."""
        docker("exec", self.container(task), "python", "-c", program)


def left(name: str) -> dict[str, list[str]]:
    """Return what the engine still has of a run."""
    wanted = ("--filter", f"label={labels.RUN}={name}")
    return {
        "containers": docker("ps", "--all", "--quiet", *wanted).split(),
        "networks": docker("network", "ls", "--quiet", *wanted).split(),
        "volumes": docker("volume", "ls", "--quiet", *wanted).split(),
    }


NOTHING: dict[str, list[str]] = {"containers": [], "networks": [], "volumes": []}


@contextlib.contextmanager
def cleaned(name: str, runs: Path) -> Iterator[Run]:
    """Give a run; whatever happens, nothing of it is left."""
    run = Run(name, runs)
    try:
        yield run
    finally:
        if left(name) != NOTHING or locks.held(RunPaths(runs / ".docker" / name).lock):  # not where the test has removed it by itself
            launch("down", name, "--now", "--delete-data", "--yes", runs=runs)
        for container in left(name)["containers"]:
            docker("rm", "--force", container)
        for network in left(name)["networks"]:
            docker("network", "rm", network)
        for volume in left(name)["volumes"]:
            docker("volume", "rm", volume)


@contextlib.contextmanager
def started(spec: dict[str, Any], directory: Path) -> Iterator[Run]:
    """Start a run of `spec` detached, under a name and on a port of its own."""
    spec = {"version": 1, "name": unique(str(spec["name"])), "tensorboard": {"port": free_port()}} | {
        k: v for k, v in spec.items() if k != "name"
    }
    file = directory / f"{spec['name']}.yaml"
    file.write_text(yaml.safe_dump(spec))
    with cleaned(str(spec["name"]), directory / "runs") as run:
        run.launcher("up", str(file), "--detach")
        yield run


# Of the two clusters below, by name, the task that tells of steps.
LEADERS = {"servers": "chief", "peers": "worker-0"}


@contextlib.contextmanager
def two_clusters(training: dict[str, Any], directory: Path) -> Iterator[dict[str, Run]]:
    """Run parameter servers with an evaluator, and an all-reduce, at the same time; yield both, by name, once they make steps."""
    roles = {"chief": {}, "ps": {"replicas": 1}, "worker": {"replicas": 2}, "evaluator": {}}
    servers = {"name": "servers", "strategy": "parameter_server", "roles": roles, **training}
    peers = {"name": "peers", "strategy": "multi_worker_mirrored", "roles": {"worker": {"replicas": 2}}, **training}
    with contextlib.ExitStack() as both:
        found = {str(spec["name"]): both.enter_context(started(spec, directory)) for spec in (servers, peers)}
        for name, run in found.items():
            run.until(f"{name} to make steps", lambda run=run, name=name: run.step(LEADERS[name]) > 20, 300)  # type: ignore[misc]
        yield found
