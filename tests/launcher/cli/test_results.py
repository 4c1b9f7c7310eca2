"""The summary of a run that has ended, and the command that it suggests next."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from launcher.backend.model import Backend
from launcher.cli import measures
from launcher.cli.results import show_summary
from launcher.runs.status import EndedAttempt, LogLine, RunStatus, State, TaskStatus
from tests.golden_messages import Golden

FAILED = TaskStatus("chief", State.FAILED, exit_code=1)
ERROR = "ValueError: no such file (/home/ada/net.py:7)"


class Logs:
    """A backend of which only the logs are read."""

    def logs(self, name: str, **options: Any) -> Iterator[LogLine]:
        """Yield a traceback."""
        del name, options
        yield from (LogLine(0.0, "chief", line) for line in ("Traceback (most recent call last):", "    ^^^^", ERROR))


def facts_of(status: RunStatus) -> dict[str, str]:
    """Return the facts of the summary by their names."""
    console = Console(file=io.StringIO(), width=500)
    show_summary(console, cast("Backend", Logs()), status, Path("runs"), ("net.yaml",))
    lines = console.file.getvalue().splitlines()[2:]  # type: ignore[attr-defined]
    return {name: value.strip() for name, _, value in (line.strip().partition("  ") for line in lines)}


def run(state: State, *tasks: TaskStatus, **fields: Any) -> RunStatus:
    return RunStatus("net", "local", state, tasks=tasks, **fields)


@pytest.mark.parametrize(
    "status, label",
    [
        (run(State.STOPPED, step=5, steps=9), "continue with"),
        (run(State.STOPPED, checkpoint="ckpt-5"), "continue with"),
        (run(State.INTERRUPTED, step=5, steps=9), "continue with"),
        (run(State.STOPPED), "run it again"),
        (run(State.STOPPED, step=0, steps=9), "run it again"),
        (run(State.STOPPED, step=9, steps=9), "run it again"),
        (run(State.FAILED, FAILED, step=5, steps=9), "after a fix"),
        (run(State.FAILED, TaskStatus("chief", State.FAILED, exit_code=137), step=5, steps=9), "run it again"),
        (run(State.FAILED, reason="not done within the deadline of 5 s"), "run it again"),
    ],
)
def test_the_next_command_is_labelled_as_continuing_only_if_it_continues(status: RunStatus, label: str) -> None:
    facts = facts_of(status)
    assert facts[label] == "launcher up net.yaml"
    assert len({"continue with", "run it again", "after a fix"} & set(facts)) == 1


def test_an_error_is_shown_once(golden: Golden) -> None:
    task = TaskStatus("chief", State.FAILED, exit_code=1, restarts=(EndedAttempt(0.0, 1, 1, f"failed with exit code 1: {ERROR}"),))
    reason = f"chief failed on attempt 2 (exit code 1): failed with exit code 1: {ERROR}"
    facts = facts_of(run(State.FAILED, task, reason=reason, reason_task="chief"))
    assert (facts["reason"], facts.get("task"), facts.get("last error")) == (reason, None, None)
    golden(facts["restarts"])
    facts = facts_of(run(State.FAILED, task, reason="not done within the deadline of 5 s"))
    assert (facts["reason"], facts["last error"]) == ("not done within the deadline of 5 s", ERROR)
    golden(facts["task"])


def test_of_several_failed_tasks_the_first_whose_end_is_known_is_shown() -> None:
    tasks = [TaskStatus(f"worker-{index}", State.FAILED, exit_code=1, ended=ended) for index, ended in enumerate((None, 7.0, 5.0))]
    assert facts_of(run(State.FAILED, *tasks))["task"].startswith("worker-2, attempt 1, ")


def test_a_remedy_is_shown_unless_the_reason_has_it() -> None:
    task = TaskStatus("chief", State.FAILED, exit_code=137, remedy="raise `roles.chief.memory`")
    assert facts_of(run(State.FAILED, task, reason="not done within 5 s"))["remedy"] == "raise `roles.chief.memory`"
    with_remedy = run(State.FAILED, task, reason="chief failed; raise `roles.chief.memory`", reason_task="chief")
    assert "remedy" not in facts_of(with_remedy)


def test_training_and_evaluation_are_shown_separately() -> None:
    trained = run(State.RUNNING, step=5, steps=9, loss=0.5, metrics={"accuracy": 1.0}, training_metrics={"accuracy": 1.0})
    assert (measures.training(trained), measures.evaluation(trained)) == ("loss 0.5  accuracy 1", "")
    assert measures.metrics_cell(trained) == "training: accuracy 1"
    fields = {"metrics": {"accuracy": 0.9}, "metrics_of": "evaluation", "evaluated_step": 4}
    evaluated = run(State.RUNNING, step=5, steps=9, loss=0.5, training_metrics={"accuracy": 1.0}, **fields)
    assert (measures.training(evaluated), measures.evaluation(evaluated)) == ("loss 0.5  accuracy 1", "accuracy 0.9  after step 4")
    assert measures.metrics_cell(evaluated) == "evaluation: accuracy 0.9"


@pytest.mark.parametrize(
    "fields, steps, cell",
    [
        ({}, "", ""),
        ({"step": 1500}, "1,500", "1,500"),
        ({"step": 1500, "steps": 3000}, "1,500 of 3,000 (50%)", "1,500/3,000"),
        ({"step": 1500, "steps": 3000, "ended_early": "no better"}, "1,500, of 3,000 at most", "1,500"),
        ({"step": 3000, "steps": 3000, "ended_early": "no better"}, "3,000 of 3,000 (100%)", "3,000/3,000"),
    ],
)
def test_a_run_that_ended_early_shows_no_percentage(fields: dict[str, Any], steps: str, cell: str) -> None:
    status = run(State.SUCCEEDED, **fields)
    assert (measures.steps(status), measures.steps_cell(status)) == (steps, cell)
