"""Embedding layers that are spread over four ps learn the same as whole ones, and their checkpoints are ordinary ones."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.trainer.engine.drive_embeddings import CASES, STEPS
from tests.trainer.engine.drivers import run_driver

DRIVER = Path(__file__).with_name("drive_embeddings.py")
pytestmark = [pytest.mark.slow, pytest.mark.takes_minutes]  # the driver starts five processes and traces about thirty models


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embeddings")


@pytest.fixture(scope="module")
def report(scratch: Path) -> dict[str, Any]:
    return run_driver(DRIVER, scratch)


@pytest.mark.parametrize("case", sorted(CASES))
def test_one_worker_with_sharded_tables_learns_the_same_as_one_process(report: dict[str, Any], case: str) -> None:
    result = report["cases"][case]
    assert result["tables"]
    assert result["difference"] < 2e-5
    assert max(result["moved"]) > 1e-4


def test_a_table_that_is_not_trained_does_not_change(report: dict[str, Any]) -> None:
    assert min(report["cases"]["frozen"]["moved"]) == 0


def test_a_checkpoint_holds_whole_variables_bit_for_bit(report: dict[str, Any]) -> None:
    result = report["files"]
    assert result["files"] > 10  # rows are in many files
    assert result["read as variables"]
    assert result["whole in one process"] == 3
    assert result["on two servers"] == 9  # rows and two slots of three layers
    assert result["step"] == STEPS


def test_a_checkpoint_can_be_resumed_in_one_process_and_on_servers_again(report: dict[str, Any]) -> None:
    result = report["files"]
    assert result["in one process"] == result["back on servers"] == 9
    assert result["moved in one process"] > 1e-6
    assert result["step of one process"] == 2 * STEPS


def test_the_last_checkpoint_stays_whole_if_the_disk_gets_full_while_rows_are_written(report: dict[str, Any]) -> None:
    result = report["full"]
    if "skipped" in result:
        pytest.skip(result["skipped"])
    assert result["error"] == "No space left on device"
    assert result["after the error"] == ["ckpt-1"]
    assert result["at the end"] == ["ckpt-1", "ckpt-3"]
    assert result["partial files"] == []
    assert result["whole"]


@pytest.mark.parametrize("row", ["0", "1"])
def test_rows_that_are_not_finite_are_not_saved(report: dict[str, Any], row: str) -> None:
    error, checkpoints = report["not finite"][row]
    assert re.fullmatch("rows of the layer .* are not finite", error)
    assert checkpoints == []


def test_tables_too_large_for_the_servers_are_refused_with_the_number_of_servers_that_is_enough(report: dict[str, Any]) -> None:
    message = report["too large"]
    assert message.startswith("the embedding layers take 4 TB on each of 4 ps, and ps-0 has ")
    match = re.search(
        r"has (\S+) ([MGT]B) free, which 4 ps share; (\d+) ps of this size would do, each on a machine of its own, or give each more memory$",
        message,
    )
    assert match
    free = float(match[1]) * {"MB": 1e6, "GB": 1e9, "TB": 1e12}[match[2]]
    enough = 16e12 / (0.9 * free)
    assert 0.99 * enough <= int(match[3]) <= 1.01 * enough + 1  # rounded up; the message rounds the free memory to three digits


# A program with TensorFlow, but without this project.
SERVE = """
import importlib.util, json, sys
sys.path[:] = [path for path in sys.path if path != sys.argv[2]]
assert importlib.util.find_spec("trainer") is None
import numpy as np, tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1] + "/saved_model")
arrays = dict(np.load(sys.argv[1] + "/expected.npz"))
expected = arrays.pop("outputs")
inputs = {name: tf.constant(value) for name, value in arrays.items()}
report = {"serve": float(np.max(np.abs(loaded.serve(inputs) - expected)))}
(outputs,) = loaded.signatures["serving_default"](**inputs).values()
report["signature"] = float(np.max(np.abs(outputs - expected)))
tables = [v for v in loaded._all_variables if v.shape[0] in (23, 31)]
reader = tf.train.load_checkpoint(sys.argv[1] + "/checkpoints")
saved = [reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")]
assert all(any(np.array_equal(table, tensor) for tensor in saved) for table in tables)
report["shapes"] = sorted(table.shape.as_list() for table in tables)
for wrong in (-1, 23):
    try:
        loaded.serve({**inputs, "user": tf.fill([len(expected)], tf.constant(wrong, tf.int64))})
    except tf.errors.InvalidArgumentError as error:
        report[str(wrong)] = error.message
print(json.dumps(report))
"""


def test_an_exported_model_serves_the_rows_of_the_checkpoint_without_this_project(report: dict[str, Any], scratch: Path) -> None:
    assert report["files"]["files"]
    (scratch / "serve.py").write_text(SERVE)
    command = [sys.executable, str(scratch / "serve.py"), str(scratch), str(DRIVER.parents[3])]
    process = forked.run(command, cwd=scratch, preload=forked.TENSORFLOW)
    assert process.returncode == 0, process.stderr[-3000:]
    served = json.loads(process.stdout.splitlines()[-1])
    assert served["serve"] == served["signature"] < 1e-6
    assert served["shapes"] == [[23, 1], [23, 4], [31, 4]]
    for wrong in ("-1", "23"):
        assert "has 23 rows, and was given the id" in served[wrong]
        assert f"[{wrong}]" in served[wrong]


def test_the_best_model_is_written_at_once_with_its_rows_or_not_at_all(report: dict[str, Any]) -> None:
    exports, lines = report["best"]
    events = [json.loads(line) for line in lines]

    def exported(step: int, value: float) -> list[Any]:
        return [step, value, ["saved_model"], [step]]

    assert exports[:4] == [exported(10, 0.5)] * 4  # two came too soon, and the rows of the second had changed by the end
    assert exports[4] == exported(30, 0.6)
    assert exports[5:] == [exported(30, 0.6), exported(50, 0.65), exported(50, 0.65), *[exported(70, 0.8)] * 2]
    assert [event["step"] for event in events if event["event"] == "exported"] == [10, 30, 50, 70]
    notices = [event["message"] for event in events if event["event"] == "notice"]
    assert len(notices) == 3
    for notice, step, reason in zip(notices, (60, 65, 80), ("File exists", "it did not answer for 0 s", "asked to stop"), strict=True):
        assert f"the model of step {step} could not be exported" in notice
        assert reason in notice


@pytest.mark.parametrize("blocked", [False, True])
def test_a_disk_that_does_not_answer_during_an_export_is_reported_and_delays_no_step(report: dict[str, Any], blocked: bool) -> None:
    result = report["frozen"][blocked]
    if "skipped" in result:
        pytest.skip(result["skipped"])
    assert result["in time"]
    assert result["step"] >= 10
    [notice] = [json.loads(line) for line in result["frozen"]]
    assert notice["message"].startswith("not written, and lost where the volume does not take it by the end: ")
    failed, exported = [json.loads(line) for line in result["thawed"]]
    assert "the model of step 10 could not be exported" in failed["message"]
    assert "it did not answer for" in failed["message"]
    assert (exported["event"], exported["step"]) == ("exported", 20)


def test_a_server_lost_during_an_export_ends_the_attempt_of_a_finished_run_and_is_reported_by_others(tmp_path: Path) -> None:
    result = run_driver(DRIVER, tmp_path, "lost")
    assert result["True"].startswith("raised: ")
    assert "the model is not exported" in result["False"]
    assert result["exports"] == []


def test_the_chief_evaluates_through_look_ups_with_the_result_of_one_process(report: dict[str, Any]) -> None:
    result, look_ups = report["files"]["evaluated"], report["files"]["look-ups"]
    assert result["spread"] == pytest.approx(result["whole"], rel=1e-6)
    assert result["call by call"] == pytest.approx(result["whole"], rel=1e-6)
    assert result["spread"]["loss"] > 0
    assert 0 < look_ups["spread"] < look_ups["call by call"]


def test_an_evaluation_can_look_up_rows_in_a_loop(report: dict[str, Any]) -> None:
    result = report["looped"]
    assert result["spread"] == pytest.approx(result["whole"], rel=1e-5)
    assert result["spread"]["loss"] > 0


def test_servers_hold_their_rows_only_once_in_memory(report: dict[str, Any]) -> None:
    result = report["servers"]
    if result["grown"] < 0:
        pytest.skip("the system does not show how much memory a process has")
    assert 0.9 * result["bytes"] < result["grown"] < 1.5 * result["bytes"]


def test_the_process_that_exports_a_table_never_holds_all_of_it(report: dict[str, Any]) -> None:
    assert report["memory"]["bytes"] > 50_000_000
    assert report["memory"]["grown"] < 0.5 * report["memory"]["bytes"]


def test_the_error_about_an_id_outside_of_its_table_names_layer_rows_and_id(report: dict[str, Any]) -> None:
    assert "the layer small has 10 rows, and was given the id" in report["outside"]


def test_initial_rows_follow_the_initializer_and_the_seed(report: dict[str, Any]) -> None:
    for name, rows in report["initial rows"].items():
        assert rows["spread"] == pytest.approx(1, abs=0.05), name
        assert rows["repeatable"], name
        assert rows["distinct"] > 0.99 or name == "ones"
