"""A real cluster, through the user's kubectl. Tests that poll ask the API server directly."""

import functools
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.backend.kubernetes import status_reader
from launcher.backend.kubernetes.client import Cluster, http_status
from launcher.backend.kubernetes.errors import TransientError
from launcher.errors import LauncherError
from launcher.runs.status import RunStatus
from tests.e2e.busy import BUSY
from tests.stand_in import stand_in

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.yaml"))

# All that Pod Security `restricted` requires of a pod.
_RESTRICTED = {
    "automountServiceAccountToken": False,
    "restartPolicy": "Never",
    "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
}
# It retries, because the network applies its policies a moment after the pod has started.
_CONNECT = """
import socket, sys, time
for _ in range(int(sys.argv[3])):
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1).close()
        sys.exit("connected")
    except OSError as error:
        last = error
    time.sleep(0.5)
sys.exit(f"{type(last).__name__}: {last}")
"""


def kubectl(*arguments: str, check: bool = True, text: str | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run kubectl; `text` is its stdin. With `check` a failure fails the test with kubectl's output."""
    result = subprocess.run(["kubectl", *arguments], capture_output=True, text=True, input=text, timeout=timeout, check=False, cwd=ROOT)
    assert not check or result.returncode == 0, f"kubectl {' '.join(arguments)}:\n{result.stdout}{result.stderr}"
    return result


def stand_in_spec(steps: int = 1_000_000, step_seconds: float = 0.2, **train: Any) -> str:
    """Return the lines of a spec whose tasks do everything but train (tests/stand_in), for tests of the launcher and the cluster.

    The tasks start in a fifth of a second and need little of a core. `train` has more fields of that section, such as `checkpoint`.
    """
    params = {"step_seconds": step_seconds, "silent_seconds": 15}
    return yaml.safe_dump(stand_in.spec(steps, params=params, report_every_steps=2, **train))


def paced(every_seconds: float) -> str:
    """Return the lines of a spec by which TensorFlow trains slowly, for as long as a test needs it, and saves a checkpoint `every_seconds`.

    Only for tests of TensorFlow's behaviour, because its start takes seconds.
    """
    settings = f"steps: 100000000, steps_per_execution: 1, report_every_steps: 5, checkpoint: {{every_seconds: {every_seconds}}}"
    return f"code: {ROOT / 'tests' / 'e2e' / 'code'}\ntrain: {{workload: 'paced:Slow', {settings}}}\n"


@dataclass(frozen=True)
class Namespace:
    """One namespace of the cluster, which admits only pods that Pod Security `restricted` allows."""

    name: str

    @functools.cached_property
    def _cluster(self) -> Cluster:
        return Cluster(namespace=self.name)

    def kubectl(self, *arguments: str, check: bool = True, text: str | None = None, timeout: float = 120) -> str:
        """Run kubectl in the namespace and return what it wrote to stdout."""
        return kubectl("-n", self.name, *arguments, check=check, text=text, timeout=timeout).stdout

    def signal(self, pod: str, file: str) -> None:
        """Create a file in a pod. If the program ends as soon as it sees the file, the command may be killed with it: exit code 137."""
        result = kubectl("-n", self.name, "exec", pod, "--", "touch", file, check=False)
        assert result.returncode in {0, 137}, result.stderr

    def status(self, run: str) -> RunStatus | None:
        """Return the status of a run as `launcher status` shows it, without a process for each call; None if it has no Jobs."""
        return status_reader.StatusReader(self._cluster, run).status()

    def is_running(self, run: str) -> bool:
        """Return whether the status of a run is `running`."""
        status = self.status(run)
        return status is not None and status.state == "running"

    def step(self, run: str) -> int:
        """Return the last step that a run has reported, 0 before the first."""
        status = self.status(run)
        return (status.step if status else None) or 0

    def objects(self, kind: str, run: str) -> list[dict[str, Any]]:
        """Return the objects of a kind, such as Job, that belong to a run."""
        return self._cluster.list_objects(kind, {"app.kubernetes.io/instance": run})

    def pods(self, run: str, role: str | None = None) -> list[dict[str, Any]]:
        """Return the pods of a run's tasks, or of one role."""
        component = {} if role is None else {"app.kubernetes.io/component": role}
        return self._cluster.list_objects("Pod", {"app.kubernetes.io/instance": run, "tf-launcher/cluster": run} | component)

    def ends(self, run: str) -> dict[str, str]:
        """Return how each Job of a run has ended: Complete or Failed, or empty while it runs."""
        return {job["metadata"]["name"].removeprefix(f"{run}-"): _end(job) for job in self.objects("Job", run)}

    def describe(self, run: str) -> str:
        """Return objects, events and logs for the message of a failed test."""
        logs = [self.kubectl("logs", f"job/{job['metadata']['name']}", "--tail=15", check=False) for job in self.objects("Job", run)]
        return "\n".join([self.kubectl("get", "jobs,pods,pvc", "-o", "wide"), self.kubectl("get", "events", check=False)[-3000:], *logs])

    def events(self, run: str, role: str) -> list[dict[str, Any]]:
        """Return the progress events of a role's tasks, from the pods that exist."""
        return [event for pod in self.pods(run, role) for event in self.events_of(pod)]

    def events_of(self, pod: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the progress events of one pod; none before it has started, or while its node does not answer."""
        try:
            return _events(self._cluster.log(pod["metadata"]["name"], "trainer", [], timeout=10).decode())
        except LauncherError as error:
            # Its container has not started, it was deleted, or its node does not answer.
            if http_status(error) in {400, 404} or isinstance(error, TransientError):
                return []
            raise

    def try_to_reach(self, host: str, port: int, image: str, labels: dict[str, str], tries: int) -> str:
        """Connect from a new pod, with up to so many tries; return `connected`, or the last error."""
        name = f"stranger-{time.monotonic_ns()}"
        container = {
            "name": "stranger",
            "image": image,
            "command": ["python", "-c", _CONNECT, host, str(port), str(tries)],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {**_RESTRICTED, "containers": [container]},
        }
        self.kubectl("apply", "-f", "-", text=json.dumps(pod))

        def ended() -> bool:
            return self.kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}") in {"Succeeded", "Failed"}

        try:
            until(ended, 180, f"{name} to end", lambda: self.kubectl("get", "pod", name, "-o", "wide", check=False))
            return self.kubectl("logs", name).strip()
        finally:
            self.kubectl("delete", "pod", name, "--wait=false", "--grace-period=1")


def until(condition: Callable[[], bool], seconds: float, awaited: str, describe: Callable[[], object]) -> None:
    """Wait until `condition` holds; fail after `seconds`, times BUSY, with `awaited` and the result of `describe`."""
    began, seconds = time.monotonic(), seconds * BUSY
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, f"waited {seconds:.0f} s for {awaited}\n{describe()}"
        time.sleep(min(max(0.5, waited / 20), 1.0))  # polling takes processor time from the tasks


def _end(job: dict[str, Any]) -> str:
    conditions = {condition["type"] for condition in job.get("status", {}).get("conditions", []) if condition["status"] == "True"}
    return next((kind for kind in ("Complete", "Failed") if kind in conditions), "")


def _events(log: str) -> list[dict[str, Any]]:
    return [event for line in log.splitlines() if line.startswith("{") and "event" in (event := _json(line))]


def _json(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
