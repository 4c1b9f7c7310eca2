"""Reports of runs on this machine: their status, logs, data, and errors of commands."""

import dataclasses
import json
from pathlib import Path

import pytest

from launcher.backend.model import PlannedRun
from launcher.errors import LauncherError, UsageError
from launcher.runs import locks
from launcher.runs.status import State
from tests.launcher.backend.local.running import FOREVER, Runs, event


def test_progress_events_show_in_the_status(runs: Runs) -> None:
    metrics = {"accuracy": 0.5}
    chief = (
        event("progress", task="chief", step=40, steps=100, loss=0.5, metrics=metrics, examples_per_second=200.0, seconds_per_step=0.1)
        + event("progress", task="worker-0", step=40, steps=100, local_step=19, examples_per_second=90.0)
        + event("checkpoint", task="chief", step=30, path="checkpoints/ckpt-30", seconds=0.1)
        + event("evaluated", task="chief", step=30, metrics={"accuracy": 0.9}, seconds=1)
        + "time.sleep(3600)"
    )
    runs.start({"chief": chief, "worker-0": FOREVER})
    runs.until("the metrics", lambda: runs.backend.status("run").metrics == {"accuracy": 0.9})
    status = runs.backend.status("run")
    assert (status.step, status.steps, status.loss) == (40, 100, 0.5)
    assert status.eta == pytest.approx(6)
    assert (status.checkpoint, status.checkpoint_step) == (str(runs.paths().run_dir / "checkpoints" / "ckpt-30"), 30)
    worker = status.tasks[1]
    assert (worker.step, worker.local_step, worker.examples_per_second) == (40, 19, 90.0)
    runs.backend.stop("run")
    stopped = runs.backend.status("run")
    assert stopped.reason == "asked to stop; the last checkpoint is of step 30"
    assert stopped.eta is None


def test_output_that_only_looks_like_events_is_no_error(runs: Runs) -> None:
    written = (
        '{"event":"progress","step":"x","metrics":3}',
        '{"event":"progress"',
        '{"event":{"of":"another program"}}',
        '{"event":["a"]}',
        '{"event":"progress","loss":1' + 400 * "0" + "}",
        r'{"event":"restarting","cause":"half of \ud83d"}',
    )
    runs.start({"chief": f"for line in {written!r}: print(line)"})
    ended = runs.wait()
    assert (ended.state, ended.step) == (State.SUCCEEDED, None)
    assert tuple(runs.lines()) == written


def test_much_output_is_stored_completely(runs: Runs) -> None:
    runs.start({"chief": "for i in range(30_000): print('line', i, 70 * 'x')"})  # 2.4 MB
    runs.wait()
    assert runs.lines() == [f"line {number} {70 * 'x'}" for number in range(30_000)]


def test_logs_are_followed_to_the_end_in_order_of_time(runs: Runs, tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")

    def after(marker: str) -> str:
        return f"while not os.path.exists({marker!r}): time.sleep(0.01)\ntime.sleep(0.3)\n"

    chief = f"print('a'); open({first!r}, 'w').close()\n{after(second)}print('c')"
    worker = f"{after(first)}print('b'); open({second!r}, 'w').close(); time.sleep(3600)"
    runs.start({"chief": chief, "worker-0": worker}, grace_period=0.2)
    followed = [(line.task, line.text) for line in runs.backend.logs("run", tasks=[], follow=True) if "---" not in line.text]
    assert followed == [("chief", "a"), ("worker-0", "b"), ("chief", "c")]
    assert runs.backend.status("run").state == State.SUCCEEDED


def run_to_end(runs: Runs, program: str) -> None:
    """Run a program as the chief, and wait until its supervisor has ended, too."""
    runs.start({"chief": program})
    runs.wait()
    locks.wait_released(runs.paths().lock, timeout=5)


def test_logs_of_earlier_starts_are_shown(runs: Runs) -> None:
    for text in ("first", "second"):
        run_to_end(runs, f"print('{text}')")
    texts = [line.text for line in runs.backend.logs("run", tasks=[], follow=False)]
    assert texts == ["--- launcher: run run starts", "first", "--- launcher: run run starts", "second"]


def test_wrong_names_are_errors(runs: Runs) -> None:
    with pytest.raises(UsageError, match="there is no run mnist"):
        runs.backend.status("mnist")
    with pytest.raises(UsageError, match="cannot be the name of a run"):
        runs.backend.delete("../mnist")
    runs.start({"chief": "pass"})
    with pytest.raises(UsageError) as error:
        runs.backend.logs("run", tasks=["worker-3"], follow=False)
    assert "its tasks are chief" in error.value.remedy
    runs.wait()


def test_data_is_deleted_once_the_run_has_ended(runs: Runs) -> None:
    run_to_end(runs, "pass")
    runs.backend.delete("run")
    assert not (runs.directory / "run").exists()
    assert runs.backend.runs() == []


def test_deleting_a_linked_run_deletes_the_link_and_the_directory(runs: Runs, tmp_path: Path) -> None:
    run_to_end(runs, "pass")
    (runs.directory / "run").rename(tmp_path / "elsewhere")
    (runs.directory / "run").symlink_to(tmp_path / "elsewhere")
    runs.backend.delete("run")
    assert not (tmp_path / "elsewhere").exists()
    assert not (runs.directory / "run").is_symlink()


def test_a_missing_program_is_an_error_of_the_start(runs: Runs) -> None:
    plan = runs.plan({"chief": "pass", "worker-0": "pass"})
    broken = dataclasses.replace(plan, tasks=(plan.tasks[0], dataclasses.replace(plan.tasks[1], command=("/no/such/program",))))
    with pytest.raises(LauncherError, match="/no/such/program") as error:
        runs.backend.start(PlannedRun(broken, {}))
    assert error.value.remedy
    assert runs.backend.status("run").state == State.FAILED
    assert runs.processes() == []
    assert not runs.paths().spec.exists()


def test_a_file_in_place_of_the_directory_of_runs_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    runs = Runs(tmp_path / "runs")
    with pytest.raises(LauncherError, match="runs is a file, not a directory") as error:
        runs.start({"chief": "pass"})
    assert error.value.remedy == "name a directory for the runs: --runs DIR"


def test_the_spec_is_stored_as_it_was_started(runs: Runs) -> None:
    runs.start({"chief": "pass"})
    assert json.loads(runs.paths().spec.read_text()) == {"name": "run"}
    runs.wait()
