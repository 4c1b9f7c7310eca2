"""A run whose volume is a small disk that is full for a while: training goes on, it is told, and later steps are saved."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.docker_cli import docker
from launcher.render import labels
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import ROOT, cleaned, unique
from tests.volumes import volume

pytestmark = [pytest.mark.docker, pytest.mark.trains, pytest.mark.timeout(600)]

USER = 1000  # of the tasks' containers
SPEC: dict[str, Any] = {
    "version": 1,
    "strategy": "single",
    "roles": {"chief": {}},
    "tensorboard": False,
    "code": str(ROOT / "tests" / "e2e" / "code"),
    "train": {"workload": "paced:Paced", "steps": 1_000_000, "steps_per_execution": 1, "report_every_steps": 5},
}


def test_a_volume_that_is_full_for_a_while_costs_no_step(image: Built, tmp_path: Path) -> None:
    del image
    name = unique("full")
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(SPEC | {"name": name, "train": SPEC["train"] | {"checkpoint": {"every_steps": 20, "keep": 2}}}))
    with volume(tmp_path / "disk", tmp_path / "image", 32_000_000, owner=USER) as disk, cleaned(name, tmp_path / "runs") as run:
        ours = {labels.RUN: name, "com.docker.compose.project": name, "com.docker.compose.volume": "run"}
        words = [word for label in ours.items() for word in ("--label", "=".join(label))]
        bound = ("--opt", "type=none", "--opt", "o=bind", "--opt", f"device={disk.place}")
        docker("volume", "create", *words, *bound, f"{name}_run")
        run.launcher("up", str(file), "--resume", "--detach")
        run.until("a checkpoint", lambda: run.events("chief", "checkpoint"), 240)

        disk.fill()
        failed = run.until("the full volume to be told of", lambda: run.events("chief", "save_failed"))[0]
        assert (failed["path"], failed["cause"]) == (f"/runs/{name}/checkpoints", "No space left on device")
        assert failed["free"] < failed["size"]
        step = run.step()
        run.until("more steps", lambda: run.step() >= step + 20)
        told = run.events("chief", "checkpoint")

        disk.free()
        saved = run.until("later steps to be saved", lambda: run.events("chief", "checkpoint")[len(told) :])[0]
        assert saved["step"] > failed["step"] > failed["saved"]
        assert len(run.events("chief", "started")) == 1
        run.launcher("down", name)
        record = json.loads((disk.place / name / "run.json").read_text())
        assert (record["state"], record["checkpoint"]) == ("stopped", f"/runs/{name}/checkpoints/ckpt-{record['step']}")
        assert (disk.place / name / "checkpoints" / f"ckpt-{record['step']}.index").exists()
