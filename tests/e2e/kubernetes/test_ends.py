"""The end of a run stays known after its Jobs are deleted, and is known from the moment of their deletion."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.cluster import Namespace, stand_in_spec, until
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher, remaining_objects, through_relay
from tests.e2e.kubernetes.starting import WAIT_FOR_RELEASE, program, release

pytestmark = pytest.mark.kubernetes


def jobs(namespace: Namespace, run: str) -> list[str]:
    return [job["metadata"]["name"] for job in namespace.objects("Job", run)]


def recorded_end(namespace: Namespace, run: str) -> dict[str, Any] | None:
    """Return the final status in the run's record, or None."""
    record = json.loads(namespace.kubectl("get", "configmap", f"{run}-record", "-o", "json"))
    status = record["data"].get("status.json")
    return None if status is None else dict(json.loads(status))


def test_status_shows_the_end_of_a_run_whose_jobs_have_expired(launcher: Launcher, image: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}}\n"
    options = "limits: {grace_period: 2s}\nkubernetes: {tensorboard: false, ttl: 2s}\n"
    failing = program("time.sleep(2 if role == 'worker' else 600); sys.exit(2)")
    file.write_text(f"version: 1\nname: failing\nimage: {image}\nsupervise: false\n{roles}{options}{failing}")
    launcher("up", str(file), code=1, timeout=TRAINING_TIMEOUT)
    # The failed Job is deleted; the others, which were suspended with the run, stay, and do not show the failure.
    others = ["failing-chief", "failing-ps"]
    until(
        lambda: jobs(launcher.namespace, "failing") == others, 60, "the failed Job to expire", lambda: jobs(launcher.namespace, "failing")
    )
    status = launcher.status("failing")
    assert status["state"] == "failed"
    # On a busy machine the Job may first be seen after its pods are deleted; then only the Job shows the reason, without an attempt.
    assert re.match("worker-0(, attempt 1)?: exit code 2", status["reason"]), status["reason"]
    launcher("wait", "failing", code=1)
    launcher("down", "failing")
    assert launcher.status("failing")["state"] == "failed"
    launcher("down", "failing", "--delete-data", "--yes")


def test_status_shows_the_end_of_an_unwatched_run_whose_jobs_have_expired(launcher: Launcher, image: str, tmp_path: Path) -> None:
    def expire(name: str, fields: str) -> str:
        file = tmp_path / f"{name}.yaml"
        file.write_text(f"version: 1\nname: {name}\nimage: {image}\nkubernetes: {{tensorboard: false, ttl: 2s}}\n{fields}")
        output = launcher("up", str(file), "--detach")
        until(lambda: jobs(launcher.namespace, name) == [], 180, "the Job to expire", lambda: launcher.namespace.describe(name))
        return output

    # The trainer has written its end to the volume, which is read once.
    assert "read from its volume" in expire("trained", stand_in_spec(steps=20, step_seconds=0.05))
    assert {run["name"]: run["state"] for run in json.loads(launcher("ls", "--json"))} == {"trained": "unknown"}
    assert "trained succeeded" in launcher("wait", "trained")
    assert (recorded_end(launcher.namespace, "trained") or {})["step"] == 20
    assert "is complete at step 20" in launcher("up", str(tmp_path / "trained.yaml"))
    launcher("down", "trained", "--delete-data", "--yes")

    # Without a volume, the events of a program's Jobs show its end while there are any.
    assert "its result is lost unless" in expire("program", f"supervise: false\n{program('sys.exit(0)')}")
    launcher("wait", "program")
    launcher("down", "program", "--delete-data", "--yes")
    expire("program", f"supervise: false\n{program('sys.exit(2)')}")
    assert "with exit code 2" in launcher("wait", "program", code=1)
    launcher("down", "program", "--delete-data", "--yes")
    expire("program", f"supervise: false\n{program('sys.exit(0)')}")
    launcher.namespace.kubectl("delete", "events", "--all")
    assert "has ended; its result is not known" in launcher("wait", "program", code=3)
    assert launcher.status("program")["state"] == "unknown"
    launcher("down", "program", "--delete-data", "--yes")


