"""`launcher up --on kubernetes` and its verbs, as a user types them."""

import contextlib
import json
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.backend.kubernetes import run_objects
from launcher.backend.kubernetes.backend import KubernetesBackend
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.model import ClusterRef
from launcher.cli.follow import follow
from launcher.cli.interrupts import Interrupts
from launcher.runs.status import LogLine, RunStatus, RunUnreachableError
from tests.e2e.kubernetes.cluster import ROOT, Namespace, kubectl, stand_in_spec, until
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher, output_at_end, remaining_objects, through_relay
from tests.e2e.kubernetes.starting import WAIT_FOR_RELEASE, program, quota, release
from trainer.events import Event

pytestmark = [pytest.mark.kubernetes, pytest.mark.takes_minutes]

ROLES = "strategy: parameter_server\nroles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}}\n"
LONG = f"version: 1\nname: long\n{ROLES}kubernetes: {{tensorboard: false}}\n" + stand_in_spec(checkpoint={"every_seconds": 2})
STEPS = 60


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the spec of a short run with all kinds of objects."""
    file = tmp_path_factory.mktemp("done") / "done.yaml"
    file.write_text(f"version: 1\nname: done\n{ROLES}{stand_in_spec(STEPS, 0.05)}")
    return str(file)


@pytest.fixture(scope="module")
def followed(spec: str, launcher: Launcher) -> str:
    """Run it, once for the tests below; return the output of `up`."""
    return launcher("up", spec, timeout=TRAINING_TIMEOUT)


def test_up_follows_the_run_to_its_end(followed: str, spec: str, launcher: Launcher) -> None:
    assert "done succeeded" in followed
    assert f"chief    | step {STEPS}/{STEPS}" in followed
    status = launcher.status("done")
    assert (status["state"], status["step"], status["backend"]) == ("succeeded", STEPS, "kubernetes")
    assert status["metrics"]["accuracy"] == 1.0
    assert {task["name"]: task["state"] for task in status["tasks"]} == dict.fromkeys(
        ["chief", "worker-0", "worker-1", "ps-0"], "succeeded"
    )
    assert {task["exit_code"] for task in status["tasks"]} == {0}
    assert launcher("wait", "done", "--timeout", "5s")
    assert [run["name"] for run in json.loads(launcher("ls", "--json"))] == ["done"]
    # An object that the spec no longer has is deleted, too.
    difference = launcher("diff", spec, "--set", "kubernetes.tensorboard=false", code=1).splitlines()
    deleted = {line.partition(" after ")[0] for line in difference if line.endswith("after up, which deletes it")}
    assert deleted == {f"+++ {kind}/done-tensorboard" for kind in ("Deployment", "Service", "NetworkPolicy")}
    assert "-  replicas: 1" in difference


def test_logs_show_one_task_or_the_last_lines_of_each(followed: str, launcher: Launcher) -> None:
    assert followed
    lines = [json.loads(line) for line in launcher("logs", "done", "--json").splitlines()]
    assert {line["task"] for line in lines} == {"chief", "worker-0", "worker-1", "ps-0"}
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    last = [json.loads(line) for line in launcher("logs", "done", "--role", "ps", "--tail", "1", "--json").splitlines()]
    assert [line["event"]["event"] for line in last] == ["done"]


def test_tensorboard_is_reached_through_a_port_of_this_machine(followed: str, launcher: Launcher) -> None:
    assert followed
    launcher.namespace.kubectl("rollout", "status", "deployment/done-tensorboard", "--timeout=180s", timeout=200)
    process = launcher.start("tensorboard", "done", "--port", "0")
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        for _ in range(2):  # each by a connection of its own
            with urllib.request.urlopen(f"{url}/data/environment", timeout=60) as answer:
                assert json.load(answer)["data_location"] == "/runs/done/logs"
    finally:
        process.send_signal(2)
        process.communicate(timeout=20)
    assert process.returncode == 130


def test_a_run_that_is_complete_is_not_started_again_and_down_leaves_record_and_volume(
    followed: str, spec: str, launcher: Launcher, tmp_path: Path
) -> None:
    assert followed
    assert f"is complete at step {STEPS}" in launcher("up", spec)
    launcher("down", "done")
    assert remaining_objects(launcher.namespace) == ["done", "done-record"]
    assert launcher.status("done")["state"] == "succeeded"
    copy_checkpoints(launcher, "done", tmp_path / "checkpoints", f"ckpt-{STEPS}.index")
    refused = launcher("get", "done", "results", str(tmp_path / "results"), code=2)
    assert "done has no results yet" in refused
    assert "it has checkpoints" in refused
    assert not (tmp_path / "results").exists()
    # The pods are deleted; `up` has cached their output.
    assert '"done"' in launcher("logs", "done", "--role", "chief", "--raw")
    assert "deleted claim done" in launcher("down", "done", "--delete-data", "--yes")
    assert remaining_objects(launcher.namespace) == []
    assert "there is no run done" in launcher("status", "done", code=2)


def copy_checkpoints(launcher: Launcher, name: str, directory: Path, file: str) -> None:
    """Copy a run's checkpoints, and check that the pod which served them is deleted."""
    result = json.loads(launcher("get", name, "checkpoints", str(directory), "--json"))
    assert result["origin"].startswith(f"claim {name} in ")
    assert result["origin"].endswith(f", {name}/checkpoints")
    assert (directory / file).is_file(), sorted(directory.iterdir())
    assert launcher("get", name, "checkpoints", str(directory), code=2)  # the copy exists already
    pods = launcher.namespace.objects("Pod", name)
    assert not [pod for pod in pods if "housekeeping" in pod["metadata"]["name"] and not pod["metadata"].get("deletionTimestamp")]


