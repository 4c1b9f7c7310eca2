"""Synchronous training on parameter servers with backup workers: a step applies the mean of its first `replicas_to_aggregate` gradients."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.engine import clock
from trainer.engine.embeddings.sharded_tables import RowGradients
from trainer.engine.parameter_server.server_session import ServerSession
from trainer.engine.parameter_server.servers import disable_blocking_enqueue
from trainer.engine.parameter_server.sync_server import LAST_REQUEST, SyncServer
from trainer.engine.parameter_server.worker_pool import (
    CALLS_PER_WORKER,
    Assignment,
    CallResult,
    Connection,
    WorkerResult,
    constant,
    non_finite,
    translate_peer_errors,
)
from trainer.engine.session import CallProgress, PeerLostError
from trainer.engine.train_config import TrainConfig
from trainer.workloads.protocol import Workload

_POLL_INTERVAL = 0.25  # seconds between checks for a stop, and for lost servers, during rounds
_STOP_TIMEOUT = 2.0  # seconds that rounds may continue after a stop, and until an interrupt is repeated
_INTERRUPT_TIMEOUT = 10.0  # seconds after which a server that does not react to an interrupt counts as lost


class SynchronousSession(ServerSession):
    """The chief's session. Servers gather gradients and update, see sync_server.py; workers answer them with gradients.

    Between calls of `run`, the state is that after exactly `step` rounds: servers update only in `run`.
    """

    def __init__(self, workload: Workload, config: TrainConfig, connection: Connection, stop_requested: Callable[[], bool]) -> None:
        self._needed = config.train.sync.replicas_to_aggregate if config.train.sync else connection.workers
        super().__init__(workload, config, connection, stop_requested, replicas=self._needed, per_server=True)
        wire = tf.as_dtype(config.train.gradients.wire)
        # Variables that are not trained, such as the moving averages of BatchNorm, are on the first server; the workers' changes of them are averaged there, too.
        non_trainable = [self._state.non_trainable, *([] for _ in self._state.groups[1:])]
        with translate_peer_errors():
            self._servers = [
                SyncServer(group, own, connection.workers, wire, self.tables)
                for group, own in zip(self._state.groups, non_trainable, strict=True)
            ]
        self._rounds = [server.rounds(self._needed) for server in self._servers]
        self._answering = [server.answering() for server in self._servers]
        self._dropped = 0
        self._results: list[WorkerResult] = []  # those that `run` has not reported yet
        self._threads = ThreadPoolExecutor(2 * len(self._servers), thread_name_prefix="rounds")

    def flush(self) -> None:
        """Do nothing: no round outlasts `run`."""

    def run_callbacks(self, call: Callable[[], bool], *, current: bool = True) -> bool:
        """See Session.run_callbacks. Workers wait for the next round; if none follows, their calls are ended."""
        stop = super().run_callbacks(call, current=current)
        if stop:
            self._end_calls()
        return stop

    def run(self, steps: int, *, stop: bool = False, finish: bool = False, next_steps: int = 0) -> CallProgress:
        """Do `steps` rounds; see Session.run. Fewer if the task is asked to stop meanwhile: too few workers may be left."""
        began = time.perf_counter()
        before = self._step
        remaining = [steps] * len(self._servers)  # of each server
        while any(remaining) and not self._stop_requested() and self._wait_for_workers():
            done = self._run_rounds(remaining)
            remaining = [count - done_count for count, done_count in zip(remaining, done, strict=True)]
        # A stop may come in the middle of a round, which is then lost; of several servers, some may have done it.
        self._step += steps - max(remaining)
        stop = stop or self._stop_requested()
        self._results += self._workers.drain()
        if stop or finish or self._step >= min(self._last_step, self._step_limit) or self._note_first_non_finite(self._results):
            self._end_calls()
        results, self._results = self._results, []
        loss, metrics, workers = self._workers.summarise(results)
        return CallProgress(
            step=self._step,
            steps=self._step - before,
            loss=loss,
            metrics=metrics,
            examples=(self._step - before) * self._needed * self._replica.examples,
            seconds=time.perf_counter() - began,
            measured_steps=sum(result.steps for result in results),
            stop=stop,
            finish=finish,
            next_steps=next_steps or None,
            non_finite=non_finite(results),
            dropped=self._dropped,
            workers=workers,
        )

    def _wait_for_workers(self) -> bool:
        """Wait until there are as many workers as a round needs; return False if the task is asked to stop before.

        Calls are ended for that: the coordinator takes a worker back only while none is in progress.
        """
        if self._workers.alive_count >= self._needed:
            return True
        self._end_calls()
        while self._workers.alive_count < self._needed:
            if self._stop_requested():
                return False
            for _ in range(self._workers.count):
                self._workers.schedule(0)
            self._results += self._workers.take_all()
            time.sleep(_POLL_INTERVAL)
        return True

    def _run_rounds(self, counts: list[int]) -> list[int]:
        """Do so many rounds on each server and return how many were done: fewer if too few workers are left, or on a stop."""
        pending = [self._threads.submit(_round_counts, run, count) for run, count in zip(self._rounds, counts, strict=True)]
        for future in pending:
            future.add_done_callback(lambda _: self._workers.wake())
        answering: dict[int, Future[int]] = {}
        deadline, all_pending_at = math.inf, time.monotonic()
        while not all(future.done() for future in pending):
            if not any(future.done() for future in pending):
                all_pending_at = time.monotonic()
            if time.monotonic() - all_pending_at > _POLL_INTERVAL:
                # Workers wait for each server: one that is done continues to answer them.
                for server in self._blocking_servers(pending, counts) - answering.keys():
                    answering[server] = self._threads.submit(_stale_count, self._answering[server])
            # A call's gradients may all be stale, so another call is always scheduled.
            while self._workers.in_flight < self._workers.count * CALLS_PER_WORKER:
                self._workers.schedule(max(counts))
            result = self._workers.take_within(_POLL_INTERVAL)
            self._results += [result] if result else []
            if any(future.done() and future.exception() for future in pending):
                break
            self._workers.check_errors()
            deadline = self._interrupt_if_needed(pending, deadline)
        return self._done_rounds(pending, answering)

    def _done_rounds(self, pending: list[Future[tuple[int, int]]], answering: dict[int, Future[int]]) -> list[int]:
        try:
            with translate_peer_errors():
                for server in answering:
                    self._servers[server].interrupt()
                stale = {server: future.result(_INTERRUPT_TIMEOUT) for server, future in answering.items()}
                results = [future.result(_INTERRUPT_TIMEOUT) for future in pending]
        except TimeoutError:
            raise PeerLostError(f"a parameter server did not end its round within {_INTERRUPT_TIMEOUT:.0f} s of the request to") from None
        # Each gradient has a part on every server: one of them counts. One that only answers also drops what the others apply.
        self._dropped += min(dropped + stale.get(server, 0) for server, (_, dropped) in enumerate(results))
        return [done for done, _ in results]

    def _blocking_servers(self, pending: list[Future[tuple[int, int]]], counts: list[int]) -> set[int]:
        """Return the servers that have done their rounds, and block workers whose gradients other servers need.

        If every worker is needed, each sends to all servers in each round; then only a server without rounds to do blocks any.
        """
        done = [server for server, future in enumerate(pending) if future.done()]
        return {server for server in done if self._needed < self._workers.count or counts[server] == 0}

    def _interrupt_if_needed(self, pending: list[Future[tuple[int, int]]], deadline: float) -> float:
        """Interrupt rounds that lack workers, or that have not ended by the `deadline` of a stop; return the new deadline."""
        if self._stop_requested():
            deadline = min(deadline, time.monotonic() + _STOP_TIMEOUT)
        if self._workers.alive_count >= self._needed and time.monotonic() < deadline:
            return deadline
        if self._stop_requested():
            disable_blocking_enqueue()
        with translate_peer_errors():
            for server, future in zip(self._servers, pending, strict=True):
                if not future.done():
                    server.interrupt()
        return time.monotonic() + _STOP_TIMEOUT  # until it is repeated, should it not arrive

    def _end_calls(self) -> None:
        """Let every worker end its call, and begin its next one with a first request."""
        self._workers.drop_queued()
        with translate_peer_errors():
            for server in self._servers:
                for worker in range(self._workers.count):
                    server.end(worker)
            self._results += self._workers.take_all()
            for server in self._servers:
                server.clear()
        self._workers.start_over()

    def _worker_step(self) -> int:
        return self._step  # each worker takes about one batch a round

    def _run(self, iterator: Any, steps: int, assignment: Assignment) -> CallResult:
        *totals, waited, done, first_non_finite = self._call(
            assignment.worker, iterator, constant(steps), constant(assignment.worker), constant(assignment.first)
        ).numpy()
        first = None if first_non_finite < 0 else round(float(first_non_finite)) + 1
        return CallResult(totals=np.array(totals, np.float32), steps=round(float(done)), waited=float(waited), first_non_finite=first)

    def _make_call(self, seeded_for: int) -> Any:
        state, servers, replica = self._state, self._servers, self._replica

        @tf.function(autograph=False)
        def call(iterator: Any, steps: tf.Tensor, worker: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
            self._seed_graph(seeded_for)

            def request_values() -> tf.Tensor:
                for server in servers:
                    server.request_values(worker)
                return tf.constant(0)

            tf.cond(first, request_values, lambda: tf.constant(0))
            queues = [server.reply_queue(worker) for server in servers]

            def body(done: tf.Tensor, _: tf.Tensor, totals: tf.Tensor, first_non_finite: tf.Tensor) -> tuple[tf.Tensor, ...]:
                with tf.control_dependencies([totals]):  # of the previous step: its gradients are sent
                    began = clock.now()
                received = [server.receive(queue) for server, queue in zip(servers, queues, strict=True)]
                steps = [step for step, _ in received]  # until a server has sent this, its rows are of an earlier step
                with tf.control_dependencies(steps):
                    waited = clock.since(began)
                ended = tf.reduce_any([step < 0 for step in steps])
                non_trainable = received[0][1][len(state.groups[0].packs) :]
                values = state.unpacked([tensors[: len(g.packs)] for (_, tensors), g in zip(received, state.groups, strict=True)])
                # After the end this computes once more, without use: that costs less than a condition around every step.
                measured, gradients, after = replica.stateless_step(iterator, values, non_trainable, worker, steps[0], rows_after=steps)
                rows = [gradient for gradient in gradients if isinstance(gradient, RowGradients)]
                changes = [[new - old for new, old in zip(after, non_trainable, strict=True)], *([] for _ in servers[1:])]
                packed = state.packed(gradients)
                for server, (step, _), packs, extra in zip(servers, received, packed, changes, strict=True):
                    server.send(worker, tf.where(ended, LAST_REQUEST, step), [*packs, *extra], rows)
                with tf.control_dependencies([pack for packs in packed for pack in packs]):
                    # Not multiplied by 0: values that are computed after the end may be NaN.
                    added = tf.where(ended, 0.0, tf.concat([measured, [waited]], 0))
                first_non_finite = tf.where(
                    (first_non_finite < 0) & ~ended & ~tf.math.is_finite(measured[0]), received[0][0], first_non_finite
                )
                return done + tf.cast(~ended, tf.int32), ended, totals + added, first_non_finite

            start = (tf.constant(0), tf.constant(False), tf.zeros([replica.width + 1]), tf.constant(-1))
            done, _, totals, first_non_finite = tf.while_loop(lambda done, ended, *_: (done < steps) & ~ended, body, start)
            return tf.concat([totals, [tf.cast(number, tf.float32) for number in (done, first_non_finite)]], 0)

        return call


def _round_counts(run: Any, count: int) -> tuple[int, int]:
    # Not under the server's device, though all of it runs there: as an operation of the server it would block all other requests of the
    # chief to it, e.g. for functions that workers are about to call.
    done, dropped = run(tf.constant(count)).numpy()
    return int(done), int(dropped)


def _stale_count(answering: Any) -> int:
    return int(answering().numpy())
