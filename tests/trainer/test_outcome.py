"""run.json of a run that did not end well, and a stop that comes while TensorFlow is deaf to signals."""

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.waiting import until
from trainer.engine import run_state


def settings(run_dir: Path, **more: Any) -> str:
    train = {
        "workload": "tests.trainer.engine.small:Small",
        "steps": 1_000_000,
        "batch_size": 16,
        "checkpoint": {"every_seconds": 0.2},
        "steps_per_execution": 10,
        "summaries": {"every_steps": 0},
        **more.pop("train", {}),
    }
    whole = {"run": "small", "run_dir": str(run_dir), "scratch_dir": str(run_dir / "scratch"), "train": train, "max_restarts": 0}
    return json.dumps({**whole, **more})


def test_a_wrong_configuration_is_in_the_record(trainers: Any, tmp_path: Path) -> None:
    run = trainers.trainer(env={"TRAINER_SETTINGS": settings(tmp_path, train={"workload": "no.such:Model"})}, preload=forked.TENSORFLOW)
    assert run.code(90) == 2
    found = run_state.read(tmp_path)
    assert (found["state"], found["name"], found["step"]) == ("failed", "small", 0)
    assert found["reason"] == f"the configuration is wrong: {run.event('failed')['detail']}"
    assert "no module no" in found["reason"]


@pytest.mark.timeout(240)
def test_a_run_that_fails_for_good_says_so_and_one_that_goes_on_says_that(trainers: Any, tmp_path: Path) -> None:
    run = trainers.trainer(env={"TRAINER_SETTINGS": settings(tmp_path)}, preload=forked.TENSORFLOW)
    saved = until("a checkpoint", lambda: run.events("checkpoint"), 90, seen=lambda: run.lines)[0]
    assert run_state.read(tmp_path)["state"] == "running"
    os.kill(run.event("started")["pid"], signal.SIGKILL)
    assert run.code() == 1
    found = run_state.read(tmp_path)
    assert found["state"] == "failed"
    assert "killed by SIGKILL (out of memory?), exit code 137" in found["reason"]
    assert "the limit of 0 restarts is reached" in found["reason"]
    assert found["step"] >= saved["step"]  # what the training process said stays
    assert Path(found["checkpoint"] + ".index").is_file()
    assert found["versions"]["tensorflow"]

    again = trainers.trainer(env={"TRAINER_SETTINGS": settings(tmp_path)}, preload=forked.TENSORFLOW)
    until("a checkpoint", lambda: again.events("checkpoint"), 90, seen=lambda: again.lines)
    assert again.events("restored")
    assert (run_state.read(tmp_path)["state"], run_state.read(tmp_path).get("reason")) == ("running", None)
    again.send(signal.SIGTERM)
    assert again.code(90) == 143
    assert (run_state.read(tmp_path)["state"], run_state.read(tmp_path).get("reason")) == ("stopped", None)
    done = again.events("checkpoint")[-1]["step"]
    assert run_state.read(tmp_path)["step"] == done


@pytest.mark.slow
def test_other_tasks_leave_the_record_alone(trainers: Any, tmp_path: Path) -> None:
    before = '{"state": "running", "step": 7}'
    (tmp_path / "run.json").write_text(before)
    config = {"cluster": {"chief": ["127.0.0.1:1"]}, "task": {"type": "evaluator", "index": 0}}
    told = settings(tmp_path, has_evaluator=True, orphan_timeout=0.5)
    run = trainers.trainer(env={"TRAINER_SETTINGS": told, "TF_CONFIG": json.dumps(config)})
    assert run.code(90) == 75
    assert (tmp_path / "run.json").read_text() == before


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_stop_while_the_collective_runtime_starts_is_heard(trainers: Any, ports: Any, tmp_path: Path) -> None:
    first, second = ports.address(), ports.address()
    ports.close(first)
    cluster = {"worker": [first, second]}
    environments = [
        {
            "TRAINER_SETTINGS": settings(tmp_path, strategy="multi_worker_mirrored", max_restarts=5),
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
        }
        for index in range(2)
    ]
    # For the trainer's parent the second task is there; TensorFlow waits for it.
    ports.listen(second)
    leader = trainers.trainer(env=environments[0])
    starting(leader, first)
    ports.close(second)
    leader.send(signal.SIGTERM)
    leader.event("stopping")
    time.sleep(0.5)  # whatever heard it has heard it
    trainers.trainer(env=environments[1])
    assert leader.code(90) == 143
    assert run_state.read(tmp_path)["state"] == "stopped"
    assert leader.events("checkpoint")


def starting(run: Any, address: str) -> None:
    """Wait until TensorFlow's server of a task answers: its collective runtime then waits for the others."""
    host, port = address.split(":")

    def answers() -> bool:
        with socket.socket() as client:
            return client.connect_ex((host, int(port))) == 0

    until(f"a server at {address}", answers, 90, seen=lambda: run.lines, every=0.05)
    time.sleep(0.5)
