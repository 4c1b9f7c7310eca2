"""A run whose directory is removed while it runs: its tasks end, nothing comes back, and no second run starts beside it."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from launcher.backend.local import backend
from launcher.cli import main
from launcher.errors import UsageError
from launcher.runs import locks, orphans, process_identity, supervised_runs
from launcher.runs.status import State
from tests.launcher.backend.local.running import FOREVER, Runs

# Sees that its directory is gone, and can save in its place.
SAVES = """
from pathlib import Path
directory = Path(os.environ['RUN_DIR'])
def wait(there):
    while directory.exists() is not there:
        time.sleep(0.005)
def save():
    (directory / 'checkpoints').mkdir(parents=True, exist_ok=True)
    (directory / 'checkpoints' / 'ckpt-1.index').write_text('saved')
    (directory / 'run.json').write_text('{}')
print('up', flush=True)
wait(False)
(directory.parent.parent / 'gone').touch()
"""
TASKS = {"chief": FOREVER, "ps-0": FOREVER}


def up(runs: Runs, *, detach: bool = True) -> None:
    runs.start(TASKS, detach=detach)
    runs.until_line("up")
    runs.until_line("up", task="ps-0")
    assert len(runs.processes()) == 2


def gone(runs: Runs) -> bool:
    return not runs.processes()


@contextmanager
def unheard(pid: int) -> Iterator[None]:
    """Stop a process for a `with` block, so that it notices nothing; it is killed at the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


def test_its_tasks_end_and_nothing_comes_back(runs: Runs) -> None:
    up(runs)
    supervisor = runs.supervisor()
    shutil.rmtree(runs.paths().run_dir)
    runs.until("the tasks to end", lambda: gone(runs))
    runs.until("the supervisor to end", lambda: process_identity.identify(supervisor) is None)
    assert not runs.paths().run_dir.exists()
    assert runs.backend.runs() == []
    with pytest.raises(UsageError, match="there is no run run"):
        runs.backend.status("run")


def test_a_run_that_is_started_in_its_place_waits_for_the_end_and_is_let_alone(runs: Runs) -> None:
    up(runs)
    before, supervisor = set(runs.processes()), runs.supervisor()
    shutil.rmtree(runs.paths().run_dir)
    up(runs)
    assert not before & set(runs.processes())
    runs.until("the first supervisor to end", lambda: process_identity.identify(supervisor) is None)
    assert runs.backend.status("run").state == State.RUNNING
    assert runs.supervisor() != supervisor
    runs.backend.stop("run")
    assert gone(runs)


