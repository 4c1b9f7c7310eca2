"""Runs on a real cluster by kubectl alone: they train, are reached by nobody else, survive a deleted pod, and end.

One trains with TensorFlow. The others concern the cluster: all of them are applied at once, and each test comes when its run has had
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

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1440), pytest.mark.takes_minutes]

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


SERVED = "strategy: parameter_server\nroles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}}\n"
BARE = "kubernetes: {tensorboard: false}\n"
WRONG = "import sys; print('no such column: label', file=sys.stderr); sys.exit(2)"
# Its chief fails for good; its workers listen, and wait for the chief.
LEFT = (
    "import json, os, socket, sys, time; told = json.loads(os.environ['TF_CONFIG']); "
    "told['task']['type'] == 'chief' and sys.exit(2); server = socket.create_server(('', 2222)); time.sleep(600)"
)
# How a program ends -> what is told of it after the last attempt.
LIMITED = {
    "limited": ("sys.exit(7)", "exit code 7: failed with exit code 7"),
    # A Job counts these where a whole pod ends so.
    "limited-kills": ("os.kill(os.getpid(), 9)", "exit code 1: killed by SIGKILL (out of memory?), exit code 137"),
    "limited-peers": ("sys.exit(75)", "exit code 1: a peer was lost, exit code 75"),
}


def command(program: str) -> str:
    """Return the line of a spec that runs a Python program."""
    return f"command: [python, -c, {json.dumps(program)}]\n"


def attempts(ends: str) -> str:
    """Return the lines of a spec whose program says which attempt it is, and ends so; three are allowed."""
    said = "import os, sys; print('attempt', os.environ['TRAINER_ATTEMPT'], flush=True); "
    return f"limits: {{max_restarts: 2}}\n{BARE}{command(said + ends)}"


SPECS = {
    "wrong": BARE + command(WRONG),
    "left": "strategy: multi_worker_mirrored\nroles: {chief: {}, worker: {replicas: 2}}\n"
    f"limits: {{start_timeout: 15s, grace_period: 2s}}\n{BARE}{command(LEFT)}",
    **{name: attempts(ends) for name, (ends, _) in LIMITED.items()},
    # Servers and workers wait that long for their chief from their start, too: on a busy machine its pod may come late.
    "orphans": f"{SERVED}limits: {{orphan_timeout: 90s}}\n{BARE}{stand_in_spec()}",
    "lonely": f"{SERVED}limits: {{orphan_timeout: 90s}}\n{BARE}{stand_in_spec(checkpoint={'every_seconds': 3600})}",
}


def manifests(directory: Path, name: str, spec: str) -> str:
    """Return what a spec is rendered to."""
    file = directory / f"{name}.yaml"
    file.write_text(f"version: 1\nname: {name}\n{spec}")
    render = [sys.executable, "-m", "launcher", "render", str(file), "--to", "kubernetes"]
    return subprocess.run(render, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.fixture(scope="module")
def rendered(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """Render the specs and apply them, each as one pipe."""
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
    """Wait until the Jobs of a run have ended so."""
    until(lambda: namespace.ends(run) == ends, 240, f"the Jobs of {run} to end as {ends}", lambda: namespace.describe(run))


@pytest.fixture(scope="module")
def under_way(rendered: Namespace) -> Namespace:
    """Wait for the first steps of the runs that go on until somebody takes a part of them away."""
    for run in ("orphans", "lonely"):
        until(lambda run=run: told(rendered, run, "progress") != [], 300, "the first steps", lambda run=run: rendered.describe(run))  # type: ignore[misc]
    return rendered


def told(namespace: Namespace, run: str, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind that the chief of a run has told."""
    return [event for event in namespace.events(run, "chief") if event["event"] == kind]


def test_a_deleted_pod_is_replaced_and_the_run_goes_on_whatever_a_sync_has_applied_over_it(under_way: Namespace, tmp_path: Path) -> None:
    changed = manifests(tmp_path, "orphans", SPECS["orphans"].replace("replicas: 2", "replicas: 3"))
    refused = kubectl("-n", under_way.name, "apply", "-f", "-", check=False, text=changed)
    assert refused.returncode == 1
    assert "immutable" in refused.stderr
    before = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in under_way.pods("orphans", "worker")}
    under_way.kubectl("delete", "pod", next(iter(before.values())), "--wait=false", "--grace-period=2")

    def replaced() -> bool:
        new = [pod for pod in under_way.pods("orphans", "worker") if pod["metadata"]["uid"] not in before]
        return any(pod["status"]["phase"] == "Running" for pod in new)

    until(replaced, 120, "a pod in the place of the deleted one", lambda: under_way.describe("orphans"))
    now = time.time()

    def goes_on() -> bool:
        (pod,) = [pod for pod in under_way.pods("orphans", "worker") if pod["metadata"]["uid"] not in before]
        steps = [event for event in told(under_way, "orphans", "progress") if event["time"] > now]
        name = f"worker-{pod['metadata']['annotations'][INDEX]}"
        return {"chief", name} <= {event["task"] for event in steps}

    until(goes_on, 120, "steps of the chief and of the new worker after that", lambda: under_way.describe("orphans"))
    assert under_way.ends("orphans") == {"chief": "", "ps": "", "worker": ""}


