"""A run's containers are started all or none, and an earlier run's data stays."""

from pathlib import Path
from typing import Any

import pytest

from launcher.backend.docker.compose_up import start_containers
from launcher.docker_cli import docker
from launcher.errors import LauncherError
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import NOTHING, objects_of
from tests.e2e.docker.supervising import Prepared, prepared

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("image")]

# Saves when it is asked to stop.
SAVES = (
    "import os, pathlib, signal, sys, time\n"
    "run = pathlib.Path(os.environ['RUN_DIR'])\n"
    "run.mkdir(exist_ok=True)\n"
    "def save(*_):\n    time.sleep(1)\n    (run / 'saved').write_text('all of it')\n    sys.exit(143)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "print('up', flush=True)\ntime.sleep(3600)"
)


def too_many_cores(document: dict[str, Any]) -> None:
    document["services"]["worker-1"]["cpus"] = 10_000


def start(prepared_run: Prepared) -> list[str]:
    return [str(container.id) for container in start_containers(prepared_run.engine, prepared_run.run.name, prepared_run.file)]


def test_a_container_that_cannot_start_removes_the_others_but_no_data(tmp_path: Path) -> None:
    with prepared(tmp_path, command=["sleep", "3600"], strategy="multi_worker_mirrored", roles={"worker": {"replicas": 2}}) as prepared_run:
        name = prepared_run.run.name
        good = prepared_run.file.read_text()
        prepared_run.write(too_many_cores)
        for before in ([], [f"{name}_run"]):
            with pytest.raises(LauncherError, match="more cores than the engine's machine has"):
                start_containers(prepared_run.engine, name, prepared_run.file)
            assert objects_of(name) == NOTHING | {"volumes": before}
            if not before:  # a run that was started before has a volume, which a failed start must not remove
                prepared_run.file.write_text(good)
                assert len(start(prepared_run)) == 2
                prepared_run.engine.remove(name)
                prepared_run.write(too_many_cores)


def test_a_container_that_cannot_start_leaves_none_that_the_engine_was_still_creating(tmp_path: Path) -> None:
    def make_slowly(document: dict[str, Any]) -> None:
        too_many_cores(document)
        # The engine fills a new volume with the image's files at that path: it copies 105 MB before the container exists.
        document["services"]["worker-0"]["volumes"] = [{"type": "volume", "source": "run", "target": "/usr/lib"}]

    with prepared(tmp_path, command=["sleep", "3600"], strategy="multi_worker_mirrored", roles={"worker": {"replicas": 2}}) as prepared_run:
        prepared_run.write(make_slowly)
        with pytest.raises(LauncherError, match="more cores than the engine's machine has"):
            start_containers(prepared_run.engine, prepared_run.run.name, prepared_run.file)
        assert objects_of(prepared_run.run.name) == NOTHING
        assert f"{prepared_run.run.name}_run" not in docker("volume", "ls", "--quiet").split()


def test_an_unsupervised_run_saves_before_it_is_started_again(tmp_path: Path, image: Built) -> None:
    with prepared(tmp_path, command=["python", "-c", SAVES]) as prepared_run:
        name = prepared_run.run.name
        first = start(prepared_run)
        prepared_run.run.until("the program to run", lambda: "up" in docker("logs", prepared_run.run.container("chief")), 30)
        again = start(prepared_run)
        assert len(first) == len(again) == 1
        assert first != again
        assert prepared_run.run.inspect("chief")["State"]["Running"]
        saved = docker("run", "--rm", "--volume", f"{name}_run:/runs:ro", "--entrypoint", "cat", image.name, f"/runs/{name}/saved")
        assert saved == "all of it"
