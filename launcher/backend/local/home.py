"""The directory of a run, `runs/<name>`: one run has it, whichever backend the run is on."""

from pathlib import Path

from launcher.backend.local import state
from launcher.backend.local.layout import Layout
from launcher.errors import LauncherError, UsageError


def backend_of(layout: Layout) -> str | None:
    """Return the backend that the run in a directory is on, or None when there is none that can be read."""
    snapshot = state.read(layout.state)
    return snapshot.status.backend if snapshot else None


def check(layout: Layout, backend: str) -> None:
    """Raise UsageError when the run of that name is on another backend: two would share one directory."""
    there = backend_of(layout)
    if there not in {None, backend}:
        raise UsageError(
            f"the run {layout.name} in {layout.run_dir.parent} is on {there}, not on {backend}",
            f"say --on {there}, give your run another name, or keep its directory elsewhere with --runs",
        )


def rename(layout: Layout, aside: str) -> Path:
    """Rename the directory to `aside`, beside it. Raises LauncherError when that cannot be done."""
    try:
        return layout.run_dir.rename(layout.run_dir.with_name(aside))
    except OSError as error:
        raise LauncherError(f"{layout.run_dir} cannot be moved aside: {error.strerror}", "see who owns it and who uses it") from error
