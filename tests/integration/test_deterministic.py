"""`deterministic: true`: the same spec gives the same bits, also with random pictures and several tasks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.integration.running import started

STEPS = 20
ROLES: dict[str, dict[str, Any]] = {
    "single": {"chief": {}},
    "mirrored": {"chief": {}},
    "multi_worker_mirrored": {"worker": {"replicas": 2}},
}
QUIET = {"evaluate": {"every_steps": 0}, "summaries": {"every_steps": 0}}
PICTURES = {"workload": "cifar10", "steps": STEPS, "batch_size": 8, "params": {"filters": 8}}
# It learns in most of its steps. Without `deterministic` the clock decides how many moves a call makes.
AGENT = {"workload": "gridworld_dqn", "steps": 800, "params": {"filters": [4, 6, 8], "hidden": 16, "replay": 10_000, "random_steps": 100}}


def trained(strategy: str, settings: dict[str, Any], directory: Path) -> dict[str, np.ndarray | bytes]:
    """Return every tensor of a new run's last checkpoint; a text, such as the learning rate's description, is bytes."""
    train = {**settings, "deterministic": True, "seed": 3}
    directory.mkdir()
    with started({"version": 1, "name": "same", "strategy": strategy, "roles": ROLES[strategy], "train": train}, directory) as run:
        run.launcher("wait", run.name)
        saved = tf.train.load_checkpoint(str(run.directory / "checkpoints" / f"ckpt-{settings['steps']}"))
        return {name: saved.get_tensor(name) for name in saved.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy,settings",
    [
        *(pytest.param(strategy, PICTURES if strategy == "single" else PICTURES | QUIET, id=strategy) for strategy in sorted(ROLES)),
        pytest.param("single", AGENT, id="single-agent"),
    ],
)
def test_two_runs_of_a_spec_give_the_same_bits(strategy: str, settings: dict[str, Any], tmp_path: Path) -> None:
    first, second = (trained(strategy, settings, tmp_path / name) for name in ("first", "second"))
    assert first.keys() == second.keys()
    assert sum(np.size(value) for value in first.values()) > 10_000
    assert [name for name, value in first.items() if np.asarray(value).tobytes() != np.asarray(second[name]).tobytes()] == []
