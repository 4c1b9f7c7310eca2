"""A run's volume is a small disk, in turn full, read-only and frozen: training continues, the fault is reported, later steps are saved."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.docker_cli import docker
from launcher.render import labels
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import ROOT, cleaned, unique
from tests.volumes import FAULTS, is_disk_full, volume
from trainer.events import Event

pytestmark = [pytest.mark.docker, pytest.mark.trains]

USER = 1000  # of the tasks' containers
SPEC: dict[str, Any] = {
    "version": 1,
    "strategy": "single",
    "roles": {"chief": {}},
    "tensorboard": False,
    "code": str(ROOT / "tests" / "e2e" / "code"),
    "train": {"workload": "paced:Paced", "steps": 1_000_000, "steps_per_execution": 1, "report_every_steps": 5},
}


def test_a_volume_that_fails_for_a_while_costs_no_step(image: Built, tmp_path: Path) -> None:
    del image
    name = unique("full")
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(SPEC | {"name": name, "train": SPEC["train"] | {"checkpoint": {"every_steps": 20, "keep": 2}}}))
    with volume(tmp_path / "disk", tmp_path / "image", 32_000_000, owner=USER) as disk, cleaned(name, tmp_path / "runs") as run:
        label_values = {labels.RUN: name, "com.docker.compose.project": name, "com.docker.compose.volume": "run"}
        label_options = [word for label in label_values.items() for word in ("--label", "=".join(label))]
        device_options = ("--opt", "type=none", "--opt", "o=bind", "--opt", f"device={disk.path}")
        docker("volume", "create", *label_options, *device_options, f"{name}_run")
        run.launcher("up", str(file), "--resume", "--detach")

        def wait(what: str, kind: str, after: int = 0, matches: Callable[[Event], bool] = bool) -> Event:
            events: list[Event] = run.until(what, lambda: [*filter(matches, run.events("chief", kind)[after:])], 240)
            return events[0]

        wait("a checkpoint", "checkpoint")
        for fault, cause in FAULTS.items():
            before, started_at = len(run.events("chief", "save_failed")), time.monotonic()
            with disk.failing(fault):
                failed = wait(f"the {fault} volume to be reported", "save_failed", before, is_disk_full if fault == "full" else bool)
                print(f"{fault}: reported after {time.monotonic() - started_at:.1f} s: {failed['cause']}")
                assert (failed["path"], failed["cause"][: len(cause)]) == (f"/runs/{name}/checkpoints", cause)
                assert fault != "full" or failed["free"] < failed["size"]
                wait("20 more steps", "progress", len(run.events("chief", "progress")) + 4)
                checkpoints = len(run.events("chief", "checkpoint"))
            # A frozen write finishes afterwards: its checkpoint is not one of a later step.
            saved = wait("later steps to be saved", "checkpoint", checkpoints + (fault == "frozen"))
            assert saved["step"] > failed["step"] > failed["saved"]
        assert len(run.events("chief", "started")) == 1
        run.launcher("down", name)
        record = json.loads((disk.path / name / "run.json").read_text())
        assert (record["state"], record["checkpoint"]) == ("stopped", f"/runs/{name}/checkpoints/ckpt-{record['step']}")
        assert (disk.path / name / "checkpoints" / f"ckpt-{record['step']}.index").exists()
