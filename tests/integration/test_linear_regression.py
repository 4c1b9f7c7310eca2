"""Recovery, for which linear_regression exists: timed saves, a stop or a kill midway, and workers that agree."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.running import ROOT, Run, started

pytestmark = pytest.mark.slow


KILLED_STEPS = 100_000  # several times as many as before the first timed save


def spec(strategy: str, roles: dict[str, Any], **train: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "name": "line",
        "strategy": strategy,
        "roles": roles,
        "code": str(ROOT),
        "train": {"workload": "linear_regression", "summaries": {"every_steps": 0}, **train},
    }


def lines(run: Run, task: str) -> list[str]:
    """Return the line of every step that a task has printed."""
    return [text.partition("line: ")[2] for text in run.log(task).splitlines() if "line: " in text]


def assert_near(run: Run) -> None:
    metrics = run.status()["metrics"]
    assert metrics["w"] == pytest.approx(2, abs=0.25)
    assert metrics["b"] == pytest.approx(0, abs=0.1)


def test_two_workers_hold_the_same_line_at_every_step_also_after_a_stop_midway(tmp_path: Path) -> None:
    steps = 3000  # more than it takes before the stop
    line_spec = spec(
        "multi_worker_mirrored",
        {"worker": {"replicas": 2}},
        workload="tests.integration.printed_line:PrintedLine",
        steps=steps,
        batch_size=1,
    )
    line_spec["train"]["params"] = {"learning_rate": 0.003}
    with started(line_spec, tmp_path) as run:
        run.until("step 500", lambda: run.chief_step("worker-0") >= 500)
        run.launcher("down", run.name)
        stopped_at = run.status()["step"]
        assert 500 <= stopped_at < steps
        (run.directory / "hurry").touch()
        run.launcher("up", str(tmp_path / "line.yaml"))
        assert [event["step"] for event in run.events("worker-0", "restored")] == [stopped_at]
        first, second = lines(run, "worker-0"), lines(run, "worker-1")
        assert len(first) == steps
        assert first == second
        assert len(set(first)) > steps / 2
        assert_near(run)


def test_a_killed_run_resumes_from_its_last_timed_save(tmp_path: Path) -> None:
    line_spec = spec("single", {"chief": {}}, steps=KILLED_STEPS, steps_per_execution=1000, checkpoint={"every_seconds": 0.5})
    with started(line_spec, tmp_path) as run:
        run.until("a timed save", lambda: run.events("chief", "checkpoint"))
        killed = run.kill_training_process("chief")
        assert run.launcher("wait", run.name, check=False).returncode == 0
        restored = [event["step"] for event in run.events("chief", "restored")]
        assert len(restored) == 1
        saved = [event["step"] for event in run.events("chief", "checkpoint") if event["time"] < killed]
        assert saved[-1] <= restored[0] < KILLED_STEPS  # later if the kill came between a save and its event
        assert restored[0] % 1000 == 0
        assert [path.stem for path in run.directory.glob("checkpoints/ckpt-*.index")] == [f"ckpt-{KILLED_STEPS}"]
        assert_near(run)
