"""Keras callbacks between steps, called as by `fit`: the same hooks with the same logs, and their state after a restart."""

# ruff: noqa: ARG002 - hooks have the arguments that Keras gives them

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.trainer.engine.calling import Changing, MakeCallbacks, SmallWithCallbacks, callback_config
from tests.trainer.engine.small import Poisoned
from tests.trainer.engine.test_loop import Output
from trainer.engine import loop, model_ops, run_state
from trainer.engine.callbacks import CallbackList, continue_logs
from trainer.engine.checkpoints import Checkpoints
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.replicated import ReplicatedSession
from trainer.engine.session import CallProgress
from trainer.engine.train_config import TrainConfig
from trainer.events import Reporter


def train(
    run_dir: Path,
    make_callbacks: MakeCallbacks,
    *,
    stop_after: int | None = None,
    params: dict[str, Any] | None = None,
    workload_class: type[SmallWithCallbacks] = SmallWithCallbacks,
    **changes: Any,
) -> tuple[ReplicatedSession, loop.TrainingOutcome, Output]:
    """Train in this process, 25 steps an epoch; return the session, the outcome and the reported events."""
    workload = workload_class(make_callbacks, **(params or {}))
    config = callback_config(workload, run_dir, **changes)
    session = ReplicatedSession(workload, config, AllReduce())
    output = Output()
    stop_requested = (lambda: session.step >= stop_after) if stop_after else (lambda: False)
    return session, loop.run(session, workload, config, Reporter("chief", output), stop_requested), output


def notices(output: Output) -> list[str]:
    return [event["message"] for event in output.events("notice")]


