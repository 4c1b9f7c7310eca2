"""Examples in containers: which are run how, and what each is there for.

The tests are in a file for each kind of cluster, so that no one of those who run files beside one another has them all.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.docker.running import EXAMPLES, NOTHING, Run, cleaned, launch, left, unique
from tests.e2e.reached import SETTINGS, assert_reached
from tests.processes import free_port

BY_COMPOSE = ("mnist-evaluator", "mnist-multiworker", "custom-ps")
BY_LAUNCHER = {name: changes for name, changes in SETTINGS.items() if name not in BY_COMPOSE}


def by_strategy(*strategies: str) -> list[str]:
    """Return the examples for the launcher whose strategy is one of these."""
    return [name for name in BY_LAUNCHER if yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())["strategy"] in strategies]


def assert_the_launcher_trains(name: str, tmp_path: Path) -> None:
    """Run an example by the launcher to its end, and look at it with every verb until nothing of it is left."""
    port, own = free_port(), unique(name)
    runs = tmp_path / "runs"
    with cleaned(own, runs) as run:
        changes = (f"name={own}", f"tensorboard.port={port}", *BY_LAUNCHER[name])
        arguments = (*(word for change in changes for word in ("--set", change)), "--json")
        done = launch("up", str(EXAMPLES / f"{name}.yaml"), *arguments, runs=runs)
        assert done.returncode == 0, f"{done.stdout[-5000:]}\n{done.stderr}"
        assert "is there" in done.stderr  # the image: which one, and why
        lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        summary = lines[-1]
        assert (summary["event"], summary["state"], summary["restarts"]) == ("summary", "succeeded", {})
        assert summary["run_dir"] == f"volume {own}_run"
        logs = run.launcher("logs", own)
        assert_reached(name, run.status(), logs)
        assert run.launcher("tensorboard", own).strip() == f"http://127.0.0.1:{port}"
        if name == "mnist-single":
            run.shown(port, "images", "train")
        # Again: it is complete. Down: its results stay, then they go.
        again = launch("up", str(EXAMPLES / f"{name}.yaml"), *arguments[:-1], runs=runs)
        assert (again.returncode, "is complete" in again.stdout) == (0, True), again.stdout + again.stderr
        run.launcher("down", own)
        assert left(own) == {"containers": [], "networks": [], "volumes": [f"{own}_run"]}
        assert run.status()["state"] == "succeeded"
        assert run.launcher("logs", own) == logs
        if name == "mnist-single":
            _its_logs_are_shown_again(run)
        run.launcher("down", own, "--delete-data", "--yes")
        assert left(own) == NOTHING
        assert not (runs / own).exists()


def _its_logs_are_shown_again(run: Run) -> None:
    """TensorBoard of a run that was taken down answers where one says, and goes with the next `down`."""
    for port in (free_port(), free_port()):
        assert run.launcher("tensorboard", run.name, "--port", str(port)).strip() == f"http://127.0.0.1:{port}"
        run.shown(port, "scalars", "train")
    run.launcher("down", run.name)
    assert left(run.name) == {"containers": [], "networks": [], "volumes": [f"{run.name}_run"]}
