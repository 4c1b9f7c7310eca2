"""A run's volume: a rename keeps all of it or changes nothing, and `launcher get` copies from it."""

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.backend.docker.engine import READER, Engine, endpoint, translate_errors
from launcher.backend.docker.volumes import RENAMED_FROM, rename
from launcher.docker_cli import docker
from launcher.errors import LauncherError
from launcher.render import labels
from launcher.runs.status import Location
from launcher.spec.models import ClusterSpec
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import launch, unique, until

pytestmark = pytest.mark.docker

FILL = "mkdir -p /runs/a/b; echo all > /runs/a/b/file; ln -s b/file /runs/a/link; chmod 600 /runs/a/b/file; chown 1234:4321 /runs/a/b/file"
READ_BACK = "cat /runs/a/link; stat -c '%u %g %a' /runs/a/b/file; readlink /runs/a/link"


@dataclass(frozen=True)
class Stored:
    """A run that has only a volume, and its name after the rename."""

    name: str
    new_name: str

    @property
    def volumes(self) -> set[str]:
        return set(docker("volume", "ls", "--quiet", "--filter", f"name={self.name}").split())


@pytest.fixture
def client() -> Engine:
    return Engine(endpoint())


@pytest.fixture
def stored(image: Built) -> Iterator[Stored]:
    name = unique("stored")
    stored_run = Stored(name, f"{name}.{uuid.uuid4().hex[:6]}")
    volume = docker("volume", "create", "--label", f"{labels.RUN}={name}", f"{name}_run").strip()
    docker("run", "--rm", "--user", "0", "--volume", f"{volume}:/runs", "--entrypoint", "sh", image.name, "-c", FILL)
    yield stored_run
    for volume in stored_run.volumes:
        docker("volume", "rm", volume)


def spec(image: str) -> ClusterSpec:
    return ClusterSpec.model_validate({"version": 1, "name": "toy", "image": image, "command": ["true"]})


def test_a_renamed_volume_has_all_files_with_owners_and_modes(client: Engine, stored: Stored, image: Built) -> None:
    new = f"{stored.new_name}_run"
    assert rename(client, stored.name, stored.new_name, None) == Location("volume", new)
    assert stored.volumes == {new}
    output = docker("run", "--rm", "--user", "0", "--volume", f"{new}:/runs:ro", "--entrypoint", "sh", image.name, "-c", READ_BACK)
    assert output.splitlines() == ["all", "1234 4321 600", "b/file"]
    # Its label names its former run, to which it belongs no more.
    assert client.client.volumes.get(new).attrs["Labels"] == {RENAMED_FROM: stored.name}
    assert client.volumes(stored.name) == []
    assert rename(client, stored.name, f"{stored.new_name}.again", None) is None


MODEL = (
    "mkdir -p /runs/{0}/export/best-3-x/saved_model; cd /runs/{0}/export; ln -s best-3-x best; cd best; echo weights > model.keras;"
    "echo part > saved_model/part; ln model.keras same; ln -s /etc/passwd away; chmod -R go= /runs/{0}; chown -R 1000 /runs/{0}"
)


def test_a_model_is_copied_from_a_volume_that_no_container_mounts(stored: Stored, image: Built, tmp_path: Path) -> None:
    script = MODEL.format(stored.name)
    docker("run", "--rm", "--user", "0", "--volume", f"{stored.name}_run:/runs", "--entrypoint", "sh", image.name, "-c", script)
    result = launch("get", stored.name, "model", str(tmp_path / "mine"), "--json", runs=tmp_path / "runs")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["origin"], report["files"], report["left_out"]) == (f"volume {stored.name}_run, {stored.name}/export/best", 3, ["away"])
    copied = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert copied == {"mine/model.keras": "weights\n", "mine/same": "weights\n", "mine/saved_model/part": "part\n"}
    assert not (tmp_path / "mine").is_symlink()
    missing = launch("get", stored.name, "results", runs=tmp_path / "runs")
    assert (missing.returncode, "has no results yet" in missing.stderr, "it has model" in missing.stderr) == (2, True, True), missing.stderr
    assert docker("ps", "--all", "--quiet", "--filter", f"label={READER}={stored.name}") == ""


def test_without_an_image_for_the_copy_the_volume_stays(client: Engine, stored: Stored) -> None:
    missing_image = "localhost:1/no/such:image"
    with pytest.raises(LauncherError, match=missing_image):
        rename(client, stored.name, stored.new_name, spec(missing_image))
    assert stored.volumes == {f"{stored.name}_run"}


@pytest.mark.parametrize(
    "layer, message",
    [
        ("LABEL nothing=here", "executable file not found"),
        ("USER root\nRUN printf '#!/bin/sh\\necho no space left on device >&2; exit 1' > /usr/local/bin/cp; chmod +x /usr/local/bin/cp",
         "the engine's disk is full"),
    ],
    ids=["no cp", "cp fails"],
)  # fmt: skip
def test_a_failed_copy_leaves_the_old_volume(client: Engine, stored: Stored, image: Built, layer: str, message: str) -> None:
    tag = f"tf-launcher/test:{uuid.uuid4().hex[:12]}"
    docker("build", "--tag", tag, "-", stdin=f"FROM {'scratch' if 'nothing' in layer else image.name}\n{layer}\n", timeout=300)
    try:
        with pytest.raises(LauncherError, match=message), translate_errors("renaming it"):
            rename(client, stored.name, stored.new_name, spec(tag))
        assert stored.volumes == {f"{stored.name}_run"}
        assert docker("ps", "--all", "--quiet", "--filter", f"ancestor={tag}") == ""
    finally:
        docker("image", "rm", "--force", tag)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_copy_leaves_the_old_volume(client: Engine, stored: Stored, image: Built, number: signal.Signals) -> None:
    tag = f"tf-launcher/test:{uuid.uuid4().hex[:12]}"
    layer = "USER root\nRUN printf '#!/bin/sh\\nsleep 1000' > /usr/local/bin/cp; chmod +x /usr/local/bin/cp"
    docker("build", "--tag", tag, "-", stdin=f"FROM {image.name}\n{layer}\n", timeout=300)
    program = (
        "from launcher.backend.docker.engine import Engine, endpoint\n"
        "from launcher.backend.docker.volumes import rename\n"
        "from launcher.spec.models import ClusterSpec\n"
        f"spec = ClusterSpec.model_validate({{'version': 1, 'name': 'toy', 'image': {tag!r}, 'command': ['true']}})\n"
        f"rename(Engine(endpoint()), {stored.name!r}, {stored.new_name!r}, spec)"
    )

    def copying_containers() -> str:
        return docker("ps", "--all", "--quiet", "--filter", f"ancestor={tag}")

    def seen() -> str:
        return docker("ps", "--all", "--filter", f"ancestor={tag}") + f"the process that copies: {copying.poll()}"

    try:
        with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as copying:
            until("a copy to begin", lambda: docker("ps", "--quiet", "--filter", f"ancestor={tag}"), seen=seen)
            copying.send_signal(number)
        if number == signal.SIGKILL:
            assert stored.volumes == {f"{stored.name}_run", f"{stored.new_name}_run"}
            client.remove(stored.name)  # as the next verb for that run does
        assert (stored.volumes, copying_containers()) == ({f"{stored.name}_run"}, "")
    finally:
        docker("image", "rm", "--force", tag)
