"""Completes a status from the chief's run.json, and corrects that file if the chief was killed before it could write the end."""

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from launcher import files
from launcher.runs.paths import RunPaths
from launcher.runs.status import RunStatus, State

# State of the run -> states in run.json that are outdated or incomplete then.
_OUTDATED = {State.FAILED: ("running", "stopped"), State.STOPPED: ("running",)}
# Field of RunStatus and of run.json -> its type there.
_FIELDS: dict[str, type] = {"step": int, "steps": int, "metrics": dict, "checkpoint": str, "ended_early": str}


def merged(status: RunStatus, document: Mapping[str, Any], *, newer: bool) -> RunStatus:
    """Return a status merged with run.json: with all its fields if it is `newer`, else only with those that the status lacks. Pure."""
    changes: dict[str, Any] = {
        field: document[field]
        for field, kind in _FIELDS.items()
        if isinstance(document.get(field), kind) and (newer or not getattr(status, field))
    }
    if "metrics" in changes:  # the chief records only those of evaluations
        changes["metrics_of"] = "evaluation"
    if "checkpoint" in changes:  # checkpoints are named by their step
        step = changes["checkpoint"].rpartition("-")[2]
        changes["checkpoint_step"] = int(step) if step.isdecimal() else None
    return dataclasses.replace(status, **changes)


def record_outcome(paths: RunPaths, outcome: State, reason: str) -> None:
    """Write the run's outcome and its reason into run.json if that is outdated. No task may be running any more."""
    document = files.read_json(paths.run_json)
    if document is None or document.get("state") not in _OUTDATED.get(outcome, ()):
        return
    with contextlib.suppress(OSError):  # state.json has the outcome, too
        files.write_json(paths.run_json, document | {"state": str(outcome), "reason": reason, "updated": time.time()})
