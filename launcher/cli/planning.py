"""A spec file becomes a plan for a target: what `plan`, `render` and `up` begin with."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.backend.model import Where
from launcher.plan import places, planner
from launcher.plan.models import Plan, Target
from launcher.spec.loader import digest, load
from launcher.spec.models import ClusterSpec


def planned(file: Path, overrides: Sequence[str], target: Target, runs: Path) -> tuple[ClusterSpec, Plan]:
    """Return the spec in `file` and its plan on `target`; `runs` holds the local runs. Raises SpecError and LauncherError."""
    spec = load(file, overrides)
    directory = file.absolute().parent.resolve()
    where = places.run_dir(target, runs, spec.name)
    return spec, planner.plan(spec, target, run_dir=where, digest=digest(_anywhere(spec, directory)), spec_dir=directory)


def planned_there(file: Path, overrides: Sequence[str], target: Target, runs: Path, where: Where) -> tuple[ClusterSpec, Plan, Where]:
    """Return the same, and the place that is meant: the namespace that `where` names stands for the spec's own.

    Where neither names one, a namespace that was named when the run was started last holds on: it is the same run.
    """
    if target != "kubernetes":
        return *planned(file, overrides, target, runs), where
    from launcher.backend.kubernetes import kept

    spec, plan = planned(file, _in_namespace(overrides, where.namespace), target, runs)
    if spec.kubernetes.namespace is None:
        before = kept.last(runs, spec.name, where.context, None)
        if before.said:
            spec, plan = planned(file, _in_namespace(overrides, before.namespace), target, runs)
    return spec, plan, Where(where.context, spec.kubernetes.namespace)


def _in_namespace(overrides: Sequence[str], namespace: str | None) -> list[str]:
    # As a part of the spec: manifests and status then name the same.
    return [*overrides, *([f"kubernetes.namespace={namespace}"] if namespace else [])]


def _anywhere(spec: ClusterSpec, directory: Path) -> ClusterSpec:
    """Return the spec with paths as from its file: what identifies it is the same in every checkout, and when a project is moved."""
    update: dict[str, Any] = {}
    if spec.code is not None:
        update["code"] = os.path.relpath(spec.code, directory)
    if spec.train is not None and Path(spec.train.data).is_relative_to(directory):
        update["train"] = spec.train.model_copy(update={"data": os.path.relpath(spec.train.data, directory)})
    return spec.model_copy(update=update)
