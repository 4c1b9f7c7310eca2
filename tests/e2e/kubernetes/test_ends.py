"""How a run has ended is still known when its Jobs are gone, and from the moment when they go."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.cluster import Namespace, stand_in_spec, until
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher, left, through_relay
from tests.e2e.kubernetes.starting import WAIT_FOR_RELEASE, program, release

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1440)]


def jobs(namespace: Namespace, run: str) -> list[str]:
    return [job["metadata"]["name"] for job in namespace.objects("Job", run)]


def noted(namespace: Namespace, run: str) -> dict[str, Any] | None:
    """Return how the run's record says that it has ended, or None."""
    record = json.loads(namespace.kubectl("get", "configmap", f"{run}-record", "-o", "json"))
    status = record["data"].get("status.json")
    return None if status is None else dict(json.loads(status))


def test_a_run_whose_jobs_have_expired_is_told_as_it_ended(launcher: Launcher, image: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}}\n"
    options = "limits: {grace_period: 2s}\nkubernetes: {tensorboard: false, ttl: 2s}\n"
    failing = program("time.sleep(2 if role == 'worker' else 600); sys.exit(2)")
    file.write_text(f"version: 1\nname: failing\nimage: {image}\nsupervise: false\n{roles}{options}{failing}")
    launcher("up", str(file), code=1, timeout=TRAINING_TIMEOUT)
    # The failed Job goes; the others, which were suspended with the run, stay, and know nothing of it.
    others = ["failing-chief", "failing-ps"]
    until(
        lambda: jobs(launcher.namespace, "failing") == others, 60, "the failed Job to expire", lambda: jobs(launcher.namespace, "failing")
    )
    told = launcher.status("failing")
    assert told["state"] == "failed"
    # On a busy machine the Job may first be seen when its pods have gone; then the Job alone tells, and knows of no attempt.
    assert re.match("worker-0(, attempt 1)?: exit code 2", told["reason"]), told["reason"]
    launcher("wait", "failing", code=1)
    launcher("down", "failing")
    assert launcher.status("failing")["state"] == "failed"
    launcher("down", "failing", "--delete-data", "--yes")


def test_a_run_whose_jobs_have_expired_while_nobody_watched_is_told_as_it_ended(launcher: Launcher, image: str, tmp_path: Path) -> None:
    def expire(name: str, rest: str) -> str:
        file = tmp_path / f"{name}.yaml"
        file.write_text(f"version: 1\nname: {name}\nimage: {image}\nkubernetes: {{tensorboard: false, ttl: 2s}}\n{rest}")
        said = launcher("up", str(file), "--detach")
        until(lambda: jobs(launcher.namespace, name) == [], 180, "the Job to expire", lambda: launcher.namespace.describe(name))
        return said

    # The trainer has written it to the volume: it is read once.
    assert "read from its volume" in expire("alone", stand_in_spec(steps=20, step_seconds=0.05))
    assert {one["name"]: one["state"] for one in json.loads(launcher("ls", "--json"))} == {"alone": "unknown"}
    assert "alone succeeded" in launcher("wait", "alone")
    assert (noted(launcher.namespace, "alone") or {})["step"] == 20
    assert "is complete at step 20" in launcher("up", str(tmp_path / "alone.yaml"))
    launcher("down", "alone", "--delete-data", "--yes")

    # A program's Jobs' events tell it while there are any, without a volume.
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


def test_what_somebody_has_deleted_of_a_run_is_named_with_what_restores_it(launcher: Launcher, image: str, tmp_path: Path) -> None:
    namespace, file = launcher.namespace, tmp_path / "spec.yaml"
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}}\n"
    options = "limits: {grace_period: 1s}\nkubernetes: {tensorboard: false}\n"
    file.write_text(f"version: 1\nname: plucked\nimage: {image}\nsupervise: false\n{roles}{options}{program('time.sleep(600)')}")
    launcher("up", str(file), "--detach")
    until(lambda: len(namespace.pods("plucked")) == 3, 60, "its pods to be made", lambda: namespace.describe("plucked"))
    assert launcher.status("plucked")["missing"] == []

    namespace.kubectl("label", "job", "plucked-ps", "app.kubernetes.io/instance-")
    told = launcher.status("plucked")
    assert (told["state"], told["missing"]) == ("pending", ["job/plucked-ps"])
    namespace.kubectl(*told["reason"].partition("kubectl ")[2].split())
    assert launcher.status("plucked")["missing"] == []

    namespace.kubectl("label", "job", "plucked-ps", "app.kubernetes.io/instance-")
    (addresses,) = [name for name in namespace.kubectl("get", "configmaps", "-o", "name").split() if "/plucked-cluster-" in name]
    namespace.kubectl("delete", "service/plucked", addresses, "job/plucked-worker")
    told = launcher.status("plucked")
    assert sorted(told["missing"]) == [addresses, "job/plucked-ps", "job/plucked-worker", "service/plucked"]
    assert {task["name"]: task["state"] for task in told["tasks"]}["worker-0"] == "stopped"
    launcher("down", "plucked", "--delete-data", "--yes")
    assert "plucked" not in namespace.kubectl("get", "jobs,pods,configmaps,services", "-o", "name")


