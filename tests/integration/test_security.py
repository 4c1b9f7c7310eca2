"""TensorFlow's port runs what anybody sends it: on a local run nobody but this machine may reach it."""

import sys
from pathlib import Path

import pytest

from tests.integration.running import started
from tests.trainer.test_loopback import own_address, reachable

TRAIN = {"workload": "mnist_mlp", "steps": 1_000_000, "evaluate": {"every_steps": 0}}


@pytest.mark.skipif(sys.platform != "linux", reason="socket filters are Linux's; docs/local.md says what to do elsewhere")
@pytest.mark.parametrize(
    "strategy,roles",
    [("parameter_server", {"chief": {}, "ps": {}, "worker": {}}), ("multi_worker_mirrored", {"worker": {"replicas": 2}})],
)
def test_no_task_is_reached_from_outside(strategy: str, roles: dict[str, dict[str, int]], tmp_path: Path) -> None:
    own = own_address()
    spec = {"version": 1, "name": "closed", "strategy": strategy, "roles": roles, "train": TRAIN}
    with started(spec, tmp_path) as run:
        chief = "chief" if "chief" in roles else "worker-0"
        run.until("the first step", lambda: run.chief_step(chief))
        addresses = {task["name"]: task["address"] for task in run.status()["tasks"]}
        assert len(addresses) == (3 if "chief" in roles else 2)
        for name, address in addresses.items():
            port = int(address.rpartition(":")[2])
            assert reachable("127.0.0.1", port), name
            assert not reachable(own, port), name
