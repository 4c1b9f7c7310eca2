"""The supervisor's state as a file that others read: written whole or not at all."""

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import files
from launcher.runs.process_identity import Identity
from launcher.runs.status import RunStatus, run_status_of

_VERSION = 1


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment. `processes` are the tasks' session leaders by task name, also those that have ended."""

    status: RunStatus
    host: str
    supervisor: Identity | None = None
    grace_period: float = 30.0
    processes: dict[str, Identity] = field(default_factory=dict)
    stopping: bool = False  # it was asked to stop


def write(path: Path, snapshot: Snapshot) -> None:
    """Replace the file. Raises OSError, for example for a full disk, and leaves the old file then."""
    write_json(path, {"version": _VERSION, **dataclasses.asdict(snapshot)}, indent=None)


def read(path: Path) -> Snapshot | None:
    """Return the snapshot that was last written; None when there is none, or none that this version can read."""
    document = files.read_json(path)
    if document is None or document.pop("version", None) != _VERSION:
        return None
    try:
        return _snapshot(document)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def exists(path: Path) -> bool:
    """Return whether there is such a file, readable or not; True also if its directory may not be read."""
    try:
        return path.exists()
    except OSError:
        return True


def write_json(path: Path, document: Any, *, indent: int | None = 2, private: bool = False) -> None:
    """Replace a file by a JSON document, so that a reader sees the old one or the new one. Raises OSError.

    Only its owner may read a `private` one, and one that takes the place of a private one.
    """
    text = json.dumps(document, indent=indent, separators=None if indent else (",", ":"))
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        files.write(fresh, text + "\n", private=private or files.is_private(path))
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def _snapshot(document: dict[str, Any]) -> Snapshot:
    supervisor = document.pop("supervisor")
    return Snapshot(
        status=run_status_of(document.pop("status")),
        supervisor=Identity(**supervisor) if supervisor else None,
        processes={name: Identity(**process) for name, process in document.pop("processes").items()},
        **document,
    )
