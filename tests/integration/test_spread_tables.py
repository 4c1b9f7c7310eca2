"""Tables that are spread over servers, with a million rows in all: each role is killed, and the run goes on from its last checkpoint."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.running import Run, started, stop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
AT_MOST = 240  # seconds; a deadline, not a measure
ROWS = 20_000  # of each of 52 tables


def spec() -> dict[str, Any]:
    train = {
        "workload": "click_through",
        "params": {"rows": ROWS, "eval_examples": 2000},
        "steps": 1_000_000,
        "batch_size": 64,
        "embeddings": {"min_rows": ROWS},
        "checkpoint": {"every_steps": 100},
        "evaluate": {"every_steps": 0},
        "summaries": {"every_steps": 0},
    }
    return {
        "version": 1,
        "name": "spread",
        "strategy": "parameter_server",
        "roles": {"chief": {}, "ps": {"replicas": 2}, "worker": {"replicas": 2}},
        "train": train,
    }


def saved_since(run: Run, when: float) -> list[int]:
    return [event["step"] for event in run.events("chief", "checkpoint") if event["time"] > when]


def memory_of(run: Run, task: str) -> int:
    """Return the bytes that a task's training process has in memory."""
    pid = next(one["training_pid"] for one in run.status()["tasks"] if one["name"] == task)
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def save_twice(run: Run) -> None:
    since = run.events("chief", "started")[-1]["time"]
    run.until("two checkpoints", lambda: len(saved_since(run, since)) >= 2, AT_MOST)


def test_any_task_may_be_killed_and_the_rows_are_those_of_the_last_checkpoint(tmp_path: Path) -> None:
    with started(spec(), tmp_path) as run:
        save_twice(run)
        run.kill_training_process("worker-0")
        run.until("worker-0 to start again", lambda: len(run.events("worker-0", "started")) >= 2, AT_MOST)
        assert run.events("chief", "restored") == []
        held = memory_of(run, "ps-1")
        for victim in ("ps-0", "chief"):
            save_twice(run)
            saved, killed = saved_since(run, 0)[-1], time.time()
            run.kill_training_process(victim)

            def restored(since: float = killed) -> list[int]:
                return [event["step"] for event in run.events("chief", "restored") if event["time"] > since]

            assert run.until(f"a checkpoint, {victim} killed", restored, AT_MOST)[-1] >= saved
        save_twice(run)
        # A ps that was not killed holds the rows of one chief, not those of the ones before as well.
        assert memory_of(run, "ps-1") < held + 60 * 2**20
        losses = [event["loss"] for event in run.events("chief", "progress")]
        assert min(losses[-5:]) < losses[0]
        stop(run)
