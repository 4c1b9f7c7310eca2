"""The chief's progress from calls of workers, ended or not."""

import socket
from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.parameter_server import asynchronous
from trainer.engine.parameter_server.asynchronous import AsynchronousSession
from trainer.engine.parameter_server.worker_pool import Assignment, Connection, WorkerResult, Workers, is_lost_worker_error, non_finite
from trainer.engine.session import NonFinite


@dataclass(frozen=True)
class Measures:
    """The measures of a model with one metric."""

    metrics: tuple[str, ...] = ("accuracy",)
    width: int = 3
    examples: int = 16


def result(worker: int, steps: int, *totals: float) -> WorkerResult:
    return WorkerResult(worker=worker, seconds=2.0, steps=steps, totals=np.array(totals, np.float32))


def test_loss_and_metrics_are_means_over_steps_and_stay_known_while_no_call_ends() -> None:
    workers = Workers(Connection(None, 1, 2), lambda _: None, lambda *_: result(0, 0), Measures(), lambda: False)
    assert workers.summarise([]) == (None, {}, [])
    assert workers.summarise([result(0, 0, 0, 0, 0)]) == (None, {}, [])  # lost
    loss, metrics, progress = workers.summarise([result(0, 10, 10.0, 5.0, 1.0), result(1, 30, 15.0, 25.0, 1.0)])
    assert (loss, metrics) == (25 / 40, {"accuracy": 0.75})
    assert [(worker.task, worker.loss, worker.input_wait) for worker in progress] == [("worker-0", 1.0, 0.5), ("worker-1", 0.5, 0.5)]
    assert workers.summarise([]) == (loss, metrics, [])


@pytest.mark.parametrize("message", ["Socket closed", "recvmsg:Connection reset by peer"])
def test_a_broken_connection_without_a_name_is_a_lost_worker_while_every_server_answers(message: str) -> None:
    broken = tf.errors.UnavailableError(None, None, message)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        servers = [f"127.0.0.1:{server.getsockname()[1]}" for server in (one, other)]
        assert is_lost_worker_error(broken, servers)
        other.close()
        assert not is_lost_worker_error(broken, servers)


def test_an_error_that_names_a_task_or_is_of_another_kind_is_left_to_the_coordinator() -> None:
    named = tf.errors.UnavailableError(
        None, None, "Socket closed\nAdditional GRPC error information from remote target /job:ps/replica:0/task:0"
    )
    assert not is_lost_worker_error(named, [])
    assert not is_lost_worker_error(tf.errors.InvalidArgumentError(None, None, "shapes differ"), [])
    assert is_lost_worker_error(
        tf.errors.InvalidArgumentError(None, None, "Unable to find the relevant tensor remote_handle: Op ID: 1"), []
    )


def test_the_worker_whose_weights_were_finite_is_named() -> None:
    def first_non_finite(worker: int, step: int, *, weights_non_finite: bool = False) -> WorkerResult:
        totals = np.zeros(2, np.float32)
        return WorkerResult(
            worker=worker, seconds=1.0, steps=4, totals=totals, first_non_finite=step, weights_non_finite=weights_non_finite
        )

    assert non_finite([result(0, 4, 0.0, 0.0)]) is None
    assert non_finite([first_non_finite(0, 122, weights_non_finite=True), first_non_finite(1, 130)]) == NonFinite(130, "worker-1")
    assert non_finite([first_non_finite(1, 61), first_non_finite(0, 62)]) == NonFinite(61, "worker-1")
    # The call of the worker with finite weights was lost.
    assert non_finite([first_non_finite(0, 122, weights_non_finite=True), first_non_finite(2, 120, weights_non_finite=True)]) == NonFinite(
        120, "worker-2"
    )


@pytest.mark.parametrize(
    "from_finite_weights,finite_steps,first,weights_non_finite",
    [(0, 4, None, False), (1, 2, 13, False), (0, 0, 11, True)],
    ids=["all finite", "weights finite", "weights not finite"],
)
def test_a_call_reports_its_first_loss_that_is_not_finite_and_whether_its_weights_were(
    from_finite_weights: int, finite_steps: int, first: int | None, weights_non_finite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asynchronous, "constant", tf.constant)  # on this process's device: there is no chief
    session = object.__new__(AsynchronousSession)
    loss, start, steps, global_step = 0.5, 10, 4, 20
    numbers = tf.constant([loss, from_finite_weights, finite_steps, start, steps, global_step], tf.float64)
    monkeypatch.setattr(session, "_call", lambda *_: numbers, raising=False)
    call = session._run(None, steps, Assignment(0, first=False))
    assert (call.steps, call.global_step) == (steps, global_step)
    assert (call.first_non_finite, call.weights_non_finite) == (first, weights_non_finite)
