"""What this machine keeps of runs on clusters: where each was started, and the output of pods that are gone since.

One directory a run and place, `runs`/.kubernetes/<context>/<namespace>/<run>: the same name may run in several places.
"""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from launcher.backend.local import state
from launcher.backend.local.trouble import explain

_ROOT = ".kubernetes"  # no run of another backend has that name
_PLACE = "place.json"
_IN_CLUSTER = "@"  # in a pod, where no kubeconfig names the cluster; what is quoted has none of these


@dataclass(frozen=True)
class Place:
    """One namespace of one cluster. `said`: it was named by the user or the spec, and is not merely the context's own."""

    context: str | None
    namespace: str | None
    said: bool = False


def directory(runs: Path, place: Place, run: str) -> Path:
    """Return where this machine keeps what it knows of a run."""
    return runs / _ROOT / _quoted(place.context) / _quoted(place.namespace) / run


def logs(runs: Path, place: Place, run: str) -> Path:
    """Return where the output of a run's pods is kept."""
    return directory(runs, place, run) / "logs"


def remember(runs: Path, place: Place, run: str) -> None:
    """Note where a run is started now. Raises LauncherError when that cannot be written."""
    file = directory(runs, place, run) / _PLACE
    noted = {"context": place.context, "namespace": place.namespace, "said": place.said, "started": time.time()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        state.write_json(file, noted)
    except OSError as error:
        raise explain(error, f"noting where {run} is") from error


def last(runs: Path, run: str, context: str | None, namespace: str | None) -> Place:
    """Return where a run was started last, among the places that fit what the user gives; where the user points if it is not known."""
    known = [place for _, place in sorted(_places(runs, run), key=lambda noted: noted[0], reverse=True)]
    for place in known:
        if context in {None, place.context} and namespace in {None, place.namespace}:
            return place
    # A namespace where it was never started, in the cluster that is meant.
    return Place(known[0].context if context is None and known else context, namespace)


def forget(runs: Path, place: Place, run: str) -> None:
    """Delete all that is kept of a run. Raises LauncherError when it cannot be."""
    try:
        if directory(runs, place, run).exists():
            shutil.rmtree(directory(runs, place, run))
    except OSError as error:
        raise explain(error, f"deleting what is kept of {run}") from error


def rename(runs: Path, place: Place, run: str, aside: str) -> None:
    """Keep what is kept of a run under another name."""
    there = directory(runs, place, run)
    if there.exists():
        there.rename(there.with_name(aside))


def _places(runs: Path, run: str) -> list[tuple[float, Place]]:
    found = []
    for file in (runs / _ROOT).glob(f"*/*/{run}/{_PLACE}"):
        noted = state.read_json(file) or {}
        try:
            found.append((float(noted["started"]), Place(noted["context"], noted["namespace"], bool(noted["said"]))))
        except (KeyError, TypeError, ValueError):  # another version's
            continue
    return found


def _quoted(part: str | None) -> str:
    """Return a name of any characters, as those of contexts are, as the name of a directory; different ones stay different."""
    if part is None:
        return _IN_CLUSTER
    return quote(part, safe="").replace(".", "%2E") if part.startswith(".") else quote(part, safe="")
