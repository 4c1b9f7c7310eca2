"""The evaluator task as a real process, with a chief in this process or another one."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.trainer.engine.small import Small
from tests.trainer.engine.test_loop import Output, settings, train
from tests.trainer.tensorboard_reader import read_events
from tests.waiting import until
from trainer.engine import evaluations, evaluator, loop, run_state
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.loop import TrainingOutcome
from trainer.engine.replicated import ReplicatedSession
from trainer.engine.session import CallProgress
from trainer.events import Reporter
from trainer.settings import TrainerSettings
from trainer.workloads.errors import WorkloadError

STEPS = 60
LONG = 300.0  # seconds that a test waits for an end on a busy machine
EVALUATOR = json.dumps({"cluster": {"chief": ["127.0.0.1:1"]}, "task": {"type": "evaluator", "index": 0}})


def start(trainers: Any, run_dir: Path, role: str = "evaluator", params: dict[str, Any] | None = None, **settings: Any) -> Any:
    """Start a process with a task of a run of Small."""
    training = {
        "workload": "tests.trainer.engine.small:Small",
        "steps": STEPS,
        "batch_size": 16,
        "params": params or {},
        "checkpoint": {"every_steps": 5, "keep": 2},
        "evaluate": {"every_steps": 5, "batch_size": 100},
        **settings.pop("train", {}),
    }
    base = {"run": "small", "run_dir": str(run_dir), "scratch_dir": str(run_dir / "scratch"), "has_evaluator": True, "train": training}
    environment = {"TRAINER_SETTINGS": TrainerSettings.model_validate({**base, **settings}).model_dump_json(exclude_unset=True)}
    if role == "evaluator":
        environment["TF_CONFIG"] = EVALUATOR
    return trainers.trainer(env=environment, preload=forked.TENSORFLOW)


class Gated(ReplicatedSession):
    """Takes a step only when it may."""

    end = 0  # the step up to which it may train

    def run(self, steps: int, *, stop: bool = False, finish: bool = False, next_steps: int = 0) -> CallProgress:
        until("the next step", lambda: self.step < self.end, seen=lambda: self.step)
        return super().run(steps, stop=stop, finish=finish, next_steps=next_steps)


class Chief:
    """A chief on a thread of this process, from the last checkpoint until a step, with which it ends or stops."""

    def __init__(self, run_dir: Path, last_step: int, save_every: int) -> None:
        config = settings(run_dir, STEPS, has_evaluator=True, steps_per_execution=1, checkpoint={"every_steps": save_every, "keep": 5})
        workload, self._output, self._last_step = Small({}), Output(), last_step
        self._session, self._pool = Gated(workload, config, AllReduce()), ThreadPoolExecutor(1)
        self._outcome = self._pool.submit(loop.run, self._session, workload, config, Reporter("chief", self._output), self._is_stopped)

    def train_until(self, step: int) -> None:
        """Return when the checkpoint of a step is saved; until then the chief trains no further."""
        self._session.end = step
        until(f"checkpoint {step}", lambda: step in self._saved(), seen=lambda: (self._saved(), self._outcome))

    def outcome(self) -> TrainingOutcome:
        """Return the outcome at its last step."""
        with self._pool:
            outcome = self._outcome.result(LONG)
        assert outcome.step == self._last_step
        return outcome

    def _is_stopped(self) -> bool:
        return self._session.step >= self._last_step - 1 and self._last_step < STEPS

    def _saved(self) -> list[int]:
        return [event["step"] for event in self._output.events("checkpoint")]


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a complete run that no evaluator has seen: each test takes a copy."""
    directory = tmp_path_factory.mktemp("complete") / "run"
    checkpoint = {"every_steps": 1000, "keep": 5}
    train(directory, STEPS, {}, has_evaluator=True, checkpoint=checkpoint, summaries={"every_steps": 0})
    return directory


@pytest.fixture
def run_dir(complete: Path, tmp_path: Path) -> Path:
    """Return a copy of the directory of a complete run that no evaluator has seen."""
    return Path(shutil.copytree(complete, tmp_path / "run"))