class Recorder(keras.callbacks.Callback):
    """Records each call, and the logs of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.logs: list[dict[str, float]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.calls.append(f"train {self.params['epochs']}x{self.params['steps']}")

    def on_train_end(self, logs: Any = None) -> None:
        self.calls.append("end")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(f"epoch {epoch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(f"epoch {epoch} done")
        self.logs.append(dict(logs))

    def on_test_begin(self, logs: Any = None) -> None:
        self.calls.append("test")

    def on_test_end(self, logs: Any = None) -> None:
        self.calls.append("tested")


EVALUATED = ["test", "tested"]


def begun_callbacks(
    run_dir: Path, make_callbacks: MakeCallbacks, output: Output | None = None, **changes: Any
) -> tuple[CallbackList, TrainConfig]:
    """Return callbacks as before the first step of a run, and its configuration, without training."""
    workload = SmallWithCallbacks(make_callbacks)
    config = callback_config(workload, run_dir, **changes)
    callbacks = CallbackList(ReplicatedSession(workload, config, AllReduce()), workload, config, Reporter("chief", output or Output()))
    callbacks.begin(0, None)
    return callbacks, config


def test_means_count_only_the_steps_that_were_measured(tmp_path: Path) -> None:
    recorder = Recorder()
    callbacks, _ = begun_callbacks(tmp_path, lambda: [recorder], epochs=2)
    # As workers of parameter servers report: first nothing, then two means, and between them the first one once more.
    for step, steps, loss, measured in [(5, 5, None, 0), (10, 5, 1.0, 10), (20, 10, 1.0, 0), (25, 5, 4.0, 5)]:
        metrics = {} if loss is None else {"accuracy": loss / 4}
        callbacks.after(CallProgress(step=step, steps=steps, loss=loss, metrics=metrics, examples=0, seconds=1.0, measured_steps=measured))
    assert recorder.logs == [{"loss": 2.0, "accuracy": 0.5}]


def test_hooks_are_called_in_the_order_of_fit_with_its_logs(tmp_path: Path) -> None:
    recorder = Recorder()
    # An export happens between hooks, too.
    session, outcome, output = train(tmp_path, lambda: [recorder], epochs=2, export={"formats": ["keras"]})
    epochs = ["epoch 0", *EVALUATED, "epoch 0 done", "epoch 1", *EVALUATED, "epoch 1 done"]
    assert recorder.calls == ["train 2x25", *epochs, "end"]
    assert [set(logs) for logs in recorder.logs] == [{"loss", "accuracy", "val_loss", "val_accuracy"}] * 2
    assert {f"val_{name}": value for name, value in outcome.metrics.items()}.items() <= recorder.logs[-1].items()
    assert recorder.logs[1]["loss"] < recorder.logs[0]["loss"]
    assert [event["step"] for event in output.events("evaluated")] == [25, 50]
    assert output.events("exported")
    assert session.model.optimizer is session.optimizer


@pytest.mark.parametrize(
    "length, expected",
    [
        ({"steps": 60, "evaluate": {"every_steps": 15}}, [0, 1, 2, 3]),
        ({"steps": 60}, [0, 1, 2]),  # two passes, and the beginning of a third
        ({"epochs": 2, "batch_size": 300}, [0, 1]),
        ({"epochs": 5, "batch_size": 1000}, [0, 1, 2, 3, 4]),  # a step has two or three of them
    ],
    ids=["between evaluations", "passes", "batches of two epochs", "epochs within a step"],
)
def test_an_epoch_is_a_pass_or_the_steps_between_evaluations(length: dict[str, Any], expected: list[int], tmp_path: Path) -> None:
    recorder = Recorder()
    callbacks, config = begun_callbacks(tmp_path, lambda: [recorder], **length)
    step = 0
    while step < config.steps:  # as the loop does
        before, step = step, callbacks.epoch_end(config.steps)
        callbacks.after(CallProgress(step=step, steps=step - before, loss=1.0, metrics={}, examples=0, seconds=1.0))
    assert [int(call.split()[1]) for call in recorder.calls if call.endswith("done")] == expected


@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end"])
def test_the_reason_of_an_early_end_has_the_epoch_of_its_hook(hook: str, tmp_path: Path) -> None:
    def stop(epoch: int, _: Any) -> None:
        callback.model.stop_training = epoch == 2

    callback = keras.callbacks.LambdaCallback(**{hook: stop})
    callbacks, _ = begun_callbacks(tmp_path, lambda: [callback], epochs=5, batch_size=1000)
    callbacks.after(CallProgress(step=1, steps=1, loss=1.0, metrics={}, examples=0, seconds=1.0))  # two and a half epochs
    callbacks.after(CallProgress(step=2, steps=1, loss=1.0, metrics={}, examples=0, seconds=1.0))
    assert callbacks.reason == f"the callback LambdaCallback.{hook} has set model.stop_training in epoch 3"


@dataclass(frozen=True)
class Hooked:
    """The calls of the hooks of a run of two epochs without evaluations between them, that is asked to stop before its last step."""

    recorder: Recorder
    batches: list[tuple[str, int, tuple[str, ...]]]


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Hooked:
    recorder, calls = Recorder(), list[tuple[str, int, tuple[str, ...]]]()

    def make_callbacks() -> list[keras.callbacks.Callback]:
        begin = lambda batch, logs: calls.append(("begin", batch, tuple(logs)))  # noqa: E731 - as users write them
        end = lambda batch, logs: calls.append(("end", batch, tuple(logs)))  # noqa: E731 - as users write them
        return [recorder, keras.callbacks.LambdaCallback(on_train_batch_begin=begin, on_train_batch_end=end)]

    train(tmp_path_factory.mktemp("hooked"), make_callbacks, epochs=2, evaluate={"every_steps": 0}, stop_after=49)
    return Hooked(recorder, calls)


def test_logs_of_epochs_without_evaluation_have_no_validation_metrics(hooked: Hooked) -> None:
    assert [call for call in hooked.recorder.calls if call in EVALUATED] == EVALUATED
    assert ["val_loss" in logs for logs in hooked.recorder.logs] == [False, True]


def test_batch_hooks_are_called_for_each_step(hooked: Hooked) -> None:
    epoch = [call for batch in range(25) for call in (("begin", batch, ()), ("end", batch, ("loss", "accuracy")))]
    assert hooked.batches == epoch * 2


def test_the_last_epoch_ends_although_the_task_stops_with_its_last_step(hooked: Hooked) -> None:
    assert hooked.recorder.calls[-2:] == ["epoch 1 done", "end"]


class EarlyStoppingAtMinLoss(keras.callbacks.Callback):
    """As in https://keras.io/guides/writing_your_own_callbacks."""

    def __init__(self, patience: int = 0) -> None:
        super().__init__()
        self.patience = patience
        self.best_weights: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        self.wait = 0
        self.stopped_epoch = 0
        self.best = np.inf

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        current = logs.get("loss")
        if np.less(current, self.best):
            self.best = current
            self.wait = 0
            self.best_weights = self.model.get_weights()
        else:
            self.wait += 1
            if self.wait >= self.patience:
                self.stopped_epoch = epoch
                self.model.stop_training = True
                self.model.set_weights(self.best_weights)


