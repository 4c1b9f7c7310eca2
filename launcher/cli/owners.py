"""Runs of other users: in a shared cluster a name may be another user's."""

import typer

from launcher.errors import UsageError
from launcher.runs.status import RunStatus


def confirm(status: RunStatus | None, action: str, *, yes: bool, may_prompt: bool) -> None:
    """Ask the user to confirm an action on a run of another user, unless `yes`.

    Raises UsageError if there is no prompt, and typer.Abort if the user declines.
    """
    if status is None or status.mine or yes:
        return
    message = f"{status.name} was started by {status.user}"
    if not may_prompt:
        raise UsageError(message, f"add --yes to {action} it anyway, or choose another `name` for a run of your own")
    if not typer.confirm(f"{message}: {action} it anyway?", err=True):
        raise typer.Abort
