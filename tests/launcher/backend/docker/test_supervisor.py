"""What a keeper does about a task that has ended. What is done to containers is tried on a real engine."""

import time
from pathlib import Path
from typing import Any, cast

import pytest
from docker.models.containers import Container

from launcher.backend.docker.engine import Engine
from launcher.backend.docker.supervisor import Keeper
from launcher.plan.planner import plan
from launcher.render import labels
from launcher.runs.paths import RunPaths
from launcher.spec.models import ClusterSpec
from trainer.exit_codes import ExitCode

# A program that nothing supervises inside its container, and that the keeper starts again after some exit codes.
SPEC = {
    "version": 1,
    "name": "toy",
    "command": ["./train"],
    "image": "mine:1",
    "supervise": False,
    "roles": {"chief": {"restart": "exit_code"}},
}


class Beside(Container):
    """A sidecar that runs; the calls that would change it are noted in their order."""

    def __init__(self) -> None:
        told = {labels.SERVICE: "chief-log", labels.SIDECAR_OF: "chief"}
        super().__init__({"Id": "1", "Config": {"Labels": told}, "State": {"Status": "running"}})
        self.asked: list[str] = []

    def update(self, **changes: Any) -> None:
        """Note a change of the restart policy."""
        self.asked.append(f"restart policy {changes['restart_policy']['Name']}")

    def stop(self, **_: Any) -> None:
        """Note a stop."""
        self.asked.append("stop")


@pytest.mark.parametrize("code, asked", [(137, []), (ExitCode.DONE, ["restart policy no", "stop"])], ids=["starts again", "is done"])
def test_a_sidecar_is_stopped_for_good_only_where_its_task_does_not_start_again(tmp_path: Path, code: int, asked: list[str]) -> None:
    planned = plan(ClusterSpec.model_validate(SPEC), "docker", run_dir="/runs/toy")
    layout = RunPaths(tmp_path / "toy")
    layout.tasks.mkdir(parents=True)
    layout.lock.touch()
    keeper = Keeper(layout, planned, cast("Engine", None))  # nothing here asks the engine
    log = Beside()
    keeper._sidecars.look([log])
    chief = keeper._tasks["chief"]
    times = {"StartedAt": "2026-01-31T10:00:00Z", "FinishedAt": "2026-01-31T10:00:05Z"}
    chief.look({"State": {"Status": "exited", "ExitCode": code, "OOMKilled": False, **times}}, 0.0)
    chief.over_since = time.monotonic() - 60
    keeper._follow_up()
    assert (chief.start_at is not None) == (code != ExitCode.DONE)
    for thread in keeper._sidecars._busy.values():
        thread.join(30)
    assert log.asked == asked
