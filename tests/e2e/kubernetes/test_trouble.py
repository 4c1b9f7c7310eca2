"""The status of a run that cannot start or fails states the reason: every kind of trouble is caused on the cluster, all at once."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.backend.kubernetes.pod_status import RunSnapshot, status
from launcher.runs.status import RunStatus, State
from tests.e2e.kubernetes.cluster import ROOT, Namespace, until

pytestmark = pytest.mark.kubernetes

SLEEP = "command: [python, -c, 'import time; time.sleep(3600)']\n"
# Trouble -> the rest of the spec, the state of its one task, and the reason given.
TROUBLES: dict[str, tuple[str, State, str]] = {
    "gpus": ("roles: {chief: {gpus: 60}}\nimage: IMAGE\nsupervise: false\n" + SLEEP, State.PENDING, "insufficient nvidia.com/gpu"),
    "labels": (SLEEP + "kubernetes: {node_selector: {no-such: label}}\n", State.PENDING, "didn't match Pod's node affinity/selector"),
    "image": ("image: no-such/image:1\nkubernetes: {image_pull_policy: Never}\n" + SLEEP, State.PENDING, "ErrImageNeverPull"),
    "secret": (SLEEP + "kubernetes: {env_from: [{secret: no-such}]}\n", State.PENDING, 'secret "no-such" not found'),
    "claim": (SLEEP + "storage: {class: no-such}\n", State.PENDING, "there is no storage class no-such"),
    "priority": (SLEEP + "kubernetes: {priority_class: no-such}\n", State.PENDING, "there is no priority class no-such"),
    "security": (SLEEP + "kubernetes: {overrides: {chief: {spec: {hostNetwork: true}}}}\n", State.PENDING, "Pod Security restricted"),
    "memory": (
        "roles: {chief: {memory: 100Mi}}\nimage: IMAGE\nsupervise: false\ncommand: [python, -c, 'x = bytearray(1 << 30)']\nlimits: {max_restarts: 0}\n",
        State.FAILED,
        "OOMKilled: it took more memory than its limit",
    ),
    "exit": (
        "image: IMAGE\nsupervise: false\ncommand: [python, -c, 'raise ValueError(\"no such column\")']\nlimits: {max_restarts: 0}\n",
        State.FAILED,
        "exit code 1: ValueError: no such column",
    ),
    "python": (
        "image: IMAGE\nenv: {PATH: /nowhere}\ncommand: [python, train.py]\nlimits: {max_restarts: 0}\n",
        State.FAILED,
        "its image has no python3, under which a `command` runs",
    ),
    "quota": (SLEEP + "roles: {chief: {cpu: 900}}\n", State.PENDING, "the namespace's quota cores is used up"),
}


def current_status(namespace: Namespace, run: str) -> RunStatus:
    """Return the status of a run, of what the cluster has of it now."""
    events = json.loads(namespace.kubectl("get", "events", "-o", "json"))["items"]
    claims = namespace.objects("PersistentVolumeClaim", run)
    return status(RunSnapshot(run, namespace.objects("Job", run), namespace.pods(run), claims, events), time.time())


def without_a_reason(namespace: Namespace) -> list[str]:
    """Return the runs whose status states no reason, except the one that starts after all others state theirs."""
    return [name for name in TROUBLES if name != "quota" and not current_status(namespace, name).reason]


@pytest.fixture(scope="module")
def troubled(namespace: Namespace, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    """Apply a run for each trouble."""
    for name, (fields, _, _) in TROUBLES.items():
        if name == "quota":  # a quota concerns every pod in the namespace: it is created after all others exist
            until(
                lambda: without_a_reason(namespace) == [], 150, "every other run to state its trouble", lambda: without_a_reason(namespace)
            )
            namespace.kubectl("create", "quota", "cores", "--hard=limits.cpu=800")
        file: Path = tmp_path_factory.mktemp(name) / "spec.yaml"
        file.write_text(f"version: 1\nname: {name}\n" + fields.replace("IMAGE", image))
        command = [sys.executable, "-m", "launcher", "render", str(file), "--to", "kubernetes"]
        manifests = subprocess.run(
            [*command, "--set", "kubernetes.tensorboard=false"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        namespace.kubectl("apply", "-f", "-", text=manifests.stdout)
    yield namespace
    namespace.kubectl("delete", "jobs,pvc", "--all", "--wait=false")


@pytest.mark.parametrize("name", TROUBLES)
def test_the_status_states_the_trouble(name: str, troubled: Namespace) -> None:
    _, state, reason = TROUBLES[name]

    def run() -> RunStatus:
        return current_status(troubled, name)

    until(lambda: reason in run().reason, 60, f"the reason {reason!r}", lambda: str(run()))
    now = run()
    assert now.tasks[0].state is state
    assert now.state is state
