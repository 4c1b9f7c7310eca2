"""The lookup of a run by its NAME on the command line, and the run files that the command line reads itself."""

import os
import shlex
from pathlib import Path
from typing import Any

from launcher.backend.model import Backend
from launcher.backend.registry import BACKENDS, DEFAULT, backends_with_local_specs, cluster_backend, entry, in_namespaces
from launcher.errors import UsageError
from launcher.files import read_json
from launcher.runs.paths import START_FILE, is_run_name

DEFAULT_RUNS = Path("runs")
SPEC_FILES = (".yaml", ".yml")


def looks_like_file(name: str) -> bool:
    """Return whether a NAME is the path of a spec; a run's name has neither a slash nor a suffix."""
    return name.endswith(SPEC_FILES) or os.sep in name


def runs_directory(runs: Path, on: str) -> Path:
    """Return the directory with this machine's files about a backend's runs, one directory a run."""
    backend = entry(on)
    return runs / backend.state_directory if backend else runs


def backends_of(runs: Path, name: str) -> list[str]:
    """Return the backends on which a run of that name was started from here, by its files."""
    # Runs of clusters are below a directory for each cluster and namespace.
    patterns = {on: f"*/*/{name}/{START_FILE}" if backend.in_namespaces else f"{name}/launcher" for on, backend in BACKENDS.items()}
    return [on for on, pattern in patterns.items() if any(runs_directory(runs, on).glob(pattern))]


def runs_next_to(file: Path, runs: Path, name: str) -> Path | None:
    """Return the directory `runs` beside a spec's file if it has a run of that name and is not the parameter `runs`, else None."""
    beside_spec = file.parent / DEFAULT_RUNS
    return beside_spec if backends_of(beside_spec, name) and beside_spec.resolve() != runs.resolve() else None


def listing_scope(runs: Path, on: str | None) -> str:
    """Return where the runs of a backend are listed, as a phrase."""
    return "in the namespace" if in_namespaces(on) else f"under {runs}"


def find_run(name: str | None, backend: Backend, runs: Path, on: str | None = None) -> str:
    """Return the name of the run that NAME means: itself, the name in a spec file, or without it the only run of the backend, called `on`.

    Raises UsageError if it is None and there is not exactly one run, SpecError for a file that is no spec.
    """
    if name and looks_like_file(name):
        from launcher.spec.loader import run_name

        return run_name(Path(name))
    if name is not None:
        if not is_run_name(name):
            raise UsageError(
                f"{name!r} is not the name of a run", "names have lower-case letters, digits and dashes; `launcher ls` lists the runs"
            )
        return name
    known = backend.runs()
    if len(known) == 1:
        return known[0].name
    if not known:
        elsewhere = "add --namespace" if in_namespaces(on) else "name their directory with --runs"
        raise UsageError(
            f"there are no runs {listing_scope(runs, on)}",
            f"start one with `{command(runs, 'up', 'FILE', on=on or DEFAULT)}`, or {elsewhere}",
        )
    names = ", ".join(run.name for run in known)
    raise UsageError(f"there are {len(known)} runs {listing_scope(runs, on)}", f"name one of: {names}")


def relative_path(path: str) -> str:
    """Return a path for people: relative to the working directory if it is below it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def command(runs: Path, verb: str, *rest: str, on: str = DEFAULT) -> str:
    """Return a command line for the user, with --on for all runs but this machine's of an unambiguous name, and --runs unless it is the default."""
    words = ["launcher", verb, *rest]
    if on != DEFAULT or any(len(backends_of(runs, word)) > 1 for word in rest if is_run_name(word)):
        words += ["--on", on]
    if runs != Path(os.environ.get("LAUNCHER_RUNS") or DEFAULT_RUNS):
        words += ["--runs", str(runs)]
    return shlex.join(words)


def read_stored(runs: Path, name: str, document: str, on: str | None = None) -> dict[str, Any] | None:
    """Return the `document` (`spec` or `plan`) of a run's last start, or None if it cannot be read.

    `on` names the backend; by default, it may be any of this machine's. Only the cluster has those of a run on Kubernetes.
    """
    for target in (backend for backend in backends_with_local_specs() if on in {None, backend}):
        if (content := read_json(runs_directory(runs, target) / name / "launcher" / f"{document}.json")) is not None:
            return content
    return None


def run_names(runs: Path) -> list[str]:
    """Return the names of the runs under a directory, by its files only, since completion must be quick."""
    on_clusters = [path.parent.name for path in runs_directory(runs, cluster_backend()).glob(f"*/*/*/{START_FILE}")]
    return sorted({*local_run_names(runs), *filter(is_run_name, on_clusters)})


def local_run_names(runs: Path) -> list[str]:
    """Return only the runs of processes and containers: files about runs on clusters stay when the run, or even the cluster, is gone."""
    local_runs = [path.parent.name for on in backends_with_local_specs() for path in runs_directory(runs, on).glob("*/launcher")]
    return sorted(filter(is_run_name, set(local_runs)))
