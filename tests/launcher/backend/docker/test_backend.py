"""How long the Docker backend waits for its supervisor, and stored specs of other versions. Everything else is tested with a real engine."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from docker.models.containers import Container

from launcher.backend.docker import log_stream, volumes
from launcher.backend.docker.backend import DockerBackend, supervisor_start_timeout
from launcher.backend.docker.engine import COMPOSE_TIMEOUT
from launcher.plan.models import Plan
from launcher.plan.planner import plan
from launcher.render import labels
from launcher.runs import state_file
from launcher.runs.artifacts import Artifact
from launcher.runs.state_file import Snapshot
from launcher.runs.status import RunStatus, State
from launcher.spec.models import ClusterSpec


def planned(start_timeout: str) -> Plan:
    spec = {"version": 1, "name": "toy", "command": ["true"], "limits": {"start_timeout": start_timeout}}
    return plan(ClusterSpec.model_validate(spec), "docker", run_dir="/runs/toy")


@pytest.mark.parametrize("start_timeout, compose_timeout", [("1s", COMPOSE_TIMEOUT), ("10m", COMPOSE_TIMEOUT), ("1h", 3600.0)])
def test_the_launcher_waits_longer_than_an_earlier_run_may_save_and_compose_may_take(start_timeout: str, compose_timeout: float) -> None:
    assert supervisor_start_timeout(planned(start_timeout), earlier_grace=2700) == 2700 + compose_timeout + 300


def test_the_data_of_a_run_of_another_launcher_version_can_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def open_artifact(_engine: object, _name: str, _artifact: str, spec: ClusterSpec | None) -> Iterator[ClusterSpec | None]:
        yield spec

    docker = DockerBackend(tmp_path)
    docker.__dict__["_engine"] = SimpleNamespace(volumes=lambda _: ["toy_run"])
    paths = docker._paths("toy")
    paths.spec.parent.mkdir(parents=True)
    paths.spec.write_text('{"version": 9}')
    monkeypatch.setattr(volumes, "open_artifact", open_artifact)
    with docker.fetch("toy", Artifact.LOGS) as spec:
        assert spec is None


def test_no_task_is_running_in_the_record_of_a_run_that_was_killed_without_its_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def container(task: str, **state: object) -> Container:
        config = {"Labels": {labels.RUN: "toy", labels.TASK: task}, "Image": "mine:1", "Cmd": ["./train"], "Env": []}
        return Container({"Id": task, "Config": config, "HostConfig": {}, "RestartCount": 0, "State": state})

    present = [container("chief", Status="running"), container("ps-0", Status="exited", ExitCode=1)]

    def remove(_name: str) -> dict[str, int]:
        present.clear()
        return {"container": 2}

    monkeypatch.setattr(log_stream, "read", lambda *_, **__: iter(()))
    docker = DockerBackend(tmp_path)
    docker.__dict__["_engine"] = SimpleNamespace(containers=lambda *_: list(present), remove=remove, client=None)
    paths = docker._paths("toy")
    paths.state.parent.mkdir(parents=True)
    state_file.write(paths.state, Snapshot(RunStatus("toy", "docker", State.RUNNING), "host"))
    assert docker.stop("toy", now=True) == {"container": 2}
    status = docker.status("toy")
    assert (status.state, status.reason) == (State.STOPPED, "asked to stop at once")
    assert [(task.name, task.state, task.reason) for task in status.tasks] == [
        ("chief", State.STOPPED, "killed"),
        ("ps-0", State.FAILED, "failed with exit code 1"),
    ]
