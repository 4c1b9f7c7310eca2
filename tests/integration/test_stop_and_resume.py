"""Runs that are stopped or fail: their checkpoints, their continuation, and the messages to the user."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import forked
from tests.integration import leftovers
from tests.integration.running import ROOT, Run, checkpoints, kill_with_parent, paced, pid_of, started, stop
from tests.stand_in import stand_in

STOP_AFTER = 40
STEPS = 1500  # half a minute, unless they are hurried: more than a run takes between a status and a stop
ROLES: dict[str, dict[str, Any]] = {"single": {"chief": {}}, "multi_worker_mirrored": {"worker": {"replicas": 2}}}


def spec(strategy: str, **sections: Any) -> dict[str, Any]:
    return {"version": 1, "name": "run", "strategy": strategy, "roles": ROLES[strategy], **sections}


def file_of(run: Run) -> str:
    return str(run.runs.parent / f"{run.name}.yaml")


def until_midway(run: Run, chief: str = "chief") -> None:
    run.until(f"step {STOP_AFTER}", lambda: run.chief_step(chief) >= STOP_AFTER)


def assert_complete(run: Run, steps: int) -> None:
    result = run.launcher("wait", run.name, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    status = run.status()
    assert (status["state"], status["step"]) == ("succeeded", steps)
    assert checkpoints(run.directory)[-1] == steps
    leftovers.assert_none(run.directory)


def assert_resumed_from(run: Run, chief: str, step: int) -> None:
    """Check that no step was lost, and none was counted twice."""
    restored = run.events(chief, "restored")
    assert [event["step"] for event in restored] == [step]
    progress = [event for event in run.events(chief, "progress") if event["task"] == chief]
    assert max(event["step"] for event in progress if event["time"] <= restored[0]["time"]) <= step
    assert min(event["step"] for event in progress if event["time"] > restored[0]["time"]) > step


def test_a_stopped_run_resumes_at_the_same_step(tmp_path: Path) -> None:
    """Without servers; test_recovery.py has the other strategies. It saves only at the stop and at the end."""
    hurry = tmp_path / "hurry"
    params = {"seconds": 0.02, "slower": 1, "hurry": str(hurry)}
    with started(spec("single", **paced(STEPS, params=params)), tmp_path) as run:
        until_midway(run)
        assert leftovers.running(run.directory)  # otherwise the check that no process is left would prove nothing
        step = stop(run)
        assert STOP_AFTER <= step < STEPS
        hurry.touch()
        resumed = run.launcher("up", file_of(run), "--detach")
        assert f"continues from the checkpoint of step {step:,}" in resumed.stdout
        assert_complete(run, STEPS)
        assert run.status()["metrics"]["accuracy"] >= 0.9
        assert_resumed_from(run, "chief", step)
        assert all(task["restarts"] == [] for task in run.status()["tasks"])


@pytest.mark.slow
def test_a_changed_spec_needs_a_choice_and_fresh_keeps_the_old_run(tmp_path: Path) -> None:
    with started(spec("single", **paced(summaries={"every_steps": 10})), tmp_path) as run:
        until_midway(run)
        step = stop(run)
        changed = (file_of(run), "--set", "train.params.normalised=true", "--set", "train.steps=100")

        undecided = run.launcher("up", *changed, "--detach", check=False)
        assert undecided.returncode == 2
        for text in ("train.params", "--resume", "--fresh"):
            assert text in undecided.stderr, undecided.stderr
        assert run.status()["state"] == "stopped"

        # Of another model: the checkpoint does not fit, and is not touched.
        refused = run.launcher("up", *changed, "--set", "train.steps=1000000", "--resume", "--json", check=False)
        assert refused.returncode == 1
        summary = json.loads(refused.stdout.splitlines()[-1])
        assert "another model" in summary["reason"]
        assert summary["restarts"] == {}
        assert checkpoints(run.directory) == [step]

        fresh = run.launcher("up", *changed, "--fresh", "--detach")
        assert "starts from the first step" in fresh.stdout
        renamed = [path for path in run.runs.iterdir() if path.name.startswith("run.")]
        assert [checkpoints(path) for path in renamed] == [[step]]
        assert list((renamed[0] / "logs" / "train").iterdir())
        assert_complete(run, 100)
        assert run.events("chief", "restored") == []
        assert [checkpoints(path) for path in renamed] == [[step]]


def test_restarts_after_a_request_to_stop_one_task_do_not_count(tmp_path: Path) -> None:
    with started(spec("multi_worker_mirrored", limits={"max_restarts": 0}, **stand_in.spec()), tmp_path) as run:
        until_midway(run, "worker-0")
        os.kill(pid_of(run, "worker-1"), signal.SIGTERM)
        run.until("the run to resume", lambda: run.events("worker-0", "restored"))
        saved = [event["step"] for event in run.events("worker-0", "checkpoint")]
        run.until("more steps", lambda: run.chief_step("worker-0") > saved[-1])
        assert_resumed_from(run, "worker-0", saved[-1])
        for task in run.status()["tasks"]:
            assert [restart["exit_code"] for restart in task["restarts"]] == [143], task


def test_the_record_of_a_killed_run_says_how_it_ended(tmp_path: Path) -> None:
    with started(spec("single", limits={"max_restarts": 0}, **stand_in.spec(checkpoint={"every_steps": 20})), tmp_path) as run:
        until_midway(run)
        kill_with_parent(run, "chief")
        assert run.launcher("wait", run.name, check=False).returncode == 1
        record = json.loads((run.directory / "run.json").read_text())
        assert (record["state"], record["reason"]) == ("failed", run.status()["reason"])
        assert record["step"] >= 40

        run.launcher("up", file_of(run), "--detach")
        restored = run.until("the run to resume", lambda: run.events("chief", "restored"))[0]["step"]
        run.until("more steps", lambda: run.chief_step("chief") > restored)
        run.launcher("down", run.name, "--now")
        record = json.loads((run.directory / "run.json").read_text())
        assert record["state"] == "stopped"
        assert record["reason"].startswith("asked to stop")


PROGRAM = '''
"""A user's workload; `params` says what is wrong with it."""

