"""click_through: learns the planted clicks, reads Criteo's format, and shows AUC beside its loss, the log loss."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.test_loop import Output
from tests.trainer.tensorboard_reader import read_events
from tests.trainer.workloads.click_logs import write
from trainer.engine import loop
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.replicated import ReplicatedSession
from trainer.engine.train_config import train_config
from trainer.events import Reporter
from trainer.settings import TrainerSettings
from trainer.workloads import planted_clicks
from trainer.workloads.catalog import ClickThroughParams
from trainer.workloads.click_through import ClickThrough, HeldOutAuc, batch_auc
from trainer.workloads.criteo import CATEGORIES, NUMBERS
from trainer.workloads.errors import DataError, WorkloadError
from trainer.workloads.protocol import Shard

SMALL = {"rows": 200, "dimension": 8, "hidden_units": [16], "eval_examples": 5000}


def trained(run_dir: Path, steps: int, data: str = "synthetic", **params: Any) -> tuple[Any, Output]:
    train = {"workload": "click_through", "steps": steps, "data": data, "params": SMALL | params, "batch_size": 256}
    values = {"run": "clicks", "run_dir": str(run_dir), "scratch_dir": str(run_dir / "scratch"), "train": train}
    config = train_config(TrainerSettings.model_validate(values))
    clicks = ClickThrough(params=config.train.params, data=data, seed=0)
    output = Output()
    session = ReplicatedSession(clicks, config, AllReduce())
    return loop.run(session, clicks, config, Reporter("chief", output), lambda: False), output


def test_a_small_model_comes_near_the_best_auc_and_reports_it(tmp_path: Path) -> None:
    outcome, output = trained(tmp_path, 500)
    params = ClickThroughParams.model_validate(SMALL)
    best = planted_clicks.best_auc(ClickThrough(SMALL, "synthetic", 0).rows, params.zipf_exponent, params.eval_examples)
    assert best - NEAR < outcome.metrics["auc"] < best
    assert outcome.metrics.keys() == {"loss", "auc"}
    assert outcome.metrics["loss"] < 0.5
    assert output.events("progress")[-1]["metrics"].keys() == {"auc"}
    assert output.events("evaluated")[-1]["metrics"] == outcome.metrics
    for logs in ("train", "eval"):
        written = read_events(tmp_path / "logs" / logs)
        assert dict(written.scalars("auc"))[500] > 0.7
        assert dict(written.scalars("loss"))[500] < 0.6


NEAR = 0.03


def test_it_trains_on_criteos_files(tmp_path: Path) -> None:
    """Even lines have clicks, and one feature is the number of the line, so that there is something to learn."""
    write(tmp_path / "train.txt.gz", range(600))
    outcome, _ = trained(tmp_path / "run", 20, data=str(tmp_path))
    assert outcome.metrics["loss"] < 0.6
    clicks = ClickThrough(SMALL, str(tmp_path), 0)
    assert clicks.train_examples() == 540
    assert sum(len(labels) for _, labels in clicks.eval_data(32)) == 60


@pytest.fixture(scope="module")
def clicks() -> ClickThrough:
    return ClickThrough(SMALL, "synthetic", 0)


@pytest.fixture(scope="module")
def model(clicks: ClickThrough) -> keras.Model:
    return clicks.model()


def test_each_category_has_a_table_of_each_part(clicks: ClickThrough, model: keras.Model) -> None:
    shapes = {layer.name: tuple(layer.embeddings.shape) for layer in model.layers if isinstance(layer, keras.layers.Embedding)}
    assert shapes == {f"{part}_c{c}": (200, size) for part, size in (("wide", 1), ("deep", 8)) for c in range(1, CATEGORIES + 1)}
    (features, labels) = next(iter(clicks.train_data(Shard(32, 0))))
    assert {name: value.shape for name, value in features.items()} == {"numbers": (32, NUMBERS), "categories": (32, CATEGORIES)}
    outputs = model(features)
    assert outputs.shape == labels.shape == (32,)
    probability = tf.sigmoid(outputs)
    expected = -tf.reduce_mean(labels * tf.math.log(probability) + (1 - labels) * tf.math.log(1 - probability))
    assert float(clicks.loss(labels, outputs)) == pytest.approx(float(expected), rel=1e-5)


def test_negative_numbers_and_zero_are_numbers_too(model: keras.Model) -> None:
    ids = tf.zeros([4, CATEGORIES], tf.int64)
    outputs = model({"numbers": tf.constant([[-3.0], [0.0], [1.0], [1e9]]) * tf.ones([4, NUMBERS]), "categories": ids})
    assert np.isfinite(outputs).all()
    assert len(np.unique(outputs)) == 4


def test_a_batch_and_an_evaluation_have_the_exact_auc() -> None:
    rng = np.random.default_rng(2)
    labels, scores = rng.integers(0, 2, 400).astype(np.float32), np.round(rng.normal(0, 2, 400), 1).astype(np.float32)
    exact = planted_clicks.auc(scores, labels)
    assert float(batch_auc(tf.constant(labels), tf.constant(scores))) == pytest.approx(exact, abs=1e-5)
    assert float(batch_auc(tf.ones([5]), tf.range(5.0))) == float(batch_auc(tf.zeros([5]), tf.range(5.0))) == 0.5
    whole = HeldOutAuc()
    for _ in range(2):
        whole.reset()
        for part in (slice(0, 150), slice(150, 400)):
            whole.update(labels[part], scores[part])
        assert whole.result()["auc"] == pytest.approx(exact, abs=0.003)


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"train\.params\.row: .*the parameters are rows, dimension,"):
        ClickThrough({"row": 3}, "synthetic", 0)
    with pytest.raises(DataError, match=r"train\.data download: .* expected `synthetic`, or a directory"):
        ClickThrough({}, "download", 0)
    with pytest.raises(DataError, match=r"expected train\.txt or day_0"):
        ClickThrough({}, str(tmp_path), 0)