def test_strangers_are_kept_out(under_way: Namespace, applied: Namespace, image: str) -> None:
    another = {"app.kubernetes.io/name": "tf-launcher", "app.kubernetes.io/instance": "another", "tf-launcher/cluster": "another"}
    strangers: tuple[tuple[str, int, dict[str, str]], ...] = (
        ("orphans-ps-0.orphans", 2222, {}),
        ("orphans-worker-0.orphans", 2222, another),
    )
    welcome: tuple[tuple[str, int, dict[str, str]], ...] = (
        ("orphans-ps-0.orphans", 2222, {"tf-launcher/cluster": "orphans"}),
        ("mnist-ps-tensorboard", 6006, {}),
    )
    assert applied == under_way
    applied.kubectl("rollout", "status", "deployment/mnist-ps-tensorboard", "--timeout=180s", timeout=200)
    with ThreadPoolExecutor(4) as pool:
        kept_out = pool.map(lambda one: under_way.try_to_reach(one[0], one[1], image, one[2], tries=10), strangers)
        let_in = pool.map(lambda one: under_way.try_to_reach(one[0], one[1], image, one[2], tries=60), welcome)
        # Dropped or refused, as the cluster's network does it; from a pod of the run's own it is reached, and TensorBoard by all.
        assert ["Error" in one for one in kept_out] == [True, True]
        assert list(let_in) == ["connected", "connected"]


ROBBED = {"orphans": "chief", "lonely": "worker"}


@pytest.fixture(scope="module")
def robbed(under_way: Namespace) -> Namespace:
    """Delete the Job of one role of each."""
    for run, role in ROBBED.items():
        assert under_way.ends(run) == {"chief": "", "ps": "", "worker": ""}
        under_way.kubectl("delete", "job", f"{run}-{role}", "--wait=false")
    return under_way


def release(namespace: Namespace, run: str) -> None:
    """Wait until the Jobs that are left of a run have failed; none of their pods works any more."""
    await_ends(namespace, run, dict.fromkeys({"chief", "ps", "worker"} - {ROBBED[run]}, "Failed"))
    assert {pod["status"]["phase"] for pod in namespace.pods(run)} <= {"Failed", "Succeeded"}


def test_a_chief_whose_workers_are_gone_for_good_saves_and_lets_its_node_go(robbed: Namespace) -> None:
    release(robbed, "lonely")
    (failed,) = told(robbed, "lonely", "failed")
    assert (failed["exit_code"], failed["cause"]) == (75, "every worker was gone for 90 s")
    saved = max(event["step"] for event in told(robbed, "lonely", "checkpoint"))
    assert saved >= max(event["step"] for event in told(robbed, "lonely", "progress")) > 0


def test_a_program_that_says_its_configuration_is_wrong_fails_at_once_with_its_last_words(rendered: Namespace) -> None:
    await_ends(rendered, "wrong", {"chief": "Failed"})
    (job,) = rendered.objects("Job", "wrong")
    assert {condition["reason"] for condition in job["status"]["conditions"]} == {"PodFailurePolicy"}
    (pod,) = rendered.pods("wrong")
    terminated = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert terminated["exitCode"] == 2
    assert "no such column: label" in terminated["message"]


@pytest.mark.parametrize("name", LIMITED)
def test_the_limit_on_restarts_holds_over_pods_too(name: str, rendered: Namespace) -> None:
    await_ends(rendered, name, {"chief": "Failed"})
    (pod,) = rendered.pods(name)
    log = rendered.kubectl("logs", pod["metadata"]["name"])
    assert [line for line in log.splitlines() if line.startswith("attempt")] == ["attempt 1", "attempt 2", "attempt 3"]
    found = rendered.status(name)
    assert found is not None
    told = f"chief, attempt 3: {LIMITED[name][1]}; the limit of 2 restarts is reached"
    assert found.reason == (f"{told}; {found.tasks[0].remedy}" if name == "limited-kills" else told)
    assert [one.attempt for one in found.tasks[0].restarts] == [1, 2]


def test_workers_whose_chief_has_failed_for_good_let_their_nodes_go(rendered: Namespace) -> None:
    await_ends(rendered, "left", {"chief": "Failed", "worker": "Failed"})
    workers = [pod["status"] for pod in rendered.pods("left", "worker")]
    assert {status["phase"] for status in workers} == {"Failed"}
    # The first that has waited for its chief fails the Job, which ends the other.
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
    refused = kubectl("-n", applied.name, *tensorboard, "touch", "/runs/mnist-ps/mine", check=False)
    assert "Read-only file system" in refused.stderr

    def tags() -> dict[str, Any]:
        return dict(json.loads(kubectl("get", "--raw", path).stdout))

    # Through the API server, as `kubectl port-forward` goes.
    path = f"/api/v1/namespaces/{applied.name}/services/mnist-ps-tensorboard:http/proxy/data/plugin/scalars/tags"
    until(lambda: {"train", "eval"} <= set(tags()), 60, "TensorBoard to show the run", tags)


def test_servers_whose_chief_is_gone_for_good_let_their_nodes_go(robbed: Namespace) -> None:
    release(robbed, "orphans")
    codes = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        for pod in robbed.pods("orphans")
        if pod["status"]["phase"] == "Failed"
    }
    assert codes["ps"] == 75
