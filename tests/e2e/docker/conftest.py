"""Fixtures: a real Docker engine with the trainer's image. Tests are skipped if no engine answers."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.docker_cli import DockerError, docker
from launcher.image_build.context import FILES

ROOT = Path(__file__).parents[3]
BUILD_DEADLINE = 900.0  # seconds; from an empty cache TensorFlow is downloaded

Build = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Built:
    """The image of `launcher image build`: its name, and the engine's description."""

    name: str
    facts: dict[str, Any]


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    """Skip with the reason if no engine answers."""
    try:
        docker("info", timeout=20)
    except DockerError as error:
        pytest.skip(f"{error.message}; {error.remedy}")


def launcher_image_build(*arguments: str, project: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `launcher image build ARGUMENTS --json` of the project in a directory."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCHER_")}
    return subprocess.run(
        [sys.executable, "-m", "launcher", "image", "build", "--json", *arguments],
        cwd=project,
        env=inherited | {"PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        timeout=BUILD_DEADLINE,
        check=False,
    )


@pytest.fixture(scope="session")
def build(engine: None) -> Build:
    """Return the function that builds images."""
    del engine
    return launcher_image_build


@pytest.fixture(scope="session")
def image(build: Build) -> Built:
    """Build the trainer's image once, which takes seconds if the engine has it."""
    result = build()
    assert result.returncode == 0, result.stderr
    name = json.loads(result.stdout)["image"]
    return Built(name, json.loads(docker("image", "inspect", name))[0])


@pytest.fixture
def tag() -> Iterator[str]:
    """Return a name for an image of the test, which is removed afterwards."""
    name = f"tf-launcher/test:{uuid.uuid4().hex[:12]}"
    yield name
    if docker("image", "ls", "--quiet", name).strip():
        docker("image", "rm", "--force", name)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the project's files that a build needs, which a test may change."""
    copy = tmp_path / "project"
    for name in FILES:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    for package in ("launcher", "trainer"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def relay() -> Iterator["subprocess.Popen[str]"]:
    """Start a relay to the engine, see `by_relay`."""
    engine = docker("context", "inspect", "--format", "{{.Endpoints.docker.Host}}").strip()
    if not engine.startswith("unix://"):
        pytest.skip(f"the engine is at {engine}, not at a socket to forward")
    command = [sys.executable, str(Path(__file__).with_name("relay.py")), engine.removeprefix("unix://")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()
    # The launcher's client abandons the sockets of lost connections: collected later, they would fail another test by a ResourceWarning.
    for thread in threading.enumerate():
        if thread.name.startswith("log of ") or thread.name in {"_events", "_reopen_idle"}:
            thread.join(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def by_relay(relay: "subprocess.Popen[str]") -> dict[str, str]:
    """Return the environment by which docker reaches the engine through the relay."""
    assert relay.stdout is not None
    return {"DOCKER_HOST": f"tcp://127.0.0.1:{relay.stdout.readline().strip()}"}


@pytest.fixture
def lose_connections(relay: "subprocess.Popen[str]") -> Callable[[], None]:
    """Return a function that makes the relay lose its connections, and returns once they are lost."""

    def signal_relay() -> None:
        os.kill(relay.pid, signal.SIGUSR1)
        assert relay.stdout is not None
        assert relay.stdout.readline() == "lost\n"

    return signal_relay
