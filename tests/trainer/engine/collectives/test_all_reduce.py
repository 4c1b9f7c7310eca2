"""The exchange between two tasks; whole runs are in tests/integration."""

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.drive_ring import NAMES, ROWS, SHARED
from tests.trainer.engine.drivers import driven, reported
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.collectives.tcp_all_reduce import PeerUnreachableError
from trainer.engine.session import PeerLostError


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_gradients_of_any_kind_can_be_sent_in_any_form(size: int, wire: str) -> None:
    all_reduce = AllReduce(1, 0, wire)
    all_reduce.size = size  # the operations are made, not run: that takes a task for each

    @tf.function(autograph=False)
    def exchange(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        means, _ = all_reduce.mean_gradients(gradients)
        return means

    specs = [tf.TensorSpec([3, 2], tf.float32), tf.TensorSpec([4], tf.float16), tf.TensorSpec([], tf.float32)]
    graph = exchange.get_concrete_function(specs)
    assert [(t.shape, t.dtype) for t in graph.structured_outputs] == [(s.shape, s.dtype) for s in specs]
    sent = {op.inputs[0].dtype.size for op in graph.graph.get_operations() if op.type.startswith("Collective")}
    assert sent == ({2} if wire == "bfloat16" else {2, 4})


def test_a_peer_that_is_lost_outside_of_tensorflows_operations_is_lost() -> None:
    alone = AllReduce()
    alone.size = 2
    with pytest.raises(PeerLostError, match="worker-1 is gone"), alone.translate_peer_errors():
        raise PeerUnreachableError("worker-1 is gone: it closed the connection")


@pytest.fixture(scope="module")
def reports() -> list[dict[str, Any]]:
    with driven("drive_ring.py", len(NAMES)) as tasks:
        return [reported(task) for task in tasks]


@pytest.mark.slow
@pytest.mark.parametrize("wire,tolerance", [("float32", 1e-6), ("bfloat16", 2**-7)])
@pytest.mark.parametrize("way", ["TensorFlow", "own"])
def test_both_tasks_get_the_mean_of_gradients_of_any_kind(reports: list[dict[str, Any]], way: str, wire: str, tolerance: float) -> None:
    first, second = (report[f"{wire} {way}"] for report in reports)
    assert first["means"] == second["means"]
    assert first["types"] == second["types"] == ["float32", "float16", "float32", "float64"]
    assert first["total"] == second["total"] == [2.0, 1.0]
    rows = np.zeros([9, 2])
    for at in (row for task in ROWS for row in task):
        rows[at] += np.array([at, 2 * at]) / 2
    assert first["rows"] == second["rows"]
    np.testing.assert_allclose(first["rows"], rows, rtol=tolerance)
    for mean, *owns in zip(first["means"], *(report["own"] for report in reports), strict=True):
        half = 1e-3 if np.size(mean) == 3 else 0.0  # that gradient is float16 itself
        np.testing.assert_allclose(mean, np.mean(owns, axis=0), rtol=max(tolerance, half), atol=max(tolerance, half))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["TensorFlow", "own"])
def test_all_get_the_first_ones_variables(reports: list[dict[str, Any]], way: str) -> None:
    for report in reports:
        assert report[f"float32 {way}"]["shared"] == [0.0, *([*map(float, range(count))] for count, _ in SHARED)]


@pytest.mark.slow
def test_tasks_that_make_different_models_are_refused_by_all(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert report["two models"].startswith("worker-1 and worker-0 make models of different variables. Give all tasks the same code")


@pytest.mark.slow
def test_two_tasks_learn_the_rows_that_one_process_learns_of_twice_the_batch(reports: list[dict[str, Any]]) -> None:
    first, second = (report["tables"] for report in reports)
    assert first["values"] == second["values"]
    assert first["off"] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_tasks_that_cannot_connect_say_so_and_all_stay_with_tensorflow(reports: list[dict[str, Any]], wire: str) -> None:
    notice, other = (report[f"{wire} notice"] for report in reports)
    assert "2 of 2 tasks could not connect to all others" in notice
    assert notice == other
    first = r"none \(it could not listen\)" if wire == "bfloat16" else r"[1-9]\d*"
    assert re.search(rf" each other: {NAMES[0]} {first}, {NAMES[1]} [1-9]\d*$", notice)
    assert [report[f"{wire} no notice"] for report in reports] == ["", ""]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case, versions",
    [("two versions", "worker-0 00000000000a; worker-1 00000000000b"), ("an old version", "worker-0 an older one; worker-1 000000000001")],
)
def test_tasks_of_different_images_are_refused_by_all_and_the_versions_named(
    reports: list[dict[str, Any]], case: str, versions: str
) -> None:
    message, other = (report[case] for report in reports)
    assert message == other
    assert message.startswith(f"the tasks have different versions of the trainer: {versions}. ")


@pytest.mark.slow
def test_tasks_of_which_only_some_have_a_gpu_are_refused_by_all(reports: list[dict[str, Any]]) -> None:
    """They would wait for each other forever: some by NCCL, some by connections of their own."""
    message, other = (report["one GPU"] for report in reports)
    assert message == other
    assert "no GPU in worker-0, and one in worker-1" in message
    assert [report["two GPUs"] for report in reports] == ["", ""]