def test_deleted_objects_of_a_run_are_named_with_the_command_that_restores_them(launcher: Launcher, image: str, tmp_path: Path) -> None:
    namespace, file = launcher.namespace, tmp_path / "spec.yaml"
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}}\n"
    options = "limits: {grace_period: 1s}\nkubernetes: {tensorboard: false}\n"
    file.write_text(f"version: 1\nname: plucked\nimage: {image}\nsupervise: false\n{roles}{options}{program('time.sleep(3600)')}")
    launcher("up", str(file), "--detach")
    until(lambda: len(namespace.pods("plucked")) == 3, 60, "its pods to be created", lambda: namespace.describe("plucked"))
    assert launcher.status("plucked")["missing"] == []

    namespace.kubectl("label", "job", "plucked-ps", "app.kubernetes.io/instance-")
    status = launcher.status("plucked")
    assert (status["state"], status["missing"]) == ("pending", ["job/plucked-ps"])
    namespace.kubectl(*status["reason"].partition("kubectl ")[2].split())
    assert launcher.status("plucked")["missing"] == []

    namespace.kubectl("label", "job", "plucked-ps", "app.kubernetes.io/instance-")
    (addresses,) = [name for name in namespace.kubectl("get", "configmaps", "-o", "name").split() if "/plucked-cluster-" in name]
    namespace.kubectl("delete", "service/plucked", addresses, "job/plucked-worker")
    status = launcher.status("plucked")
    assert sorted(status["missing"]) == [addresses, "job/plucked-ps", "job/plucked-worker", "service/plucked"]
    assert {task["name"]: task["state"] for task in status["tasks"]}["worker-0"] == "stopped"
    launcher("down", "plucked", "--delete-data", "--yes")
    assert "plucked" not in namespace.kubectl("get", "jobs,pods,configmaps,services", "-o", "name")


def test_the_next_start_deletes_an_ended_runs_tensorboard_and_down_finished_deletes_all_ended_runs(
    launcher: Launcher, image: str, tmp_path: Path
) -> None:
    file = tmp_path / "spec.yaml"
    for name in ("first", "second"):
        options = "storage: {}\nkubernetes: {tensorboard_ttl: 1s}\n"
        file.write_text(f"version: 1\nname: {name}\nimage: {image}\nsupervise: false\n{options}{program('sys.exit(0)')}")
        launcher("up", str(file), timeout=TRAINING_TIMEOUT)
        assert f"deployment.apps/{name}-tensorboard" in launcher.namespace.kubectl("get", "deployments", "-o", "name")
    objects = launcher.namespace.kubectl("get", "deployments,services,networkpolicies", "-o", "name").split()
    assert [name for name in objects if "tensorboard" in name] == [
        "deployment.apps/second-tensorboard",
        "service/second-tensorboard",
        "networkpolicy.networking.k8s.io/second-tensorboard",
    ]
    assert launcher.status("first")["state"] == "succeeded"
    assert "no finished run older than 1h left anything" in launcher("down", "--finished", "--older", "1h")
    output = launcher("down", "--finished", "--delete-data", "--yes")
    assert "first (succeeded): removed 1 Job, " in output
    assert "second (succeeded): removed 1 Job, 1 Deployment, " in output
    assert remaining_objects(launcher.namespace) == []


