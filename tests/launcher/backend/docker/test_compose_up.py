"""The containers of an earlier run that cannot be stopped, and the message about a container that failed. Starting containers is tested with a real engine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker.models.containers import Container

from launcher.backend.docker import compose_up
from launcher.backend.docker.engine import Engine
from launcher.errors import LauncherError
from launcher.render import labels
from tests.golden_messages import Golden


class LoggingContainer(Container):
    """A container as the engine describes it; its last line has its name."""

    def logs(self, **_: Any) -> Any:
        """Return the last line of its output."""
        return f"{self.name} is broken\n".encode()


def ended(name: str, code: int, **container_labels: str) -> Container:
    return LoggingContainer(
        {"Id": "1", "Name": name, "Config": {"Labels": container_labels}, "State": {"Status": "exited", "ExitCode": code}}
    )


def test_only_the_last_line_of_a_failed_init_container_is_added_to_the_message() -> None:
    tensorboard = ended("tensorboard", 1, **{labels.SERVICE: labels.TENSORBOARD})
    sidecar = ended("sidecar", 1, **{labels.SERVICE: "chief-log", labels.SIDECAR_OF: "chief"})
    task = ended("task", 1, **{labels.TASK: "chief"})
    succeeded = ended("succeeded", 0, **{labels.SERVICE: "chief-warm"})
    failed = ended("init", 3, **{labels.SERVICE: "chief-fetch"})
    assert compose_up._last_line_of_failed([tensorboard, sidecar, task, succeeded, failed]) == ": init is broken"
    assert compose_up._last_line_of_failed([tensorboard, sidecar, task, succeeded]) == ""


def test_containers_of_an_earlier_run_that_cannot_be_stopped_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> bool:
        raise LauncherError("the container toy-chief-1 does not stop")

    removed: list[str] = []
    engine = SimpleNamespace(containers=lambda _: [], remove=removed.append)
    monkeypatch.setattr(compose_up, "_has_data", lambda *_: True)
    monkeypatch.setattr(compose_up, "_clear", lambda _, run, _file: removed.append(run))
    monkeypatch.setattr(compose_up, "stop_running", fail)
    with pytest.raises(LauncherError, match="toy-chief-1 does not stop"):
        compose_up.start_containers(cast("Engine", engine), "toy", Path("compose.yaml"))
    assert removed == []


def test_a_remark_of_the_engine_is_shown_wherever_the_error_is_written(golden: Golden) -> None:
    error = LauncherError("starting the containers failed")
    error.message += ": no such host"
    golden(str(error))
