"""Docker Compose accepts rendered files: the committed ones, and reservations of GPUs, which it reads without a GPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.docker_cli import docker
from tests.e2e.docker.running import EXAMPLES, ROOT

pytestmark = pytest.mark.docker


def parsed_by_compose(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(docker("compose", "--file", str(file), "config", "--format", "json"))
    return document


def test_every_example_has_a_committed_file() -> None:
    assert {file.stem for file in (ROOT / "compose").glob("*.yaml")} == {file.stem for file in EXAMPLES.glob("*.yaml")}


@pytest.mark.parametrize("file", sorted((ROOT / "compose").glob("*.yaml")), ids=lambda file: file.stem)
def test_compose_accepts_the_committed_file(file: Path) -> None:
    document = parsed_by_compose(file)
    assert document["name"] == file.stem
    assert set(document["services"]) == set(yaml.safe_load(file.read_text())["services"])


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
def test_compose_accepts_gpus_by_count_and_by_number(
    strategy: str, roles: str, reserved: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    spec, file = tmp_path / "gpus.yaml", tmp_path / "compose.yaml"
    spec.write_text(f"version: 1\nname: gpus\nstrategy: {strategy}\nroles: {roles}\ntrain: {{workload: mnist_mlp}}\n")
    command = [sys.executable, "-m", "launcher", "render", str(spec), "--to", "compose", "-o", str(file)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    services = parsed_by_compose(file)["services"]
    devices = {name: service["deploy"]["resources"]["reservations"]["devices"] for name, service in services.items() if "deploy" in service}
    assert devices == {name: [{"driver": "nvidia", "capabilities": ["gpu"], **device}] for name, device in reserved.items()}
