"""Docker Compose takes what is rendered: the committed files, and reservations of GPUs, which need none to be read."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.docker_cli import docker
from tests.e2e.docker.running import EXAMPLES, ROOT

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]


def as_compose_reads_it(file: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(docker("compose", "--file", str(file), "config", "--format", "json"))
    return read


def test_every_example_has_a_committed_file() -> None:
    assert {file.stem for file in (ROOT / "compose").glob("*.yaml")} == {file.stem for file in EXAMPLES.glob("*.yaml")}


@pytest.mark.parametrize("file", sorted((ROOT / "compose").glob("*.yaml")), ids=lambda file: file.stem)
def test_compose_takes_the_committed_file(file: Path) -> None:
    read = as_compose_reads_it(file)
    assert read["name"] == file.stem
    assert set(read["services"]) == set(yaml.safe_load(file.read_text())["services"])


@pytest.mark.parametrize(
    "strategy, roles, reserved",
    [
        ("mirrored", "{chief: {gpus: 4}}", {"chief": {"count": 4}}),
        (
            "multi_worker_mirrored",
            "{worker: {replicas: 3, gpus: 2}}",
            {"worker-0": {"device_ids": ["0", "1"]}, "worker-1": {"device_ids": ["2", "3"]}, "worker-2": {"device_ids": ["4", "5"]}},
        ),
        (
            "parameter_server",
            "{chief: {gpus: 1}, ps: {replicas: 1}, worker: {replicas: 2, gpus: 2}}",
            {"chief": {"device_ids": ["0"]}, "worker-0": {"device_ids": ["1", "2"]}, "worker-1": {"device_ids": ["3", "4"]}},
        ),
    ],
)
def test_compose_takes_gpus_by_count_and_by_number(strategy: str, roles: str, reserved: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    spec, file = tmp_path / "gpus.yaml", tmp_path / "compose.yaml"
    spec.write_text(f"version: 1\nname: gpus\nstrategy: {strategy}\nroles: {roles}\ntrain: {{workload: mnist_mlp}}\n")
    command = [sys.executable, "-m", "launcher", "render", str(spec), "--to", "compose", "-o", str(file)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    services = as_compose_reads_it(file)["services"]
    found = {name: service["deploy"]["resources"]["reservations"]["devices"] for name, service in services.items() if "deploy" in service}
    assert found == {name: [{"driver": "nvidia", "capabilities": ["gpu"], **which}] for name, which in reserved.items()}