@pytest.fixture(scope="module")
def long(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a run in the background that does not end by itself; return the path of its spec."""
    file = tmp_path_factory.mktemp("long") / "long.yaml"
    file.write_text(LONG)
    launcher("up", str(file), "--detach")
    await_step_after(launcher.namespace, 0)
    yield file
    launcher("down", "long", "--now", "--delete-data", "--yes")


def await_step_after(namespace: Namespace, step: int) -> None:
    """Wait until the long run has taken a step after this one."""
    until(lambda: namespace.step("long") > step, 180, f"a step after {step}", lambda: namespace.describe("long"))


def test_checkpoints_are_copied_while_the_run_runs(long: Path, launcher: Launcher, tmp_path: Path) -> None:
    until(lambda: launcher.status("long")["checkpoint"], 60, "a checkpoint", lambda: launcher.namespace.describe("long"))
    copy_checkpoints(launcher, long.stem, tmp_path / "checkpoints", "checkpoint")


@pytest.mark.usefixtures("long")
def test_stacks_shows_every_task_through_the_api_server(launcher: Launcher) -> None:
    entries = [json.loads(line) for line in launcher("stacks", "long", "--json").splitlines()]
    assert [(entry["task"], entry["problem"]) for entry in entries] == [(task, "") for task in ("chief", "worker-0", "worker-1", "ps-0")]
    assert all("(most recent call first)" in entry["processes"][0]["stacks"] for entry in entries), entries


def test_a_run_continues_without_the_launcher_and_another_up_is_refused(long: Path, launcher: Launcher) -> None:
    status = launcher.status("long")
    assert (status["state"], {task["state"] for task in status["tasks"]}) == ("running", {"running"})
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


def test_up_continues_after_the_api_server_was_unavailable(launcher: Launcher, image: str, tmp_path: Path) -> None:
    relayed_launcher, relay = through_relay(launcher, tmp_path)
    code = f"{WAIT_FOR_RELEASE}print('first words', flush=True); wait(); print('last words', flush=True)"
    file = tmp_path / "relayed.yaml"
    file.write_text(f"version: 1\nname: relayed\nimage: {image}\nsupervise: false\nkubernetes: {{tensorboard: false}}\n{program(code)}")
    up = relayed_launcher.start("up", str(file))
    try:
        assert any("first words" in line for line in up.stdout or ())
        relay.down()
        release(launcher.namespace, "relayed")
        ends = launcher.namespace.ends
        until(lambda: ends("relayed") == {"chief": "Complete"}, 90, "its end, which `up` does not see", lambda: ends("relayed"))
        assert up.poll() is None
        relay.up()
        output = output_at_end(up, 60)
    finally:
        up.kill()
    assert up.returncode == 0, output
    assert "last words" in output
    assert "relayed succeeded" in output
    launcher("down", "relayed", "--delete-data", "--yes")


@contextlib.contextmanager
def output_lines(process: subprocess.Popen[str]) -> Iterator[list[str]]:
    """Yield the list of the lines that a process has written so far; kill the process at the end of the block."""
    lines: list[str] = []
    output = process.stdout
    assert output is not None

    def read() -> None:
        with output:
            lines.extend(iter(output.readline, ""))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        process.kill()
        process.wait()
        reader.join(10)


def test_an_unavailable_api_server_ends_neither_logs_nor_a_watched_status(long: Path, launcher: Launcher, tmp_path: Path) -> None:
    assert long.exists()
    relayed_launcher, relay = through_relay(launcher, tmp_path)
    logs = relayed_launcher.start("logs", "-f", "long", "--role", "chief", "--tail", "1", "--json")
    status = relayed_launcher.start("status", "long", "--watch")
    with output_lines(logs) as log_lines, output_lines(status) as status_lines:
        until(lambda: bool(log_lines and status_lines), 60, "both to write", lambda: (log_lines, status_lines))
        relay.down()
        unavailable = re.compile(r"the cluster has not answered for \d\d+ s")  # ten seconds: both have sent several requests
        until(lambda: any(unavailable.search(line) for line in status_lines), 120, "the status to say so", lambda: status_lines[-5:])
        await_step_after(launcher.namespace, launcher.namespace.step("long"))
        assert [logs.poll(), status.poll()] == [None, None]
        relay.up()
        back = time.time()
        until(lambda: json.loads(log_lines[-1])["time"] > back, 60, "lines that were written since", lambda: log_lines[-5:])
        until(lambda: "not answered" not in status_lines[-1], 60, "the status to be shown again", lambda: status_lines[-5:])
        assert [logs.poll(), status.poll()] == [None, None]


class RecordingView:
    """A view of a run in the foreground that records times of events and steps, and ends at a time of `time.monotonic`."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.steps: list[tuple[float, int]] = []
        self.lines: list[float] = []

    def event(self, event: Event) -> None:
        assert event
        self.lines.append(time.monotonic())

    def output(self, line: LogLine) -> None:
        """Ignore output that is no event."""

    def say(self, message: str) -> None:
        """Ignore the launcher's messages."""

    def status(self, status: RunStatus) -> None:
        self.steps.append((time.monotonic(), status.step or 0))
        if time.monotonic() > self.until:
            raise RunUnreachableError("seen long enough")


def test_following_a_run_takes_less_than_one_request_in_two_seconds(
    long: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In steady state, as `up` follows it: lines and progress arrive on requests that stay open."""
    requests: list[tuple[float, str]] = []
    send = Cluster._send

    def counted(self: Cluster, method: str, path: str, **options: Any) -> Any:
        requests.append((time.monotonic(), path))
        return send(self, method, path, **options)

    monkeypatch.setattr(Cluster, "_send", counted)
    backend = KubernetesBackend(launcher.runs, ClusterRef(namespace=launcher.namespace.name))
    tasks = [task.name for task in backend.status(long.stem).tasks]
    assert len(tasks) == 4
    began, seconds = time.monotonic() + 5, 20.0
    view = RecordingView(began + seconds)
    with pytest.raises(RunUnreachableError, match="seen long enough"):
        follow(backend, long.stem, tasks, view, Interrupts(), since=time.time(), stop_description="", logs_command="")
    paths = [path for when, path in requests if began < when <= began + seconds]
    assert len(paths) / seconds < 0.5, paths
    assert len([when for when in view.lines if when > began]) > seconds
    assert view.steps[-1][1] > next(step for when, step in view.steps if when > began)


def test_down_saves_a_checkpoint_from_which_up_resumes(long: Path, launcher: Launcher) -> None:
    assert "long is stopped; the last checkpoint is of step" in launcher("down", "long")
    stopped = launcher.status("long")
    assert stopped["state"] == "stopped"
    assert stopped["checkpoint_step"] > 0
    assert launcher.namespace.objects("Job", "long") == []
    up = launcher.start("up", str(long))
    try:
        await_step_after(launcher.namespace, stopped["checkpoint_step"])
        up.send_signal(2)
        output = output_at_end(up, 120)
    finally:
        up.kill()
    assert up.returncode == 130, output
    assert f"continues from the checkpoint of step {stopped['checkpoint_step']:,}" in output
    assert f"continuing from step {stopped['checkpoint_step']}" in output
    assert "long stopped after" in output
    # The output up to the end is shown, and its last checkpoint counts.
    assert f"checkpoint at step {launcher.status('long')['checkpoint_step']}:" in output
    assert launcher.namespace.pods("long") == []


def test_a_stop_that_polls_rarely_still_learns_of_the_last_checkpoint(
    long: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher("down", "long")
    before = launcher.status("long")["checkpoint_step"]
    launcher("up", str(long), "--detach")
    await_step_after(launcher.namespace, before)
    (chief,) = launcher.namespace.pods("long", "chief")
    follow = ["kubectl", "-n", launcher.namespace.name, "logs", "--follow", str(chief["metadata"]["name"])]
    following = subprocess.Popen(follow, stdout=subprocess.PIPE, text=True)
    try:
        monkeypatch.setattr(run_objects, "_POLL_INTERVAL", 10.0)  # its pods are deleted by then
        KubernetesBackend(launcher.runs, ClusterRef(namespace=launcher.namespace.name)).stop("long")
        output = output_at_end(following, 60)
    finally:
        following.kill()
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert launcher.status("long")["checkpoint_step"] == [event["step"] for event in events if event["event"] == "checkpoint"][-1]


def test_a_start_that_is_refused_halfway_leaves_nothing(long: Path, launcher: Launcher, tmp_path: Path) -> None:
    launcher("down", "long")
    file = tmp_path / "halfway.yaml"
    file.write_text(long.read_text().replace("name: long", "name: halfway"))
    with quota(launcher.namespace, "one", "count/jobs.batch=1"):  # a dry run counts each Job by itself
        assert "the namespace's quota one is used up" in launcher("up", str(file), code=1)
        assert [name for name in remaining_objects(launcher.namespace) if name.startswith("halfway")] == []


def test_the_documented_roles_suffice_and_a_missing_right_is_named(launcher: Launcher, image: str, tmp_path: Path) -> None:
    namespace = launcher.namespace
    namespace.kubectl("apply", "-f", str(ROOT / "docs" / "kubernetes-role.yaml"))
    namespace.kubectl("create", "serviceaccount", "ada")
    kubeconfig = _kubeconfig_of(namespace, "ada", tmp_path)
    ada = Launcher(namespace, tmp_path / "runs", {**launcher.env, "KUBECONFIG": str(kubeconfig)})
    file = tmp_path / "small.yaml"
    file.write_text("version: 1\nname: small\nkubernetes: {tensorboard: false}\n" + stand_in_spec(steps=5))
    # The namespace may be mistyped, and she may not read whether it exists: the message proposes no Role.
    mistyped = f"you have no rights in the namespace {namespace.name}"
    for refused in (ada("up", str(file), code=1), ada("ls", code=1), ada("doctor", code=1)):
        assert mistyped in refused
        assert "apiGroups" not in refused
    namespace.kubectl("create", "role", "little", "--verb=get,list", "--resource=configmaps")
    namespace.kubectl("create", "rolebinding", "little", "--role=little", f"--serviceaccount={namespace.name}:ada")
    until(lambda: mistyped not in ada("up", str(file), code=1), 30, "the first right to take effect", lambda: ada("up", str(file), code=1))
    refused = ada("up", str(file), code=1)
    assert "may not list jobs in the namespace" in refused
    assert '{apiGroups: ["batch"], resources: ["jobs"], verbs: ["list"]}' in refused
    namespace.kubectl("create", "rolebinding", "ada", "--role=tf-launcher", f"--serviceaccount={namespace.name}:ada")
    _await_right(namespace, "list", "jobs")
    findings = {finding["what"]: finding for finding in json.loads(ada("doctor", "--json"))["findings"]}
    assert findings["permissions"]["level"] == "ok"
    assert "may not list nodes" in findings["nodes"]["words"]
    assert "may not list storageclasses" in findings["storage"]["words"]
    assert 'resources: ["storageclasses"], verbs: ["list"]' in findings["storage"]["remedy"]
    assert "small succeeded" in ada("up", str(file), timeout=TRAINING_TIMEOUT)
    assert "small" in ada("ls")
    kubectl("--kubeconfig", str(kubeconfig), "-n", namespace.name, "wait", "--for=condition=complete", "job/small-chief", "--timeout=60s")
    ada("get", "small", "checkpoints", str(tmp_path / "copy"))
    account = f"system:serviceaccount:{namespace.name}:ada"
    assert launcher.status("small")["user"] == account
    for arguments in (("up", str(file)), ("up", str(file), "--fresh"), ("down", "small")):
        assert f"small was started by {account}" in launcher(*arguments, code=2)
    assert "small is complete" in ada("up", str(file))
    assert "small is complete" in launcher("up", str(file), "--yes")
    ada("down", "small", "--delete-data", "--yes")
    assert [name for name in remaining_objects(namespace) if name.startswith("small")] == []
    _attended(ada, namespace, image, tmp_path)
    # The optional ClusterRole of doctor, under a name of this test's own.
    role = yaml.safe_load((ROOT / "docs" / "kubernetes-clusterrole.yaml").read_text(encoding="utf-8"))
    role["metadata"]["name"] = bound = f"tf-launcher-doctor-{namespace.name}"
    kubectl("apply", "-f", "-", text=json.dumps(role))
    kubectl("create", "clusterrolebinding", bound, f"--clusterrole={bound}", f"--serviceaccount={namespace.name}:ada")
    try:

        def passed() -> set[str]:
            return {finding["what"] for finding in json.loads(ada("doctor", str(file), "--json"))["findings"] if finding["level"] == "ok"}

        until(lambda: {"nodes", "capacity", "storage"} <= passed(), 60, "doctor to see nodes and storage classes", passed)
    finally:
        kubectl("delete", "clusterrolebinding", bound)
        kubectl("delete", "clusterrole", bound)


def _await_right(namespace: Namespace, verb: str, resource: str) -> None:
    """Wait until the service account `ada` may do this."""
    query = ("auth", "can-i", verb, resource, f"--as=system:serviceaccount:{namespace.name}:ada")

    def answer() -> str:
        return namespace.kubectl(*query, check=False).strip()

    until(lambda: answer() == "yes", 30, "the right to take effect", answer)


def _attended(ada: Launcher, namespace: Namespace, image: str, directory: Path) -> None:
    """Check that a user who may create runs can create one with an attendant only after she has the rights for it."""
    file = directory / "tended.yaml"
    file.write_text(
        f"version: 1\nname: tended\nkubernetes: {{tensorboard: false, attendant: {{image: '{image}'}}}}\n" + stand_in_spec(steps=40)
    )
    assert "may not patch serviceaccounts in the namespace" in ada("up", str(file), code=1)
    findings = {finding["what"]: finding for finding in json.loads(ada("doctor", str(file), "--json", code=1))["findings"]}
    assert findings["attendant"]["words"].startswith("you may not create one: get, list, create, patch, delete serviceaccounts")
    namespace.kubectl("apply", "-f", str(ROOT / "docs" / "kubernetes-attendant-role.yaml"))
    namespace.kubectl("create", "rolebinding", "ada-too", "--role=tf-launcher-attendant", f"--serviceaccount={namespace.name}:ada")
    _await_right(namespace, "patch", "rolebindings")
    assert "no launcher watches it" not in ada("up", str(file), "--detach")
    assert ada.status("tended")["attended"] is True
    logs = ("logs", "job/tended-attendant")
    until(lambda: namespace.ends("tended")["attendant"] == "Complete", 120, "its end", lambda: namespace.kubectl(*logs, check=False))
    assert "tended has succeeded" in namespace.kubectl(*logs)
    record = json.loads(namespace.kubectl("get", "configmap", "tended-record", "-o", "json"))
    assert json.loads(record["data"]["status.json"])["state"] == "succeeded"  # before any launcher has read it
    status = ada.status("tended")
    assert (status["state"], status["step"]) == ("succeeded", 40)
    ada("down", "tended", "--delete-data", "--yes")
    assert [name for name in remaining_objects(namespace) if name.startswith("tended")] == []


def _kubeconfig_of(namespace: Namespace, account: str, directory: Path) -> Path:
    """Write a kubeconfig of a service account."""
    token = namespace.kubectl("create", "token", account).strip()
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "-o", "json").stdout)
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = directory / "kubeconfig"
    path.write_text(json.dumps(config))
    return path
