"""`launcher up --on kubernetes` and its verbs, as a user types them."""

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.backend.kubernetes import applying
from launcher.backend.kubernetes.backend import KubernetesBackend
from launcher.backend.model import Where
from tests.e2e.kubernetes.cluster import ROOT, Namespace, kubectl, paced, until
from tests.e2e.kubernetes.launching import UP, Launcher, far_away, left

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(480), pytest.mark.takes_minutes]

LONG = f"""\
version: 1
name: long
strategy: parameter_server
roles: {{chief: {{}}, ps: {{replicas: 1}}, worker: {{replicas: 2}}}}
kubernetes: {{tensorboard: false}}
{paced(2)}"""


@pytest.fixture(scope="module")
def trained(launcher: Launcher) -> str:
    """Run the example of the README once for the tests below; return what `up` wrote."""
    return launcher("up", "examples/mnist-ps.yaml", timeout=UP)


def test_up_follows_the_run_to_its_end(trained: str, launcher: Launcher) -> None:
    assert "mnist-ps succeeded" in trained
    assert "chief    | step 2000/2000" in trained
    told = launcher.status("mnist-ps")
    assert (told["state"], told["step"], told["backend"]) == ("succeeded", 2000, "kubernetes")
    assert told["metrics"]["accuracy"] >= 0.97
    assert {task["name"]: task["state"] for task in told["tasks"]} == dict.fromkeys(["chief", "worker-0", "worker-1", "ps-0"], "succeeded")
    assert {task["exit_code"] for task in told["tasks"]} == {0}
    assert launcher("wait", "mnist-ps", "--timeout", "5s")
    assert [run["name"] for run in json.loads(launcher("ls", "--json"))] == ["mnist-ps"]
    # What it would have no use for any more goes too.
    difference = launcher("diff", "examples/mnist-ps.yaml", "--set", "kubernetes.tensorboard=false", code=1).splitlines()
    deleted = {line.partition(" after ")[0] for line in difference if line.endswith("after up, which deletes it")}
    assert deleted == {f"+++ {kind}/mnist-ps-tensorboard" for kind in ("Deployment", "Service", "NetworkPolicy")}
    assert "-  replicas: 1" in difference


def test_logs_of_one_task_and_the_last_lines_of_each(trained: str, launcher: Launcher) -> None:
    assert trained
    lines = [json.loads(line) for line in launcher("logs", "mnist-ps", "--json").splitlines()]
    assert {line["task"] for line in lines} == {"chief", "worker-0", "worker-1", "ps-0"}
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    last = [json.loads(line) for line in launcher("logs", "mnist-ps", "--role", "ps", "--tail", "1", "--json").splitlines()]
    assert [line["event"]["event"] for line in last] == ["done"]


def test_tensorboard_is_reached_through_a_port_of_this_machine(trained: str, launcher: Launcher) -> None:
    assert trained
    launcher.namespace.kubectl("rollout", "status", "deployment/mnist-ps-tensorboard", "--timeout=90s", timeout=100)
    process = launcher.start("tensorboard", "mnist-ps", "--port", "0")
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()

        def shown() -> set[str]:
            with urllib.request.urlopen(f"{url}/data/plugin/scalars/tags", timeout=30) as answer:
                return set(json.load(answer))

        until(lambda: {"train", "eval"} <= shown(), 30, "TensorBoard to show the run")
        for _ in range(2):  # each by a connection of its own
            assert {"train", "eval"} <= shown()
    finally:
        process.send_signal(2)
        process.communicate(timeout=20)
    assert process.returncode == 130


