"""A run of a user's program ends with its chief, even if its other tasks would continue: every Job is Complete, and no pod runs."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.code.brought import KILLED_ONCE, PREPARES, RUNS_UNTIL_STOPPED, UNFINISHED
from tests.e2e.kubernetes.cluster import ROOT, Namespace, kubectl, until
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher
from tests.e2e.kubernetes.starting import WAIT_FOR_RELEASE, program

pytestmark = pytest.mark.kubernetes

OPTIONS = """\
strategy: parameter_server
limits: {worker_grace: 1s, evaluator_grace: 1s, grace_period: 5s, max_restarts: 0}
tensorboard: false
"""
# The evaluator ignores SIGTERM. All tasks but the leader sleep for ten minutes.
SLEEPS = "import signal; signal.signal(15, signal.SIG_IGN if role == 'evaluator' else signal.SIG_DFL); time.sleep(3600)"
WITH_CHIEF = "roles: {chief: {}, ps: {}, worker: {}, evaluator: {}}\n"


def write(directory: Path, name: str, roles: str, leader: str, code: str) -> str:
    """Write a spec in which one task runs `code` and the others sleep; `roles` are its lines with the roles and further fields. Return its path."""
    is_leader = f"role == {leader!r} and os.environ['JOB_COMPLETION_INDEX'] == '0'"
    file = directory / f"{name}.yaml"
    file.write_text(f"version: 1\nname: {name}\n{OPTIONS}{roles}" + program(f"\nif {is_leader}: {code}\nelse: {SLEEPS}"))
    return str(file)


def apply(namespace: Namespace, file: str) -> None:
    """Render a spec and apply it with kubectl."""
    render = [sys.executable, "-m", "launcher", "render", file, "--to", "kubernetes"]
    manifests = subprocess.run(render, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    namespace.kubectl("apply", "-f", "-", text=manifests)


def phases(namespace: Namespace, run: str) -> set[str]:
    return {pod["status"]["phase"] for pod in namespace.pods(run)}


def test_a_drained_chief_ends_no_task_and_a_finished_chief_ends_all(namespace: Namespace, tmp_path: Path) -> None:
    """Without the launcher. The first chief exits 143, as if it had saved; its replacement waits until the test releases it."""
    program_code = f"import signal; signal.signal(15, lambda *_: os._exit(143)); {WAIT_FOR_RELEASE}print('begun', flush=True); wait()"
    apply(namespace, write(tmp_path, "ended", WITH_CHIEF, "chief", program_code))

    def chief() -> str:
        """Return the name of the chief's pod whose program has begun, if there is one."""
        names = [pod["metadata"]["name"] for pod in namespace.pods("ended", "chief") if not pod["metadata"].get("deletionTimestamp")]
        return next((name for name in names if "begun" in namespace.kubectl("logs", name, check=False)), "")

    until(lambda: chief() != "" and len(phases(namespace, "ended")) == 1, 180, "all to begin", lambda: namespace.describe("ended"))
    before = {pod["metadata"]["uid"] for role in ("ps", "worker", "evaluator") for pod in namespace.pods("ended", role)}
    first = chief()
    node = next(pod["spec"]["nodeName"] for pod in namespace.pods("ended", "chief") if pod["metadata"]["name"] == first)
    selector = "--pod-selector=app.kubernetes.io/instance=ended,app.kubernetes.io/component=chief"
    try:
        kubectl("drain", node, selector, "--delete-emptydir-data", "--timeout=60s")
    finally:
        kubectl("uncordon", node)
    until(lambda: chief() not in {"", first}, 180, "another chief to begin", lambda: namespace.describe("ended"))
    running = [
        pod for role in ("ps", "worker", "evaluator") for pod in namespace.pods("ended", role) if pod["status"]["phase"] == "Running"
    ]
    assert {pod["metadata"]["uid"] for pod in running} == before
    namespace.signal(chief(), "/tmp/go")
    complete = dict.fromkeys(("chief", "ps", "worker", "evaluator"), "Complete")
    until(lambda: namespace.ends("ended") == complete, 120, "every Job to be Complete", lambda: namespace.describe("ended"))
    assert phases(namespace, "ended") <= {"Succeeded", "Failed"}


