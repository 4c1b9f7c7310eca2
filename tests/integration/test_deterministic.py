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


def trained(strategy: str, directory: Path) -> dict[str, np.ndarray]:
    """Return every tensor of a new run's last checkpoint."""
    train = {"workload": "cifar10", "steps": STEPS, "batch_size": 8, "deterministic": True, "params": {"filters": 8}, "seed": 3}
    directory.mkdir()
    with started({"version": 1, "name": "same", "strategy": strategy, "roles": ROLES[strategy], "train": train}, directory) as run:
        run.launcher("wait", run.name, timeout=120)
        saved = tf.train.load_checkpoint(str(run.directory / "checkpoints" / f"ckpt-{STEPS}"))
        return {name: saved.get_tensor(name) for name in saved.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", sorted(ROLES))
def test_a_run_gives_the_same_bits_again(strategy: str, tmp_path: Path) -> None:
    first, again = (trained(strategy, tmp_path / name) for name in ("first", "again"))
    assert first.keys() == again.keys()
    assert sum(value.size for value in first.values()) > 10_000
    assert [name for name, value in first.items() if value.tobytes() != again[name].tobytes()] == []
