"""The supervisor's state file, which other processes read: it is replaced atomically."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import files
from launcher.runs.process_identity import Identity
from launcher.runs.status import RunStatus, run_status_from_json

_VERSION = 1


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment. `processes` are the tasks' session leaders by task name, also those that have ended."""

    status: RunStatus
    host: str
    supervisor: Identity | None = None
    grace_period: float = 30.0
    processes: dict[str, Identity] = field(default_factory=dict)
    stopping: bool = False  # it was asked to stop, or its directory was removed


def write(path: Path, snapshot: Snapshot) -> None:
    """Replace the file. Raises OSError, for example if the disk is full; the old file stays then."""
    files.write_json(path, {"version": _VERSION, **dataclasses.asdict(snapshot)}, indent=None)


def read(path: Path) -> Snapshot | None:
    """Return the snapshot that was last written; None if there is none, or if this version cannot read it."""
    document = files.read_json(path)
    if document is None or document.pop("version", None) != _VERSION:
        return None
    try:
        return _snapshot(document)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def exists(path: Path) -> bool:
    """Return whether the file exists, readable or not; True also if its directory cannot be read."""
    try:
        return path.exists()
    except OSError:
        return True


def _snapshot(document: dict[str, Any]) -> Snapshot:
    supervisor = document.pop("supervisor")
    return Snapshot(
        status=run_status_from_json(document.pop("status")),
        supervisor=Identity(**supervisor) if supervisor else None,
        processes={name: Identity(**process) for name, process in document.pop("processes").items()},
        **document,
    )
