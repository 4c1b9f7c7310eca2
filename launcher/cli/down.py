"""`launcher down`: stop a run, and delete what it stored if asked to."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from launcher.backend.model import ENDED, Backend, Where
from launcher.cli.options import Context, Name, Namespace, OnRun, Runs
from launcher.cli.runs import DEFAULT_RUNS
from launcher.errors import UsageError

EXAMPLES = (
    ("launcher down mnist", "saves a checkpoint and stops; `launcher up` goes on from it"),
    ("launcher down mnist --now", "kills it; what came after the last checkpoint is lost"),
    ("launcher down mnist --delete-data", "stops it and deletes its checkpoints, logs and results"),
)


def down(
    name: Name = None,
    *,
    now: Annotated[bool, typer.Option("--now", help="Kill it without a last checkpoint.")] = False,
    delete_data: Annotated[bool, typer.Option("--delete-data", help="Delete the run directory too: checkpoints, logs, results.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    on: OnRun = None,
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Stop a run after a last checkpoint."""
    from launcher.cli.backends import open_run

    backend, run = open_run(name, on, runs, Where(context, namespace), one=True)
    status = backend.status(run)
    if delete_data and not yes:
        _confirm(run, Path(status.run_dir))
    _stop(backend, run, now=now)
    if delete_data:
        backend.delete(run)
        print(f"deleted {status.run_dir}")


def _confirm(run: str, directory: Path) -> None:
    if not sys.stdin.isatty():
        raise UsageError(f"--delete-data deletes {directory} for good", "say --yes as well, as there is no terminal to ask on")
    if not typer.confirm(f"delete {run}: {directory} with its checkpoints and logs?", err=True):
        raise typer.Abort


def _stop(backend: Backend, run: str, *, now: bool) -> None:
    status = backend.status(run)
    ended = status.state in ENDED
    if not ended and not now:
        print(f"{run}: saving a checkpoint and stopping", flush=True)
    # Also of a run that has ended: an interrupted one may have left processes.
    backend.stop(run, now=now)
    if ended:
        print(
            f"{run} does not run: it has {status.state}"
            if status.state != "interrupted"
            else f"{run} was interrupted; nothing of it is left"
        )
        return
    after = backend.status(run)
    at = f"; the last checkpoint is of step {after.checkpoint_step:,}" if after.checkpoint_step is not None else ""
    print(f"{run} is {after.state}{at}")
