"""`launcher down`: stop a run, and delete what it stored if asked to."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.backend.model import Backend, ClusterRef
from launcher.backend.registry import in_namespaces
from launcher.cli import owners, streams
from launcher.cli.options import Context, Json, Name, Namespace, OnRun, Runs
from launcher.cli.run_lookup import DEFAULT_RUNS, relative_path
from launcher.errors import LauncherError, UsageError
from launcher.formats import count
from launcher.runs.status import ENDED, RunStatus, State

EXAMPLES = (
    ("launcher down mnist", "saves a checkpoint and stops; `launcher up` continues from it"),
    ("launcher down mnist --now", "kills it; the work since the last checkpoint is lost"),
    ("launcher down mnist --delete-data", "stops it and deletes its checkpoints, logs and results"),
    ("launcher down --finished --older 7d --on kubernetes", "removes the objects of your runs in the namespace that ended a week ago"),
)
Say = Callable[[str], None]
# States of runs that --finished removes, by whether it deletes what they stored: a stopped run can be resumed.
_REMOVED = {False: ENDED, True: frozenset({State.SUCCEEDED, State.FAILED})}


def down(
    name: Name = None,
    *,
    now: Annotated[bool, typer.Option("--now", help="Kill it without a last checkpoint.")] = False,
    delete_data: Annotated[bool, typer.Option("--delete-data", help="Delete the run directory too: checkpoints, logs, results.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete, and stop another user's run, without asking.")] = False,
    finished: Annotated[
        bool,
        typer.Option(
            "--finished",
            help="All your runs that have ended; --on kubernetes for those of a cluster. With --delete-data, those that succeeded or failed.",
        ),
    ] = False,
    older: Annotated[
        str | None,
        typer.Option("--older", metavar="DURATION", help="Only the finished runs that ended longer ago, e.g. 7d.", show_default=False),
    ] = None,
    on: OnRun = None,
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Stop a run after a last checkpoint."""
    from launcher.cli.backends import open_run

    if finished or older is not None:
        if not finished:
            raise UsageError("--older goes only with --finished", "add --finished, or leave out --older")
        if name is not None or now:
            raise UsageError(f"--finished and {'--now' if now else 'the NAME of a run'} exclude each other", "leave out one of them")
        _down_finished(on, runs, ClusterRef(context, namespace), older, delete_data=delete_data, yes=yes, as_json=as_json)
        return
    backend, run = open_run(name, on, runs, ClusterRef(context, namespace), unique=True)
    status = backend.status(run)
    directory = status.run_dir
    if delete_data and not yes:
        deleted = f"{directory} with its checkpoints and logs" if directory else f"the record of {run}"
        _confirm(deleted, may_prompt=not as_json and sys.stdin.isatty())
    owners.confirm(status, "delete" if delete_data else "stop", yes=yes, may_prompt=not as_json and sys.stdin.isatty())
    say = streams.printer(as_json=as_json)
    result = _stop(backend, run, say, now=now, keeps_data=not delete_data)
    if status.data_lost and not delete_data:
        say(f"notice: {status.data_lost.message}")
    if delete_data:
        backend.delete(run)
        say(f"deleted {directory or f'the record of {run}, which had no volume'}")
    if as_json:
        print(json.dumps({"name": run, **result, "run_dir": str(directory or ""), "deleted": delete_data}))


