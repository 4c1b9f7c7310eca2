"""How long the Docker backend waits for its supervisor. Everything else is tested with a real engine."""

import pytest

from launcher.backend.docker.backend import supervisor_start_timeout
from launcher.backend.docker.engine import COMPOSE_TIMEOUT
from launcher.plan.models import Plan
from launcher.plan.planner import plan
from launcher.spec.models import ClusterSpec


def planned(start_timeout: str) -> Plan:
    spec = {"version": 1, "name": "toy", "command": ["true"], "limits": {"start_timeout": start_timeout}}
    return plan(ClusterSpec.model_validate(spec), "docker", run_dir="/runs/toy")


@pytest.mark.parametrize("start_timeout, compose_timeout", [("1s", COMPOSE_TIMEOUT), ("10m", COMPOSE_TIMEOUT), ("1h", 3600.0)])
def test_the_launcher_waits_longer_than_compose_may_take(start_timeout: str, compose_timeout: float) -> None:
    assert supervisor_start_timeout(planned(start_timeout)) == compose_timeout + 300
