"""The lines of output that are progress events."""

import json
from typing import Any

import pytest

from launcher.cli.output_lines import event_in, is_noise

PROGRESS: dict[str, Any] = {
    "event": "progress",
    "time": 1.5,
    "task": "chief",
    "step": 3,
    "steps": 9,
    "loss": 0.5,
    "metrics": {"accuracy": 1},
}


def test_a_progress_event_is_recognized() -> None:
    assert event_in(json.dumps(PROGRESS, separators=(",", ":"))) == PROGRESS


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": None},
        {"step": "3"},
        {"steps": None},
        {"loss": "small"},
        {"metrics": [1]},
        {"metrics": {"accuracy": "good"}},
        {"examples_per_second": {}},
        {"event": "unheard of"},
        {"event": "restarting"},
        {"event": "checkpoint", "step": None},
    ],
)
def test_an_invalid_event_is_output(wrong: dict[str, Any]) -> None:
    assert event_in(json.dumps(PROGRESS | wrong, separators=(",", ":"))) is None


@pytest.mark.parametrize("line", ["", "step 3", '{"event":', '{"event":"progress"', "[]"])
def test_ordinary_output_is_output(line: str) -> None:
    assert event_in(line) is None


@pytest.mark.parametrize(
    "line, noise",
    [
        ("I0000 00:00:1795263742.645292   25075 port.cc:153] oneDNN custom operations are on.", True),
        ("2026-01-31 12:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This binary", True),
        ("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR", True),
        ("2026-01-31 12:00:00.123456: W tensorflow/core/framework/op.cc:1] something", False),
        ("E0000 00:00:1795263742.645292   25075 grpc.cc:1] lost", False),
        ("--- launcher: run toy starts", True),
        ("--- launcher: attempt 2 starts in 1 s: killed", False),
        ("I am a line", False),
    ],
)
def test_only_tensorflows_information_is_noise(line: str, noise: bool) -> None:
    assert is_noise(line) is noise
