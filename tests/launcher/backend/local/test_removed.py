"""A run whose directory is removed while it runs: its tasks end, the directory stays removed, and no second run starts meanwhile."""

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

# Notices that its directory is removed, and can save to a new one.
SAVES = """
from pathlib import Path
directory = Path(os.environ['RUN_DIR'])
def wait(exists):
    while directory.exists() is not exists:
        time.sleep(0.005)
def save():
    (directory / 'checkpoints').mkdir(parents=True, exist_ok=True)
    (directory / 'checkpoints' / 'ckpt-1.index').write_text('saved')
    (directory / 'run.json').write_text('{}')
print('up', flush=True)
wait(False)
(directory.parent.parent / 'noticed').touch()
"""
TASKS = {"chief": FOREVER, "ps-0": FOREVER}


def start(runs: Runs, *, detach: bool = True) -> None:
    runs.start(TASKS, detach=detach)
    runs.until_line("up")
    runs.until_line("up", task="ps-0")
    assert len(runs.processes()) == 2


def has_ended(runs: Runs) -> bool:
    return not runs.processes()


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Suspend a process for a `with` block, and kill it at the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


def test_its_tasks_end_and_the_directory_stays_removed(runs: Runs) -> None:
    start(runs)
    supervisor = runs.supervisor()
    shutil.rmtree(runs.paths().run_dir)
    runs.until("the tasks to end", lambda: has_ended(runs))
    runs.until("the supervisor to end", lambda: process_identity.identify(supervisor) is None)
    assert not runs.paths().run_dir.exists()
    assert runs.backend.runs() == []
    with pytest.raises(UsageError, match="there is no run run"):
        runs.backend.status("run")


def test_a_run_that_is_started_in_its_place_waits_for_the_end_and_is_not_disturbed(runs: Runs) -> None:
    start(runs)
    before, supervisor = set(runs.processes()), runs.supervisor()
    shutil.rmtree(runs.paths().run_dir)
    start(runs)
    assert not before & set(runs.processes())
    runs.until("the first supervisor to end", lambda: process_identity.identify(supervisor) is None)
    assert runs.backend.status("run").state == State.RUNNING
    assert runs.supervisor() != supervisor
    runs.backend.stop("run")
    assert has_ended(runs)


@pytest.mark.parametrize("detach", [True, False], ids=["in the background", "in the foreground"])
def test_no_run_starts_while_tasks_remain_and_a_stop_ends_them(
    detach: bool, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(runs, detach=detach)
    for module in (backend, supervised_runs):
        monkeypatch.setattr(module, "KILL_TIMEOUT", 0.3)
    with suspended(runs.supervisor()):
        shutil.rmtree(runs.paths().run_dir)
        with pytest.raises(UsageError, match=r"tasks of an earlier run run in .* still run: process \d+, \d+"):
            runs.start(TASKS)
        status = runs.backend.status("run")
        assert status.state == State.INTERRUPTED
        assert "was removed while the run ran; still running: process" in status.reason
        shutil.rmtree(runs.paths().run_dir)  # created by that start
        assert main.run(["down", "run", "--runs", str(runs.directory)]) == 0
        assert has_ended(runs)
        assert capsys.readouterr().out == "run was interrupted and does not run; ended 2 processes\n"


def test_a_checkpoint_that_is_saved_before_the_end_does_not_restore_the_directory(runs: Runs) -> None:
    runs.start({"chief": SAVES + "save()\ntime.sleep(3600)"})
    runs.until_line("up")
    supervisor, run_dir = runs.supervisor(), runs.paths().run_dir
    os.kill(supervisor, signal.SIGSTOP)
    shutil.rmtree(run_dir)
    runs.until("the chief to save", (run_dir / "run.json").exists)
    os.kill(supervisor, signal.SIGCONT)
    runs.until("the supervisor to end", lambda: process_identity.identify(supervisor) is None)
    assert not run_dir.exists()


def test_a_checkpoint_that_is_saved_into_the_directory_of_a_new_run_is_removed(runs: Runs) -> None:
    runs.start({"chief": SAVES + "wait(True)\nsave()\ntime.sleep(3600)"})
    runs.until_line("up")
    supervisor, run_dir = runs.supervisor(), runs.paths().run_dir
    os.kill(supervisor, signal.SIGSTOP)
    shutil.rmtree(run_dir)
    runs.until("the chief to notice that", (runs.directory.parent / "noticed").exists)
    starting = threading.Thread(target=runs.start, args=(TASKS,))
    starting.start()
    runs.until("the chief to save", (run_dir / "run.json").exists)
    os.kill(supervisor, signal.SIGCONT)
    starting.join(60)
    assert sorted(path.name for path in run_dir.iterdir()) == ["launcher"]
    assert runs.backend.status("run").state == State.RUNNING
    runs.backend.stop("run", now=True)


def test_earlier_files_in_its_place_stay(runs: Runs) -> None:
    paths = runs.paths()
    (paths.run_dir / "checkpoints").mkdir(parents=True)
    old = paths.run_dir / "checkpoints" / "ckpt-9.index"
    old.touch()
    os.utime(old, (1, 1))
    orphans.remove_recreated(paths, since=2)
    assert old.exists()


def test_the_launcher_that_follows_it_gets_the_reason(runs: Runs) -> None:
    start(runs, detach=False)
    shutil.rmtree(runs.paths().run_dir)
    status = runs.backend.status("run")
    assert (status.state, has_ended(runs)) == (State.FAILED, True)
    assert status.reason == f"{runs.paths().run_dir} was removed while the run ran; its tasks were killed"


def test_a_run_whose_state_cannot_be_read_is_listed_with_its_directory_and_output(runs: Runs) -> None:
    runs.start({"chief": "print('output'); open(os.environ['RUN_DIR'] + '/result', 'w').close()"})
    runs.wait()
    paths = runs.paths()
    runs.until("its supervisor to end", lambda: not locks.held(paths.lock))
    intact = paths.state.read_text()
    for damaged in (
        intact[:200],
        intact.replace('"version":1', '"version":99', 1),
        intact.replace('"processes":{', '"processes":null,"x":{', 1),
    ):
        assert damaged != intact
        paths.state.write_text(damaged)
        (status,) = runs.backend.runs()
        assert (status.name, status.state) == ("run", State.UNKNOWN)
        assert status.reason.startswith(f"{paths.state} cannot be read")
        assert status.local_run_dir == paths.run_dir
        assert [task.name for task in status.tasks] == ["chief"]
        assert runs.backend.stop("run") == {}
    assert runs.lines() == ["output"]
    runs.backend.delete("run")
    assert not paths.run_dir.exists()


def test_a_directory_with_other_files_is_not_used_for_a_run(runs: Runs) -> None:
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
def test_directories_that_are_no_runs_or_not_readable_are_not_listed(runs: Runs) -> None:
    runs.start({"chief": "pass"})
    runs.wait()
    shutil.copytree(runs.directory / "run", runs.directory / "A copy")
    (unreadable := runs.directory / "unreadable").mkdir(mode=0)
    assert [status.name for status in runs.backend.runs()] == ["run"]
    assert runs.backend.status("unreadable").state == State.UNKNOWN
    unreadable.chmod(0o700)
