"""A run in the foreground is stopped, continues, and starts again beside its old volume."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher.docker_cli import docker
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import NOTHING, cleaned, launch, objects_of, unique
from tests.processes import free_port
from tests.stand_in import stand_in

pytestmark = pytest.mark.docker


def test_ctrl_c_saves_and_up_continues_and_fresh_keeps_the_old_volume(image: Built, tmp_path: Path) -> None:
    spec = {
        "version": 1,
        "name": unique("stop"),
        "tensorboard": {"port": free_port()},
        **stand_in.spec(),
    }
    file, runs = tmp_path / "stop.yaml", tmp_path / "runs"
    file.write_text(yaml.safe_dump(spec))
    name = str(spec["name"])
    command = [sys.executable, "-m", "launcher", "up", str(file), "--on", "docker", "--runs", str(runs), "--json"]
    with cleaned(name, runs):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if json.loads(line)["event"] == "progress":
                    process.send_signal(signal.SIGINT)
                    break
            rest = [json.loads(line) for line in process.stdout]
        assert process.returncode == 130
        summary = rest[-1]
        assert summary["state"] == "stopped"
        assert summary["checkpoint_step"]
        assert objects_of(name) == NOTHING | {"volumes": [f"{name}_run"]}
        more = ("--set", f"train.steps={summary['checkpoint_step'] + 50}")
        result = launch("up", str(file), "--resume", "--json", *more, runs=runs)
        events = [json.loads(line) for line in result.stdout.splitlines()]
        assert [event["step"] for event in events if event["event"] == "restored"] == [summary["checkpoint_step"]]
        assert events[-1]["state"] == "succeeded"
        fresh = launch("up", str(file), "--fresh", "--json", "--set", "train.steps=50", runs=runs)
        assert fresh.returncode == 0, fresh.stderr
        renamed = re.search(rf"volume ({name}\.\S+_run)", fresh.stderr)
        assert renamed, fresh.stderr
        try:
            checkpoints = docker(
                "run", "--rm", "--volume", f"{renamed[1]}:/runs", "--entrypoint", "ls", image.name, f"/runs/{name}/checkpoints"
            )
            assert f"ckpt-{summary['checkpoint_step'] + 50}.index" in checkpoints
        finally:
            docker("volume", "rm", renamed[1])
        assert json.loads(fresh.stdout.splitlines()[-1])["step"] == 50
