"""A run that a test disturbs and observes: its newest pods, its checkpoints, its steps."""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.kubernetes.cluster import kubectl, until
from tests.e2e.kubernetes.launching import Launcher

RECOVERY_TIMEOUT = 180.0  # seconds until steps flow again on a busy machine
INDEX = "batch.kubernetes.io/job-completion-index"
# Kills the process that trains, the trainer's only child.
KILL = "import os, signal, pathlib; os.kill(int(pathlib.Path('/proc/1/task/1/children').read_text().split()[0]), signal.SIGKILL)"

# Two tasks of an all-reduce, as lines of a spec.
ALL_REDUCE = """\
strategy: multi_worker_mirrored
roles: {chief: {}, worker: {replicas: 1}}
kubernetes: {tensorboard: false}
"""

Pod = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Run:
    """One run and the names of its tasks."""

    launcher: Launcher
    name: str
    tasks: tuple[str, ...]

    def start(self, options: str, directory: Path) -> None:
        """Start it, detached; `options` are the lines of its spec after the common ones."""
        directory.mkdir()
        head = f"version: 1\nname: {self.name}\nlimits: {{node_lost: 5s}}\n"
        (directory / "spec.yaml").write_text(head + options)
        self.launcher("up", str(directory / "spec.yaml"), "--detach")

    def await_steady(self) -> None:
        """Wait until all its pods run and it has saved a checkpoint."""
        until(lambda: self.is_steady() and self.saved() > 0, RECOVERY_TIMEOUT, f"{self.name} to save a checkpoint", self.describe)

    def describe(self) -> str:
        """Return objects, events and logs for the message of a failed test."""
        return self.launcher.namespace.describe(self.name)

    def status(self) -> dict[str, Any]:
        """Return `launcher status --json`."""
        return self.launcher.status(self.name)

    def pods(self, task: str) -> list[Pod]:
        """Return the pods of a task, the newest last."""
        role, _, index = task.partition("-")
        pods = (pod for pod in self.launcher.namespace.pods(self.name, role) if pod["metadata"]["annotations"][INDEX] == (index or "0"))
        return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def pod(self, task: str) -> Pod:
        """Return the newest pod of a task."""
        return self.pods(task)[-1]

    def node(self, task: str) -> str:
        """Return the node of a task's newest pod."""
        return str(self.pod(task)["spec"]["nodeName"])

    def events(self, task: str) -> list[dict[str, Any]]:
        """Return the events of a task's newest pod; none while its node does not answer."""
        pods = self.pods(task)
        return self.launcher.namespace.events_of(pods[-1]) if pods else []

    def saved(self) -> int:
        """Return the step of the last checkpoint that the chief's newest pod has reported."""
        return max((event["step"] for event in self.events("chief") if event["event"] == "checkpoint"), default=0)

    def await_replacement(self, task: str, old: Pod) -> None:
        """Wait until a task has a new pod. Between the two there may be none."""

        def replaced() -> bool:
            return bool({pod["metadata"]["uid"] for pod in self.pods(task)} - {old["metadata"]["uid"]})

        until(replaced, RECOVERY_TIMEOUT, f"another pod of {task}", self.describe)

    def is_steady(self) -> bool:
        """Return whether all its pods run, and none is being deleted or created."""
        pods = self.launcher.namespace.pods(self.name)
        terminating = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
        return not terminating and sum(pod["status"]["phase"] == "Running" for pod in pods) == len(self.tasks)

    def kill(self, task: str) -> None:
        """Kill the process that trains in a task, and wait until its trainer has reported that."""
        pod = self.pod(task)
        self.launcher.namespace.kubectl("exec", pod["metadata"]["name"], "--", "python", "-c", KILL)
        events = self.launcher.namespace.events_of
        awaited = "the trainer to report that its process was killed"
        until(lambda: any(e["event"] == "restarting" and e["exit_code"] == 137 for e in events(pod)), 60, awaited, self.describe)

    def evict(self, task: str) -> None:
        """Evict a task's pod as `kubectl drain` does."""
        name, namespace = self.pod(task)["metadata"]["name"], self.launcher.namespace.name
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        kubectl("create", "--raw", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", "-f", "-", text=json.dumps(eviction))

    def delete(self, task: str) -> None:
        """Delete a task's pod."""
        self.launcher.namespace.kubectl("delete", "pod", self.pod(task)["metadata"]["name"], "--wait=false")

    def progress_times(self, task: str, after: float) -> list[float]:
        """Return the times after `after` at which a task reported a step or an evaluation; for a ps, the chief's steps count."""
        subject, kind = ("chief" if task.startswith("ps") else task), ("evaluated" if task == "evaluator" else "progress")
        events = [*self.events("chief"), *(() if subject == "chief" else self.events(subject))]
        return sorted(e["time"] for e in events if e["event"] == kind and e["task"] == subject and e["time"] > after)


@contextlib.contextmanager
def recovering(runs: tuple[Run, ...], fault: str, *tasks: str) -> Iterator[None]:
    """Check that the runs recover from a fault that the block causes to `tasks`: each works again, from the last checkpoint before or later.

    Each task has to report twice, because progress from before the fault may be reported shortly after it. Prints the seconds since the
    fault, by the pods' clocks.
    """
    for run in runs:
        until(lambda run=run: run.saved() > 0, RECOVERY_TIMEOUT, "a checkpoint", run.describe)  # type: ignore[misc]
    before, began = {run: run.saved() for run in runs}, time.time()
    yield
    now = time.time()
    for run in runs:
        for task in ("chief", *(task for task in tasks if task in run.tasks and task != "chief")):

            def works(run: Run = run, task: str = task) -> bool:
                return len(run.progress_times(task, now)) > 1

            until(works, RECOVERY_TIMEOUT, f"{task} of {run.name} to work again", run.describe)
            print(f"{run.name}: {fault}: {task} works again {run.progress_times(task, now)[0] - began:.1f} s after it began")
        assert min(e["step"] for e in run.events("chief") if e["event"] == "progress" and e["time"] > now) > before[run]
        assert set(run.launcher.namespace.ends(run.name).values()) == {""}
