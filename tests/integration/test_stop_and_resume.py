"""Runs that are stopped, lose whole tasks or cannot go on: what is saved, who comes back, and what the user is told."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import yaml

from tests.integration import leftovers
from tests.integration.running import ROOT, Run, started

# Enough that a run is not done before it is stopped: one process alone is the fastest.
STEPS = {"single": 12_000, "parameter_server": 4000, "multi_worker_mirrored": 4000}
STOP_AFTER = 200
ROLES: dict[str, dict[str, Any]] = {
    "single": {"chief": {}},
    "parameter_server": {"chief": {}, "ps": {}, "worker": {"replicas": 2}},
    "multi_worker_mirrored": {"worker": {"replicas": 2}},
}
CHIEF = {"single": "chief", "parameter_server": "chief", "multi_worker_mirrored": "worker-0"}
# Nothing is saved but at a stop and at the end.
TRAIN = {
    "workload": "mnist_mlp",
    "learning_rate": {"schedule": "cosine"},  # as in examples/mnist-ps.yaml: the last steps are small
    "checkpoint": {"every_steps": 1_000_000},
    "evaluate": {"every_steps": 0},
}

pytestmark = pytest.mark.timeout(240)


def spec(strategy: str, **sections: Any) -> dict[str, Any]:
    train = {"steps": STEPS[strategy], **TRAIN}
    return {"version": 1, "name": "run", "strategy": strategy, "roles": ROLES[strategy], "train": train, **sections}


def file_of(run: Run) -> str:
    return str(run.runs.parent / f"{run.name}.yaml")


def until_midway(run: Run, chief: str, after: int = STOP_AFTER) -> None:
    run.until(f"step {after}", lambda: run.chief_step(chief) >= after, timeout=90)


def checkpoints(directory: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("ckpt-")) for path in directory.glob("checkpoints/ckpt-*.index"))


def stop(run: Run) -> int:
    """Stop the run gracefully; return the step of the checkpoint that it says it saved."""
    run.launcher("down", run.name)
    step = assert_saved(run)
    assert updates(run, step) == step
    return step


def assert_saved(run: Run) -> int:
    """Check that a run has stopped, of which nothing is left but what it has saved; return the step of that."""
    leftovers.assert_none(run.directory)
    status = run.status()
    assert status["state"] == "stopped"
    step = status["step"]
    assert isinstance(step, int)
    assert status["checkpoint_step"] == step
    assert checkpoints(run.directory)[-1] == step
    record = json.loads((run.directory / "run.json").read_text())
    assert (record["state"], record["step"]) == ("stopped", step)
    return step


def updates(run: Run, step: int) -> int:
    """Return how many updates the checkpoint of a step has seen."""
    saved = tf.train.load_checkpoint(str(run.directory / "checkpoints" / f"ckpt-{step}"))
    return int(saved.get_tensor("optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"))


def assert_complete(run: Run, strategy: str) -> None:
    done = run.launcher("wait", run.name, check=False, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    status = run.status()
    assert (status["state"], status["step"]) == ("succeeded", STEPS[strategy])
    assert status["metrics"]["accuracy"] >= 0.97
    assert checkpoints(run.directory)[-1] == STEPS[strategy]
    leftovers.assert_none(run.directory)


def assert_gone_on_from(run: Run, chief: str, step: int) -> None:
    """Check that no step was lost, and none was counted twice."""
    restored = run.events(chief, "restored")
    assert [event["step"] for event in restored] == [step]
    told = [event for event in run.events(chief, "progress") if event["task"] == chief]
    assert max(event["step"] for event in told if event["time"] <= restored[0]["time"]) <= step
    assert min(event["step"] for event in told if event["time"] > restored[0]["time"]) > step


# Each strategy stops in its own way; the fast tests have the simplest.
SINGLE_FAST = ["single", *(pytest.param(name, marks=pytest.mark.slow) for name in ROLES if name != "single")]


@pytest.mark.parametrize("strategy", SINGLE_FAST)
def test_a_stopped_run_goes_on_from_exactly_there(strategy: str, tmp_path: Path) -> None:
    chief = CHIEF[strategy]
    with started(spec(strategy), tmp_path) as run:
        until_midway(run, chief)
        assert leftovers.running(run.directory)  # or the check that nothing is left would say nothing
        step = stop(run)
        assert STOP_AFTER <= step < STEPS[strategy]
        again = run.launcher("up", file_of(run), "--detach")
        assert f"goes on from the checkpoint of step {step:,}" in again.stdout
        assert_complete(run, strategy)
        assert_gone_on_from(run, chief, step)
        assert all(task["restarts"] == [] for task in run.status()["tasks"])


@pytest.mark.slow
def test_a_changed_spec_asks_and_fresh_keeps_the_old_run(tmp_path: Path) -> None:
    with started(spec("single"), tmp_path) as run:
        until_midway(run, "chief")
        step = stop(run)
        changed = (file_of(run), "--set", "train.params.hidden_units=64")

        asked = run.launcher("up", *changed, "--detach", check=False)
        assert asked.returncode == 2
        for told in ("train.params", "--resume", "--fresh"):
            assert told in asked.stderr, asked.stderr
        assert run.status()["state"] == "stopped"

        # Of another model: what is saved does not fit, and is not touched.
        misfit = run.launcher("up", *changed, "--resume", "--json", check=False, timeout=90)
        assert misfit.returncode == 1
        summary = json.loads(misfit.stdout.splitlines()[-1])
        assert "another model" in summary["reason"]
        assert summary["restarts"] == {}
        assert checkpoints(run.directory) == [step]

        fresh = run.launcher("up", *changed, "--fresh", "--detach")
        assert "starts anew" in fresh.stdout
        aside = [path for path in run.runs.iterdir() if path.name.startswith("run.")]
        assert [checkpoints(path) for path in aside] == [[step]]
        assert list((aside[0] / "logs" / "train").iterdir())
        assert_complete(run, "single")
        assert run.events("chief", "restored") == []
        assert [checkpoints(path) for path in aside] == [[step]]


@pytest.mark.slow
def test_a_multi_worker_task_that_is_asked_to_stop_alone_costs_no_step(tmp_path: Path) -> None:
    with started(spec("multi_worker_mirrored", limits={"max_restarts": 0}), tmp_path) as run:
        until_midway(run, "worker-0")
        os.kill(pid_of(run, "worker-1"), signal.SIGTERM)
        assert_complete(run, "multi_worker_mirrored")  # with max_restarts 0: this restart counts for nobody
        saved = [event["step"] for event in run.events("worker-0", "checkpoint")]
        assert len(saved) == 2
        assert_gone_on_from(run, "worker-0", saved[0])
        for task in run.status()["tasks"]:
            assert [restart["exit_code"] for restart in task["restarts"]] == [143], task


@pytest.mark.slow
@pytest.mark.parametrize("strategy,victim", [("parameter_server", "worker-1"), ("multi_worker_mirrored", "worker-0")])
def test_a_task_killed_with_its_parent_is_brought_back_by_the_launcher(strategy: str, victim: str, tmp_path: Path) -> None:
    chief = CHIEF[strategy]
    frequent = TRAIN | {"steps": STEPS[strategy], "checkpoint": {"every_steps": 200}}
    with started(spec(strategy, train=frequent), tmp_path) as run:
        run.until("two checkpoints", lambda: len(run.events(chief, "checkpoint")) >= 2, timeout=90)
        parent, child = pid_of(run, victim), run.events(victim, "started")[-1]["pid"]
        killed = time.time()
        for group in (parent, child):
            with_all(group)
        run.until(f"{victim} to be there again", lambda: pid_of(run, victim) not in (None, parent))
        assert_complete(run, strategy)
        assert [event["attempt"] for event in run.events(victim, "started")] == [1, 1]  # another parent, which counts anew
        tasks = {task["name"]: task["restarts"] for task in run.status()["tasks"]}
        assert len(tasks[victim]) == 1
        assert "SIGKILL" in tasks[victim][0]["cause"]
        assert tasks[victim][0]["time"] >= killed
        if strategy == "parameter_server":
            assert run.events("chief", "restored") == []
            assert [name for name, restarts in tasks.items() if restarts] == [victim]
        else:
            restored = run.events(chief, "restored")
            assert len(restored) == 1
            assert restored[0]["step"] >= 400
            assert [restart["exit_code"] for restart in tasks["worker-1"]] == [75]


@pytest.mark.slow
def test_the_record_of_a_killed_run_says_how_it_ended(tmp_path: Path) -> None:
    frequent = TRAIN | {"steps": 1_000_000, "checkpoint": {"every_steps": 200}}
    with started(spec("single", train=frequent, limits={"max_restarts": 0}), tmp_path) as run:
        until_midway(run, "chief")
        for group in (pid_of(run, "chief"), run.events("chief", "started")[-1]["pid"]):
            with_all(group)
        assert run.launcher("wait", run.name, check=False).returncode == 1
        record = json.loads((run.directory / "run.json").read_text())
        assert (record["state"], record["reason"]) == ("failed", run.status()["reason"])
        assert record["step"] >= STOP_AFTER

        run.launcher("up", file_of(run), "--detach")
        restored = run.until("it to go on", lambda: run.events("chief", "restored"))[0]["step"]
        run.until("more steps", lambda: run.chief_step("chief") > restored)
        run.launcher("down", run.name, "--now")
        record = json.loads((run.directory / "run.json").read_text())
        assert record["state"] == "stopped"
        assert record["reason"].startswith("asked to stop")


def pid_of(run: Run, task: str) -> Any:
    """Return the process id of a task's parent process; None while there is none."""
    return next(status["pid"] for status in run.status()["tasks"] if status["name"] == task)


