"""The backends by name; one is imported only when it is used."""

import importlib
import shlex
import sys
from pathlib import Path
from typing import cast

from launcher.backend.model import Backend, ClusterRef
from launcher.backend.registry import BACKENDS, DEFAULT, backends_with_local_specs, cluster_backend, in_namespaces
from launcher.cli.options import resolve_cluster_ref
from launcher.cli.run_lookup import backends_of, find_run, local_run_names, looks_like_file, run_names, runs_directory, runs_next_to
from launcher.errors import LauncherError, UsageError, did_you_mean
from launcher.plan.models import Target
from launcher.runs import orphans
from launcher.runs.paths import RunPaths
from launcher.runs.status import ENDED, RunStatus, State


def check_backend(name: str) -> Target:
    """Return the target of the backend called `name`. Raises UsageError for an unknown name."""
    for known in BACKENDS:
        if known == name:
            return known
    raise UsageError(f"there is no backend {name!r} in this version", f"{did_you_mean(name, BACKENDS)}use one of: {', '.join(BACKENDS)}")


def selected_backend_name(on: str | None, cluster: ClusterRef) -> str | None:
    """Return the backend that --on names; without --on that of clusters if a context or a namespace is given."""
    return cluster_backend() if on is None and (cluster.context or cluster.namespace) else on


def open_run(name: str | None, on: str | None, runs: Path, cluster: ClusterRef, *, unique: bool = False) -> tuple[Backend, str]:
    """Return the backend of the run that NAME means, and the run's name.

    If several backends have a run of that name and `on` is None, a live run is chosen before an ended one, then the newest; a line on stderr
    names it. `unique` is for verbs that end a run or wait for its end.

    Raises UsageError if the choice is ambiguous (with `unique` also for several live runs, or if none is live and a backend does not answer), and
    the errors of the backends.
    """
    if (on := selected_backend_name(on, cluster)) is not None:
        backend = open_backend(on, runs, cluster)
        return backend, find_run(name, backend, runs, on)
    names = [name] if name is not None else local_run_names(runs) or run_names(runs)
    if len(names) > 1:
        raise UsageError(f"there are {len(names)} runs under {runs}", f"name one of: {', '.join(names)}")
    run = find_run(names[0] if names else None, open_backend(DEFAULT, runs), runs)
    targets = backends_of(runs, run)
    if targets and DEFAULT not in targets and orphans.describe_all(RunPaths(runs.absolute() / run)):
        targets.insert(0, DEFAULT)  # its directory was removed while it ran
    if not targets and name and looks_like_file(name) and (beside_spec := runs_next_to(Path(name), runs, run)):
        raise UsageError(f"there is no run {run} in {runs}", f"there is one beside the spec: add --runs {shlex.quote(str(beside_spec))}")
    if len(targets) < 2:
        return open_backend(targets[0] if targets else DEFAULT, runs, cluster), run
    return _choose(run, {target: open_backend(target, runs, cluster) for target in targets}, unique=unique), run


def _choose(run: str, backends: dict[str, Backend], *, unique: bool) -> Backend:
    known: dict[str, RunStatus] = {}
    unreachable: dict[str, LauncherError] = {}
    for target, backend in backends.items():
        try:
            known[target] = backend.status(run)
        except UsageError:  # its objects were removed
            continue
        except LauncherError as error:
            unreachable[target] = error
    live = {target: status for target, status in known.items() if status.state not in ENDED or _has_orphans(status)}
    if unique and unreachable and not live:
        target, cause = next(iter(unreachable.items()))
        raise UsageError(f"the state of {run} on {target} is not known: {cause.message}", "choose a backend with --on") from cause
    if unique and len(live) > 1:
        raise UsageError(f"{run} runs on {' and on '.join(live)}", f"choose one: {' or '.join(f'--on {target}' for target in live)}")
    chosen = max(live or known, key=lambda target: known[target].started or 0.0, default=next(iter(backends)))
    listed = [f"on {target} ({status.state})" for target, status in known.items()]
    listed += [f"on {target} (state not known: {cause.message})" for target, cause in unreachable.items()]
    if len(listed) > 1:
        print(f"{run} is {', '.join(listed)}: using the one on {chosen}; --on chooses another", file=sys.stderr, flush=True)
    return backends[chosen]


def _has_orphans(status: RunStatus) -> bool:
    """Return whether processes of an interrupted run still run. The status has no `tasks` if the run's directory was removed."""
    interrupted = status.state is State.INTERRUPTED
    return interrupted and (not status.tasks or any(task.pid for task in status.tasks if task.state is State.INTERRUPTED))


def open_backend(name: str, runs: Path, cluster: ClusterRef | None = None) -> Backend:
    """Return the backend called `name`, which keeps its runs under `runs`, or on `cluster`.

    Raises UsageError for an unknown name, and for a `cluster` with a backend that has none.
    """
    module, _, attribute = BACKENDS[check_backend(name)].class_path.partition(":")
    backend_class = getattr(importlib.import_module(module), attribute)
    if in_namespaces(name):
        return cast("Backend", backend_class(runs, resolve_cluster_ref(name, cluster or ClusterRef())))
    if cluster is not None:
        check_cluster(name, cluster)
    return cast("Backend", backend_class(runs))


def check_cluster(name: str, cluster: ClusterRef) -> None:
    """Raise UsageError for a context or a namespace if the backend has none."""
    if not in_namespaces(name) and (cluster.context or cluster.namespace):
        raise UsageError(
            f"--context and --namespace are for clusters, and {name} is not one", f"leave them out, or add --on {cluster_backend()}"
        )


def known_runs(on: str | None, runs: Path, cluster: ClusterRef) -> list[tuple[Backend, RunStatus]]:
    """Return the runs on the backend `on`, or without it those of this machine and in containers, newest first; each with its backend.

    Act on a listed run with the backend returned here: a newly opened one acts where a run of that name was started last.
    """
    here = [other for other in backends_with_local_specs() if other != DEFAULT and runs_directory(runs, other).is_dir()]
    known: list[tuple[Backend, RunStatus]] = []
    for name in [on] if on is not None else [DEFAULT, *here]:
        try:
            backend = open_backend(name, runs, cluster if name == on else None)
            known += [(backend, status) for status in backend.runs()]
        except LauncherError as error:
            if on is not None or name == DEFAULT:
                raise
            print(f"the runs on {name} cannot be listed: {error.message}", file=sys.stderr)
    return sorted(known, key=lambda run: run[1].started or 0.0, reverse=True)
