"""Progress events: whole JSON lines for machines, readable ones for people."""

import io
import json
from typing import Any

import pytest

from trainer import events


def output_of(monkeypatch: pytest.MonkeyPatch, output_format: str, kind: str, **fields: Any) -> str:
    monkeypatch.setenv("TRAINER_EVENTS", output_format)
    stream = io.StringIO()
    events.Reporter("worker-0", stream)(kind, **fields)
    return stream.getvalue()


PROGRESS = {"step": 5, "steps": 10, "loss": 0.25, "metrics": {"accuracy": 0.5}, "examples_per_second": 1234.5, "seconds_per_step": 0.1}


def test_an_event_is_read_back_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    line = output_of(monkeypatch, "json", "progress", **PROGRESS)
    assert line.endswith("\n")
    event = events.parse(line)
    assert event is not None
    assert {key: event[key] for key in PROGRESS} == PROGRESS
    assert (event["event"], event["task"]) == ("progress", "worker-0")


def test_text_output_is_one_readable_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert output_of(monkeypatch, "text", "progress", **PROGRESS) == "step 5/10  loss 0.25  accuracy 0.5  1,234 examples/s  0.1 s/step\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_becomes_null(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    line = output_of(monkeypatch, "json", "progress", **{**PROGRESS, "loss": value, "metrics": {"accuracy": value}})
    event = json.loads(line, parse_constant=pytest.fail)
    assert event["loss"] is None
    assert event["metrics"] == {"accuracy": None}
    assert events.render(event) == "step 5/10  loss nan  accuracy nan  1,234 examples/s  0.1 s/step"


@pytest.mark.parametrize(
    "line",
    [
        "", "hello", '{"event":', '{"event":"unknown"}', '{"event":3}', "[1]", '{"event":{}}', '{"event":["a"]}', '{"event":' + "[" * 100_000,
        r'{"event":"failed","cause":"half of \ud83d"}', '{"event":"progress","step":' + "9" * 5000 + "}",
    ],
    ids=range(11),
)  # fmt: skip
def test_ordinary_output_is_no_event(line: str) -> None:
    assert events.parse(line) is None
