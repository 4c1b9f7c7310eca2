"""`launcher diff`: the changes that `up` would make to objects in a cluster; for a run here or in containers, how the spec has changed since its start."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from launcher.backend.model import ClusterRef, ComparesObjects, PlannedRun
from launcher.backend.registry import cluster_backend, in_namespaces
from launcher.cli.options import Context, Json, Namespace, Runs, Set, SpecFile, backend_option
from launcher.cli.run_lookup import DEFAULT_RUNS, backends_of
from launcher.plan.models import Target

EXAMPLES = (
    ("launcher diff cluster.yaml --on kubernetes", "what `up` would create, change or delete there; empty if nothing"),
    ("launcher diff cluster.yaml --set train.steps=500 && echo same", "the exit code is 1 if there is a difference"),
    ("launcher diff cluster.yaml --on local", "what has changed in the spec since its run was started here last"),
)
DIFFERS = 1


def diff(
    file: SpecFile,
    *,
    set_options: Set = None,
    on: Annotated[
        str | None,
        backend_option(
            "The backend of the run; by default the one on which this machine has started it (a cluster first); if it has not, the cluster."
        ),
    ] = None,
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> int:
    """Show what `up` would change."""
    from launcher.cli.backends import check_backend, selected_backend_name

    cluster = ClusterRef(context, namespace)
    target = check_backend(selected_backend_name(on, cluster) or _default_backend(file, set_options or [], runs))
    if in_namespaces(target):
        lines = _objects_diff(file, set_options or [], target, runs, cluster)
        document: dict[str, Any] = {"on": target, "differs": bool(lines), "diff": lines}
    else:
        document, lines = _spec_diff(file, set_options or [], target, runs, cluster)
    print("\n".join([json.dumps(document)] if as_json else lines), end="\n" if lines or as_json else "")
    return DIFFERS if document["differs"] else 0


def _default_backend(file: Path, set_options: Sequence[str], runs: Path) -> str:
    """Return the backend to compare with: a cluster if this machine has started the run on one, or on no backend at all; else the one that it has."""
    from launcher.spec.loader import load

    started_on = backends_of(runs, load(file, set_options).name)
    return next((on for on in started_on if in_namespaces(on)), started_on[0] if started_on else cluster_backend())


def _objects_diff(file: Path, set_options: Sequence[str], target: Target, runs: Path, cluster: ClusterRef) -> list[str]:
    from launcher.cli.backends import open_backend
    from launcher.cli.planning import plan_for_cluster
    from launcher.spec.loader import dump

    spec, plan, cluster = plan_for_cluster(file, set_options, target, runs, cluster)
    backend = open_backend(target, runs, cluster)
    return list(backend.differences(PlannedRun(plan, dump(spec)))) if isinstance(backend, ComparesObjects) else []


def _spec_diff(file: Path, set_options: Sequence[str], target: Target, runs: Path, cluster: ClusterRef) -> tuple[dict[str, Any], list[str]]:
    """Return the changes of a spec since its run was last started: for `--json`, and as a table."""
    from launcher.cli.backends import open_backend
    from launcher.cli.resume import change_table, changed, previous_status
    from launcher.plan.spec_file import plan_file

    spec, plan = plan_file(file, set_options, target, runs)
    backend = open_backend(target, runs, cluster)
    old = previous_status(backend, spec.name)
    changes = None if old is None else changed(backend, spec, plan, runs)
    document = {"on": target, "name": spec.name, "state": old and old.state, "differs": changes is None or bool(changes)}
    if changes is None:
        return {**document, "changes": None}, [f"there is no run {spec.name} on {target} whose spec is known: `up` would start it"]
    return {**document, "changes": [{"path": path, "was": was, "is": value} for path, was, value in changes]}, [
        change_table(changes)
    ] * bool(changes)
