"""Starting a run where an earlier start has left something: Jobs that are about to go, a TensorBoard, data, a record, a refusal halfway."""

import dataclasses
import re
import signal
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import until
from tests.e2e.kubernetes.launching import Launcher, left, output_at_end
from tests.e2e.kubernetes.starting import deletion_blocked, quota, write

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1440), pytest.mark.takes_minutes]


def test_objects_that_an_earlier_start_has_left_are_not_in_the_way(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = write(tmp_path / "spec.yaml", "again", image, "")
    launcher("up", spec, "--detach")
    assert "deployment" in launcher.namespace.kubectl("get", "deployments", "-o", "name")
    launcher("down", "again", "--now", "--delete-data", "--yes")
    # At once: the claim is not being deleted any more.
    launcher("up", spec, "--detach")
    until(lambda: launcher.namespace.runs("again"), 120, "its start", lambda: launcher.namespace.describe("again"))
    # Its Jobs end by themselves, its TensorBoard stays; that is not wanted any more.
    launcher.namespace.kubectl("delete", "jobs", "--all")
    until(lambda: not launcher.namespace.pods("again"), 60, "its pods to go", lambda: launcher.namespace.describe("again"))
    launcher("up", spec, "--detach", "--resume", "--set", "kubernetes.tensorboard=false")
    there = [re.sub("^again-cluster-[0-9a-f]{8}$", "again-cluster-", name) for name in left(launcher.namespace)]
    assert there == ["again", "again", "again", "again-chief", "again-cluster-", "again-record"]

    # A start that is refused halfway leaves the record of the one before, and its data.
    launcher("down", "again", "--now")
    with quota(launcher.namespace, "none", "count/jobs.batch=0"):
        refused = launcher("up", spec, "--detach", "--resume", "--set", "limits.deadline=3h", code=1)
        assert "the namespace's quota none is used up" in refused
    assert left(launcher.namespace) == ["again", "again-record"]
    told = launcher.status("again")
    assert (told["state"], told["reason"]) == ("stopped", "asked to stop")
    launcher("down", "again", "--delete-data", "--yes")
    assert left(launcher.namespace) == []


def test_a_fresh_start_that_is_refused_is_not_taken_for_the_run_that_was_renamed(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        f"version: 1\nname: moved\nimage: {image}\nsupervise: false\nstorage: {{}}\ncommand: [sh, -c, 'touch $RUN_DIR.done']\nkubernetes: {{tensorboard: false}}\n"
    )
    launcher("up", str(spec))
    assert "moved is complete" in launcher("up", str(spec))
    refused = launcher("up", str(spec), "--fresh", "--set", "storage.class=another", code=2)
    assert "the claim exists, and cannot be changed" in refused
    anywhere = dataclasses.replace(launcher, names_namespace=False)
    assert "moved succeeded" in anywhere("up", str(spec))
    launcher("down", "moved", "--delete-data", "--yes")


def ended_unseen(launcher: Launcher, name: str, image: str, tmp_path: Path) -> str:
    """Start a run that is soon done, and wait for that by kubectl alone; return its spec."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        f"version: 1\nname: {name}\nimage: {image}\nsupervise: false\nstorage: {{}}\ncommand: [sh, -c, 'touch $RUN_DIR.done']\nkubernetes: {{tensorboard: false}}\n"
    )
    launcher("up", str(spec), "--detach")
    until(lambda: launcher.namespace.ends(name) == {"chief": "Complete"}, 120, "its end", lambda: launcher.namespace.describe(name))
    return str(spec)


def test_how_a_run_has_ended_stays_known_where_it_cannot_be_renamed(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = ended_unseen(launcher, "unmoved", image, tmp_path)
    with quota(launcher.namespace, "no-pods", "pods=0"):
        refused = launcher("up", spec, "--detach", "--fresh", code=1)
    assert "the namespace's quota no-pods is used up" in refused
    told = launcher.status("unmoved")
    assert (told["state"], told["reason"]) == ("succeeded", "")
    assert "unmoved is complete" in launcher("up", spec)
    launcher("down", "unmoved", "--delete-data", "--yes")


def test_ctrl_c_is_heard_while_a_start_waits_for_what_an_earlier_one_has_left(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = ended_unseen(launcher, "impatient", image, tmp_path)
    namespace = launcher.namespace
    with deletion_blocked(namespace, "impatient"):
        up = launcher.start("up", spec, "--resume", "--set", "limits.deadline=2h")
        try:
            until(
                lambda: "deletionTimestamp" in namespace.objects("Job", "impatient")[0]["metadata"],
                60,
                "it to wait",
                lambda: namespace.describe("impatient"),
            )
            up.send_signal(signal.SIGINT)
            written = output_at_end(up, 20)
        finally:
            up.kill()
    assert up.returncode == 130, written
    assert "was not started: its start was interrupted" in written
    gone = lambda: not namespace.objects("Job", "impatient") and not namespace.pods("impatient")  # noqa: E731
    until(gone, 60, "the earlier one to go", lambda: namespace.describe("impatient"))
    told = launcher.status("impatient")
    assert (told["state"], told["reason"]) == ("succeeded", "")
    launcher("up", spec, "--resume", "--detach")
    launcher("down", "impatient", "--now", "--delete-data", "--yes")
