"""Decisions of the supervisor of a run of containers: when a run has failed, what is tried again, and how it leaves what it cannot see any more."""

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
from launcher.runs.status import ENDED, State
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import NOTHING, launch, objects_of, started
from tests.e2e.docker.supervising import Supervised, supervised

pytestmark = [pytest.mark.docker, pytest.mark.timeout(360), pytest.mark.usefixtures("image")]

SLEEPS = {"command": ["sleep", "1000"]}
SERVERS = {"strategy": "parameter_server", "roles": {"chief": {}, "ps": {"replicas": 1}, "worker": {"replicas": 1}}}


def nothing_restarts(supervised_run: Supervised) -> bool:
    """Return whether nothing of a run's containers runs, nor comes back with the engine."""
    found = [supervised_run.run.inspect(task) for task in supervised_run.run.tasks()]
    assert found
    return not any(one["State"]["Running"] or one["State"]["Restarting"] for one in found) and {
        one["HostConfig"]["RestartPolicy"]["Name"] for one in found
    } == {"no"}


@pytest.mark.parametrize(
    "spec, reason",
    [
        (SLEEPS | {"limits": {"start_timeout": "2s", "deadline": "2s", "grace_period": "1s"}}, "not done within the deadline of 2 s"),
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


@pytest.mark.parametrize("own", [{}, {"supervise": True}, {"supervise": False}], ids=["our image", "no trainer in it", "no parent"])
def test_what_fails_too_often_fails_for_good(tmp_path: Path, image: Built, own: dict[str, Any]) -> None:
    program = ["sh", "-c", "echo so many times; exit 7"]
    other = {"image": image.facts["Config"]["Labels"]["org.opencontainers.image.base.name"]} if own else {}
    with supervised(tmp_path, command=program, limits={"max_restarts": 1}, **own, **other) as supervised_run:
        status = supervised_run.wait_for_end()
        assert (status.state, status.tasks[0].state, status.tasks[0].exit_code) == (State.FAILED, State.FAILED, 7)
        assert "chief failed on attempt 2 (exit code 7)" in status.reason
        assert supervised_run.prepared.paths.log("chief").read_text().count("so many times") == 2
        assert len(status.tasks[0].restarts) == 1
        assert nothing_restarts(supervised_run)


def test_an_image_without_python_fails_at_once_and_the_field_for_it_named(tmp_path: Path, image: Built) -> None:
    with supervised(tmp_path, command=["true"], image=image.name, env={"PATH": "/nowhere"}) as supervised_run:
        status = supervised_run.wait_for_end()
        assert status.state is State.FAILED
        assert "its image has no python3" in status.reason
        assert "`supervise: false`" in status.tasks[0].remedy
        assert nothing_restarts(supervised_run)


def test_a_task_that_may_not_be_started_again_is_not(tmp_path: Path) -> None:
    with supervised(tmp_path, **SLEEPS, limits={"max_restarts": 0}) as supervised_run:
        docker("kill", supervised_run.run.container("chief"))
        status = supervised_run.wait_for_end()
        assert (status.state, status.reason[:28]) == (State.FAILED, "chief failed on attempt 1 (e")
        assert status.tasks[0].exit_code == 137
        assert nothing_restarts(supervised_run)


def test_a_container_that_somebody_removes_is_the_end_of_the_run(tmp_path: Path) -> None:
    with supervised(tmp_path, **SLEEPS, strategy="multi_worker_mirrored", roles={"worker": {"replicas": 2}}) as supervised_run:
        docker("rm", "--force", supervised_run.run.container("worker-1"))
        status = supervised_run.wait_for_end()
        assert (status.state, status.reason) == (State.FAILED, "the container of worker-1 was removed")
        assert supervised_run.run.tasks() == ["worker-0"]
        assert nothing_restarts(supervised_run)


def test_servers_are_let_go_when_the_work_is_done(tmp_path: Path) -> None:
    program = ["sh", "-c", 'case $TF_CONFIG in *\'"type": "chief"\'*|*\'"type":"chief"\'*) echo done ;; *) exec sleep 1000 ;; esac']
    with supervised(tmp_path, **SERVERS, command=program) as supervised_run:
        status = supervised_run.wait_for_end()
        assert (status.state, status.reason) == (State.SUCCEEDED, "")
        # Whether their parents have heard of the end or the supervisor has stopped them first.
        assert {task.name: task.state for task in status.tasks} == dict.fromkeys(("chief", "worker-0", "ps-0"), State.SUCCEEDED)
        assert nothing_restarts(supervised_run)


def test_a_launcher_in_the_foreground_that_is_gone_takes_its_run_along(tmp_path: Path) -> None:
    with supervised(tmp_path, **SLEEPS) as supervised_run:
        supervised_run.request_stop(None)
        status = supervised_run.wait_for_end()
        assert (status.state, status.reason) == (State.STOPPED, "the launcher that ran it in the foreground is gone")
        assert objects_of(supervised_run.run.name) == NOTHING | {"volumes": [f"{supervised_run.run.name}_run"]}


def test_who_asks_twice_does_not_wait_for_what_does_not_stop(tmp_path: Path) -> None:
    program = ["python", "-c", "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(1000)"]
    with supervised(tmp_path, command=program, limits={"grace_period": "100s"}) as supervised_run:
        supervised_run.run.until("the program to run", lambda: "up" in docker("logs", supervised_run.run.container("chief")), 30)
        supervised_run.request_stop()
        supervised_run.request_stop()
        status = supervised_run.wait_for_end()  # within less than the grace period
        assert (status.state, status.tasks[0].reason) == (State.STOPPED, "killed")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # the lost connections
def test_an_engine_that_stays_away_is_not_waited_for_and_its_run_goes_on(
    tmp_path: Path, by_relay: dict[str, str], relay: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_containers, "_ENGINE_AWAY_TIMEOUT", 2.0)
    with contextlib.ExitStack() as until_cleaned:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("DOCKER_HOST", by_relay["DOCKER_HOST"])
            supervised_run = until_cleaned.enter_context(supervised(tmp_path, **SLEEPS))
        relay.kill()
        status = supervised_run.wait_for_end()
        assert (status.state, status.reason[:32]) == (State.INTERRUPTED, "the engine has not answered for ")
        assert supervised_run.run.inspect("chief")["State"]["Running"]


def test_a_run_whose_directory_is_removed_is_stopped_and_none_starts_beside_it(tmp_path: Path) -> None:
    with started({"name": "removed", **SLEEPS, "limits": {"grace_period": "1s"}}, tmp_path) as run:
        supervisor = run.supervisor().pid
        os.kill(supervisor, signal.SIGSTOP)  # it notices nothing meanwhile
        try:
            shutil.rmtree(run.runs / ".docker" / run.name)
            again = launch("up", str(tmp_path / f"{run.name}.yaml"), runs=run.runs)
            assert (again.returncode, f"{run.name} runs already" in again.stderr) == (2, True), again.stderr
        finally:
            os.kill(supervisor, signal.SIGCONT)
        run.until("the containers to go", lambda: not objects_of(run.name)["containers"])
        assert not (run.runs / ".docker" / run.name).exists()


def test_who_follows_a_run_is_told_that_its_directory_was_removed(tmp_path: Path) -> None:
    with supervised(tmp_path, **SLEEPS, limits={"grace_period": "1s"}) as supervised_run:
        name, backend = supervised_run.run.name, DockerBackend(supervised_run.run.runs)
        backend._supervised.hold_lifeline(name, os.open(os.devnull, os.O_RDONLY))
        shutil.rmtree(supervised_run.prepared.paths.run_dir)
        supervised_run.run.until("the run to end", lambda: backend.status(name).state in ENDED, seen=lambda: backend.status(name))
        supervised_run.thread.join(60)
        for volume in [*supervised_run.prepared.engine.volumes(name), None]:  # of which `up` goes on, or nothing
            status = backend.status(name)
            assert status.state is State.FAILED
            told, goes_on = (
                f"{supervised_run.prepared.paths.run_dir} was removed while the run ran",
                "`up` continues from its last checkpoint",
            )
            assert (status.reason[: len(told)], goes_on in status.reason) == (told, volume is not None)
            if volume is not None:
                volume.remove()
        backend._supervised._close_lifeline(name)


def test_a_supervisor_that_lost_its_directory_lets_a_run_alone_that_was_started_in_its_place(tmp_path: Path) -> None:
    with supervised(tmp_path, **SLEEPS, limits={"grace_period": "1s"}) as supervised_run:
        before, paths, text = (
            supervised_run.run.inspect("chief")["Id"],
            supervised_run.prepared.paths,
            supervised_run.prepared.file.read_text(),
        )
        watch = supervised_run.containers.watch
        assert watch is not None
        close, reached, goes_on = watch.close, threading.Event(), threading.Event()

        def held(timeout: float) -> None:
            close(timeout)
            reached.set()
            goes_on.wait(60)

        watch.close = held  # type: ignore[method-assign]
        shutil.rmtree(paths.run_dir)
        assert reached.wait(60)
        paths.tasks.mkdir(parents=True)
        paths.lock.touch()
        supervised_run.prepared.file.write_text(text)
        second = run_containers.RunContainers(paths, supervised_run.prepared.plan, supervised_run.prepared.engine)
        second.start()
        goes_on.set()
        supervised_run.thread.join(60)
        supervised_run.containers.tasks[0].kill()
        after = supervised_run.run.inspect("chief")
        assert (after["Id"] != before, after["State"]["Running"]) == (True, True)
        assert second.watch is not None
        second.watch.close(1)
