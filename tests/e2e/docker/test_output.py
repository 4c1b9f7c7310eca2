"""A container's output as the engine has it: whole lines, from any position, and until its end."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from docker.errors import NotFound

from launcher.backend.docker import container_status, engine, log_stream
from launcher.backend.docker.engine import ERRORS, Endpoint, Engine, endpoint
from launcher.docker_cli import docker
from launcher.render import labels
from launcher.runs.status import State
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import until

pytestmark = pytest.mark.docker

# A line longer than the engine stores in one piece; a redrawn progress bar; invalid UTF-8; an empty line; a last line without an end.
WRITES = (
    "import sys, time\n"
    "out = sys.stdout.buffer\n"
    "for piece in (b'x' * 40_000 + b'\\n', b'1 %\\r50 %\\r100 %\\n', b'caf\\xe9\\n', b'\\n', b'the end'):\n"
    "    out.write(piece)\n    out.flush()\n    time.sleep(0.2)"
)
LINES = ["x" * 40_000, "100 %", "caf\ufffd", "", "the end"]


@pytest.fixture
def client() -> Engine:
    return Engine(endpoint())


@pytest.fixture
def start(image: Built, client: Engine) -> Iterator[Any]:
    """Start a program in a container of the image; it is removed at the end of the test."""
    started: list[str] = []

    def start(program: str, *options: str) -> str:
        command = ("run", "--detach", "--network", "none", "--entrypoint", "python", *options, image.name, "-c", program)
        started.append(docker(*command).strip())
        return started[-1]

    yield start
    for container in started:
        with contextlib.suppress(NotFound):
            client.client.containers.get(container).remove(force=True)


def test_output_can_be_read_again_and_from_any_position(client: Engine, start: Any) -> None:
    container = start(WRITES)
    followed = list(log_stream.follow(client.client, container, "chief"))
    docker("wait", container)
    whole = list(log_stream.read(client.client, container, "chief"))
    assert [line.text for _, line in whole] == LINES
    assert {line.task for _, line in whole} == {"chief"}
    times = [line.time for _, line in whole]
    assert times == sorted(times)
    assert abs(time.time() - times[-1]) < 60
    # The engine may store text without a line's end only after the follower's stream has ended.
    assert followed in (whole, whole[:-1])
    assert list(log_stream.read(client.client, container, "chief", tail=2)) == whole[-2:]
    for count, (stamp, _) in enumerate(whole, 1):
        assert list(log_stream.read(client.client, container, "chief", after=stamp)) == whole[count:]
        assert list(log_stream.follow(client.client, container, "chief", after=stamp)) == whole[count:]


def test_following_ends_when_another_thread_closes_the_response(client: Engine, start: Any) -> None:
    container = start("import time\nprint('up', flush=True)\ntime.sleep(3600)")
    responses: list[Any] = []
    following = log_stream.follow(client.client, container, "chief", opened=responses.append)
    assert next(following)[1].text == "up"
    threading.Timer(0.5, responses[0].close).start()
    assert list(following) == []


def test_reading_from_a_silent_engine_ends_with_an_error(
    lose_connections: Callable[[], None], by_relay: dict[str, str], start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = start("import time\nprint('up', flush=True)\ntime.sleep(3600)")
    monkeypatch.setattr(engine, "TIMEOUT", 1_000)  # longer than this test may take
    far = Engine(Endpoint(by_relay["DOCKER_HOST"]))
    far.set_timeout(2)

    def written() -> list[str]:
        return [line.text for _, line in log_stream.read(far.client, container, "chief")]

    until("its line", lambda: written() == ["up"], seen=written)
    lose_connections()
    with pytest.raises(ERRORS):
        list(log_stream.read(far.client, container, "chief"))


def test_a_missing_container_is_the_engine_s_error(client: Engine) -> None:
    with pytest.raises(NotFound, match="no-such-container"):
        list(log_stream.read(client.client, "no-such-container", "chief"))


def test_a_container_that_is_being_removed_counts_as_missing(client: Engine, start: Any) -> None:
    # So many files that removing them takes the engine a while, in which it lists the container and refuses its log.
    program = "for file in range(20_000):\n    open(f'/tmp/{file}', 'w').close()"
    container = start(program, "--label", f"{labels.TASK}=chief", "--label", f"{labels.REQUIRED}=true")
    docker("wait", container)
    (listed,) = [one for one in client.client.containers.list(all=True, ignore_removed=True) if one.id == container]
    removing = threading.Thread(target=listed.remove, kwargs={"force": True})
    removing.start()
    while removing.is_alive():
        assert container_status.status(client, "removed", [listed]).state is State.SUCCEEDED
        with contextlib.suppress(NotFound):
            list(log_stream.read(client.client, container, "chief"))
    removing.join()
    with pytest.raises(NotFound):
        list(log_stream.read(client.client, container, "chief"))
