"""A chief without an evaluator exports the best model, whatever the strategy its variables live under."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import forked_launcher
from tests.integration.running import Run
from tests.trainer.exported import assert_export_is_what_it_says
from trainer.workloads.mnist_mlp import MnistMlp

TRAIN = {
    "workload": "mnist_mlp",
    "steps": 300,
    "evaluate": {"every_steps": 100},
    "export": {},
    "checkpoint": {"every_steps": 1000},
}


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "strategy, roles",
    [
        ("mirrored", {"chief": {}}),
        ("multi_worker_mirrored", {"worker": {"replicas": 2}}),
        ("parameter_server", {"chief": {}, "ps": {}, "worker": {"replicas": 2}}),
    ],
)
def test_a_chief_exports_what_it_found_best(strategy: str, roles: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    file.write_text(yaml.safe_dump({"version": 1, "name": "best", "strategy": strategy, "roles": roles, "train": TRAIN}))
    done = forked_launcher.run("up", str(file), "--runs", str(tmp_path / "runs"), timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    run = Run("best", tmp_path / "runs")
    chief = "worker-0" if strategy == "multi_worker_mirrored" else "chief"
    told = {event["step"]: event["metrics"]["accuracy"] for event in run.events(chief, "evaluated")}
    best = assert_export_is_what_it_says(run.directory, MnistMlp({}, "synthetic", 0), tmp_path)
    assert best["value"] == max(told.values()) == told[best["step"]]
    assert not [event for event in run.events(chief, "notice") if "export" in event["message"]]