def test_cached_output_is_shown_after_the_jobs_were_deleted(launcher: Launcher, image: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {replicas: 2}}\n"
    file.write_text(
        f"version: 1\nname: robbed\nimage: {image}\nsupervise: false\n{roles}kubernetes: {{tensorboard: false}}\n"
        + program("print('words', role)")
    )
    launcher("up", str(file), "--detach")
    assert "words chief" in launcher("logs", "--follow", "robbed")
    launcher.namespace.kubectl("delete", "jobs", "-l", "app.kubernetes.io/instance=robbed")
    until(lambda: not launcher.namespace.pods("robbed"), 60, "its pods to be deleted", lambda: launcher.namespace.describe("robbed"))
    status = launcher.status("robbed")
    assert (status["state"], status["reason"]) == ("stopped", "its Jobs were deleted; `up` resumes from its last checkpoint")
    assert [task["name"] for task in status["tasks"]] == ["chief", "worker-0", "worker-1", "ps-0"]
    assert {task["state"] for task in status["tasks"]} == {"stopped"}
    assert "words chief" in launcher("logs", "robbed")
    assert launcher("logs", "robbed", "--role", "worker", "--index", "1").count("words worker") == 1
    launcher("down", "robbed", "--delete-data", "--yes")


def test_status_shows_a_run_as_being_stopped_and_then_as_stopped(launcher: Launcher, image: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(
        f"version: 1\nname: slow\nimage: {image}\nsupervise: false\nlimits: {{grace_period: 100s}}\nkubernetes: {{tensorboard: false}}\n"
        + program(f"import signal; {WAIT_FOR_RELEASE}signal.signal(signal.SIGTERM, lambda *_: (wait(), sys.exit(143))); time.sleep(3600)")
    )
    launcher("up", str(file), "--detach")
    until(lambda: launcher.namespace.is_running("slow"), 120, "its start", lambda: launcher.namespace.describe("slow"))
    stopping = launcher.start("down", "slow")
    try:
        until(lambda: jobs(launcher.namespace, "slow") == [], 60, "the deletion of the Job", lambda: launcher.namespace.describe("slow"))
        # Its pod still saves: another watcher sees that, and no end is recorded yet.
        assert recorded_end(launcher.namespace, "slow") is None
        status = launcher.status("slow")
        assert (status["state"], status["reason"]) == ("running", "it is being stopped")
        assert [(task["name"], task["reason"]) for task in status["tasks"]] == [("chief", "is being stopped")]
        release(launcher.namespace, "slow")
        assert stopping.wait(60) == 0
    finally:
        stopping.kill()
        stopping.communicate()
    status = launcher.status("slow")
    assert (status["state"], status["reason"]) == ("stopped", "asked to stop")
    assert (recorded_end(launcher.namespace, "slow") or {})["state"] == "stopped"
    launcher("down", "slow", "--delete-data", "--yes")


def test_a_down_that_is_killed_before_it_stops_a_job_stops_nothing(launcher: Launcher, image: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(
        f"version: 1\nname: spared\nimage: {image}\nsupervise: false\nkubernetes: {{tensorboard: false}}\n"
        + program(f"{WAIT_FOR_RELEASE}wait()")
    )
    launcher("up", str(file), "--detach")
    until(lambda: launcher.namespace.is_running("spared"), 120, "its start", lambda: launcher.namespace.describe("spared"))
    slow_launcher, relay = through_relay(launcher, tmp_path)
    relay.delay = 2.0  # longer than it takes to see that it has begun
    stopping = slow_launcher.start("down", "spared")
    try:
        record = ("get", "configmap", "spared-record", "-o", "yaml")
        until(
            lambda: "stopping.json" in launcher.namespace.kubectl(*record),
            60,
            "the end to begin",
            lambda: launcher.namespace.kubectl(*record),
        )
    finally:
        stopping.kill()
        stopping.communicate()
        relay.down()  # its last request is on its way
    assert jobs(launcher.namespace, "spared") == ["spared-chief"]
    assert launcher.status("spared")["state"] == "running"
    release(launcher.namespace, "spared")
    assert "succeeded" in launcher("wait", "spared")
    launcher("down", "spared")  # deletes its Jobs, which showed its end
    assert launcher.status("spared")["state"] == "succeeded"
    launcher("down", "spared", "--delete-data", "--yes")
