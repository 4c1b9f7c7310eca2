"""The result of a run: its exit code, and its summary for people and for programs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from launcher import formats
from launcher.backend.model import Backend
from launcher.cli import measures
from launcher.cli.output_lines import LAUNCHER_NOTE, event_in
from launcher.cli.run_lookup import command, relative_path
from launcher.cli.tables import fact_lines
from launcher.cli.task_rows import MARKS
from launcher.errors import LauncherError
from launcher.plan import role_rules
from launcher.runs.reasons import LastError
from launcher.runs.status import EndedAttempt, RunStatus, State, TaskStatus
from trainer.events import finite
from trainer.exit_codes import SIGKILL_EXIT_CODE, ExitCode, describe

# The exit codes of `up` and `wait`; docs/cli.md has the same table.
EXIT_CODES: dict[State, int] = {
    State.SUCCEEDED: 0,
    State.FAILED: 1,
    State.INTERRUPTED: 1,
    State.UNKNOWN: 3,
    State.STOPPED: int(ExitCode.STOPPED),
}

_LAST_LINES = 200
# Exits that are no error of the task itself: a lost peer, a kill, a stop; None is not known.
_NO_OWN_ERROR = frozenset({None, int(ExitCode.PEER_LOST), int(ExitCode.STOPPED), SIGKILL_EXIT_CODE})


def summary(status: RunStatus, code: int) -> dict[str, Any]:
    """Return the summary event, the last one of `up --json` and `wait --json`."""
    fields: dict[str, Any] = {
        "event": "summary",
        "name": status.name,
        "state": status.state,
        "reason": status.reason,
        "exit_code": code,
        "step": status.step,
        "steps": status.steps,
        "loss": status.loss,
        "metrics": status.metrics,
        "metrics_of": status.metrics_of,
        "ended_early": status.ended_early,
        "seconds": _seconds(status),
        "examples_per_second": status.examples_per_second,
        "seconds_per_step": status.seconds_per_step,
        "restarts": {task.name: task.restart_count for task in status.tasks if task.restarts},
        "checkpoint": status.checkpoint,
        "checkpoint_step": status.checkpoint_step,
        "model": status.model,
        "run_dir": str(status.run_dir or ""),
    }
    return {key: finite(value) for key, value in fields.items()}


def show_summary(console: Console, backend: Backend, status: RunStatus, runs: Path, up_arguments: Sequence[str] = ()) -> None:
    """Print the result of a run, the reason if it failed, and the commands that may come next.

    `up_arguments` is the file and the `--set`s that `up` was given, if known.
    """
    mark, colour = MARKS[status.state]
    seconds = _seconds(status)
    took = f" after {formats.duration(seconds)}" if seconds is not None else ""
    head = f"{status.name} {_STATE_TEXT[status.state]}{took}"
    console.print()
    console.print(Text(f"{mark} {head}" if console.is_terminal else head, style=f"bold {colour}"))
    facts = [*_failure(backend, status, runs), *_facts(status), *_paths_and_commands(status, runs, up_arguments)]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        # Text for people wraps at words; values to copy, and all values in a pipe, are not wrapped.
        if console.is_terminal and name not in _UNWRAPPED:
            console.print(Padding(fact_lines([(f"{name:<{width}}", value)]), (0, 0, 0, 2)))
        else:
            console.print(Text.assemble((f"  {name:<{width}}  ", "bright_black"), value), soft_wrap=True)


_UNWRAPPED = frozenset({"run", "checkpoint", "model", "log", "continue with", "run it again", "after a fix", "TensorBoard"})
_STATE_TEXT = {
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.STOPPED: "stopped",
    State.INTERRUPTED: "was interrupted",
    State.UNKNOWN: "has ended; its result is not known",
}


def _seconds(status: RunStatus) -> float | None:
    return None if status.started is None or status.ended is None else round(status.ended - status.started, 3)


def _facts(status: RunStatus) -> list[tuple[str, str]]:
    restarts = [f"{task.name} {task.restart_count} (last: {_end_of(task.restarts[-1])})" for task in status.tasks if task.restarts]
    facts = {
        "stopped early": measures.early_end(status),
        "steps": measures.steps(status),
        "speed": measures.speed(status),
        "training": measures.training(status),
        "evaluation": measures.evaluation(status),
        "restarts": ", ".join(restarts) or "none",
    }
    return [(fact, value) for fact, value in facts.items() if value]


def _end_of(attempt: EndedAttempt) -> str:
    """Return briefly how an attempt ended; its cause may contain a whole line of output."""
    return attempt.cause if attempt.exit_code is None else describe(attempt.exit_code)


def _paths_and_commands(status: RunStatus, runs: Path, up_arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Return where a run has stored what, and the commands that may come next."""
    rows = [("run", relative_path(str(status.run_dir)))] if status.run_dir else []
    if status.checkpoint is not None:
        rows.append(("checkpoint", relative_path(status.checkpoint)))
    if status.model is not None:
        copying = "" if status.local_run_dir else f"; `{command(runs, 'get', status.name, on=status.backend)}` copies it here"
        rows.append(("model", relative_path(status.model) + copying))
    if status.state is not State.SUCCEEDED and up_arguments:
        rows.append((_next_label(status), command(runs, "up", *up_arguments, on=status.backend)))
    if status.tensorboard:
        rows.append(("TensorBoard", f"{status.tensorboard}, until `{command(runs, 'down', status.name, on=status.backend)}`"))
    elif status.local_run_dir and (status.local_run_dir / "logs").is_dir():
        rows.append(("TensorBoard", command(runs, "tensorboard", status.name)))
    return rows


