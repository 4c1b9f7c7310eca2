"""A run of a user's program ends with its chief, whatever its other tasks do: with only Compose, and watched by the launcher."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.docker_cli import docker
from launcher.image_build.context import default_base_image
from launcher.render import labels
from tests.e2e.code.brought import KILLED_ONCE, PREPARES, RUNS_UNTIL_STOPPED, UNFINISHED
from tests.e2e.docker.running import ROOT, Run, cleaned, launch, objects_of, unique
from tests.processes import free_port

pytestmark = pytest.mark.docker

ROLES: dict[str, dict[str, int]] = {"chief": {}, "ps": {}, "worker": {}, "evaluator": {}}
# The code of every other task; the evaluator ignores SIGTERM.
SLEEPING = "signal.signal(15, signal.SIG_IGN if role == 'evaluator' else signal.SIG_DFL); time.sleep(3600)"


def program(leader: str, code: str) -> list[str]:
    """Return a command that runs code in the first task of one role, and sleeps for ten minutes in the other tasks."""
    head = "import json, os, signal, sys, time; task = json.loads(os.environ['TF_CONFIG'])['task']; role = task['type']; "
    return ["python", "-c", f"{head}is_leader = role == {leader!r} and not task['index']\nif is_leader: {code}\nelse: {SLEEPING}"]


def write(directory: Path, name: str, **fields: Any) -> Path:
    """Write the spec of a cluster of parameter servers."""
    limits = {"worker_grace": "1s", "evaluator_grace": "1s", "grace_period": "2s", "max_restarts": 0}
    spec = {"version": 1, "name": name, "strategy": "parameter_server", "limits": limits, "tensorboard": {"port": free_port()}, **fields}
    file = directory / "spec.yaml"
    file.write_text(yaml.safe_dump(spec))
    return file


def compose_for(file: Path) -> tuple[str, ...]:
    """Render a spec; return the arguments of a `docker compose` for it."""
    rendered = file.with_name("compose.yaml")
    render = [sys.executable, "-m", "launcher", "render", str(file), "--to", "compose", "--output", str(rendered)]
    subprocess.run(render, cwd=ROOT, check=True, timeout=60)
    return ("compose", "--file", str(rendered))


def codes(run: Run) -> dict[str, int | None]:
    """Return the exit code of every task's container; None where it runs."""
    states = {task: run.inspect(task)["State"] for task in run.tasks()}
    return {task: state["ExitCode"] if state["Status"] == "exited" else None for task, state in states.items()}


@pytest.mark.usefixtures("image")
def test_with_only_compose_all_containers_succeed_once_the_chief_has(tmp_path: Path) -> None:
    name = unique("ended")
    file = write(tmp_path, name, roles=ROLES, command=program("chief", "time.sleep(5)"))
    with cleaned(name, tmp_path / "runs") as run:
        docker(*compose_for(file), "up", "--detach", timeout=120)
        succeeded = dict.fromkeys(("chief", "ps-0", "worker-0", "evaluator"), 0)
        run.until("every container to end with exit code 0", lambda: codes(run) == succeeded, seen=lambda: codes(run))


@pytest.mark.usefixtures("image")
def test_with_only_compose_no_container_succeeds_if_the_chief_fails(tmp_path: Path) -> None:
    """The engine starts each of its containers three times more."""
    name = unique("failed")
    file = write(tmp_path, name, roles={"chief": {}, "ps": {}, "worker": {}}, command=program("chief", "time.sleep(2); sys.exit(1)"))
    with cleaned(name, tmp_path / "runs") as run:
        docker(*compose_for(file), "up", "--detach", timeout=120)
        failed = {"chief": 1, "ps-0": 75, "worker-0": 75}
        run.until("every container to end as failed", lambda: codes(run) == failed, 240, seen=lambda: codes(run))


@pytest.mark.usefixtures("image")
def test_a_run_without_a_chief_ends_with_its_first_worker_in_an_image_without_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An init container writes a file that the task reads; a sidecar runs beside each task and ends with it."""
    name = unique("led")
    monkeypatch.delenv("TOKEN", raising=False)
    (tmp_path / "team.env").write_text("TOKEN='hunter2'\n")
    env = {"TOKEN": {"secret": "team", "key": "token"}}
    code = f"print('found', os.environ['TOKEN'][::-1], open('/ready/token').read(), flush=True); {KILLED_ONCE}"
    roles = {"worker": {"replicas": 2}, "ps": {}}
    limits = {"worker_grace": "1s", "max_restarts": 1}
    mounts = [{"volume": "work", "mount_path": "/out"}]
    containers: dict[str, Any] = {
        "env_file": "team.env",
        "volumes": [{"name": "work", "mount_path": "/ready", "source": {"emptyDir": {}}, "read_only": True}],
        "init_containers": [{"name": "prepare", "command": ["python", "-c", PREPARES], "env": env, "mounts": mounts}],
        "sidecars": [{"name": "stay", "command": ["python", "-c", RUNS_UNTIL_STOPPED], "mounts": mounts}],
    }
    file = write(
        tmp_path, name, roles=roles, image=default_base_image(), limits=limits, env=env, command=program("worker", code), **containers
    )
    with cleaned(name, tmp_path / "runs") as run:
        run.launcher("up", str(file), timeout=240)
        status = run.status()
        assert status["state"] == "succeeded", json.dumps(status)
        assert {task["name"]: task["state"] for task in status["tasks"]} == dict.fromkeys(("worker-0", "worker-1", "ps-0"), "succeeded")
        assert [restart["exit_code"] for restart in status["tasks"][0]["restarts"]] == [137]
        assert UNFINISHED in run.launcher("logs", name, "--raw")
        assert "found 2retnuh prepared 2retnuh" in run.launcher("logs", name)
        sidecars = {task: run.inspect(f"{task}-stay")["State"] for task in ("worker-0", "worker-1", "ps-0")}
        assert {(state["Status"], state["ExitCode"]) for state in sidecars.values()} == {("exited", 0)}
        assert "it is over" in docker("logs", run.container("ps-0-stay"))
        assert not [file for file in run.runs.rglob("*") if file.is_file() and b"hunter2" in file.read_bytes()]
        # A run in such an image needs no volume.
        assert status["run_dir"] == ""
        assert objects_of(name)["volumes"] == []
        scratch = ("volume", "ls", "--quiet", "--filter", f"label={labels.SCRATCH}={name}")
        assert len(docker(*scratch).split()) == 3
        assert launch("get", name, "results", runs=run.runs).returncode == launch("tensorboard", name, runs=run.runs).returncode == 2
        run.launcher("down", name)
        assert docker(*scratch) == ""
