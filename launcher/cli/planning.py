"""A spec file becomes a plan for a target: what `plan`, `render` and `up` begin with."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.backend.model import ClusterRef
from launcher.backend.registry import in_namespaces
from launcher.errors import UsageError
from launcher.plan import code, planner
from launcher.plan.models import Plan, Target
from launcher.plan.target_rules import TARGET_RULES
from launcher.spec.loader import digest, load_as_written
from launcher.spec.models import ClusterSpec


def planned(file: Path, overrides: Sequence[str], target: Target, runs: Path) -> tuple[ClusterSpec, Plan]:
    """Return the spec in `file` and its plan on `target`; `runs` holds the local runs. Raises SpecError and LauncherError."""
    spec, written = load_as_written(file, overrides)
    directory = file.absolute().parent.resolve()
    cluster = TARGET_RULES[target].run_dir(runs, spec.name)
    _check_paths(spec, cluster)
    spec_digest = digest(_anywhere(spec, written, directory)) + code.suffix(spec.code)
    return spec, planner.plan(spec, target, run_dir=cluster, digest=spec_digest, spec_dir=directory)


def plan_for_cluster(
    file: Path, overrides: Sequence[str], target: Target, runs: Path, cluster: ClusterRef
) -> tuple[ClusterSpec, Plan, ClusterRef]:
    """Return the same, and the cluster that is meant: the namespace that `cluster` names stands for the spec's own.

    Where neither names one, a namespace that was named when the run was started last holds on: it is the same run.
    """
    if not in_namespaces(target):
        return *planned(file, overrides, target, runs), cluster
    from launcher.runs import cluster_cache

    spec, plan = planned(file, _in_namespace(overrides, cluster.namespace), target, runs)
    if spec.kubernetes.namespace is None:
        before = cluster_cache.last(runs, spec.name, cluster.context, None)
        if before.is_explicit:
            spec, plan = planned(file, _in_namespace(overrides, before.namespace), target, runs)
    return spec, plan, ClusterRef(cluster.context, spec.kubernetes.namespace)


def _in_namespace(overrides: Sequence[str], namespace: str | None) -> list[str]:
    # As a part of the spec: manifests and status then name the same.
    return [*overrides, *([f"kubernetes.namespace={namespace}"] if namespace else [])]


def _check_paths(spec: ClusterSpec, run_dir: str) -> None:
    """Raise UsageError for a path that is not UTF-8: neither the tasks' settings nor the files of a run can have it."""
    for name, path in _paths(spec, run_dir):
        try:
            path.encode()
        except UnicodeEncodeError:
            escaped = os.fsencode(path).decode(errors="backslashreplace")
            other = "name another one for the runs: --runs DIR" if path == run_dir else "name another one in the spec"
            raise UsageError(f"the path of {name} is not UTF-8: {escaped}", f"rename the directory, or {other}") from None


def _paths(spec: ClusterSpec, run_dir: str) -> Iterator[tuple[str, str]]:
    yield "the run directory", run_dir
    yield from ((f"`{name}`", path) for name, path in (("code", spec.code), ("env_file", spec.env_file)) if path is not None)
    if spec.train is not None:
        yield "`train.data`", spec.train.data
    yield from ((f"the volume {volume.name}", volume.path) for volume in spec.volumes if volume.path is not None)


def _anywhere(spec: ClusterSpec, written: ClusterSpec, directory: Path) -> ClusterSpec:
    """Return the spec with paths as from its file: what identifies it is the same in every checkout, and when a project is moved."""
    update: dict[str, Any] = {}
    if spec.code is not None and written.code is not None:
        update["code"] = _from_file(spec.code, written.code, directory)
    update["volumes"] = [
        volume
        if volume.path is None or as_written.path is None
        else volume.model_copy(update={"path": _from_file(volume.path, as_written.path, directory)})
        for volume, as_written in zip(spec.volumes, written.volumes, strict=True)
    ]
    if spec.env_file is not None and written.env_file is not None:
        update["env_file"] = _from_file(spec.env_file, written.env_file, directory)
    if spec.train is not None and written.train is not None:
        update["train"] = spec.train.model_copy(update={"data": _from_file(spec.train.data, written.train.data, directory)})
    return spec.model_copy(update=update)


def _from_file(path: str, written: str, directory: Path) -> str:
    """Return an absolute path as from the spec's file, unless it is elsewhere and was written as an absolute one; another word as it is."""
    is_written_so = path == written or Path(written).expanduser().is_absolute()
    return path if is_written_so and not Path(path).is_relative_to(directory) else os.path.relpath(path, directory)
