"""A bare `docker compose`, without the launcher, stops and resumes a run."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher.docker_cli import docker
from tests.e2e.docker.running import ROOT, cleaned, unique
from tests.processes import free_port
from tests.stand_in import stand_in

pytestmark = pytest.mark.docker


@pytest.mark.usefixtures("image")
def test_compose_without_the_launcher_resumes_from_the_checkpoint_of_its_stop(tmp_path: Path) -> None:
    project = unique("taken-down")
    cluster = {"strategy": "parameter_server", "roles": {"chief": {}, "ps": {"replicas": 1}, "worker": {"replicas": 1}}}
    # Its only checkpoint is that of the stop.
    training = stand_in.spec(checkpoint={"every_steps": 1_000_000})
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump({"version": 1, "name": project, "tensorboard": {"port": free_port()}, **cluster, **training}))
    rendered = tmp_path / "compose.yaml"
    with cleaned(project, tmp_path / "runs") as run:
        render = [sys.executable, "-m", "launcher", "render", str(file), "--to", "compose", "--output", str(rendered)]
        subprocess.run(render, cwd=ROOT, check=True, timeout=60)
        compose = ("compose", "--file", str(rendered))
        docker(*compose, "up", "--detach", timeout=120)
        run.await_progress("chief")
        docker(*compose, "stop", timeout=120)
        codes = {task: run.inspect(task)["State"]["ExitCode"] for task in run.tasks()}
        assert codes["chief"] == 143
        assert set(codes.values()) <= {0, 143}  # servers end by themselves or are asked to stop: none is killed
        (saved,) = run.events("chief", "checkpoint")
        docker(*compose, "down", timeout=120)
        docker(*compose, "up", "--detach", timeout=120)
        (restored,) = run.until("the chief to continue", lambda: run.events("chief", "restored"))
        assert restored["step"] == saved["step"] > 0
        run.await_progress("chief")
