"""Runs of other users: in a cluster that many share, a name may be somebody else's."""

import typer

from launcher.errors import UsageError
from launcher.runs.status import RunStatus


def confirm(status: RunStatus | None, doing: str, *, yes: bool, may_prompt: bool) -> None:
    """Have the user say that a run is meant that another user has started, where it is one; `yes` says so already.

    Raises UsageError where nobody can be asked, and typer.Abort where it is not meant.
    """
    if status is None or status.mine or yes:
        return
    words = f"{status.name} was started by {status.user}"
    if not may_prompt:
        raise UsageError(words, f"say --yes to {doing} it all the same, or choose another: your own runs have a `name` of their own")
    if not typer.confirm(f"{words}: {doing} it all the same?", err=True):
        raise typer.Abort
