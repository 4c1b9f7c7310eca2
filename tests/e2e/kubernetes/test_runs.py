"""Runs on a real cluster without the launcher: they train, are closed to other pods, survive a deleted pod, and end.

One trains with TensorFlow. The others test the cluster: all of them are applied at once, and each test comes when its run has had
time to end.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.cluster import ROOT, Namespace, kubectl, stand_in_spec, until
from tests.e2e.kubernetes.faults import INDEX
from tests.e2e.kubernetes.launching import Launcher

pytestmark = [pytest.mark.kubernetes, pytest.mark.takes_minutes]

COMPLETE_TIMEOUT = 400.0  # seconds from apply to every Job Complete; two cores train it in much less than a minute


def complete(namespace: Namespace, run: str, seconds: float = COMPLETE_TIMEOUT) -> None:
    """Wait until every Job of a run is Complete and none of its pods runs."""

    def ended() -> bool:
        ends = namespace.ends(run)
        assert "Failed" not in ends.values(), f"{ends}\n{namespace.describe(run)}"
        return bool(ends) and all(ends.values())

    until(ended, seconds, f"every Job of {run} to be Complete", lambda: namespace.describe(run))
    phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in namespace.pods(run)}
    assert "Running" not in phases.values(), phases


SERVED = "strategy: parameter_server\nroles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}}\n"
BARE = "kubernetes: {tensorboard: false}\n"
WRONG = "import sys; print('no such column: label', file=sys.stderr); sys.exit(2)"
# Its chief fails at once; its workers listen, and wait for the chief.
LEFT = (
    "import json, os, socket, sys, time; config = json.loads(os.environ['TF_CONFIG']); "
    "config['task']['type'] == 'chief' and sys.exit(2); server = socket.create_server(('', 2222)); time.sleep(3600)"
)
# The end of a program -> the reason shown after the last attempt.
LIMITED = {
    "limited": ("sys.exit(7)", "exit code 7: failed with exit code 7"),
    # A Job counts these codes if a whole pod exits with them.
    "limited-kills": ("os.kill(os.getpid(), 9)", "exit code 1: killed by SIGKILL (out of memory?), exit code 137"),
    "limited-peers": ("sys.exit(75)", "exit code 1: a peer was lost, exit code 75"),
}


def command(program: str) -> str:
    """Return the line of a spec that runs a Python program."""
    return f"command: [python, -c, {json.dumps(program)}]\n"


def attempts(end: str) -> str:
    """Return the lines of a spec whose program prints its attempt's number and ends by the code `end`; three attempts are allowed."""
    prints = "import os, sys; print('attempt', os.environ['TRAINER_ATTEMPT'], flush=True); "
    return f"limits: {{max_restarts: 2}}\n{BARE}{command(prints + end)}"


SPECS = {
    "wrong": BARE + command(WRONG),
    "left": "strategy: multi_worker_mirrored\nroles: {chief: {}, worker: {replicas: 2}}\n"
    f"limits: {{start_timeout: 15s, grace_period: 2s}}\n{BARE}{command(LEFT)}",
    **{name: attempts(end) for name, (end, _) in LIMITED.items()},
    # At their start, too, servers and workers wait that long for their chief: on a busy machine its pod may start late.
    "orphans": f"{SERVED}limits: {{orphan_timeout: 90s}}\n{BARE}{stand_in_spec()}",
    "lonely": f"{SERVED}limits: {{orphan_timeout: 90s}}\n{BARE}{stand_in_spec(checkpoint={'every_seconds': 3600})}",
}


