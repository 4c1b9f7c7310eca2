"""An agent in the loop, in this process: it resumes with its whole state, and reports its progress."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.engine.test_loop import Output
from tests.trainer.tensorboard_reader import read_events, tensorboard
from trainer.engine import evaluator, loop
from trainer.engine.agents import LocalAgentSession
from trainer.engine.job import Job, job
from trainer.events import Reporter
from trainer.settings import TrainerSettings
from trainer.workloads.gridworld_dqn import GridworldDqn

PARAMS = {"boards": 4, "filters": [4, 4, 4], "hidden": 8, "replay": 10_000, "random_steps": 200, "epsilon_steps": 800}


def job_of(run_dir: Path, steps: int, *, has_evaluator: bool = False, **train: Any) -> Job:
    settings = {
        "workload": "gridworld_dqn",
        "params": PARAMS,
        "batch_size": 8,
        "steps": steps,
        "checkpoint": {"every_steps": 200},
        "evaluate": {"every_steps": 0},
        "summaries": {"every_steps": 0},
        **train,
    }
    base = {"run": "agent", "run_dir": str(run_dir), "scratch_dir": str(run_dir), "has_evaluator": has_evaluator, "train": settings}
    return job(TrainerSettings.model_validate(base))


def train(run_dir: Path, steps: int, stop_after: int | None = None, **changes: Any) -> tuple[LocalAgentSession, loop.Outcome, Output]:
    def stopped() -> bool:
        return stop_after is not None and session.step >= stop_after

    train_job, output = job_of(run_dir, steps, **changes), Output()
    agent = GridworldDqn(train_job.train.params, "synthetic", 0)
    session = LocalAgentSession(agent, train_job, stopped)
    outcome = loop.run(session, agent, train_job, Reporter("chief", output), stopped)
    return session, outcome, output


def state(session: LocalAgentSession) -> list[Any]:
    """Return copies of the networks, the replay and the optimizer's variables."""
    return [variable.value.numpy().copy() for variable in (*session.model.variables, *session.optimizer.variables)]


def test_a_stopped_run_resumes_with_its_step_epsilon_networks_and_replay(tmp_path: Path) -> None:
    stopped, outcome, first = train(tmp_path, 1001, stop_after=600)
    assert not outcome.finished
    assert 600 <= outcome.step < 1001
    at_stop = first.events("progress")[-1]
    assert at_stop["step"] == outcome.step
    agent, resumed_job = GridworldDqn(PARAMS, "synthetic", 0), job_of(tmp_path, 1001)
    resumed = LocalAgentSession(agent, resumed_job, lambda: False)
    output = Output()
    restored: list[Any] = []
    begin = resumed.begin_at

    def begin_at(step: int) -> None:
        begin(step)
        restored.extend(state(resumed))

    resumed.begin_at = begin_at  # type: ignore[method-assign]  # to see the state before the first step
    outcome = loop.run(resumed, agent, resumed_job, Reporter("chief", output), lambda: False)
    assert output.events("restored")[0]["step"] == at_stop["step"]
    assert all((after == before).all() for after, before in zip(restored, state(stopped), strict=True))
    (replay,) = [values for values in restored if values.dtype == np.int8]
    assert replay[: at_stop["step"]].any(axis=1).all()
    assert not replay[at_stop["step"] :].any()
    # Epsilon continues to fall: it is 1 until step 200, then falls linearly to 0.1 at step 1000.
    after = output.events("progress")[0]
    assert at_stop["metrics"]["epsilon"] == pytest.approx(1 - 0.9 * (at_stop["step"] - 200) / 800)
    assert after["metrics"]["epsilon"] < at_stop["metrics"]["epsilon"]
    # Four boards move at a time; the last step is the move of only one.
    assert (outcome.step, outcome.finished) == (1001, True)
    assert int(np.asarray(resumed.optimizer.iterations)) == (1001 - 200) // 4
    assert not resumed.model.replay.value.numpy()[1001:].any()


def test_an_agent_with_many_boards_stops_before_it_has_learned_from_all_moves_of_a_call(tmp_path: Path) -> None:
    params = {**PARAMS, "boards": 64, "update_every": 1, "random_steps": 100}  # 512 moves a call, an update each
    session, outcome, _ = train(tmp_path, 2000, stop_after=200, params=params)
    assert 200 <= outcome.step < 300
    assert int(np.asarray(session.optimizer.iterations)) == outcome.step - 100
    resumed, outcome, _ = train(tmp_path, 600, params=params)
    assert (outcome.step, outcome.finished) == (600, True)
    assert int(np.asarray(resumed.optimizer.iterations)) == 500


def test_a_stop_before_the_first_move_is_no_error(tmp_path: Path) -> None:
    _, outcome, output = train(tmp_path, 1000, stop_after=0)
    assert (outcome.step, outcome.finished) == (0, False)
    assert [event["step"] for event in output.events("checkpoint")] == [0]


def test_an_agent_reports_its_metrics_and_writes_summaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces, learn = list[int](), GridworldDqn.learn

    def counted_learn(agent: GridworldDqn, *arguments: Any) -> Any:
        traces.append(1)
        return learn(agent, *arguments)

    monkeypatch.setattr(GridworldDqn, "learn", counted_learn)
    _, outcome, output = train(tmp_path, 801, evaluate={"every_steps": 400}, summaries={"every_steps": 200})
    assert traces == [1]  # although the first and the last call have fewer moves
    assert set(outcome.metrics) == {"loss", "reward", "q"}
    progress = output.events("progress")[-1]
    assert set(progress["metrics"]) == {"reward", "q", "epsilon"}
    assert progress["loss"] >= 0
    events = read_events(tmp_path / "logs" / "train")
    assert {"loss", "reward", "q", "epsilon", "learning_rate", "examples_per_second"} <= events.tags("scalars")
    assert events.tags("images") == {"episode"}
    assert [step for step, _ in events.values("episode")] == [step for step, _ in events.scalars("reward")] == [200, 400, 600, 800]
    assert [step for step, _ in events.scalars("loss")] == [400, 600, 800]  # nothing is learned from the first 200
    assert "loss" not in output.events("progress")[0]
    assert np.isfinite([loss for _, loss in events.scalars("loss")]).all()
    assert read_events(tmp_path / "logs" / "eval").tags("scalars") == {"loss", "reward", "q"}


@pytest.mark.slow
def test_tensorboard_shows_the_episode(tmp_path: Path) -> None:
    train(tmp_path, 200, summaries={"every_steps": 200})
    with tensorboard(tmp_path / "logs", tmp_path / "tensorboard.log") as board:
        board.wait_for("plugin/images/tags", {"train"})
        assert set(board.json("plugin/images/tags")["train"]) == {"episode"}
        (image,) = board.json("plugin/images/images", run="train", tag="episode", sample="0")
        assert image["step"] == 200
        gif = board.get("plugin/images/individualImage", **dict([image["query"].split("=", 1)]))
    assert gif.startswith(b"GIF89a")


def test_an_evaluator_plays_the_checkpoints(tmp_path: Path) -> None:
    train(tmp_path, 400, has_evaluator=True)
    output, evaluator_job = Output(), job_of(tmp_path, 400, has_evaluator=True)
    last = evaluator.evaluate_checkpoints(GridworldDqn(PARAMS, "synthetic", 0), evaluator_job, Reporter("evaluator", output), lambda: False)
    assert last is not None
    assert last[0] == 400
    assert set(last[1]) == {"loss", "reward", "q"}
    assert not (tmp_path / "export").exists()
