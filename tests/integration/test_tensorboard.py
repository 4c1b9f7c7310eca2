"""Data that a run of mnist leaves for TensorBoard, in the event files and as `launcher tensorboard` serves it."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.integration.running import Run, started
from tests.trainer.tensorboard_reader import Events, TensorBoard, profiles, read_events
from tests.trainer.test_socket_filter import own_address, reachable

STEPS = 210  # the last profile is of the step after 200
EVERY = list(range(10, STEPS + 1, 10))
DIGITS = 500

VARIABLES = {"hidden/kernel", "hidden/bias", "logits/kernel", "logits/bias"}
STATISTICS = {f"{variable}/{name}" for variable in VARIABLES for name in ("mean", "stddev", "min", "max")}
SCALARS = STATISTICS | {"loss", "accuracy", "learning_rate", "dropout_keep_probability", "examples_per_second"}
HISTOGRAMS = VARIABLES | {f"{layer}/{kind}" for layer in ("hidden", "logits") for kind in ("pre_activations", "activations")}
SHAPES = {"hidden/kernel": (784, 500), "hidden/bias": (500,), "logits/kernel": (500, 10), "logits/bias": (10,)}

SINGLE: dict[str, Any] = {"version": 1, "name": "board", "train": {"workload": "mnist", "steps": STEPS}}


def complete(spec: dict[str, Any], directory: Path) -> Run:
    with started(spec, directory) as run:
        run.launcher("wait", run.name)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return complete(SINGLE, tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module")
def train_events(run: Run) -> Events:
    return read_events(run.directory / "logs" / "train")


@pytest.fixture(scope="module")
def eval_events(run: Run) -> Events:
    return read_events(run.directory / "logs" / "eval")


def saved(run: Run) -> dict[str, np.ndarray]:
    """Return the weights of the last checkpoint by variable, which their shapes distinguish."""
    reader = tf.train.load_checkpoint(str(run.directory / "checkpoints"))
    # Adam's moments have the same shapes as the weights.
    values = [reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if not name.startswith("optimizer/_variables/")]
    weights = {variable: [value for value in values if np.shape(value) == shape] for variable, shape in SHAPES.items()}
    assert all(len(values) == 1 for values in weights.values()), reader.get_variable_to_shape_map()
    return {variable: values[0] for variable, values in weights.items()}


def assert_statistics(events: Events, weights: dict[str, np.ndarray]) -> None:
    """Check that the last statistics and histograms are those of `weights`."""
    for variable, values in weights.items():
        statistics = {name: events.scalars(f"{variable}/{name}")[-1][1] for name in ("mean", "stddev", "min", "max")}
        expected = {"mean": values.mean(), "stddev": values.std(), "min": values.min(), "max": values.max()}
        assert statistics == pytest.approx(expected, rel=1e-4, abs=1e-6)
        histogram = events.values(variable)[-1][1]
        assert histogram[:, 2].sum() == values.size
        assert (histogram[0, 0], histogram[-1, 1]) == pytest.approx((values.min(), values.max()))


def assert_profiles(directory: Path, at_most: int) -> None:
    """Check that there are profiles, and that they are of training; two within a second share a file."""
    paths = profiles(directory)
    assert 1 <= len(paths) <= at_most
    for path in paths:
        assert b"/host:CPU" in path.read_bytes()


def test_scalars_every_ten_steps(train_events: Events, run: Run) -> None:
    assert train_events.tags("scalars") == SCALARS
    for tag in SCALARS:
        assert [step for step, _ in train_events.scalars(tag)] == EVERY, tag
    values = {tag: [value for _, value in train_events.scalars(tag)] for tag in SCALARS}
    assert values["loss"][-1] < values["loss"][0] / 3
    assert 0 < values["accuracy"][0] < 0.75 < values["accuracy"][-1] <= 1
    assert values["learning_rate"] == pytest.approx([0.001] * len(EVERY))
    assert values["dropout_keep_probability"] == pytest.approx([0.9] * len(EVERY))
    assert min(values["examples_per_second"]) > 0
    assert_statistics(train_events, saved(run))


def test_evaluations_every_ten_steps(eval_events: Events, run: Run) -> None:
    assert eval_events.tags("scalars") == {"loss", "accuracy"}
    assert [step for step, _ in eval_events.scalars("loss")] == EVERY
    reported = {event["step"]: event["metrics"]["accuracy"] for event in run.events("chief", "evaluated")}
    assert reported == pytest.approx(dict(eval_events.scalars("accuracy")))
    assert eval_events.scalars("accuracy")[-1][1] == pytest.approx(run.status()["metrics"]["accuracy"])
    assert reported[STEPS] > 0.85


def test_images_histograms_graph_and_profile(train_events: Events, run: Run) -> None:
    images = train_events.values("inputs")
    assert [step for step, _ in images] == EVERY
    assert all(len(encoded) == 2 + 10 for _, encoded in images)  # width and height come first
    assert train_events.tags("histograms") == HISTOGRAMS
    for tag in HISTOGRAMS:
        assert [step for step, _ in train_events.values(tag)] == EVERY, tag
    assert {"MatMul", "Relu", "SparseSoftmaxCrossEntropyWithLogits"} <= {operation for _, operation in train_events.graph_nodes()}
    assert_profiles(run.directory / "logs" / "train", at_most=2)


def test_a_checkpoint_every_hundred_steps(run: Run) -> None:
    assert [event["step"] for event in run.events("chief", "checkpoint")] == [100, 200, STEPS]


@contextmanager
def served(run: Run) -> Iterator[tuple[TensorBoard, int]]:
    """Run `launcher tensorboard` on a free port; yields it and the port."""
    command = [sys.executable, "-m", "launcher", "tensorboard", run.name, "--runs", str(run.runs), "--port", "0"]
    with tempfile.TemporaryFile("w+") as output:
        environment = os.environ | {"PYTHONWARNINGS": "default", "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        try:
            port = int(await_output(process, output, re.compile(r"http://(?:127\.0\.0\.1|localhost):(\d+)")))
            yield TensorBoard(f"http://127.0.0.1:{port}"), port
        finally:
            process.terminate()
            process.wait(20)
    assert not reachable("127.0.0.1", port)  # it ended with the command


def await_output(process: "subprocess.Popen[bytes]", output: Any, pattern: re.Pattern[str], seconds: float = 60) -> str:
    deadline = time.monotonic() + seconds
    text = ""
    while time.monotonic() < deadline and process.poll() is None:
        output.seek(0)
        text = output.read()
        if match := pattern.search(text):
            return match[1]
        time.sleep(0.2)
    raise AssertionError(f"{pattern.pattern} was not written within {seconds} s:\n{text}")


def test_launcher_tensorboard_serves_all_data_on_loopback_only(run: Run) -> None:
    with served(run) as (board, port):
        names = {"train", "eval"}
        board.wait_for("plugin/scalars/tags", names)
        board.wait_for_plugins({"scalars", "images", "graphs", "distributions", "histograms", "projector"})
        scalars = board.json("plugin/scalars/tags")
        assert (set(scalars["train"]), set(scalars["eval"])) == (SCALARS, {"loss", "accuracy"})
        for name in sorted(names):
            assert [step for _, step, _ in board.json("plugin/scalars/scalars", run=name, tag="accuracy")] == EVERY
        for plugin in ("histograms", "distributions"):
            assert set(board.json(f"plugin/{plugin}/tags")["train"]) == HISTOGRAMS
            entries = board.json(f"plugin/{plugin}/{plugin}", run="train", tag="hidden/activations")
            assert [step for _, step, *_ in entries] == EVERY
        assert [image["step"] for image in board.json("plugin/images/images", run="train", tag="inputs", sample="9")][-1] == STEPS
        assert b"hidden" in board.get("plugin/graphs/graph", run="train")
        assert_projector(board, saved(run)["hidden/kernel"])
        assert str(run.directory / "logs") in json.dumps(board.json("environment"))
        assert reachable("127.0.0.1", port)
        assert not reachable(own_address(), port)


def assert_projector(board: TensorBoard, kernel: np.ndarray) -> None:
    """Check that the projector shows the first layer's weights, and the hidden activations of digits with their labels and pictures."""
    assert board.wait_for("plugin/projector/runs", {"train"}) == ["train"]
    info = board.json("plugin/projector/info", run="train")
    assert {entry["tensorName"]: entry["tensorShape"] for entry in info["embeddings"]} == {
        "hidden_weights": [784, 500],
        "hidden_activations": [DIGITS, 500],
    }
    weights = np.frombuffer(board.get("plugin/projector/tensor", run="train", name="hidden_weights"), np.float32)
    np.testing.assert_allclose(weights.reshape(784, 500), kernel, rtol=1e-4)
    activations = np.frombuffer(board.get("plugin/projector/tensor", run="train", name="hidden_activations"), np.float32)
    assert activations.shape == (DIGITS * 500,)
    labels = board.get("plugin/projector/metadata", run="train", name="hidden_activations").decode().split()
    assert (len(labels), set(labels)) == (DIGITS, set("0123456789"))
    sprites = tf.io.decode_png(board.get("plugin/projector/sprite_image", run="train", name="hidden_activations"))
    assert sprites.shape == (23 * 28, 23 * 28, 1)  # the smallest square that holds them


def assert_written_by_servers(run: Run, steps: int, every: int) -> None:
    """Check that a run of parameter servers has written the same data, of the chief's copy; test_examples.py starts that run."""
    train, held_out = (read_events(run.directory / "logs" / name) for name in ("train", "eval"))
    assert (train.tags("scalars"), held_out.tags("scalars")) == (SCALARS, {"loss", "accuracy"})
    assert (train.tags("histograms"), train.tags("images")) == (HISTOGRAMS, {"inputs"})
    for steps_written in ([step for step, _ in train.scalars("loss")], [step for step, _ in held_out.scalars("loss")]):
        # Workers continue while the chief writes: it writes a step of each interval, which need not be the last.
        assert steps_written == sorted(set(steps_written))
        assert len(steps_written) >= steps / every / 2
        assert steps_written[-1] == steps
    assert train.graphs
    assert_statistics(train, saved(run))
    assert_profiles(run.directory / "logs" / "train", at_most=2)
    for file in ("projector_config.pbtxt", "hidden_weights.bytes", "hidden_activations-sprites.png", "hidden_activations-labels.tsv"):
        assert (run.directory / "logs" / "train" / file).is_file()
