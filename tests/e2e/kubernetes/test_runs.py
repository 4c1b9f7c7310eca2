"""Runs on a real cluster by kubectl alone: they train, are reached by nobody else, survive a deleted pod, and end."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from launcher.backend.kubernetes import look
from launcher.backend.kubernetes.api import Cluster
from tests.e2e.kubernetes.cluster import ROOT, Namespace, kubectl, paced, until
from tests.e2e.kubernetes.faults import INDEX, KILL

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(480), pytest.mark.takes_minutes]

TRAINED = 400.0  # seconds from apply to every Job Complete; two cores train it in well below a minute


def complete(namespace: Namespace, run: str, seconds: float = TRAINED) -> None:
    """Wait until every Job of a run is Complete and none of its pods runs."""

    def ended() -> bool:
        ends = namespace.ends(run)
        assert "Failed" not in ends.values(), f"{ends}\n{namespace.describe(run)}"
        return bool(ends) and all(ends.values())

    until(ended, seconds, f"every Job of {run} to be Complete", lambda: namespace.describe(run))
    phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in namespace.pods(run)}
    assert "Running" not in phases.values(), phases


def render(namespace: Namespace, spec: str, tmp_path: Path) -> None:
    """Render a spec and apply it, as one pipe."""
    file = tmp_path / "spec.yaml"
    file.write_text(f"version: 1\n{spec}")
    command = [sys.executable, "-m", "launcher", "render", str(file), "--to", "kubernetes"]
    manifests = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    namespace.kubectl("apply", "-f", "-", text=manifests)


@pytest.fixture(scope="module")
def applied(namespace: Namespace) -> Iterator[Namespace]:
    """Apply the parameter-server example as it is committed, once for the tests below; print how long it takes (docs/performance.md)."""
    began = time.time()
    namespace.kubectl("apply", "-k", str(ROOT / "k8s" / "mnist-ps"))
    yield namespace
    steps = [event["time"] for event in namespace.events("mnist-ps", "chief") if event["event"] == "progress"]
    times = [job["status"].get("completionTime") for job in namespace.objects("Job", "mnist-ps")]
    if steps and times and all(times):
        ended = max(datetime.fromisoformat(time).timestamp() for time in times)
        print(f"mnist-ps: first step {min(steps) - began:.1f} s after apply, every Job Complete {ended - began:.0f} s after it")
    namespace.kubectl("delete", "-k", str(ROOT / "k8s" / "mnist-ps"), "--wait=false")


def test_mnist_ps_trains_to_the_end_by_kubectl_alone(applied: Namespace) -> None:
    complete(applied, "mnist-ps")
    for pod in applied.pods("mnist-ps"):
        (state,) = pod["status"]["containerStatuses"]
        assert state["state"]["terminated"]["exitCode"] == 0, pod["metadata"]["name"]
    names = {pod["metadata"]["name"].rpartition("-")[0] for pod in applied.pods("mnist-ps")}
    assert names == {"mnist-ps-chief-0", "mnist-ps-worker-0", "mnist-ps-worker-1", "mnist-ps-ps-0"}


def test_checkpoints_and_logs_stay_on_the_volume_which_tensorboard_only_reads(applied: Namespace) -> None:
    complete(applied, "mnist-ps")
    applied.kubectl("rollout", "status", "deployment/mnist-ps-tensorboard", "--timeout=90s", timeout=100)
    board = ("exec", "deployment/mnist-ps-tensorboard", "--")
    record = json.loads(applied.kubectl(*board, "cat", "/runs/mnist-ps/run.json"))
    assert (record["state"], record["step"]) == ("succeeded", 2000)
    assert record["metrics"]["accuracy"] >= 0.97
    assert "ckpt-2000.index" in applied.kubectl(*board, "ls", "/runs/mnist-ps/checkpoints")
    refused = kubectl("-n", applied.name, *board, "touch", "/runs/mnist-ps/mine", check=False)
    assert "Read-only file system" in refused.stderr
    # Through the API server, as `kubectl port-forward` goes.
    path = f"/api/v1/namespaces/{applied.name}/services/mnist-ps-tensorboard:http/proxy/data/plugin/scalars/tags"
    until(lambda: {"train", "eval"} <= set(json.loads(kubectl("get", "--raw", path).stdout)), 30, "TensorBoard to show the run")


def back(namespace: Namespace, run: str, role: str) -> float:
    """Kill the process that trains in the first pod of a role; return seconds until its steps flow again, by the clocks of the pods.

    A worker's steps are its own; of ps and chief they are the chief's, once it trains again.
    """
    (pod, *_) = namespace.pods(run, role)
    task = role if role == "chief" else f"{role}-{pod['metadata']['annotations'][INDEX]}"
    namespace.kubectl("exec", pod["metadata"]["name"], "--", "python", "-c", KILL)
    seconds: list[float] = []

    def told() -> bool:
        killed = [event["time"] for event in namespace.events_of(pod) if event["event"] == "restarting" and event["exit_code"] == 137]
        chiefs = namespace.events(run, "chief")
        ready = [event["time"] for event in chiefs if event["event"] == "ready" and killed and event["time"] > killed[-1]]
        # What a worker did last may be told a moment after it was killed.
        after = killed[-1] + 0.6 if role == "worker" and killed else min(ready, default=math.inf)
        steps = [event for event in chiefs if event["event"] == "progress" and event["time"] > after]
        seconds[:] = [event["time"] - killed[-1] for event in steps if event["task"] == (task if role == "worker" else "chief")]
        return len(seconds) > 1

    until(told, 120, f"steps after the process of {task} was killed", lambda: namespace.describe(run))
    return min(seconds)


def test_a_process_killed_and_a_pod_deleted_come_back_and_strangers_are_kept_out(namespace: Namespace, image: str, tmp_path: Path) -> None:
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}}"
    render(namespace, f"name: deleted\n{roles}\ntrain: {{workload: mnist_mlp, steps: 1000000}}\n", tmp_path)

    def step() -> int:
        return max((event["step"] for event in namespace.events("deleted", "chief") if event["event"] == "progress"), default=0)

    until(lambda: step() > 0, 180, "the first steps", lambda: namespace.describe("deleted"))
    for role in ("worker", "ps", "chief"):
        print(f"process of the {role} killed: steps flow again after {back(namespace, 'deleted', role):.1f} s")
    # Dropped or refused, as the cluster's network does it; from a pod of the run's own it is reached.
    assert "Error" in namespace.try_to_reach("deleted-ps-0.deleted", 2222, image)
    another = {"app.kubernetes.io/name": "tf-launcher", "app.kubernetes.io/instance": "another", "tf-launcher/cluster": "another"}
    assert "Error" in namespace.try_to_reach("deleted-worker-0.deleted", 2222, image, another)
    assert namespace.try_to_reach("deleted-ps-0.deleted", 2222, image, {"tf-launcher/cluster": "deleted"}) == "connected"
    assert namespace.try_to_reach("deleted-tensorboard", 6006, image) == "connected"

    before = {pod["metadata"]["uid"] for pod in namespace.pods("deleted", "worker")}
    victim = namespace.pods("deleted", "worker")[0]["metadata"]["name"]
    namespace.kubectl("delete", "pod", victim, "--wait=false")

    def replaced() -> bool:
        new = [pod for pod in namespace.pods("deleted", "worker") if pod["metadata"]["uid"] not in before]
        return any(pod["status"]["phase"] == "Running" for pod in new)

    until(replaced, 120, "a pod in the place of the deleted one", lambda: namespace.describe("deleted"))
    then = step()
    until(lambda: step() > then + 500, 120, "steps after that", lambda: namespace.describe("deleted"))
    assert namespace.ends("deleted") == {"chief": "", "ps": "", "worker": ""}
    namespace.kubectl("delete", "jobs,deployments,services,networkpolicies", "-l", "app.kubernetes.io/instance=deleted", "--wait=false")


def test_a_program_that_says_its_configuration_is_wrong_fails_at_once_with_its_last_words(namespace: Namespace, tmp_path: Path) -> None:
    program = "import sys; print('no such column: label', file=sys.stderr); sys.exit(2)"
    render(namespace, f"name: wrong\ncommand: [python, -c, {json.dumps(program)}]\nkubernetes: {{tensorboard: false}}\n", tmp_path)
    until(lambda: namespace.ends("wrong") == {"chief": "Failed"}, 120, "the Job to fail", lambda: namespace.describe("wrong"))
    (job,) = namespace.objects("Job", "wrong")
    assert {condition["reason"] for condition in job["status"]["conditions"]} == {"PodFailurePolicy"}
    (pod,) = namespace.pods("wrong")
    terminated = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert terminated["exitCode"] == 2
    assert "no such column: label" in terminated["message"]


def trains(namespace: Namespace, run: str) -> None:
    """Wait for the first steps of a run."""

    def steps() -> bool:
        return any(event["event"] == "progress" for event in namespace.events(run, "chief"))

    until(steps, 180, "the first steps", lambda: namespace.describe(run))


def take_away(namespace: Namespace, run: str, role: str) -> None:
    """Delete the Job of a role, and wait until those of all others have failed; none of their pods works any more."""
    ends = namespace.ends(run)
    assert ends == {"chief": "", "ps": "", "worker": ""}
    failed = dict.fromkeys(ends.keys() - {role}, "Failed")
    namespace.kubectl("delete", "job", f"{run}-{role}", "--wait=false")
    until(lambda: namespace.ends(run) == failed, 240, "the others to end", lambda: namespace.describe(run))
    assert {pod["status"]["phase"] for pod in namespace.pods(run)} <= {"Failed", "Succeeded"}


def test_servers_whose_chief_is_gone_for_good_let_their_nodes_go(namespace: Namespace, tmp_path: Path) -> None:
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}}"
    options = "limits: {orphan_timeout: 90s}\nkubernetes: {tensorboard: false}"
    render(namespace, f"name: orphans\n{roles}\n{options}\n{paced(60)}", tmp_path)
    trains(namespace, "orphans")
    take_away(namespace, "orphans", "chief")
    codes = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        for pod in namespace.pods("orphans")
        if pod["status"]["phase"] == "Failed"
    }
    assert codes["ps"] == 75


def test_a_chief_whose_workers_are_gone_for_good_saves_and_lets_its_node_go(namespace: Namespace, tmp_path: Path) -> None:
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}}"
    options = "limits: {orphan_timeout: 40s}\nkubernetes: {tensorboard: false}"
    render(namespace, f"name: lonely\n{roles}\n{options}\n{paced(3600)}", tmp_path)

    def told(kind: str) -> list[dict[str, Any]]:
        return [event for event in namespace.events("lonely", "chief") if event["event"] == kind]

    trains(namespace, "lonely")
    take_away(namespace, "lonely", "worker")
    (failed,) = told("failed")
    assert (failed["exit_code"], failed["cause"]) == (75, "every worker was gone for 40 s")
    assert max(event["step"] for event in told("checkpoint")) >= max(event["step"] for event in told("progress")) > 0


def test_workers_whose_chief_has_failed_for_good_let_their_nodes_go(namespace: Namespace, tmp_path: Path) -> None:
    program = (
        "import json, os, socket, sys, time; told = json.loads(os.environ['TF_CONFIG']); "
        "told['task']['type'] == 'chief' and sys.exit(2); server = socket.create_server(('', 2222)); time.sleep(600)"
    )
    roles = "strategy: multi_worker_mirrored\nroles: {chief: {}, worker: {replicas: 2}}"
    options = "limits: {start_timeout: 30s, grace_period: 2s}\nkubernetes: {tensorboard: false}"
    render(namespace, f"name: left\n{roles}\n{options}\ncommand: [python, -c, {json.dumps(program)}]\n", tmp_path)
    until(
        lambda: namespace.ends("left") == {"chief": "Failed", "worker": "Failed"},
        150,
        "the workers to end",
        lambda: namespace.describe("left"),
    )
    workers = [pod["status"] for pod in namespace.pods("left", "worker")]
    assert {status["phase"] for status in workers} == {"Failed"}
    # The first that has waited for its chief fails the Job, which ends the other.
    assert 75 in {status["containerStatuses"][0]["state"]["terminated"]["exitCode"] for status in workers}


@pytest.mark.parametrize(
    "name, ends, told",
    [
        ("limited", "sys.exit(7)", "exit code 7: failed with exit code 7"),
        # What a Job counts where a whole pod ends so.
        ("limited-kills", "os.kill(os.getpid(), 9)", "exit code 1: killed by SIGKILL (out of memory?), exit code 137"),
        ("limited-peers", "sys.exit(75)", "exit code 1: a peer was lost, exit code 75"),
    ],
)
def test_the_limit_on_restarts_holds_over_pods_too(namespace: Namespace, tmp_path: Path, name: str, ends: str, told: str) -> None:
    program = f"import os, sys; print('attempt', os.environ['TRAINER_ATTEMPT'], flush=True); {ends}"
    options = "limits: {max_restarts: 2}\nkubernetes: {tensorboard: false}"
    render(namespace, f"name: {name}\ncommand: [python, -c, {json.dumps(program)}]\n{options}\n", tmp_path)
    until(lambda: namespace.ends(name) == {"chief": "Failed"}, 120, "the Job to fail", lambda: namespace.describe(name))
    (pod,) = namespace.pods(name)
    log = namespace.kubectl("logs", pod["metadata"]["name"])
    assert [line for line in log.splitlines() if line.startswith("attempt")] == ["attempt 1", "attempt 2", "attempt 3"]
    found = look.Watcher(Cluster(None, namespace.name), name).status()
    assert found is not None
    assert found.reason == f"chief, attempt 3: {told}; the limit of 2 restarts is reached: the output above says more"
    assert [one.attempt for one in found.tasks[0].restarts] == [1, 2]
