"""A spec file becomes a plan for a target: the first step of `plan`, `render`, `diff` and `up`."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import UsageError
from launcher.plan import code, planner
from launcher.plan.models import Plan, Target
from launcher.plan.target_rules import TARGET_RULES
from launcher.spec.loader import digest, load_with_original
from launcher.spec.models import ClusterSpec


def plan_file(file: Path, set_options: Sequence[str], target: Target, runs: Path) -> tuple[ClusterSpec, Plan]:
    """Return the spec in `file` and its plan on `target`; `runs` holds the local runs. Raises SpecError and LauncherError."""
    spec, written = load_with_original(file, set_options)
    directory = file.absolute().parent.resolve()
    run_dir = TARGET_RULES[target].run_dir(runs, spec.name)
    _check_paths(spec, run_dir)
    spec_digest = digest(_with_relative_paths(spec, written, directory)) + code.digest_suffix(spec.code)
    return spec, planner.plan(spec, target, run_dir=run_dir, digest=spec_digest, spec_dir=directory)


def _check_paths(spec: ClusterSpec, run_dir: str) -> None:
    """Raise UsageError for a path that is not UTF-8: the tasks' settings and the files of a run cannot hold it."""
    for name, path in _paths(spec, run_dir):
        try:
            path.encode()
        except UnicodeEncodeError:
            escaped = os.fsencode(path).decode(errors="backslashreplace")
            alternative = "choose another one for the runs: --runs DIR" if path == run_dir else "choose another one in the spec"
            raise UsageError(f"the path of {name} is not UTF-8: {escaped}", f"rename the directory, or {alternative}") from None


def _paths(spec: ClusterSpec, run_dir: str) -> Iterator[tuple[str, str]]:
    yield "the run directory", run_dir
    yield from ((f"`{name}`", path) for name, path in (("code", spec.code), ("env_file", spec.env_file)) if path is not None)
    if spec.train is not None:
        yield "`train.data`", spec.train.data
    yield from ((f"the volume {volume.name}", volume.path) for volume in spec.volumes if volume.path is not None)


def _with_relative_paths(spec: ClusterSpec, written: ClusterSpec, directory: Path) -> ClusterSpec:
    """Return the spec with paths relative to its file: its digest is then the same in every checkout, and after a project was moved."""
    update: dict[str, Any] = {}
    if spec.code is not None and written.code is not None:
        update["code"] = _relative_to_spec(spec.code, written.code, directory)
    update["volumes"] = [
        volume
        if volume.path is None or as_written.path is None
        else volume.model_copy(update={"path": _relative_to_spec(volume.path, as_written.path, directory)})
        for volume, as_written in zip(spec.volumes, written.volumes, strict=True)
    ]
    if spec.env_file is not None and written.env_file is not None:
        update["env_file"] = _relative_to_spec(spec.env_file, written.env_file, directory)
    if spec.train is not None and written.train is not None:
        update["train"] = spec.train.model_copy(update={"data": _relative_to_spec(spec.train.data, written.train.data, directory)})
    return spec.model_copy(update=update)


def _relative_to_spec(path: str, written: str, directory: Path) -> str:
    """Return an absolute path relative to the spec's directory. A path written as absolute and outside of it stays, as does a word such as `download`."""
    is_as_written = path == written or Path(written).expanduser().is_absolute()
    return path if is_as_written and not Path(path).is_relative_to(directory) else os.path.relpath(path, directory)
