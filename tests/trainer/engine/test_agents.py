"""An agent in the loop, in this process: it resumes with its whole state, and reports its progress."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.engine.test_loop import Output
from tests.trainer.tensorboard_reader import read_events, tensorboard
from trainer.engine import evaluator, loop
from trainer.engine.agents import LocalAgentSession
from trainer.engine.train_config import TrainConfig, train_config
from trainer.events import Reporter
from trainer.settings import TrainerSettings
from trainer.workloads.gridworld_dqn import GridworldDqn

STEPS = 1001
# A call of 200 moves is learned from in 100 updates: 64 moves at a time.
PARAMS = {"boards": 40, "filters": [4, 4, 4], "hidden": 8, "replay": 10_000, "random_steps": 200, "epsilon_steps": 800, "update_every": 2}


def config_of(run_dir: Path, steps: int, *, has_evaluator: bool = False, **train: Any) -> TrainConfig:
    settings = {
        "workload": "gridworld_dqn",
        "params": PARAMS,
        "batch_size": 8,
        "steps": steps,
        "steps_per_execution": 200,
        "checkpoint": {"every_steps": 200},
        "evaluate": {"every_steps": 0},
        "summaries": {"every_steps": 0},
        **train,
    }
    base = {"run": "agent", "run_dir": str(run_dir), "scratch_dir": str(run_dir), "has_evaluator": has_evaluator, "train": settings}
    return train_config(TrainerSettings.model_validate(base))


def train(
    run_dir: Path, steps: int, stop_after: int | None = None, **changes: Any
) -> tuple[LocalAgentSession, loop.TrainingOutcome, Output]:
    def stop_requested() -> bool:
        return stop_after is not None and session.step >= stop_after

    config, output = config_of(run_dir, steps, **changes), Output()
    agent = GridworldDqn(config.train.params, "synthetic", 0)
    session = LocalAgentSession(agent, config, stop_requested)
    outcome = loop.run(session, agent, config, Reporter("chief", output), stop_requested)
    return session, outcome, output


def state(session: LocalAgentSession) -> list[Any]:
    """Return copies of the networks, the replay and the optimizer's variables."""
    return [variable.value.numpy().copy() for variable in (*session.model.variables, *session.optimizer.variables)]


@dataclass(frozen=True)
class Run:
    """The end of a run or of its first part, and the events that it has reported."""

    session: LocalAgentSession
    outcome: loop.TrainingOutcome
    output: Output


@dataclass(frozen=True)
class Stopped(Run):
    """A run that was stopped, and how often TensorFlow has traced what it learns."""

    run_dir: Path
    traces: int


@dataclass(frozen=True)
class Resumed(Run):
    """The same run, resumed until its end; its state before the first step."""

    agent: GridworldDqn
    restored: list[Any]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    traces, learn, run_dir = list[int](), GridworldDqn.learn, tmp_path_factory.mktemp("agent")

    def counted_learn(agent: GridworldDqn, *arguments: Any) -> Any:
        traces.append(1)
        return learn(agent, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridworldDqn, "learn", counted_learn)
        summaries: dict[str, Any] = {"evaluate": {"every_steps": 400}, "summaries": {"every_steps": 200}}
        return Stopped(*train(run_dir, STEPS, stop_after=700, **summaries), run_dir, len(traces))


@pytest.fixture(scope="module")
def resumed(stopped: Stopped) -> Resumed:
    agent, resumed_config = GridworldDqn(PARAMS, "synthetic", 0), config_of(stopped.run_dir, STEPS, has_evaluator=True)
    session, output = LocalAgentSession(agent, resumed_config, lambda: False), Output()
    restored: list[Any] = []
    begin = session.begin_at

    def begin_at(step: int) -> None:
        begin(step)
        restored.extend(state(session))

    session.begin_at = begin_at  # type: ignore[method-assign]  # to see the state before the first step
    outcome = loop.run(session, agent, resumed_config, Reporter("chief", output), lambda: False)
    return Resumed(session, outcome, output, agent, restored)


