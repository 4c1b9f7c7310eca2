"""Tables that are spread over servers, with half a million rows in all: a task of each role is killed, and the run resumes from its last checkpoint."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.integration.large_tables import DIMENSION, ROWS, TABLES
from tests.integration.running import ROOT, Run, started, stop

pytestmark = pytest.mark.slow


def spec() -> dict[str, Any]:
    train = {
        "workload": "tests.integration.large_tables:LargeTables",
        "steps": 1_000_000,
        "batch_size": 64,
        "embeddings": {"min_rows": ROWS},
        "checkpoint": {"every_steps": 60},
        "evaluate": {"every_steps": 0},
        "summaries": {"every_steps": 0},
        "export": {},
    }
    return {
        "version": 1,
        "name": "spread",
        "strategy": "parameter_server",
        "roles": {"chief": {}, "ps": {"replicas": 2}, "worker": {"replicas": 2}},
        "code": str(ROOT),
        "train": train,
    }


def saved_steps(run: Run) -> list[int]:
    return [event["step"] for event in run.events("chief", "checkpoint")]


def assert_initial_rows(run: Run, step: int) -> None:
    """Check that most rows still have their initial values, uniform from -0.05 to 0.05, which differ between rows and between tables."""
    saved = tf.train.load_checkpoint(str(run.directory / "checkpoints" / f"ckpt-{step}"))
    matrices = [saved.get_tensor(name) for name, shape in saved.get_variable_to_shape_map().items() if shape == [ROWS, DIMENSION]]
    tables = [rows for rows in matrices if rows.min() < 0]  # the others are the optimizer's sums of squares
    assert len(tables) == TABLES
    for rows in tables:
        assert np.median(np.abs(rows)) == pytest.approx(0.025, rel=0.2)
        assert len(np.unique(rows)) > 0.9 * rows.size
    assert len({rows[-1].tobytes() for rows in tables}) == TABLES


def assert_exported(run: Run, step: int) -> None:
    """Check that the last model of a run, which was stopped before an evaluation, serves with the rows of the last checkpoint."""
    last = run.directory / "export" / "last"
    assert json.loads((last / "metrics.json").read_text())["step"] == step
    saved = tf.train.load_checkpoint(str(run.directory / "checkpoints" / f"ckpt-{step}"))
    served = tf.saved_model.load(str(last / "saved_model"))
    tables = [variable.numpy() for variable in served._all_variables if variable.shape == [ROWS, DIMENSION]]
    rows = {saved.get_tensor(name).tobytes() for name, shape in saved.get_variable_to_shape_map().items() if shape == [ROWS, DIMENSION]}
    assert len({table.tobytes() for table in tables} & rows) == TABLES
    assert any("exported as a SavedModel alone" in event["message"] for event in run.events("chief", "notice"))


def test_any_task_may_be_killed_and_the_rows_are_those_of_the_last_checkpoint(tmp_path: Path) -> None:
    with started(spec(), tmp_path) as run:
        run.await_two_checkpoints("chief")
        run.kill_training_process("worker-0")
        run.until("worker-0 to start again", lambda: len(run.events("worker-0", "started")) >= 2)
        assert run.events("chief", "restored") == []
        for victim in ("ps-0", "chief"):
            run.await_two_checkpoints("chief")
            saved, killed = saved_steps(run)[-1], time.time()
            run.kill_training_process(victim)

            def restored(since: float = killed) -> list[int]:
                return [event["step"] for event in run.events("chief", "restored") if event["time"] > since]

            assert run.until(f"a checkpoint, {victim} killed", restored)[-1] >= saved
        run.await_two_checkpoints("chief")
        losses = [event["loss"] for event in run.events("chief", "progress")]
        assert min(losses[-5:]) < losses[0]
        step = stop(run)
        assert_initial_rows(run, step)
        assert_exported(run, step)
