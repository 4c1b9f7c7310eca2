"""What run.json says once a run is over: the chief writes it while it lives, and cannot when it was killed with its parent."""

import contextlib
import time

from launcher.runs import state_file
from launcher.runs.paths import RunPaths
from launcher.runs.status import State

# What the run came to -> what run.json may still say that is no longer, or not the whole of it.
_OUTDATED = {State.FAILED: ("running", "stopped"), State.STOPPED: ("running",)}


def settle(layout: RunPaths, outcome: State, reason: str) -> None:
    """Put the run's outcome and its reason into run.json where that is outdated. No task may be running any more."""
    facts = state_file.read_json(layout.summary)
    if facts is None or facts.get("state") not in _OUTDATED.get(outcome, ()):
        return
    with contextlib.suppress(OSError):  # the run's own state says it too
        state_file.write_json(layout.summary, facts | {"state": str(outcome), "reason": reason, "updated": time.time()})