def with_all(group: int) -> None:
    """Kill a process group at once; it may just be dying with its parent."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


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
            time.sleep(600)

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


def up(file: Path, *before: str, runs: Path | None = None, timeout: float = 120) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run a spec in the foreground; return how the command ended and the summary it wrote, empty without one."""
    runs = runs or file.parent / "runs"
    command = [*before, sys.executable, "-m", "launcher", "up", str(file), "--json", "--runs", str(runs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    leftovers.assert_none(runs / "own")
    lines = done.stdout.splitlines()
    summary = json.loads(lines[-1]) if lines else {}
    assert isinstance(summary, dict)
    return done, summary


@pytest.mark.parametrize("strategy", SINGLE_FAST)
def test_a_program_with_an_error_fails_with_its_own_words(strategy: str, tmp_path: Path) -> None:
    done, summary = up(own(tmp_path, strategy, {"missing": "price"}, limits={"max_restarts": 1}))
    assert done.returncode == summary["exit_code"] == 1
    assert summary["state"] == "failed"
    assert "KeyError: \"no column 'price' in the targets\"" in summary["reason"]
    assert "failed the same way twice in a row" in summary["reason"]
    assert set(summary["restarts"].values()) == {1}
    assert "program.py" in done.stdout  # where it is, among the output


@pytest.mark.slow
def test_a_missing_peer_is_named(tmp_path: Path) -> None:
    limits = {"start_timeout": "8s", "max_restarts": 0}
    done, summary = up(own(tmp_path, "multi_worker_mirrored", {"slow_worker": 1}, limits=limits))
    assert done.returncode == 1
    assert summary["state"] == "failed"
    assert "8 s" in summary["reason"]
    assert "worker-1" in summary["reason"]


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    file, runs = own(tmp_path, "single", {}), tmp_path / "runs"
    runs.write_text("a file where the directory should be")
    done, summary = up(file, runs=runs)
    assert done.returncode == 1
    assert summary == {}
    error = json.loads(done.stderr)
    assert str(runs) in error["error"]
    assert "another directory for runs" in error["remedy"]


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    # A disk of 2 MB that this command alone sees; it goes with it.
    mount = f'mount -t tmpfs -o size=2m none {disk} && exec "$@"'
    small = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    if sys.platform != "linux" or subprocess.run([*small, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no disk of the test's own can be mounted here")
    # A million weights: the checkpoint does not fit.
    file = own(tmp_path, "single", {"units": 500_000}, limits={"max_restarts": 0})
    done, summary = up(file, *small, runs=disk / "runs")
    assert done.returncode == 1
    assert summary["state"] == "failed"
    assert "No space left on device" in summary["reason"], summary["reason"]
