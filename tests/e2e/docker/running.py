"""Drives runs of containers: starts them, watches their tasks, does to them what happens to containers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

from launcher.backend.local import locks
from launcher.backend.local.layout import Layout
from launcher.docker_cli import docker
from launcher.render import labels
from tests.processes import free_port
from trainer.events import Event, parse

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"

# What a run trains that has to go on for as long as a test needs it, and saves often.
PACED: dict[str, Any] = {
    "code": str(ROOT / "tests" / "e2e" / "code"),
    "train": {"workload": "paced:Paced", "steps": 1_000_000, "steps_per_execution": 10, "checkpoint": {"every_seconds": 3}},
}

# Says whether TensorFlow's port answers at an address: its server is the first to speak. That somebody takes the connection says
# nothing: on its way out of a machine a proxy may.
PROBE = (
    "import socket, sys\n"
    "try:\n"
    "    with socket.create_connection((sys.argv[1], 2222), timeout=3) as connection:\n"
    "        print('answers' if connection.recv(1) else 'refused: it ends')\n"
    "except OSError as error:\n    print('refused:', error)"
)


def unique(name: str) -> str:
    """Return a name that no other run on the engine has."""
    return f"{name}-{uuid.uuid4().hex[:6]}"


def launch(
    *arguments: str, runs: Path, environment: dict[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command line of the launcher from the repository's root."""
    command = [sys.executable, "-m", "launcher", arguments[0], "--on", "docker", "--runs", str(runs), *arguments[1:]]
    known = os.environ | (environment or {})
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False, env=known)


def get(url: str, within: float = 60) -> Any:
    """Return the JSON that an address answers, once it does."""
    deadline = time.monotonic() + within
    while True:
        try:
            with urlopen(url, timeout=5) as answer:
                return json.load(answer)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


@dataclass(frozen=True)
class Keeper:
    """A keeper's process."""

    pid: int

    def kill(self) -> None:
        """Kill it."""
        os.kill(self.pid, signal.SIGKILL)

    def is_running(self) -> bool:
        """Tell whether it runs; a zombie does not."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state != "Z"


@dataclass(frozen=True)
class Run:
    """One run of containers by its name."""

    name: str
    runs: Path

    def launcher(self, *arguments: str, timeout: float = 300) -> str:
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

    def keeper(self) -> Keeper:
        """Return the process that keeps the run."""
        state = json.loads((self.runs / self.name / "launcher" / "state.json").read_text())
        return Keeper(int(state["supervisor"]["pid"]))

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

    def until(self, what: str, condition: Callable[[], Any], timeout: float = 120) -> Any:
        """Wait for `condition` to give something true, and return that."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if result := condition():
                return result
            time.sleep(0.5)
        last = {task: docker("logs", "--tail", "12", self.container(task)) for task in self.tasks()}
        raise AssertionError(f"waited {timeout} s for {what}\n" + "\n".join(f"--- {task}\n{text}" for task, text in last.items()))

    def shown(self, port: int, plugin: str, *parts: str) -> None:
        """Wait until TensorBoard shows parts of the run: it looks for what is new every few seconds."""
        tags = f"http://127.0.0.1:{port}/data/plugin/{plugin}/tags"
        self.until(f"TensorBoard to show {', '.join(parts)}", lambda: all(map(get(tags).get, parts)), timeout=30)

    def tasks(self) -> list[str]:
        """Return the tasks that have a container."""
        listed = docker("ps", "--all", "--filter", f"label={labels.RUN}={self.name}", "--format", f'{{{{.Label "{labels.TASK}"}}}}')
        return [task for task in listed.split() if task]

    def computed(self, task: str, leader: str = "chief") -> int:
        """Return how often a task has told, or its leader of it, that it computed something: steps, or an evaluation."""
        if task == "evaluator":
            return len(self.events(task, "evaluated"))
        # What a worker of parameter servers does its chief tells; a ps serves every step of the chief's.
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
        self.until(f"{task} of {self.name} to go on", lambda: self.computed(task, leader) >= times, timeout)

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
        if left(name) != NOTHING or locks.held(Layout(runs / name).lock):  # not where the test has removed it by itself
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
