"""Users' code in whole runs: every task can import it, and an error in it is shown and not retried endlessly."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.running import Run

HELPER = "def double(x):\n    return x * 2\n"
MODEL = """
import keras, numpy as np, tensorflow as tf
from parts.helper import double
from trainer.workloads.train_op import minimize

def train_data():
    x = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, double(x.sum(axis=1, keepdims=True))))

def eval_data():
    x = np.random.default_rng(1).normal(size=(100, 3)).astype(np.float32)
    return x, double(x.sum(axis=1, keepdims=True))

def metrics(targets, predictions):
    return {"error": tf.reduce_mean(tf.abs(targets - predictions))}

def line(features, targets, mode, params):
    weights = tf.Variable(tf.zeros([3, 1]), name="weights")
    predictions = double(features @ weights)
    loss = tf.reduce_mean((targets - predictions) ** 2)
    return predictions, loss, minimize(loss, keras.optimizers.Adam(0.05))

def wrong(features, targets):
    weights = tf.Variable(tf.zeros([3, 1]), name="weights")
    predictions = features @ weights
    loss = tf.reduce_mean(check(targets - predictions))
    return predictions, loss, minimize(loss, "sgd")

def check(errors):
    return tf.debugging.check_numerics(tf.math.log(errors - 1e6), "the loss")

def late(features, targets):
    weights = tf.Variable(tf.zeros([3, 1]), name="weights")
    predictions = features @ weights
    with tf.control_dependencies([tf.debugging.assert_less(tf.abs(targets), 7.0, "a target is too large")]):
        loss = tf.reduce_mean((targets - predictions) ** 2)
    return predictions, loss, minimize(loss, "sgd")
"""

ROLES: dict[str, dict[str, Any]] = {
    "single": {"chief": {}},
    "multi_worker_mirrored": {"worker": {"replicas": 2}},
    "parameter_server": {"chief": {}, "ps": {}, "worker": {"replicas": 2}},
}

# Of each strategy: a function of MODEL, where it fails, and the beginning of the message.
LOSS_IS_NAN = ("wrong", "check", "InvalidArgumentError: the loss : Tensor had NaN")
ERRORS = {
    "single": LOSS_IS_NAN,
    "multi_worker_mirrored": LOSS_IS_NAN,
    "parameter_server": ("late", "late", "InvalidArgumentError: assertion failed: [a target is too large]"),
}


def run(directory: Path, strategy: str, workload: str, **train: Any) -> Run:
    """Run a workload to its end, from a directory other than the code's."""
    code = directory / "src"
    (code / "parts").mkdir(parents=True)
    (code / "parts" / "__init__.py").touch()
    (code / "parts" / "helper.py").write_text(HELPER)
    (code / "lines.py").write_text(MODEL)
    spec = {
        "version": 1,
        "name": "own",
        "strategy": strategy,
        "roles": {**ROLES[strategy], **train.pop("roles", {})},
        "code": "./src",
        "train": {"workload": workload, "steps": 300, "batch_size": 20, **train},
    }
    file = directory / "own.yaml"
    file.write_text(yaml.safe_dump(spec))
    own_run = Run("own", directory / "runs")
    own_run.launcher("up", str(file), check=False)
    return own_run


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])  # examples/custom-workload.yaml is mirrored
def test_code_is_importable_in_every_task_that_runs_python(strategy: str, tmp_path: Path) -> None:
    finished = run(
        tmp_path,
        strategy,
        "lines:line",
        roles={"evaluator": {}},
        evaluate={"every_steps": 100},
        checkpoint={"every_steps": 100},
    )
    status = finished.status()
    assert (status["state"], status["step"]) == ("succeeded", 300), status
    assert status["metrics"]["error"] < 0.3
    assert finished.events("evaluator", "evaluated")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ERRORS)
def test_an_error_in_users_code_is_shown_and_ends_the_run_when_it_repeats(strategy: str, tmp_path: Path) -> None:
    function, place, message = ERRORS[strategy]
    failed = run(tmp_path, strategy, f"lines:{function}")
    status = failed.status()
    assert status["state"] == "failed"
    assert "it failed the same way twice in a row, with no step forward between" in status["reason"]
    assert message in status["reason"]
    task = next(name for name in ("chief", "worker-0", "worker-1") if f"{name} failed" in status["reason"])
    assert f"{task} failed on attempt" in status["reason"]
    assert "(exit code 2)" in status["reason"]
    log = failed.log(task)
    start = log.index(f"{task}: an error in your code")
    lines = [line.partition(" ")[2] for line in log[start:].splitlines()[:12]]
    assert lines[1] == "Traceback (most recent call last):"
    assert any("lines.py" in line and f"in {place}" in line for line in lines)
    end = next(index for index, line in enumerate(lines) if line.startswith(message))
    assert not any("site-packages" in line or "trainer/engine" in line for line in lines[: end + 1])
    started = len(failed.events(task, "started"))
    # Peers of an all-reduce may lose each other before each has failed twice itself.
    assert started <= 4 if strategy == "multi_worker_mirrored" else started == 2
    if strategy == "parameter_server":  # only the chief runs Python: it reports the worker's error
        assert "chief failed on attempt 2 (exit code 2)" in status["reason"]
        assert re.search(r"a target is too large.*lines\.py:\d+, on worker-[01]\)", status["reason"]), status["reason"]
        assert re.search(r"chief: an error in your code, on worker-[01]; ", log)
