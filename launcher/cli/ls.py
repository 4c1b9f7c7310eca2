"""`launcher ls`: the runs under the runs directory, or of a cluster's namespace."""

import json
import sys

from launcher import formats
from launcher.backend.model import ClusterRef
from launcher.backend.registry import DEFAULT, cluster_backend, in_namespaces
from launcher.cli.options import Context, Json, Namespace, OnListed, Runs
from launcher.cli.run_lookup import DEFAULT_RUNS, command, listing_scope, runs_directory
from launcher.runs.paths import START_FILE
from launcher.runs.status import ENDED, RunStatus

EXAMPLES = (
    ("launcher ls", "newest first"),
    ("launcher ls --json | jq -r '.[] | select(.state == \"running\") | .name'", "the names of running runs"),
)
_HEADERS = ("NAME", "ON", "STATE", "STRATEGY", "TASKS", "STEP", "METRICS", "STARTED", "TOOK", "USER")
# Columns that a narrow terminal leaves out, the first one first; `status` shows them.
_LEFT_OUT_FIRST = ("STRATEGY", "TASKS", "TOOK", "ON", "STARTED", "METRICS", "STEP")


def ls(
    *,
    on: OnListed = None,
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """List the runs."""
    from launcher.cli.backends import known_runs, selected_backend_name

    cluster = ClusterRef(context, namespace)
    on = selected_backend_name(on, cluster)
    known = [status for _, status in known_runs(on, runs, cluster)]
    if as_json:
        print(json.dumps([formats.document(status) for status in known]))
        return
    if not known:
        elsewhere = "" if in_namespaces(on) else "; --runs names another directory"
        print(f"there are no runs {listing_scope(runs, on)}{elsewhere}; start one with `{command(runs, 'up', 'FILE', on=on or DEFAULT)}`")
        return
    from rich.console import Console

    from launcher.cli.tables import show

    console = Console(highlight=False)
    rows = [_row(status, marked=console.is_terminal) for status in known]
    show(console, _HEADERS, rows, right=("TASKS", "STEP"), unwrapped=("NAME", "STATE"), optional=_LEFT_OUT_FIRST)
    if on is None and any(runs_directory(runs, cluster_backend()).glob(f"*/*/*/{START_FILE}")):
        print(f"`{command(runs, 'ls', on=cluster_backend())}` lists runs on clusters", file=sys.stderr)


def _row(status: RunStatus, *, marked: bool) -> tuple[str | tuple[str, str], ...]:
    import time

    from launcher.cli import measures
    from launcher.cli.task_rows import state_cell

    step = measures.steps_cell(status)
    until = status.ended if status.state in ENDED else time.time()
    took = "" if status.started is None or until is None else formats.duration(until - status.started)
    started = "" if status.started is None else formats.ago(status.started)
    name = (status.name, "bold")
    state = state_cell(status.state, marked=marked)
    return (
        name,
        status.backend,
        state,
        status.strategy,
        str(len(status.tasks)),
        step,
        measures.metrics_cell(status),
        started,
        took,
        status.user,
    )
