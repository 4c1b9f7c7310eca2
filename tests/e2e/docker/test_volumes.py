"""A run's volume: under another name all of it is there, or the old one still is; and what `launcher get` reads of it."""

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

pytestmark = [pytest.mark.docker, pytest.mark.timeout(360)]

FILL = "mkdir -p /runs/a/b; echo all > /runs/a/b/file; ln -s b/file /runs/a/link; chmod 600 /runs/a/b/file; chown 1234:4321 /runs/a/b/file"
LOOK = "cat /runs/a/link; stat -c '%u %g %a' /runs/a/b/file; readlink /runs/a/link"


@dataclass(frozen=True)
class Stored:
    """A run that only has a volume, and what it is called once it is renamed."""

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
    found = Stored(name, f"{name}.{uuid.uuid4().hex[:6]}")
    volume = docker("volume", "create", "--label", f"{labels.RUN}={name}", f"{name}_run").strip()
    docker("run", "--rm", "--user", "0", "--volume", f"{volume}:/runs", "--entrypoint", "sh", image.name, "-c", FILL)
    yield found
    for left in found.volumes:
        docker("volume", "rm", left)


def spec(image: str) -> ClusterSpec:
    return ClusterSpec.model_validate({"version": 1, "name": "toy", "image": image, "command": ["true"]})


def test_all_of_it_is_there_with_its_owners_and_rights(client: Engine, stored: Stored, image: Built) -> None:
    new = f"{stored.new_name}_run"
    assert rename(client, stored.name, stored.new_name, None) == Location("volume", new)
    assert stored.volumes == {new}
    found = docker("run", "--rm", "--user", "0", "--volume", f"{new}:/runs:ro", "--entrypoint", "sh", image.name, "-c", LOOK)
    assert found.splitlines() == ["all", "1234 4321 600", "b/file"]
    # It tells of which run it was, and is none of that run's any more.
    assert client.client.volumes.get(new).attrs["Labels"] == {RENAMED_FROM: stored.name}
    assert client.volumes(stored.name) == []
    assert rename(client, stored.name, f"{stored.new_name}.again", None) is None


MODEL = (
    "mkdir -p /runs/{0}/export/best-3-x/saved_model; cd /runs/{0}/export; ln -s best-3-x best; cd best; echo weights > model.keras;"
    "echo part > saved_model/part; ln model.keras same; ln -s /etc/passwd away; chmod -R go= /runs/{0}; chown -R 1000 /runs/{0}"
)


def test_a_model_comes_out_of_a_volume_that_nothing_mounts_any_more(stored: Stored, image: Built, tmp_path: Path) -> None:
    script = MODEL.format(stored.name)
    docker("run", "--rm", "--user", "0", "--volume", f"{stored.name}_run:/runs", "--entrypoint", "sh", image.name, "-c", script)
    done = launch("get", stored.name, "model", str(tmp_path / "mine"), "--json", runs=tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["origin"], told["files"], told["left_out"]) == (f"volume {stored.name}_run, {stored.name}/export/best", 3, ["away"])
    copied = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert copied == {"mine/model.keras": "weights\n", "mine/same": "weights\n", "mine/saved_model/part": "part\n"}
    assert not (tmp_path / "mine").is_symlink()
    none = launch("get", stored.name, "results", runs=tmp_path / "runs")
    assert (none.returncode, "has no results yet" in none.stderr, "it has model" in none.stderr) == (2, True, True), none.stderr
    assert docker("ps", "--all", "--quiet", "--filter", f"label={READER}={stored.name}") == ""


def test_without_the_image_that_copies_nothing_is_touched(client: Engine, stored: Stored) -> None:
    nowhere = "localhost:1/nobody/has:this"
    with pytest.raises(LauncherError, match=nowhere):
        rename(client, stored.name, stored.new_name, spec(nowhere))
    assert stored.volumes == {f"{stored.name}_run"}


@pytest.mark.parametrize(
    "layer, said",
    [
        ("LABEL nothing=here", "executable file not found"),
        ("USER root\nRUN printf '#!/bin/sh\\necho no space left on device >&2; exit 1' > /usr/local/bin/cp; chmod +x /usr/local/bin/cp",
         "the engine's disk is full"),
    ],
    ids=["no cp", "cp fails"],
)  # fmt: skip
def test_a_copy_that_fails_leaves_the_old_one(client: Engine, stored: Stored, image: Built, layer: str, said: str) -> None:
    bare = f"tf-launcher/test:{uuid.uuid4().hex[:12]}"
    docker("build", "--tag", bare, "-", stdin=f"FROM {'scratch' if 'nothing' in layer else image.name}\n{layer}\n", deadline=300)
    try:
        with pytest.raises(LauncherError, match=said), translate_errors("renaming it"):
            rename(client, stored.name, stored.new_name, spec(bare))
        assert stored.volumes == {f"{stored.name}_run"}
        assert docker("ps", "--all", "--quiet", "--filter", f"ancestor={bare}") == ""
    finally:
        docker("image", "rm", "--force", bare)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_a_copy_that_is_cut_short_leaves_the_old_one(client: Engine, stored: Stored, image: Built, by: signal.Signals) -> None:
    slow = f"tf-launcher/test:{uuid.uuid4().hex[:12]}"
    layer = "USER root\nRUN printf '#!/bin/sh\\nsleep 1000' > /usr/local/bin/cp; chmod +x /usr/local/bin/cp"
    docker("build", "--tag", slow, "-", stdin=f"FROM {image.name}\n{layer}\n", deadline=300)
    program = (
        "from launcher.backend.docker.engine import Engine, endpoint\n"
        "from launcher.backend.docker.volumes import rename\n"
        "from launcher.spec.models import ClusterSpec\n"
        f"spec = ClusterSpec.model_validate({{'version': 1, 'name': 'toy', 'image': {slow!r}, 'command': ['true']}})\n"
        f"rename(Engine(endpoint()), {stored.name!r}, {stored.new_name!r}, spec)"
    )

    def copies() -> str:
        return docker("ps", "--all", "--quiet", "--filter", f"ancestor={slow}")

    def seen() -> str:
        return docker("ps", "--all", "--filter", f"ancestor={slow}") + f"the process that copies: {copying.poll()}"

    try:
        with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as copying:
            until("a copy to begin", lambda: docker("ps", "--quiet", "--filter", f"ancestor={slow}"), seen=seen)
            copying.send_signal(by)
        if by == signal.SIGKILL:
            assert stored.volumes == {f"{stored.name}_run", f"{stored.new_name}_run"}
            client.remove(stored.name)  # as the next verb for that run does
        assert (stored.volumes, copies()) == ({f"{stored.name}_run"}, "")
    finally:
        docker("image", "rm", "--force", slow)
