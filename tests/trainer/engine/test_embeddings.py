"""Embedding layers that are spread over four ps learn what they learn whole, and their checkpoints are ordinary ones."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.trainer.engine.drive_embeddings import CASES, STEPS

DRIVER = Path(__file__).with_name("drive_embeddings.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.takes_minutes,
    pytest.mark.timeout(600),
]  # the driver starts five processes, and traces some thirty models


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embeddings")


@pytest.fixture(scope="module")
def report(scratch: Path) -> dict[str, Any]:
    return driven(scratch)


def driven(scratch: Path, *part: str) -> dict[str, Any]:
    done = forked.run([sys.executable, str(DRIVER), str(scratch), *part], timeout=550, preload=forked.TENSORFLOW)
    assert done.stdout, done.stderr[done.stderr.find("Traceback (most") :][:5000]  # TensorFlow has much to say of servers that are gone
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("case", sorted(CASES))
def test_one_worker_with_spread_tables_learns_what_one_process_learns(report: dict[str, Any], case: str) -> None:
    found = report["cases"][case]
    assert found["tables"]
    assert found["difference"] < 2e-5
    assert max(found["moved"]) > 1e-4


def test_a_table_that_is_not_trained_stays_as_it_is(report: dict[str, Any]) -> None:
    assert min(report["cases"]["frozen"]["moved"]) == 0


def test_a_checkpoint_reads_as_whole_variables_anywhere_bit_for_bit(report: dict[str, Any]) -> None:
    found = report["files"]
    assert found["files"] > 10  # rows were streamed in many pieces
    assert found["read as variables"]
    assert found["whole in one process"] == 3
    assert found["on two servers"] == 9  # rows and two slots of three layers
    assert found["step"] == STEPS


def test_a_checkpoint_goes_to_one_process_and_back(report: dict[str, Any]) -> None:
    found = report["files"]
    assert found["in one process"] == found["back on servers"] == 9
    assert found["moved in one process"] > 1e-6
    assert found["step there"] == 2 * STEPS


def test_a_disk_that_gets_full_while_rows_are_streamed_leaves_the_last_checkpoint_whole(report: dict[str, Any]) -> None:
    found = report["full"]
    if "skipped" in found:
        pytest.skip(found["skipped"])
    assert found["error"] == "No space left on device"
    assert found["left"] == ["ckpt-1"]
    assert found["kept"] == ["ckpt-1", "ckpt-3"]
    assert found["remains"] == []
    assert found["whole"]


def test_tables_that_the_servers_have_no_memory_for_are_refused_with_the_number_that_would_do(report: dict[str, Any]) -> None:
    told = report["too large"]
    assert told.startswith("the embedding layers take 4 TB on each of 4 ps, and ps-0 has ")
    assert re.search(
        r" free, which 4 ps share; [\d,]+ ps of this size would do, each on a machine of its own, or give each more memory$", told
    )


# A program that has TensorFlow, and nothing of this project.
SERVE = """
import importlib.util, json, sys
sys.path[:] = [path for path in sys.path if path != sys.argv[2]]
assert importlib.util.find_spec("trainer") is None
import numpy as np, tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1] + "/saved_model")
asked = dict(np.load(sys.argv[1] + "/asked.npz"))
outputs = asked.pop("outputs")
given = {name: tf.constant(value) for name, value in asked.items()}
told = {"serve": float(np.max(np.abs(loaded.serve(given) - outputs)))}
(served,) = loaded.signatures["serving_default"](**given).values()
told["signature"] = float(np.max(np.abs(served - outputs)))
tables = [v for v in loaded._all_variables if v.shape[0] in (23, 31)]
reader = tf.train.load_checkpoint(sys.argv[1] + "/checkpoints")
saved = [reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")]
assert all(any(np.array_equal(table, one) for one in saved) for table in tables)
told["shapes"] = sorted(table.shape.as_list() for table in tables)
for wrong in (-1, 23):
    try:
        loaded.serve({**given, "user": tf.fill([len(outputs)], tf.constant(wrong, tf.int64))})
    except tf.errors.InvalidArgumentError as error:
        told[str(wrong)] = error.message
print(json.dumps(told))
"""


def test_an_exported_model_serves_without_this_project_what_the_checkpoint_has(report: dict[str, Any], scratch: Path) -> None:
    assert report["files"]["files"]
    (scratch / "serve.py").write_text(SERVE)
    command = [sys.executable, str(scratch / "serve.py"), str(scratch), str(DRIVER.parents[3])]
    done = forked.run(command, cwd=scratch, timeout=200, preload=forked.TENSORFLOW)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["serve"] == told["signature"] < 1e-6
    assert told["shapes"] == [[23, 1], [23, 4], [31, 4]]
    for wrong in ("-1", "23"):
        assert "has 23 rows, and was given the id" in told[wrong]
        assert f"[{wrong}]" in told[wrong]


def test_the_best_model_is_written_with_its_rows_when_it_is_found_or_not_at_all(report: dict[str, Any]) -> None:
    found, lines = report["best"]
    told = [json.loads(line) for line in lines]

    def exported(step: int, value: float) -> list[Any]:
        return [step, value, ["saved_model"], [step]]

    assert found[:4] == [exported(10, 0.5)] * 4  # two came too soon, and the rows of the second were others' by the end
    assert found[4] == exported(30, 0.6)
    assert found[5:] == [exported(30, 0.6), exported(50, 0.65), exported(50, 0.65), *[exported(70, 0.8)] * 2]
    assert [event["step"] for event in told if event["event"] == "exported"] == [10, 30, 50, 70]
    notices = [event["message"] for event in told if event["event"] == "notice"]
    assert len(notices) == 3
    for notice, step, why in zip(notices, (60, 65, 80), ("File exists", "it did not answer for 0 s", "asked to stop"), strict=True):
        assert f"the model of step {step} could not be exported" in notice
        assert why in notice


@pytest.mark.parametrize("held", [False, True])
def test_a_disk_that_does_not_answer_while_rows_are_exported_holds_up_no_step_and_is_told_of(report: dict[str, Any], held: bool) -> None:
    found = report["frozen"][held]
    if "skipped" in found:
        pytest.skip(found["skipped"])
    assert found["in time"]
    assert found["step"] >= 10
    [lost] = [json.loads(line) for line in found["frozen"]]
    assert lost["message"].startswith("not written, and lost where the volume does not take it by the end: ")
    given_up, exported = [json.loads(line) for line in found["thawed"]]
    assert "the model of step 10 could not be exported" in given_up["message"]
    assert "it did not answer for" in given_up["message"]
    assert (exported["event"], exported["step"]) == ("exported", 20)


def test_a_server_that_is_lost_beside_the_export_of_a_finished_run_ends_the_attempt_and_else_is_told(tmp_path: Path) -> None:
    found = driven(tmp_path, "lost")
    assert found["True"].startswith("raised: ")
    assert "the model is not exported" in found["False"]
    assert found["left"] == []


def test_the_chief_evaluates_through_look_ups_what_one_process_evaluates_of_the_checkpoint(report: dict[str, Any]) -> None:
    found, look_ups = report["files"]["evaluated"], report["files"]["look-ups"]
    assert found["spread"] == pytest.approx(found["whole"], rel=1e-6)
    assert found["call by call"] == pytest.approx(found["whole"], rel=1e-6)
    assert found["spread"]["loss"] > 0
    assert 0 < look_ups["spread"] < look_ups["call by call"]


def test_an_evaluation_that_looks_rows_up_in_a_loop_has_them_too(report: dict[str, Any]) -> None:
    found = report["looped"]
    assert found["spread"] == pytest.approx(found["whole"], rel=1e-5)
    assert found["spread"]["loss"] > 0


def test_rows_are_once_in_the_memory_of_their_servers(report: dict[str, Any]) -> None:
    found = report["servers"]
    if found["taken"] < 0:
        pytest.skip("the system does not tell how much memory a process has")
    assert 0.9 * found["bytes"] < found["taken"] < 1.5 * found["bytes"]


def test_a_table_is_never_whole_in_the_process_that_exports_it(report: dict[str, Any]) -> None:
    assert report["memory"]["bytes"] > 50_000_000
    assert report["memory"]["grown"] < 0.5 * report["memory"]["bytes"]


def test_an_id_outside_of_its_table_is_told_with_layer_rows_and_id(report: dict[str, Any]) -> None:
    assert "the layer small has 10 rows, and was given the id" in report["outside"]


def test_rows_are_drawn_as_the_initializer_draws_them_from_the_seed(report: dict[str, Any]) -> None:
    for name, found in report["start"].items():
        assert found["spread"] == pytest.approx(1, abs=0.05), name
        assert found["again"], name
        assert found["distinct"] > 0.99 or name == "ones"
