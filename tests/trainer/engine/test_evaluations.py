"""The list of evaluations is in order, complete for each reader, and correct after training resumed from an earlier step."""

import json
import math
import threading
import time
from pathlib import Path

import pytest

from trainer.engine import evaluations


def test_appended_evaluations_are_read_newest_last(tmp_path: Path) -> None:
    began = time.time()
    evaluations.append(tmp_path, 10, {"loss": 2.5, "accuracy": 0.5})
    evaluations.append(tmp_path, 20, {"loss": 1.5, "accuracy": 0.75})
    results = evaluations.read(tmp_path)
    assert [(result.step, result.metrics) for result in results] == [
        (10, {"loss": 2.5, "accuracy": 0.5}),
        (20, {"loss": 1.5, "accuracy": 0.75}),
    ]
    assert began <= results[0].time <= results[1].time <= time.time()
    entries = json.loads((tmp_path / "evaluations.json").read_text())
    assert [sorted(entry) for entry in entries] == [["metrics", "step", "time"]] * 2


def test_evaluations_of_steps_that_are_repeated_are_dropped(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        evaluations.append(tmp_path, step, {"loss": float(step)})
    evaluations.append(tmp_path, 30, {"loss": 0.5})
    assert [(result.step, result.metrics["loss"]) for result in evaluations.read(tmp_path)] == [(10, 10.0), (20, 20.0), (30, 0.5)]


def test_a_loss_that_is_not_finite_is_valid_json(tmp_path: Path) -> None:
    evaluations.append(tmp_path, 10, {"loss": math.inf})
    assert json.loads((tmp_path / "evaluations.json").read_text(), parse_constant=pytest.fail)[0]["metrics"] == {"loss": None}
    assert math.isnan(evaluations.read(tmp_path)[0].metrics["loss"])


@pytest.mark.parametrize("text", [None, "", "[{", "{}", '[1, {"step": 1}, {"step": "x", "metrics": {}, "time": 0}, {"metrics": []}]'])
def test_a_file_without_a_valid_list_is_read_as_no_evaluations(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "evaluations.json").write_text(text)
    assert evaluations.read(tmp_path) == []
    evaluations.append(tmp_path, 1, {"loss": 1.0})
    assert [result.step for result in evaluations.read(tmp_path)] == [1]


def test_only_the_newest_thousand_are_retained(tmp_path: Path) -> None:
    entries = [{"step": step, "metrics": {"loss": 1.0}, "time": 0.0} for step in range(evaluations.MAX_RETAINED)]
    (tmp_path / "evaluations.json").write_text(json.dumps(entries))
    evaluations.append(tmp_path, evaluations.MAX_RETAINED, {"loss": 1.0})
    results = evaluations.read(tmp_path)
    assert (len(results), results[0].step, results[-1].step) == (evaluations.MAX_RETAINED, 1, evaluations.MAX_RETAINED)


def test_a_reader_never_sees_a_partial_file(tmp_path: Path) -> None:
    done = threading.Event()

    def write() -> None:
        for step in range(1, 100):
            evaluations.append(tmp_path, step, {"loss": 1.0})
        done.set()

    evaluations.append(tmp_path, 0, {"loss": 1.0})
    writer = threading.Thread(target=write)
    writer.start()
    counts = []
    while not done.is_set():
        counts.append(len(evaluations.read(tmp_path)))
    writer.join()
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evaluations.json"]
