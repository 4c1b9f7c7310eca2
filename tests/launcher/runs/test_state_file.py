"""The state file: a state that was written is read back, and any other content is no state."""

import dataclasses
import json
from pathlib import Path

import pytest

from launcher import files
from launcher.runs import state_file
from launcher.runs.process_identity import Identity
from launcher.runs.state_file import Snapshot
from launcher.runs.status import EndedAttempt, RunStatus, SaveFailure, State, TaskStatus

SNAPSHOT = Snapshot(
    status=RunStatus(
        name="digits",
        backend="local",
        state=State.RUNNING,
        metrics={"accuracy": 0.5},
        save_failed=SaveFailure("/runs/digits/checkpoints", "No space left on device", since=1.0),
        notified=("failed: sent by webhook",),
        tasks=(TaskStatus("chief", State.RESTARTING, restarts=(EndedAttempt(1.5, 1, None, "lost"),)),),
    ),
    host="here",
    supervisor=Identity(7, "boot:1"),
    processes={"chief": Identity(8, "boot:2")},
)


def test_a_written_state_is_read_back(tmp_path: Path) -> None:
    state_file.write(tmp_path / "state.json", SNAPSHOT)
    assert state_file.read(tmp_path / "state.json") == SNAPSHOT
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 99}', '{"version": 1}', '{"version": 1, "status": {"state": "odd"}}'])
def test_any_other_content_is_no_state(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    assert state_file.read(path) is None


def test_a_state_of_a_later_version_with_other_fields_is_no_state(tmp_path: Path) -> None:
    document = {"version": 1, **json.loads(json.dumps(dataclasses.asdict(SNAPSHOT))), "more": 1}
    (tmp_path / "state.json").write_text(json.dumps(document))
    assert state_file.read(tmp_path / "state.json") is None


def test_a_write_that_fails_leaves_the_old_state_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state_file.write(path, SNAPSHOT)
    with pytest.raises(TypeError):
        files.write_json(path, {"not json": object()})
    assert state_file.read(path) == SNAPSHOT
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
