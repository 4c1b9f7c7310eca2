"""`launcher stacks` of a local run; tests/e2e has tests of containers and pods, tests/trainer/test_stacks.py of the parent's part."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from launcher.backend.model import Backend
from launcher.cli.stacks import _running_tasks
from launcher.errors import UsageError
from launcher.runs.status import RunStatus, State, TaskStatus
from tests.launcher.cli.conftest import Cli
from tests.waiting import until

PROGRAM = """
import json, os, time

def waits_for_nothing():
    time.sleep(3600)

if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief":
    waits_for_nothing()
os.execv("/bin/sleep", ["sleep", "3600"])
"""


def test_stacks_are_shown_of_each_task(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    spec = {
        "version": 1,
        "name": "toy",
        "strategy": "multi_worker_mirrored",
        "roles": {"chief": {}, "worker": {}},
        "command": ["python", "train.py"],
    }
    (tmp_path / "toy.yaml").write_text(json.dumps(spec), encoding="utf-8")
    assert cli("up", "--detach", "toy.yaml").returncode == 0

    def stacks() -> str:
        shown = cli("stacks", "toy").stdout
        return shown if "waits_for_nothing" in shown and "another program" in shown else ""

    shown = until("the stacks of both", stacks, seen=lambda: cli("stacks", "toy").stdout, every=0.2)
    chief, worker = shown.split("\n\n")[:2]
    assert chief.startswith("chief  process ")
    assert f'File "{tmp_path / "train.py"}", line 5 in waits_for_nothing' in chief
    assert worker.startswith("worker-0  process ")
    assert "runs another program now" in worker
    reports = [json.loads(line) for line in cli("stacks", "toy", "chief", "--json").stdout.splitlines()]
    assert [(report["task"], report["problem"]) for report in reports] == [("chief", "")]
    assert "in waits_for_nothing" in reports[0]["processes"][0]["stacks"]
    unknown = cli("stacks", "toy", "chef")
    assert (unknown.returncode, "did you mean chief?" in unknown.stderr.lower()) == (2, True), unknown.stderr
    assert cli("down", "toy", "--now").returncode == 0
    ended = cli("stacks", "toy")
    assert (ended.returncode, "toy does not run: it is stopped" in ended.stderr) == (2, True), ended.stderr


def test_a_task_that_has_ended_is_named_with_its_own_state() -> None:
    tasks = (TaskStatus("chief", State.RUNNING), TaskStatus("worker-0", State.FAILED))
    backend = cast("Backend", SimpleNamespace(status=lambda _: RunStatus("toy", "docker", State.RUNNING, tasks=tasks)))
    with pytest.raises(UsageError, match="worker-0 does not run: it is failed") as refused:
        _running_tasks(backend, "toy", "worker-0", Path("elsewhere"))
    assert "`launcher logs toy --on docker --runs elsewhere`" in refused.value.remedy
