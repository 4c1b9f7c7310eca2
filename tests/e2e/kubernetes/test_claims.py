"""Runs on an existing claim that others use, too: a run's own directory on it is renamed and deleted, and the claim is deleted.

The namespace has a quota, so every pod must state its resources.
"""

import json
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import Namespace, stand_in_spec, until
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher, remaining_objects

pytestmark = pytest.mark.kubernetes

CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "team"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}
SPEC = """\
version: 1
name: guest
roles: {chief: {cpu: 1, memory: 2Gi}}
kubernetes: {claim: team}
""" + stand_in_spec(steps=20, step_seconds=0.01)


def directories(namespace: Namespace) -> list[str]:
    """Return the directories on the claim, as the run's TensorBoard sees them."""
    namespace.kubectl("rollout", "status", "deployment/guest-tensorboard", "--timeout=180s", timeout=200)
    return sorted(namespace.kubectl("exec", "deployment/guest-tensorboard", "--", "ls", "/runs").split())


def claim_finding(launcher: Launcher, file: Path, code: int) -> list[str]:
    """Return level and text of doctor's finding about a spec's claim."""
    findings = json.loads(launcher("doctor", str(file), "--json", code=code))["findings"]
    return next([finding["level"], finding["words"]] for finding in findings if finding["what"] == "claim")


def test_a_run_on_a_shared_claim_changes_only_its_directory(launcher: Launcher, tmp_path: Path) -> None:
    namespace = launcher.namespace
    namespace.kubectl("create", "quota", "small", "--hard=requests.cpu=4,requests.memory=8Gi,limits.memory=16Gi")
    namespace.kubectl("apply", "-f", "-", text=json.dumps(CLAIM))
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    findings = json.loads(launcher("doctor", str(file), "--json"))["findings"]
    assert {finding["what"]: finding["level"] for finding in findings}["image"] == "ok"
    launcher("up", str(file), timeout=TRAINING_TIMEOUT)
    assert launcher.status("guest")["run_dir"].startswith("claim team in ")
    assert directories(namespace) == ["guest"]
    assert claim_finding(launcher, file, 0) == ["ok", "user 1000 may write to team"]
    other = tmp_path / "other.yaml"
    other.write_text(SPEC.replace("{claim: team}", "{claim: team, user: 2000}"))
    assert claim_finding(launcher, other, 1) == [
        "problem",
        "/runs/guest of team belongs to user 1000, group 1000; user 2000 may not write there",
    ]

    fresh = launcher("up", str(file), "--fresh", "--set", "train.steps=30", timeout=TRAINING_TIMEOUT)
    assert "guest starts from the first step; the old run is now claim team in " in fresh
    assert launcher.status("guest")["step"] == 30
    renamed, current = sorted(directories(namespace), key=len, reverse=True)
    assert current == "guest"
    assert renamed.startswith("guest.")

    launcher("down", "guest")
    launcher("down", "guest", "--delete-data", "--yes")
    assert remaining_objects(namespace) == []
    assert namespace.kubectl("get", "pvc", "-o", "name").split() == ["persistentvolumeclaim/team"]
    launcher("up", str(file), "--set", "train.steps=5", timeout=TRAINING_TIMEOUT)
    assert launcher.status("guest")["step"] == 5  # from the start: the old data was deleted
    assert directories(namespace) == sorted([renamed, "guest"])

    # The claim is deleted, and created again.
    launcher("down", "guest")
    namespace.kubectl("delete", "pvc", "team")
    assert launcher.status("guest")["data_lost"]["code"] == "deleted"
    assert "the claim team was deleted" in launcher("down", "guest")
    more_steps = ("up", str(file), "--set", "train.steps=40")
    assert "add --fresh to start from the first step on a new claim" in launcher(*more_steps, code=2)
    namespace.kubectl("apply", "-f", "-", text=json.dumps(CLAIM))
    assert "the claim team was deleted and created again" in launcher(*more_steps, code=2)
    launcher(*more_steps, "--resume", timeout=TRAINING_TIMEOUT)
    assert launcher.status("guest")["data_lost"] is None
    assert directories(namespace) == ["guest"]

    # It is being deleted, and a pod still uses it.
    namespace.kubectl("delete", "pvc", "team", "--wait=false")
    assert launcher.status("guest")["data_lost"]["code"] == "deleting"

    # Once it is deleted, `down` has nothing to delete and nothing to wait for.
    launcher("down", "guest")
    namespace.kubectl("wait", "--for=delete", "pvc/team", "--timeout=60s")
    launcher("down", "guest", "--delete-data", "--yes", timeout=60)
    assert remaining_objects(namespace) == []
    pods = ("get", "pods", "-o", "name")
    until(lambda: not namespace.kubectl(*pods).split(), 60, "the housekeeping pods to be deleted", lambda: namespace.kubectl(*pods))


def test_a_claim_of_the_runs_name_that_was_not_created_for_it_is_refused(launcher: Launcher, tmp_path: Path) -> None:
    namespace = launcher.namespace
    claim = {**CLAIM, "metadata": {"name": "stranger"}}
    namespace.kubectl("apply", "-f", "-", text=json.dumps(claim))
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("name: guest", "name: stranger").replace("kubernetes: {claim: team}\n", ""))
    output = launcher("up", str(file), code=2)
    assert "the claim stranger in" in output
    assert "was not created for this run" in output
    assert "kubernetes: {claim: stranger}" in output
    existing = json.loads(namespace.kubectl("get", "pvc", "stranger", "-o", "json"))
    assert "labels" not in existing["metadata"]
    assert not [name for name in remaining_objects(namespace) if name.startswith("stranger")]


def test_a_pod_of_a_killed_launcher_does_not_prevent_the_deletion_of_the_claim(launcher: Launcher, tmp_path: Path) -> None:
    namespace = launcher.namespace
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("name: guest", "name: killed").replace("{claim: team}", "{tensorboard: false}"))
    launcher("up", str(file), timeout=TRAINING_TIMEOUT)
    up = launcher.start("up", str(file), "--fresh", "--detach")

    def housekeeping() -> list[str]:
        pods = namespace.objects("Pod", "killed")
        return [pod["status"]["phase"] for pod in pods if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "housekeeping"]

    try:
        until(lambda: bool(housekeeping()), 60, "the pod that moves the data", lambda: str(up.poll()))
    finally:
        up.kill()
        up.communicate()
    until(lambda: housekeeping() == ["Succeeded"], 60, "the data to be moved", lambda: namespace.describe("killed"))
    launcher("down", "killed", "--delete-data", "--yes", timeout=60)
    assert housekeeping() == []
    assert [name for name in remaining_objects(namespace) if name.startswith("killed")] == []
