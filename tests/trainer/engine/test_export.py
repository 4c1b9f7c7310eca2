"""Exported models: their content, when they are replaced, and that a reader never finds a partial one."""

import functools
import json
import tempfile
import threading
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.trainer.engine.small import Small
from tests.trainer.engine.test_loop import Output, train
from tests.trainer.exported import assert_export_matches_metrics
from trainer.engine.export import BestModel
from trainer.events import Reporter
from trainer.settings import Export, direction
from trainer.workloads.errors import WorkloadError
from trainer.workloads.keras_model import KerasWorkload
from trainer.workloads.user_call import CallArguments

NAMES = ("loss", "accuracy")


def best_model(run_dir: Path, output: Output, model: keras.Model | None = None, share: float = 1, **export: Any) -> BestModel:
    settings = Export.model_validate({"formats": ["keras"], **export})
    return BestModel(settings, run_dir, NAMES, model or Small({}).model(), Reporter("chief", output), share=share)


def soon() -> Callable[[], float]:
    """Return a deadline in 10 seconds."""
    end = time.monotonic() + 10
    return lambda: end


def offer(best: BestModel, step: int, value: float, **metrics: float) -> None:
    """Offer weights that are all `value`, and wait until they are written, if they are to be."""
    best.offer(step, {"loss": 1.0, **metrics}, filled(value))
    best.wait(10)


@functools.cache
def other_model() -> keras.Model:
    """Return a model to take weights from."""
    return Small({}).model()


def filled(value: float) -> list[keras.Variable]:
    other_model().set_weights([np.full(w.shape, value) for w in other_model().weights])
    return list(other_model().weights)


def facts(run_dir: Path) -> dict[str, Any]:
    content = json.loads((run_dir / "export" / "best" / "metrics.json").read_text())
    assert isinstance(content, dict)
    return content


def weight(run_dir: Path) -> float:
    return float(keras.models.load_model(run_dir / "export" / "best" / "model.keras").weights[0][0, 0])


def test_a_run_exports_its_best_model_for_use_without_the_trainer(tmp_path: Path) -> None:
    # Layers with state, and an optimizer with moving averages of the weights.
    params = {"dropout": True, "normalised": True, "optimizer": "SGD", "arguments": {"use_ema": True, "ema_momentum": 0.9}}
    _, outcome, output = train(tmp_path, 60, params, export={})
    best = assert_export_matches_metrics(tmp_path, Small(params), tmp_path)
    accuracies = {event["step"]: event["metrics"]["accuracy"] for event in output.events("evaluated")}
    assert best["value"] == pytest.approx(max(accuracies.values()))
    assert accuracies[best["step"]] == best["value"]
    assert output.events("exported")[-1]["step"] == best["step"]
    assert outcome.finished


class Compiled(KerasWorkload):
    """A compiled Keras model, as a spec can name it, with the data of `Small`."""

    def __init__(self, source: Callable[[], keras.Model]) -> None:
        inputs, targets = Small({})._inputs, Small({})._targets
        data = {"train_data": lambda: (inputs, targets), "eval_data": lambda: (inputs[:100], targets[:100])}
        super().__init__(source, data, CallArguments("mine:model", {}, "synthetic", 0))


def compiled() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.1), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    return model


@dataclass(frozen=True)
class Attempts:
    """The outputs of a run of 30 steps that was stopped before its first evaluation, resumed to its end, and started once more."""

    run_dir: Path
    stopped: Output
    resumed: Output
    again: Output
    last: dict[str, Any]  # the content of export/last/metrics.json after the stop
    last_is_compiled: bool


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Attempts:
    """Train a user's compiled model, and export it only for Keras."""

    def run(stop_after: int | None = None) -> Output:
        changes: dict[str, Any] = {"export": {"formats": ["keras"]}, "workload": "mine:model", "summaries": {"every_steps": 0}}
        # A call of measured length may reach the evaluation at step 20 before it stops.
        return train(run_dir, 30, {}, stop_after, data=lambda _: Compiled(compiled), steps_per_execution=5, **changes)[2]

    run_dir = tmp_path_factory.mktemp("attempts")
    stopped, last = run(10), run_dir / "export" / "last"
    last_facts, last_is_compiled = json.loads((last / "metrics.json").read_text()), keras.models.load_model(last / "model.keras").compiled
    return Attempts(run_dir, stopped, run(), run(), last_facts, last_is_compiled)