class CustomLearningRateScheduler(keras.callbacks.Callback):
    """As in the same guide."""

    def __init__(self, schedule: Callable[[int, float], float]) -> None:
        super().__init__()
        self.schedule = schedule
        self.seen: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        lr = float(self.model.optimizer.learning_rate)
        self.model.optimizer.learning_rate = self.schedule(epoch, lr)
        self.seen.append((lr, self.model.get_weights()[0]))


def at_rate(rate: float) -> dict[str, Any]:
    return {"optimizer": "SGD", "arguments": {"learning_rate": rate}}


def worse_after_an_epoch() -> keras.callbacks.Callback:
    """Return a callback that sets too high a rate from the second epoch on."""
    return keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 if epoch == 0 else 5.0)


@dataclass(frozen=True)
class Guided:
    """A run that the guide's EarlyStoppingAtMinLoss has ended."""

    run_dir: Path
    stopping: EarlyStoppingAtMinLoss
    recorder: Recorder
    session: ReplicatedSession
    outcome: loop.TrainingOutcome
    output: Output


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> Guided:
    run_dir, stopping, recorder = tmp_path_factory.mktemp("guided"), EarlyStoppingAtMinLoss(), Recorder()
    result = train(run_dir, lambda: [worse_after_an_epoch(), stopping, recorder], epochs=20, params=at_rate(0.1))
    return Guided(run_dir, stopping, recorder, *result)


def test_early_stopping_of_the_guide_ends_the_run_with_a_reason(guided: Guided) -> None:
    assert (guided.outcome.step, guided.outcome.finished) == (50, True)
    reason = "the callback EarlyStoppingAtMinLoss.on_epoch_end has set model.stop_training in epoch 2"
    assert f"the run ends after step 50 of 500: {reason}" in notices(guided.output)
    assert run_state.read(guided.run_dir)["state"] == "succeeded"
    assert run_state.read(guided.run_dir)["ended_early"] == reason
    for weight, best in zip(guided.session.model.get_weights(), guided.stopping.best_weights, strict=True):
        np.testing.assert_array_equal(weight, best)


def test_the_last_metrics_are_those_of_the_weights_that_a_callback_sets_after_the_evaluation(guided: Guided) -> None:
    assert guided.outcome.metrics["loss"] == pytest.approx(guided.recorder.logs[0]["val_loss"])
    assert guided.outcome.metrics["loss"] != pytest.approx(guided.recorder.logs[1]["val_loss"])
    assert guided.output.events("evaluated")[-1]["metrics"] == guided.outcome.metrics


def test_training_uses_the_weights_and_rates_that_callbacks_set(tmp_path: Path) -> None:
    scheduler, changing = CustomLearningRateScheduler(lambda epoch, _: (0.5, 0.25, 0.25)[epoch]), Changing()
    session, outcome, _ = train(tmp_path, lambda: [scheduler, changing], epochs=10, params=at_rate(0.125))
    assert outcome.step == 75
    rates, (first, second, third) = zip(*scheduler.seen, strict=True)
    assert rates == (0.125, 0.5, 0.25)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(second, np.full_like(second, 0.5))
    assert not np.array_equal(second, third)
    np.testing.assert_array_equal(third, session.model.get_weights()[0])  # with rate 0
    assert changing.weight_sums[0] == 0.5 * sum(weight.size for weight in session.model.get_weights())
    assert changing.weight_sums[0] != changing.weight_sums[1] == changing.weight_sums[2]


def test_the_weights_of_the_best_epoch_are_restored_evaluated_and_saved_at_the_end(tmp_path: Path) -> None:
    def make_callbacks() -> list[keras.callbacks.Callback]:
        stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True)
        return [worse_after_an_epoch(), stopping, recorder]

    recorder = Recorder()
    session, outcome, output = train(tmp_path, make_callbacks, epochs=20, params=at_rate(0.1))
    assert outcome.step == 75
    assert outcome.metrics["loss"] == pytest.approx(recorder.logs[0]["val_loss"])
    assert output.events("evaluated")[-1]["metrics"] == outcome.metrics
    workload = SmallWithCallbacks(list, **at_rate(0.1))
    saved = model_ops.build(workload, callback_config(workload, tmp_path, steps=75))
    restored = Checkpoints(tmp_path / "checkpoints", saved.model, saved.optimizer, 2).restore(lambda _: None)
    assert restored is not None
    assert restored.step == 75
    for weight, expected in zip(saved.model.get_weights(), session.model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)


