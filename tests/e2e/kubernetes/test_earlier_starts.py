"""Starting a run after an earlier start, of which there are Jobs being deleted, a TensorBoard, data, or a record, or which was refused halfway."""

import dataclasses
import re
import signal
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import until
from tests.e2e.kubernetes.launching import Launcher, output_at_end, remaining_objects
from tests.e2e.kubernetes.starting import deletion_blocked, quota, write

pytestmark = [pytest.mark.kubernetes, pytest.mark.takes_minutes]


def write_short(file: Path, name: str, image: str) -> str:
    """Write the spec of a run that ends soon, and return its path."""
    options = "supervise: false\nstorage: {}\ncommand: [sh, -c, 'touch $RUN_DIR.done']\nkubernetes: {tensorboard: false}\n"
    file.write_text(f"version: 1\nname: {name}\nimage: {image}\n{options}")
    return str(file)


def test_objects_of_an_earlier_start_do_not_prevent_a_start(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = write(tmp_path / "spec.yaml", "again", image, "")
    launcher("up", spec, "--detach")
    assert "deployment" in launcher.namespace.kubectl("get", "deployments", "-o", "name")
    launcher("down", "again", "--now", "--delete-data", "--yes")
    # At once: `down` has waited for the deletion of the claim.
    launcher("up", spec, "--detach")
    until(lambda: launcher.namespace.is_running("again"), 120, "its start", lambda: launcher.namespace.describe("again"))
    # Its Jobs are deleted and its TensorBoard stays, which the next spec does not have.
    launcher.namespace.kubectl("delete", "jobs", "--all")
    until(lambda: not launcher.namespace.pods("again"), 60, "its pods to go", lambda: launcher.namespace.describe("again"))
    launcher("up", spec, "--detach", "--resume", "--set", "kubernetes.tensorboard=false")
    objects = [re.sub("^again-cluster-[0-9a-f]{8}$", "again-cluster-", name) for name in remaining_objects(launcher.namespace)]
    assert objects == ["again", "again", "again", "again-chief", "again-cluster-", "again-record"]

    # A start that is refused halfway keeps the record and the data of the one before.
    launcher("down", "again", "--now")
    with quota(launcher.namespace, "none", "count/jobs.batch=0"):
        refused = launcher("up", spec, "--detach", "--resume", "--set", "limits.deadline=3h", code=1)
        assert "the namespace's quota none is used up" in refused
    assert remaining_objects(launcher.namespace) == ["again", "again-record"]
    status = launcher.status("again")
    assert (status["state"], status["reason"]) == ("stopped", "asked to stop")
    launcher("down", "again", "--delete-data", "--yes")
    assert remaining_objects(launcher.namespace) == []


def test_a_refused_fresh_start_is_not_taken_for_the_renamed_run(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = write_short(tmp_path / "spec.yaml", "moved", image)
    launcher("up", spec)
    assert "moved is complete" in launcher("up", spec)
    refused = launcher("up", spec, "--fresh", "--set", "storage.class=another", code=2)
    assert "the claim exists, and cannot be changed" in refused
    anywhere = dataclasses.replace(launcher, names_namespace=False)
    assert "moved succeeded" in anywhere("up", spec)
    launcher("down", "moved", "--delete-data", "--yes")


def ended_unwatched(launcher: Launcher, name: str, image: str, tmp_path: Path) -> str:
    """Start a short run and wait for its end without the launcher; return its spec."""
    spec = write_short(tmp_path / "spec.yaml", name, image)
    launcher("up", spec, "--detach")
    until(lambda: launcher.namespace.ends(name) == {"chief": "Complete"}, 120, "its end", lambda: launcher.namespace.describe(name))
    return spec


def test_the_end_of_a_run_stays_known_if_the_run_cannot_be_renamed(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = ended_unwatched(launcher, "unmoved", image, tmp_path)
    with quota(launcher.namespace, "no-pods", "pods=0"):
        refused = launcher("up", spec, "--detach", "--fresh", code=1)
    assert "the namespace's quota no-pods is used up" in refused
    status = launcher.status("unmoved")
    assert (status["state"], status["reason"]) == ("succeeded", "")
    assert "unmoved is complete" in launcher("up", spec)
    launcher("down", "unmoved", "--delete-data", "--yes")


def test_ctrl_c_interrupts_a_start_that_waits_for_jobs_of_an_earlier_one(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = ended_unwatched(launcher, "impatient", image, tmp_path)
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
            output = output_at_end(up, 20)
        finally:
            up.kill()
    assert up.returncode == 130, output
    assert "was not started: its start was interrupted" in output
    deleted = lambda: not namespace.objects("Job", "impatient") and not namespace.pods("impatient")  # noqa: E731
    until(deleted, 60, "the earlier Jobs to be deleted", lambda: namespace.describe("impatient"))
    status = launcher.status("impatient")
    assert (status["state"], status["reason"]) == ("succeeded", "")
    launcher("up", spec, "--resume", "--detach")
    launcher("down", "impatient", "--now", "--delete-data", "--yes")