def test_a_users_compiled_model_is_exported_compiled_for_plain_keras(attempts: Attempts) -> None:
    best = facts(attempts.run_dir)
    assert best["metric"] == "accuracy"
    values = [event["metrics"]["accuracy"] for event in attempts.resumed.events("evaluated")]
    assert len(values) == 2
    assert best["value"] == max(values)
    directory = attempts.run_dir / "export" / "best"
    assert not directory.readlink().is_absolute()  # so that it is valid in another mount, and in a copy
    with zipfile.ZipFile(directory / "model.keras") as archive:
        assert b"trainer" not in archive.read("config.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = keras.models.load_model(directory / "model.keras")
    model.run_eagerly = True  # compilation takes seconds
    inputs, targets = Small({})._inputs[:100], Small({})._targets[:100]
    metrics = model.evaluate(inputs, targets, verbose=0, return_dict=True)
    assert metrics == pytest.approx(best["metrics"], rel=1e-4)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.02)
    assert int(model.optimizer.iterations) == 0
    model.fit(inputs, targets, verbose=0)
    # The export has not changed the model in training: the next start resumes from the checkpoint.
    assert [event["step"] for event in attempts.again.events("restored")] == [30]


def test_a_run_that_is_stopped_before_an_evaluation_exports_its_last_model(attempts: Attempts) -> None:
    exports = attempts.run_dir / "export"
    assert attempts.stopped.events("evaluated") == []
    [exported] = attempts.stopped.events("exported")
    assert exported["path"] == str(exports / "last")
    assert exported["step"] == attempts.last["step"]
    assert exported["metric"] is None
    assert attempts.last_is_compiled
    assert attempts.resumed.events("exported")[-1]["path"] == str(exports / "best")
    assert {path.name.partition("-")[0] for path in exports.iterdir()} == {"best"}
    # The best one stays, and an attempt without a better one reports it.
    assert [(event["step"], event["path"]) for event in attempts.again.events("exported")] == [
        (facts(attempts.run_dir)["step"], str(exports / "best"))
    ]


class Secretive(keras.Model):
    """A model that Keras cannot save, as users write them."""

    def __init__(self, shape: Callable[[Any], Any]) -> None:
        super().__init__()
        self._shape, self._layer = shape, keras.layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self._layer(self._shape(inputs))


def secretive() -> keras.Model:
    model = Secretive(lambda inputs: inputs * 2.0)
    model(np.zeros((1, 4), np.float32))
    return model


class Odd(keras.layers.Layer):
    """A layer that cannot be written as a Keras file."""

    def call(self, inputs: Any) -> Any:
        return inputs

    def get_config(self) -> dict[str, Any]:
        raise TypeError("this layer has a secret")


def odd() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), Odd(), keras.layers.Dense(2)])


@pytest.mark.parametrize("make_model, reason", [(odd, "a secret"), (secretive, "get_config")])
def test_a_format_that_cannot_be_saved_is_reported_once_and_the_other_one_written(
    make_model: Callable[[], keras.Model], reason: str, tmp_path: Path
) -> None:
    output, model = Output(), make_model()
    best = best_model(tmp_path, output, model, formats=["keras", "saved_model"])
    for step in (1, 2):
        best.offer(step, {"loss": 1.0, "accuracy": step / 10}, model.weights)
        best.wait(10)
    [notice] = output.events("notice")
    assert "the model cannot be exported as keras: " in notice["message"]
    assert reason in notice["message"]
    assert "\n" not in notice["message"]
    assert facts(tmp_path)["formats"] == ["saved_model"]
    assert (tmp_path / "export" / "best" / "saved_model" / "saved_model.pb").is_file()
    assert sorted(path.name for path in (tmp_path / "export" / "best").iterdir()) == ["metrics.json", "saved_model"]


def test_only_a_better_model_replaces_the_best_one_also_after_a_restart(tmp_path: Path) -> None:
    output = Output()
    best = best_model(tmp_path, output)
    for step, accuracy in ((10, 0.5), (20, 0.75), (30, 0.75), (40, 0.6), (50, float("nan"))):
        offer(best, step, step, accuracy=accuracy)
    assert (facts(tmp_path)["step"], weight(tmp_path)) == (20, 20.0)
    restarted = best_model(tmp_path, output)
    offer(restarted, 60, 60, accuracy=0.7)
    assert facts(tmp_path)["step"] == 20
    offer(restarted, 70, 70, accuracy=0.8)
    assert (facts(tmp_path)["step"], weight(tmp_path)) == (70, 70.0)
    assert [event["step"] for event in output.events("exported")] == [10, 20, 70]
    # Its value of another metric is not known, so the first model counts as the best.
    offer(best_model(tmp_path, output, metric="loss"), 80, 80, loss=3.0, accuracy=0.1)
    assert {key: facts(tmp_path)[key] for key in ("step", "metric", "mode", "value")} == {
        "step": 80,
        "metric": "loss",
        "mode": "min",
        "value": 3.0,
    }


