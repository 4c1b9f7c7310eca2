"""Notes of this machine on runs on clusters: where each was started, and the output of pods that are gone since.

One directory per run and namespace, `runs`/.kubernetes/<context>/<namespace>/<run>: the same name may run in several namespaces.
"""

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from launcher import files
from launcher.runs import state_file
from launcher.runs.os_errors import translate_os_errors
from launcher.runs.paths import KUBERNETES_STATE_DIR

_ROOT = KUBERNETES_STATE_DIR
_START_FILE = "place.json"
_IN_CLUSTER = "@"  # in a pod, where no kubeconfig names the cluster; quoted names have none of these


@dataclass(frozen=True)
class NamespaceRef:
    """One namespace of one cluster. `is_explicit`: it was named by the user or the spec, and is not merely the context's own."""

    context: str | None
    namespace: str | None
    is_explicit: bool = False


def directory(runs: Path, ref: NamespaceRef, run: str) -> Path:
    """Return the directory in which this machine keeps its notes on a run."""
    return runs / _ROOT / _quoted(ref.context) / _quoted(ref.namespace) / run


def logs(runs: Path, ref: NamespaceRef, run: str) -> Path:
    """Return the directory in which the output of a run's pods is stored."""
    return directory(runs, ref, run) / "logs"


def remember(runs: Path, ref: NamespaceRef, run: str) -> Callable[[], None]:
    """Note where a run is started now; return a function that restores the earlier note. Raises LauncherError when the new one cannot be written."""
    file = directory(runs, ref, run) / _START_FILE
    before = files.read_json(file)
    noted = {"context": ref.context, "namespace": ref.namespace, "said": ref.is_explicit, "started": time.time()}
    with translate_os_errors(f"noting where {run} is"):
        file.parent.mkdir(parents=True, exist_ok=True)
        state_file.write_json(file, noted)
    return lambda: _put_back(file, before)


def _put_back(file: Path, before: dict[str, Any] | None) -> None:
    with contextlib.suppress(OSError):  # what keeps the run from starting is the one to tell
        if before is None:
            file.unlink(missing_ok=True)
        else:
            state_file.write_json(file, before)


def last(runs: Path, run: str, context: str | None, namespace: str | None) -> NamespaceRef:
    """Return where a run was started last, among the namespaces that fit what the user gives; where the user points if it is not known."""
    _adopt(runs, run)
    known = [ref for _, ref in sorted(_starts(runs, run), key=lambda noted: noted[0], reverse=True)]
    for ref in known:
        if context in {None, ref.context} and namespace in {None, ref.namespace}:
            return ref
    # A namespace where it was never started, in the cluster that is meant.
    return NamespaceRef(known[0].context if context is None and known else context, namespace)


def forget(runs: Path, ref: NamespaceRef, run: str) -> None:
    """Delete all that is stored of a run. Raises LauncherError when it cannot be."""
    with translate_os_errors(f"deleting what is kept of {run}"):
        if directory(runs, ref, run).exists():
            shutil.rmtree(directory(runs, ref, run))


def rename(runs: Path, ref: NamespaceRef, run: str, new_name: str) -> None:
    """Rename a run's stored output; where the run is stays known, as it starts from the first step there."""
    there = logs(runs, ref, run)
    if there.exists():
        target = logs(runs, ref, new_name)
        target.parent.mkdir(parents=True, exist_ok=True)
        there.rename(target)


def _adopt(runs: Path, run: str) -> None:
    """Move notes of an earlier version, which kept them by the run's name, `runs`/.kubernetes/<run>, to the namespace noted in them."""
    old = runs / _ROOT / run
    noted = files.read_json(old / _START_FILE)
    if noted is None or "namespace" not in noted:
        return
    ref = NamespaceRef(noted.get("context"), noted["namespace"])
    new = directory(runs, ref, run)
    with contextlib.suppress(OSError):  # it stays where it is, and a verb that only looks continues
        for log in old.glob("logs/*/*.log"):  # the name of each is that of a pod, of which there is one
            target = new / log.relative_to(old)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                log.rename(target)
        if not (new / _START_FILE).exists():
            new.mkdir(parents=True, exist_ok=True)
            state_file.write_json(
                new / _START_FILE,
                {"context": ref.context, "namespace": ref.namespace, "said": False, "started": (old / _START_FILE).stat().st_mtime},
            )
        (old / _START_FILE).unlink()
        for emptied in (*old.glob("logs/*"), old / "logs", old):  # a context may have the run's name: what has anything in it stays
            emptied.rmdir()


def _starts(runs: Path, run: str) -> list[tuple[float, NamespaceRef]]:
    found = []
    for file in (runs / _ROOT).glob(f"*/*/{run}/{_START_FILE}"):
        noted = files.read_json(file) or {}
        try:
            found.append((float(noted["started"]), NamespaceRef(noted["context"], noted["namespace"], bool(noted["said"]))))
        except (KeyError, TypeError, ValueError):  # another version's
            continue
    return found


def _quoted(part: str | None) -> str:
    """Return a name of any characters, as those of contexts are, as the name of a directory; different ones stay different."""
    if part is None:
        return _IN_CLUSTER
    return quote(part, safe="").replace(".", "%2E") if part.startswith(".") else quote(part, safe="")
