"""A run's containers are started all or none, and what an earlier run has is kept."""

from pathlib import Path
from typing import Any

import pytest

from launcher.backend.docker.compose_up import start_containers
from launcher.docker_cli import docker
from launcher.errors import LauncherError
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import NOTHING, left
from tests.e2e.docker.supervising import Prepared, prepared

pytestmark = [pytest.mark.docker, pytest.mark.timeout(360), pytest.mark.usefixtures("image")]

# Saves what it has when it is asked to stop.
SAVES = (
    "import os, pathlib, signal, sys, time\n"
    "run = pathlib.Path(os.environ['RUN_DIR'])\n"
    "run.mkdir(exist_ok=True)\n"
    "def save(*_):\n    time.sleep(1)\n    (run / 'saved').write_text('all of it')\n    sys.exit(143)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "print('up', flush=True)\ntime.sleep(1000)"
)


def too_many_cores(document: dict[str, Any]) -> None:
    document["services"]["worker-1"]["cpus"] = 10_000


def started(there: Prepared) -> list[str]:
    return [str(container.id) for container in start_containers(there.engine, there.run.name, there.file)]


def test_one_that_cannot_be_started_takes_the_others_along_but_no_data(tmp_path: Path) -> None:
    with prepared(tmp_path, command=["sleep", "1000"], strategy="multi_worker_mirrored", roles={"worker": {"replicas": 2}}) as there:
        name = there.run.name
        good = there.file.read_text()
        there.write(too_many_cores)
        for before in ([], [f"{name}_run"]):
            with pytest.raises(LauncherError, match="more cores than the engine's machine has"):
                start_containers(there.engine, name, there.file)
            assert left(name) == NOTHING | {"volumes": before}
            if not before:  # a run that once was on its way has a volume, which is not this start's to remove
                there.file.write_text(good)
                assert len(started(there)) == 2
                there.engine.remove(name)
                there.write(too_many_cores)


def test_one_that_cannot_be_started_leaves_no_container_that_the_engine_was_still_making(tmp_path: Path) -> None:
    def make_slowly(document: dict[str, Any]) -> None:
        too_many_cores(document)
        # A volume that is new gets what the image has in its place: the engine copies 105 MB before the container is there.
        document["services"]["worker-0"]["volumes"] = [{"type": "volume", "source": "run", "target": "/usr/lib"}]

    with prepared(tmp_path, command=["sleep", "1000"], strategy="multi_worker_mirrored", roles={"worker": {"replicas": 2}}) as there:
        there.write(make_slowly)
        with pytest.raises(LauncherError, match="more cores than the engine's machine has"):
            start_containers(there.engine, there.run.name, there.file)
        assert left(there.run.name) == NOTHING
        assert f"{there.run.name}_run" not in docker("volume", "ls", "--quiet").split()


def test_a_run_that_nobody_keeps_saves_before_it_is_started_again(tmp_path: Path, image: Built) -> None:
    with prepared(tmp_path, command=["python", "-c", SAVES]) as there:
        name = there.run.name
        first = started(there)
        there.run.until("the program to run", lambda: "up" in docker("logs", there.run.container("chief")), 30)
        again = started(there)
        assert len(first) == len(again) == 1
        assert first != again
        assert there.run.inspect("chief")["State"]["Running"]
        saved = docker("run", "--rm", "--volume", f"{name}_run:/runs:ro", "--entrypoint", "cat", image.name, f"/runs/{name}/saved")
        assert saved == "all of it"
