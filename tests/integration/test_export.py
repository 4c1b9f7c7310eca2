"""A run of a user's Keras model exports the best one under every strategy; plain Keras loads it, compiled."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import forked
from tests.integration.running import Run

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom-keras"
TRAIN = {"workload": "moons:model", "steps": 150, "batch_size": 50, "evaluate": {"every_steps": 50}, "params": {"noise": 0.15}}
# Loads the export without the trainer, as its user does: Keras and TensorFlow measure what the run has measured.
READ = """
import json, sys
import keras, numpy as np, tensorflow as tf
from moons import eval_data
inputs, targets = eval_data(noise=0.15)
model = keras.models.load_model(sys.argv[1] + "/model.keras")
metrics = model.evaluate(inputs, targets, batch_size=1000, verbose=0, return_dict=True)
served = tf.saved_model.load(sys.argv[1] + "/saved_model")
assert np.allclose(served.serve(inputs), model.predict(inputs, verbose=0), atol=1e-5)
assert not [name for name in sys.modules if name.partition(".")[0] in ("trainer", "launcher")]
print(json.dumps(metrics))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy, roles",
    [
        ("mirrored", {"chief": {}}),
        ("multi_worker_mirrored", {"worker": {"replicas": 2}}),
        ("parameter_server", {"chief": {}, "ps": {}, "worker": {"replicas": 2}}),
    ],
)
def test_the_chief_exports_the_best_model(strategy: str, roles: dict[str, Any], tmp_path: Path) -> None:
    spec = {"version": 1, "name": "best", "strategy": strategy, "roles": roles, "code": str(EXAMPLE), "train": TRAIN}
    file = tmp_path / "best.yaml"
    file.write_text(yaml.safe_dump(spec))
    result = forked.launcher("up", str(file), "--runs", str(tmp_path / "runs"), preload=forked.TENSORFLOW)
    assert result.returncode == 0, result.stdout + result.stderr
    run = Run("best", tmp_path / "runs")
    assert re.search(rf"^  model +{re.escape(str(run.directory))}/export/best$", result.stdout, re.MULTILINE), result.stdout
    assert_best_is_exported(run, tmp_path, "worker-0" if strategy == "multi_worker_mirrored" else "chief")


def assert_best_is_exported(run: Run, scratch: Path, leader: str = "chief") -> None:
    """Check that the best of several evaluated models is exported, and gives its metrics."""
    best = run.directory / "export" / "best"
    exported = json.loads((best / "metrics.json").read_text())
    accuracies = {event["step"]: event["metrics"]["accuracy"] for event in run.events(leader, "evaluated")}
    assert len(accuracies) >= 3
    assert exported["value"] == max(accuracies.values()) == accuracies[exported["step"]]
    assert not [event for event in run.events(leader, "notice") if "export" in event["message"]]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLE)}
    (scratch / "read.py").write_text(READ)
    command = [sys.executable, str(scratch / "read.py"), str(best)]
    reading = forked.run(command, cwd=scratch, env=environment, preload=forked.TENSORFLOW)
    assert reading.returncode == 0, reading.stdout + reading.stderr
    assert json.loads(reading.stdout.splitlines()[-1]) == pytest.approx(exported["metrics"], rel=1e-3)