def test_a_stopped_run_resumes_with_its_step_epsilon_networks_and_replay(stopped: Stopped, resumed: Resumed) -> None:
    at_stop = stopped.output.events("progress")[-1]
    assert not stopped.outcome.finished
    assert at_stop["step"] == stopped.outcome.step
    assert resumed.output.events("restored")[0]["step"] == at_stop["step"]
    assert all((after == before).all() for after, before in zip(resumed.restored, state(stopped.session), strict=True))
    (replay,) = [values for values in resumed.restored if values.dtype == np.int8]
    assert replay[: at_stop["step"]].any(axis=1).all()
    assert not replay[at_stop["step"] :].any()
    # Epsilon continues to fall: it is 1 until step 200, then falls linearly to 0.1 at step 1000.
    after = resumed.output.events("progress")[0]
    assert at_stop["metrics"]["epsilon"] == pytest.approx(1 - 0.9 * (at_stop["step"] - 200) / 800)
    assert after["metrics"]["epsilon"] < at_stop["metrics"]["epsilon"]
    # Forty boards move at a time; the last step is the move of only some.
    assert (resumed.outcome.step, resumed.outcome.finished) == (STEPS, True)
    assert int(np.asarray(resumed.session.optimizer.iterations)) == (STEPS - 200) // 2
    assert not resumed.session.model.replay.value.numpy()[STEPS:].any()


def test_an_agent_stops_before_it_has_learned_from_all_moves_of_a_call(stopped: Stopped) -> None:
    assert 700 <= stopped.outcome.step < 800
    assert int(np.asarray(stopped.session.optimizer.iterations)) == (stopped.outcome.step - 200) // 2


def test_a_stop_before_the_first_move_is_no_error(tmp_path: Path) -> None:
    _, outcome, output = train(tmp_path, 1000, stop_after=0)
    assert (outcome.step, outcome.finished) == (0, False)
    assert [event["step"] for event in output.events("checkpoint")] == [0]


def test_an_agent_reports_its_metrics_and_writes_summaries(stopped: Stopped, resumed: Resumed) -> None:
    assert stopped.traces == 1  # although it learns from other numbers of moves at the start, at the end and at a stop
    assert set(resumed.outcome.metrics) == {"loss", "reward", "q"}
    progress = stopped.output.events("progress")
    assert set(progress[-1]["metrics"]) == {"reward", "q", "epsilon"}
    assert progress[-1]["loss"] >= 0
    assert "loss" not in progress[0]
    events = read_events(stopped.run_dir / "logs" / "train")
    assert {"loss", "reward", "q", "epsilon", "learning_rate", "examples_per_second"} <= events.tags("scalars")
    assert events.tags("images") == {"episode"}
    assert [step for step, _ in events.values("episode")] == [step for step, _ in events.scalars("reward")] == [200, 400, 600]
    assert [step for step, _ in events.scalars("loss")] == [400, 600]  # nothing is learned from the first 200
    assert np.isfinite([loss for _, loss in events.scalars("loss")]).all()
    (evaluated,) = stopped.output.events("evaluated")
    assert (evaluated["step"], set(evaluated["metrics"])) == (400, {"loss", "reward", "q"})
    assert read_events(stopped.run_dir / "logs" / "eval").tags("scalars") == {"loss", "reward", "q"}


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


def test_an_evaluator_plays_the_checkpoints(stopped: Stopped, resumed: Resumed) -> None:
    output, evaluator_config = Output(), config_of(stopped.run_dir, STEPS, has_evaluator=True)
    last = evaluator.evaluate_checkpoints(resumed.agent, evaluator_config, Reporter("evaluator", output), lambda: False)
    assert last is not None
    assert last[0] == STEPS
    assert set(last[1]) == {"loss", "reward", "q"}
    assert [event["step"] for event in output.events("evaluated")] == [STEPS]
    assert not (stopped.run_dir / "export").exists()
