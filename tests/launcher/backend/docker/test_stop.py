"""Stops of the containers of a run that has no supervisor. Stops by a real engine are tested with whole runs."""

import threading
from typing import Any

import pytest
from docker.models.containers import Container

from launcher.backend.docker import stop
from launcher.errors import LauncherError
from launcher.render import labels
from tests.golden_messages import Golden


class StoppingContainer(Container):
    """A container that saves for `seconds` once it is asked to stop."""

    def __init__(self, task: str, grace: int, seconds: float) -> None:
        config = {"Labels": {labels.TASK: task}, "StopTimeout": grace}
        super().__init__({"Id": "1", "Name": f"/toy-{task}-1", "Config": config, "State": {"Status": "running"}})
        self.seconds, self.has_stopped = seconds, threading.Event()

    def update(self, **_: Any) -> None:
        """Accept the restart policy."""

    def stop(self, **_: Any) -> None:
        """Take the time for the save."""
        if not self.has_stopped.wait(self.seconds):
            self.has_stopped.set()


def test_a_container_has_its_own_grace_period_to_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "_STOP_MARGIN", 0.0)
    chief, server = StoppingContainer("chief", 60, 0.5), StoppingContainer("ps-0", 60, 0.0)
    assert stop.stop_running([chief, server])
    assert chief.has_stopped.is_set()
    assert server.has_stopped.is_set()


def test_a_container_that_does_not_stop_is_an_error_and_not_the_end_of_the_stop(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(stop, "_STOP_MARGIN", -0.9)
    chief = StoppingContainer("chief", 1, 30.0)
    with pytest.raises(LauncherError) as caught:
        stop.stop_running([chief])
    chief.has_stopped.set()
    golden(caught.value.message, caught.value.remedy)