def test_tensorboard_of_a_run_that_ended_goes_with_the_next_start_and_all_that_ended_at_once(
    launcher: Launcher, image: str, tmp_path: Path
) -> None:
    file = tmp_path / "spec.yaml"
    for name in ("first", "second"):
        options = "storage: {}\nkubernetes: {tensorboard_ttl: 1s}\n"
        file.write_text(f"version: 1\nname: {name}\nimage: {image}\nsupervise: false\n{options}{program('sys.exit(0)')}")
        launcher("up", str(file), timeout=TRAINING_TIMEOUT)
        assert f"deployment.apps/{name}-tensorboard" in launcher.namespace.kubectl("get", "deployments", "-o", "name")
    there = launcher.namespace.kubectl("get", "deployments,services,networkpolicies", "-o", "name").split()
    assert [one for one in there if "tensorboard" in one] == [
        "deployment.apps/second-tensorboard",
        "service/second-tensorboard",
        "networkpolicy.networking.k8s.io/second-tensorboard",
    ]
    assert launcher.status("first")["state"] == "succeeded"
    assert "no finished run older than 1h left anything" in launcher("down", "--finished", "--older", "1h")
    told = launcher("down", "--finished", "--delete-data", "--yes")
    assert "first (succeeded): removed 1 Job, " in told
    assert "second (succeeded): removed 1 Job, 1 Deployment, " in told
    assert left(launcher.namespace) == []


def test_output_that_was_kept_is_shown_after_somebody_has_deleted_the_jobs(launcher: Launcher, image: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {replicas: 2}}\n"
    file.write_text(
        f"version: 1\nname: robbed\nimage: {image}\nsupervise: false\n{roles}kubernetes: {{tensorboard: false}}\n"
        + program("print('words', role)")
    )
    launcher("up", str(file), "--detach")
    assert "words chief" in launcher("logs", "--follow", "robbed")
    launcher.namespace.kubectl("delete", "jobs", "-l", "app.kubernetes.io/instance=robbed")
    until(lambda: not launcher.namespace.pods("robbed"), 60, "its pods to go", lambda: launcher.namespace.describe("robbed"))
    told = launcher.status("robbed")
    assert (told["state"], told["reason"]) == ("stopped", "its Jobs were deleted; `up` resumes from its last checkpoint")
    assert [task["name"] for task in told["tasks"]] == ["chief", "worker-0", "worker-1", "ps-0"]
    assert {task["state"] for task in told["tasks"]} == {"stopped"}
    assert "words chief" in launcher("logs", "robbed")
    assert launcher("logs", "robbed", "--role", "worker", "--index", "1").count("words worker") == 1
    launcher("down", "robbed", "--delete-data", "--yes")


def test_a_run_that_is_being_stopped_is_told_so_and_as_stopped_once_it_is(launcher: Launcher, image: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(
        f"version: 1\nname: slow\nimage: {image}\nsupervise: false\nlimits: {{grace_period: 100s}}\nkubernetes: {{tensorboard: false}}\n"
        + program(f"import signal; {WAIT_FOR_RELEASE}signal.signal(signal.SIGTERM, lambda *_: (wait(), sys.exit(143))); time.sleep(600)")
    )
    launcher("up", str(file), "--detach")
    until(lambda: launcher.namespace.runs("slow"), 120, "its start", lambda: launcher.namespace.describe("slow"))
    stopping = launcher.start("down", "slow")
    try:
        until(lambda: jobs(launcher.namespace, "slow") == [], 60, "the Job to go", lambda: launcher.namespace.describe("slow"))
        # Its pod still saves: another watcher is told so, and nothing else is noted before it is so.
        assert noted(launcher.namespace, "slow") is None
        told = launcher.status("slow")
        assert (told["state"], told["reason"]) == ("running", "it is being stopped")
        assert [(task["name"], task["reason"]) for task in told["tasks"]] == [("chief", "is being stopped")]
        release(launcher.namespace, "slow")
        assert stopping.wait(60) == 0
    finally:
        stopping.kill()
        stopping.communicate()
    told = launcher.status("slow")
    assert (told["state"], told["reason"]) == ("stopped", "asked to stop")
    assert (noted(launcher.namespace, "slow") or {})["state"] == "stopped"
    launcher("down", "slow", "--delete-data", "--yes")


def test_a_down_that_was_killed_before_it_stopped_anything_has_stopped_nothing(launcher: Launcher, image: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(
        f"version: 1\nname: spared\nimage: {image}\nsupervise: false\nkubernetes: {{tensorboard: false}}\n"
        + program(f"{WAIT_FOR_RELEASE}wait()")
    )
    launcher("up", str(file), "--detach")
    until(lambda: launcher.namespace.runs("spared"), 120, "its start", lambda: launcher.namespace.describe("spared"))
    far, relay = through_relay(launcher, tmp_path)
    relay.slow = 2.0  # longer than it takes to see that it has begun
    stopping = far.start("down", "spared")
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
        relay.down()  # what it asked for last is on its way
    assert jobs(launcher.namespace, "spared") == ["spared-chief"]
    assert launcher.status("spared")["state"] == "running"
    release(launcher.namespace, "spared")
    assert "succeeded" in launcher("wait", "spared")
    launcher("down", "spared")  # its Jobs, which told how it ended
    assert launcher.status("spared")["state"] == "succeeded"
    launcher("down", "spared", "--delete-data", "--yes")