def test_no_run_starts_beside_tasks_that_stay_and_a_stop_ends_them(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    up(runs)
    for module in (backend, supervised_runs):
        monkeypatch.setattr(module, "KILL_TIMEOUT", 0.3)
    with unheard(runs.supervisor()):
        shutil.rmtree(runs.paths().run_dir)
        with pytest.raises(UsageError, match=r"tasks of an earlier run run in .* still run: process \d+, \d+"):
            runs.start(TASKS)
        status = runs.backend.status("run")
        assert status.state == State.INTERRUPTED
        assert "was removed while the run ran; still running: process" in status.reason
        shutil.rmtree(runs.paths().run_dir)  # which that start has made
        assert main.run(["down", "run", "--runs", str(runs.directory)]) == 0
        assert gone(runs)
        assert capsys.readouterr().out == "run was interrupted and does not run; ended 2 processes\n"


def test_a_checkpoint_that_is_saved_before_the_end_does_not_bring_it_back(runs: Runs) -> None:
    runs.start({"chief": SAVES + "save()\ntime.sleep(60)"})
    runs.until_line("up")
    supervisor, run_dir = runs.supervisor(), runs.paths().run_dir
    os.kill(supervisor, signal.SIGSTOP)
    shutil.rmtree(run_dir)
    runs.until("the chief to save", (run_dir / "run.json").exists)
    os.kill(supervisor, signal.SIGCONT)
    runs.until("the supervisor to end", lambda: process_identity.identify(supervisor) is None)
    assert not run_dir.exists()


def test_a_checkpoint_that_is_saved_into_the_directory_of_a_new_run_is_none_of_its(runs: Runs) -> None:
    runs.start({"chief": SAVES + "wait(True)\nsave()\ntime.sleep(60)"})
    runs.until_line("up")
    supervisor, run_dir = runs.supervisor(), runs.paths().run_dir
    os.kill(supervisor, signal.SIGSTOP)
    shutil.rmtree(run_dir)
    runs.until("the chief to see that", (runs.directory.parent / "gone").exists)
    starting = threading.Thread(target=runs.start, args=(TASKS,))
    starting.start()
    runs.until("the chief to save", (run_dir / "run.json").exists)
    os.kill(supervisor, signal.SIGCONT)
    starting.join(60)
    assert sorted(path.name for path in run_dir.iterdir()) == ["launcher"]
    assert runs.backend.status("run").state == State.RUNNING
    runs.backend.stop("run", now=True)


def test_what_somebody_else_put_in_its_place_stays(runs: Runs) -> None:
    paths = runs.paths()
    (paths.run_dir / "checkpoints").mkdir(parents=True)
    old = paths.run_dir / "checkpoints" / "ckpt-9.index"
    old.touch()
    os.utime(old, (1, 1))
    orphans.remove_recreated(paths, since=2)
    assert old.exists()


def test_who_follows_it_is_told(runs: Runs) -> None:
    up(runs, detach=False)
    shutil.rmtree(runs.paths().run_dir)
    status = runs.backend.status("run")
    assert (status.state, gone(runs)) == (State.FAILED, True)
    assert status.reason == f"{runs.paths().run_dir} was removed while the run ran; its tasks were killed"


def test_a_run_whose_state_cannot_be_read_is_there_with_all_that_it_stored(runs: Runs) -> None:
    runs.start({"chief": "print('words'); open(os.environ['RUN_DIR'] + '/result', 'w').close()"})
    runs.wait()
    paths = runs.paths()
    runs.until("its supervisor to end", lambda: not locks.held(paths.lock))
    whole = paths.state.read_text()
    for damaged in (
        whole[:200],
        whole.replace('"version":1', '"version":99', 1),
        whole.replace('"processes":{', '"processes":null,"x":{', 1),
    ):
        assert damaged != whole
        paths.state.write_text(damaged)
        (status,) = runs.backend.runs()
        assert (status.name, status.state) == ("run", State.UNKNOWN)
        assert status.reason.startswith(f"{paths.state} cannot be read")
        assert status.directory == paths.run_dir
        assert [task.name for task in status.tasks] == ["chief"]
        assert runs.backend.stop("run") == {}
    assert runs.lines() == ["words"]
    runs.backend.delete("run")
    assert not paths.run_dir.exists()


def test_a_directory_with_files_of_others_becomes_no_runs(runs: Runs) -> None:
    directory = runs.paths().run_dir
    (directory / "checkpoints").mkdir(parents=True)
    (directory / "code.py").touch()
    with pytest.raises(UsageError, match=r"not of a run: code\.py"):
        runs.start({"chief": "pass"})
    assert {path.name for path in directory.iterdir()} == {"checkpoints", "code.py"}
    (directory / "code.py").unlink()
    (directory / "lost+found").mkdir()
    runs.start({"chief": "pass"})
    assert runs.wait().state == State.SUCCEEDED


@pytest.mark.usefixtures("without_dac_override")
def test_directories_that_are_no_runs_or_closed_are_not_listed(runs: Runs) -> None:
    runs.start({"chief": "pass"})
    runs.wait()
    shutil.copytree(runs.directory / "run", runs.directory / "A copy")
    (closed := runs.directory / "found").mkdir(mode=0)
    assert [status.name for status in runs.backend.runs()] == ["run"]
    assert runs.backend.status("found").state == State.UNKNOWN
    closed.chmod(0o700)
