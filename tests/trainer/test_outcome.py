"""run.json of a run that fails, and a stop while TensorFlow ignores signals."""

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
    document = {"run": "small", "run_dir": str(run_dir), "scratch_dir": str(run_dir / "scratch"), "train": train, "max_restarts": 0}
    return json.dumps({**document, **more})


@pytest.mark.parametrize(
    "train, cause, detail",
    [
        ({"workload": "no.such:Model"}, "the configuration is wrong", "no module no"),
        ({"workload": "mnist_mlp", "data": "/no/such"}, "the data cannot be used", "no such directory on this machine"),
    ],
    ids=["workload", "data"],
)
def test_a_failure_that_a_restart_cannot_help_is_in_the_record(
    trainers: Any, tmp_path: Path, train: dict[str, str], cause: str, detail: str
) -> None:
    run = trainers.trainer(env={"TRAINER_SETTINGS": settings(tmp_path, train=train)}, preload=forked.TENSORFLOW)
    assert run.code(90) == 2
    record = run_state.read(tmp_path)
    assert (record["state"], record["name"], record["step"]) == ("failed", "small", 0)
    assert record["reason"] == f"{cause}: {run.event('failed')['detail']}"
    assert detail in record["reason"]


def test_run_json_shows_a_final_failure_and_then_the_resumed_run(trainers: Any, tmp_path: Path) -> None:
    run = trainers.trainer(env={"TRAINER_SETTINGS": settings(tmp_path)}, preload=forked.TENSORFLOW)
    saved = until("a checkpoint", lambda: run.events("checkpoint"), seen=lambda: run.lines)[0]
    assert run_state.read(tmp_path)["state"] == "running"
    os.kill(run.event("started")["pid"], signal.SIGKILL)
    assert run.code() == 1
    record = run_state.read(tmp_path)
    assert record["state"] == "failed"
    assert "killed by SIGKILL (out of memory?), exit code 137" in record["reason"]
    assert "the limit of 0 restarts is reached" in record["reason"]
    assert record["step"] >= saved["step"]  # as the training process recorded it
    assert Path(record["checkpoint"] + ".index").is_file()
    assert record["versions"]["tensorflow"]

    again = trainers.trainer(env={"TRAINER_SETTINGS": settings(tmp_path)}, preload=forked.TENSORFLOW)
    until("a checkpoint", lambda: again.events("checkpoint"), seen=lambda: again.lines)
    assert again.events("restored")
    assert (run_state.read(tmp_path)["state"], run_state.read(tmp_path).get("reason")) == ("running", None)
    again.send(signal.SIGTERM)
    assert again.code(90) == 143
    assert (run_state.read(tmp_path)["state"], run_state.read(tmp_path).get("reason")) == ("stopped", None)
    last_step = again.events("checkpoint")[-1]["step"]
    assert run_state.read(tmp_path)["step"] == last_step


@pytest.mark.slow
def test_other_tasks_leave_the_record_unchanged(trainers: Any, tmp_path: Path) -> None:
    before = '{"state": "running", "step": 7}'
    (tmp_path / "run.json").write_text(before)
    config = {"cluster": {"chief": ["127.0.0.1:1"]}, "task": {"type": "evaluator", "index": 0}}
    trainer_settings = settings(tmp_path, has_evaluator=True, orphan_timeout=0.5)
    run = trainers.trainer(env={"TRAINER_SETTINGS": trainer_settings, "TF_CONFIG": json.dumps(config)})
    assert run.code(90) == 75
    assert (tmp_path / "run.json").read_text() == before


@pytest.mark.slow
def test_a_stop_while_the_collective_runtime_starts_is_obeyed(trainers: Any, ports: Any, tmp_path: Path) -> None:
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
    # The trainer's parent reaches the second task; TensorFlow waits for it.
    ports.listen(second)
    leader = trainers.trainer(env=environments[0])
    wait_for_server(leader, first)
    ports.close(second)
    leader.send(signal.SIGTERM)
    leader.event("stopping")
    time.sleep(0.5)  # until the signal has been handled
    trainers.trainer(env=environments[1])
    assert leader.code(90) == 143
    assert run_state.read(tmp_path)["state"] == "stopped"
    assert leader.events("checkpoint")


def wait_for_server(run: Any, address: str) -> None:
    """Wait until TensorFlow's server of a task answers: its collective runtime then waits for the others."""
    host, port = address.split(":")

    def answers() -> bool:
        with socket.socket() as client:
            return client.connect_ex((host, int(port))) == 0

    until(f"a server at {address}", answers, seen=lambda: run.lines, every=0.05)
    time.sleep(0.5)
