"""mnist: its published numbers, that it learns, and every summary it writes, read back from the event files."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.tensorboard_reader import Events, read_events, tensorboard
from tests.trainer.workloads.learning import accuracy, train
from trainer.workloads.mnist import PROJECTED_DIGITS, Mnist

VARIABLES = {"hidden/kernel", "hidden/bias", "logits/kernel", "logits/bias"}
HISTOGRAMS = VARIABLES | {"hidden/pre_activations", "hidden/activations", "logits/pre_activations", "logits/activations"}
SCALARS = {f"{name}/{statistic}" for name in VARIABLES for statistic in ("mean", "stddev", "min", "max")} | {"dropout_keep_probability"}


@pytest.fixture(scope="module")
def workload() -> Mnist:
    return Mnist(params={}, data="synthetic", seed=0)


@pytest.fixture(scope="module")
def model(workload: Mnist) -> keras.Model:
    return workload.model()


@pytest.fixture(scope="module")
def logdir(workload: Mnist, model: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory as the engine lays it out, with mnist's summaries of the start, of step 10 and of step 20."""
    root = tmp_path_factory.mktemp("run") / "logs"
    train_dir = str(root / "train")
    writer = tf.summary.create_file_writer(train_dir)
    with writer.as_default(step=0):
        workload.write_start_summaries(model, train_dir)
    for step in (10, 20):
        with writer.as_default(step=step):
            workload.write_summaries(model, step)
    writer.close()
    return root


@pytest.fixture(scope="module")
def events(logdir: Path) -> Events:
    return read_events(logdir / "train")


def test_the_network_has_the_published_shapes_and_start_values(workload: Mnist) -> None:
    model = workload.model()
    assert [tuple(variable.shape) for variable in model.trainable_variables] == [(784, 500), (500,), (500, 10), (10,)]
    for variable in model.trainable_variables:
        values = keras.ops.convert_to_numpy(variable)
        if values.ndim == 1:
            np.testing.assert_allclose(values, 0.1)
        else:
            assert abs(values).max() <= 0.2
            assert values.std() == pytest.approx(0.088, rel=0.05)
    assert model.get_layer("dropout").rate == pytest.approx(0.1)
    assert float(workload.optimizer().learning_rate) == pytest.approx(0.001)


def test_dropout_works_only_in_training(model: keras.Model) -> None:
    ones = tf.ones([100, 500])
    dropout = model.get_layer("dropout")
    np.testing.assert_array_equal(dropout(ones, training=False), ones)
    dropped = np.asarray(dropout(ones, training=True))
    assert (dropped == 0).mean() == pytest.approx(0.1, abs=0.01)


def test_keeping_every_unit_is_allowed() -> None:
    model = Mnist(params={"dropout_keep": 1.0, "hidden_units": 3}, data="synthetic", seed=0).model()
    np.testing.assert_array_equal(model.get_layer("dropout")(tf.ones([9, 3]), training=True), np.ones([9, 3]))


def test_it_learns_the_synthetic_digits(workload: Mnist) -> None:
    model = workload.model()
    train(workload, model, 600)
    assert accuracy(workload, model) >= 0.97


def test_scalars_show_the_variables_and_dropout(events: Events, model: keras.Model) -> None:
    assert events.tags("scalars") == SCALARS
    np.testing.assert_allclose(events.scalars("dropout_keep_probability"), [(10, 0.9), (20, 0.9)], rtol=1e-6)
    kernel = keras.ops.convert_to_numpy(model.get_layer("hidden").kernel)
    for statistic, value in (("mean", kernel.mean()), ("stddev", kernel.std()), ("min", kernel.min()), ("max", kernel.max())):
        np.testing.assert_allclose(events.scalars(f"hidden/kernel/{statistic}"), [(10, value), (20, value)], rtol=1e-6)


def test_images_are_ten_inputs(events: Events) -> None:
    assert events.tags("images") == {"inputs"}
    (_, first), (_, second) = events.values("inputs")
    width, height, *encoded = first.tolist()
    assert (width, height, len(encoded)) == (b"28", b"28", 10)
    assert first.tolist() != second.tolist()
    assert tf.io.decode_png(encoded[0]).shape == (28, 28, 1)


