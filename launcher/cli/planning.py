"""The plan of a spec file for a run in a cluster, whose namespace the spec, an option or the last start names."""

from collections.abc import Sequence
from pathlib import Path

from launcher.backend.model import ClusterRef
from launcher.backend.registry import in_namespaces
from launcher.cli.options import resolve_cluster_ref
from launcher.plan.models import Plan, Target
from launcher.plan.spec_file import plan_file
from launcher.spec.models import ClusterSpec


def plan_for_cluster(
    file: Path, set_options: Sequence[str], target: Target, runs: Path, cluster: ClusterRef
) -> tuple[ClusterSpec, Plan, ClusterRef]:
    """Return the spec in `file`, its plan on `target`, and the cluster with the context and the namespace in effect.

    The namespace of `cluster` overrides the spec's. If neither names one, the namespace that was named at the run's last start stays in
    effect, as it is the same run.
    """
    if not in_namespaces(target):
        return *plan_file(file, set_options, target, runs), cluster
    from launcher.runs import cluster_state

    cluster = resolve_cluster_ref(target, cluster)
    spec, plan = plan_file(file, _in_namespace(set_options, cluster.namespace), target, runs)
    if spec.kubernetes.namespace is None:
        last = cluster_state.last_started(runs, spec.name, cluster.context, None)
        if last.is_explicit:
            spec, plan = plan_file(file, _in_namespace(set_options, last.namespace), target, runs)
    return spec, plan, ClusterRef(cluster.context, spec.kubernetes.namespace)


def _in_namespace(set_options: Sequence[str], namespace: str | None) -> list[str]:
    # It becomes part of the spec so that manifests and status agree.
    return [*set_options, *([f"kubernetes.namespace={namespace}"] if namespace else [])]
