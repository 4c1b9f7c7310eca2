"""The list of evaluations: in order, whole for each reader, right again after training went back."""

import json
import math
import threading
import time
from pathlib import Path

import pytest

from trainer.engine import evaluations


def test_what_was_appended_is_read_newest_last(tmp_path: Path) -> None:
    began = time.time()
    evaluations.append(tmp_path, 10, {"loss": 2.5, "accuracy": 0.5})
    evaluations.append(tmp_path, 20, {"loss": 1.5, "accuracy": 0.75})
    found = evaluations.read(tmp_path)
    assert [(one.step, one.metrics) for one in found] == [(10, {"loss": 2.5, "accuracy": 0.5}), (20, {"loss": 1.5, "accuracy": 0.75})]
    assert began <= found[0].time <= found[1].time <= time.time()
    entries = json.loads((tmp_path / "evaluations.json").read_text())
    assert [sorted(entry) for entry in entries] == [["metrics", "step", "time"]] * 2


def test_what_training_went_back_behind_is_dropped(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        evaluations.append(tmp_path, step, {"loss": float(step)})
    evaluations.append(tmp_path, 30, {"loss": 0.5})
    assert [(one.step, one.metrics["loss"]) for one in evaluations.read(tmp_path)] == [(10, 10.0), (20, 20.0), (30, 0.5)]


def test_a_loss_that_is_not_finite_is_valid_json(tmp_path: Path) -> None:
    evaluations.append(tmp_path, 10, {"loss": math.inf})
    assert json.loads((tmp_path / "evaluations.json").read_text(), parse_constant=pytest.fail)[0]["metrics"] == {"loss": None}
    assert math.isnan(evaluations.read(tmp_path)[0].metrics["loss"])


@pytest.mark.parametrize("text", [None, "", "[{", "{}", '[1, {"step": 1}, {"step": "x", "metrics": {}, "time": 0}, {"metrics": []}]'])
def test_what_is_no_list_of_evaluations_is_none(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "evaluations.json").write_text(text)
    assert evaluations.read(tmp_path) == []
    evaluations.append(tmp_path, 1, {"loss": 1.0})
    assert [one.step for one in evaluations.read(tmp_path)] == [1]


def test_the_newest_thousand_stay(tmp_path: Path) -> None:
    entries = [{"step": step, "metrics": {"loss": 1.0}, "time": 0.0} for step in range(evaluations.MAX_RETAINED)]
    (tmp_path / "evaluations.json").write_text(json.dumps(entries))
    evaluations.append(tmp_path, evaluations.MAX_RETAINED, {"loss": 1.0})
    found = evaluations.read(tmp_path)
    assert (len(found), found[0].step, found[-1].step) == (evaluations.MAX_RETAINED, 1, evaluations.MAX_RETAINED)


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    done = threading.Event()

    def write() -> None:
        for step in range(1, 200):
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
