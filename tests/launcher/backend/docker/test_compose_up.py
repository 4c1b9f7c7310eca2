"""The last line of a failed container that a task waits for ends the message. Starting containers is tried on a real engine."""

from typing import Any

from docker.models.containers import Container

from launcher.backend.docker import compose_up
from launcher.errors import LauncherError
from launcher.render import labels
from tests.golden_messages import Golden


class Spoke(Container):
    """A container that the engine has described, and whose last line is its name."""

    def logs(self, **_: Any) -> Any:
        """Return what it has written last."""
        return f"{self.name} is broken\n".encode()


def ended(name: str, code: int, **told: str) -> Container:
    return Spoke({"Id": "1", "Name": name, "Config": {"Labels": told}, "State": {"Status": "exited", "ExitCode": code}})


def test_a_container_that_a_task_waits_for_is_told_from_those_beside_it() -> None:
    tensorboard = ended("tensorboard", 1, **{labels.SERVICE: labels.TENSORBOARD})
    sidecar = ended("sidecar", 1, **{labels.SERVICE: "chief-log", labels.SIDECAR_OF: "chief"})
    task = ended("task", 1, **{labels.TASK: "chief"})
    done = ended("done", 0, **{labels.SERVICE: "chief-warm"})
    failed = ended("init", 3, **{labels.SERVICE: "chief-fetch"})
    assert compose_up._last_line_of_failed([tensorboard, sidecar, task, done, failed]) == ": init is broken"
    assert compose_up._last_line_of_failed([tensorboard, sidecar, task, done]) == ""


def test_what_is_added_to_a_message_is_told_wherever_the_error_is_written(golden: Golden) -> None:
    error = LauncherError("starting the containers failed")
    error.message += ": no such host"
    golden(str(error))
