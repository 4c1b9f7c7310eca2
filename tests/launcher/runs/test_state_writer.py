"""The times at which the state is written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.runs import state_file
from launcher.runs.state_file import Snapshot
from launcher.runs.state_writer import StateWriter
from launcher.runs.status import RunStatus, State


@pytest.fixture
def steps() -> Callable[[], Snapshot]:
    """Return a function that returns a snapshot of a run, one step further each time."""
    count = iter(range(1000))
    return lambda: Snapshot(RunStatus("run", "local", State.RUNNING, step=next(count)), "here")


def test_progress_is_written_a_few_times_a_second_and_a_changed_state_at_once(tmp_path: Path, steps: Callable[[], Snapshot]) -> None:
    now = [1000.0]
    writer = StateWriter(tmp_path / "state.json", steps, lambda: now[0])
    writer.save()
    write_times = []
    for _ in range(100):  # a second
        now[0] += 0.01
        writer.changed(at_once=False)
        writer.save_if_due()
        if writer.due is None:
            write_times.append(now[0])
    assert len(write_times) in {4, 5}
    writer.changed(at_once=False)
    writer.changed()
    assert writer.due is not None
    assert writer.due - now[0] <= 0.02
    now[0] += 0.02
    writer.save_if_due()
    assert writer.due is None


def test_nothing_is_due_once_the_directory_was_removed(tmp_path: Path, steps: Callable[[], Snapshot]) -> None:
    writer = StateWriter(tmp_path / "state.json", steps)
    writer.changed()
    writer.disable()
    writer.changed()
    assert writer.due is None  # else the supervisor's loop would not wait


def test_space_for_the_last_state_is_reserved_and_released(tmp_path: Path, steps: Callable[[], Snapshot]) -> None:
    writer = StateWriter(tmp_path / "state.json", steps)
    writer.reserve()
    assert (tmp_path / "reserve").stat().st_size >= 64 * 1024
    writer.save_final()
    assert state_file.read(tmp_path / "state.json") is not None
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_state_that_cannot_be_written_is_tried_again(tmp_path: Path, steps: Callable[[], Snapshot]) -> None:
    writer = StateWriter(tmp_path / "missing" / "state.json", steps)
    assert not writer.save()
    assert writer.due is not None
    (tmp_path / "missing").mkdir()
    assert writer.save()
    assert writer.due is None