def test_histograms_count_every_value(events: Events) -> None:
    assert events.tags("histograms") == HISTOGRAMS
    for tag, size in (("hidden/kernel", 784 * 500), ("hidden/activations", PROJECTED_DIGITS * 500), ("logits/bias", 10)):
        _, histogram = events.values(tag)[-1]
        assert histogram.shape == (30, 3)
        assert histogram[:, 2].sum() == size
    activations = events.values("hidden/activations")[-1][1]
    assert activations[0, 0] == 0
    assert events.values("hidden/pre_activations")[-1][1][0, 0] < 0
    probabilities = events.values("logits/activations")[-1][1]
    assert probabilities[0, 0] >= 0
    assert probabilities[-1, 1] <= 1


def test_graph_holds_layers_loss_and_accuracy(events: Events) -> None:
    nodes = events.graph_nodes()
    names = "\n".join(name for name, _ in nodes)
    assert {"MatMul", "Relu", "SparseSoftmaxCrossEntropyWithLogits", "ArgMax"} <= {operation for _, operation in nodes}
    for part in ("hidden", "dropout", "logits", "cross_entropy", "accuracy"):
        assert part in names


def test_tensorboard_serves_all_summaries(logdir: Path, tmp_path: Path, model: keras.Model, workload: Mnist) -> None:
    with tensorboard(logdir, tmp_path / "tensorboard.log") as board:
        runs = board.wait_for("plugin/projector/runs", {"train"})
        assert runs == ["train"]
        assert set(board.wait_for("plugin/scalars/tags", {"train"})["train"]) == SCALARS
        assert set(board.wait_for("plugin/histograms/tags", {"train"})["train"]) == HISTOGRAMS
        assert set(board.wait_for("plugin/distributions/tags", {"train"})["train"]) == HISTOGRAMS
        assert set(board.wait_for("plugin/images/tags", {"train"})["train"]) == {"inputs"}
        board.wait_for_plugins({"scalars", "images", "graphs", "distributions", "histograms", "projector"})

        keep = board.json("plugin/scalars/scalars", run="train", tag="dropout_keep_probability")
        np.testing.assert_allclose([(step, value) for _, step, value in keep], [(10, 0.9), (20, 0.9)], rtol=1e-6)
        steps = [step for _, step, *_ in board.json("plugin/distributions/distributions", run="train", tag="hidden/kernel")]
        assert steps == [10, 20]
        shown = board.json("plugin/images/images", run="train", tag="inputs", sample="9")
        assert [image["step"] for image in shown] == [10, 20]
        assert tf.io.decode_png(board.get("plugin/images/individualImage?" + shown[0]["query"])).shape == (28, 28, 1)
        assert b"hidden" in board.get("plugin/graphs/graph", run="train")

        info = board.json("plugin/projector/info", run="train")
        shapes = {entry["tensorName"]: entry["tensorShape"] for entry in info["embeddings"]}
        assert shapes == {"hidden_weights": [784, 500], "hidden_activations": [PROJECTED_DIGITS, 500]}
        served = np.frombuffer(board.get("plugin/projector/tensor", run="train", name="hidden_weights"), np.float32)
        kernel = keras.ops.convert_to_numpy(model.get_layer("hidden").kernel)
        np.testing.assert_allclose(served.reshape(784, 500), kernel, rtol=1e-4)
        activations = np.frombuffer(board.get("plugin/projector/tensor", run="train", name="hidden_activations"), np.float32)
        assert activations.size == PROJECTED_DIGITS * 500
        assert activations.min() >= 0
        _, labels = next(iter(workload.eval_data(PROJECTED_DIGITS)))
        metadata = board.get("plugin/projector/metadata", run="train", name="hidden_activations").decode()
        assert [int(line) for line in metadata.split()] == labels.numpy().tolist()
        pixels = board.get("plugin/projector/metadata", run="train", name="hidden_weights").decode().splitlines()
        assert (pixels[0], len(pixels)) == ("pixel\trow\tcolumn", 785)
        sprites = tf.io.decode_png(board.get("plugin/projector/sprite_image", run="train", name="hidden_activations"))
        assert sprites.shape == (23 * 28, 23 * 28, 1)
        np.testing.assert_array_equal(sprites[:28, :28, 0], next(iter(workload.eval_data(1)))[0][0].numpy().reshape(28, 28))