def test_the_best_of_the_models_that_come_too_soon_is_written_at_the_end(tmp_path: Path) -> None:
    output = Output()
    best = best_model(tmp_path, output, share=1e-6)
    for step in (10, 20, 30):
        offer(best, step, step, accuracy=step / 100)
    assert facts(tmp_path)["step"] == 10
    best.finish(soon(), finished=True)
    assert (facts(tmp_path)["step"], weight(tmp_path)) == (30, 30.0)
    best.finish(soon(), finished=True)
    assert len(output.events("exported")) == 2


def test_an_export_does_not_change_the_weights_of_the_model(tmp_path: Path) -> None:
    model = Small({}).model()
    before = model.get_weights()
    offer(best_model(tmp_path, Output(), model), 10, 7, accuracy=0.5)
    for expected, after in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(after, expected)
    assert weight(tmp_path) == 7.0


def test_a_reader_always_finds_a_whole_model(tmp_path: Path) -> None:
    best = best_model(tmp_path, Output())
    offer(best, 0, 0, accuracy=0.0)
    done = threading.Event()
    steps: list[int] = []

    def read() -> None:
        while not done.is_set():
            directory = (tmp_path / "export" / "best").resolve(strict=True)  # so that all files are of one export
            assert (directory / "model.keras").stat().st_size > 0
            steps.append(json.loads((directory / "metrics.json").read_text())["step"])

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(1, 16):
        offer(best, step, step, accuracy=step / 100)
    done.set()
    reader.join()
    assert steps == sorted(steps)
    assert len(set(steps)) > 3
    # The newest and the previous one, and the link to the newest.
    assert len(list((tmp_path / "export").iterdir())) == 3


def test_a_partial_export_of_a_killed_attempt_is_deleted(tmp_path: Path) -> None:
    offer(best_model(tmp_path, Output()), 10, 10, accuracy=0.5)
    partial = tmp_path / "export" / "best-20-abcdefgh"
    partial.mkdir()
    (partial / "model.keras").write_bytes(b"half")
    best_model(tmp_path, Output())
    assert not partial.exists()
    assert weight(tmp_path) == 10.0


def test_arguments_of_compile_that_cannot_be_loaded_are_left_out_and_reported(tmp_path: Path) -> None:
    model, output = Small({}).model(), Output()
    model.compile(optimizer="adam", loss=lambda targets, outputs: keras.ops.mean(targets - outputs), run_eagerly=True)
    model.train_on_batch(np.zeros((8, 4)), np.zeros((8, 2)))
    offer(best_model(tmp_path, output, model), 10, 7, accuracy=0.5)
    exported = keras.models.load_model(tmp_path / "export" / "best" / "model.keras")
    assert not exported.compiled
    assert "compile was given a lambda" in output.events("notice")[0]["message"]
    assert weight(tmp_path) == 7.0
    model.train_on_batch(np.zeros((8, 4)), np.zeros((8, 2)))  # the model itself stays compiled
    assert int(model.optimizer.iterations) == 2


def test_a_file_in_the_way_does_not_end_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a model that cannot be written stays there
    (tmp_path / "export").write_text("in the way")
    output = Output()
    offer(best_model(tmp_path, output), 1, 1, accuracy=0.5)
    assert output.events("notice")[0]["message"] == f"{tmp_path / 'export' / 'best'} could not be written: File exists; it is tried again"


def test_a_missing_temporary_directory_does_not_end_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, temporary = Output(), tmp_path / "tmp"
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    best = best_model(tmp_path, output)
    offer(best, 1, 1, accuracy=0.5)
    assert "the model of step 1 could not be saved to be exported: " in output.events("notice")[0]["message"]
    temporary.mkdir()
    offer(best, 2, 2, accuracy=0.4)  # the first model is written at the next evaluation, also if that is worse
    assert weight(tmp_path) == 1.0
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "metric, expected",
    [
        ("loss", "min"),
        ("accuracy", "max"),
        ("top_5_categorical_accuracy", "max"),
        ("mean_absolute_error", "min"),
        ("AUC", "max"),
        ("accuracy_loss", "min"),
        ("top_5", None),
    ],
)
def test_the_name_of_a_metric_says_whether_less_or_more_is_better(metric: str, expected: str | None) -> None:
    assert direction(metric, "auto") == expected
    assert direction(metric, "max") == "max"


@pytest.mark.parametrize("metric", ["recall", "top_5"])
def test_a_metric_that_the_workload_does_not_have_is_an_error_before_training(metric: str, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="one of loss, accuracy"):
        train(tmp_path, 20, {}, export={"metric": metric})
    assert not (tmp_path / "checkpoints").exists() or not list((tmp_path / "checkpoints").iterdir())
