"""The trainer's image and its promises, seen from containers: docs/images.md."""

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import launcher
from launcher import images
from launcher.docker_cli import docker
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import until

pytestmark = pytest.mark.docker

# The options with which rendered Compose files and manifests start their containers.
HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(image: Built) -> Run:
    """Run a container of the image to its end: options for docker, then the arguments after the image's name."""

    def run(*options: str, arguments: tuple[str, ...] = (), name: str = image.name) -> subprocess.CompletedProcess[str]:
        container = f"test-{uuid.uuid4().hex[:12]}"
        command = ["docker", "run", "--rm", "--name", container, *HARDENED, *options, name, *arguments]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        except subprocess.TimeoutExpired:
            docker("rm", "--force", container)
            raise

    return run


@pytest.fixture
def start_container(image: Built) -> Iterator[Callable[..., str]]:
    """Start a container of the image in the background; it is removed at the end of the test."""
    started: list[str] = []

    def start(*options: str, arguments: tuple[str, ...]) -> str:
        started.append(docker("run", "--detach", *HARDENED, *options, image.name, *arguments).strip())
        return started[-1]

    yield start
    for container in started:
        docker("rm", "--force", "--volumes", container)


def state(container: str) -> dict[str, Any]:
    """Return a container's state as the engine describes it."""
    result: dict[str, Any] = json.loads(docker("container", "inspect", container))[0]["State"]
    return result


def test_the_image_has_its_configuration_and_labels(image: Built) -> None:
    config = image.facts["Config"]
    assert config["Entrypoint"] == ["trainer"]
    assert config["User"] == f"{images.USER}:{images.USER}"
    assert config["WorkingDir"] == "/code"
    assert config["Healthcheck"]["Test"] == ["CMD", "trainer", "--health"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.version"] == launcher.__version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.base.name"]
    assert {"org.opencontainers.image.title", "org.opencontainers.image.description"} <= set(labels)
    assert not config.get("Volumes")
    assert not config.get("ExposedPorts")


def test_the_image_is_small(image: Built) -> None:
    assert image.facts["Size"] <= 1.2e9


def test_find_returns_the_image(image: Built) -> None:
    found = images.find(image.name)
    assert found is not None
    assert (found.id, found.size) == (image.facts["Id"], image.facts["Size"])
    assert images.find("tf-launcher/no-such-image:1") is None


# One program for all that needs TensorFlow: it takes seconds to import.
USES_TENSORFLOW = """
import json, os
import keras, tensorboard, tensorflow as tf

model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
model.fit(tf.random.normal([64, 3]), tf.random.normal([64, 1]), epochs=1, verbose=0)
model.export("/tmp/model")
loaded = tf.saved_model.load("/tmp/model")
restored = loaded.serve(tf.zeros([2, 3]))
with tf.summary.create_file_writer("/tmp/logs").as_default():
    tf.summary.scalar("loss", 0.5, step=1)
lite = tf.lite.TFLiteConverter.from_saved_model("/tmp/model").convert()
print(json.dumps({
    "tensorflow": tf.__version__, "shape": restored.shape.as_list(), "logs": len(os.listdir("/tmp/logs")), "lite": len(lite),
}))
"""


def test_tensorflow_works_on_a_read_only_root_as_any_user(run: Run) -> None:
    # In all other tests here TensorFlow runs as the image's own user.
    result = run("--user", "12345:0", "--entrypoint", "python", arguments=("-c", USES_TENSORFLOW))
    assert result.returncode == 0, result.stderr
    report = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))
    assert report["tensorflow"].startswith("2.21.")
    assert report["shape"] == [2, 1]
    assert report["logs"] == 1
    assert report["lite"] > 1000


USER_FACTS = """
import getpass, json, os, pathlib, sys
print(json.dumps([os.getuid(), getpass.getuser(), str(pathlib.Path.home()), sys.executable]))
"""


@pytest.mark.parametrize("user", ["", "12345:0"], ids=["its own user", "any user of group 0"])
def test_a_program_knows_its_user_and_can_write_to_a_new_volume_for_runs(run: Run, user: str) -> None:
    volume = f"test-{uuid.uuid4().hex[:12]}"
    try:
        options = ("--volume", f"{volume}:/runs", *(("--user", user) if user else ()))
        writes = "mkdir /runs/a && echo x > /runs/a/b && cat /runs/a/b"
        result = run(*options, "--entrypoint", "sh", arguments=("-c", f'{writes} && python -c "$0"', USER_FACTS))
        assert result.returncode == 0, result.stderr
        written, facts = result.stdout.splitlines()
        assert written == "x"
        uid = int(user.partition(":")[0]) if user else images.USER
        assert json.loads(facts) == [uid, "trainer", "/tmp", "/opt/venv/bin/python"]
    finally:
        docker("volume", "rm", "--force", volume)


