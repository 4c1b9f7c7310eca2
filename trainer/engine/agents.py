"""Training an agent, which learns from its own actions: the session on one task, and the base class that it shares with the one on servers."""

import math
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.engine import model_ops
from trainer.engine.session import CallProgress, NonFinite, Session, WorkerProgress
from trainer.engine.train_config import TrainConfig
from trainer.workloads.protocol import Agent

Numbers = np.ndarray[Any, np.dtype[np.float32]]

MAX_MOVES = 8  # moves of each game in a call, so that the players' weights are never much older than the learner's
_MAX_UPDATES = 32  # updates between two checks for a stop: those of a call of 16 games with an update every 4 moves


@dataclass(frozen=True)
class Rollout:
    """The transitions of some steps, int8 [steps, width], and the sums of the agent's `play_metrics` over them."""

    transitions: np.ndarray[Any, np.dtype[np.int8]]
    sums: Numbers


class Player:
    """The games of one task that plays, and their random seed. They stay with the chief: at most the moves of one call are lost."""

    def __init__(self, agent: Agent, player: int, step: int) -> None:
        self._agent = agent
        # NumPy's arrays are on no task: the next call may run on another one.
        self._games, self._seed = (tensor.numpy() for tensor in agent.reset(agent.parallel_games, player, step))
        self._moves = 0

    def play(self, call: Any, steps: int, epsilon: float) -> Rollout:
        """Play at least `steps` steps in all games. `call` takes NumPy values: games, moves so far, moves, epsilon, seed."""
        moves = -(-steps // self._agent.parallel_games)
        numbers = (np.int32(self._moves), np.int32(moves), np.float32(epsilon))
        games, transitions, sums = call(self._games, *numbers, self._seed)
        self._games, self._moves = games.numpy(), self._moves + moves
        return Rollout(transitions.numpy(), sums.numpy())


class AgentSession(Session):
    """The chief's part: it learns from the moves that were played; see Session. `stop_requested` returns whether this task was asked to stop."""

    def __init__(self, agent: Agent, config: TrainConfig, stop_requested: Callable[[], bool]) -> None:
        self._agent, self._last_step, self._stop_requested = agent, config.steps, stop_requested
        built = model_ops.build(agent, config)
        self.model: keras.Model = built.model
        self.optimizer: keras.optimizers.Optimizer = built.optimizer
        self._loss: float | None = None  # of the last updates
        self._window: deque[tuple[int, Numbers]] = deque()  # steps and sums of what was played last
        self._learn = self._make_learn(config.batch_size)

    def begin_at(self, step: int) -> None:
        """See Session.begin_at. A step is a move that was learned from; other moves are no part of the state."""
        self._step = step
        self._window.clear()
        self._publish()

    def run(self, steps: int, *, stop: bool = False, finish: bool = False, next_steps: int = 0) -> CallProgress:
        """Return when at least `steps` more steps were played and learned from, or the task is asked to stop; see Session.run."""
        began, start = time.perf_counter(), self._step
        goal = min(start + steps, self._last_step)
        while self._step < goal and not self._stop_requested():
            if rollout := self._take(min(goal - self._step, MAX_MOVES * self._agent.parallel_games)):
                self._learn_from(rollout)
        return CallProgress(
            step=self._step,
            steps=self._step - start,
            loss=self._loss,
            metrics={**self._play_metrics(), "epsilon": self._agent.epsilon(self._step)},
            examples=self._step - start,
            seconds=time.perf_counter() - began,
            stop=stop or self._stop_requested(),
            finish=finish,
            next_steps=next_steps or None,
            non_finite=None if self._loss is None or math.isfinite(self._loss) else NonFinite(self._step),
            workers=self._workers_progress(),
        )

    @abstractmethod
    def _take(self, steps: int) -> Rollout | None:
        """Return the moves of about so many steps; None if there are no new ones yet, or the task is asked to stop."""

    @abstractmethod
    def _publish(self) -> None:
        """Give the players the weights that were learned."""

    def _workers_progress(self) -> Sequence[WorkerProgress]:
        """Return the workers' progress since the last call of this."""
        return ()

    def _learn_from(self, rollout: Rollout) -> None:
        self._window.append((len(rollout.transitions), rollout.sums))
        while sum(steps for steps, _ in self._window) - self._window[0][0] >= self._agent.metric_window:
            self._window.popleft()
        # All games move together: moves beyond the last step are dropped.
        remaining = rollout.transitions[: self._last_step - self._step]
        while len(remaining) and not self._stop_requested():
            updates = self._agent.update_count(self._step, self._step + len(remaining))
            rows = max(1, len(remaining) * _MAX_UPDATES // max(updates, _MAX_UPDATES))
            self._learn_transitions(remaining[:rows])
            remaining = remaining[rows:]

    def _learn_transitions(self, transitions: np.ndarray[Any, np.dtype[np.int8]]) -> None:
        after = self._step + len(transitions)
        updates = self._agent.update_count(self._step, after)
        losses = self._learn(transitions, tf.constant(self._step), tf.constant(updates))
        if updates:
            self._loss = float(losses) / updates
            self._publish()
        self._step = after

    def _play_metrics(self) -> dict[str, float]:
        if not self._window:  # stopped before anything was played
            return dict.fromkeys(self._agent.play_metrics, math.nan)
        steps = sum(steps for steps, _ in self._window)
        return model_ops.named(self._agent.play_metrics, np.sum([sums for _, sums in self._window], axis=0) / steps)

    def _make_learn(self, batch_size: int) -> Any:
        """Return the TensorFlow function that learns, traced once for any number of moves: the first and the last call have fewer."""
        agent, model, optimizer = self._agent, self.model, self.optimizer
        number = tf.TensorSpec([], tf.int32)

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int8), number, number])
        def learn(transitions: tf.Tensor, step: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
            return agent.learn(model, optimizer, transitions, step, updates, batch_size)

        return learn


class LocalAgentSession(AgentSession):
    """One task plays and learns in turn: strategy single."""

    def __init__(self, agent: Agent, config: TrainConfig, stop_requested: Callable[[], bool]) -> None:
        super().__init__(agent, config, stop_requested)
        self._deterministic = config.train.deterministic
        self._player: Player | None = None
        self._call = self._make_call()

    def begin_at(self, step: int) -> None:
        """See Session.begin_at."""
        super().begin_at(step)
        self._player = Player(self._agent, 0, step)

    def _publish(self) -> None:
        """Do nothing: the player has the learner's own weights."""

    def _take(self, steps: int) -> Rollout | None:
        if not self._player:
            return None
        if self._deterministic:  # how many moves are played between two updates must not depend on measured time
            steps = self._agent.parallel_games
        return self._player.play(lambda *given: self._call(*map(tf.constant, given)), steps, self._agent.epsilon(self._step))

    def _make_call(self) -> Any:
        agent, weights = self._agent, [weight.value for weight in self.model.trainable_variables]

        @tf.function(autograph=False)
        def call(*arguments: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return agent.play([tf.convert_to_tensor(weight) for weight in weights], *arguments)

        return call
