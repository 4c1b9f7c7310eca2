"""A run that cannot start, takes too long, or fails: it ends, `up` reports why, and its nodes are free.

All of them start at once, because each mostly waits.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import until
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher, output_at_end

pytestmark = [pytest.mark.kubernetes, pytest.mark.takes_minutes]

# One task fails; each of the others would continue.
FAILS = (
    "import json, os, sys, time; role = json.loads(os.environ['TF_CONFIG'])['task']['type']; "
    "time.sleep(1 if role == 'worker' else 600); print('no such column: label'); sys.exit(2)"
)
# Stores more than it may, and at SIGTERM exits as a task that has saved.
GROWS = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); "
    "open('/cache/all', 'wb').write(bytes(3 << 20)); print('stored'); time.sleep(3600)"
)
ROLES = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}}\nkubernetes: {tensorboard: false}\n"
SPECS = {
    "greedy": "roles: {chief: {gpus: 60}}\ntrain: {workload: mnist_mlp}\nlimits: {start_timeout: 20s}\n",
    # Its pods have to run before the deadline, which takes a while on a busy machine: then only the deadline can end it.
    "late": f"image: IMAGE\nsupervise: false\n{ROLES}limits: {{deadline: 120s, start_timeout: 120s, grace_period: 2s}}\n"
    "command: [python, -c, 'import time; time.sleep(3600)']\n",
    "grows": "image: IMAGE\nlimits: {max_restarts: 1}\nvolumes: [{name: cache, mount_path: /cache, source: {emptyDir: {sizeLimit: 1Mi}}}]\n"
    f"command: [python, -c, {json.dumps(GROWS)}]\n",
    "broken": f"image: IMAGE\nsupervise: false\n{ROLES}limits: {{grace_period: 3s}}\ncommand: [python, -c, {json.dumps(FAILS)}]\n",
}


@pytest.fixture(scope="module")
def ups(launcher: Launcher, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start all of them, each by an `up` in the foreground."""
    directory, started = tmp_path_factory.mktemp("specs"), {}
    for name, spec in SPECS.items():
        file: Path = directory / f"{name}.yaml"
        file.write_text(f"version: 1\nname: {name}\n{spec.replace('IMAGE', image)}")
        started[name] = launcher.start("up", str(file))
    yield started
    for name, up in started.items():
        up.kill()
        up.communicate()
        launcher("down", name, "--now", "--delete-data", "--yes")


def output_of_failure(up: subprocess.Popen[str]) -> str:
    """Return the output of an `up` whose run fails."""
    output = output_at_end(up, TRAINING_TIMEOUT)
    assert up.returncode == 1, output
    return output


def test_a_run_that_cannot_start_in_time_reports_why_and_frees_its_nodes(ups: dict[str, subprocess.Popen[str]], launcher: Launcher) -> None:
    output = output_of_failure(ups["greedy"])
    assert "not started within limits.start_timeout (20 s): chief: " in output
    assert "insufficient nvidia.com/gpu" in output
    assert launcher.namespace.objects("Job", "greedy") == []
    status = launcher.status("greedy")
    assert status["state"] == "failed"
    assert "insufficient nvidia.com/gpu" in status["reason"]


def test_a_failed_run_names_its_task_and_ends_the_others(ups: dict[str, subprocess.Popen[str]], launcher: Launcher) -> None:
    namespace, output = launcher.namespace, output_of_failure(ups["broken"])
    assert "broken failed" in output
    assert "worker-0, attempt 1: exit code 2" in output
    assert "no such column: label" in output

    def at_work() -> list[str]:
        return [pod["metadata"]["name"] for pod in namespace.pods("broken") if pod["status"]["phase"] == "Running"]

    until(lambda: at_work() == [], 90, "the others to end", at_work)
    assert "no such column: label" in launcher("logs", "broken", "--role", "worker")


def test_a_passed_deadline_ends_every_task_and_is_reported(ups: dict[str, subprocess.Popen[str]], launcher: Launcher) -> None:
    namespace = launcher.namespace
    assert "limits.deadline has passed" in output_of_failure(ups["late"])
    assert "limits.deadline has passed" in launcher.status("late")["reason"]
    until(lambda: not namespace.pods("late"), 60, "its pods to be deleted", lambda: namespace.describe("late"))


def test_a_task_that_outgrows_its_storage_is_not_replaced_endlessly(ups: dict[str, subprocess.Popen[str]], launcher: Launcher) -> None:
    output = output_of_failure(ups["grows"])
    assert "evicted: it exceeded a limit of storage: Usage of EmptyDir volume " in output
    pods = launcher.namespace.pods("grows")
    assert [pod["status"]["reason"] for pod in pods] == ["Evicted", "Evicted"]
