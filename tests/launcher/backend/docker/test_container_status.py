"""The status of a run, from its containers and volumes as the engine describes them."""

from typing import Any

import pytest
from docker.models.containers import Container
from docker.models.volumes import Volume

from launcher.backend.docker import container_status
from launcher.render import labels
from launcher.runs.status import Location, State


def container(task: str | None = None, **attrs: Any) -> Container:
    told = {labels.RUN: "toy", **({labels.TASK: task} if task else {labels.SERVICE: "tensorboard"})}
    return Container({"Id": "1", "Config": {"Labels": told}, "State": {"Status": "running"}, **attrs})


def test_tasks_come_in_the_order_of_plans_and_tensorboard_is_none() -> None:
    names = ["evaluator", "ps-0", "worker-10", "worker-2", "chief"]
    found = container_status.by_task([*(container(name) for name in names), container()])
    assert list(found) == ["chief", "worker-2", "worker-10", "ps-0", "evaluator"]


@pytest.mark.parametrize(
    "bound, where",
    [
        ([{"HostIp": "127.0.0.1", "HostPort": "6007"}], "http://127.0.0.1:6007"),
        ([{"HostIp": "::1", "HostPort": "6007"}], "http://[::1]:6007"),
        ([], ""),
        (None, ""),
    ],
)
def test_where_tensorboard_answers(bound: Any, where: str) -> None:
    tensorboard = container(NetworkSettings={"Ports": {"6006/tcp": bound}})
    assert container_status.tensorboard_url([container("chief"), tensorboard]) == where


def test_a_tensorboard_that_has_ended_answers_nowhere() -> None:
    ports = {"Ports": {"6006/tcp": [{"HostIp": "127.0.0.1", "HostPort": "6007"}]}}
    assert container_status.tensorboard_url([container(NetworkSettings=ports, State={"Status": "exited"})]) == ""


def test_the_volume_is_the_one_that_is_mounted() -> None:
    mounts = [{"Destination": "/code", "Source": "/home/me/src"}, {"Destination": "/runs", "Name": "other_run"}]
    assert container_status.location_of([container("ps-0"), container("chief", Mounts=mounts)], "toy") == Location("volume", "other_run")
    for known in ([container("ps-0", Config={"Env": ["RUN_DIR=/runs/toy"]})], []):
        assert container_status.location_of(known, "toy") == Location("volume", "toy_run")
    assert container_status.location_of([container("ps-0", Config={"Env": ["HOME=/tmp"]})], "toy") is None


@pytest.mark.parametrize("created, started", [("2026-01-31T10:00:00Z", 1769853600.0), ("some day", None), (None, None)])
def test_a_run_of_which_the_volume_is_left_is_stopped(created: str | None, started: float | None) -> None:
    volume = Volume({"Name": "toy_run", "CreatedAt": created, "Labels": {labels.RUN: "toy"}})
    status = container_status.of_volume(volume, "toy")
    assert (status.state, status.run_dir, status.started, status.spec_digest) == (State.STOPPED, Location("volume", "toy_run"), started, "")