def _down_finished(
    on: str | None, runs: Path, cluster: ClusterRef, older: str | None, *, delete_data: bool, yes: bool, as_json: bool
) -> None:
    """Remove what the user's ended runs left; with `older`, only runs whose end is known and longer ago."""
    from launcher.cli.backends import known_runs, selected_backend_name
    from launcher.formats import parse_duration_option

    on = selected_backend_name(on, cluster)
    before = time.time() - parse_duration_option(older, "--older") if older is not None else None
    finished = [
        (backend, status)
        for backend, status in known_runs(on, runs, cluster)
        if _is_finished(status, delete_data=delete_data) and (before is None or (status.ended or 0.0) < before)
    ]
    if delete_data and finished and not yes:
        names = ", ".join(status.name for _, status in finished)
        _confirm(f"all that {names} stored", may_prompt=not as_json and sys.stdin.isatty())
    say = streams.printer(as_json=as_json)
    result: list[dict[str, Any]] = []
    failed: list[LauncherError] = []
    for backend, status in finished:
        try:
            if backend.status(status.name).state not in _REMOVED[delete_data]:  # restarted since it was listed
                continue
            removed = backend.stop(status.name)
            if delete_data:
                backend.delete(status.name)
        except LauncherError as error:  # the other runs are still removed
            failed.append(error)
            continue
        if removed or delete_data:
            result.append({"name": status.name, "state": status.state, "removed": removed, "deleted": delete_data})
            what = [count(number, kind) for kind, number in removed.items()] + ["its data"] * delete_data
            say(f"{status.name} ({status.state}): removed {', '.join(what)}")
    if as_json:
        print(json.dumps(result))
    elif not result and not failed:
        print("nothing to remove: no finished run" + (f" older than {older}" if older else "") + " left anything")
    if failed:
        raise LauncherError("; ".join(error.message for error in failed), "; ".join(dict.fromkeys(error.remedy for error in failed)))


def _is_finished(status: RunStatus, *, delete_data: bool) -> bool:
    """Return whether a run has ended for good and is the user's own. Objects applied without the launcher have no user and do not count."""
    own = status.mine and (not in_namespaces(status.backend) or bool(status.user))
    return own and status.ended is not None and status.state in _REMOVED[delete_data]


def _confirm(deleted: str, *, may_prompt: bool) -> None:
    """Ask the user to confirm a deletion. Raises UsageError if there is no prompt, and typer.Abort if the user declines."""
    if not may_prompt:
        raise UsageError(f"--delete-data deletes {deleted} for good", "add --yes, as there is no terminal for a prompt")
    if not typer.confirm(f"delete {deleted}?", err=True):
        raise typer.Abort


def _stop(backend: Backend, run: str, say: Say, *, now: bool, keeps_data: bool) -> dict[str, object]:
    """Stop a run and return the fields of `--json`; `keeps_data` is whether its data stays."""
    from launcher.cli.stopping import stop_action

    status = backend.status(run)
    ended = status.state in ENDED
    if not ended and not now:
        say(f"{run}: stopping: {stop_action(backend.spec(run))}")
    # Also of a run that has ended: an interrupted one may have left processes.
    try:
        removed = backend.stop(run, now=now, report=lambda message: say(f"{run}: {message}"))
    except KeyboardInterrupt:
        say(f"{run}: interrupted; the stop continues. Another `launcher down` waits for it, `launcher down --now` kills the run")
        raise
    if ended:
        how = "was interrupted" if status.state is State.INTERRUPTED else f"has {_HAS.get(status.state, status.state)}"
        what = ", ".join(count(number, kind) for kind, number in removed.items())
        did = f"{'ended' if 'process' in removed else 'removed'} {what}" if what else "there was nothing to remove"
        is_there = status.run_dir and (status.local_run_dir is None or status.local_run_dir.is_dir())
        stays = f"; its data stays in {relative_path(str(status.run_dir))}" if keeps_data and is_there and not status.data_lost else ""
        say(f"{run} {how} and does not run; {did}{stays}")
        after = status
    else:
        after = backend.status(run)
        at = f"; the last checkpoint is of step {after.checkpoint_step:,}" if after.checkpoint_step is not None else ""
        say(f"{run} is {after.state}{at}")
    return {"state": after.state, "ran": not ended, "checkpoint_step": after.checkpoint_step, "removed": removed}


_HAS = {State.STOPPED: "been stopped", State.UNKNOWN: "ended (its result is not known)"}
