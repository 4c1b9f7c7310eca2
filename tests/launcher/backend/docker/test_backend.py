"""How long the Docker backend waits for its supervisor, and stored specs of other versions. Everything else is tested with a real engine."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.backend.docker import volumes
from launcher.backend.docker.backend import DockerBackend, supervisor_start_timeout
from launcher.backend.docker.engine import COMPOSE_TIMEOUT
from launcher.plan.models import Plan
from launcher.plan.planner import plan
from launcher.runs.stored import Artifact
from launcher.spec.models import ClusterSpec


def planned(start_timeout: str) -> Plan:
    spec = {"version": 1, "name": "toy", "command": ["true"], "limits": {"start_timeout": start_timeout}}
    return plan(ClusterSpec.model_validate(spec), "docker", run_dir="/runs/toy")


@pytest.mark.parametrize("start_timeout, compose_timeout", [("1s", COMPOSE_TIMEOUT), ("10m", COMPOSE_TIMEOUT), ("1h", 3600.0)])
def test_the_launcher_waits_longer_than_an_earlier_run_may_save_and_compose_may_take(start_timeout: str, compose_timeout: float) -> None:
    assert supervisor_start_timeout(planned(start_timeout), earlier_grace=2700) == 2700 + compose_timeout + 300


def test_the_data_of_a_run_of_another_launcher_version_can_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def opened(_engine: object, _name: str, _artifact: str, spec: ClusterSpec | None) -> Iterator[ClusterSpec | None]:
        yield spec

    docker = DockerBackend(tmp_path)
    docker.__dict__["_engine"] = SimpleNamespace(volumes=lambda _: ["toy_run"])
    paths = docker._paths("toy")
    paths.spec.parent.mkdir(parents=True)
    paths.spec.write_text('{"version": 9}')
    monkeypatch.setattr(volumes, "opened", opened)
    with docker.fetch("toy", Artifact.LOGS) as spec:
        assert spec is None