def wait_until_evaluated(run: Any, step: int) -> None:
    """Wait until the evaluator has evaluated a step."""
    until(
        f"step {step} to be evaluated", lambda: step in [event["step"] for event in run.events("evaluated")], LONG, seen=lambda: run.lines
    )


def test_an_evaluator_follows_the_chief_despite_a_damaged_checkpoint_and_its_own_restart(trainers: Any, tmp_path: Path) -> None:
    run = start(trainers, tmp_path)
    chief = Chief(tmp_path, 30, save_every=10)
    chief.train_until(10)
    wait_until_evaluated(run, 10)

    # A checkpoint that is damaged before the evaluator reads it is reported, and the next one is evaluated.
    child = run.events("started")[-1]["pid"]
    os.kill(child, signal.SIGSTOP)
    chief.train_until(20)
    damaged = next(tmp_path.glob("checkpoints/ckpt-20.data*"))
    content = damaged.read_bytes()
    damaged.write_bytes(b"\0" * len(content))
    os.kill(child, signal.SIGCONT)
    notice = until("a notice", lambda: run.events("notice"), seen=lambda: run.lines)[0]["message"]
    assert "ckpt-20" in notice
    assert "cannot be read" in notice
    damaged.write_bytes(content)
    chief.train_until(30)
    wait_until_evaluated(run, 30)

    # After a kill it is restarted, and repeats no evaluation. The chief's stop is not its end.
    assert not chief.outcome().finished
    os.kill(child, signal.SIGKILL)
    run.event("started", 2)
    chief = Chief(tmp_path, STEPS, save_every=20)
    chief.train_until(40)
    wait_until_evaluated(run, 40)

    chief.train_until(STEPS)
    outcome = chief.outcome()
    assert run.code(LONG) == 0
    event = run.event("done")
    assert event["step"] == STEPS
    assert event["metrics"] == pytest.approx(outcome.metrics)
    assert [event["step"] for event in run.events("evaluated")] == [10, 30, 40, STEPS]
    assert [result.step for result in evaluations.read(tmp_path)] == [10, 30, 40, STEPS]
    assert len(run.events("notice")) == 1
    assert not [line for line in run.lines if "Traceback" in line]
    best = json.loads((tmp_path / "export" / "best" / "metrics.json").read_text())
    values = {result.step: result.metrics["accuracy"] for result in evaluations.read(tmp_path)}
    assert best["value"] == max(values.values()) == values[best["step"]]


@pytest.mark.slow
def test_a_slow_evaluator_skips_old_checkpoints_and_evaluates_the_last_one(trainers: Any, tmp_path: Path) -> None:
    training = {"steps": 3000, "checkpoint": {"every_steps": 50, "keep": 1}, "steps_per_execution": 10}
    slow_evaluator = start(trainers, tmp_path, params={"slow": 0.2}, train=training)
    fast_chief = start(trainers, tmp_path, "chief", train=training)
    assert fast_chief.code(LONG) == 0
    assert slow_evaluator.code(LONG) == 0
    steps = [event["step"] for event in slow_evaluator.events("evaluated")]
    saved = {event["step"] for event in fast_chief.events("checkpoint")}
    assert steps == sorted(set(steps))
    assert set(steps) <= saved
    assert len(steps) < len(saved)
    assert steps[-1] == 3000
    assert slow_evaluator.event("done")["time"] > run_state.read(tmp_path)["updated"]
    assert len(list(tmp_path.glob("checkpoints/*.index"))) == 1
    # The chief evaluates the last step as well, for run.json; only the evaluator writes summaries and evaluations.json.
    assert [event["step"] for event in fast_chief.events("evaluated")] == [3000]
    assert [step for step, _ in read_events(tmp_path / "logs" / "eval").scalars("accuracy")] == steps
    assert [result.step for result in evaluations.read(tmp_path)] == steps


