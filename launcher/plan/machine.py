"""The facts about this machine that a local plan needs: cores, GPUs, and how its tasks find Python."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_NVIDIA_PROC = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class Machine:
    """One machine. `gpus` are the identifiers that CUDA_VISIBLE_DEVICES takes."""

    cores: int
    gpus: tuple[str, ...] = ()
    python: str = sys.executable
    path: str = ""  # the launcher's own PATH
    python_path: str = ""  # the launcher's own PYTHONPATH
    # The directory of the `trainer` package in a checkout; empty if it is installed.
    source: str = ""


def detect(*, with_gpus: bool) -> Machine:
    """Return this machine. GPUs are detected only `with_gpus`, since that may run nvidia-smi."""
    return Machine(
        cores=cores(),
        gpus=gpus(os.environ) if with_gpus else (),
        path=os.environ.get("PATH", os.defpath),
        python_path=os.environ.get("PYTHONPATH", ""),
        source=source_directory(),
    )


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs a task may be given: those of CUDA_VISIBLE_DEVICES if it is set, else all. CUDA hides those after an invalid one."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(itertools.takewhile(lambda part: part not in {"", "-1", "NoDevFiles"}, map(str.strip, visible.split(","))))
    if _NVIDIA_PROC.is_dir():
        return tuple(str(index) for index in range(len(list(_NVIDIA_PROC.iterdir()))))
    return _from_nvidia_smi(("nvidia-smi", "-L")) if shutil.which("nvidia-smi") else ()


def _from_nvidia_smi(command: Sequence[str]) -> tuple[str, ...]:
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    count = sum(line.startswith("GPU ") for line in output.splitlines())
    return tuple(str(index) for index in range(count))


def search_path(*parts: str | None) -> str:
    """Join search paths such as PATH and PYTHONPATH without duplicates; a single one is returned unchanged."""
    paths = [part for part in parts if part]
    if len(paths) == 1:
        return paths[0]
    directories = [directory for part in paths for directory in part.split(os.pathsep) if directory]
    return os.pathsep.join(dict.fromkeys(directories))


def source_directory() -> str:
    """Return the directory that tasks need on PYTHONPATH to find this `trainer`; empty if it is installed."""
    directory = Path(__file__).resolve().parent.parent.parent
    return "" if directory.name in {"site-packages", "dist-packages"} else str(directory)
