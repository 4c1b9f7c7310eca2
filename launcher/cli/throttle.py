"""Throttling of progress events: about one a second gets a line."""

import time

from trainer.events import Event

INTERVAL = 1.0
# Workers' progress adds little to the chief's: all workers together get about one line per interval.
WORKERS_INTERVAL = 5.0
# A task that waits for its peers reports it repeatedly.
WAITING_INTERVAL = 10.0


class Throttle:
    """Remembers when each kind of event was last shown. A run's last step is always shown, and so are checkpoints once a task was asked to stop."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], float] = {}
        self._workers: set[str] = set()
        self._stopping: set[str] = set()

    def admits(self, event: Event) -> bool:
        """Return whether an event is to be shown now."""
        kind, task = event["event"], event["task"]
        if kind == "stopping":
            self._stopping.add(task)
        elif kind == "started":
            self._stopping.discard(task)
        interval = self._interval(kind, event)
        if interval == 0:
            return True
        now = time.monotonic()
        last = self._shown.get((kind, task))
        last_step = kind == "progress" and "local_step" not in event and event["step"] >= event["steps"]
        final = last_step or (kind == "checkpoint" and bool(self._stopping))
        if last is not None and now - last < interval and not final:
            return False
        self._shown[kind, task] = now
        return True

    def _interval(self, kind: str, event: Event) -> float:
        if kind == "progress" and "local_step" in event:
            self._workers.add(event["task"])
            return WORKERS_INTERVAL * len(self._workers)
        return {"progress": INTERVAL, "evaluated": INTERVAL, "checkpoint": INTERVAL, "waiting": WAITING_INTERVAL}.get(kind, 0)
