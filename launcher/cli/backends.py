"""The backends by name; one is imported only when it is used."""

import importlib
import shlex
import sys
from pathlib import Path
from typing import cast, get_args

from launcher.backend.model import Backend, ClusterRef
from launcher.backend.registry import BACKENDS, DEFAULT, in_namespaces, of_clusters, of_this_machine
from launcher.cli.options import resolve_cluster_ref
from launcher.cli.run_lookup import backends_of, find_run, looks_like_file, run_names, run_names_here, runs_directory, runs_next_to
from launcher.errors import LauncherError, UsageError, did_you_mean
from launcher.plan.models import Target
from launcher.runs import orphans
from launcher.runs.paths import RunPaths
from launcher.runs.status import ENDED, RunStatus, State


def check_backend(name: str) -> Target:
    """Return the target of the backend called `name`. Raises UsageError for a name that is none."""
    for known in BACKENDS:
        if known == name:
            return known
    raise UsageError(f"there is no backend {name!r} in this version", f"{did_you_mean(name, BACKENDS)}use one of: {', '.join(BACKENDS)}")


def check_target(name: str) -> Target:
    """Return the target of the plans called `name`: there may be manifests for it and no backend. Raises UsageError for none."""
    for known in get_args(Target):
        if known == name:
            return cast("Target", known)
    raise UsageError(f"there is nothing called {name!r} to plan for", f"use one of: {', '.join(get_args(Target))}")


def selected_backend_name(on: str | None, cluster: ClusterRef) -> str | None:
    """Return the backend that --on names, or else that of clusters where a context or a namespace is given."""
    return of_clusters() if on is None and (cluster.context or cluster.namespace) else on


def open_run(name: str | None, on: str | None, runs: Path, cluster: ClusterRef, *, one: bool = False) -> tuple[Backend, str]:
    """Return the backend of the run that NAME means, and the run's name.

    Without `on`, of runs of that name on several backends a live run is taken before one that has ended, and then the newest;
    which it is goes to stderr. `one` is for verbs that end a run or wait for its end: they need exactly one that may be live, so several live
    ones are refused, and so is none where a backend cannot be asked.

    Raises UsageError where it is not known which is meant, and what the backends raise.
    """
    if (on := selected_backend_name(on, cluster)) is not None:
        backend = open_backend(on, runs, cluster)
        return backend, find_run(name, backend, runs, on)
    names = [name] if name is not None else run_names_here(runs) or run_names(runs)
    if len(names) > 1:
        raise UsageError(f"there are {len(names)} runs under {runs}", f"say which one: {', '.join(names)}")
    run = find_run(names[0] if names else None, open_backend(DEFAULT, runs), runs)
    there = backends_of(runs, run)
    if there and DEFAULT not in there and orphans.leftover_processes(RunPaths(runs.absolute() / run)):
        there.insert(0, DEFAULT)  # its directory was removed while it ran
    if not there and name and looks_like_file(name) and (found := runs_next_to(Path(name), runs, run)):
        raise UsageError(f"there is no run {run} in {runs}", f"there is one beside the spec: add --runs {shlex.quote(str(found))}")
    if len(there) < 2:
        return open_backend(there[0] if there else DEFAULT, runs, cluster), run
    return _choose(run, {target: open_backend(target, runs, cluster) for target in there}, one=one), run


def _choose(run: str, backends: dict[str, Backend], *, one: bool) -> Backend:
    known: dict[str, RunStatus] = {}
    silent: dict[str, LauncherError] = {}
    for target, backend in backends.items():
        try:
            known[target] = backend.status(run)
        except UsageError:  # nothing of it is left there
            continue
        except LauncherError as error:
            silent[target] = error
    live = {target: status for target, status in known.items() if status.state not in ENDED or _left_processes(status)}
    if one and silent and not live:
        target, cause = next(iter(silent.items()))
        raise UsageError(f"{run} on {target} could not be asked about: {cause.message}", "say with --on which one is meant") from cause
    if one and len(live) > 1:
        raise UsageError(
            f"{run} runs on {' and on '.join(live)}", f"say which one is meant: {' or '.join(f'--on {target}' for target in live)}"
        )
    chosen = max(live or known, key=lambda target: known[target].started or 0.0, default=next(iter(backends)))
    listed = [f"on {target} ({status.state})" for target, status in known.items()]
    listed += [f"on {target} (could not be asked: {cause.message})" for target, cause in silent.items()]
    if len(listed) > 1:
        print(f"{run} is {', '.join(listed)}: this is the one on {chosen}; --on names another", file=sys.stderr, flush=True)
    return backends[chosen]


def _left_processes(status: RunStatus) -> bool:
    """Return whether processes of an interrupted run still run. One whose directory was removed is known by these alone, without its tasks."""
    interrupted = status.state is State.INTERRUPTED
    return interrupted and (not status.tasks or any(task.pid for task in status.tasks if task.state is State.INTERRUPTED))


def open_backend(name: str, runs: Path, cluster: ClusterRef | None = None) -> Backend:
    """Return the backend called `name`, which keeps its runs under `runs`; `cluster` says which cluster.

    Raises UsageError for a name that is none, and for a cluster where there is none.
    """
    module, _, attribute = BACKENDS[check_backend(name)].class_path.partition(":")
    make = getattr(importlib.import_module(module), attribute)
    if in_namespaces(name):
        cluster = cluster or ClusterRef()
        context, namespace = resolve_cluster_ref(name, cluster.context, cluster.namespace)
        return cast("Backend", make(runs, ClusterRef(context, namespace)))
    if cluster is not None:
        check_cluster(name, cluster)
    return cast("Backend", make(runs))


def check_cluster(name: str, cluster: ClusterRef) -> None:
    """Raise UsageError for a context or a namespace of a backend that has none."""
    if not in_namespaces(name) and (cluster.context or cluster.namespace):
        raise UsageError(f"--context and --namespace are for clusters; {name} is none", f"leave them out, or say --on {of_clusters()}")


def known_runs(on: str | None, runs: Path, cluster: ClusterRef) -> list[tuple[Backend, RunStatus]]:
    """Return the runs on one backend, or those that this directory knows, here and in containers, newest first; each with its backend.

    On a cluster that backend acts on the run that it has listed. Another one acts where a run of the name was started last.
    """
    here = [other for other in of_this_machine() if other != DEFAULT and runs_directory(runs, other).is_dir()]
    known: list[tuple[Backend, RunStatus]] = []
    for name in [on] if on is not None else [DEFAULT, *here]:
        try:
            backend = open_backend(name, runs, cluster if name == on else None)
            known += [(backend, status) for status in backend.runs()]
        except LauncherError as error:
            if on is not None or name == DEFAULT:
                raise
            print(f"the runs on {name} could not be asked about: {error.message}", file=sys.stderr)
    return sorted(known, key=lambda one: one[1].started or 0.0, reverse=True)
