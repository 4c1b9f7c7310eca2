"""`deterministic: true`: the same file gives the same bits again, random pictures and several tasks included."""

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
PICTURES = {"workload": "cifar10", "steps": STEPS, "batch_size": 8, "params": {"filters": 8}}
# Most of its steps are learned from; how many moves there are in a call follows the clock where it may.
AGENT = {"workload": "gridworld_dqn", "steps": 2000, "params": {"filters": [4, 6, 8], "hidden": 16, "replay": 10_000, "random_steps": 100}}


def trained(strategy: str, what: dict[str, Any], directory: Path) -> dict[str, np.ndarray | bytes]:
    """Return every tensor of a new run's last checkpoint; a text, such as the learning rate's description, is bytes."""
    train = {**what, "deterministic": True, "seed": 3}
    directory.mkdir()
    with started({"version": 1, "name": "same", "strategy": strategy, "roles": ROLES[strategy], "train": train}, directory) as run:
        run.launcher("wait", run.name, timeout=120)
        saved = tf.train.load_checkpoint(str(run.directory / "checkpoints" / f"ckpt-{what['steps']}"))
        return {name: saved.get_tensor(name) for name in saved.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "strategy,what",
    [*(pytest.param(strategy, PICTURES, id=strategy) for strategy in sorted(ROLES)), pytest.param("single", AGENT, id="single-agent")],
)
def test_a_run_gives_the_same_bits_again(strategy: str, what: dict[str, Any], tmp_path: Path) -> None:
    first, again = (trained(strategy, what, tmp_path / name) for name in ("first", "again"))
    assert first.keys() == again.keys()
    assert sum(np.size(value) for value in first.values()) > 10_000
    assert [name for name, value in first.items() if np.asarray(value).tobytes() != np.asarray(again[name]).tobytes()] == []
