"""A run whose claim is a small disk that is full, read-only and frozen, each for a while: training goes on, it is told, and later steps are saved."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.cluster import Namespace, kubectl, paced, until
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher
from tests.e2e.kubernetes.nodes import node_tool, stable_node
from tests.volumes import FAULTS, Volume, device, is_disk_full, mounted

pytestmark = [pytest.mark.kubernetes, pytest.mark.trains, pytest.mark.timeout(900)]


@pytest.fixture
def disk(namespace: Namespace, tmp_path: Path) -> Iterator[Volume]:
    """The disk of 32 MB, on one node, of the claim `small`: a loop device that the node mounts, and this test, as its machine is this one."""
    node_tool()
    volume = f"full-{namespace.name}"
    with device(tmp_path / "image", 32_000_000, owner=1000) as path:
        node = stable_node()
        here = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
        shared: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
        made_of = shared | {
            "capacity": {"storage": "32M"},
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": path, "fsType": "ext4"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": here}]}},
        }
        asked = shared | {"volumeName": volume, "resources": {"requests": {"storage": "32M"}}}
        for kind, name, spec in (("PersistentVolume", volume, made_of), ("PersistentVolumeClaim", "small", asked)):
            made = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
            namespace.kubectl("apply", "-f", "-", text=json.dumps(made))
        try:
            with mounted(path, tmp_path / "disk") as both:
                yield both
        finally:
            namespace.kubectl("delete", "jobs,pods,pvc", "--all", "--timeout=120s", check=False, timeout=150)
            kubectl("delete", "pv", volume, "--timeout=60s", check=False)


def test_a_claim_that_takes_nothing_for_a_while_costs_no_step(launcher: Launcher, disk: Volume, tmp_path: Path) -> None:
    namespace, file = launcher.namespace, tmp_path / "spec.yaml"
    spec = f"version: 1\nname: full\nstrategy: single\nroles: {{chief: {{}}}}\ntensorboard: false\nkubernetes: {{claim: small}}\n{paced(2)}"
    file.write_text(spec)
    launcher("up", str(file), "--detach", timeout=TRAINING_TIMEOUT)

    def told(kind: str) -> list[dict[str, Any]]:
        lines = namespace.kubectl("logs", "job/full-chief", check=False).splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in events if event["event"] == kind]

    def wait(what: str, kind: str, after: int = 0, such: Callable[[dict[str, Any]], bool] = bool) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = filter(such, told(kind)[after:])
            return bool(found)

        until(there, 240, what, lambda: namespace.describe("full"))
        return found[0]

    wait("a checkpoint", "checkpoint")
    for fault, cause in FAULTS.items():
        before, since = len(told("save_failed")), time.monotonic()
        with disk.failing(fault):
            failed = wait(f"the {fault} volume to be told of", "save_failed", before, is_disk_full if fault == "full" else bool)
            print(f"{fault}: told after {time.monotonic() - since:.1f} s: {failed['cause']}")
            assert (failed["path"], failed["cause"][: len(cause)]) == ("/runs/full/checkpoints", cause)
            assert fault != "full" or failed["free"] < failed["size"]
            wait("more steps", "progress", len(told("progress")) + 1)
            saved = len(told("checkpoint")) + (fault == "frozen")  # a write that hung goes on where it was
        assert wait("later steps to be saved", "checkpoint", saved)["step"] > failed["step"] > failed["saved"]
    assert len(told("started")) == 1
    launcher("down", "full")
    status = launcher.status("full")
    assert (status["state"], status["checkpoint_step"]) == ("stopped", status["step"])
