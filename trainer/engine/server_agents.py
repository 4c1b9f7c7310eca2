"""Training an agent on parameter servers: workers play, servers hold the weights that they play with, the chief learns.

An update takes milliseconds and as many bytes as the whole network, so the chief updates weights of its own and copies them to the
servers after each call's worth of updates. Workers read them once a call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.engine.agents import MAX_MOVES, AgentSession, Player, Rollout
from trainer.engine.parameter_server import packing
from trainer.engine.parameter_server.state import device
from trainer.engine.parameter_server.worker_pool import (
    CALLS_PER_WORKER,
    Assignment,
    CallResult,
    Connection,
    WorkerResult,
    Workers,
    constant,
    translate_peer_errors,
)
from trainer.engine.session import WorkerProgress
from trainer.engine.train_config import TrainConfig
from trainer.workloads.protocol import Agent

_CHIEF_TASK = "/job:chief/replica:0/task:0"  # any of its devices: TensorFlow takes its GPU if it has one


@dataclass(frozen=True)
class _Measures:
    """The measures of a call on a worker: no loss, what the agent measures, and no seconds of waiting for input."""

    metrics: tuple[str, ...]
    examples: int = 1  # of a step

    @property
    def width(self) -> int:
        return 2 + len(self.metrics)


class ServerAgentSession(AgentSession):
    """The chief's session. A worker that is lost costs the moves of its call, and begins new games when it is back."""

    def __init__(self, agent: Agent, config: TrainConfig, connection: Connection, stop_requested: Callable[[], bool]) -> None:
        with translate_peer_errors():
            with tf.device(_CHIEF_TASK):
                super().__init__(agent, config, stop_requested)
            self._packs = packing.lay_out(self.model.trainable_variables, connection.servers, flattened=True)
            self._published = [self._server_variable(pack) for pack in self._packs]
        self._players = count()
        self._call = self._make_call()
        self._results: list[WorkerResult] = []
        self._workers = Workers(connection, self._player, self._play, _Measures(tuple(agent.play_metrics)), stop_requested)

    def close(self) -> None:
        """End the workers' calls; `servers.stop_all` stops the servers."""
        self._workers.close()

    def _server_variable(self, pack: packing.Pack) -> tf.Variable:
        with tf.device(device(pack.server)):
            return tf.Variable(self._joined(pack))

    def _joined(self, pack: packing.Pack) -> tf.Tensor:
        with tf.device(_CHIEF_TASK):
            return pack.join([self.model.trainable_variables[i].value for i in pack.members])

    def _publish(self) -> None:
        with translate_peer_errors():
            for pack, variable in zip(self._packs, self._published, strict=True):
                variable.assign(self._joined(pack))

    def _take(self, steps: int) -> Rollout | None:
        del steps  # calls are in progress already
        call = MAX_MOVES * self._agent.parallel_games
        most = self._workers.count * CALLS_PER_WORKER
        while self._workers.in_flight < most and self.step + self._workers.in_flight * call < self._last_step:
            self._workers.schedule(call)
        if (result := self._workers.take()) is None:
            return None
        self._results.append(result)
        return result.payload if result.steps else None

    def _workers_progress(self) -> Sequence[WorkerProgress]:
        if self._stop_requested():
            self._results += self._workers.take_all()
        results, self._results = self._results, []
        # Workers that play have no loss.
        return [replace(progress, loss=None) for progress in self._workers.summarise(results)[2]]

    def _player(self, worker: int) -> Player:
        del worker  # each player has a number of its own, also the second one of a worker
        return Player(self._agent, next(self._players), self.step)

    def _play(self, player: Player, steps: int, _: Assignment) -> CallResult:
        rollout = player.play(lambda *given: self._call(*map(constant, given)), steps, self._agent.epsilon(self.step))
        return CallResult(totals=np.array([np.nan, *rollout.sums, np.nan], np.float32), steps=len(rollout.transitions), payload=rollout)

    def _make_call(self) -> Any:
        agent, packs, published = self._agent, self._packs, self._published
        variable_count = len(self.model.trainable_variables)

        @tf.function(autograph=False)
        def call(*arguments: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            weights = packing.unpack(zip(packs, map(tf.identity, published), strict=True), variable_count)
            return agent.play(weights, *arguments)

        return call
