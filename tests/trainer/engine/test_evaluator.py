"""The evaluator task as a real process, beside a chief in this process or one of its own."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.trainer.engine.small import Small
from tests.trainer.engine.test_loop import Output, settings, train
from tests.trainer.tensorboard_reader import read_events
from tests.waiting import until
from trainer.engine import evaluations, evaluator, run_state
from trainer.engine.loop import Outcome
from trainer.events import Reporter
from trainer.settings import TrainerSettings

STEPS = 60
LONG = 90.0  # seconds for whatever a test waits for on a busy machine
EVALUATOR = json.dumps({"cluster": {"chief": ["127.0.0.1:1"]}, "task": {"type": "evaluator", "index": 0}})


def start(trainers: Any, run_dir: Path, role: str = "evaluator", params: dict[str, Any] | None = None, **settings: Any) -> Any:
    """Start a task of a run of Small as a process of its own."""
    training = {
        "workload": "tests.trainer.engine.small:Small",
        "steps": STEPS,
        "batch_size": 16,
        "params": params or {},
        "checkpoint": {"every_steps": 5, "keep": 2},
        "evaluate": {"every_steps": 5, "batch_size": 100},
        **settings.pop("train", {}),
    }
    whole = {"run": "small", "run_dir": str(run_dir), "scratch_dir": str(run_dir / "scratch"), "has_evaluator": True, "train": training}
    told = TrainerSettings.model_validate({**whole, **settings}).model_dump_json(exclude_unset=True)
    environment = {"TRAINER_SETTINGS": told}
    if role == "evaluator":
        environment["TF_CONFIG"] = EVALUATOR
    return trainers.trainer(env=environment, preload=forked.TENSORFLOW)


def chief(run_dir: Path, until: int) -> Outcome:
    """Be the chief until a step: train on from the last checkpoint, save, and end or stop."""
    stop_after = until - 1 if until < STEPS else None
    saving = {"every_steps": 1000, "keep": 5}
    _, outcome, _ = train(run_dir, STEPS, {}, stop_after, has_evaluator=True, steps_per_execution=1, checkpoint=saving)
    assert isinstance(outcome, Outcome)
    assert outcome.step == until
    return outcome


def evaluated(run: Any, step: int) -> None:
    """Wait until a step has been evaluated."""
    until(
        f"step {step} to be evaluated", lambda: step in [event["step"] for event in run.events("evaluated")], LONG, seen=lambda: run.lines
    )


@pytest.mark.timeout(300)
def test_it_follows_survives_damage_and_its_own_death_and_sees_the_last(trainers: Any, tmp_path: Path) -> None:
    run = start(trainers, tmp_path)
    chief(tmp_path, 10)
    evaluated(run, 10)

    # One that is damaged before the evaluator looks is told of, and the next is evaluated.
    child = run.events("started")[-1]["pid"]
    os.kill(child, signal.SIGSTOP)
    chief(tmp_path, 20)
    damaged = next(tmp_path.glob("checkpoints/ckpt-20.data*"))
    whole = damaged.read_bytes()
    damaged.write_bytes(b"\0" * len(whole))
    os.kill(child, signal.SIGCONT)
    notice = until("a notice", lambda: run.events("notice"), LONG, seen=lambda: run.lines)[0]["message"]
    assert "ckpt-20" in notice
    assert "cannot be read" in notice
    damaged.write_bytes(whole)
    chief(tmp_path, 30)
    evaluated(run, 30)

    # Killed, it comes back and does not begin again.
    os.kill(child, signal.SIGKILL)
    run.event("started", 2)
    chief(tmp_path, 40)
    evaluated(run, 40)

    outcome = chief(tmp_path, STEPS)
    assert run.code(LONG) == 0
    done = run.event("done")
    assert done["step"] == STEPS
    assert done["metrics"] == pytest.approx(outcome.metrics)
    assert [event["step"] for event in run.events("evaluated")] == [10, 30, 40, STEPS]
    assert [one.step for one in evaluations.read(tmp_path)] == [10, 30, 40, STEPS]
    assert len(run.events("notice")) == 1
    assert not [line for line in run.lines if "Traceback" in line]
    best = json.loads((tmp_path / "export" / "best" / "metrics.json").read_text())
    values = {one.step: one.metrics["accuracy"] for one in evaluations.read(tmp_path)}
    assert best["value"] == max(values.values()) == values[best["step"]]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_slow_one_takes_the_newest_and_the_last_while_the_chief_deletes_old_ones(trainers: Any, tmp_path: Path) -> None:
    training = {"steps": 3000, "checkpoint": {"every_steps": 50, "keep": 1}, "steps_per_execution": 10}
    slow = start(trainers, tmp_path, params={"slow": 0.2}, train=training)
    fast = start(trainers, tmp_path, "chief", train=training)
    assert fast.code(LONG) == 0
    assert slow.code(LONG) == 0
    steps = [event["step"] for event in slow.events("evaluated")]
    saved = {event["step"] for event in fast.events("checkpoint")}
    assert steps == sorted(set(steps))
    assert set(steps) <= saved
    assert len(steps) < len(saved)
    assert steps[-1] == 3000
    assert slow.event("done")["time"] > run_state.read(tmp_path)["updated"]
    assert len(list(tmp_path.glob("checkpoints/*.index"))) == 1
    # The chief evaluates the last step as well, for run.json; only the evaluator writes of it.
    assert [event["step"] for event in fast.events("evaluated")] == [3000]
    assert [step for step, _ in read_events(tmp_path / "logs" / "eval").scalars("accuracy")] == steps
    assert [one.step for one in evaluations.read(tmp_path)] == steps


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_it_stops_in_the_middle_of_an_evaluation(trainers: Any, tmp_path: Path) -> None:
    chief(tmp_path, 10)
    run = start(trainers, tmp_path, params={"slow": 3}, train={"evaluate": {"every_steps": 5, "batch_size": 10}})
    until("a slow batch, of forty: two minutes", lambda: "a slow batch" in run.lines, LONG, seen=lambda: run.lines)
    run.send(signal.SIGTERM)
    assert run.code(LONG) == 143
    assert run.events("evaluated") == []
    assert evaluations.read(tmp_path) == []
    assert len(run.events("started")) == 1


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_without_a_chief_it_does_not_wait_for_ever(trainers: Any, tmp_path: Path) -> None:
    run = start(trainers, tmp_path, orphan_timeout=1.0)
    assert run.code(LONG) == 75
    assert "the chief has written nothing to" in run.event("failed")["detail"]
    assert len(run.events("started")) == 1


def test_a_metric_that_is_not_there_is_a_wrong_configuration(trainers: Any, tmp_path: Path) -> None:
    run = start(trainers, tmp_path, train={"export": {"metric": "top_accuracy"}})
    assert run.code(LONG) == 2
    assert "'top_accuracy'; expected one of loss, accuracy" in run.event("failed")["detail"]


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="the free memory is known on Linux alone")
def test_tables_that_it_cannot_hold_are_refused_before_they_are_made(trainers: Any, tmp_path: Path) -> None:
    run = start(trainers, tmp_path, train={"workload": "tests.trainer.engine.embedding_models:too_large", "params": {"model": "too_large"}})
    assert run.code(LONG) == 2
    told = run.event("failed")["detail"]
    assert "huge (1,000,000,000,000 x 4, 16 TB)" in told
    assert "leave the evaluator role out: the chief evaluates through the same look-ups" in told


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="a directory that is memory is known on Linux alone")
@pytest.mark.parametrize(
    "formats, on_disk, in_memory", [([], 3, 3), (["saved_model"], 6, 8), (["keras"], 10, 10), (["keras", "saved_model"], 10, 12)]
)
def test_what_it_saves_to_be_exported_takes_memory_where_temporary_files_do(formats: list[str], on_disk: int, in_memory: int) -> None:
    assert [evaluator.copies(formats, place) for place in ("/proc", "/dev/shm")] == [on_disk, in_memory]


def test_what_is_evaluated_is_not_evaluated_again(tmp_path: Path) -> None:
    chief(tmp_path, STEPS)
    assert [event["step"] for event in follow(tmp_path).events("evaluated")] == [STEPS]
    assert follow(tmp_path).events("evaluated") == []


def test_another_models_checkpoint_is_not_evaluated(tmp_path: Path) -> None:
    chief(tmp_path, STEPS)
    output = follow(tmp_path, {"normalised": True})
    assert output.events("evaluated") == []
    assert "is of another model" in output.events("notice")[0]["message"]


def test_a_run_that_ended_early_is_over_and_one_of_fewer_steps_is_not(tmp_path: Path) -> None:
    chief(tmp_path, 30)
    facts = run_state.read(tmp_path) | {"state": "succeeded"}
    (tmp_path / "run.json").write_text(json.dumps(facts | {"steps": 30}))  # as an earlier run of 30 steps has left it
    output = Output()

    def a_second_later() -> bool:
        return any(time.time() - event["time"] > 1 for event in output.events("evaluated"))

    job = settings(tmp_path, STEPS, has_evaluator=True)
    assert evaluator.evaluate_checkpoints(Small({}), job, Reporter("evaluator", output), a_second_later) is None
    (tmp_path / "evaluations.json").unlink()
    (tmp_path / "run.json").write_text(json.dumps(facts))
    assert [event["step"] for event in follow(tmp_path).events("evaluated")] == [30]


def follow(run_dir: Path, params: dict[str, Any] | None = None) -> Output:
    output = Output()
    last = evaluator.evaluate_checkpoints(
        Small(params or {}), settings(run_dir, STEPS, has_evaluator=True), Reporter("evaluator", output), lambda: False
    )
    assert last is not None
    return output