def _next_label(status: RunStatus) -> str:
    """Return the label of the command that runs an unsuccessful run again.

    A run with an error of its own fails again until that is fixed. If no step was done, or none remains, there is nothing to continue.
    """
    task = failed_task(status)
    if status.state is State.FAILED and task is not None and task.exit_code not in _NO_OWN_ERROR:
        return "after a fix"
    some_done = bool(status.step) or status.checkpoint is not None
    some_left = status.steps is None or (status.step or 0) < status.steps
    return "continue with" if status.state is not State.FAILED and some_done and some_left else "run it again"


def failed_task(status: RunStatus) -> TaskStatus | None:
    """Return the task because of which the run failed: of the failed tasks, the first to end; one whose end is not known comes last."""
    failed = [task for task in status.tasks if task.state is State.FAILED]
    return min(failed, key=lambda task: math.inf if task.ended is None else task.ended, default=None)


def _failure(backend: Backend, status: RunStatus, runs: Path) -> list[tuple[str, str]]:
    """Return why a run failed: its reason, the failed task unless the reason is that task's, and the command that shows its log."""
    if status.state not in (State.FAILED, State.INTERRUPTED):
        return []
    task = failed_task(status)
    facts = [("reason", status.reason)] * bool(status.reason)
    if task is None:
        return [*facts, ("log", command(runs, "logs", status.name, on=status.backend))]
    if task.name != status.reason_task:  # else the reason has these facts
        last = _last_error_line(backend, status.name, task.name)
        how = "did not end by itself" if task.exit_code is None else describe(task.exit_code)
        facts.append(("task", f"{task.name}, attempt {task.restart_count + 1}, {how}"))
        facts += [("last error", last)] * bool(last)
        facts += [("remedy", task.remedy)] * bool(task.remedy)
    role, index = role_rules.role_and_index(task.name)
    where = ["--role", role] + ([] if index is None else ["--index", str(index)])
    return [*facts, ("log", command(runs, "logs", status.name, *where, on=status.backend))]


def _last_error_line(backend: Backend, name: str, task: str) -> str:
    """Return why a task failed: the detail of its last `failed` event, else the last line that names an exception, else the last line."""
    try:
        lines = [line.text for line in backend.logs(name, tasks=[task], follow=False, since=None, tail=_LAST_LINES)]
    except LauncherError:
        return ""
    last = LastError()
    detail = ""
    for line in lines:
        event = event_in(line)
        if event is not None:
            detail = str(event.get("detail") or "") if event["event"] == "failed" and event["task"] == task else detail
        elif not line.startswith(LAUNCHER_NOTE):
            last.feed(line)
    return detail or last.line
