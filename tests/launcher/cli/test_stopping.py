"""Messages when a run is asked to stop."""

from typing import Any

import pytest

from launcher.cli.stopping import stop_action


@pytest.mark.parametrize(
    "spec, expected",
    [
        (None, "saving a checkpoint"),
        ({"train": {"workload": "mnist"}, "command": None, "limits": {"grace_period": "30s"}}, "saving a checkpoint"),
        ({"command": ["python", "train.py"], "limits": {"grace_period": "30s"}}, "asking your program to stop, up to 30 s"),
        ({"image": "mine:1", "train": None, "limits": {"grace_period": "30s"}}, "asking your program to stop, up to 30 s"),
        ({"command": ["python", "train.py"], "limits": {"grace_period": "2m"}}, "asking your program to stop, up to 120 s"),
    ],
)
def test_a_stop_says_what_it_does_first(spec: dict[str, Any] | None, expected: str) -> None:
    assert stop_action(spec) == expected
