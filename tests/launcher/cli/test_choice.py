"""The run that a name means if several backends have a run of that name: real runs in the directories of two backends."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from launcher.backend.local.backend import LocalBackend
from launcher.backend.model import Backend, ClusterRef
from launcher.cli.backends import _choose, open_run
from launcher.cli.run_lookup import backends_of, find_run, run_names, runs_directory
from launcher.errors import LauncherError, UsageError
from launcher.runs.status import RunStatus, State
from tests.golden_messages import Golden
from tests.launcher.backend.local.running import FOREVER, Runs
from tests.launcher.cli.conftest import Cli


def test_an_engine_that_does_not_answer_is_an_error_if_it_was_named_and_else_a_note(cli: Cli, tmp_path: Path) -> None:
    unreachable = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
    runs_directory(tmp_path / "runs", "docker").mkdir(parents=True)
    named, unnamed = cli("ls", "--on", "docker", "--json", env=unreachable), cli("ls", "--json", env=unreachable)
    assert (named.returncode, named.stdout) == (1, "")
    assert (unnamed.returncode, unnamed.stdout) == (0, "[]\n")
    assert "the runs on docker cannot be listed" in unnamed.stderr


@pytest.fixture
def runs_on(tmp_path: Path) -> Iterator[dict[str, Runs]]:
    both = {on: Runs(runs_directory(tmp_path, on)) for on in ("local", "docker")}
    yield both
    for on, runs in both.items():
        if on in backends_of(tmp_path, "run"):
            runs.backend.stop("run", now=True)


def choose(runs_on: dict[str, Runs], *, unique: bool = False) -> str:
    backends: dict[str, Backend] = {on: LocalBackend(runs.directory) for on, runs in runs_on.items()}
    chosen = _choose("run", backends, unique=unique)
    return next(on for on, backend in backends.items() if backend is chosen)


def test_a_live_run_is_preferred_to_one_that_has_ended_and_then_the_newest(
    runs_on: dict[str, Runs], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs_on["local"].start({"chief": FOREVER})
    runs_on["docker"].start({"chief": "print('done')"})
    runs_on["docker"].wait()
    assert backends_of(tmp_path, "run") == ["local", "docker"]
    assert run_names(tmp_path) == ["run"]
    assert choose(runs_on, unique=True) == "local"
    message = "run is on local (running), on docker (succeeded): using the one on local; --on chooses another\n"
    assert capsys.readouterr().err == message
    runs_on["local"].backend.stop("run", now=True)
    assert choose(runs_on, unique=True) == "docker"


def test_of_several_active_runs_none_is_stopped_and_the_newest_is_shown(runs_on: dict[str, Runs], golden: Golden) -> None:
    for on in ("docker", "local"):
        runs_on[on].start({"chief": FOREVER})
    assert choose(runs_on) == "local"
    with pytest.raises(UsageError, match="run runs on local and on docker") as refused:
        choose(runs_on, unique=True)
    golden(refused.value.remedy)


class Unreachable(LocalBackend):
    """Stands for a cluster that does not answer any more, and had a run."""

    def status(self, name: str) -> RunStatus:
        """Raise as for a server that does not answer."""
        raise LauncherError(f"asking about {name}: the cluster does not answer", "")


def test_a_live_run_is_stopped_though_a_cluster_does_not_answer_and_one_that_has_ended_is_not(
    runs_on: dict[str, Runs], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = runs_on["local"]
    local.start({"chief": FOREVER})
    backends: dict[str, Backend] = {"local": local.backend, "kubernetes": Unreachable(tmp_path)}
    assert _choose("run", backends, unique=True) is local.backend
    states = "on local (running), on kubernetes (state not known: asking about run: the cluster does not answer)"
    assert capsys.readouterr().err == f"run is {states}: using the one on local; --on chooses another\n"
    local.backend.stop("run", now=True)
    assert _choose("run", backends, unique=False) is local.backend
    with pytest.raises(UsageError, match="the state of run on kubernetes is not known: asking about run: the cluster does not answer"):
        _choose("run", backends, unique=True)


def test_without_a_name_noted_runs_of_clusters_count_only_if_there_is_no_local_run(runs_on: dict[str, Runs], tmp_path: Path) -> None:
    note = tmp_path / ".kubernetes" / "context" / "namespace" / "remote" / "place.json"
    note.parent.mkdir(parents=True)
    note.touch()
    assert run_names(tmp_path) == ["remote"]
    runs_on["local"].start({"chief": "print('done')"})
    runs_on["local"].wait()
    assert open_run(None, None, tmp_path, ClusterRef())[1] == "run"
    assert run_names(tmp_path) == ["remote", "run"]


@pytest.mark.parametrize("removed", [False, True])
def test_processes_of_an_interrupted_run_are_preferred_to_a_newer_run_that_has_ended(runs_on: dict[str, Runs], removed: bool) -> None:
    local = runs_on["local"]
    local.start({"chief": FOREVER})
    local.until_line("up")
    runs_on["docker"].start({"chief": "print('done')"})
    runs_on["docker"].wait()
    os.kill(local.supervisor(), signal.SIGKILL)
    local.until("the run to be interrupted", lambda: local.backend.status("run").state is State.INTERRUPTED)
    if removed:
        shutil.rmtree(local.paths().run_dir)
    assert choose(runs_on, unique=True) == "local"
    local.backend.stop("run", now=True)
    assert local.processes() == []
    assert choose(runs_on, unique=True) == "docker"


def test_without_a_name_the_runs_of_all_backends_count(runs_on: dict[str, Runs], tmp_path: Path, golden: Golden) -> None:
    runs_on["docker"].start({"chief": "print('done')"}, name="other")
    runs_on["docker"].wait("other")
    runs_on["local"].start({"chief": "print('done')"})
    runs_on["local"].wait()
    with pytest.raises(UsageError, match="there are 2 runs") as refused:
        open_run(None, None, tmp_path, ClusterRef())
    golden(refused.value.remedy)
    backend, name = open_run("run", None, tmp_path, ClusterRef())
    assert (name, backend.status(name).state) == ("run", State.SUCCEEDED)


def test_an_empty_name_is_not_the_only_run(runs_on: dict[str, Runs], tmp_path: Path) -> None:
    runs_on["local"].start({"chief": "print('done')"})
    assert open_run(None, None, tmp_path, ClusterRef())[1] == "run"
    with pytest.raises(UsageError, match="'' is not the name of a run"):
        open_run("", None, tmp_path, ClusterRef())


@pytest.mark.parametrize("on, place", [("kubernetes", "in the namespace"), ("local", "under here")])
def test_an_error_about_several_runs_says_where_the_backend_has_them(on: str, place: str) -> None:
    runs = [SimpleNamespace(name="one"), SimpleNamespace(name="other")]
    with pytest.raises(UsageError, match=f"there are 2 runs {place}"):
        find_run(None, cast("Backend", SimpleNamespace(runs=lambda: runs)), Path("here"), on)
    with pytest.raises(UsageError, match=f"there are no runs {place}") as refused:
        find_run(None, cast("Backend", SimpleNamespace(runs=list)), Path("here"), on)
    assert ("--on kubernetes" in refused.value.remedy, "--runs here" in refused.value.remedy) == (on == "kubernetes", True)