import json
import os
import time

import keras
import numpy as np

from trainer.workloads import in_memory


class Model:
    def __init__(self, params, data, seed):
        self.params = params
        self.x = np.zeros((100, 1), np.float32)
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == params.get("slow_worker"):
            time.sleep(3600)

    def model(self):
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(self.params.get("units", 1))])

    def optimizer(self):
        return keras.optimizers.SGD(0.1)

    def loss(self, targets, outputs):
        if "missing" in self.params:
            raise KeyError(f"no column '{self.params['missing']}' in the targets")
        return keras.ops.mean(keras.ops.square(targets - outputs))

    def metrics(self, targets, outputs):
        return {}

    def train_data(self, shard):
        return in_memory.batches(self.x, self.x, shard)

    def eval_data(self, batch_size):
        return in_memory.once(self.x, self.x, batch_size)
'''


def own(tmp_path: Path, strategy: str, params: dict[str, Any], **sections: Any) -> Path:
    """Write the user's program and a spec for it; return the spec's file."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "program.py").write_text(PROGRAM)
    train = {"workload": "program:Model", "steps": 100, "batch_size": 1, "params": params}
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(spec(strategy, name="own", code="./code", train=train, **sections)))
    return file


def up(file: Path, *prefix: str, runs: Path | None = None) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run a spec in the foreground, by a command with this prefix; return its result and the summary that it wrote, empty without one."""
    runs = runs or file.parent / "runs"
    arguments = ("up", str(file), "--json", "--runs", str(runs))
    if prefix:
        command = [*prefix, sys.executable, "-m", "launcher", *arguments]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=forked.LONGEST, check=False)
    else:
        result = forked.launcher(*arguments, preload=forked.TENSORFLOW)
    assert "Traceback" not in result.stderr, result.stderr
    leftovers.assert_none(runs / "own")
    lines = result.stdout.splitlines()
    summary = json.loads(lines[-1]) if lines else {}
    assert isinstance(summary, dict)
    return result, summary


def test_a_program_with_an_error_fails_with_its_message(tmp_path: Path) -> None:
    """On one task; test_own_code.py has several."""
    result, summary = up(own(tmp_path, "single", {"missing": "price"}, limits={"max_restarts": 1}))
    assert result.returncode == summary["exit_code"] == 1
    assert summary["state"] == "failed"
    assert "KeyError: \"no column 'price' in the targets\"" in summary["reason"]
    assert "failed the same way twice in a row" in summary["reason"]
    assert set(summary["restarts"].values()) == {1}
    assert "program.py" in result.stdout  # the error's place, in the output


@pytest.mark.slow
def test_a_missing_peer_is_named(tmp_path: Path) -> None:
    limits = {"start_timeout": "8s", "max_restarts": 0}
    result, summary = up(own(tmp_path, "multi_worker_mirrored", {"slow_worker": 1}, limits=limits))
    assert result.returncode == 1
    assert summary["state"] == "failed"
    assert "8 s" in summary["reason"]
    assert "worker-1" in summary["reason"]


def test_a_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    file, runs = own(tmp_path, "single", {}), tmp_path / "runs"
    runs.write_text("a file where the directory should be")
    result, summary = up(file, runs=runs)
    assert result.returncode == 1
    assert summary == {}
    error = json.loads(result.stderr)
    assert str(runs) in error["error"]
    assert "--runs DIR" in error["remedy"]


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    # A disk of 2 MB that only the command sees, and that disappears with it.
    mount = f'mount -t tmpfs -o size=2m none {disk} && exec "$@"'
    on_small_disk = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    if sys.platform != "linux" or subprocess.run([*on_small_disk, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no disk of the test's own can be mounted here")
    # A million weights: their checkpoint does not fit, which the trainer computes before the first step.
    file = own(tmp_path, "single", {"units": 500_000})
    result, summary = up(file, *on_small_disk, runs=disk / "runs")
    assert result.returncode == 1
    assert summary["state"] == "failed"
    assert f"{disk / 'runs' / 'own' / 'checkpoints'} has " in summary["reason"], summary["reason"]
    assert "a checkpoint of this model takes 4.01 MB: not one can be saved" in summary["reason"], summary["reason"]
    assert summary["restarts"] in ({}, {"chief": 0})
    assert '"event":"progress"' not in result.stdout
