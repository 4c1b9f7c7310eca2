"""A run on a volume that one node mounts, of a class that offers no other: chief, evaluator and TensorBoard are on that node, and stay on it.

Its class is `node-local` if the cluster has one, as the testbed does, else the default.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import kubectl, stand_in_spec, until
from tests.e2e.kubernetes.faults import RECOVERY_TIMEOUT, Run
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher

pytestmark = pytest.mark.kubernetes

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
    """Return the storage class of the run."""
    assert cluster
    items = json.loads(kubectl("get", "storageclasses", "-o", "json").stdout)["items"]
    annotations = {item["metadata"]["name"]: item["metadata"].get("annotations") or {} for item in items}
    return LOCAL if LOCAL in annotations else next(name for name, values in annotations.items() if "true" in values.values())


@pytest.fixture(scope="module")
def spec(image: str, storage: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of the run's spec."""
    file = tmp_path_factory.mktemp("specs") / "spec.yaml"
    file.write_text(SPEC.format(image=image, storage=storage) + stand_in_spec(checkpoint={"every_seconds": 2}))
    return str(file)


@pytest.fixture(scope="module")
def run(launcher: Launcher, spec: str) -> Iterator[Run]:
    """Start the run, once for the tests below, each of which continues from the state that the previous one left."""
    local = Run(launcher, "local", ("chief", "ps-0", "worker-0", "evaluator"))
    launcher("up", spec, "--detach")
    local.await_steady()
    yield local
    launcher("down", local.name, "--now", "--delete-data", "--yes")


def nodes(run: Run) -> dict[str, str]:
    """Return the nodes of the running pods that mount the volume, by component."""
    by_component: dict[str, str] = {}
    for pod in run.launcher.namespace.objects("Pod", run.name):
        mounts = any("persistentVolumeClaim" in volume for volume in pod["spec"]["volumes"])
        if mounts and pod["status"]["phase"] == "Running" and not pod["metadata"].get("deletionTimestamp"):
            by_component[pod["metadata"]["labels"]["app.kubernetes.io/component"]] = pod["spec"]["nodeName"]
    return by_component


def test_pods_that_mount_the_volume_are_on_one_node_also_a_new_chief(run: Run) -> None:
    (claim,) = run.launcher.namespace.objects("PersistentVolumeClaim", run.name)
    assert claim["status"]["accessModes"] == ["ReadWriteOnce"]
    until(lambda: nodes(run).keys() == {"chief", "evaluator", "tensorboard"}, RECOVERY_TIMEOUT, "all three to run", run.describe)
    (node,) = set(nodes(run).values())
    old = run.pod("chief")
    run.delete("chief")
    run.await_replacement("chief", old)
    run.await_steady()
    assert nodes(run)["chief"] == node
    assert [event for event in run.events("chief") if event["event"] == "restored"]


def test_an_ended_run_is_read_on_the_node_of_its_volume(run: Run, spec: str, tmp_path: Path) -> None:
    launcher, node = run.launcher, nodes(run)["chief"]
    steps = run.saved() + 200
    launcher("down", run.name)
    launcher("up", spec, "--set", f"train.steps={steps}", "--set", "train.params.step_seconds=0.01", "--resume", timeout=TRAINING_TIMEOUT)
    assert run.node("chief") == node
    launcher("get", run.name, "checkpoints", str(tmp_path / "copy"))
    assert list((tmp_path / "copy").rglob(f"ckpt-{steps}*"))

    # TensorBoard is scheduled by the volume if no other pod is left whose node it could follow.
    launcher.namespace.kubectl("delete", "pod", "-l", "app.kubernetes.io/component=tensorboard,app.kubernetes.io/instance=local")
    with launcher.start("tensorboard", run.name, "--port", "0") as serving:

        def is_back() -> bool:
            assert serving.poll() is None, serving.stdout and serving.stdout.read()
            return nodes(run) == {"tensorboard": node}

        try:
            until(is_back, RECOVERY_TIMEOUT, "TensorBoard to run on that node again", run.describe)
        finally:
            serving.kill()


def test_a_claim_for_many_nodes_stays_as_it_is(run: Run, image: str, tmp_path: Path) -> None:
    """An earlier version created such claims."""
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
    (after,) = namespace.objects("PersistentVolumeClaim", "earlier")
    assert after["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "affinity" not in namespace.pods("earlier", "chief")[0]["spec"]
    launcher("down", "earlier", "--delete-data", "--yes")
