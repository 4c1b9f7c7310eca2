"""An engine is stopped and started during a run: a separate engine, which no other test uses."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.docker_cli import DockerError, docker
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import NOTHING, objects_of, started, until
from tests.stand_in import stand_in

pytestmark = pytest.mark.docker

SPEC = {
    "name": "restarted",
    "strategy": "parameter_server",
    "roles": {"chief": {}, "ps": {"replicas": 1}, "worker": {"replicas": 1}},
    **stand_in.spec(checkpoint={"every_seconds": 1}),
}

# The trainer's image, with an empty TensorFlow: a third as much to copy to another engine.
SMALL_DOCKERFILE = """
FROM {image} AS whole
USER root
RUN cd /opt/venv/lib/python3*/site-packages && rm -rf tensorflow keras h5py h5py.libs && install -D /dev/null tensorflow/__init__.py

FROM {base}
RUN install -d -m 775 -o 1000 -g 0 /runs && install -d -m 755 /code
COPY --from=whole /opt /opt
ENV PATH=/opt/venv/bin:${{PATH}} HOME=/tmp USER=trainer PYTHONPATH=/code PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
"""


class Engine:
    """A separate Docker engine with its own socket, data and network."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, within: float = 90) -> None:
        """Start it, and wait until it answers."""
        (self.directory / "daemon.json").write_text("{}")
        engine = ["dockerd", "--config-file", str(self.directory / "daemon.json"), "--host", f"unix://{self.socket}"]
        engine += ["--data-root", str(self.directory / "data"), "--exec-root", str(self.directory / "exec")]
        engine += ["--pidfile", str(self.directory / "pid")]
        # In its own network namespace: another engine may use the machine's bridges, addresses and forwarding rules.
        command = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "engine", *engine]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        # Root can run a second engine, so the test is not skipped if that does not start.
        until("the engine to answer", self._answers, within, seen=lambda: (self.directory / "log").read_text()[-2000:])

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the engine has ended: {(self.directory / 'log').read_text()[-2000:]}"
        try:
            docker("--host", f"unix://{self.socket}", "info", timeout=20)
        except DockerError:
            return False
        return True

    def stop(self, within: float = 120) -> None:
        """Stop it as a service manager does: its containers are asked to end first."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(within)


@pytest.fixture
def small_image(image: Built, tag: str) -> str:
    base = image.facts["Config"]["Labels"]["org.opencontainers.image.base.name"]
    docker("build", "--tag", tag, "-", stdin=SMALL_DOCKERFILE.format(image=image.name, base=base), timeout=300)
    return tag


@pytest.fixture
def separate_engine(image: Built, small_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("dockerd", "unshare", "ip"))):
        pytest.skip("only root can start a separate engine, and only with dockerd, unshare and ip")
    engine = Engine(tmp_path_factory.mktemp("engine"))
    try:
        engine.start()
        with subprocess.Popen(["docker", "save", small_image], stdout=subprocess.PIPE) as saved:
            load = ["docker", "--host", f"unix://{engine.socket}", "load", "--quiet"]
            subprocess.run(load, stdin=saved.stdout, check=True, timeout=240, capture_output=True)
        docker("--host", f"unix://{engine.socket}", "tag", small_image, image.name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", f"unix://{engine.socket}")
            yield engine
    finally:
        engine.stop()
        shutil.rmtree(engine.directory, ignore_errors=True)


# One task fails, and the other, which waits, is asked to stop.
FAILING = {
    "name": "failing",
    "strategy": "multi_worker_mirrored",
    "roles": {"worker": {"replicas": 2}},
    "command": ["sh", "-c", "case $TF_CONFIG in *'\"index\":0'*) exit 2 ;; *) exec sleep 3600 ;; esac"],
    "limits": {"grace_period": "2s"},
}


def test_a_run_continues_when_its_engine_is_started_again_and_a_failed_one_does_not(separate_engine: Engine, tmp_path: Path) -> None:
    with started(FAILING, tmp_path) as failed, started(SPEC, tmp_path) as run:
        run.until("the run to make steps", lambda: run.step() > 20)
        failed.until("the other run to fail", lambda: failed.status()["state"] == "failed", seen=failed.status)
        ends = {task: failed.inspect(task)["State"]["FinishedAt"] for task in failed.tasks()}
        assert min(failed.inspect(task)["State"]["ExitCode"] for task in ends) == 2
        assert all(failed.inspect(task)["State"]["ExitCode"] for task in ends)  # none succeeded
        separate_engine.stop()
        assert run.supervisor().is_running()  # it waits for the engine
        separate_engine.start()
        run.until("every task to run again", lambda: all(run.inspect(task)["State"]["Running"] for task in run.tasks()), 90)
        assert {task: failed.inspect(task)["State"]["FinishedAt"] for task in ends} == ends
        assert not any(failed.inspect(task)["State"]["Running"] for task in ends)
        # From the checkpoint that the chief saved when the engine asked it to stop.
        restored = run.until("the chief to continue from a checkpoint", lambda: run.events("chief", "restored"), 150)
        assert restored[-1]["step"] > 0
        run.await_progress(timeout=150)
        status = run.status()
        assert status["state"] == "running"
        assert all(task["state"] == "running" for task in status["tasks"])
        assert run.inspect("tensorboard")["State"]["Running"]
        run.launcher("down", run.name)
        assert run.status()["state"] == "stopped"
        run.launcher("down", run.name, "--delete-data", "--yes")
        assert objects_of(run.name) == NOTHING
