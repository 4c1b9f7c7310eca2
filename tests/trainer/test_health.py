"""`trainer --health` of real tasks on this machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from trainer.health import examine

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="health is read from /proc, which only Linux has")


def unique_tf_config(role: str = "chief") -> str:
    """Return a TF_CONFIG that no other task on this machine has."""
    return json.dumps({"cluster": {role: [f"{uuid.uuid4()}:2222"]}, "task": {"type": role, "index": 0}})


def health(tf_config: str) -> tuple[int, str]:
    """Run the command as a container's health check does; return its exit code and output."""
    result = subprocess.run(
        [sys.executable, "-P", "-m", "trainer", "--health"],
        cwd=REPOSITORY, env={**os.environ, "TF_CONFIG": tf_config}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert result.stderr == ""
    return result.returncode, result.stdout


def wait_for_program(run: Any, program: str) -> int:
    """Wait until a task's process has become `program`; return its id. Before that, its environment cannot be read."""
    pid: int = run.event("started")["pid"]

    def argv() -> list[str]:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")

    until(f"{program} to be process {pid}", lambda: argv()[0] == program, seen=argv)
    return pid


@pytest.mark.parametrize("role", ["chief", "master"])
def test_a_running_program_is_healthy_and_its_attempt_is_named(trainers: Any, role: str) -> None:
    tf_config = unique_tf_config(role)
    run = trainers.trainer("--", "sh", "-c", "sleep 30 & wait", env={"TF_CONFIG": tf_config})
    pid = wait_for_program(run, "sh")
    assert health(tf_config) == (0, f"chief: process {pid}, attempt 1, runs\n")


def test_a_stopped_process_is_unhealthy(trainers: Any) -> None:
    tf_config = unique_tf_config()
    run = trainers.trainer("--", "sleep", "30", env={"TF_CONFIG": tf_config})
    os.kill(wait_for_program(run, "sleep"), signal.SIGSTOP)
    code, line = health(tf_config)
    assert code == 1
    assert "stopped by a signal" in line


def test_a_task_between_two_attempts_is_unhealthy(trainers: Any) -> None:
    tf_config = unique_tf_config()
    run = trainers.trainer("--", "false", env={"TF_CONFIG": tf_config})
    run.event("restarting", 3)  # four seconds until the next attempt
    assert health(tf_config) == (1, "chief: no training process; it has ended, or is between two attempts\n")


def test_a_task_that_does_not_run_is_unhealthy() -> None:
    assert health(unique_tf_config())[0] == 1


def test_a_wrong_tf_config_is_named() -> None:
    code, line = health("{")
    assert code == 1
    assert "TF_CONFIG" in line


def test_a_server_is_healthy_once_its_port_answers(trainers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sleep` takes the server's place, so that the test decides when the port opens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        cluster = {"chief": [f"{uuid.uuid4()}:1"], "ps": [f"127.0.0.1:{port}"], "worker": ["w:1"]}
        tf_config = json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}})
        settings = json.dumps({"strategy": "parameter_server", "train": {"workload": "mnist"}})
        run = trainers.start_parent("sleep", "30", runs_built_in_trainer=False, env={"TF_CONFIG": tf_config, "TRAINER_SETTINGS": settings})
        wait_for_program(run, "sleep")
        monkeypatch.setenv("TF_CONFIG", tf_config)
        before = examine()
        assert not before.healthy
        assert f"nothing answers on port {port}" in before.line
        bound.listen(1)
        after = examine()
        assert after.healthy
        assert after.line.endswith(f"answers on port {port}")


def test_a_machine_without_proc_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", unique_tf_config())
    assert "only on Linux" in examine(tmp_path).line
