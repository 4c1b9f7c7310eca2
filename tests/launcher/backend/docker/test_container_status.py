"""The status of a run, from its containers and volumes as the engine describes them."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker.models.containers import Container
from docker.models.volumes import Volume

from launcher.backend.docker import container_status, log_stream
from launcher.backend.docker.engine import Engine
from launcher.render import labels
from launcher.runs.status import Location, LogLine, State


def container(task: str | None = None, **attrs: Any) -> Container:
    container_labels = {labels.RUN: "toy", **({labels.TASK: task} if task else {labels.SERVICE: "tensorboard"})}
    return Container({"Id": "1", "Config": {"Labels": container_labels}, "State": {"Status": "running"}, **attrs})


def test_tasks_are_in_the_order_of_plans_without_tensorboard() -> None:
    names = ["evaluator", "ps-0", "worker-10", "worker-2", "chief"]
    tasks = container_status.by_task([*(container(name) for name in names), container()])
    assert list(tasks) == ["chief", "worker-2", "worker-10", "ps-0", "evaluator"]


@pytest.mark.parametrize(
    "bindings, url",
    [
        ([{"HostIp": "127.0.0.1", "HostPort": "6007"}], "http://127.0.0.1:6007"),
        ([{"HostIp": "::1", "HostPort": "6007"}], "http://[::1]:6007"),
        ([], ""),
        (None, ""),
    ],
)
def test_the_url_of_tensorboard_has_its_published_port(bindings: Any, url: str) -> None:
    tensorboard = container(NetworkSettings={"Ports": {"6006/tcp": bindings}})
    assert container_status.tensorboard_url([container("chief"), tensorboard]) == url


def test_a_tensorboard_that_has_ended_has_no_url() -> None:
    ports = {"Ports": {"6006/tcp": [{"HostIp": "127.0.0.1", "HostPort": "6007"}]}}
    assert container_status.tensorboard_url([container(NetworkSettings=ports, State={"Status": "exited"})]) == ""


def test_the_location_is_the_mounted_volume() -> None:
    mounts = [{"Destination": "/code", "Source": "/home/me/src"}, {"Destination": "/runs", "Name": "other_run"}]
    assert container_status.location_of([container("ps-0"), container("chief", Mounts=mounts)], "toy") == Location("volume", "other_run")
    for containers in ([container("ps-0", Config={"Env": ["RUN_DIR=/runs/toy"]})], []):
        assert container_status.location_of(containers, "toy") == Location("volume", "toy_run")
    assert container_status.location_of([container("ps-0", Config={"Env": ["HOME=/tmp"]})], "toy") is None


@pytest.mark.parametrize("created, started", [("2026-01-31T10:00:00Z", 1769853600.0), ("some day", None), (None, None)])
def test_a_run_of_which_only_the_volume_is_left_is_stopped(created: str | None, started: float | None) -> None:
    volume = Volume({"Name": "toy_run", "CreatedAt": created, "Labels": {labels.RUN: "toy"}})
    status = container_status.status_of_volume(volume, "toy")
    assert (status.state, status.run_dir, status.started, status.spec_digest) == (State.STOPPED, Location("volume", "toy_run"), started, "")


@pytest.mark.parametrize("tail, texts", [(0, ["new"]), (1, ["second", "new"]), (None, ["first", "second", "new"])])
def test_a_log_is_followed_from_its_last_lines_on(tail: int | None, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    written = [(f"2026-01-31T10:00:0{second}Z", LogLine(float(second), "chief", text)) for second, text in enumerate(["first", "second"])]
    states = iter(["running", "running", "exited"])

    def containers(_name: str) -> list[Container]:
        state = next(states)
        if state == "exited":
            written.append(("2026-01-31T10:00:09Z", LogLine(9.0, "chief", "new")))
        return [container("chief", State={"Status": state}, Config={"Cmd": [], "Labels": {labels.TASK: "chief"}})]

    def read(*_: object, after: str = "", tail: int | None = None, **__: object) -> list[tuple[str, LogLine]]:
        lines = [(stamp, line) for stamp, line in written if stamp > after]
        return lines if tail is None else lines[max(0, len(lines) - tail) :]

    monkeypatch.setattr(log_stream, "read", read)
    monkeypatch.setattr(container_status, "_POLL_INTERVAL", 0.0)
    engine = cast("Engine", SimpleNamespace(containers=containers, client=None))
    assert [line.text for line in container_status.lines(engine, "toy", [], follow=True, since=None, tail=tail)] == texts
