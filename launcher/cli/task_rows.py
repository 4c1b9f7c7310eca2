"""The row of each task, the same in `status` and in the live display of `up`."""

from launcher.cli.prefixes import Prefixes
from launcher.cli.tables import Cell
from launcher.runs.reasons import shortened
from launcher.runs.status import ENDED, RunStatus, State, TaskStatus

HEADERS = ("TASK", "STATE", "STEP", "SPEED", "RESTARTS", "EXIT", "REASON")
UNWRAPPED = HEADERS[:-1]  # only the reason wraps
RIGHT = ("STEP", "SPEED", "RESTARTS", "EXIT")

_NOTABLE_WAIT = 0.1  # the part of a task's time

MARKS: dict[State, tuple[str, str]] = {
    State.PENDING: ("…", "bright_black"),
    State.RUNNING: ("●", "green"),
    State.RESTARTING: ("↻", "yellow"),
    State.SUCCEEDED: ("✔", "green"),
    State.FAILED: ("✘", "red"),
    State.STOPPED: ("■", "yellow"),
    State.INTERRUPTED: ("✘", "red"),
    State.UNKNOWN: ("?", "yellow"),
}


def state_cell(state: State, *, marked: bool) -> Cell:
    """Return a state with its colour, and with its mark if `marked`."""
    mark, colour = MARKS[state]
    return (f"{mark} {state}" if marked else str(state)), colour


def row(task: TaskStatus, prefixes: Prefixes, *, marked: bool) -> tuple[Cell, ...]:
    """Return the cells of one task."""
    speed = "" if task.examples_per_second is None else f"{task.examples_per_second:,.0f}/s"
    left = "" if task.restarts_left is None or task.state in ENDED else f", {task.restarts_left} left"
    restarts: Cell = (f"{task.restart_count}{left}", "yellow") if task.restarts else ""
    failed = task.exit_code not in (None, 0)
    return (
        (task.name, prefixes.colour(task.name)),
        state_cell(task.state, marked=marked),
        "" if task.step is None else f"{task.step:,}",
        speed,
        restarts,
        "" if task.exit_code is None else (str(task.exit_code), "red" if failed else ""),
        (shortened(_reason(task)), "red" if task.state is State.FAILED else ""),
    )


def _reason(task: TaskStatus) -> str:
    if task.reason or task.state in ENDED:
        return task.reason
    waits = {"input": task.input_wait or 0, "peers": task.peer_wait or 0}
    waiting = ", ".join(f"{part:.0%} for {what}" for what, part in waits.items() if part >= _NOTABLE_WAIT)
    restarted = f"restarted: {task.restarts[-1].cause}" if task.restarts else ""
    return "; ".join(part for part in (f"waits {waiting}" if waiting else "", restarted) if part)


def pick_rows(status: RunStatus, limit: int) -> tuple[tuple[TaskStatus, ...], int]:
    """Return at most `limit` tasks, preferring those in trouble, and how many were left out."""
    if len(status.tasks) <= limit:
        return status.tasks, 0
    priority = {State.FAILED: 0, State.INTERRUPTED: 0, State.RESTARTING: 1, State.PENDING: 2}
    picked = sorted(status.tasks, key=lambda task: priority.get(task.state, 3))[: max(limit, 1)]
    return tuple(task for task in status.tasks if task in picked), len(status.tasks) - len(picked)
