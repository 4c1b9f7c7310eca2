"""Training data that ends too early is an error that names the remedy; test_parameter_server.py has the same of parameter servers."""

import pytest

from tests.trainer.engine.small import Ending, small_config
from trainer.engine import data_length
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.replicated import ReplicatedSession
from trainer.workloads.errors import WorkloadError

REMEDY = r"it must be endless: put \.repeat\(\) before \.batch\(\.\.\.\), and begin at batch shard\.start"


def test_too_few_batches_are_refused_before_the_first_step() -> None:
    session = ReplicatedSession(Ending({}), small_config(steps=6), AllReduce())
    with pytest.raises(WorkloadError, match=rf"small:Small: train_data\(shard\) gives 5 batches, .* may take 6 more; {REMEDY}"):
        session.begin_at(0)
    accumulating = ReplicatedSession(Ending({}), small_config(steps=3, gradients={"accumulate": 2}), AllReduce())
    with pytest.raises(WorkloadError, match="may take 6 more"):
        accumulating.begin_at(0)


def test_data_may_end_with_the_last_step() -> None:
    session = ReplicatedSession(Ending({}), small_config(steps=5), AllReduce())
    session.begin_at(0)
    assert session.run(5).step == 5
    # The same for a resumed run: a user's pipeline that begins at the step has only the remaining batches.
    resumed = ReplicatedSession(Ending({}), small_config(steps=9), AllReduce())
    resumed.begin_at(4)
    assert resumed.run(5).step == 9


def test_data_of_unknown_length_is_an_error_when_it_ends() -> None:
    config = small_config(steps=6)
    session = ReplicatedSession(Ending({"unknown": True}), config, AllReduce())
    session.begin_at(0)
    with pytest.raises(WorkloadError, match=rf"has ended before the last step, 6; {REMEDY}"), data_length.translate_end_of_data(config):
        session.run(6)
