"""A run whose loss is not finite fails with the step and the task, whatever the strategy, and saves nothing that is not finite."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.running import ROOT, started

pytestmark = pytest.mark.slow

# name -> strategy, roles, what else is set in `train`, and who is given the inputs that are no numbers.
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
    strategy, roles, train, guilty = CASES[case]
    spec: dict[str, Any] = {"version": 1, "name": "apart", "strategy": strategy, "roles": roles, "code": str(ROOT / "tests/trainer/engine")}
    params = {"bad": 60, "activation": "tanh"}
    often = {"checkpoint": {"every_steps": 10}, "evaluate": {"every_steps": 20}, "summaries": {"every_steps": 0}, "steps_per_execution": 4}
    spec["train"] = {"workload": "small:Poisoned", "params": params, "steps": 1000, "batch_size": 16, **often, **train}
    with started(spec, tmp_path) as run:
        assert run.launcher("wait", "apart", check=False, timeout=120).returncode == 1
        status = run.status()
        assert status["state"] == "failed"
        assert f"training has diverged: the loss of {guilty} is nan or infinite at step " in status["reason"], status["reason"]
        assert "lower the learning rate" in status["reason"]
        assert all(not task["restarts"] for task in status["tasks"] if task["name"] in {"chief", guilty})
        step = int(status["reason"].partition("at step ")[2].split(";")[0])
        assert step >= 31  # mirrored: two of its batches are a step
        if case != "parameter_server":
            assert step in {31, 61}
        saved = _finite_checkpoints(run.directory)
        assert saved
        assert saved[-1] < step
        listed = json.loads(run.launcher("ls", "--json").stdout, parse_constant=pytest.fail)
        assert listed[0]["state"] == "failed"
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
