"""A spec file becomes a plan for a target: what `plan`, `render` and `up` begin with."""

import os
from collections.abc import Sequence
from pathlib import Path

from launcher.plan import places, planner
from launcher.plan.models import Plan, Target
from launcher.spec.loader import digest, load
from launcher.spec.models import ClusterSpec


def planned(file: Path, overrides: Sequence[str], target: Target, runs: Path) -> tuple[ClusterSpec, Plan]:
    """Return the spec in `file` and its plan on `target`; `runs` holds the local runs. Raises SpecError and LauncherError."""
    spec = load(file, overrides)
    known = spec if target == "local" else _anywhere(spec, file.absolute().parent)
    where = places.run_dir(target, runs, spec.name)
    return spec, planner.plan(spec, target, run_dir=where, digest=digest(known), spec_dir=file.parent)


def _anywhere(spec: ClusterSpec, directory: Path) -> ClusterSpec:
    """Return the spec with paths as from its file: what identifies it is the same in every checkout."""
    if spec.code is None:
        return spec
    return spec.model_copy(update={"code": os.path.relpath(spec.code, directory)})