def test_a_chief_that_reaches_its_restart_limit_fails_every_job(namespace: Namespace, tmp_path: Path) -> None:
    apply(namespace, write(tmp_path, "failed", WITH_CHIEF, "chief", "time.sleep(2); sys.exit(1)"))
    failed = dict.fromkeys(("chief", "ps", "worker", "evaluator"), "Failed")
    until(lambda: namespace.ends("failed") == failed, 180, "every Job to fail", lambda: namespace.describe("failed"))


def test_a_run_without_a_chief_ends_with_its_first_worker_in_an_image_of_its_own(launcher: Launcher, image: str, tmp_path: Path) -> None:
    """The image contains the trainer, but tasks use the one that comes with the run.

    An init container writes a file that the task reads. A sidecar ends with its task: otherwise no pod would be complete.
    """
    launcher.namespace.kubectl("create", "secret", "generic", "team", "--from-literal=token=hunter2")
    worker = "{replicas: 2, max_restarts: 1, env: {LEVEL: debug, TOKEN: {secret: team, key: token}}, args: [two, words], working_dir: /usr}"
    containers = {
        "volumes": [{"name": "work", "mount_path": "/ready", "source": {"emptyDir": {}}, "read_only": True}],
        "init_containers": [
            {
                "name": "prepare",
                "command": ["python", "-c", PREPARES],
                "env": {"TOKEN": {"secret": "team", "key": "token"}},
                "mounts": [{"volume": "work", "mount_path": "/out"}],
            }
        ],
        "sidecars": [{"name": "stay", "command": ["python", "-c", RUNS_UNTIL_STOPPED]}],
    }
    roles = f"image: {image}\nroles: {{ps: {{}}, worker: {worker}}}\n{yaml.safe_dump(containers)}"
    prints = (
        "print('found', os.environ['LEVEL'], os.environ['TOKEN'][::-1], os.getcwd(), *sys.argv[1:], 'RUN_DIR' in os.environ, "
        "open('/ready/token').read(), flush=True); "
    )
    launcher("up", write(tmp_path, "led", roles, "worker", prints + KILLED_ONCE), timeout=TRAINING_TIMEOUT)
    status = launcher.status("led")
    assert status["state"] == "succeeded"
    assert {task["name"]: task["state"] for task in status["tasks"]} == dict.fromkeys(("worker-0", "worker-1", "ps-0"), "succeeded")
    assert [restart["exit_code"] for restart in status["tasks"][0]["restarts"]] == [137]
    assert UNFINISHED in launcher("logs", "led", "--raw")
    assert "found debug 2retnuh /usr two words False prepared 2retnuh" in launcher("logs", "led")
    pods = launcher.namespace.pods("led")
    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * 3
    sidecars = [container for pod in pods for container in pod["status"]["initContainerStatuses"] if container["name"] == "stay"]
    assert [container["state"]["terminated"]["exitCode"] for container in sidecars] == [0] * 3
    assert launcher.namespace.objects("PersistentVolumeClaim", "led") == []
    assert "hunter2" not in launcher.namespace.kubectl("get", "all,configmaps", "-o", "yaml") + launcher("logs", "led", "--raw")
    assert "led has no volume, as its spec has no `storage`" in launcher("get", "led", "results", code=2)


def test_a_watching_launcher_ends_unsupervised_tasks(launcher: Launcher, image: str, tmp_path: Path) -> None:
    """With `security: image` a container's file system is not read-only. Pod Security `restricted` does not admit such containers."""
    launcher.namespace.kubectl("label", "namespace", launcher.namespace.name, "pod-security.kubernetes.io/enforce=baseline", "--overwrite")
    roles = f"image: {image}\nsecurity: image\nsupervise: false\nroles: {{ps: {{}}, worker: {{replicas: 2}}, evaluator: {{}}}}\n"
    prints = "time.sleep(5); print('over, read-only:', bool(os.statvfs('/').f_flag & os.ST_RDONLY))"
    launcher("up", write(tmp_path, "bare", roles, "worker", prints), timeout=TRAINING_TIMEOUT)
    status = launcher.status("bare")
    assert status["state"] == "succeeded"
    assert {task["name"]: task["state"] for task in status["tasks"]} == dict.fromkeys(
        ("worker-0", "worker-1", "ps-0", "evaluator"), "succeeded"
    )
    assert "over, read-only: False" in launcher("logs", "bare")
    until(
        lambda: phases(launcher.namespace, "bare") <= {"Succeeded", "Failed"},
        60,
        "its pods to end",
        lambda: launcher.namespace.describe("bare"),
    )
