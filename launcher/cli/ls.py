"""`launcher ls`: the runs under the runs directory."""

import json
from dataclasses import asdict

from launcher.backend.model import ENDED, RunStatus, Where
from launcher.cli.options import Context, Json, Namespace, On, Runs
from launcher.cli.runs import DEFAULT_RUNS, command

EXAMPLES = (
    ("launcher ls", "newest first"),
    ("launcher ls --json | jq -r '.[] | select(.state == \"running\") | .name'", "the names of those that run"),
)
_HEADERS = ("NAME", "STATE", "STRATEGY", "TASKS", "STEP", "METRICS", "STARTED", "TOOK")


def ls(
    *,
    on: On = "local",
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """List the runs."""
    from launcher.cli.backends import open_backend

    known = open_backend(on, runs, Where(context, namespace)).runs()
    if as_json:
        print(json.dumps([asdict(status) for status in known]))
        return
    if not known:
        place = "in the namespace" if on == "kubernetes" else f"under {runs}"
        print(f"there are no runs {place}; start one with `{command(runs, 'up', 'FILE', on=on)}`")
        return
    from rich.console import Console

    from launcher.cli.tables import show

    console = Console(highlight=False)
    show(console, _HEADERS, [_row(status, marked=console.is_terminal) for status in known], right=("TASKS", "STEP"))


def _row(status: RunStatus, *, marked: bool) -> tuple[str | tuple[str, str], ...]:
    import time

    from launcher.cli import formats
    from launcher.cli.task_rows import state_cell

    step = "" if status.step is None else f"{status.step:,}/{status.steps:,}" if status.steps else f"{status.step:,}"
    until = status.ended if status.state in ENDED else time.time()
    took = "" if status.started is None or until is None else formats.duration(until - status.started)
    started = "" if status.started is None else formats.ago(status.started)
    name = (status.name, "bold")
    state = state_cell(status.state, marked=marked)
    return (name, state, status.strategy, str(len(status.tasks)), step, formats.metrics(status.metrics), started, took)
