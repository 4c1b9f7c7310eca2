"""This machine's files about runs on clusters: where each was started, and the output of pods that are gone.

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
from launcher.runs.os_errors import translate_os_errors
from launcher.runs.paths import KUBERNETES_STATE_DIR, START_FILE

_ROOT = KUBERNETES_STATE_DIR
_IN_CLUSTER = "@"  # stands for no name, as of the context in a pod, which has no kubeconfig; no quoted name contains this character


@dataclass(frozen=True)
class NamespaceRef:
    """One namespace of one cluster, where a run was started: resolved and stored, unlike a `ClusterRef`, which is what the user named.

    `is_explicit`: the user or the spec named it; otherwise it is the context's default.
    """

    context: str | None
    namespace: str | None
    is_explicit: bool = False


def directory(runs: Path, ref: NamespaceRef, run: str) -> Path:
    """Return the directory of this machine's files about a run."""
    return runs / _ROOT / _quoted(ref.context) / _quoted(ref.namespace) / run


def logs(runs: Path, ref: NamespaceRef, run: str) -> Path:
    """Return the directory in which the output of a run's pods is stored."""
    return directory(runs, ref, run) / "logs"


def record_start(runs: Path, ref: NamespaceRef, run: str) -> Callable[[], None]:
    """Record where a run is started now; return a function that restores the earlier record. Raises LauncherError if the file cannot be written."""
    file = directory(runs, ref, run) / START_FILE
    before = files.read_json(file)
    start = {"context": ref.context, "namespace": ref.namespace, "said": ref.is_explicit, "started": time.time()}
    with translate_os_errors(f"noting where {run} is"):
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(file, start)
    return lambda: _restore(file, before)


def _restore(file: Path, before: dict[str, Any] | None) -> None:
    with contextlib.suppress(OSError):  # the error that keeps the run from starting is the one to report
        if before is None:
            file.unlink(missing_ok=True)
        else:
            files.write_json(file, before)


def last_started(runs: Path, run: str, context: str | None, namespace: str | None) -> NamespaceRef:
    """Return the namespace of a run's last start in `context` and `namespace`, as far as they are given.

    If there was none: `namespace`, in `context` if given, else in the context of the last start.
    """
    _migrate(runs, run)
    known = [ref for _, ref in sorted(_starts(runs, run), key=lambda start: start[0], reverse=True)]
    for ref in known:
        if context in {None, ref.context} and namespace in {None, ref.namespace}:
            return ref
    # The run was never started there: use the cluster of its last start unless the user names another.
    return NamespaceRef(known[0].context if context is None and known else context, namespace)


def forget(runs: Path, ref: NamespaceRef, run: str) -> None:
    """Delete this machine's files about a run. Raises LauncherError if that fails."""
    with translate_os_errors(f"deleting what is kept of {run}"):
        if directory(runs, ref, run).exists():
            shutil.rmtree(directory(runs, ref, run))


def rename(runs: Path, ref: NamespaceRef, run: str, new_name: str) -> None:
    """Rename a run's stored output; the record of its start stays, since the run starts there again from the first step."""
    stored = logs(runs, ref, run)
    if stored.exists():
        target = logs(runs, ref, new_name)
        target.parent.mkdir(parents=True, exist_ok=True)
        stored.rename(target)


def _migrate(runs: Path, run: str) -> None:
    """Move the files of an earlier version, `runs`/.kubernetes/<run>, to the directory of the namespace that they name."""
    old = runs / _ROOT / run
    start = files.read_json(old / START_FILE)
    if start is None or "namespace" not in start:
        return
    ref = NamespaceRef(start.get("context"), start["namespace"])
    new = directory(runs, ref, run)
    with contextlib.suppress(OSError):  # the files stay where they are; a verb that only reads need not fail
        for log in old.glob("logs/*/*.log"):  # each is named after a pod, so names are unique
            target = new / log.relative_to(old)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                log.rename(target)
        if not (new / START_FILE).exists():
            new.mkdir(parents=True, exist_ok=True)
            files.write_json(
                new / START_FILE,
                {"context": ref.context, "namespace": ref.namespace, "said": False, "started": (old / START_FILE).stat().st_mtime},
            )
        (old / START_FILE).unlink()
        for emptied in (*old.glob("logs/*"), old / "logs", old):  # a context may have the run's name: directories that are not empty stay
            emptied.rmdir()


def _starts(runs: Path, run: str) -> list[tuple[float, NamespaceRef]]:
    starts = []
    for file in (runs / _ROOT).glob(f"*/*/{run}/{START_FILE}"):
        start = files.read_json(file) or {}
        try:
            starts.append((float(start["started"]), NamespaceRef(start["context"], start["namespace"], bool(start["said"]))))
        except (KeyError, TypeError, ValueError):  # written by another version
            continue
    return starts


def _quoted(part: str | None) -> str:
    """Return a name, of any characters, as the name of a directory; different names stay different."""
    if part is None:
        return _IN_CLUSTER
    return quote(part, safe="").replace(".", "%2E") if part.startswith(".") else quote(part, safe="")
