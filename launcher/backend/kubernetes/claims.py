"""Whether a run's data is where it was: its claim may have been deleted, be about to go, or be another one of that name."""

import time

from launcher.backend.kubernetes import record
from launcher.backend.kubernetes.api import Cluster, Object
from launcher.backend.model import Loss

_EVERY = 30.0  # seconds
_KIND = "PersistentVolumeClaim"


def name_of(run: str, noted: Object | None) -> str:
    """Return the name of the claim that a run was last started with."""
    section = (record.spec(noted) or {}).get("kubernetes") or {}
    return str(section.get("claim") or run)


class Watch:
    """Looks at the claim of one run again and again, not more often than is worth it."""

    def __init__(self, cluster: Cluster, run: str) -> None:
        self._cluster, self._run = cluster, run
        self._found: Loss | None = None
        self._next = 0.0

    def loss(self) -> Loss | None:
        """Return why the run's data is not where it was; None where it is, or where the record does not name its claim. Raises LauncherError."""
        if time.monotonic() >= self._next:
            noted = self._cluster.get("ConfigMap", record.name_of(self._run))
            uid, name = record.claim(noted), name_of(self._run, noted)
            self._found = None if uid is None else loss(name, uid, self._cluster.get(_KIND, name))
            self._next = time.monotonic() + _EVERY
        return self._found


def loss(name: str, uid: str, there: Object | None) -> Loss | None:
    """Return why the data on the claim of that uid is lost, by what is `there` under its name. Pure."""
    if there is None:
        return Loss("deleted", f"the claim {name} was deleted, and what the run had stored there with it")
    head = there["metadata"]
    if head["uid"] != uid:
        made = f" (made {head['creationTimestamp']})" if head.get("creationTimestamp") else ""
        return Loss(
            "replaced",
            f"the claim {name} was deleted and made again{made}: what the run had stored is not on it, unless somebody has restored it",
        )
    if head.get("deletionTimestamp"):
        return Loss("deleting", f"the claim {name} is being deleted: with the last pod that uses it goes all that the run has stored")
    return None
