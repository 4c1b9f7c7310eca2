"""A run of one's own Keras model exports the best, whatever the strategy its variables live under; plain Keras reads it, compiled."""

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
# As its user does, without the trainer: what was measured by the run is what Keras and TensorFlow measure.
READ = """
import json, sys
import keras, numpy as np, tensorflow as tf
from moons import eval_data
inputs, targets = eval_data(noise=0.15)
read = keras.models.load_model(sys.argv[1] + "/model.keras")
told = read.evaluate(inputs, targets, batch_size=1000, verbose=0, return_dict=True)
served = tf.saved_model.load(sys.argv[1] + "/saved_model")
assert np.allclose(served.serve(inputs), read.predict(inputs, verbose=0), atol=1e-5)
assert not [name for name in sys.modules if name.partition(".")[0] in ("trainer", "launcher")]
print(json.dumps(told))
"""


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
    spec = {"version": 1, "name": "best", "strategy": strategy, "roles": roles, "code": str(EXAMPLE), "train": TRAIN}
    file = tmp_path / "best.yaml"
    file.write_text(yaml.safe_dump(spec))
    done = forked.launcher("up", str(file), "--runs", str(tmp_path / "runs"), timeout=150, preload=forked.TENSORFLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    run = Run("best", tmp_path / "runs")
    assert re.search(rf"^  model +{re.escape(str(run.directory))}/export/best$", done.stdout, re.MULTILINE), done.stdout
    chief = "worker-0" if strategy == "multi_worker_mirrored" else "chief"
    best = run.directory / "export" / "best"
    facts = json.loads((best / "metrics.json").read_text())
    told = {event["step"]: event["metrics"]["accuracy"] for event in run.events(chief, "evaluated")}
    assert facts["value"] == max(told.values()) == told[facts["step"]]
    assert not [event for event in run.events(chief, "notice") if "export" in event["message"]]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLE)}
    (tmp_path / "read.py").write_text(READ)
    read = forked.run(
        [sys.executable, str(tmp_path / "read.py"), str(best)], cwd=tmp_path, env=environment, timeout=100, preload=forked.TENSORFLOW
    )
    assert read.returncode == 0, read.stdout + read.stderr
    assert json.loads(read.stdout.splitlines()[-1]) == pytest.approx(facts["metrics"], rel=1e-3)
