"""Checks whether this machine can run a cluster of processes."""

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from launcher.backend.check_results import CheckRequest, CheckResult, ok, problem, warning
from launcher.files import is_directory
from launcher.formats import binary_size, decimal_size
from launcher.plan.machine import detect
from launcher.runs import os_errors
from launcher.spec.role_programs import roles_of

_MIN_DISK = 1_000_000_000  # bytes for checkpoints and logs


def examine(request: CheckRequest) -> Iterator[CheckResult]:
    """Yield the results of the checks: Python, packages, processors, disk."""
    yield ok("python", f"{sys.version.split()[0]} at {sys.executable}")
    yield from _packages(request)
    yield from _processors(request)
    yield from _disk(Path(request.runs).absolute())


def _packages(request: CheckRequest) -> Iterator[CheckResult]:
    needed = request.spec is None or request.spec.train is not None
    for package in ("tensorflow", "tensorboard"):
        if importlib.util.find_spec(package) is not None:
            yield ok(package, "installed")
        elif needed:
            yield problem(
                package, "not installed", f"install the trainer's requirements: {sys.executable} -m pip install 'tf-launcher[trainer]'"
            )
        else:
            yield warning(package, "not installed", "a program of your own may not need it")


def _processors(request: CheckRequest) -> Iterator[CheckResult]:
    machine = detect(with_gpus=True)
    gpus = len(machine.gpus)
    yield ok("processors", f"{machine.cores} cores, {gpus} GPUs")
    total = _memory()
    if total is not None:
        yield ok("memory", binary_size(total))
    if request.spec is None:
        return
    requested = sum(role.gpus * role.replicas for role in roles_of(request.spec).values())
    if requested > gpus:
        yield problem("GPUs", f"the spec asks for {requested}, this machine has {gpus}", "ask for fewer, or run it where there are more")


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _disk(runs: Path) -> Iterator[CheckResult]:
    existing = next(path for path in (runs, *runs.parents) if os.path.lexists(path))  # of a directory that cannot be searched: itself
    if not is_directory(existing):
        yield problem("runs", f"{existing} is not a directory", "move it away, or choose another directory for runs with --runs")
        return
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        remedy = os_errors.explain(error, "").remedy or "choose another directory for runs: --runs DIR"
        yield problem("runs", f"{existing} cannot be written: {error.strerror}", remedy)
        return
    free = shutil.disk_usage(existing).free
    if free < _MIN_DISK:
        yield warning("runs", f"{decimal_size(free)} are free for {runs}", "free some, or choose another directory for runs with --runs")
    else:
        yield ok("runs", f"{runs}, {decimal_size(free)} free")