class Falling(keras.callbacks.Callback):
    """Halves the rate with each batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.5 * float(self.model.optimizer.learning_rate)


@pytest.mark.parametrize("by_batch", [False, True], ids=["epochs", "batches"])
def test_a_rate_that_is_computed_from_the_one_before_falls_once_if_a_run_resumes_within_an_epoch(by_batch: bool, tmp_path: Path) -> None:
    def make_callbacks() -> list[keras.callbacks.Callback]:
        halved = keras.callbacks.LearningRateScheduler(lambda _, rate: 0.5 * rate)
        return [halved, Falling()] if by_batch else [halved]

    rates = []
    for stop_after in (2, 4, 5, None):  # within the second epoch, twice within the third, at the end of the last
        length: dict[str, Any] = {
            "epochs": 4,
            "batch_size": 200,
            "steps_per_execution": 1,
            "evaluate": {"every_steps": 0, "batch_size": 100},
        }
        session, _, _ = train(tmp_path, make_callbacks, params=at_rate(1.0), stop_after=stop_after, **length)
        rates.append((session.step, float(session.optimizer.learning_rate)))
    assert rates == [(step, 0.5 ** ((step - 1) // 2 + 1 + by_batch * step)) for step in (3, 5, 6, 8)]


def test_another_schedule_applies_from_the_first_step_after_a_resume(tmp_path: Path) -> None:
    for rate, stop_after in ((0.5, 2), (0.25, 3)):
        callbacks = [keras.callbacks.LearningRateScheduler(lambda _: rate)]  # noqa: B023 - called at once
        session, _, _ = train(tmp_path, lambda: callbacks, epochs=2, params=at_rate(1.0), stop_after=stop_after, steps_per_execution=1)  # noqa: B023
        assert float(session.optimizer.learning_rate) == rate


def stateful_callbacks() -> list[keras.callbacks.Callback]:
    return [
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.ReduceLROnPlateau(monitor="loss", min_delta=10.0, patience=2, factor=0.5),
        keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=10.0, patience=7, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint("models/{epoch}.keras"),
    ]


def rows(run_dir: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((run_dir / "results" / "log.csv").read_text().splitlines()))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, loop.TrainingOutcome, Output]:
    """Return the directory, outcome and events of an uninterrupted run with these callbacks."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    _, outcome, output = train(directory, stateful_callbacks, epochs=20)
    return directory, outcome, output


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReplicatedSession, loop.TrainingOutcome, Output]:
    """Return the same of a run with these callbacks that is stopped within an epoch, and with the last step of one; and its session."""
    directory = tmp_path_factory.mktemp("interrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for stop_after in (60, 74):
            _, part, _ = train(directory / "parts", stateful_callbacks, epochs=20, stop_after=stop_after, steps_per_execution=1)
            assert (part.finished, part.step) == (False, stop_after + 1)
            assert [row["epoch"] for row in rows(directory / "parts")] == ["0", "1"]
            log = directory / "parts" / "results" / "log.csv"
            log.write_text(log.read_text() + "2,0,0,0,0,0\n3,0,0,0,0,0\n")  # as if a task was killed after its last checkpoint
        return directory, *train(directory / "parts", stateful_callbacks, epochs=20)


def test_callbacks_of_a_resumed_run_continue(
    uninterrupted: tuple[Path, loop.TrainingOutcome, Output], interrupted: tuple[Path, ReplicatedSession, loop.TrainingOutcome, Output]
) -> None:
    _, whole, output = uninterrupted
    reason = "the callback EarlyStopping.on_epoch_end has set model.stop_training in epoch 8"
    assert f"the run ends after step {whole.step} of 500: {reason}" in notices(output)
    directory, session, outcome, output = interrupted
    assert outcome.step == whole.step == 8 * 25
    assert f"the run ends after step 200 of 500: {reason}" in notices(output)
    assert float(session.optimizer.learning_rate.numpy()) == pytest.approx(0.05 * 0.5**3)
    assert outcome.metrics == pytest.approx(whole.metrics)
    assert sorted(path.name for path in (directory / "parts/results/models").iterdir()) == [f"{epoch}.keras" for epoch in range(1, 9)]
    assert {path.name for path in directory.iterdir()} == {"parts"}  # nothing is written to the working directory


def test_a_log_continues_without_rows_of_epochs_that_are_repeated(
    uninterrupted: tuple[Path, loop.TrainingOutcome, Output], interrupted: tuple[Path, ReplicatedSession, loop.TrainingOutcome, Output]
) -> None:
    resumed_rows = rows(interrupted[0] / "parts")
    assert [row["epoch"] for row in resumed_rows] == [str(epoch) for epoch in range(8)]
    assert all(float(row["loss"]) > 0 for row in resumed_rows)
    for expected, row in zip(rows(uninterrupted[0]), resumed_rows, strict=True):
        assert {name: float(value) for name, value in row.items()} == pytest.approx(
            {name: float(value) for name, value in expected.items()}
        )


@pytest.mark.parametrize("append", [False, True])
def test_a_continued_log_has_no_row_twice(append: bool, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("epoch,loss\n0,3\n1,2\n2,1\n")
    logger = keras.callbacks.CSVLogger(str(log), append=append)
    continue_logs([logger], 1)
    assert logger.append
    assert log.read_text() == "epoch,loss\n0,3\n"


def test_a_run_that_a_callback_ended_is_saved_once_and_continues_only_with_other_arguments(tmp_path: Path) -> None:
    def steps_and_checkpoints(patience: int, epochs: int = 9) -> tuple[int, str | None, list[int]]:
        callbacks = [keras.callbacks.EarlyStopping(monitor="loss", min_delta=10.0, patience=patience)]
        _, outcome, output = train(tmp_path, lambda: callbacks, epochs=epochs, checkpoint={"keep": 5, "every_steps": 25})
        early = outcome.ended_early and outcome.ended_early.partition("stop_training ")[2]
        return outcome.step, early, [event["step"] for event in output.events("checkpoint")]

    assert steps_and_checkpoints(4, epochs=1) == (25, None, [25])
    assert steps_and_checkpoints(1) == (50, "in epoch 2", [50])  # the first epoch counts as an improvement, and the others do not
    assert steps_and_checkpoints(1) == (50, "in epoch 2", [])
    assert steps_and_checkpoints(3) == (100, "in epoch 4", [75, 100])


def test_a_callback_may_end_a_resumed_run_before_its_next_epoch(tmp_path: Path) -> None:
    def stop(_: Any) -> None:
        callback.model.stop_training = True

    callback = keras.callbacks.LambdaCallback(on_train_begin=stop)
    train(tmp_path, list, epochs=2)
    _, outcome, _ = train(tmp_path, lambda: [callback], epochs=5)
    assert (outcome.step, outcome.ended_early) == (50, "the callback LambdaCallback.on_train_begin has set model.stop_training in epoch 3")


def test_callbacks_that_the_trainer_replaces_are_left_out_and_reported(tmp_path: Path) -> None:
    def make_callbacks() -> list[keras.callbacks.Callback]:
        replaced = [
            keras.callbacks.TensorBoard(),
            keras.callbacks.BackupAndRestore(str(tmp_path / "backup")),
            keras.callbacks.TerminateOnNaN(),
        ]
        return [*replaced, keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: None)]

    output = Output()
    begun_callbacks(tmp_path, make_callbacks, output, epochs=1)
    left_out = [message for message in notices(output) if "left out" in message]
    assert [message.partition(" is left out: ")[0] for message in left_out] == [
        f"the callback {name}" for name in ("TensorBoard", "BackupAndRestore", "TerminateOnNaN")
    ]
    assert not (tmp_path / "backup").exists()


class PoisonedWithCallbacks(SmallWithCallbacks, Poisoned):
    """Has inputs of NaN from batch `bad` on."""


def test_a_callback_ends_a_run_with_nan(tmp_path: Path) -> None:
    params = {"bad": 30, "activation": "tanh"}
    callbacks = [keras.callbacks.TerminateOnNaN()]  # on_nan: stop leaves it out
    _, outcome, _ = train(tmp_path, lambda: callbacks, params=params, workload_class=PoisonedWithCallbacks, epochs=4, on_nan="warn")
    assert (outcome.finished, outcome.step) == (True, 31)
    assert (
        run_state.read(tmp_path)["ended_early"] == "the callback TerminateOnNaN.on_train_batch_end has set model.stop_training in epoch 2"
    )
