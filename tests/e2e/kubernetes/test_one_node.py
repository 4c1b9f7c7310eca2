"""A run on a volume that one node mounts, of a class that offers no other: chief, evaluator and TensorBoard are there, and stay there.

Its class is `node-local` where the cluster has one, as the testbed does, else the default.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import kubectl, stand_in_spec, until
from tests.e2e.kubernetes.faults import RECOVERY_TIMEOUT, Run
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1440)]

LOCAL = "node-local"
SPEC = """\
version: 1
name: local
image: {image}
strategy: parameter_server
roles: {{chief: {{}}, ps: {{}}, worker: {{}}, evaluator: {{}}}}
storage: {{class: {storage}}}
"""


@pytest.fixture(scope="module")
def storage(cluster: str) -> str:
    """Return the class of the volumes here."""
    assert cluster
    classes = {
        one["metadata"]["name"]: one["metadata"] for one in json.loads(kubectl("get", "storageclasses", "-o", "json").stdout)["items"]
    }
    return LOCAL if LOCAL in classes else next(name for name, head in classes.items() if "true" in (head.get("annotations") or {}).values())


@pytest.fixture(scope="module")
def spec(image: str, storage: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the file of the run."""
    file = tmp_path_factory.mktemp("specs") / "spec.yaml"
    file.write_text(SPEC.format(image=image, storage=storage) + stand_in_spec(checkpoint={"every_seconds": 2}))
    return str(file)


@pytest.fixture(scope="module")
def run(launcher: Launcher, spec: str) -> Iterator[Run]:
    """Start the run, once for the tests below, of which each goes on from where the one before left it."""
    made = Run(launcher, "local", ("chief", "ps-0", "worker-0", "evaluator"))
    launcher("up", spec, "--detach")
    made.await_steady()
    yield made
    launcher("down", made.name, "--now", "--delete-data", "--yes")


def nodes(run: Run) -> dict[str, str]:
    """Return where the pods run that mount the volume, by component."""
    found: dict[str, str] = {}
    for pod in run.launcher.namespace.objects("Pod", run.name):
        mounts = any("persistentVolumeClaim" in volume for volume in pod["spec"]["volumes"])
        if mounts and pod["status"]["phase"] == "Running" and not pod["metadata"].get("deletionTimestamp"):
            found[pod["metadata"]["labels"]["app.kubernetes.io/component"]] = pod["spec"]["nodeName"]
    return found


def test_those_that_mount_the_volume_are_on_one_node_and_a_new_chief_is_too(run: Run) -> None:
    (claim,) = run.launcher.namespace.objects("PersistentVolumeClaim", run.name)
    assert claim["status"]["accessModes"] == ["ReadWriteOnce"]
    until(lambda: nodes(run).keys() == {"chief", "evaluator", "tensorboard"}, RECOVERY_TIMEOUT, "all three to run", run.describe)
    (node,) = set(nodes(run).values())
    old = run.pod("chief")
    run.delete("chief")
    until(lambda: run.replaced("chief", old), RECOVERY_TIMEOUT, "another chief", run.describe)
    run.await_steady()
    assert nodes(run)["chief"] == node
    assert [event for event in run.events("chief") if event["event"] == "restored"]


def test_a_run_that_has_ended_is_read_where_its_volume_is(run: Run, spec: str, tmp_path: Path) -> None:
    launcher, node = run.launcher, nodes(run)["chief"]
    steps = run.saved() + 200
    launcher("down", run.name)
    launcher("up", spec, "--set", f"train.steps={steps}", "--set", "train.params.step_seconds=0.01", "--resume", timeout=TRAINING_TIMEOUT)
    assert run.node("chief") == node
    launcher("get", run.name, "checkpoints", str(tmp_path / "got"))
    assert list((tmp_path / "got").rglob(f"ckpt-{steps}*"))

    # TensorBoard is moved when there is nobody left whom it could follow.
    launcher.namespace.kubectl("delete", "pod", "-l", "app.kubernetes.io/component=tensorboard,app.kubernetes.io/instance=local")
    with launcher.start("tensorboard", run.name, "--port", "0") as serving:

        def is_there() -> bool:
            assert serving.poll() is None, serving.stdout and serving.stdout.read()
            return nodes(run) == {"tensorboard": node}

        try:
            until(is_there, RECOVERY_TIMEOUT, "TensorBoard to be there again", run.describe)
        finally:
            serving.kill()


def test_a_claim_for_many_nodes_is_kept(run: Run, image: str, tmp_path: Path) -> None:
    """As an earlier version has made it."""
    launcher, namespace = run.launcher, run.launcher.namespace
    file = tmp_path / "spec.yaml"
    text = SPEC.replace("storage: {{class: {storage}}}\n", "").replace("name: local", "name: earlier")
    file.write_text(text.format(image=image) + stand_in_spec(steps=20, step_seconds=0.01))
    labels = {"app.kubernetes.io/name": "tf-launcher", "app.kubernetes.io/instance": "earlier"}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "earlier", "labels": labels},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}},
    }
    namespace.kubectl("apply", "--server-side", "--field-manager=launcher", "-f", "-", text=json.dumps(claim))
    launcher("up", str(file), "--resume", timeout=TRAINING_TIMEOUT)
    (kept,) = namespace.objects("PersistentVolumeClaim", "earlier")
    assert kept["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "affinity" not in namespace.pods("earlier", "chief")[0]["spec"]
    launcher("down", "earlier", "--delete-data", "--yes")
