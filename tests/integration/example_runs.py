"""Run an example as a user does, and check the files that every run writes."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests import forked
from tests.integration import leftovers
from tests.integration.running import EXAMPLES

Bounds = dict[str, tuple[float, float]]  # the least and the greatest value of each metric at the end


@dataclass(frozen=True)
class ExampleRun:
    """The spec of an example that was run, its run directory, and the lines that `launcher up --json` wrote."""

    spec: dict[str, Any]
    directory: Path
    lines: list[dict[str, Any]]

    @property
    def summary(self) -> dict[str, Any]:
        assert self.lines[-1]["event"] == "summary"
        return self.lines[-1]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == kind]


def up(name: str, tmp_path: Path, changes: tuple[str, ...] = ()) -> ExampleRun:
    """Run an example, with `changes` set, from the repository's root to its end."""
    file, runs = EXAMPLES / f"{name}.yaml", tmp_path / "runs"
    settings = [argument for change in changes for argument in ("--set", change)]
    try:
        result = forked.launcher("up", str(file), "--json", "--runs", str(runs), *settings, preload=forked.TENSORFLOW)
    finally:
        leftovers.assert_none(runs / name)
    assert result.returncode == 0, f"{name} ended with {result.returncode}:\n{result.stdout[-6000:]}\n{result.stderr}"
    return ExampleRun(yaml.safe_load(file.read_text()), runs / name, [json.loads(line) for line in result.stdout.splitlines()])


def assert_recorded(example: ExampleRun) -> None:
    """Check that a run has written a summary without restarts, and a log of each task with dated lines."""
    assert example.summary["name"] == example.spec["name"] == example.directory.name
    assert not example.events("stalled")
    assert (example.summary["state"], example.summary["exit_code"], example.summary["restarts"]) == ("succeeded", 0, {})
    assert example.summary["run_dir"] == str(example.directory)
    roles = {role: settings.get("replicas") for role, settings in example.spec.get("roles", {"chief": {}}).items()}
    tasks = {
        name
        for role, count in roles.items()
        for name in ([role] if role in {"chief", "evaluator"} else [f"{role}-{i}" for i in range(count or 1)])
    }
    logs = {path.stem: path.read_text() for path in example.directory.glob("launcher/tasks/*.log")}
    assert set(logs) == tasks
    for task, text in logs.items():
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", text), f"{task}: {text[:80]}"


def assert_trained(example: ExampleRun, expected: Bounds, changes: tuple[str, ...] = ()) -> None:
    """Check the results of training: every step, the metrics, checkpoints, run.json, TensorBoard's logs."""
    assert_recorded(example)
    changed = dict(change.removeprefix("train.").split("=") for change in changes)
    summary, steps = example.summary, int(changed.get("steps", example.spec["train"]["steps"]))
    assert (summary["step"], summary["steps"], summary["checkpoint_step"]) == (steps, steps, steps)
    for name, (low, high) in expected.items():
        assert low <= summary["metrics"][name] <= high, summary["metrics"]
    assert example.events("evaluated")[-1]["step"] == steps
    assert Path(f"{summary['checkpoint']}.index").is_file()
    assert Path(summary["checkpoint"]).parent == example.directory / "checkpoints"
    record = json.loads((example.directory / "run.json").read_text())
    assert {key: record[key] for key in ("name", "state", "step", "steps", "metrics")} == {
        "name": example.spec["name"],
        "state": "succeeded",
        "step": steps,
        "steps": steps,
        "metrics": summary["metrics"],
    }
    for logs in ("train", "eval"):
        assert list((example.directory / "logs" / logs).glob("events.out.tfevents.*"))
