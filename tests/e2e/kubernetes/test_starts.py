"""Starting a run where something is in the way: another start of it, a stop, an API server that goes away, the end of the launcher."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from launcher.backend.kubernetes import run_record
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import UnreachableError
from launcher.cli.planning import plan_file
from launcher.render.kubernetes import manifests
from launcher.render.targets import Source
from tests.e2e.kubernetes.cluster import Namespace, until
from tests.e2e.kubernetes.launching import Launcher, left, output_at_end, through_relay
from tests.e2e.kubernetes.starting import deletion_blocked, write

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1440), pytest.mark.takes_minutes]


def deadlines(launcher: Launcher, run: str) -> set[int | None]:
    return {job["spec"].get("activeDeadlineSeconds") for job in launcher.namespace.objects("Job", run)}


def first_exit(processes: dict[int, subprocess.Popen[str]]) -> int:
    """Return which process ends first."""

    def ended() -> list[int]:
        return [number for number, process in processes.items() if process.poll() is not None]

    def said() -> list[str]:
        for process in processes.values():
            process.kill()
        return [process.communicate()[0] for process in processes.values()]

    until(lambda: ended() != [], 120, "one of the two to end", said)
    return ended()[0]


@pytest.mark.parametrize("how", ["--resume", "--fresh"])
def test_of_two_that_start_a_run_at_once_one_gets_it_and_the_other_changes_nothing(
    how: str, launcher: Launcher, image: str, tmp_path: Path
) -> None:
    name = f"twice{how[1:]}"
    rest = "kubernetes: {tensorboard: false}\n"
    done = "command: [sh, -c, 'mkdir -p $RUN_DIR && touch $RUN_DIR/first']\n"
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"version: 1\nname: {name}\nimage: {image}\nsupervise: false\nstorage: {{}}\n{done}{rest}")
    launcher("up", str(spec))
    write(spec, name, image, rest)
    ups, relays = {}, []
    with deletion_blocked(launcher.namespace, name):
        for hours in (1, 2):
            # So slow that each has looked at what is there before the other one has begun.
            machine, relay = through_relay(dataclasses.replace(launcher, runs=tmp_path / f"runs-{hours}"), tmp_path)
            relay.slow = 0.7
            relays.append(relay)
            ups[hours] = machine.start("up", str(spec), "--detach", how, "--set", f"limits.deadline={hours}h")
        second = first_exit(ups)
        for relay in relays:
            relay.go()
        said = output_at_end(ups[second], 30)
        # It had found the run free, and while it did its part the other one, which cannot go on before the old Jobs are gone, was at it.
        assert "another `launcher up` is starting" in said or "is being started by" in said
        assert ups[second].returncode == 2
        assert ups[3 - second].poll() is None
        # Nor does one that comes later move anything.
        third = dataclasses.replace(launcher, runs=tmp_path / "runs-3")
        assert "is being started by `launcher up` on" in third("up", str(spec), "--detach", "--fresh", code=2)
    winner = output_at_end(ups[3 - second], 120)
    assert ups[3 - second].returncode == 0, winner
    assert deadlines(launcher, name) == {(3 - second) * 3600}
    record = json.loads(launcher.namespace.kubectl("get", "configmap", f"{name}-record", "-o", "json"))
    assert json.loads(record["data"]["spec.json"])["limits"]["deadline"] == f"{3 - second}h"
    assert "annotations" not in record["metadata"]  # nobody starts it any more
    until(lambda: launcher.namespace.runs(name), 120, "its start", lambda: launcher.namespace.describe(name))
    # The first run's data was moved once, or not at all.
    where = sorted(launcher.namespace.kubectl("exec", f"job/{name}-chief", "--", "find", "/runs", "-name", "first").split())
    assert len(where) == 1
    assert (where[0] == f"/runs/{name}/first") == (how == "--resume")
    launcher("down", name, "--now", "--delete-data", "--yes")


ROLES = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}}\nkubernetes: {tensorboard: false}\n"


def await_job(launcher: Launcher, job: str, up: subprocess.Popen[str]) -> None:
    """Wait until a start has made a Job."""
    until(
        lambda: launcher.namespace.kubectl("get", "job", job, "--ignore-not-found", "-o", "name") != "",
        60,
        f"the Job {job}",
        lambda: f"{up.poll()}",
    )


def test_a_run_that_is_stopped_while_it_is_started_stays_stopped(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = write(tmp_path / "spec.yaml", "halted", image, ROLES)
    far, relay = through_relay(launcher, tmp_path)
    relay.slow = 0.3
    up = far.start("up", spec, "--detach")
    try:
        await_job(launcher, "halted-chief", up)
        relay.hold()
        launcher("down", "halted")
        relay.go()
        written = output_at_end(up, 120)
    finally:
        up.kill()
    assert up.returncode == 1, written
    assert "halted in " in written
    assert "was stopped while it was being started" in written
    assert left(launcher.namespace) == ["halted", "halted-record"]
    assert launcher.namespace.pods("halted") == []
    told = launcher.status("halted")
    assert (told["state"], told["reason"]) == ("stopped", "asked to stop")
    launcher("down", "halted", "--delete-data", "--yes")


def test_a_start_that_is_too_late_touches_nothing_of_the_one_that_came_after_it(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = write(tmp_path / "spec.yaml", "late", image, ROLES)
    far, relay = through_relay(dataclasses.replace(launcher, runs=tmp_path / "runs"), tmp_path)
    relay.slow = 0.3
    up = far.start("up", spec, "--detach")
    try:
        await_job(launcher, "late-chief", up)
        relay.hold()
        launcher("down", "late", "--now")
        launcher("up", spec, "--detach", "--resume", "--set", "limits.deadline=2h")
        before = owned(launcher.namespace, "late")
        assert up.poll() is None
        relay.go()
        written = output_at_end(up, 120)
    finally:
        up.kill()
    assert up.returncode == 1, written
    assert "was stopped while it was being started" in written
    assert owned(launcher.namespace, "late") == before
    until(lambda: launcher.namespace.runs("late"), 120, "its start", lambda: launcher.namespace.describe("late"))
    assert deadlines(launcher, "late") == {7200}
    launcher("down", "late", "--now", "--delete-data", "--yes")


def owned(namespace: Namespace, run: str) -> dict[str, str]:
    """Return the uid of each object that a start makes."""
    kinds = ("Job", "Service", "NetworkPolicy", "ConfigMap", "PersistentVolumeClaim")
    return {f"{kind}/{one['metadata']['name']}": one["metadata"]["uid"] for kind in kinds for one in namespace.objects(kind, run)}


@pytest.mark.parametrize("job", ["chief", "ps"])  # the first that is made, and the last
def test_up_goes_on_when_the_api_server_goes_away_while_it_applies(job: str, launcher: Launcher, image: str, tmp_path: Path) -> None:
    name = f"cut-{job}"
    far, relay = through_relay(launcher, tmp_path)
    file = tmp_path / "spec.yaml"
    file.write_text(f"version: 1\nname: {name}\nimage: {image}\nsupervise: false\ncommand: [python, -c, \"print('last words')\"]\n{ROLES}")
    relay.slow = 0.3
    up = far.start("up", str(file))
    try:
        await_job(launcher, f"{name}-{job}", up)
        relay.turn_away()
        # Two of them are one question, which the client asks again by itself.
        until(lambda: relay.turned_away > 5 or up.poll() is not None, 60, "it to ask in vain, several times", lambda: relay.turned_away)
        relay.down()
        assert up.poll() is None
        relay.slow = 0.0
        relay.up()
        written = output_at_end(up, 120)
    finally:
        up.kill()
    assert up.returncode == 0, written
    assert "last words" in written
    assert f"{name} succeeded" in written
    launcher("down", name, "--delete-data", "--yes")


def test_a_launcher_that_is_killed_while_it_applies_leaves_a_run_that_is_found(launcher: Launcher, image: str, tmp_path: Path) -> None:
    spec = write(tmp_path / "spec.yaml", "orphan", image, ROLES)
    far, relay = through_relay(launcher, tmp_path)
    relay.slow = 0.3
    up = far.start("up", spec)
    try:
        await_job(launcher, "orphan-chief", up)
    finally:
        up.kill()
        up.communicate()
    anywhere = dataclasses.replace(launcher, names_namespace=False)
    assert launcher.namespace.name in anywhere.status("orphan")["run_dir"]
    anywhere("down", "orphan", "--now", "--delete-data", "--yes")
    assert left(launcher.namespace) == []


def test_a_start_that_does_not_hear_that_it_has_marked_the_run_is_not_in_its_own_way(
    launcher: Launcher, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, plan = plan_file(Path(write(tmp_path / "spec.yaml", "unheard", image, "")), [], "kubernetes", tmp_path)
    run = manifests.run_of(Source(spec, plan, tmp_path))
    far, relay = through_relay(launcher, tmp_path)
    monkeypatch.setenv("KUBECONFIG", far.env["KUBECONFIG"])
    cluster = Cluster(namespace=launcher.namespace.name)
    # The first one is made, which the client does not try again by itself; the second one replaces it.
    lease = run_record.new_lease(cluster, run, cluster.get("ConfigMap", "unheard-record"), None)
    relay.lose()
    with pytest.raises(UnreachableError):
        run_record.acquire(cluster, run, lease)
    assert run_record.acquire(cluster, run, lease)
    before = cluster.get("ConfigMap", "unheard-record")
    lease, late = (run_record.new_lease(cluster, run, before, None) for _ in range(2))
    relay.lose()
    assert run_record.acquire(cluster, run, lease)
    assert run_record.is_held(cluster, lease)
    assert not run_record.acquire(cluster, run, late)
    run_record.undo(cluster, lease)
    launcher.namespace.kubectl("delete", "configmap", "unheard-record")
