"""Decisions of a supervisor of containers: when a run has failed, which tasks start again, what follows the loss of engine or directory."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from launcher.backend.docker import run_containers
from launcher.backend.docker.backend import DockerBackend
from launcher.docker_cli import docker
from launcher.render.compose_extras import SIDECAR_RESTART
from launcher.runs import run_controller
from launcher.runs.status import ENDED, State
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import NOTHING, launch, objects_of, started
from tests.e2e.docker.supervising import Supervised, supervised

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("image")]

SLEEPING = {"command": ["sleep", "3600"]}
SERVERS = {"strategy": "parameter_server", "roles": {"chief": {}, "ps": {"replicas": 1}, "worker": {"replicas": 1}}}


def nothing_restarts(supervised_run: Supervised) -> bool:
    """Return whether no container of a run runs, or is started again by the engine."""
    containers = [supervised_run.run.inspect(task) for task in supervised_run.run.tasks()]
    assert containers
    return not any(container["State"]["Running"] or container["State"]["Restarting"] for container in containers) and {
        container["HostConfig"]["RestartPolicy"]["Name"] for container in containers
    } == {"no"}


@pytest.mark.parametrize(
    "spec, reason",
    [
        (SLEEPING | {"limits": {"start_timeout": "2s", "deadline": "2s", "grace_period": "1s"}}, "not done within the deadline of 2 s"),
        (
            {"train": {"workload": "mnist_mlp"}, "limits": {"start_timeout": "1s"}},
            "training did not start within the start timeout of 1 s",
        ),
    ],
    ids=["deadline", "start timeout"],
)
def test_a_run_that_is_late_is_ended(spec: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with supervised(tmp_path, **spec) as supervised_run:
        status = supervised_run.wait_for_end()
        assert (status.state, status.reason[: len(reason)]) == (State.FAILED, reason)
        assert nothing_restarts(supervised_run)


@pytest.mark.parametrize("fields", [{}, {"supervise": True}, {"supervise": False}], ids=["our image", "no trainer in it", "no parent"])
def test_a_run_fails_after_its_last_restart(tmp_path: Path, image: Built, fields: dict[str, Any]) -> None:
    program = ["sh", "-c", "echo so many times; exit 7"]
    other = {"image": image.facts["Config"]["Labels"]["org.opencontainers.image.base.name"]} if fields else {}
    with supervised(tmp_path, command=program, limits={"max_restarts": 1}, **fields, **other) as supervised_run:
        status = supervised_run.wait_for_end()
        assert (status.state, status.tasks[0].state, status.tasks[0].exit_code) == (State.FAILED, State.FAILED, 7)
        assert "chief failed on attempt 2 (exit code 7)" in status.reason
        assert supervised_run.prepared.paths.log("chief").read_text().count("so many times") == 2
        assert len(status.tasks[0].restarts) == 1
        assert nothing_restarts(supervised_run)


def test_a_run_in_an_image_without_python_fails_at_once_and_the_remedy_names_the_field(tmp_path: Path, image: Built) -> None:
    with supervised(tmp_path, command=["true"], image=image.name, env={"PATH": "/nowhere"}) as supervised_run:
        status = supervised_run.wait_for_end()
        assert status.state is State.FAILED
        assert "its image has no python3" in status.reason
        assert "`supervise: false`" in status.tasks[0].remedy
        assert nothing_restarts(supervised_run)


def test_a_task_without_restarts_is_not_started_again(tmp_path: Path) -> None:
    with supervised(tmp_path, **SLEEPING, limits={"max_restarts": 0}) as supervised_run:
        docker("kill", supervised_run.run.container("chief"))
        status = supervised_run.wait_for_end()
        assert (status.state, status.reason[:28]) == (State.FAILED, "chief failed on attempt 1 (e")
        assert status.tasks[0].exit_code == 137
        assert nothing_restarts(supervised_run)


def test_a_run_fails_if_one_of_its_containers_is_removed(tmp_path: Path) -> None:
    with supervised(tmp_path, **SLEEPING, strategy="multi_worker_mirrored", roles={"worker": {"replicas": 2}}) as supervised_run:
        docker("rm", "--force", supervised_run.run.container("worker-1"))
        status = supervised_run.wait_for_end()
        assert (status.state, status.reason) == (State.FAILED, "the container of worker-1 was removed")
        assert supervised_run.run.tasks() == ["worker-0"]
        assert nothing_restarts(supervised_run)


def test_servers_end_once_the_chief_has_succeeded(tmp_path: Path) -> None:
    program = ["sh", "-c", 'case $TF_CONFIG in *\'"type": "chief"\'*|*\'"type":"chief"\'*) echo done ;; *) exec sleep 3600 ;; esac']
    with supervised(tmp_path, **SERVERS, command=program) as supervised_run:
        status = supervised_run.wait_for_end()
        assert (status.state, status.reason) == (State.SUCCEEDED, "")
        # Their parents have noticed the end, or the supervisor has stopped them first.
        assert {task.name: task.state for task in status.tasks} == dict.fromkeys(("chief", "worker-0", "ps-0"), State.SUCCEEDED)
        assert nothing_restarts(supervised_run)


def test_a_run_in_the_foreground_stops_if_its_launcher_ends(tmp_path: Path) -> None:
    with supervised(tmp_path, **SLEEPING) as supervised_run:
        supervised_run.request_stop(None)
        status = supervised_run.wait_for_end()
        assert (status.state, status.reason) == (State.STOPPED, "the launcher that ran it in the foreground is gone")
        assert objects_of(supervised_run.run.name) == NOTHING | {"volumes": [f"{supervised_run.run.name}_run"]}


def test_a_second_stop_request_kills_a_program_that_does_not_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_controller, "_SAME_STOP_SECONDS", 0.0)
    program = ["python", "-c", "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(3600)"]
    with supervised(tmp_path, command=program, limits={"grace_period": "100s"}) as supervised_run:
        supervised_run.run.until("the program to run", lambda: "up" in docker("logs", supervised_run.run.container("chief")), 30)
        supervised_run.request_stop()
        supervised_run.request_stop()
        status = supervised_run.wait_for_end()  # within less than the grace period
        assert (status.state, status.tasks[0].reason) == (State.STOPPED, "killed")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # the lost connections
def test_a_supervisor_ends_if_its_engine_stays_away_and_the_run_continues(
    tmp_path: Path, by_relay: dict[str, str], relay: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_containers, "_UNREACHABLE_TIMEOUT", 2.0)
    with contextlib.ExitStack() as cleanup:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("DOCKER_HOST", by_relay["DOCKER_HOST"])
            supervised_run = cleanup.enter_context(supervised(tmp_path, **SLEEPING))
        relay.kill()
        status = supervised_run.wait_for_end()
        assert (status.state, status.reason[:32]) == (State.INTERRUPTED, "the engine has not answered for ")
        assert supervised_run.run.inspect("chief")["State"]["Running"]


def test_a_run_whose_directory_is_removed_is_stopped_and_no_other_starts_beside_it(tmp_path: Path) -> None:
    with started({"name": "removed", **SLEEPING, "limits": {"grace_period": "1s"}}, tmp_path) as run:
        supervisor = run.supervisor().pid
        os.kill(supervisor, signal.SIGSTOP)  # it notices nothing meanwhile
        try:
            shutil.rmtree(run.runs / ".docker" / run.name)
            again = launch("up", str(tmp_path / f"{run.name}.yaml"), runs=run.runs)
            assert (again.returncode, f"{run.name} runs already" in again.stderr) == (2, True), again.stderr
        finally:
            os.kill(supervisor, signal.SIGCONT)
        run.until("the containers to be removed", lambda: not objects_of(run.name)["containers"])
        assert not (run.runs / ".docker" / run.name).exists()


def test_the_status_of_a_followed_run_says_that_its_directory_was_removed(tmp_path: Path) -> None:
    with supervised(tmp_path, **SLEEPING, limits={"grace_period": "1s"}) as supervised_run:
        name, backend = supervised_run.run.name, DockerBackend(supervised_run.run.runs)
        backend._supervised.hold_lifeline(name, os.open(os.devnull, os.O_RDONLY))
        shutil.rmtree(supervised_run.prepared.paths.run_dir)
        supervised_run.run.until("the run to end", lambda: backend.status(name).state in ENDED, seen=lambda: backend.status(name))
        supervised_run.thread.join(60)
        for volume in [*supervised_run.prepared.engine.volumes(name), None]:  # from which `up` continues, or none
            status = backend.status(name)
            assert status.state is State.FAILED
            removed, continues = (
                f"{supervised_run.prepared.paths.run_dir} was removed while the run ran",
                "`up` continues from its last checkpoint",
            )
            assert (status.reason[: len(removed)], continues in status.reason) == (removed, volume is not None)
            if volume is not None:
                volume.remove()
        backend._supervised._close_lifeline(name)


def test_a_supervisor_that_lost_its_directory_does_not_touch_a_new_run_in_its_place(tmp_path: Path) -> None:
    sidecars = [{"name": "log", **SLEEPING}]
    with supervised(tmp_path, **SLEEPING, sidecars=sidecars, limits={"grace_period": "1s"}) as supervised_run:
        prepared_run = supervised_run.prepared
        before, paths, text = supervised_run.run.inspect("chief")["Id"], prepared_run.paths, prepared_run.file.read_text()
        reader = supervised_run.containers.event_reader
        assert reader is not None
        close, closed, may_return = reader.close, threading.Event(), threading.Event()

        def close_and_wait(timeout: float) -> None:
            close(timeout)
            closed.set()
            may_return.wait(60)

        reader.close = close_and_wait  # type: ignore[method-assign]
        shutil.rmtree(paths.run_dir)
        assert closed.wait(60)
        paths.tasks.mkdir(parents=True)
        paths.lock.touch()
        prepared_run.file.write_text(text)
        second = run_containers.RunContainers(paths, prepared_run.plan, prepared_run.engine)
        second.start()
        may_return.set()
        supervised_run.thread.join(60)
        first = supervised_run.containers
        first.tasks[0].kill()
        first._update_tasks(prepared_run.engine.containers(prepared_run.plan.name), 0.0)
        first.sidecars.stop_all()
        after, sidecar = supervised_run.run.inspect("chief"), supervised_run.run.inspect("chief-log")
        assert (after["Id"] != before, after["State"]["Running"]) == (True, True)
        assert (sidecar["State"]["Running"], sidecar["HostConfig"]["RestartPolicy"]["Name"]) == (True, SIDECAR_RESTART)
        assert second.event_reader is not None
        second.event_reader.close(1)