def manifests(directory: Path, name: str, spec: str) -> str:
    """Return the rendered manifests of a spec."""
    file = directory / f"{name}.yaml"
    file.write_text(f"version: 1\nname: {name}\n{spec}")
    render = [sys.executable, "-m", "launcher", "render", str(file), "--to", "kubernetes"]
    return subprocess.run(render, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.fixture(scope="module")
def rendered(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """Render the specs and apply them with kubectl."""
    directory = tmp_path_factory.mktemp("specs")

    def start(name: str) -> None:
        namespace.kubectl("apply", "-f", "-", text=manifests(directory, name, SPECS[name]))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(start, SPECS))
    return namespace


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


def await_ends(namespace: Namespace, run: str, ends: dict[str, str]) -> None:
    """Wait until the Jobs of a run have these ends."""
    until(lambda: namespace.ends(run) == ends, 240, f"the Jobs of {run} to end as {ends}", lambda: namespace.describe(run))


@pytest.fixture(scope="module")
def in_progress(rendered: Namespace) -> Namespace:
    """Wait for the first steps of the runs that continue until a test deletes a part of them."""
    for run in ("orphans", "lonely"):
        until(lambda run=run: chief_events(rendered, run, "progress") != [], 300, "the first steps", lambda run=run: rendered.describe(run))  # type: ignore[misc]
    return rendered


def chief_events(namespace: Namespace, run: str, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind that a run's chief has reported."""
    return [event for event in namespace.events(run, "chief") if event["event"] == kind]


def test_a_deleted_pod_is_replaced_and_the_run_continues_even_if_a_changed_spec_is_applied(in_progress: Namespace, tmp_path: Path) -> None:
    changed = manifests(tmp_path, "orphans", SPECS["orphans"].replace("replicas: 2", "replicas: 3"))
    refused = kubectl("-n", in_progress.name, "apply", "-f", "-", check=False, text=changed)
    assert refused.returncode == 1
    assert "immutable" in refused.stderr
    before = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in in_progress.pods("orphans", "worker")}
    in_progress.kubectl("delete", "pod", next(iter(before.values())), "--wait=false", "--grace-period=2")

    def replaced() -> bool:
        new = [pod for pod in in_progress.pods("orphans", "worker") if pod["metadata"]["uid"] not in before]
        return any(pod["status"]["phase"] == "Running" for pod in new)

    until(replaced, 120, "a pod in the place of the deleted one", lambda: in_progress.describe("orphans"))
    now = time.time()

    def continues() -> bool:
        (pod,) = [pod for pod in in_progress.pods("orphans", "worker") if pod["metadata"]["uid"] not in before]
        steps = [event for event in chief_events(in_progress, "orphans", "progress") if event["time"] > now]
        name = f"worker-{pod['metadata']['annotations'][INDEX]}"
        return {"chief", name} <= {event["task"] for event in steps}

    until(continues, 120, "steps of the chief and of the new worker after that", lambda: in_progress.describe("orphans"))
    assert in_progress.ends("orphans") == {"chief": "", "ps": "", "worker": ""}


def test_other_pods_cannot_connect(in_progress: Namespace, applied: Namespace, image: str) -> None:
    another = {"app.kubernetes.io/name": "tf-launcher", "app.kubernetes.io/instance": "another", "tf-launcher/cluster": "another"}
    strangers: tuple[tuple[str, int, dict[str, str]], ...] = (
        ("orphans-ps-0.orphans", 2222, {}),
        ("orphans-worker-0.orphans", 2222, another),
    )
    welcome: tuple[tuple[str, int, dict[str, str]], ...] = (
        ("orphans-ps-0.orphans", 2222, {"tf-launcher/cluster": "orphans"}),
        ("mnist-ps-tensorboard", 6006, {}),
    )
    assert applied == in_progress
    applied.kubectl("rollout", "status", "deployment/mnist-ps-tensorboard", "--timeout=180s", timeout=200)
    with ThreadPoolExecutor(4) as pool:
        refused = pool.map(lambda target: in_progress.try_to_reach(target[0], target[1], image, target[2], tries=10), strangers)
        admitted = pool.map(lambda target: in_progress.try_to_reach(target[0], target[1], image, target[2], tries=60), welcome)
        # The cluster's network drops or refuses connections, except from pods of the run, and except to TensorBoard.
        assert ["Error" in answer for answer in refused] == [True, True]
        assert list(admitted) == ["connected", "connected"]


DELETED_JOBS = {"orphans": "chief", "lonely": "worker"}


@pytest.fixture(scope="module")
def with_a_deleted_job(in_progress: Namespace) -> Namespace:
    """Delete the Job of one role of each run."""
    for run, role in DELETED_JOBS.items():
        assert in_progress.ends(run) == {"chief": "", "ps": "", "worker": ""}
        in_progress.kubectl("delete", "job", f"{run}-{role}", "--wait=false")
    return in_progress


def await_failure(namespace: Namespace, run: str) -> None:
    """Wait until the remaining Jobs of a run have failed, and check that none of its pods runs."""
    await_ends(namespace, run, dict.fromkeys({"chief", "ps", "worker"} - {DELETED_JOBS[run]}, "Failed"))
    assert {pod["status"]["phase"] for pod in namespace.pods(run)} <= {"Failed", "Succeeded"}


def test_a_chief_whose_workers_were_deleted_saves_and_frees_its_node(with_a_deleted_job: Namespace) -> None:
    await_failure(with_a_deleted_job, "lonely")
    (failed,) = chief_events(with_a_deleted_job, "lonely", "failed")
    assert (failed["exit_code"], failed["cause"]) == (75, "every worker was gone for 90 s")
    saved = max(event["step"] for event in chief_events(with_a_deleted_job, "lonely", "checkpoint"))
    assert saved >= max(event["step"] for event in chief_events(with_a_deleted_job, "lonely", "progress")) > 0


def test_a_program_with_a_wrong_configuration_fails_at_once_with_its_last_output(rendered: Namespace) -> None:
    await_ends(rendered, "wrong", {"chief": "Failed"})
    (job,) = rendered.objects("Job", "wrong")
    assert {condition["reason"] for condition in job["status"]["conditions"]} == {"PodFailurePolicy"}
    (pod,) = rendered.pods("wrong")
    terminated = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert terminated["exitCode"] == 2
    assert "no such column: label" in terminated["message"]


@pytest.mark.parametrize("name", LIMITED)
def test_the_limit_on_restarts_holds_for_pods_too(name: str, rendered: Namespace) -> None:
    await_ends(rendered, name, {"chief": "Failed"})
    (pod,) = rendered.pods(name)
    log = rendered.kubectl("logs", pod["metadata"]["name"])
    assert [line for line in log.splitlines() if line.startswith("attempt")] == ["attempt 1", "attempt 2", "attempt 3"]
    status = rendered.status(name)
    assert status is not None
    reason = f"chief, attempt 3: {LIMITED[name][1]}; the limit of 2 restarts is reached"
    assert status.reason == (f"{reason}; {status.tasks[0].remedy}" if name == "limited-kills" else reason)
    assert [restart.attempt for restart in status.tasks[0].restarts] == [1, 2]


def test_workers_whose_chief_has_failed_free_their_nodes(rendered: Namespace) -> None:
    await_ends(rendered, "left", {"chief": "Failed", "worker": "Failed"})
    workers = [pod["status"] for pod in rendered.pods("left", "worker")]
    assert {status["phase"] for status in workers} == {"Failed"}
    # The first worker that gives up waiting for its chief fails the Job, which ends the other.
    assert 75 in {status["containerStatuses"][0]["state"]["terminated"]["exitCode"] for status in workers}


def test_mnist_ps_trains_to_the_end_by_kubectl_alone(applied: Namespace) -> None:
    complete(applied, "mnist-ps")
    for pod in applied.pods("mnist-ps"):
        (state,) = pod["status"]["containerStatuses"]
        assert state["state"]["terminated"]["exitCode"] == 0, pod["metadata"]["name"]
    names = {pod["metadata"]["name"].rpartition("-")[0] for pod in applied.pods("mnist-ps")}
    assert names == {"mnist-ps-chief-0", "mnist-ps-worker-0", "mnist-ps-worker-1", "mnist-ps-ps-0"}


def test_checkpoints_and_logs_stay_on_the_volume_which_tensorboard_only_reads(
    applied: Namespace, launcher: Launcher, tmp_path: Path
) -> None:
    complete(applied, "mnist-ps")
    applied.kubectl("rollout", "status", "deployment/mnist-ps-tensorboard", "--timeout=180s", timeout=200)
    tensorboard = ("exec", "deployment/mnist-ps-tensorboard", "--")
    record = json.loads(applied.kubectl(*tensorboard, "cat", "/runs/mnist-ps/run.json"))
    assert (record["state"], record["step"]) == ("succeeded", 2000)
    assert record["metrics"]["accuracy"] >= 0.97
    assert "ckpt-2000.index" in applied.kubectl(*tensorboard, "ls", "/runs/mnist-ps/checkpoints")
    launcher("get", "mnist-ps", "checkpoints", str(tmp_path / "copy"))  # of a run that the launcher did not start
    assert (tmp_path / "copy" / "ckpt-2000.index").is_file()
    refused = kubectl("-n", applied.name, *tensorboard, "touch", "/runs/mnist-ps/new", check=False)
    assert "Read-only file system" in refused.stderr

    def tags() -> dict[str, Any]:
        return dict(json.loads(kubectl("get", "--raw", path).stdout))

    # Through the API server, as `kubectl port-forward` goes.
    path = f"/api/v1/namespaces/{applied.name}/services/mnist-ps-tensorboard:http/proxy/data/plugin/scalars/tags"
    until(lambda: {"train", "eval"} <= set(tags()), 60, "TensorBoard to show the run", tags)


def test_servers_whose_chief_was_deleted_free_their_nodes(with_a_deleted_job: Namespace) -> None:
    await_failure(with_a_deleted_job, "orphans")
    codes = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        for pod in with_a_deleted_job.pods("orphans")
        if pod["status"]["phase"] == "Failed"
    }
    assert codes["ps"] == 75
