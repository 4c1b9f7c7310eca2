"""Building the image: again after a change, with a user's code, on another image."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import __version__, images
from launcher.docker_cli import docker
from launcher.image_build.context import source_digest
from tests.e2e.docker.built import check_package, inspected, layers, output, wheel
from tests.e2e.docker.conftest import ROOT, Build, Built
from tests.e2e.docker.running import cleaned, launch, unique
from tests.processes import free_port

pytestmark = pytest.mark.docker


def test_plain_docker_build_makes_the_same_image(image: Built, tag: str) -> None:
    docker("build", "--file", "images/Dockerfile", "--tag", tag, str(ROOT), timeout=900)
    assert layers(inspected(tag)) == layers(image.facts)


def test_a_change_of_the_source_makes_one_small_layer(image: Built, build: Build, project: Path, tag: str) -> None:
    with (project / "trainer" / "health.py").open("a") as stream:
        stream.write("# changed\n")
    result = build("--tag", tag, project=project)
    assert result.returncode == 0, result.stderr
    before, after = layers(image.facts), layers(inspected(tag))
    assert len(before) == len(after)
    assert [old for old, new in zip(before, after, strict=True) if old != new] == before[-1:]
    assert output(tag, "-c", "cat /opt/trainer/trainer/health.py", options=("--entrypoint", "sh")).endswith("# changed\n")


def test_up_builds_a_missing_image_and_one_of_other_sources_and_says_so(image: Built, project: Path, tmp_path: Path) -> None:
    assert image.facts["Config"]["Labels"][images.SOURCE_DIGEST_LABEL] == source_digest()
    # A launcher of another version has an image of its own, which no other test uses.
    version = project / "launcher" / "__init__.py"
    name = unique("first")
    other_image = image.name.replace(images.DEFAULT_IMAGE.partition(":")[2], f"0.0.{name}")
    version.write_text(version.read_text().replace(f'"{__version__}"', f'"0.0.{name}"'))
    file = tmp_path / "first.yaml"
    file.write_text(f"version: 1\nname: {name}\ntensorboard: {{port: {free_port()}}}\ncommand: ['true']\n")

    def up(*more: str) -> str:
        command = [sys.executable, "-m", "launcher", "up", str(file), "--on", "docker", "--runs", str(tmp_path / "runs"), *more]
        environment = os.environ | {"PYTHONPATH": str(project)}
        result = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr

    with cleaned(name, tmp_path / "runs"):
        try:
            assert f"building the image {other_image} (`launcher image build`)" in up()
            built = inspected(other_image)
            assert built["Config"]["Labels"]["org.opencontainers.image.version"] == f"0.0.{name}"
            # The same layers with a label of other sources.
            docker("build", "--tag", other_image, "-", stdin=f"FROM {other_image}\nLABEL {images.SOURCE_DIGEST_LABEL}=other\n", timeout=300)
            assert f"rebuilding the image {other_image}, which was built from other sources" in up("--fresh")
            assert inspected(other_image)["Config"]["Labels"][images.SOURCE_DIGEST_LABEL] == source_digest()
            assert layers(inspected(other_image)) == layers(built)
        finally:
            launch("down", name, runs=tmp_path / "runs")
            docker("image", "rm", "--force", other_image)


def test_code_is_added_and_can_be_imported(build: Build, tmp_path: Path, tag: str) -> None:
    source = tmp_path / "My Code"
    (source / "data").mkdir(parents=True)
    (source / "mine.py").write_text("print('mine runs')\n")
    (source / "secret.txt").write_text("x")
    (source / ".dockerignore").write_text("secret.txt\n.dockerignore\n")
    result = build("--code", str(source), "--tag", tag)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["image"] == tag
    assert "mine runs" in output(tag, "--", "python", "mine.py").splitlines()
    assert output(tag, "-c", "import mine", options=("--workdir", "/tmp", "--entrypoint", "python")) == "mine runs\n"
    assert sorted(output(tag, "/code", options=("--entrypoint", "ls")).split()) == ["data", "mine.py"]


def test_files_that_hardly_belong_in_an_image_are_named(build: Build, tmp_path: Path, tag: str) -> None:
    (tmp_path / "src" / ".git").mkdir(parents=True)
    (tmp_path / "src" / "a.py").touch()
    result = build("--code", str(tmp_path / "src"), "--tag", tag)
    assert result.returncode == 0, result.stderr
    assert f"note: the image will contain {tmp_path}/src/.git; a .dockerignore" in result.stderr


def test_a_missing_base_image_is_an_error_with_a_remedy(build: Build, tag: str) -> None:
    result = build("--base-image", "no.such.host.invalid/python:1", "--tag", tag)
    assert result.returncode == 1
    error = json.loads(result.stderr.splitlines()[-1])
    assert "does not have the base image no.such.host.invalid/python:1" in error["error"]
    assert "--base-image" in error["remedy"]


def test_an_unsuitable_base_image_is_an_error(build: Build, tag: str, tmp_path: Path) -> None:
    bare = f"{tag}-base"
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    docker("build", "--tag", bare, str(tmp_path))
    try:
        result = build("--base-image", bare, "--tag", tag)
    finally:
        docker("image", "rm", "--force", bare)
    assert result.returncode == 1
    assert f"{tag} could not be built" in json.loads(result.stderr.splitlines()[-1])["error"]


def test_pip_installs_into_the_trainer_s_environment(image: Built, tmp_path: Path, tag: str) -> None:
    package = wheel(tmp_path, "tiny")
    (tmp_path / "Dockerfile").write_text(
        f"FROM {image.name}\nUSER root\nCOPY *.whl /tmp/\nRUN pip install --no-cache-dir --no-index /tmp/*.whl\nUSER 1000:1000\n"
    )
    docker("build", "--tag", tag, str(tmp_path), timeout=300)
    check_package(tag, package)