# Walks the image's own file system, from the root, as root.
CONTENTS = """
import importlib.util, json, os, pathlib, shutil, stat, struct

files = [pathlib.Path(d, n) for top in ("/usr", "/opt", "/code", "/runs", "/home", "/root", "/var") for d, _, ns in os.walk(top) for n in ns]
ours = [f for f in files if f.is_relative_to("/opt")]


def stale(source):
    compiled = pathlib.Path(importlib.util.cache_from_source(str(source)))
    if not compiled.exists():
        return True
    with compiled.open("rb") as stream:
        magic, flags, changed, size = struct.unpack("<4sIII", stream.read(16))
    about = source.stat()
    return magic != importlib.util.MAGIC_NUMBER or (changed, size) != (int(about.st_mtime) & 0xFFFFFFFF, about.st_size & 0xFFFFFFFF)


elf = pathlib.Path("/opt/venv/lib").glob("python*/site-packages/tensorflow/libtensorflow_cc.so.2")
print(json.dumps({
    "compilers": [n for n in ("gcc", "cc", "g++", "clang", "nvcc", "ld", "make") if shutil.which(n)],
    "headers": [str(f) for f in ours if f.suffix in {".h", ".hpp", ".cuh", ".a", ".lib"}],
    "clang": [str(f) for f in ours if f.name.startswith("libclang")],
    "tests": [str(f) for f in ours if "tests" in f.parts or f.name.endswith("_test.py")],
    "pip": [str(f) for f in ours if "pip" in f.parts],
    "caches": [str(f) for f in files if f.suffix == ".whl" and "ensurepip" not in f.parts and "python-wheels" not in f.parts
               or f.is_relative_to("/root/.cache")],
    "clients": [str(f) for f in ours if {"kubernetes", "docker"} & set(f.parts[f.parts.index("site-packages") + 1:][:1] if "site-packages" in f.parts else ())],
    "unreadable": [str(f) for f in ours if not f.stat().st_mode & stat.S_IROTH],
    "writable": [str(f) for f in ours if not f.is_symlink() and (f.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) or f.stat().st_uid)],
    "stale": [str(f) for f in ours if f.suffix == ".py" and stale(f)],
    "files": len(ours),
    "libraries": len(list(elf)),
}))
"""


def test_the_image_has_nothing_that_running_does_not_need(run: Run) -> None:
    result = run("--user", "0", "--cap-add", "DAC_OVERRIDE", "--entrypoint", "python", arguments=("-c", CONTENTS))
    assert result.returncode == 0, result.stderr
    contents = json.loads(result.stdout)
    assert contents.pop("files") > 5000
    assert contents.pop("libraries") == 1
    assert {kind: files[:5] for kind, files in contents.items() if files} == {}


def test_the_installed_packages_fit_together(run: Run) -> None:
    result = run("--entrypoint", "pip", arguments=("check",))
    assert (result.returncode, result.stdout) == (0, "No broken requirements found.\n"), result.stderr


def test_the_image_runs_any_program_and_returns_its_exit_code(run: Run) -> None:
    assert run(arguments=("--", "sh", "-c", "exit 2")).returncode == 2
    without_arguments = run()
    assert without_arguments.returncode == 2
    assert "there is nothing to run" in without_arguments.stderr
    assert run(arguments=("--version",)).stdout == f"trainer {launcher.__version__}\n"


def test_docker_stop_stops_the_program(start_container: Callable[..., str]) -> None:
    container = start_container(arguments=("--", "python", "-c", "import time; print('up', flush=True); time.sleep(3600)"))
    until("the program to be up", lambda: "up" in docker("logs", container).split(), seen=lambda: state(container))
    docker("stop", "--time", "60", container)
    assert state(container)["ExitCode"] == 143  # one that has to be killed ends with 137


def test_the_engine_knows_the_health_of_the_task(start_container: Callable[..., str]) -> None:
    often = ("--health-interval", "1s", "--health-start-period", "0s", "--health-retries", "1")
    container = start_container(*often, arguments=("--", "sleep", "3600"))
    until("the container to be healthy", lambda: state(container)["Health"]["Status"] == "healthy", seen=lambda: state(container))
    line = state(container)["Health"]["Log"][-1]["Output"]
    assert "attempt 1, runs" in line
    pid = line.split("process ")[1].split(",")[0]
    docker("exec", container, "python", "-c", f"import os, signal; os.kill({pid}, signal.SIGSTOP)")
    until("the container to be unhealthy", lambda: state(container)["Health"]["Status"] == "unhealthy", seen=lambda: state(container))
    assert "stopped by a signal" in state(container)["Health"]["Log"][-1]["Output"]