def test_a_run_that_is_complete_is_not_started_again_and_down_leaves_record_and_volume(trained: str, launcher: Launcher) -> None:
    assert trained
    assert "is complete at step 2,000" in launcher("up", "examples/mnist-ps.yaml")
    launcher("down", "mnist-ps")
    assert left(launcher.namespace) == ["mnist-ps", "mnist-ps-record"]
    assert launcher.status("mnist-ps")["state"] == "succeeded"
    # The pods are gone; their lines were kept while `up` followed them.
    assert '"done"' in launcher("logs", "mnist-ps", "--role", "chief", "--raw")
    assert "deleted claim mnist-ps" in launcher("down", "mnist-ps", "--delete-data", "--yes")
    assert left(launcher.namespace) == []
    assert "there is no run mnist-ps" in launcher("status", "mnist-ps", code=2)


@pytest.fixture(scope="module")
def long(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a run in the background that does not end by itself; return its spec."""
    file = tmp_path_factory.mktemp("long") / "long.yaml"
    file.write_text(LONG)
    launcher("up", str(file), "--detach")
    until(lambda: (launcher.status("long")["step"] or 0) > 0, 240, "the first steps", lambda: launcher.namespace.describe("long"))
    yield file
    launcher("down", "long", "--now", "--delete-data", "--yes")


def test_a_run_goes_on_without_the_launcher_and_another_up_is_refused(long: Path, launcher: Launcher) -> None:
    told = launcher.status("long")
    assert (told["state"], {task["state"] for task in told["tasks"]}) == ("running", {"running"})
    before = launcher.namespace.objects("Job", "long")
    refused = launcher("up", str(long), "--set", "train.steps=5", code=2)
    assert "long runs already (running)" in refused
    assert [job["metadata"]["resourceVersion"] for job in before if job["metadata"]["name"] == "long-ps"] == [
        job["metadata"]["resourceVersion"] for job in launcher.namespace.objects("Job", "long") if job["metadata"]["name"] == "long-ps"
    ]
    assert launcher("diff", str(long)) == ""
    difference = launcher("diff", str(long), "--set", "limits.deadline=1h", code=1)
    assert "+  activeDeadlineSeconds: 3600" in difference
    assert difference.count("+++ Job/") == 3
    assert "has not ended within 1s" in launcher("wait", "long", "--timeout", "1s", code=124)


def test_up_goes_on_when_an_api_server_that_was_away_is_back(launcher: Launcher, image: str, tmp_path: Path) -> None:
    far, relay = far_away(launcher, tmp_path)
    program = "import time; print('first words', flush=True); time.sleep(8); print('last words', flush=True)"
    file = tmp_path / "away.yaml"
    file.write_text(
        f"version: 1\nname: away\nimage: {image}\ncommand: [python, -c, {json.dumps(program)}]\nkubernetes: {{tensorboard: false}}\n"
    )
    up = far.start("up", str(file))
    try:
        assert any("first words" in line for line in up.stdout or ())
        relay.down()
        until(lambda: launcher.status("away")["state"] == "succeeded", 90, "its end, which `up` does not see")
        assert up.poll() is None
        relay.up()
        written, _ = up.communicate(timeout=60)
    finally:
        up.kill()
    assert up.returncode == 0, written
    assert "last words" in written
    assert "away succeeded" in written
    launcher("down", "away", "--delete-data", "--yes")


def test_an_api_server_that_is_away_ends_no_watch(long: Path, launcher: Launcher, tmp_path: Path) -> None:
    assert long.exists()
    far, relay = far_away(launcher, tmp_path)
    watching = [far.start("logs", "-f", "long", "--role", "chief", "--tail", "1", "--json"), far.start("status", "long", "--watch")]
    try:
        for process in watching:
            assert process.stdout is not None
            assert process.stdout.readline()
        relay.down()
        time.sleep(60)
        assert [process.poll() for process in watching] == [None, None]
        relay.up()
        back = time.time() + 5
        for line in watching[0].stdout or ():
            if json.loads(line)["time"] > back:
                break
        assert watching[0].poll() is None
    finally:
        for process in watching:
            process.kill()
        said = [process.communicate()[0] for process in watching]
    assert "the cluster has not answered for" in said[1]


def test_down_saves_a_checkpoint_from_which_up_goes_on(long: Path, launcher: Launcher) -> None:
    assert "long is stopped; the last checkpoint is of step" in launcher("down", "long")
    told = launcher.status("long")
    assert told["state"] == "stopped"
    assert told["checkpoint_step"] > 0
    assert launcher.namespace.objects("Job", "long") == []
    up = launcher.start("up", str(long))
    try:
        until(
            lambda: (launcher.status("long")["step"] or 0) > told["checkpoint_step"],
            180,
            "steps after the last ones",
            lambda: str(up.poll()),
        )
        up.send_signal(2)
        written, _ = up.communicate(timeout=120)
    finally:
        up.kill()
    assert up.returncode == 130, written
    assert f"goes on from the checkpoint of step {told['checkpoint_step']:,}" in written
    assert f"going on from step {told['checkpoint_step']}" in written
    assert "long stopped after" in written
    # What is written to the last is shown, and counts.
    assert f"checkpoint at step {launcher.status('long')['checkpoint_step']}:" in written
    assert launcher.namespace.pods("long") == []


def test_the_last_checkpoint_is_heard_of_by_who_seldom_looks(long: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher("down", "long")
    before = launcher.status("long")["checkpoint_step"]
    launcher("up", str(long), "--detach")
    until(lambda: (launcher.status("long")["step"] or 0) > before, 180, "steps after the last ones")
    (chief,) = launcher.namespace.pods("long", "chief")
    follow = ["kubectl", "-n", launcher.namespace.name, "logs", "--follow", str(chief["metadata"]["name"])]
    following = subprocess.Popen(follow, stdout=subprocess.PIPE, text=True)
    try:
        monkeypatch.setattr(applying, "_LOOK_EVERY", 10.0)  # its pods are gone by then
        KubernetesBackend(launcher.runs, Where(namespace=launcher.namespace.name)).stop("long")
        written, _ = following.communicate(timeout=60)
    finally:
        following.kill()
    events = [json.loads(line) for line in written.splitlines() if line.startswith("{")]
    assert launcher.status("long")["checkpoint_step"] == [event["step"] for event in events if event["event"] == "checkpoint"][-1]


def test_what_cannot_start_in_time_says_why_and_lets_go(launcher: Launcher, tmp_path: Path) -> None:
    file = tmp_path / "greedy.yaml"
    file.write_text("version: 1\nname: greedy\nroles: {chief: {gpus: 60}}\ntrain: {workload: mnist_mlp}\nlimits: {start_timeout: 5s}\n")
    written = launcher("up", str(file), code=1)
    assert "not started within limits.start_timeout (5 s): chief: " in written
    assert "insufficient nvidia.com/gpu" in written
    assert launcher.namespace.objects("Job", "greedy") == []
    told = launcher.status("greedy")
    assert told["state"] == "failed"
    assert "insufficient nvidia.com/gpu" in told["reason"]
    launcher("down", "greedy", "--delete-data", "--yes")


def test_a_deadline_that_passes_ends_every_task_and_is_told(launcher: Launcher, image: str, tmp_path: Path) -> None:
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}}\n"
    options = "limits: {deadline: 40s, start_timeout: 30s, grace_period: 2s}\nkubernetes: {tensorboard: false}\n"
    file = tmp_path / "late.yaml"
    file.write_text(f"version: 1\nname: late\nimage: {image}\n{roles}{options}command: [python, -c, 'import time; time.sleep(600)']\n")
    written = launcher("up", str(file), code=1)
    assert "limits.deadline has passed" in written
    assert "limits.deadline has passed" in launcher.status("late")["reason"]
    until(lambda: not launcher.namespace.pods("late"), 60, "its pods to go", lambda: launcher.namespace.describe("late"))
    launcher("down", "late", "--delete-data", "--yes")


def test_a_failed_run_names_its_task_and_lets_the_others_go(launcher: Launcher, image: str, tmp_path: Path) -> None:
    program = "import json, os, sys, time; role = json.loads(os.environ['TF_CONFIG'])['task']['type']; time.sleep(1 if role == 'worker' else 600); print('no such column: label'); sys.exit(2)"
    file = tmp_path / "broken.yaml"
    file.write_text(
        "version: 1\nname: broken\nstrategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}}\n"
        f"image: {image}\ncommand: [python, -c, {json.dumps(program)}]\nlimits: {{grace_period: 3s}}\nkubernetes: {{tensorboard: false}}\n"
    )
    written = launcher("up", str(file), code=1, timeout=UP)
    assert "broken failed" in written
    assert "worker-0, attempt 1: exit code 2" in written
    assert "no such column: label" in written
    until(lambda: all(pod["status"]["phase"] != "Running" for pod in launcher.namespace.pods("broken")), 90, "the others to end")
    assert "no such column: label" in launcher("logs", "broken", "--role", "worker")
    launcher("down", "broken", "--delete-data", "--yes")


def test_what_is_refused_halfway_leaves_nothing(long: Path, launcher: Launcher, tmp_path: Path) -> None:
    launcher("down", "long")
    file = tmp_path / "halfway.yaml"
    file.write_text(long.read_text().replace("name: long", "name: halfway"))
    # A dry run counts each Job by itself.
    launcher.namespace.kubectl("create", "quota", "one", "--hard=count/jobs.batch=1")
    try:
        until(lambda: "1" in launcher.namespace.kubectl("get", "quota", "one", "-o", "jsonpath={.status.hard}"), 30, "the quota to hold")
        assert "the namespace's quota one is used up" in launcher("up", str(file), code=1)
        assert [name for name in left(launcher.namespace) if name.startswith("halfway")] == []
    finally:
        launcher.namespace.kubectl("delete", "quota", "one")


def test_the_documented_role_is_enough_and_a_lacking_right_is_named(launcher: Launcher, tmp_path: Path) -> None:
    namespace = launcher.namespace
    namespace.kubectl("apply", "-f", str(ROOT / "docs" / "kubernetes-role.yaml"))
    namespace.kubectl("create", "serviceaccount", "ada")
    kubeconfig = _kubeconfig_of(namespace, "ada", tmp_path)
    ada = Launcher(namespace, tmp_path / "runs", {**launcher.env, "KUBECONFIG": str(kubeconfig)})
    file = tmp_path / "small.yaml"
    file.write_text("version: 1\nname: small\ntrain: {workload: linear_regression, steps: 20}\nkubernetes: {tensorboard: false}\n")
    refused = ada("up", str(file), code=1)
    assert "may not list jobs in the namespace" in refused
    assert '{apiGroups: ["batch"], resources: ["jobs"], verbs: ["list"]}' in refused
    namespace.kubectl("create", "rolebinding", "ada", "--role=tf-launcher", f"--serviceaccount={namespace.name}:ada")
    time.sleep(1)  # the API server learns of it
    found = {one["what"]: one for one in json.loads(ada("doctor", "--json"))["findings"]}
    assert found["permissions"]["level"] == "ok"
    assert "may not list nodes" in found["nodes"]["words"]
    assert "may not list storageclasses" in found["storage"]["words"]
    assert 'resources: ["storageclasses"], verbs: ["list"]' in found["storage"]["remedy"]
    assert "small succeeded" in ada("up", str(file), timeout=UP)
    assert "small" in ada("ls")
    ada("down", "small", "--delete-data", "--yes")
    assert [name for name in left(namespace) if name.startswith("small")] == []


def _kubeconfig_of(namespace: Namespace, account: str, directory: Path) -> Path:
    """Write a kubeconfig of a service account."""
    token = namespace.kubectl("create", "token", account).strip()
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "-o", "json").stdout)
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = directory / "kubeconfig"
    path.write_text(json.dumps(config))
    return path
