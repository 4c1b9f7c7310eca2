"""Runs on a claim that was there before, which others use too: their own directory on it, renamed, deleted, and the claim gone.

In a namespace whose quota wants of every pod to say what it takes.
"""

import json
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import Namespace, stand_in_spec, until
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher, left

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1440)]

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
    """Return what is on the claim, as the run's TensorBoard sees it."""
    namespace.kubectl("rollout", "status", "deployment/guest-tensorboard", "--timeout=180s", timeout=200)
    return sorted(namespace.kubectl("exec", "deployment/guest-tensorboard", "--", "ls", "/runs").split())


def claim_found(launcher: Launcher, file: Path, code: int) -> list[str]:
    """Return what doctor finds of a spec's claim."""
    found = json.loads(launcher("doctor", str(file), "--json", code=code))["findings"]
    return next([one["level"], one["words"]] for one in found if one["what"] == "claim")


def test_a_run_on_a_claim_of_others_keeps_to_its_directory(launcher: Launcher, tmp_path: Path) -> None:
    namespace = launcher.namespace
    namespace.kubectl("create", "quota", "small", "--hard=requests.cpu=4,requests.memory=8Gi,limits.memory=16Gi")
    namespace.kubectl("apply", "-f", "-", text=json.dumps(CLAIM))
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    found = json.loads(launcher("doctor", str(file), "--json"))["findings"]
    assert {one["what"]: one["level"] for one in found}["image"] == "ok"
    launcher("up", str(file), timeout=TRAINING_TIMEOUT)
    assert launcher.status("guest")["run_dir"].startswith("claim team in ")
    assert directories(namespace) == ["guest"]
    assert claim_found(launcher, file, 0) == ["ok", "user 1000 may write to team"]
    other = tmp_path / "other.yaml"
    other.write_text(SPEC.replace("{claim: team}", "{claim: team, user: 2000}"))
    assert claim_found(launcher, other, 1) == [
        "problem",
        "/runs/guest of team belongs to user 1000, group 1000; user 2000 may not write there",
    ]

    fresh = launcher("up", str(file), "--fresh", "--set", "train.steps=30", timeout=TRAINING_TIMEOUT)
    assert "guest starts from the first step; the old run is now claim team in " in fresh
    assert launcher.status("guest")["step"] == 30
    renamed, mine = sorted(directories(namespace), key=len, reverse=True)
    assert mine == "guest"
    assert renamed.startswith("guest.")

    launcher("down", "guest")
    launcher("down", "guest", "--delete-data", "--yes")
    assert left(namespace) == []
    assert namespace.kubectl("get", "pvc", "-o", "name").split() == ["persistentvolumeclaim/team"]
    launcher("up", str(file), "--set", "train.steps=5", timeout=TRAINING_TIMEOUT)
    assert launcher.status("guest")["step"] == 5  # from the start: what there was is gone
    assert directories(namespace) == sorted([renamed, "guest"])

    # The claim is deleted by somebody, and made again.
    launcher("down", "guest")
    namespace.kubectl("delete", "pvc", "team")
    assert launcher.status("guest")["data_lost"]["code"] == "deleted"
    assert "the claim team was deleted" in launcher("down", "guest")
    longer = ("up", str(file), "--set", "train.steps=40")
    assert "add --fresh to start from the first step on a new claim" in launcher(*longer, code=2)
    namespace.kubectl("apply", "-f", "-", text=json.dumps(CLAIM))
    assert "the claim team was deleted and created again" in launcher(*longer, code=2)
    launcher(*longer, "--resume", timeout=TRAINING_TIMEOUT)
    assert launcher.status("guest")["data_lost"] is None
    assert directories(namespace) == ["guest"]

    # It is deleted, and something uses it still.
    namespace.kubectl("delete", "pvc", "team", "--wait=false")
    assert launcher.status("guest")["data_lost"]["code"] == "deleting"

    # Once it is gone there is nothing left to delete, and nothing to wait for.
    launcher("down", "guest")
    namespace.kubectl("wait", "--for=delete", "pvc/team", "--timeout=60s")
    launcher("down", "guest", "--delete-data", "--yes", timeout=60)
    assert left(namespace) == []
    pods = ("get", "pods", "-o", "name")
    until(lambda: not namespace.kubectl(*pods).split(), 60, "the pods of housekeeping to go", lambda: namespace.kubectl(*pods))


def test_a_claim_of_the_runs_name_that_was_not_made_for_it_is_refused(launcher: Launcher, tmp_path: Path) -> None:
    namespace = launcher.namespace
    claim = {**CLAIM, "metadata": {"name": "stranger"}}
    namespace.kubectl("apply", "-f", "-", text=json.dumps(claim))
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("name: guest", "name: stranger").replace("kubernetes: {claim: team}\n", ""))
    said = launcher("up", str(file), code=2)
    assert "the claim stranger in" in said
    assert "was not created for this run" in said
    assert "kubernetes: {claim: stranger}" in said
    there = json.loads(namespace.kubectl("get", "pvc", "stranger", "-o", "json"))
    assert "labels" not in there["metadata"]
    assert not [name for name in left(namespace) if name.startswith("stranger")]


def test_a_pod_that_a_killed_launcher_has_left_does_not_keep_the_claim(launcher: Launcher, tmp_path: Path) -> None:
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
    assert [name for name in left(namespace) if name.startswith("killed")] == []
