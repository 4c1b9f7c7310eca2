"""Starting a run despite another start of it, a stop, an API server that becomes unavailable, or the end of the launcher."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from launcher.backend.kubernetes import run_record
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import TransientError
from launcher.plan.spec_file import plan_file
from launcher.render.kubernetes import manifests
from launcher.render.targets import RenderSource
from tests.e2e.kubernetes.cluster import Namespace, until
from tests.e2e.kubernetes.launching import Launcher, output_at_end, remaining_objects, through_relay
from tests.e2e.kubernetes.starting import deletion_blocked, write

pytestmark = [pytest.mark.kubernetes, pytest.mark.takes_minutes]


def deadlines(launcher: Launcher, run: str) -> set[int | None]:
    return {job["spec"].get("activeDeadlineSeconds") for job in launcher.namespace.objects("Job", run)}


def first_exit(processes: dict[int, subprocess.Popen[str]]) -> int:
    """Return which process ends first."""

    def ended() -> list[int]:
        return [number for number, process in processes.items() if process.poll() is not None]

    def outputs() -> list[str]:
        for process in processes.values():
            process.kill()
        return [process.communicate()[0] for process in processes.values()]

    until(lambda: ended() != [], 120, "one of the two to end", outputs)
    return ended()[0]


@pytest.mark.parametrize("option", ["--resume", "--fresh"])
def test_of_two_simultaneous_starts_one_succeeds_and_the_other_changes_nothing(
    option: str, launcher: Launcher, image: str, tmp_path: Path
) -> None:
    name = f"twice{option[1:]}"
    options = "kubernetes: {tensorboard: false}\n"
    command = "command: [sh, -c, 'mkdir -p $RUN_DIR && touch $RUN_DIR/first']\n"
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"version: 1\nname: {name}\nimage: {image}\nsupervise: false\nstorage: {{}}\n{command}{options}")
    launcher("up", str(spec))
    write(spec, name, image, options)
    ups, relays = {}, []
    with deletion_blocked(launcher.namespace, name):
        for hours in (1, 2):
            # So slow that each has read the cluster's state before the other one has begun.
            machine, relay = through_relay(dataclasses.replace(launcher, runs=tmp_path / f"runs-{hours}"), tmp_path)
            relay.delay = 0.7
            relays.append(relay)
            ups[hours] = machine.start("up", str(spec), "--detach", option, "--set", f"limits.deadline={hours}h")
        loser = first_exit(ups)
        for relay in relays:
            relay.resume()
        output = output_at_end(ups[loser], 30)
        # It had found the run free; meanwhile the other one had begun, which waits for the deletion of the old Jobs.
        assert "another `launcher up` is starting" in output or "is being started by" in output
        assert ups[loser].returncode == 2
        assert ups[3 - loser].poll() is None
        # A later start moves nothing, either.
        third = dataclasses.replace(launcher, runs=tmp_path / "runs-3")
        assert "is being started by `launcher up` on" in third("up", str(spec), "--detach", "--fresh", code=2)
    winner_output = output_at_end(ups[3 - loser], 120)
    assert ups[3 - loser].returncode == 0, winner_output
    assert deadlines(launcher, name) == {(3 - loser) * 3600}
    record = json.loads(launcher.namespace.kubectl("get", "configmap", f"{name}-record", "-o", "json"))
    assert json.loads(record["data"]["spec.json"])["limits"]["deadline"] == f"{3 - loser}h"
    assert "annotations" not in record["metadata"]  # no launcher starts it any more
    until(lambda: launcher.namespace.is_running(name), 120, "its start", lambda: launcher.namespace.describe(name))
    # The first run's data was moved once, or not at all.
    moved = sorted(launcher.namespace.kubectl("exec", f"job/{name}-chief", "--", "find", "/runs", "-name", "first").split())
    assert len(moved) == 1
    assert (moved[0] == f"/runs/{name}/first") == (option == "--resume")
    launcher("down", name, "--now", "--delete-data", "--yes")


ROLES = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}}\nkubernetes: {tensorboard: false}\n"


def await_job(launcher: Launcher, job: str, up: subprocess.Popen[str]) -> None:
    """Wait until a start has created a Job."""
    until(
        lambda: launcher.namespace.kubectl("get", "job", job, "--ignore-not-found", "-o", "name") != "",
        60,
        f"the Job {job}",
        lambda: f"{up.poll()}",
    )


def test_a_run_that_is_stopped_while_it_is_started_stays_stopped(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = write(tmp_path / "spec.yaml", "halted", image, ROLES)
    slow_launcher, relay = through_relay(launcher, tmp_path)
    relay.delay = 0.3
    up = slow_launcher.start("up", spec, "--detach")
    try:
        await_job(launcher, "halted-chief", up)
        relay.hold()
        launcher("down", "halted")
        relay.resume()
        output = output_at_end(up, 120)
    finally:
        up.kill()
    assert up.returncode == 1, output
    assert "halted in " in output
    assert "was stopped while it was being started" in output
    assert remaining_objects(launcher.namespace) == ["halted", "halted-record"]
    assert launcher.namespace.pods("halted") == []
    status = launcher.status("halted")
    assert (status["state"], status["reason"]) == ("stopped", "asked to stop")
    launcher("down", "halted", "--delete-data", "--yes")


def test_a_start_that_was_overtaken_changes_nothing_of_the_later_one(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = write(tmp_path / "spec.yaml", "late", image, ROLES)
    slow_launcher, relay = through_relay(dataclasses.replace(launcher, runs=tmp_path / "runs"), tmp_path)
    relay.delay = 0.3
    up = slow_launcher.start("up", spec, "--detach")
    try:
        await_job(launcher, "late-chief", up)
        relay.hold()
        launcher("down", "late", "--now")
        launcher("up", spec, "--detach", "--resume", "--set", "limits.deadline=2h")
        before = owned(launcher.namespace, "late")
        assert up.poll() is None
        relay.resume()
        output = output_at_end(up, 120)
    finally:
        up.kill()
    assert up.returncode == 1, output
    assert "was stopped while it was being started" in output
    assert owned(launcher.namespace, "late") == before
    until(lambda: launcher.namespace.is_running("late"), 120, "its start", lambda: launcher.namespace.describe("late"))
    assert deadlines(launcher, "late") == {7200}
    launcher("down", "late", "--now", "--delete-data", "--yes")


def owned(namespace: Namespace, run: str) -> dict[str, str]:
    """Return the uid of each object that a start creates."""
    kinds = ("Job", "Service", "NetworkPolicy", "ConfigMap", "PersistentVolumeClaim")
    return {f"{kind}/{item['metadata']['name']}": item["metadata"]["uid"] for kind in kinds for item in namespace.objects(kind, run)}


@pytest.mark.parametrize("job", ["chief", "ps"])  # the first that is created, and the last
def test_up_continues_after_the_api_server_was_unavailable_during_its_start(
    job: str, launcher: Launcher, image: str, tmp_path: Path
) -> None:
    name = f"cut-{job}"
    slow_launcher, relay = through_relay(launcher, tmp_path)
    file = tmp_path / "spec.yaml"
    file.write_text(f"version: 1\nname: {name}\nimage: {image}\nsupervise: false\ncommand: [python, -c, \"print('last words')\"]\n{ROLES}")
    relay.delay = 0.3
    up = slow_launcher.start("up", str(file))
    try:
        await_job(launcher, f"{name}-{job}", up)
        relay.refuse()
        # Two of them are one request, which the client repeats by itself.
        until(lambda: relay.refused > 5 or up.poll() is not None, 60, "several refused requests", lambda: relay.refused)
        relay.down()
        assert up.poll() is None
        relay.delay = 0.0
        relay.up()
        output = output_at_end(up, 120)
    finally:
        up.kill()
    assert up.returncode == 0, output
    assert "last words" in output
    assert f"{name} succeeded" in output
    launcher("down", name, "--delete-data", "--yes")


def test_a_run_whose_launcher_was_killed_during_the_start_is_found(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = write(tmp_path / "spec.yaml", "orphan", image, ROLES)
    slow_launcher, relay = through_relay(launcher, tmp_path)
    relay.delay = 0.3
    up = slow_launcher.start("up", spec)
    try:
        await_job(launcher, "orphan-chief", up)
    finally:
        up.kill()
        up.communicate()
    anywhere = dataclasses.replace(launcher, names_namespace=False)
    assert launcher.namespace.name in anywhere.status("orphan")["run_dir"]
    anywhere("down", "orphan", "--now", "--delete-data", "--yes")
    assert remaining_objects(launcher.namespace) == []


def test_a_start_that_loses_the_response_to_its_lease_still_gets_the_lease(
    launcher: Launcher, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, plan = plan_file(Path(write(tmp_path / "spec.yaml", "unheard", image, "")), [], "kubernetes", tmp_path)
    run = manifests.run_of(RenderSource(spec, plan, tmp_path))
    slow_launcher, relay = through_relay(launcher, tmp_path)
    monkeypatch.setenv("KUBECONFIG", slow_launcher.env["KUBECONFIG"])
    cluster = Cluster(namespace=launcher.namespace.name)
    # The first lease is created, a request that the client does not repeat by itself; the second lease replaces the first.
    lease = run_record.new_lease(cluster, run, cluster.get("ConfigMap", "unheard-record"), None)
    relay.lose_response()
    with pytest.raises(TransientError):
        run_record.acquire(cluster, run, lease)
    assert run_record.acquire(cluster, run, lease)
    before = cluster.get("ConfigMap", "unheard-record")
    lease, late = (run_record.new_lease(cluster, run, before, None) for _ in range(2))
    relay.lose_response()
    assert run_record.acquire(cluster, run, lease)
    assert run_record.is_held(cluster, lease)
    assert not run_record.acquire(cluster, run, late)
    run_record.undo(cluster, lease)
    launcher.namespace.kubectl("delete", "configmap", "unheard-record")
