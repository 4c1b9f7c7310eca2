"""What a second `up` of the same name does."""

from pathlib import Path

import pytest

from launcher.backend.model import RunStatus, State
from launcher.cli.rerun import Asked, Change, decide, move_aside
from launcher.errors import UsageError

RUNS = Path("runs")
NOTHING_ASKED = Asked(fresh=False, resume=False, may_prompt=False)
OTHER_LOSS: list[Change] = [("train.params.learning_rate", 0.1, 0.2)]


def run(state: State) -> RunStatus:
    return RunStatus(name="mnist", backend="local", state=state)


@pytest.mark.parametrize(
    "state, changes, asked, decision",
    [
        (State.STOPPED, [], NOTHING_ASKED, "resume"),
        (State.FAILED, [], NOTHING_ASKED, "resume"),
        (State.INTERRUPTED, [], NOTHING_ASKED, "resume"),
        (State.SUCCEEDED, [], NOTHING_ASKED, "complete"),
        (State.SUCCEEDED, [("train.steps", 100, 200)], NOTHING_ASKED, "resume"),
        (State.SUCCEEDED, [], Asked(fresh=True, resume=False, may_prompt=False), "fresh"),
        (State.STOPPED, OTHER_LOSS, Asked(fresh=False, resume=True, may_prompt=False), "resume"),
        (State.STOPPED, OTHER_LOSS, Asked(fresh=True, resume=False, may_prompt=False), "fresh"),
    ],
)
def test_what_is_clear_is_decided_without_asking(state: State, changes: list[Change], asked: Asked, decision: str) -> None:
    assert decide(run(state), changes, asked, RUNS) == decision


def test_nothing_there_is_started() -> None:
    assert decide(None, [], NOTHING_ASKED, RUNS) == "start"


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.RESTARTING])
@pytest.mark.parametrize("fresh", [True, False])
def test_what_runs_is_left_alone(state: State, fresh: bool) -> None:
    with pytest.raises(UsageError) as caught:
        decide(run(state), [], Asked(fresh=fresh, resume=False, may_prompt=True), RUNS)
    assert "launcher logs -f mnist" in caught.value.remedy
    assert "launcher down mnist" in caught.value.remedy


@pytest.mark.parametrize("changes", [OTHER_LOSS, [("train.steps", 200, 100)], [("train.steps", 100, 200), *OTHER_LOSS]])
def test_a_changed_spec_is_shown_and_asked_about(changes: list[Change], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError) as caught:
        decide(run(State.STOPPED), changes, NOTHING_ASKED, RUNS)
    assert caught.value.exit_code == 2
    assert "--resume" in caught.value.remedy
    assert "--fresh" in caught.value.remedy
    table = capsys.readouterr().err
    for path, old, new in changes:
        assert f"{path}" in table
        assert f"{old}" in table
        assert f"{new}" in table


def test_the_old_run_is_moved_aside_whole(tmp_path: Path) -> None:
    (tmp_path / "mnist" / "checkpoints").mkdir(parents=True)
    (tmp_path / "mnist" / "checkpoints" / "mine").write_text("precious")
    first = move_aside(tmp_path, "mnist")
    assert not (tmp_path / "mnist").exists()
    assert (first / "checkpoints" / "mine").read_text() == "precious"
    (tmp_path / "mnist").mkdir()
    assert move_aside(tmp_path, "mnist") != first
