"""A run on a small disk that is full, read-only and frozen, each for a while: training continues, the fault is reported, later steps are saved."""

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

pytestmark = [pytest.mark.kubernetes, pytest.mark.trains]


@pytest.fixture
def disk(namespace: Namespace, tmp_path: Path) -> Iterator[Volume]:
    """The disk of 32 MB of the claim `small`: a loop device that both a node and this test mount, since the node runs on this machine."""
    node_tool()
    volume = f"full-{namespace.name}"
    with device(tmp_path / "image", 32_000_000, owner=1000) as path:
        node = stable_node()
        on_node = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
        shared: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
        volume_spec = shared | {
            "capacity": {"storage": "32M"},
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": path, "fsType": "ext4"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": on_node}]}},
        }
        claim_spec = shared | {"volumeName": volume, "resources": {"requests": {"storage": "32M"}}}
        for kind, name, spec in (("PersistentVolume", volume, volume_spec), ("PersistentVolumeClaim", "small", claim_spec)):
            manifest = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
            namespace.kubectl("apply", "-f", "-", text=json.dumps(manifest))
        try:
            with mounted(path, tmp_path / "disk") as small_disk:
                yield small_disk
        finally:
            namespace.kubectl("delete", "jobs,pods,pvc", "--all", "--timeout=120s", check=False, timeout=150)
            kubectl("delete", "pv", volume, "--timeout=60s", check=False)


def test_a_claim_that_cannot_be_written_for_a_while_costs_no_step(launcher: Launcher, disk: Volume, tmp_path: Path) -> None:
    namespace, file = launcher.namespace, tmp_path / "spec.yaml"
    spec = f"version: 1\nname: full\nstrategy: single\nroles: {{chief: {{}}}}\ntensorboard: false\nkubernetes: {{claim: small}}\n{paced(2)}"
    file.write_text(spec)
    launcher("up", str(file), "--detach", timeout=TRAINING_TIMEOUT)

    def events(kind: str) -> list[dict[str, Any]]:
        lines = namespace.kubectl("logs", "job/full-chief", check=False).splitlines()
        reported = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in reported if event["event"] == kind]

    def wait(awaited: str, kind: str, after: int = 0, matches: Callable[[dict[str, Any]], bool] = bool) -> dict[str, Any]:
        matching: list[dict[str, Any]] = []

        def is_reported() -> bool:
            matching[:] = filter(matches, events(kind)[after:])
            return bool(matching)

        until(is_reported, 240, awaited, lambda: namespace.describe("full"))
        return matching[0]

    wait("a checkpoint", "checkpoint")
    for fault, cause in FAULTS.items():
        before, since = len(events("save_failed")), time.monotonic()
        with disk.failing(fault):
            failed = wait(f"a report of the {fault} volume", "save_failed", before, is_disk_full if fault == "full" else bool)
            print(f"{fault}: reported after {time.monotonic() - since:.1f} s: {failed['cause']}")
            assert (failed["path"], failed["cause"][: len(cause)]) == ("/runs/full/checkpoints", cause)
            assert fault != "full" or failed["free"] < failed["size"]
            wait("more steps", "progress", len(events("progress")) + 1)
            saved = len(events("checkpoint")) + (fault == "frozen")  # a write that hung continues
        assert wait("later steps to be saved", "checkpoint", saved)["step"] > failed["step"] > failed["saved"]
    assert len(events("started")) == 1
    launcher("down", "full")
    status = launcher.status("full")
    assert (status["state"], status["checkpoint_step"]) == ("stopped", status["step"])
