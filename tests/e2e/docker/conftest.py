"""A real Docker engine, and the trainer's image in it, for every test here; skipped where no engine answers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.docker_cli import DockerError, docker

ROOT = Path(__file__).parents[3]
BUILD_DEADLINE = 900.0  # seconds; from an empty cache TensorFlow is downloaded

Build = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Built:
    """The image that `launcher image build` made: its name, and what the engine says of it."""

    name: str
    facts: dict[str, Any]


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    """Skip, saying why, where no engine answers."""
    try:
        docker("info", deadline=20)
    except DockerError as error:
        pytest.skip(f"{error.message}; {error.remedy}")


def launcher_image_build(*arguments: str, project: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `launcher image build ARGUMENTS --json` of the project in a directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCHER_")}
    return subprocess.run(
        [sys.executable, "-m", "launcher", "image", "build", "--json", *arguments],
        cwd=project,
        env=kept | {"PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        timeout=BUILD_DEADLINE,
        check=False,
    )


@pytest.fixture(scope="session")
def build(engine: None) -> Build:
    """Return what builds images."""
    del engine
    return launcher_image_build


@pytest.fixture(scope="session")
def image(build: Build) -> Built:
    """Build the trainer's image, once; seconds when the engine has it."""
    done = build()
    assert done.returncode == 0, done.stderr
    name = json.loads(done.stdout)["image"]
    return Built(name, json.loads(docker("image", "inspect", name))[0])
