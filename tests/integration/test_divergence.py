"""A run whose loss is not finite fails with the step and the task under every strategy, and saves only finite values."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.running import ROOT, started

pytestmark = pytest.mark.slow

# Name -> strategy, roles, further fields of `train`, and the task that gets inputs which are not numbers.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "mirrored": ("mirrored", {"chief": {}}, {}, "chief"),
    "multi_worker_mirrored": ("multi_worker_mirrored", {"chief": {}, "worker": {}}, {}, "worker-0"),
    "parameter_server": ("parameter_server", {"chief": {}, "ps": {}, "worker": {"replicas": 2}}, {}, "worker-1"),
    "synchronous": (
        "parameter_server",
        {"chief": {}, "ps": {}, "worker": {"replicas": 2}},
        {"sync": {"replicas_to_aggregate": 2}},
        "worker-1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_diverges_fails_with_step_and_task(case: str, tmp_path: Path) -> None:
    strategy, roles, train, poisoned_task = CASES[case]
    spec: dict[str, Any] = {"version": 1, "name": "apart", "strategy": strategy, "roles": roles, "code": str(ROOT / "tests/trainer/engine")}
    params = {"bad": 60, "activation": "tanh"}
    every = {"checkpoint": {"every_steps": 10}, "evaluate": {"every_steps": 20}, "summaries": {"every_steps": 0}, "steps_per_execution": 4}
    spec["train"] = {"workload": "small:Poisoned", "params": params, "steps": 1000, "batch_size": 16, **every, **train}
    with started(spec, tmp_path) as run:
        assert run.launcher("wait", "apart", check=False).returncode == 1
        status = run.status()
        assert status["state"] == "failed"
        assert f"training has diverged: the loss of {poisoned_task} is nan or infinite at step " in status["reason"], status["reason"]
        assert "lower the learning rate" in status["reason"]
        assert all(not task["restarts"] for task in status["tasks"] if task["name"] in {"chief", poisoned_task})
        step = int(status["reason"].partition("at step ")[2].split(";")[0])
        assert step >= 31  # mirrored: two of its batches are a step
        if case != "parameter_server":
            assert step in {31, 61}
        saved = _finite_checkpoints(run.directory)
        assert saved
        assert saved[-1] < step
        runs = json.loads(run.launcher("ls", "--json").stdout, parse_constant=pytest.fail)
        assert runs[0]["state"] == "failed"
        run.launcher("ls")
        run.launcher("status", "apart")


def _finite_checkpoints(run_dir: Path) -> list[int]:
    import tensorflow as tf

    steps = []
    for path in run_dir.glob("checkpoints/ckpt-*.index"):
        saved = tf.train.load_checkpoint(str(path.with_suffix("")))
        names = [name for name, kind in saved.get_variable_to_dtype_map().items() if kind.is_floating]
        assert len(names) >= 4
        assert all(np.isfinite(saved.get_tensor(name)).all() for name in names), path
        steps.append(int(path.stem.removeprefix("ckpt-")))
    return sorted(steps)