@pytest.mark.slow
def test_an_evaluator_stops_in_the_middle_of_an_evaluation(trainers: Any, run_dir: Path) -> None:
    run = start(trainers, run_dir, params={"slow": 3}, train={"evaluate": {"every_steps": 5, "batch_size": 10}})
    until("a slow batch, one of forty", lambda: "a slow batch" in run.lines, seen=lambda: run.lines)
    run.send(signal.SIGTERM)
    assert run.code(LONG) == 143
    assert run.events("evaluated") == []
    assert evaluations.read(run_dir) == []
    assert len(run.events("started")) == 1


@pytest.mark.slow
def test_an_evaluator_gives_up_waiting_for_a_chief_that_writes_nothing(trainers: Any, tmp_path: Path) -> None:
    run = start(trainers, tmp_path, orphan_timeout=1.0)
    assert run.code(LONG) == 75
    assert "the chief has written nothing to" in run.event("failed")["detail"]
    assert len(run.events("started")) == 1


def test_an_unknown_metric_is_a_wrong_configuration(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="'top_accuracy'; expected one of loss, accuracy"):
        evaluate(tmp_path, export={"metric": "top_accuracy"})


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="the free memory is known only on Linux")
def test_tables_too_large_for_the_evaluator_are_refused_before_they_are_created(trainers: Any, tmp_path: Path) -> None:
    run = start(trainers, tmp_path, train={"workload": "tests.trainer.engine.embedding_models:too_large", "params": {"model": "too_large"}})
    assert run.code(LONG) == 2
    message = run.event("failed")["detail"]
    assert "huge (1,000,000,000,000 x 4, 16 TB)" in message
    assert "leave the evaluator role out: the chief evaluates through the same look-ups" in message


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="only Linux has a directory that is known to be in memory")
@pytest.mark.parametrize(
    "formats, on_disk, in_memory", [([], 3, 3), (["saved_model"], 6, 8), (["keras"], 10, 10), (["keras", "saved_model"], 10, 12)]
)
def test_an_export_counts_as_memory_if_temporary_files_are_in_memory(formats: list[str], on_disk: int, in_memory: int) -> None:
    assert [evaluator.copies(formats, directory) for directory in ("/proc", "/dev/shm")] == [on_disk, in_memory]


def evaluate(
    run_dir: Path,
    steps: int = STEPS,
    params: dict[str, Any] | None = None,
    stop: Callable[[Output], bool] | None = None,
    **train: Any,
) -> Output:
    """Evaluate in this process until the run's last checkpoint is done, or only until `stop` of the output is true; return the output."""
    output, config = Output(), settings(run_dir, steps, has_evaluator=True, **train)
    last = evaluator.evaluate_checkpoints(
        Small(params or {}), config, Reporter("evaluator", output), lambda: stop is not None and stop(output)
    )
    assert (last is None) == (stop is not None)
    return output


def evaluated(output: Output) -> list[int]:
    return [event["step"] for event in output.events("evaluated")]


def test_a_restarted_evaluator_repeats_no_evaluation(run_dir: Path) -> None:
    assert evaluated(evaluate(run_dir)) == [STEPS]
    assert evaluated(evaluate(run_dir)) == []


def test_a_checkpoint_of_another_model_is_not_evaluated(run_dir: Path) -> None:
    output = evaluate(run_dir, params={"normalised": True})
    assert evaluated(output) == []
    assert "is of another model" in output.events("notice")[0]["message"]


def test_the_evaluator_ends_with_a_run_that_ended_early_but_not_with_an_earlier_run_of_fewer_steps(run_dir: Path) -> None:
    def one_second_later(output: Output) -> bool:
        return any(time.time() - event["time"] > 1 for event in output.events("evaluated"))

    steps = 2 * STEPS
    assert evaluated(evaluate(run_dir, steps, stop=one_second_later)) == [STEPS]
    (run_dir / "evaluations.json").unlink()
    facts = run_state.read(run_dir)
    assert (facts["state"], facts["step"], facts["steps"]) == ("succeeded", STEPS, STEPS)
    (run_dir / "run.json").write_text(json.dumps(facts | {"steps": steps}))
    assert evaluated(evaluate(run_dir, steps)) == [STEPS]
