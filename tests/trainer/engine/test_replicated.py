"""A session of one process; tests/integration/test_strategies.py has sessions of several."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.small import Small
from tests.trainer.engine.test_loop import settings
from trainer.engine import model_ops
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.replicated import LocalSession
from trainer.workloads.errors import WorkloadError


class Second(AllReduce):
    """The second task of an all-reduce whose first has the same state, as after `broadcast`."""

    def __init__(self) -> None:
        super().__init__()
        self.index = 1

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        assert any(v.dtype == tf.int64 and v.shape.rank for v in variables), "the random layers' states are shared too"


def test_each_task_drops_different_units(tmp_path: Path) -> None:
    states = []
    for all_reduce in (AllReduce(), Second()):
        session = LocalSession(Small({"dropout": True}), settings(tmp_path, 10), all_reduce)
        session.begin_at(0)
        states.append(model_ops.seeds(session.model)[0].numpy())
    np.testing.assert_array_equal(states[1] - states[0], [1, 0])


def test_progress_covers_all_steps_of_a_call(tmp_path: Path) -> None:
    session = LocalSession(Small({}), settings(tmp_path, 10), AllReduce())
    session.begin_at(0)
    progress = session.run(5, next_steps=7)
    assert (progress.step, progress.steps, progress.examples, progress.next_steps) == (5, 5, 80, 7)
    assert progress.metrics.keys() == {"accuracy"}
    assert progress.loss == pytest.approx(0.7, abs=0.3)


def test_tasks_that_cannot_synchronize_a_normalization_refuse_it(tmp_path: Path) -> None:
    two_tasks = AllReduce()
    two_tasks.size = 2
    workload = Small({"normalised": "synchronized"})
    LocalSession(workload, settings(tmp_path, 10), AllReduce())
    with pytest.raises(WorkloadError, match=r"the layer .batch_norm.* has synchronized=True, .*; leave it out, or use strategy mirrored"):
        LocalSession(workload, settings(tmp_path, 10), two_tasks)
