"""Local copy of a cluster's objects of one kind: listed once, then updated by a watch, like client-go's informers."""

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from launcher.backend.kubernetes.client import Cluster, Object, http_status
from launcher.backend.kubernetes.errors import TransientError
from launcher.errors import LauncherError

# Seconds after which the API server ends a watch, which is then opened again from the same version. A dead connection is noticed within five seconds more.
_WATCH_TIMEOUT = 30
_RETRY_INTERVAL = 1.0  # seconds between two requests to watch, at the least
_IDLE_TIMEOUT = 60.0  # seconds without a call after which a watch ends
_MAX_FAILURES = 2  # watches in a row that did not open although the cluster answered a list
_MAX_POLL_INTERVAL = 10.0  # seconds between two lists, at the most, if watching does not work


def versions(objects: Iterable[Mapping[str, Any]]) -> frozenset[tuple[str, str]]:
    """Return uid and resource version of each object, to detect changes."""
    return frozenset((str(one["metadata"].get("uid")), str(one["metadata"].get("resourceVersion"))) for one in objects)


class PollBackoff:
    """Decides when to poll a state again: at first every second, later after a tenth of the time since the last change."""

    def __init__(self, longest: float) -> None:
        """Poll at least every `longest` seconds."""
        self._longest, self._state = longest, object()
        self._since = self._next = 0.0  # of time.monotonic

    def due(self, state: object) -> bool:
        """Return whether to poll now; if `state` differs from the last call's, poll at once."""
        now = time.monotonic()
        if state != self._state:
            self._state, self._since, self._next = state, now, now
        if now < self._next:
            return False
        self._next = now + min(max(1.0, (now - self._since) / 10), self._longest)
        return True


class Informer:
    """The objects of a kind that have all of some labels. The first call lists them; from the second on it watches, as long as there are calls."""

    def __init__(self, cluster: Cluster, kind: str, labels: Mapping[str, str]) -> None:
        self._cluster, self._kind, self._labels = cluster, kind, labels
        self._lock = threading.Lock()  # held by callers
        self._objects: dict[str, Object] = {}
        self._error: LauncherError | None = None  # why `_objects` may be out of date
        self._last_call = 0.0  # of time.monotonic
        self._thread: threading.Thread | None = None
        self._may_watch = True
        self._backoff = PollBackoff(_MAX_POLL_INTERVAL)  # used if it may not watch

    def objects(self) -> list[Object]:
        """Return the objects, by name. Raises LauncherError, TransientError while the cluster does not answer."""
        with self._lock:
            previous_call, self._last_call = self._last_call, time.monotonic()
            if self._thread is None or not self._thread.is_alive():
                self._refresh(again=bool(previous_call))
            if self._error is not None:
                raise type(self._error)(self._error.message, self._error.remedy) from self._error.__cause__
            return [obj for _, obj in sorted(self._objects.copy().items())]

    def poll_soon(self) -> None:
        """List again at once, and as often as after a change, if watching does not work."""
        self._backoff = PollBackoff(_MAX_POLL_INTERVAL)

    def _refresh(self, *, again: bool) -> None:
        if again and not self._may_watch and not self._backoff.due(versions(self._objects.values())):
            return
        try:
            version = self._list()
        except LauncherError:
            self._backoff = PollBackoff(_MAX_POLL_INTERVAL)  # list again at once: callers get no objects before the cluster has answered
            raise
        self._backoff.due(versions(self._objects.values()))
        if again and self._may_watch:
            self._thread = threading.Thread(target=self._watch, args=(version,), name=f"watch {self._kind}", daemon=True)
            self._thread.start()

    def _list(self) -> str:
        found, version = self._cluster.list_with_version(self._kind, self._labels)
        self._objects, self._error = {one["metadata"]["name"]: one for one in found}, None
        return version

    def _watch(self, version: str) -> None:
        """Watch from a resource version on while there are calls; list again if the API server no longer knows the version, or did not answer."""
        failed = 0
        while time.monotonic() < self._last_call + _IDLE_TIMEOUT and self._may_watch:
            began = time.monotonic()
            opened = False
            try:
                if not version:
                    version = self._list()
                changes = self._cluster.watch(self._kind, version, self._labels, seconds=_WATCH_TIMEOUT)
                failed, opened = 0, True
                for change in changes:
                    version = self._apply(change)
            except TransientError as error:
                failed += bool(version and not opened)
                self._may_watch = failed < _MAX_FAILURES  # else a proxy buffers endless answers
                version = ""
                if not opened:
                    self._error = error
            except LauncherError as error:
                self._may_watch = http_status(error) == 410  # else watching is forbidden or not supported
                version = ""
            time.sleep(max(0.0, began + _RETRY_INTERVAL - time.monotonic()))

    def _apply(self, change: Object) -> str:
        """Apply a change; return its resource version, empty if the API server no longer knows the changes."""
        kind, obj = change["type"], change["object"]
        if kind == "ERROR":
            return ""
        if kind == "DELETED":
            self._objects.pop(obj["metadata"]["name"], None)
        elif kind != "BOOKMARK":
            self._objects[obj["metadata"]["name"]] = obj
        return str(obj["metadata"]["resourceVersion"])
