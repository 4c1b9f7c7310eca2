"""Objects of one kind as a cluster has them: listed once, then kept up to date by a watch, as the informers of client-go do."""

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from launcher.backend.kubernetes.client import Cluster, Object, status_of
from launcher.backend.kubernetes.errors import UnreachableError
from launcher.errors import LauncherError

# Seconds after which the API server ends a watch, which is then opened again where it was. A connection that is dead is noticed within these, too.
_WATCHED = 30
_RETRY_INTERVAL = 1.0  # seconds between two requests of a watch, at the least
_ABANDONED = 60.0  # seconds without a caller after which a watch ends
_NOT_OPENED = 2  # times in a row that the cluster has answered a list, but not a watch
_MAX_POLL_INTERVAL = 10.0  # seconds between two lists, at the most, where nothing can be watched


def versions(objects: Iterable[Mapping[str, Any]]) -> frozenset[tuple[str, str]]:
    """Return the versions of objects, by which changes are noticed."""
    return frozenset((str(one["metadata"].get("uid")), str(one["metadata"].get("resourceVersion"))) for one in objects)


class PollBackoff:
    """When to ask again for a state that may have changed: at first every second, then after a tenth of the time since the last change was seen."""

    def __init__(self, longest: float) -> None:
        """Begin; no pause is longer than `longest` seconds."""
        self._longest, self._state = longest, object()
        self._since = self._next = 0.0  # of time.monotonic

    def due(self, state: object) -> bool:
        """Return whether to ask now; `state` is another one where something has changed, and then it is time at once."""
        now = time.monotonic()
        if state != self._state:
            self._state, self._since, self._next = state, now, now
        if now < self._next:
            return False
        self._next = now + min(max(1.0, (now - self._since) / 10), self._longest)
        return True


class Informer:
    """The objects of a kind that have all of some labels. Asked once it lists them; from then on it watches, as long as it is asked."""

    def __init__(self, cluster: Cluster, kind: str, labels: Mapping[str, str]) -> None:
        self._cluster, self._kind, self._labels = cluster, kind, labels
        self._lock = threading.Lock()  # of the callers
        self._there: dict[str, Object] = {}
        self._error: LauncherError | None = None  # the reason why `_there` may be out of date
        self._asked = 0.0  # of time.monotonic
        self._watching: threading.Thread | None = None
        self._may_watch = True
        self._backoff = PollBackoff(_MAX_POLL_INTERVAL)  # where it may not

    def objects(self) -> list[Object]:
        """Return the objects, by name. Raises LauncherError, UnreachableError while the cluster does not answer."""
        with self._lock:
            before, self._asked = self._asked, time.monotonic()
            if self._watching is None or not self._watching.is_alive():
                self._ask(again=bool(before))
            if self._error is not None:
                raise type(self._error)(self._error.message, self._error.remedy) from self._error.__cause__
            return [thing for _, thing in sorted(self._there.copy().items())]

    def poll_soon(self) -> None:
        """List again at once, and as often as after a change, if nothing can be watched."""
        self._backoff = PollBackoff(_MAX_POLL_INTERVAL)

    def _ask(self, *, again: bool) -> None:
        if again and not self._may_watch and not self._backoff.due(versions(self._there.values())):
            return
        try:
            version = self._list()
        except LauncherError:
            self._backoff = PollBackoff(_MAX_POLL_INTERVAL)  # objects are returned again only once the cluster has answered
            raise
        self._backoff.due(versions(self._there.values()))
        if again and self._may_watch:
            self._watching = threading.Thread(target=self._watch, args=(version,), name=f"watch {self._kind}", daemon=True)
            self._watching.start()

    def _list(self) -> str:
        found, version = self._cluster.list_with_version(self._kind, self._labels)
        self._there, self._error = {one["metadata"]["name"]: one for one in found}, None
        return version

    def _watch(self, version: str) -> None:
        """Watch from a resource version on for as long as callers ask; list again if the API server has forgotten it, or was away."""
        failed = 0
        while time.monotonic() < self._asked + _ABANDONED and self._may_watch:
            began = time.monotonic()
            opened = False
            try:
                if not version:
                    version = self._list()
                changes = self._cluster.watch(self._kind, version, self._labels, seconds=_WATCHED)
                failed, opened = 0, True
                for change in changes:
                    version = self._apply(change)
            except UnreachableError as error:
                failed += bool(version and not opened)
                self._may_watch = failed < _NOT_OPENED  # else a proxy holds answers back that have no end
                version = ""
                if not opened:
                    self._error = error
            except LauncherError as error:
                self._may_watch = status_of(error) == 410  # else it may not be watched, or cannot
                version = ""
            time.sleep(max(0.0, began + _RETRY_INTERVAL - time.monotonic()))

    def _apply(self, change: Object) -> str:
        """Take in a change; return the resource version that it leads to, empty where the API server does not know what has changed."""
        kind, thing = change["type"], change["object"]
        if kind == "ERROR":
            return ""
        if kind == "DELETED":
            self._there.pop(thing["metadata"]["name"], None)
        elif kind != "BOOKMARK":
            self._there[thing["metadata"]["name"]] = thing
        return str(thing["metadata"]["resourceVersion"])
