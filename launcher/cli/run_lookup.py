"""The lookup of a run by its NAME on the command line, and the files of a run that the command line reads itself."""

import os
import shlex
from pathlib import Path
from typing import Any

from launcher.backend.model import Backend
from launcher.backend.registry import BACKENDS, DEFAULT, entry, in_namespaces, of_clusters, of_this_machine
from launcher.errors import UsageError
from launcher.files import read_json
from launcher.runs.paths import is_run_name

DEFAULT_RUNS = Path("runs")
SPEC_FILES = (".yaml", ".yml")


def looks_like_file(name: str) -> bool:
    """Return whether a NAME is the path of a spec; a run's name has neither a slash nor a suffix."""
    return name.endswith(SPEC_FILES) or os.sep in name


def runs_directory(runs: Path, on: str) -> Path:
    """Return the directory that holds what this machine keeps of a backend's runs, one directory a run."""
    found = entry(on)
    return runs / found.state_directory if found else runs


def backends_of(runs: Path, name: str) -> list[str]:
    """Return the backends on which a run of that name was started from here, without asking any."""
    # Of a cluster's runs it is in a directory a cluster and namespace.
    where = {on: f"*/*/{name}/place.json" if found.in_namespaces else f"{name}/launcher" for on, found in BACKENDS.items()}
    return [on for on, pattern in where.items() if any(runs_directory(runs, on).glob(pattern))]


def runs_next_to(file: Path, runs: Path, name: str) -> Path | None:
    """Return the directory `runs` beside a spec's file where that has a run of that name and is another one than `runs`, else None."""
    found = file.parent / DEFAULT_RUNS
    return found if backends_of(found, name) and found.resolve() != runs.resolve() else None


def listing_scope(runs: Path, on: str | None) -> str:
    """Return in words where the runs of a backend are listed."""
    return "in the namespace" if in_namespaces(on) else f"under {runs}"


def find_run(name: str | None, backend: Backend, runs: Path, on: str | None = None) -> str:
    """Return the name of the run that NAME means: itself, the name in a spec file, or the only run of the backend, called `on`, when it is left out.

    Raises UsageError when it is left out and there is not exactly one run, SpecError for a file that is no spec.
    """
    if name and looks_like_file(name):
        from launcher.spec.loader import run_name

        return run_name(Path(name))
    if name is not None:
        if not is_run_name(name):
            raise UsageError(f"{name!r} is no run's name", "names have lower-case letters, digits and dashes; `launcher ls` lists the runs")
        return name
    known = backend.runs()
    if len(known) == 1:
        return known[0].name
    if not known:
        elsewhere = "say --namespace" if in_namespaces(on) else "name their directory with --runs"
        raise UsageError(f"there are no runs {listing_scope(runs, on)}", f"start one with `launcher up FILE`, or {elsewhere}")
    names = ", ".join(run.name for run in known)
    raise UsageError(f"there are {len(known)} runs {listing_scope(runs, on)}", f"say which one: {names}")


def relative_path(path: str) -> str:
    """Return a path for people: from the working directory, where it is below it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def command(runs: Path, verb: str, *rest: str, on: str = DEFAULT) -> str:
    """Return the command line a user types next, with --on and --runs where the run is not where a verb looks by itself."""
    words = ["launcher", verb, *rest]
    if on != DEFAULT or any(len(backends_of(runs, word)) > 1 for word in rest if is_run_name(word)):
        words += ["--on", on]
    if runs != Path(os.environ.get("LAUNCHER_RUNS") or DEFAULT_RUNS):
        words += ["--runs", str(runs)]
    return shlex.join(words)


def stored(runs: Path, name: str, document: str, on: str | None = None) -> dict[str, Any] | None:
    """Return `spec` or `plan` as it was when the run was started last, or None when there is none that can be read.

    `on` names the backend; where left out, here or in containers. Of a run on Kubernetes the cluster alone has them.
    """
    for target in (one for one in of_this_machine() if on in {None, one}):
        if (content := read_json(runs_directory(runs, target) / name / "launcher" / f"{document}.json")) is not None:
            return content
    return None


def run_names(runs: Path) -> list[str]:
    """Return the names of the runs under a directory, without asking a backend: completion must be quick."""
    on_clusters = [path.parent.name for path in runs_directory(runs, of_clusters()).glob("*/*/*/place.json")]
    return sorted({*run_names_here(runs), *filter(is_run_name, on_clusters)})


def run_names_here(runs: Path) -> list[str]:
    """Return those of processes and containers: what is noted of runs on clusters stays when they, or even the cluster, are gone."""
    local_runs = [path.parent.name for on in of_this_machine() for path in runs_directory(runs, on).glob("*/launcher")]
    return sorted(filter(is_run_name, set(local_runs)))
