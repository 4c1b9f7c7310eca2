"""The image that a spec's containers start from, and the errors if the engine cannot be used."""

from pathlib import Path

import pytest

from launcher import docker_cli, images
from launcher.docker_cli import DockerError, docker
from launcher.spec.models import ClusterSpec, Role, Roles


def spec(**fields: object) -> ClusterSpec:
    return ClusterSpec.model_validate({"version": 1, "name": "toy", "command": ["true"], **fields})


def test_a_spec_without_an_image_gets_ours() -> None:
    assert images.spec_image(spec()) == images.DEFAULT_IMAGE
    assert images.is_trainer_image(images.DEFAULT_IMAGE)


def test_one_role_with_gpus_is_enough_for_the_image_with_cuda() -> None:
    roles = Roles(chief=Role(), worker=Role(replicas=2, gpus=1))
    assert images.spec_image(spec(roles=roles)) == images.GPU_IMAGE
    assert images.build_command(images.GPU_IMAGE) == "launcher image build --gpu"


def test_an_image_that_the_spec_names_is_used_with_gpus_too() -> None:
    named = spec(image="registry.example/team/train:3", roles=Roles(chief=Role(gpus=1)))
    assert images.spec_image(named) == "registry.example/team/train:3"
    assert not images.is_trainer_image(images.spec_image(named))


def test_an_image_that_no_container_starts_from_is_not_needed() -> None:
    roles = {"chief": {"image": "a:1"}, "worker": {"image": "b:1"}}
    fields = {"strategy": "multi_worker_mirrored", "roles": roles}
    assert images.all_for(spec(**fields)) == ["a:1", "b:1"]
    assert images.all_for(spec(**fields, storage={})) == [images.DEFAULT_IMAGE, "a:1", "b:1"]


def test_a_missing_docker_command_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DockerError, match="command docker is not installed") as caught:
        images.find(images.DEFAULT_IMAGE)
    assert "docker info" in caught.value.remedy


@pytest.mark.parametrize(
    "output, message",
    [
        ("Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?", "does not answer"),
        ("Got permission denied while trying to connect to the Docker daemon socket at unix:///x", "no permission to use"),
        ('error during connect: Get "http://10.0.0.1:2375": dial tcp: i/o timeout', "does not answer"),
        ('Current context "prod" is not found on the file system: context prod does not exist', "context"),
    ],
)
def test_an_engine_that_cannot_be_used_is_an_error_with_a_remedy(output: str, message: str) -> None:
    error = docker_cli.engine_error(output)
    assert error is not None
    assert message in error.message
    assert error.remedy


def test_a_refusal_by_the_engine_is_not_taken_for_a_missing_engine() -> None:
    assert docker_cli.engine_error("Error: No such image: nothing:1") is None


def fake_docker(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a script called docker on the PATH: some errors of the real command are hard to provoke."""
    path = directory / "docker"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


def test_an_engine_that_hangs_is_an_error_after_the_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_docker(tmp_path, "exec sleep 60", monkeypatch)
    with pytest.raises(DockerError, match=r"`docker info` gave no answer within 0\.2 s"):
        docker("info", timeout=0.2)


def test_an_error_quotes_the_last_line_of_the_engine_s_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_docker(tmp_path, "echo first >&2; echo the last word >&2; exit 3", monkeypatch)
    with pytest.raises(DockerError, match="`docker volume ls` failed: the last word") as caught:
        docker("volume", "ls")
    assert "first" in caught.value.output
