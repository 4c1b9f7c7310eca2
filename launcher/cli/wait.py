"""`launcher wait`: wait until a run has ended."""

import json
import time
from typing import Annotated

import typer

from launcher.backend.model import ClusterRef, Reconciles
from launcher.cli import streams
from launcher.cli.options import Context, Json, Name, Namespace, OnRun, Runs
from launcher.cli.run_lookup import DEFAULT_RUNS, command
from launcher.errors import LauncherError
from launcher.runs.status import ENDED

EXAMPLES = (
    ("launcher wait mnist && ./publish.sh", "runs a script after the run has succeeded"),
    ("launcher wait mnist --timeout 30m", "times out after 30 minutes with exit code 124; the run continues"),
)
POLL_INTERVAL = 0.5


class WaitTimeoutError(LauncherError):
    """The run has not ended in time. The exit code is that of timeout(1)."""

    exit_code = 124


def wait(
    name: Name = None,
    *,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The time to wait, such as 10m; by default without limit.", show_default=False)
    ] = None,
    on: OnRun = None,
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> int:
    """Wait until a run has ended; its result is the exit code."""
    from rich.console import Console

    from launcher import formats
    from launcher.cli.backends import open_run
    from launcher.cli.results import EXIT_CODES, show_summary, summary

    seconds = formats.parse_duration_option(timeout, "--timeout") if timeout is not None else None
    backend, run = open_run(name, on, runs, ClusterRef(context, namespace), unique=True)
    deadline = None if seconds is None else time.monotonic() + seconds
    while (status := backend.status(run)).state not in ENDED:
        if isinstance(backend, Reconciles):
            streams.print_notices(backend.reconcile(run))
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeoutError(
                f"{run} has not ended within {timeout}: it is {status.state}",
                f"it continues; wait again, or stop it with `{command(runs, 'down', run, on=status.backend)}`",
            )
        time.sleep(POLL_INTERVAL)
    if isinstance(backend, Reconciles):
        streams.print_notices(backend.reconcile(run))
        streams.print_notices(backend.finish(run))
    code = EXIT_CODES[status.state]
    if as_json:
        print(json.dumps(summary(status, code)))
    else:
        show_summary(Console(highlight=False), backend, status, runs)
    return code
