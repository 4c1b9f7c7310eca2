"""Starting a run where something is in the way: another start of it, what an earlier one has left, a refusal halfway."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import until
from tests.e2e.kubernetes.launching import Launcher, left

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(480)]

SLEEP = "command: [python, -c, 'import time; time.sleep(600)']\nlimits: {grace_period: 1s}\n"


def write(file: Path, name: str, image: str, rest: str) -> str:
    """Write a spec and return its path."""
    file.write_text(f"version: 1\nname: {name}\nimage: {image}\n{SLEEP}{rest}")
    return str(file)


def deadlines(launcher: Launcher, run: str) -> set[int | None]:
    return {job["spec"].get("activeDeadlineSeconds") for job in launcher.namespace.objects("jobs", run)}


def test_of_two_that_start_a_run_at_once_one_gets_it_and_the_other_changes_nothing(launcher: Launcher, image: str, tmp_path: Path) -> None:
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}}\nkubernetes: {tensorboard: false}\n"
    ups = {}
    for hours in (1, 2):
        spec = write(tmp_path / f"{hours}.yaml", "twice", image, roles)
        machine = dataclasses.replace(launcher, runs=tmp_path / f"runs-{hours}")
        ups[hours] = machine.start("up", spec, "--detach", "--set", f"limits.deadline={hours}h")
    said = {hours: process.communicate(timeout=120)[0] for hours, process in ups.items()}
    codes = {hours: process.returncode for hours, process in ups.items()}
    assert sorted(codes.values()) == [0, 2], said
    winner = next(hours for hours, code in codes.items() if code == 0)
    loser = said[3 - winner]
    assert "another `launcher up` is starting twice" in loser or "is being started by" in loser or "twice runs already" in loser
    assert deadlines(launcher, "twice") == {winner * 3600}
    record = json.loads(launcher.namespace.kubectl("get", "configmap", "twice-record", "-o", "json"))
    assert json.loads(record["data"]["spec.json"])["limits"]["deadline"] == f"{winner}h"
    assert "annotations" not in record["metadata"]  # nobody starts it any more
    until(lambda: launcher.status("twice")["state"] == "running", 120, "its start", lambda: launcher.namespace.describe("twice"))
    launcher("down", "twice", "--now", "--delete-data", "--yes")


def test_what_an_earlier_start_has_left_is_not_in_the_way(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = write(tmp_path / "spec.yaml", "again", image, "")
    launcher("up", spec, "--detach")
    assert "deployment" in launcher.namespace.kubectl("get", "deployments", "-o", "name")
    launcher("down", "again", "--now", "--delete-data", "--yes")
    # At once: the claim is not being deleted any more.
    launcher("up", spec, "--detach")
    until(lambda: launcher.status("again")["state"] == "running", 120, "its start", lambda: launcher.namespace.describe("again"))
    # Its Jobs end by themselves, its TensorBoard stays; that is not wanted any more.
    launcher.namespace.kubectl("delete", "jobs", "--all")
    launcher("up", spec, "--detach", "--resume", "--set", "kubernetes.tensorboard=false")
    assert left(launcher.namespace) == sorted(["again", "again", "again", "again-chief", "again-cluster", "again-record"])

    # A start that is refused halfway leaves the record of the one before, and its data.
    launcher("down", "again", "--now")
    launcher.namespace.kubectl("create", "quota", "none", "--hard=count/jobs.batch=0")
    try:
        until(lambda: "0" in launcher.namespace.kubectl("get", "quota", "none", "-o", "jsonpath={.status.hard}"), 30, "the quota to hold")
        refused = launcher("up", spec, "--detach", "--resume", "--set", "limits.deadline=3h", code=1)
        assert "the namespace's quota none is used up" in refused
    finally:
        launcher.namespace.kubectl("delete", "quota", "none")
    assert left(launcher.namespace) == ["again", "again-record"]
    told = launcher.status("again")
    assert (told["state"], told["reason"]) == ("stopped", "asked to stop")
    launcher("down", "again", "--delete-data", "--yes")
    assert left(launcher.namespace) == []
